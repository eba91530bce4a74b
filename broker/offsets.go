package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
)

// Timestamps that ask for something else than a time.
const (
	latest        int64 = -1
	earliest      int64 = -2
	maxTimestamp  int64 = -3
	earliestLocal int64 = -4
	latestTiered  int64 = -5
)

func (b *Broker) listOffsets(ctx context.Context, c *call, req *kmsg.ListOffsetsRequest, resp *kmsg.ListOffsetsResponse) {
	for _, t := range req.Topics {
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = t.Topic
		for _, want := range t.Partitions {
			p := kmsg.NewListOffsetsResponseTopicPartition()
			p.Partition, p.LeaderEpoch = want.Partition, -1
			b.findOffset(ctx, c, t.Topic, &want, req.IsolationLevel == readCommitted, &p)
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
}

func (b *Broker) findOffset(ctx context.Context, c *call, topic string, want *kmsg.ListOffsetsRequestTopicPartition, committed bool, out *kmsg.ListOffsetsResponseTopicPartition) {
	if !b.allowed(c, "Describe", "Topic:"+topic) {
		out.ErrorCode = topicAuthorizationFailed
		return
	}
	p, code := b.leading(ctx, c, topic, want.Partition, want.CurrentLeaderEpoch)
	if code != noError {
		out.ErrorCode = code
		return
	}
	start, hw := b.readable(p)
	bound, err := b.bound(ctx, p, hw, committed)
	offset, at, epoch := int64(-1), int64(-1), int32(-1)
	switch {
	case err != nil:
	case want.Timestamp == latest:
		offset = bound
		epoch, err = lastEpoch(ctx, p)
	case want.Timestamp == earliest, want.Timestamp == earliestLocal:
		offset = start
		epoch, err = p.EpochAt(ctx, start)
	case want.Timestamp == latestTiered:
	case want.Timestamp == maxTimestamp:
		offset, at, epoch, err = b.newest(ctx, p, start, bound)
	case want.Timestamp >= 0:
		var found time.Time
		if offset, found, err = p.OffsetForTime(ctx, time.UnixMilli(want.Timestamp)); err == nil && offset >= 0 {
			if offset >= bound {
				offset = -1
				break
			}
			at = found.UnixMilli()
			epoch, err = p.EpochAt(ctx, offset)
		}
	default:
		out.ErrorCode = unsupportedVersion
		return
	}
	if err != nil {
		out.ErrorCode = b.code(err)
		return
	}
	out.Offset, out.Timestamp, out.LeaderEpoch = offset, at, epoch
}

// lastEpoch is the epoch of the log's last batch.
func lastEpoch(ctx context.Context, p *mirror.Partition) (int32, error) {
	_, end := p.Bounds()
	return p.EpochAt(ctx, end)
}

func (b *Broker) offsetForLeaderEpoch(ctx context.Context, c *call, req *kmsg.OffsetForLeaderEpochRequest, resp *kmsg.OffsetForLeaderEpochResponse) {
	for _, t := range req.Topics {
		out := kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = t.Topic
		for _, want := range t.Partitions {
			r := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			r.Partition, r.LeaderEpoch, r.EndOffset = want.Partition, -1, -1
			if !b.allowed(c, "Describe", "Topic:"+t.Topic) {
				r.ErrorCode = topicAuthorizationFailed
			} else if p, code := b.leading(ctx, c, t.Topic, want.Partition, want.CurrentLeaderEpoch); code != noError {
				r.ErrorCode = code
			} else if epoch, end, err := p.EpochEnd(ctx, want.LeaderEpoch); err != nil {
				r.ErrorCode = b.code(err)
			} else {
				r.LeaderEpoch, r.EndOffset = epoch, end
			}
			out.Partitions = append(out.Partitions, r)
		}
		resp.Topics = append(resp.Topics, out)
	}
}
