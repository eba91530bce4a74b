package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

const (
	acksNone int16 = 0
	acksAll  int16 = -1

	// defaultMaxBatch is Kafka's default of max.message.bytes.
	defaultMaxBatch = 1<<20 + 12

	parallelSyncs = 8
)

// written is where the records of one partition went.
type written struct {
	part  *mirror.Partition
	end   int64 // offset after them
	epoch int32 // leader epoch at that time
	out   *kmsg.ProduceResponseTopicPartition
}

func (b *Broker) produce(ctx context.Context, c *call, req *kmsg.ProduceRequest, resp *kmsg.ProduceResponse) {
	c.silent = req.Acks == acksNone
	var done []written
	for i := range req.Topics {
		t := &req.Topics[i]
		out := kmsg.NewProduceResponseTopic()
		out.Topic, out.TopicID = t.Topic, t.TopicID
		out.Partitions = make([]kmsg.ProduceResponseTopicPartition, len(t.Partitions))
		for j := range t.Partitions {
			p := &out.Partitions[j]
			*p = kmsg.NewProduceResponseTopicPartition()
			p.Partition = t.Partitions[j].Partition
			if w, err := b.take(ctx, c, req, t, &t.Partitions[j], p); err != nil {
				b.explain(p, w, err)
			} else {
				w.out = p
				done = append(done, w)
			}
		}
		resp.Topics = append(resp.Topics, out)
	}
	if req.Acks == acksAll {
		b.settle(ctx, done, time.Duration(max(req.TimeoutMillis, 0))*time.Millisecond)
	}
}

// explain puts an error into an answer, and says where to go instead.
func (b *Broker) explain(out *kmsg.ProduceResponseTopicPartition, w written, err error) {
	out.ErrorCode = b.code(err)
	if text := err.Error(); text != "" {
		out.ErrorMessage = &text
	}
	out.BaseOffset = -1
	if movedLeader(out.ErrorCode) && w.part != nil {
		if leader := b.cluster.leader(place{w.part.Topic(), w.part.ID()}); leader > 0 {
			out.CurrentLeader.LeaderID, out.CurrentLeader.LeaderEpoch = leader, w.part.LeaderEpoch()
		}
	}
}

// take appends the records of one partition.
func (b *Broker) take(ctx context.Context, c *call, req *kmsg.ProduceRequest, t *kmsg.ProduceRequestTopic, in *kmsg.ProduceRequestTopicPartition, out *kmsg.ProduceResponseTopicPartition) (w written, err error) {
	if req.Acks < acksAll || req.Acks > 1 {
		return w, refuse(invalidRequiredAcks, "acks must be -1, 0 or 1")
	}
	topic, code := b.topic(ctx, c, t.Topic, mirror.TopicID(t.TopicID))
	switch {
	case code != noError:
		return w, refuse(code, "no such topic")
	case !b.allowed(c, "Write", "Topic:"+topic.Name):
		return w, refuse(topicAuthorizationFailed, "%s may not write to topic %s", c.Principal, topic.Name)
	case internalTopic(topic.Name):
		return w, refuse(invalidTopic, "topic %s is internal", topic.Name)
	}
	w.part, code = b.leading(ctx, c, topic.Name, in.Partition, anyEpoch)
	if code == noError {
		code = b.meant(ctx, c, w.part, mirror.TopicID(t.TopicID))
	}
	if code != noError {
		return w, refuse(code, "")
	}
	// Said before the records are looked at: a client that writes to a mirror should hear that first.
	if err := b.c.CheckWrite(topic.Name, in.Partition); err != nil {
		return w, err
	}
	h, err := checkRecords(in.Records, topic.Configs)
	if err != nil {
		return w, err
	}
	out.LogAppendTime = -1
	if topic.Configs["message.timestamp.type"] == "LogAppendTime" {
		out.LogAppendTime = time.Now().UnixMilli()
		stampAppendTime(in.Records, out.LogAppendTime)
	}
	var base int64
	if h.ProducerID < 0 {
		base, err = w.part.Append(ctx, in.Records)
	} else {
		var leave func()
		if leave, err = b.txns.enter(ctx, req, &h, place{topic.Name, in.Partition}); err != nil {
			return w, err
		}
		base, err = b.producers.append(ctx, w.part, &h, in.Records)
		leave()
	}
	if err != nil {
		return w, err
	}
	out.BaseOffset = base
	out.LogStartOffset, _ = w.part.Bounds()
	w.end, w.epoch = base+int64(h.LastOffsetDelta)+1, w.part.LeaderEpoch()
	return w, nil
}

