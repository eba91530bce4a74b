package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/disklog"
	"github.com/clustermirror/mirror/memlog"
)

var codecs = map[string]kafka.Compression{
	"plain": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
}

// demo is the whole story against an embedded source.
func demo(ctx context.Context, out io.Writer, dir string) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "quickstart"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	origin, err := mirror.Open(ctx, memlog.New())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, origin.Close()) }()
	server, err := broker.New(origin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()

	var topics []string
	for name := range codecs {
		topics = append(topics, name)
		if err := origin.Host().EnsureTopic(ctx, mirror.Topic{Name: name, Partitions: 2}); err != nil {
			return err
		}
	}
	source := server.Source()
	fmt.Fprintln(out, "writing to 5 topics, one per codec, while they are mirrored into", dir)
	writing, stop := context.WithCancel(ctx)
	defer stop()
	written := make(chan error, 1)
	go func() { written <- write(writing, source) }()

	// The first life of the mirror, and the second, which goes on where the first ended.
	err = live(ctx, source, dir, topics, func(m *mirror.Mirror) error {
		if err := pass(ctx, 2*time.Second); err != nil {
			return err
		}
		if err := m.WaitCaughtUp(ctx); err != nil {
			return err
		}
		fmt.Fprintf(out, "caught up at %d offsets while writing goes on; closing the mirror and opening it again\n", measure(m).offsets)
		return nil
	})
	if err != nil {
		return err
	}
	return live(ctx, source, dir, topics, func(m *mirror.Mirror) error {
		if err := pass(ctx, time.Second); err != nil {
			return err
		}
		stop()
		if err := <-written; err != nil {
			return err
		}
		if err := m.WaitCaughtUp(ctx); err != nil {
			return err
		}
		fmt.Fprint(out, m.Describe())
		return same(ctx, out, origin, m.Coordinator(), topics)
	})
}

// pass lets writing and mirroring go on for a while.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// live opens a mirror, uses it, and closes it.
func live(ctx context.Context, source mirror.Source, dir string, topics []string, use func(*mirror.Mirror) error) (err error) {
	host, err := disklog.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	m, err := mirror.New(ctx, "quickstart", source, host)
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
	return use(m)
}

// write writes records of every kind until ctx ends.
func write(ctx context.Context, source mirror.Source) error {
	writers := make(map[string]*kafka.Writer)
	for name, codec := range codecs {
		writers[name] = &kafka.Writer{
			Addr: source.Addr, Transport: source.Transport, Topic: name, Compression: codec,
			RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, Balancer: &kafka.RoundRobin{},
		}
	}
	for i := 0; ; i++ {
		for _, w := range writers {
			err := w.WriteMessages(context.WithoutCancel(ctx),
				kafka.Message{Key: fmt.Append(nil, "key ", i), Value: bytes.Repeat([]byte("value "), i%200)},
				kafka.Message{Value: []byte("no key"), Headers: []kafka.Header{{Key: "attempt", Value: []byte{1}}, {Key: "empty"}}},
				kafka.Message{Key: []byte("no value")},
			)
			if err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	var errs []error
	for _, w := range writers {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

// same compares both sides byte for byte.
func same(ctx context.Context, out io.Writer, source, replica *mirror.Coordinator, topics []string) error {
	var total int
	for _, topic := range topics {
		for num := range int32(2) {
			a, err := content(ctx, source, topic, num)
			if err != nil {
				return err
			}
			b, err := content(ctx, replica, topic, num)
			if err != nil {
				return err
			}
			if !bytes.Equal(a, b) {
				return fmt.Errorf("%s-%d differs: %d bytes at the source, %d in the mirror", topic, num, len(a), len(b))
			}
			total += len(a)
		}
	}
	fmt.Fprintf(out, "identical: %d topics, %d bytes on both sides\n", len(topics), total)
	return nil
}

// content reads the whole log of a partition.
func content(ctx context.Context, c *mirror.Coordinator, topic string, num int32) ([]byte, error) {
	p, err := c.Partition(ctx, topic, num)
	if err != nil {
		return nil, err
	}
	var all []byte
	buf := make([]byte, 1<<20)
	for at, end := p.Bounds(); at < end; {
		n, err := p.Read(ctx, at, buf)
		if err != nil {
			return nil, err
		}
		whole := 0
		for b, err := range mirror.Batches(buf[:n]) {
			if err != nil {
				return nil, err
			}
			whole += len(b.Bytes)
			at = b.Next
		}
		if whole == 0 {
			return nil, fmt.Errorf("%s-%d: no whole batch at offset %d", topic, num, at)
		}
		all = append(all, buf[:whole]...)
	}
	return all, nil
}
