// Command quickstart mirrors Kafka topics into a folder.
//
// Without arguments it is its own source: it starts an embedded broker, writes topics of every kind, mirrors them while writing goes
// on, closes and reopens the mirror half-way, and compares both sides byte for byte. With -source it mirrors a real cluster until
// it has caught up, or is interrupted; run again, it goes on where it ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/disklog"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run() error {
	source := flag.String("source", "", "bootstrap brokers `host:port,...`; none: an embedded source")
	topics := flag.String("topics", "", "topics `a,b` to mirror from the source")
	dir := flag.String("dir", "", "`folder` for the mirror; none: a new one, removed at the end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *source == "" {
		return demo(ctx, os.Stdout, *dir)
	}
	return follow(ctx, os.Stdout, strings.Split(*source, ","), strings.Split(*topics, ","), *dir)
}

// follow mirrors a real cluster until the mirror has caught up or ctx ends.
func follow(ctx context.Context, out io.Writer, brokers, topics []string, dir string) (err error) {
	if topics[0] == "" || dir == "" {
		return errors.New("-source needs -topics and -dir")
	}
	host, err := disklog.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	m, err := mirror.New(ctx, "quickstart", mirror.Source{Addr: kafka.TCP(brokers...)}, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.Start(ctx); err != nil {
		return err
	}
	if err := m.AddTopics(ctx, topics...); err != nil {
		return err
	}
	caught := make(chan error, 1)
	go func() { caught <- m.WaitCaughtUp(ctx) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	began := measure(m)
	for last := began; ; {
		select {
		case <-tick.C:
			now := measure(m)
			fmt.Fprintf(out, "\r%s   ", now.since(last))
			last = now
		case err := <-caught:
			fmt.Fprintf(out, "\r%s in all\n%s", measure(m).since(began), m.Describe())
			if ctx.Err() != nil {
				fmt.Fprintln(out, "interrupted; run it again to go on")
				return nil
			}
			return err
		}
	}
}

// progress is how far a mirror has come.
type progress struct {
	at      time.Time
	offsets int64
	bytes   int64
	lag     int64
}

func measure(m *mirror.Mirror) progress {
	p := progress{at: time.Now()}
	for _, t := range m.Describe().Topics {
		for _, s := range t.Partitions {
			p.offsets += s.End - s.Start
			p.bytes += s.Bytes
			p.lag += max(s.Lag, 0)
		}
	}
	return p
}

func (p progress) since(last progress) string {
	span := p.at.Sub(last.at).Seconds()
	rate := float64(p.offsets-last.offsets) / span
	left := "?"
	if p.lag == 0 {
		left = "0s"
	} else if rate > 0 {
		left = time.Duration(float64(p.lag) / rate * float64(time.Second)).Round(time.Second).String()
	}
	return fmt.Sprintf("%d records, %.1f MB/s, lag %d, time left %s", p.offsets, float64(p.bytes-last.bytes)/1e6/span, p.lag, left)
}
