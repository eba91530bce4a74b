// Command inprocess prints what its test asserts: a source, a mirror and a reader in one process, with no port and no container.
//
// The test beside it runs the same story in virtual time: copy it to test your own program.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/memlog"
)

func main() {
	values, err := story(context.Background(), "hello", "world")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("mirrored:", values)
}

// story writes values to a topic of an in-memory cluster, mirrors it, and reads them from the mirror.
func story(ctx context.Context, values ...string) (read []string, err error) {
	origin, err := mirror.Open(ctx, memlog.New())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, origin.Close()) }()
	cluster, err := broker.New(origin, broker.Nodes(3), broker.AutoCreate(1))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	source := cluster.Source()

	w := &kafka.Writer{
		Addr: source.Addr, Transport: source.Transport, Topic: "greetings", AllowAutoTopicCreation: true, RequiredAcks: kafka.RequireAll,
	}
	defer func() {
		err = errors.Join(err, w.Close())
		source.Transport.CloseIdleConnections()
	}()
	for _, v := range values {
		if err := w.WriteMessages(ctx, kafka.Message{Value: []byte(v)}); err != nil {
			return nil, err
		}
	}

	m, err := mirror.New(ctx, "copy", source, memlog.New())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := errors.Join(m.Start(ctx), m.AddTopics(ctx, "greetings")); err != nil {
		return nil, err
	}
	if err := m.WaitCaughtUp(ctx); err != nil {
		return nil, err
	}
	for msg, err := range m.Records(ctx, "greetings", 0, 0) {
		if err != nil {
			return nil, err
		}
		read = append(read, string(msg.Value))
	}
	return read, nil
}
