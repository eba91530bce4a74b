// Command custombroker shows how a broker that was there before gets cluster mirroring: log.go is its own log, frames.go its own wire
// format, broker.go its own listeners and its own way of appending, with the four places where the library comes in:
//
//   - mirror.Open over the log, before the first write;
//   - Coordinator.BeginWrite before each append: a mirrored topic is read-only;
//   - broker.Handle for what other clusters ask who mirror from here, authorized by the broker's own rules;
//   - Coordinator.Mirror for the mirrors that run here.
//
// It holds its log in memory, and mirrors topics of a cluster until it is interrupted:
//
//	go run ./examples/custombroker -listen 127.0.0.1:9095 -source host:9092 -topics orders,payments
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror"
)

func main() {
	public := flag.String("listen", "127.0.0.1:9095", "`host:port` for clients: they read and write topics")
	peers := flag.String("peers", "127.0.0.1:9096", "`host:port` for clusters that mirror from here: they may read positions too")
	source := flag.String("source", "", "bootstrap brokers `host:port,...` to mirror from")
	topics := flag.String("topics", "", "topics `a,b` to mirror")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *public, *peers, strings.Split(*source, ","), strings.Split(*topics, ","))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "custombroker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, public, peers string, source, topics []string) (err error) {
	if source[0] == "" || topics[0] == "" {
		return errors.New("needs -source and -topics")
	}
	b, err := NewBroker(ctx, NewLog(), rules)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if _, err := b.Listen(public, anyone); err != nil {
		return err
	}
	if _, err := b.Listen(peers, peer); err != nil {
		return err
	}
	m, err := b.coordinator.Mirror("dr", mirror.Source{Addr: kafka.TCP(source...)})
	if err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	if err := m.AddTopics(ctx, topics...); err != nil {
		return err
	}
	<-ctx.Done()
	fmt.Print(m.Describe())
	return nil
}

const (
	anyone = "User:anyone"
	peer   = "User:peer"
)

// rules are this broker's own: topics are for everybody, the cluster (what is mirrored, and up to which position) for peers.
func rules(principal, operation, resource string) bool {
	return principal == peer || strings.HasPrefix(resource, "Topic:")
}
