package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
)

// Requests that the library answers for us. KIP-1279's numbers are not final; whoever asks for positions needs the right to READ
// the cluster.
var mounted = map[int16]bool{
	kmsg.Fetch.Int16(): true, kmsg.ListOffsets.Int16(): true, kmsg.Metadata.Int16(): true, kmsg.OffsetForLeaderEpoch.Int16(): true,
	broker.KeyLastMirroredOffsets: true, broker.KeyDescribeMirrors: true,
}

// Requests that we answer ourselves, and how far.
var (
	apiVersions = kmsg.ApiVersionsResponseApiKey{ApiKey: kmsg.ApiVersions.Int16(), MinVersion: 0, MaxVersion: 4}
	produce     = kmsg.ApiVersionsResponseApiKey{ApiKey: kmsg.Produce.Int16(), MinVersion: 3, MaxVersion: 12} // from 13 on topics have ids only
)

// Kafka's error codes, as far as we use them.
const (
	corruptMessage           int16 = 2
	topicAuthorizationFailed int16 = 29
	unsupportedVersion       int16 = 35
	invalidRecord            int16 = 87
)

// Broker has its own log, its own listeners and its own way of appending. Mirroring is the library's: a Coordinator that owns the
// gate and the mirrors, and the handlers by which others mirror from here.
type Broker struct {
	log         *Log
	coordinator *mirror.Coordinator
	handlers    *broker.Broker // listens nowhere: it is asked with Handle
	authorize   func(principal, operation, resource string) bool

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// NewBroker opens the log's coordinator before the first write: from here on the gate is right.
func NewBroker(ctx context.Context, log *Log, authorize func(principal, operation, resource string) bool) (*Broker, error) {
	c, err := mirror.Open(ctx, log)
	if err != nil {
		return nil, err
	}
	h, err := broker.New(c, broker.Authorize(authorize))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	b := &Broker{log: log, coordinator: c, handlers: h, authorize: authorize}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// Listen serves a port. Whoever comes through it is the principal: one port for the public and one for other clusters, say. A broker
// that lets its clients log in takes the name from there.
func (b *Broker) Listen(addr, principal string) (net.Addr, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(b.ctx, func() { l.Close() })
	b.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			b.work.Go(func() { b.serve(conn, principal) })
		}
	})
	return l.Addr(), nil
}

// Close ends everything, the mirrors too.
func (b *Broker) Close() error {
	b.cancel()
	b.work.Wait()
	return errors.Join(b.handlers.Close(), b.coordinator.Close())
}

func (b *Broker) serve(conn net.Conn, principal string) {
	defer conn.Close()
	defer context.AfterFunc(b.ctx, func() { conn.Close() })()
	for r := bufio.NewReader(conn); ; {
		f, err := readFrame(r)
		if err != nil {
			return
		}
		resp, err := b.answer(conn, principal, f)
		if err != nil {
			return // as Kafka does with what it does not understand
		}
		if resp != nil && writeAnswer(conn, f.correlation, resp) != nil {
			return
		}
	}
}

// answer is nil for a request that wants none.
func (b *Broker) answer(conn net.Conn, principal string, f frame) (kmsg.Response, error) {
	if f.key == apiVersions.ApiKey && f.version > apiVersions.MaxVersion {
		resp := kmsg.NewPtrApiVersionsResponse() // in the oldest form, which every client reads
		resp.ErrorCode, resp.ApiKeys = unsupportedVersion, served()
		return resp, nil
	}
	req, err := f.request()
	if err != nil {
		return nil, err
	}
	from := broker.Client{Principal: principal}
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
		resp.ApiKeys = served()
		return resp, nil
	case *kmsg.ProduceRequest:
		if resp := b.produce(from, req); req.Acks != 0 {
			return resp, nil
		}
		return nil, nil
	}
	if !mounted[f.key] {
		return nil, errors.ErrUnsupported
	}
	resp, err := b.handlers.Handle(b.ctx, from, req)
	if m, ok := resp.(*kmsg.MetadataResponse); ok {
		here := conn.LocalAddr().(*net.TCPAddr) // clients stay with the port that they came through
		m.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: here.IP.String(), Port: int32(here.Port)}}
	}
	return resp, err
}

func served() []kmsg.ApiVersionsResponseApiKey {
	keys := []kmsg.ApiVersionsResponseApiKey{apiVersions, produce}
	for _, k := range broker.Keys() {
		if mounted[k.ApiKey] {
			keys = append(keys, k)
		}
	}
	return keys
}

func (b *Broker) produce(from broker.Client, req *kmsg.ProduceRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range req.Topics {
		out := kmsg.NewProduceResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			out.Partitions = append(out.Partitions, b.append(from, t.Topic, p))
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// append is our own way into our own log: the gate is asked, and gives the leader epoch to stamp. A log on disk would be synced
// before a producer with acks=all is answered.
func (b *Broker) append(from broker.Client, topic string, in kmsg.ProduceRequestTopicPartition) kmsg.ProduceResponseTopicPartition {
	out := kmsg.NewProduceResponseTopicPartition()
	out.Partition, out.BaseOffset, out.LogAppendTime = in.Partition, -1, -1
	if !b.authorize(from.Principal, "Write", "Topic:"+topic) {
		out.ErrorCode = topicAuthorizationFailed
		return out
	}
	epoch, done, err := b.coordinator.BeginWrite(b.ctx, topic, in.Partition)
	if err != nil {
		out.ErrorCode = broker.ErrorCode(err) // READ_ONLY_TOPIC for a topic that a mirror owns
		return out
	}
	defer done()
	if out.ErrorCode = check(in.Records); out.ErrorCode != 0 {
		return out
	}
	if out.BaseOffset, err = b.log.add(topic, in.Partition, epoch, in.Records); err != nil {
		out.BaseOffset, out.ErrorCode = -1, broker.ErrorCode(err)
	}
	return out
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// check takes whole, intact batches of plain records. Transactions, and producers with an id, of whom a broker must know the last
// batches, are beyond this one.
func check(records []byte) (code int16) {
	const (
		crcAt, attributesAt, producerIDAt = 17, 21, 43
		transactional, control            = 1 << 4, 1 << 5
	)
	rest := records
	for b, err := range mirror.Batches(records) {
		if err != nil || crc32.Checksum(b.Bytes[attributesAt:], castagnoli) != binary.BigEndian.Uint32(b.Bytes[crcAt:]) {
			return corruptMessage
		}
		attributes, producer := binary.BigEndian.Uint16(b.Bytes[attributesAt:]), int64(binary.BigEndian.Uint64(b.Bytes[producerIDAt:]))
		if attributes&(transactional|control) != 0 || producer >= 0 {
			return invalidRecord
		}
		rest = rest[len(b.Bytes):]
	}
	if len(records) == 0 || len(rest) > 0 {
		return corruptMessage
	}
	return 0
}
