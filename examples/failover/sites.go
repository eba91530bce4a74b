package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/disklog"
)

// site is a cluster in a folder: closed and opened again, it is what comes back after an outage.
type site struct {
	host        *disklog.Host
	coordinator *mirror.Coordinator
	broker      *broker.Broker
}

func open(ctx context.Context, say *log.Logger, dir string) (*site, error) {
	host, err := disklog.Open(dir)
	if err != nil {
		return nil, err
	}
	c, err := mirror.Open(ctx, host, mirror.OnEvent(func(e mirror.Event) {
		if e.Kind == mirror.DataLoss || e.Kind == mirror.Truncated {
			say.Println("   EVENT", e)
		}
	}))
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	b, err := broker.New(c)
	if err != nil {
		return nil, errors.Join(err, c.Close(), host.Close())
	}
	return &site{host, c, b}, nil
}

func (s *site) close() error {
	return errors.Join(s.broker.Close(), s.coordinator.Close(), s.host.Close())
}

// through lets the connections to a source break when the line does.
func through(line context.Context, source mirror.Source) mirror.Source {
	dial := source.Transport.Dial
	source.Transport.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := line.Err(); err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(line, func() { conn.Close() })
		}
		return conn, err
	}
	return source
}

// clients are two producers, which write wherever they are sent, and a consumer of a mirror's records.
type clients struct {
	at              atomic.Pointer[broker.Broker] // where the producers' address leads to
	acked, consumed atomic.Int64                  // records

	stopProducers, stopConsumer func() // each waits
}

func start(ctx context.Context, s *site, m *mirror.Mirror) *clients {
	c := new(clients)
	c.at.Store(s.broker)
	c.stopProducers = background(ctx, func(ctx context.Context) { c.produce(ctx, "first") }, func(ctx context.Context) { c.produce(ctx, "second") })
	c.stopConsumer = background(ctx, func(ctx context.Context) { c.consume(ctx, m, 0) }, func(ctx context.Context) { c.consume(ctx, m, 1) })
	return c
}

// background runs jobs until stop is called.
func background(ctx context.Context, jobs ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	for _, job := range jobs {
		work.Go(func() { job(ctx) })
	}
	return func() { cancel(); work.Wait() }
}

// produce writes numbered records, each again until somebody acknowledges it.
func (c *clients) produce(ctx context.Context, name string) {
	transport := &kafka.Transport{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return c.at.Load().Dial(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{
		Addr: kafka.TCP("node-1:9092"), Transport: transport, Topic: topic, Balancer: &kafka.RoundRobin{}, BatchTimeout: time.Millisecond,
		RequiredAcks: kafka.RequireAll, // kafka-go's default asks for no acknowledgement at all
	}
	defer w.Close()
	for n := 1; ctx.Err() == nil; {
		if err := w.WriteMessages(ctx, kafka.Message{Value: fmt.Appendf(nil, "order %d of the %s producer", n, name)}); err == nil {
			c.acked.Add(1)
			n++
		}
	}
}

// consume follows one partition of the mirror, also beyond its takeover.
func (c *clients) consume(ctx context.Context, m *mirror.Mirror, partition int32) {
	for _, err := range m.Records(ctx, topic, partition, 0, mirror.Follow()) {
		if err != nil {
			return // ctx has ended
		}
		c.consumed.Add(1)
	}
}

// reach waits until a counter of the clients has come to a number.
func reach(ctx context.Context, counter *atomic.Int64, number int64) error {
	for counter.Load() < number {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// more waits until n more records were acknowledged.
func (c *clients) more(ctx context.Context, n int64) error {
	return reach(ctx, &c.acked, c.acked.Load()+n)
}

// compare fails if the sites differ in a single byte.
func compare(ctx context.Context, a, b *site) (size int, err error) {
	for i := range int32(partitions) {
		x, errX := content(ctx, a, i)
		y, errY := content(ctx, b, i)
		if err := errors.Join(errX, errY); err != nil {
			return size, err
		}
		if !bytes.Equal(x, y) {
			return size, fmt.Errorf("%s-%d differs: %d bytes on one side, %d on the other", topic, i, len(x), len(y))
		}
		size += len(x)
	}
	return size, nil
}

// content is the whole log of a partition.
func content(ctx context.Context, s *site, partition int32) (all []byte, err error) {
	p, err := s.coordinator.Partition(ctx, topic, partition)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, 1<<20) // larger than any batch here
	for at, end := p.Bounds(); at < end; {
		n, err := p.Read(ctx, at, buf)
		if err != nil {
			return nil, err
		}
		for b, err := range mirror.Batches(buf[:n]) {
			if err != nil {
				return nil, err
			}
			all, at = append(all, b.Bytes...), b.Next
		}
	}
	return all, nil
}
