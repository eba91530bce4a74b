package judge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
)

// Client is a consumer of someone else's: it reads a partition from its start to the last record that is below the high
// watermark (or, committed, below the last stable offset) and answers a text that tells each record's offset, timestamp, key,
// value and headers. Two clusters that hold the same give the same text.
type Client struct {
	Name string
	Read func(ctx context.Context, addr, topic string, partition int32, committed bool) (string, error)
}

// The clients: librdkafka, franz-go, kafka-go, and Kafka's own console consumer, which is slow to start. KafkaGo leaves it to the
// broker to know what is committed: it shows aborted records, the others don't.
var (
	Kcat    = Client{"kcat", kcat}
	FranzGo = Client{"franz-go", franz}
	KafkaGo = Client{"kafka-go", segmentio}
	Java    = Client{"java", console}
)

// Same lets the client read both sides. The error names the first record that differs.
func (c Client) Same(ctx context.Context, source, mirror, topic string, partition int32, committed bool) error {
	want, err := c.Read(ctx, source, topic, partition, committed)
	if err != nil {
		return fmt.Errorf("%s at the source: %w", c.Name, err)
	}
	got, err := c.Read(ctx, mirror, topic, partition, committed)
	if err != nil {
		return fmt.Errorf("%s at the mirror: %w", c.Name, err)
	}
	if want == "" {
		return fmt.Errorf("%s read nothing at the source", c.Name)
	}
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range w {
		if i == len(g) || w[i] != g[i] {
			return fmt.Errorf("%s: line %d differs:\nsource %.300s\nmirror %.300s", c.Name, i+1, w[i], append(g, "nothing")[i])
		}
	}
	if len(g) > len(w) {
		return fmt.Errorf("%s: the mirror goes on with %.300s", c.Name, g[len(w)])
	}
	return nil
}

func kcat(ctx context.Context, addr, topic string, partition int32, committed bool) (string, error) {
	isolation := "read_uncommitted"
	if committed {
		isolation = "read_committed"
	}
	return kafkatest.Kcat(ctx, "-C", "-q", "-e", "-o", "beginning", "-b", addr, "-t", topic, "-p", fmt.Sprint(partition),
		"-X", "isolation.level="+isolation, "-X", "check.crcs=true",
		"-f", "%o %T key %K %k headers %h value %S %s\n")
}

func franz(ctx context.Context, addr, topic string, partition int32, committed bool) (string, error) {
	records, err := Consume(ctx, addr, topic, partition, committed)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, r := range records {
		text.WriteString(line(r))
	}
	return text.String(), nil
}

// Consume reads a partition from its start to its end by franz-go.
func Consume(ctx context.Context, addr, topic string, partition int32, committed bool) ([]*kgo.Record, error) {
	isolation := kgo.ReadUncommitted()
	if committed {
		isolation = kgo.ReadCommitted()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(addr),
		kgo.FetchIsolationLevel(isolation),
		// Control records show how far the client has come even where a partition ends with markers.
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}),
	)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var records []*kgo.Record
	for next := int64(0); ; {
		end := int64(-1)
		fetches := cl.PollFetches(ctx)
		for _, f := range fetches.Errors() {
			return nil, fmt.Errorf("%s-%d after offset %d: %w", f.Topic, f.Partition, next-1, f.Err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if end = p.HighWatermark; committed {
				end = p.LastStableOffset
			}
			for _, r := range p.Records {
				next = r.Offset + 1
				if !r.Attrs.IsControl() {
					records = append(records, r)
				}
			}
		})
		if end >= 0 && next >= end {
			return records, nil
		}
	}
}

func line(r *kgo.Record) string {
	headers := make([]string, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = h.Key + "=" + text(h.Value)
	}
	return fmt.Sprintf("%d %d.%d epoch %d producer %d.%d key %s headers %q value %s\n", r.Offset, r.Timestamp.UnixMilli(), r.Attrs.TimestampType(),
		r.LeaderEpoch, r.ProducerID, r.ProducerEpoch, text(r.Key), headers, text(r.Value))
}