// checkRecords looks at what a client wants to have appended: one batch, whole, of the current format, with the records that its
// header promises.
func checkRecords(b []byte, configs map[string]string) (batch.Header, error) {
	h, raw, err := batch.Next(b)
	if errors.Is(err, batch.ErrShort) {
		return h, refuse(corruptMessage, "the record batch is cut short")
	}
	if err != nil {
		return h, err
	}
	limit := defaultMaxBatch
	if n, err := strconv.Atoi(configs["max.message.bytes"]); err == nil {
		limit = n
	}
	switch {
	case len(raw) < len(b):
		return h, refuse(invalidRecord, "more than one record batch for a partition")
	case len(raw) > limit:
		return h, refuse(messageTooLarge, "record batch of %d bytes, the topic takes at most %d", len(raw), limit)
	case h.Control():
		return h, refuse(invalidRecord, "control records are the broker's")
	case h.Records < 1 || h.Records != h.LastOffsetDelta+1:
		return h, refuse(invalidRecord, "record batch with %d records and a last offset delta of %d", h.Records, h.LastOffsetDelta)
	case h.ProducerID >= 0 && (h.BaseSequence < 0 || h.ProducerEpoch < 0):
		return h, refuse(invalidRecord, "producer %d without epoch or sequence", h.ProducerID)
	case h.ProducerID < 0 && h.Transactional():
		return h, refuse(invalidRecord, "a transaction without a producer id")
	case h.LogAppendTime():
		return h, refuse(invalidTimestamp, "append time is the broker's to set")
	}
	if err := batch.Check(raw); err != nil {
		return h, err
	}
	if h.Codec() != 0 {
		return h, nil
	}
	for _, err := range batch.Records(raw) {
		if err != nil {
			return h, err
		}
	}
	return h, nil
}

// stampAppendTime makes a batch one of LogAppendTime. The CRC covers what it changes.
func stampAppendTime(b []byte, ms int64) {
	binary.BigEndian.PutUint16(b[21:], binary.BigEndian.Uint16(b[21:])|uint16(batch.LogAppendTime))
	binary.BigEndian.PutUint64(b[35:], uint64(ms))
	binary.BigEndian.PutUint32(b[17:], batch.Sum(b))
}

// settle waits until what was written is durable and in sync on every node.
func (b *Broker) settle(ctx context.Context, done []written, timeout time.Duration) {
	if !b.opts.noSync {
		var g errgroup.Group
		g.SetLimit(parallelSyncs)
		for _, w := range done {
			g.Go(func() error {
				if err := w.part.Sync(ctx); err != nil {
					b.explain(w.out, w, err)
				}
				return nil
			})
		}
		_ = g.Wait()
	}
	if b.opts.nodes == 1 {
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for _, w := range done {
		if w.out.ErrorCode == noError {
			if err := b.inSync(ctx, w, timer.C); err != nil {
				b.explain(w.out, w, err)
			}
		}
	}
}

// inSync waits until the high watermark covers what was written. An election meanwhile may have cut it.
func (b *Broker) inSync(ctx context.Context, w written, timeout <-chan time.Time) error {
	for {
		changed := b.cluster.watch()
		_, leo := w.part.Bounds()
		if w.part.LeaderEpoch() != w.epoch {
			return refuse(notLeaderOrFollower, "a leader was elected before the records were in sync")
		}
		if b.cluster.highWatermark(place{w.part.Topic(), w.part.ID()}, leo) >= w.end {
			return nil
		}
		select {
		case <-changed:
		case <-timeout:
			return refuse(requestTimedOut, "the records are not in sync on every node")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
