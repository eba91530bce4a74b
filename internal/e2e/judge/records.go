package judge

import (
	"fmt"
	"iter"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Surviving compares a compacted topic's records: each record that the source still has must be in the mirror, at its offset
// and unchanged; each that only the mirror has must be one that a later record of the same key made superfluous.
func Surviving(source, mirror iter.Seq2[Batch, error]) error {
	want, err := decode(source)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	got, err := decode(mirror)
	if err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	last := map[string]int64{} // of each key, in the mirror
	for _, r := range got {
		last[string(r.Key)] = r.Offset
	}
	i := 0
	for _, r := range got {
		switch {
		case i < len(want) && want[i].Offset < r.Offset:
			return fmt.Errorf("the mirror lacks the record at %d (key %q)", want[i].Offset, want[i].Key)
		case i < len(want) && want[i].Offset == r.Offset:
			if w, g := line(want[i]), line(r); w != g {
				return fmt.Errorf("the record differs:\n%s\n%s", w, g)
			}
			i++
		case last[string(r.Key)] == r.Offset && r.Value != nil:
			return fmt.Errorf("the source lacks the record at %d, the last of key %q", r.Offset, r.Key)
		}
	}
	if i < len(want) {
		return fmt.Errorf("the mirror lacks the record at %d (key %q)", want[i].Offset, want[i].Key)
	}
	return nil
}

// decode answers all records but the control records.
func decode(batches iter.Seq2[Batch, error]) ([]*kgo.Record, error) {
	var all []*kgo.Record
	for b, err := range batches {
		if err != nil {
			return nil, err
		}
		p, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{},
			&kmsg.FetchResponseTopicPartition{HighWatermark: b.Next, LastStableOffset: b.Next, RecordBatches: b.Bytes}, kgo.DefaultDecompressor(), nil)
		if p.Err != nil {
			return nil, fmt.Errorf("batch %d-%d: %w", b.Base, b.Next-1, p.Err)
		}
		all = append(all, p.Records...)
	}
	return all, nil
}