func segmentio(ctx context.Context, addr, topic string, partition int32, committed bool) (string, error) {
	isolation := kafka.ReadUncommitted
	if committed {
		isolation = kafka.ReadCommitted
	}
	// The reader can't say where the end is, nor that it stands there.
	records, err := Consume(ctx, addr, topic, partition, committed)
	if err != nil || len(records) == 0 {
		return "", err
	}
	last := records[len(records)-1].Offset
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{addr}, Topic: topic, Partition: int(partition),
		IsolationLevel: isolation, MaxBytes: maxBatch, MaxWait: 100 * time.Millisecond,
	})
	defer r.Close()
	if err := r.SetOffset(kafka.FirstOffset); err != nil {
		return "", err
	}
	var all strings.Builder
	for at := int64(-1); at < last; {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return "", fmt.Errorf("after offset %d of %d: %w", at, last, err)
		}
		at = m.Offset
		fmt.Fprintf(&all, "%d %d key %s headers %q value %s\n", m.Offset, m.Time.UnixMilli(), text(m.Key), m.Headers, text(m.Value))
	}
	return all.String(), nil
}

func console(ctx context.Context, addr, topic string, partition int32, committed bool) (string, error) {
	isolation := "read_uncommitted"
	if committed {
		isolation = "read_committed"
	}
	records, err := Consume(ctx, addr, topic, partition, committed)
	if err != nil {
		return "", err
	}
	args := []string{
		"--bootstrap-server", addr, "--topic", topic, "--partition", fmt.Sprint(partition), "--offset", "earliest",
		"--isolation-level", isolation, "--max-messages", fmt.Sprint(len(records)), "--timeout-ms", "20000",
		"--command-property", "enable.auto.commit=false", "--command-property", "check.crcs=true",
	}
	for _, what := range []string{"timestamp", "key", "offset", "epoch", "headers", "value"} {
		args = append(args, "--formatter-property", "print."+what+"=true")
	}
	return kafkatest.Tool(ctx, "consumer.ConsoleConsumer", args...)
}

// Dumped compares what Kafka's DumpLogSegments says of the batches and records in two partitions' segment files, and that it
// finds both valid.
func Dumped(ctx context.Context, source, mirror string) error {
	want, err := dump(ctx, source)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	got, err := dump(ctx, mirror)
	if err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	if !slices.Equal(want, got) {
		return fmt.Errorf("DumpLogSegments finds %d batches and records at the source, %d in the mirror, or not the same ones", len(want), len(got))
	}
	return nil
}

func dump(ctx context.Context, dir string) ([]string, error) {
	segments, err := Segments(dir)
	if err != nil {
		return nil, err
	}
	out, err := kafkatest.Tool(ctx, "DumpLogSegments", "--deep-iteration", "--files", strings.Join(segments, ","))
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "Dumping ") || strings.HasPrefix(line, "Log starting offset") || line == "" {
			continue
		}
		// Where a batch lies in its file depends on where the log was rolled.
		fields := strings.Fields(line)
		if i := slices.Index(fields, "position:"); i >= 0 {
			fields = slices.Delete(fields, i, i+2)
		}
		batch := strings.HasPrefix(line, "baseOffset:")
		if !batch && !strings.HasPrefix(line, "| offset:") || batch && !strings.Contains(line, "isvalid: true") {
			return nil, errors.New("DumpLogSegments: " + line)
		}
		lines = append(lines, strings.Join(fields, " "))
	}
	if lines == nil {
		return nil, fmt.Errorf("DumpLogSegments finds nothing in %s", dir)
	}
	return lines, nil
}

// text tells nil from empty, and keeps what differs short.
func text(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 64:
		return fmt.Sprintf("%x (%d bytes)", sha256.Sum256(b), len(b))
	}
	return fmt.Sprintf("%q", bytes.Clone(b))
}
