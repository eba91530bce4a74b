package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/memlog"
)

// What is encoded here without copying record bytes is, byte for byte, what kmsg encodes.
func TestFetchAnswersAreEncodedAsKmsgDoes(t *testing.T) {
	resp := kmsg.NewPtrFetchResponse()
	resp.ThrottleMillis, resp.ErrorCode, resp.SessionID = 7, 1, 99
	for i := range 3 {
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = "orders", [16]byte{byte(i)}
		for j := range int32(4) {
			p := kmsg.NewFetchResponseTopicPartition()
			p.Partition, p.HighWatermark, p.LastStableOffset, p.LogStartOffset = j, 100, 90, 5
			switch j {
			case 0:
				p.RecordBatches = bytes.Repeat([]byte{1}, 300)
				p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 4, FirstOffset: 2}}
			case 1:
				p.RecordBatches = []byte{}
				p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
				p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = 3, 50
			case 2:
				p.ErrorCode = notLeaderOrFollower
				p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 2, 8
				p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = 3, 50
			}
			rt.Partitions = append(rt.Partitions, p)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	for _, brokers := range [][]kmsg.FetchResponseBroker{nil, {{NodeID: 1, Host: "node-1", Port: 9092}, {NodeID: 2, Host: "h", Port: 1}}} {
		resp.Brokers = brokers
		for v := int16(4); v <= 18; v++ {
			resp.Version = v
			want := []byte{0, 0, 0, 0, 0, 0, 0, 42}
			if resp.IsFlexible() {
				want = append(want, 0)
			}
			want = resp.AppendTo(want)
			binary.BigEndian.PutUint32(want, uint32(len(want)-4))
			var got bytes.Buffer
			_, err := writeAnswer(&got, nil, 42, resp)
			require.NoError(t, err)
			require.Equal(t, want, got.Bytes(), "version %d", v)
		}
	}
}

func upTo(limit int64) func() int64 { return func() int64 { return limit } }

func TestAFrameGrowsWithItsBytesOnly(t *testing.T) {
	claim := []byte{0x05, 0xff, 0xff, 0xff} // 96 MiB
	got, err := readFrame(bytes.NewReader(append(claim, 1, 2, 3)), nil, upTo(100<<20))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Nil(t, got)
	require.Less(t, testing.AllocsPerRun(10, func() {
		_, _ = readFrame(bytes.NewReader(append(claim, 1, 2, 3)), make([]byte, 0, firstRead), upTo(100<<20))
	}), 10.0)

	_, err = readFrame(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff}), nil, upTo(100))
	require.ErrorContains(t, err, "-1 bytes")
	_, err = readFrame(bytes.NewReader([]byte{0, 0, 0, 101}), nil, upTo(100))
	require.ErrorContains(t, err, "101 bytes")

	long := bytes.Repeat([]byte{7}, 5*firstRead+3)
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(long))), long...)
	got, err = readFrame(bytes.NewReader(frame), make([]byte, 10), upTo(100<<20))
	require.NoError(t, err)
	require.Equal(t, long, got)
}

// Any bytes: no panic, no endless loop, and no more than what was sent is taken in. A request that is understood is encoded again
// to one that is understood as the same.
func FuzzRequest(f *testing.F) {
	for key := range apis {
		for _, v := range []int16{apis[key].min, apis[key].max} {
			req, _ := NewRequest(key, v)
			f.Add(kmsg.NewRequestFormatter(kmsg.FormatterClientID("c")).AppendRequest(nil, req, 1))
		}
	}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.Topics = 12, []kmsg.FetchRequestTopic{{Topic: "orders", Partitions: []kmsg.FetchRequestTopicPartition{kmsg.NewFetchRequestTopicPartition()}}}
	f.Add(kmsg.NewRequestFormatter().AppendRequest(nil, fetch, 1))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 8, 0, 18, 0, 99, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		frame, err := readFrame(bytes.NewReader(in), nil, upTo(1<<20))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(frame), len(in)-4)
		h, body, err := parseHeader(frame)
		if err != nil {
			return
		}
		req, ok := NewRequest(h.key, h.version)
		if !ok {
			return
		}
		if parseBody(body, req) != nil {
			return
		}
		once := req.AppendTo(nil)
		again, _ := NewRequest(h.key, h.version)
		require.NoError(t, again.ReadFrom(once))
		require.Equal(t, once, again.AppendTo(nil))
	})
}

