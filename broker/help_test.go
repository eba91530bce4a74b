package broker_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

// start is a broker over the host, with the topics; everything ends with the test.
func start(t testing.TB, host mirror.Host, topics map[string]int32, opts ...broker.Option) *broker.Broker {
	t.Helper()
	c, err := mirror.Open(context.Background(), host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return over(t, c, topics, opts...)
}

func over(t testing.TB, c *mirror.Coordinator, topics map[string]int32, opts ...broker.Option) *broker.Broker {
	t.Helper()
	for name, n := range topics {
		require.NoError(t, c.Host().EnsureTopic(context.Background(), mirror.Topic{Name: name, Partitions: n}))
	}
	b, err := broker.New(c, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func one(name string) map[string]int32 { return map[string]int32{name: 1} }

// client speaks the protocol directly, so that tests choose version and fields.
type client struct {
	t  testing.TB
	nc net.Conn
	id int32
}

// dial connects in memory to a node.
func dial(t testing.TB, b *broker.Broker, node string) *client {
	t.Helper()
	nc, err := b.Dial(context.Background(), "tcp", node+":9092")
	require.NoError(t, err)
	return connected(t, nc)
}

func connected(t testing.TB, nc net.Conn) *client {
	t.Cleanup(func() { nc.Close() })
	return &client{t: t, nc: nc}
}

func (w *client) send(req kmsg.Request) {
	w.t.Helper()
	w.id++
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("test"))
	_, err := w.nc.Write(f.AppendRequest(nil, req, w.id))
	require.NoError(w.t, err)
}

func (w *client) receive(req kmsg.Request) kmsg.Response {
	w.t.Helper()
	var size [4]byte
	_, err := io.ReadFull(w.nc, size[:])
	require.NoError(w.t, err)
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err = io.ReadFull(w.nc, b)
	require.NoError(w.t, err)
	require.Equal(w.t, w.id, int32(binary.BigEndian.Uint32(b)))
	b = b[4:]
	resp := req.ResponseKind()
	if resp.IsFlexible() && req.Key() != 18 {
		require.Zero(w.t, b[0])
		b = b[1:]
	}
	require.NoError(w.t, resp.ReadFrom(b))
	return resp
}

// ask sends a request and answers its answer.
func ask[A kmsg.Response](w *client, req kmsg.Request) A {
	w.t.Helper()
	w.send(req)
	return w.receive(req).(A)
}

// records is a batch of n small records, stamped with consecutive milliseconds from 1,000,000 on.
func records(n int) []byte {
	list := make([]batch.Record, n)
	for i := range list {
		list[i] = batch.Record{TimestampDelta: int64(i), Key: []byte("k"), Value: []byte("value")}
	}
	return batch.Append(nil, batch.Header{BaseTimestamp: 1_000_000, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}, list)
}

// sequenced is a batch of n records of an idempotent producer.
func sequenced(n int, pid int64, epoch int16, sequence int32, attributes int16) []byte {
	list := make([]batch.Record, n)
	for i := range list {
		list[i] = batch.Record{Value: []byte("value")}
	}
	return batch.Append(nil, batch.Header{BaseTimestamp: 1_000_000, ProducerID: pid, ProducerEpoch: epoch, BaseSequence: sequence, Attributes: attributes}, list)
}

func produceRequest(version int16, topic string, partition int32, raw []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, -1, 1000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, raw
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// produce appends and answers what the broker said of the one partition.
func (w *client) produce(topic string, partition int32, raw []byte) kmsg.ProduceResponseTopicPartition {
	w.t.Helper()
	return ask[*kmsg.ProduceResponse](w, produceRequest(9, topic, partition, raw)).Topics[0].Partitions[0]
}

// write appends and expects success; it answers the base offset.
func (w *client) write(topic string, partition int32, raw []byte) int64 {
	w.t.Helper()
	p := w.produce(topic, partition, raw)
	require.Zero(w.t, p.ErrorCode, "%v", p.ErrorMessage)
	return p.BaseOffset
}

type fetchWant struct {
	topic     string
	id        [16]byte
	partition int32
	offset    int64
	epoch     int32 // current leader epoch
	last      int32 // last fetched epoch
	max       int32
}

// want is what a client asks for that knows no epochs.
func want(topic string, partition int32, offset int64) fetchWant {
	return fetchWant{topic: topic, partition: partition, offset: offset, epoch: -1, last: -1, max: 1 << 20}
}

func fetchRequest(version int16, wants ...fetchWant) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes, req.SessionEpoch = version, 10<<20, 1, -1
	for _, w := range wants {
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = w.topic, w.id
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.CurrentLeaderEpoch, rp.LastFetchedEpoch, rp.PartitionMaxBytes = w.partition, w.offset, w.epoch, w.last, w.max
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
	}
	return req
}

// fetch fetches one partition and answers what the broker said of it.
func (w *client) fetch(version int16, one fetchWant) kmsg.FetchResponseTopicPartition {
	w.t.Helper()
	resp := ask[*kmsg.FetchResponse](w, fetchRequest(version, one))
	require.Zero(w.t, resp.ErrorCode)
	return resp.Topics[0].Partitions[0]
}

// offsets are the base offsets of the batches in b, which must be whole.
func offsets(t testing.TB, b []byte) (bases []int64) {
	t.Helper()
	for len(b) > 0 {
		h, raw, err := batch.Next(b)
		require.NoError(t, err)
		require.NoError(t, batch.Check(raw))
		bases = append(bases, h.Base)
		b = b[len(raw):]
	}
	return bases
}

func (w *client) listOffset(topic string, partition int32, timestamp int64, isolation int8) kmsg.ListOffsetsResponseTopicPartition {
	w.t.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.IsolationLevel = 8, isolation
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = partition, timestamp
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.ListOffsetsResponse](w, req).Topics[0].Partitions[0]
}

func (w *client) epochEnd(topic string, partition, current, epoch int32) kmsg.OffsetForLeaderEpochResponseTopicPartition {
	w.t.Helper()
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.Version = 4
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = partition, current, epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.OffsetForLeaderEpochResponse](w, req).Topics[0].Partitions[0]
}

func (w *client) metadata(version int16, topics ...string) *kmsg.MetadataResponse {
	w.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Version = version
	for _, name := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = &name
		req.Topics = append(req.Topics, rt)
	}
	return ask[*kmsg.MetadataResponse](w, req)
}

func clientOf(b *broker.Broker) *kafka.Client {
	s := b.Source()
	return &kafka.Client{Addr: s.Addr, Transport: s.Transport, Timeout: 10 * time.Second}
}

func newHost() *memlog.Host { return memlog.New(memlog.ClusterID("cluster")) }
