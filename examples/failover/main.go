// Command failover tells a takeover and the way back in one process: two sites with embedded brokers, producers and a consumer that
// keep going, a site that dies with records that nobody else has, the takeover, and the return of the dead site, which gets just the
// difference. It prints positions, epochs and losses at every step, and fails unless both sites end byte-identical.
//
//	go run ./examples/failover
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/clustermirror/mirror"
)

const (
	topic      = "orders"
	partitions = 2
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal("failover: ", err) // exit 1
	}
}

// run tells the story in a temporary folder.
func run(ctx context.Context, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // some seconds do
	defer cancel()
	dir, err := os.MkdirTemp("", "failover")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	say := log.New(out, "", 0)
	east, err := open(ctx, say, filepath.Join(dir, "east"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, east.close()) }()
	west, err := open(ctx, say, filepath.Join(dir, "west"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, west.close()) }()
	if err := east.host.EnsureTopic(ctx, mirror.Topic{Name: topic, Partitions: partitions}); err != nil {
		return err
	}

	say.Println("1. Producers write to east, west mirrors it, and a consumer reads the mirror.")
	line, breakLine := context.WithCancel(ctx)
	defer breakLine()
	dr, err := west.coordinator.Mirror("dr", through(line, east.broker.Source()))
	if err != nil {
		return err
	}
	if err := dr.Start(ctx); err != nil {
		return err
	}
	if err := dr.AddTopics(ctx, topic); err != nil {
		return err
	}
	c := start(ctx, east, dr)
	defer c.stopConsumer()
	defer c.stopProducers()
	if err := c.more(ctx, 300); err != nil {
		return err
	}
	if err := dr.WaitCaughtUp(ctx); err != nil {
		return err
	}
	tell(say, c, dr)

	say.Println("\n2. The line between the sites breaks. Producers go on for a while, then east dies.")
	breakLine()
	if err := c.more(ctx, 10); err != nil {
		return err
	}
	if err := east.close(); err != nil {
		return err
	}
	tell(say, c, dr)

	say.Println("\n3. Failover: west takes the topic over, and the producers are sent there.")
	takeover, err := dr.PlanRemove(ctx, topic)
	if err != nil {
		return err
	}
	say.Print(takeover)
	if err := dr.Remove(ctx, topic); err != nil {
		return err
	}
	c.at.Store(west.broker)
	if err := c.more(ctx, 200); err != nil {
		return err
	}
	tell(say, c, dr)

	say.Println("\n4. East returns. Records that only it has can still be set aside.")
	if east, err = open(ctx, say, filepath.Join(dir, "east")); err != nil {
		return err
	}
	back, err := east.coordinator.Mirror("back", west.broker.Source())
	if err != nil {
		return err
	}
	if err := back.Start(ctx); err != nil {
		return err
	}
	for _, p := range dr.Describe().Topics[0].Partitions {
		for msg, err := range back.Records(ctx, topic, p.Partition, p.Position.Offset) {
			if err != nil {
				return err
			}
			say.Printf("   %s-%d offset %d: %s", topic, p.Partition, msg.Offset, msg.Value)
		}
	}

	say.Println("\n5. Failback: east drops exactly those and fetches only what is new, while producers go on.")
	failback, err := back.PlanAdd(ctx, topic)
	if err != nil {
		return err
	}
	say.Print(failback)
	if err := back.AddTopics(ctx, topic); err != nil {
		return err
	}
	if err := back.WaitCaughtUp(ctx); err != nil {
		return err
	}
	tell(say, c, back)

	say.Println("\n6. Producers stop, and both sites are compared.")
	c.stopProducers()
	if err := back.WaitCaughtUp(ctx); err != nil {
		return err
	}
	var records int64
	for p := range int32(partitions) {
		for _, err := range back.Records(ctx, topic, p, 0) {
			if err != nil {
				return err
			}
			records++
		}
	}
	if err := reach(ctx, &c.consumed, records); err != nil {
		return err
	}
	tell(say, c, back)
	size, err := compare(ctx, east, west)
	if err != nil {
		return err
	}
	say.Printf("   identical: %d records, %d bytes on both sides", records, size)
	return nil
}

// tell prints how far the clients and the partitions of a mirror have come.
func tell(say *log.Logger, c *clients, m *mirror.Mirror) {
	say.Printf("   %d records acknowledged to producers, %d consumed", c.acked.Load(), c.consumed.Load())
	for _, p := range m.Describe().Topics[0].Partitions {
		position := ""
		if p.Position != nil {
			position = fmt.Sprintf(", last mirrored position (epoch %d, offset %d)", p.Position.Epoch, p.Position.Offset)
		}
		say.Printf("   mirror %s, %s-%d: %s, ends at %d, leader epoch %d%s; source ended at %d; %d bytes fetched, %d offsets cut",
			m.Name(), topic, p.Partition, p.State, p.End, p.LeaderEpoch, position, p.SourceEnd, p.Bytes, p.Totals.Cut)
	}
}
