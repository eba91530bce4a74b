package judge

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SameTimes looks up offsets by time on both sides: before, at, and after the timestamp of each record, and the two ends. The
// partition should not be written meanwhile.
func SameTimes(ctx context.Context, source, mirror, topic string, partition int32) error {
	records, err := Consume(ctx, source, topic, partition, false)
	if err != nil {
		return err
	}
	times := []int64{0}
	for _, r := range records {
		for _, ms := range []int64{r.Timestamp.UnixMilli(), r.Timestamp.UnixMilli() + 1} {
			if ms > times[len(times)-1] {
				times = append(times, ms)
			}
		}
	}
	ask := func(addr string) (answers []kadm.ListedOffset, err error) {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
		if err != nil {
			return nil, err
		}
		defer cl.Close()
		admin := kadm.NewClient(cl)
		add := func(listed kadm.ListedOffsets, err error) error {
			answers = append(answers, listed[topic][partition])
			return errors.Join(err, listed.Error())
		}
		err = errors.Join(add(admin.ListStartOffsets(ctx, topic)), add(admin.ListEndOffsets(ctx, topic)), add(admin.ListCommittedOffsets(ctx, topic)))
		for i := 0; err == nil && i < len(times); i += 1 + len(times)/50 {
			err = add(admin.ListOffsetsAfterMilli(ctx, times[i], topic))
		}
		return answers, err
	}
	want, err := ask(source)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	got, err := ask(mirror)
	if err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	for i, w := range want {
		if g := got[i]; w.Offset != g.Offset || w.Timestamp != g.Timestamp {
			return fmt.Errorf("look-up %d: offset %d of time %d at the source, offset %d of time %d in the mirror", i, w.Offset, w.Timestamp, g.Offset, g.Timestamp)
		}
	}
	return nil
}

// EpochEnd asks the partition's leader where a leader epoch ends (KIP-101).
func EpochEnd(ctx context.Context, leader, topic string, partition, epoch int32) (int64, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(leader))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.Partition, rp.LeaderEpoch = partition, epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	raw, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return 0, err
	}
	resp := raw.(*kmsg.OffsetForLeaderEpochResponse)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, errors.New("answer without the partition")
	}
	p := resp.Topics[0].Partitions[0]
	return p.EndOffset, kerr.ErrorForCode(p.ErrorCode)
}
