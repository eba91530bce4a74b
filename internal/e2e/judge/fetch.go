package judge

import (
	"context"
	"fmt"
	"iter"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fetched walks the batches of a partition as its leader sends them to franz-go, from the log start to the high watermark: the
// judge's view of a cluster without files. The batches should come to an end.
func Fetched(ctx context.Context, addrs []string, topic string, partition int32) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if err := fetch(ctx, addrs, topic, partition, yield); err != nil {
			yield(Batch{}, err)
		}
	}
}

func fetch(ctx context.Context, addrs []string, topic string, partition int32, yield func(Batch, error) bool) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		return err
	}
	defer cl.Close()
	admin := kadm.NewClient(cl)
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	leader, start := topics[topic].Partitions[partition].Leader, starts[topic][partition]
	if start.Err != nil {
		return start.Err
	}
	for at := start.Offset; ; {
		req := kmsg.NewPtrFetchRequest()
		req.MinBytes, req.MaxBytes = 0, maxBatch
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = topic, topics[topic].ID
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, at, maxBatch
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		raw, err := cl.Broker(int(leader)).RetriableRequest(ctx, req)
		if err != nil {
			return err
		}
		resp := raw.(*kmsg.FetchResponse)
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return fmt.Errorf("fetch at %d: answer without the partition", at)
		}
		p := resp.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			return fmt.Errorf("fetch at %d: %w", at, err)
		}
		before := at
		for b, err := range Split(p.RecordBatches) {
			if !yield(b, err) || err != nil {
				return nil
			}
			at = b.Next
		}
		if at == before {
			if at < p.HighWatermark {
				return fmt.Errorf("fetch at %d: no batch, the high watermark is %d", at, p.HighWatermark)
			}
			return nil
		}
	}
}