// Any request that is understood is answered or refused, with a log that may hold anything and a client that is let in.
func FuzzHandle(f *testing.F) {
	for key := range apis {
		req, _ := NewRequest(key, apis[key].max)
		f.Add(key, apis[key].max, req.AppendTo(nil))
	}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.MaxBytes = 12, 1000
	part := kmsg.NewFetchRequestTopicPartition()
	part.PartitionMaxBytes, part.LastFetchedEpoch = 1000, 3
	fetch.Topics = []kmsg.FetchRequestTopic{{Topic: "orders", Partitions: []kmsg.FetchRequestTopicPartition{part}}}
	f.Add(int16(1), int16(12), fetch.AppendTo(nil))
	c, err := mirror.Open(context.Background(), memlog.New())
	require.NoError(f, err)
	b, err := New(c, Nodes(2))
	require.NoError(f, err)
	f.Cleanup(func() { b.Close(); c.Close() })
	require.NoError(f, c.Host().EnsureTopic(context.Background(), mirror.Topic{Name: "orders", Partitions: 2}))
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		req, ok := NewRequest(key, version)
		if !ok {
			return
		}
		if req.ReadFrom(body) != nil {
			return
		}
		switch req := req.(type) {
		case *kmsg.FetchRequest:
			req.MaxWaitMillis = 0
		case *kmsg.ProduceRequest:
			req.TimeoutMillis = 0
		case *kmsg.CreateTopicsRequest:
			req.ValidateOnly = true // a hundred thousand partitions are asked for in ten bytes
		case *kmsg.CreatePartitionsRequest:
			req.ValidateOnly = true
		}
		resp, err := b.Handle(context.Background(), Client{}, req)
		require.NoError(t, err)
		if resp != nil {
			_, err = writeAnswer(io.Discard, nil, 1, resp)
			require.NoError(t, err)
		}
	})
}

func TestHostileConnectionsHarmOnlyThemselves(t *testing.T) {
	c, err := mirror.Open(context.Background(), memlog.New())
	require.NoError(t, err)
	defer c.Close()
	b, err := New(c, MaxRequestBytes(10_000))
	require.NoError(t, err)
	defer b.Close()
	for name, bytes := range map[string][]byte{
		"a negative length":          {0xff, 0xff, 0xff, 0xff},
		"a length above the limit":   {0, 1, 0, 0},
		"no header":                  {0, 0, 0, 2, 0, 3},
		"no client id":               {0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0, 1},
		"a client id too long":       {0, 0, 0, 10, 0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff},
		"a body cut short":           {0, 0, 0, 10, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff},
		"a key that nobody knows":    {0, 0, 0, 10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"a version that is not here": {0, 0, 0, 10, 0, 1, 0, 3, 0, 0, 0, 1, 0xff, 0xff},
		"a tag longer than the rest": {0, 0, 0, 13, 0, 18, 0, 3, 0, 0, 0, 1, 0xff, 0xff, 1, 0, 0x7f},
		"an HTTP request":            []byte("GET / HTTP/1.1\r\n"),
		"many topics in few bytes":   {0, 0, 0, 14, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff},
	} {
		nc, err := b.Dial(context.Background(), "tcp", "node-1:9092")
		require.NoError(t, err)
		go nc.Write(bytes)
		_, err = nc.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, name)
		nc.Close()
	}
}

func TestApiVersionsOfTheFuture(t *testing.T) {
	c, err := mirror.Open(context.Background(), memlog.New())
	require.NoError(t, err)
	defer c.Close()
	b, err := New(c)
	require.NoError(t, err)
	defer b.Close()
	nc, err := b.Dial(context.Background(), "tcp", "node-1:9092")
	require.NoError(t, err)
	defer nc.Close()
	go nc.Write([]byte{0, 0, 0, 10, 0, 18, 0, 99, 0, 0, 0, 5, 0xff, 0xff})
	frame, err := readFrame(nc, nil, upTo(10_000))
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 5}, frame[:4])
	var resp kmsg.ApiVersionsResponse
	require.NoError(t, resp.ReadFrom(frame[4:]))
	require.Equal(t, unsupportedVersion, resp.ErrorCode)
	require.Equal(t, Keys(), resp.ApiKeys)
}
