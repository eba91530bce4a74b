// Customlog shows a host of one's own: host.go is a whole one in little more than a hundred lines. Copy it, put your log in the
// place of its slices, and keep its test, which runs the conformance suite.
//
//	go run ./examples/customlog
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/clustermirror/mirror"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run appends some records to a topic of the host, as a producer's batches, and reads them back.
func run(ctx context.Context, out io.Writer) error {
	host := NewHost()
	if err := host.EnsureTopic(ctx, mirror.Topic{Name: "greetings", Partitions: 1}); err != nil {
		return err
	}
	c, err := mirror.Open(ctx, host)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.Partition(ctx, "greetings", 0)
	if err != nil {
		return err
	}
	for _, value := range []string{"hello", "from a log", "of your own"} {
		if _, err := p.Append(ctx, batchOf(value)); err != nil {
			return err
		}
	}
	start, end := p.Bounds()
	fmt.Fprintf(out, "%s holds [%d, %d)\n", p, start, end)
	for m, err := range p.Records(ctx, start) {
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%6d  %s\n", m.Offset, m.Value)
	}
	return nil
}

// batchOf is a record batch as a producer sends it.
func batchOf(value string) []byte {
	var b bytes.Buffer
	set := protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(protocol.Record{Value: protocol.NewBytes([]byte(value))})}
	if _, err := set.WriteTo(&b); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()[4:] // without the length in front
}
