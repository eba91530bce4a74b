package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rerun plays the same answer for ever, each time to the request that was written last.
type rerun struct {
	player
	hello, answer []byte
	unread        []byte
	corr          [4]byte
}

func (r *rerun) Write(b []byte) (int, error) {
	copy(r.corr[:], b[8:12])
	r.unread = r.answer
	if b[5] == byte(kmsg.ApiVersions) {
		r.unread = r.hello
	}
	copy(r.unread[4:8], r.corr[:])
	return len(b), nil
}

func (r *rerun) Read(b []byte) (int, error) {
	if len(r.unread) == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

// rerunSession is a session of n partitions whose every answer holds size bytes in all for them.
func rerunSession(tb testing.TB, n, size int) *Session {
	hello := kmsg.NewPtrApiVersionsRequest()
	hello.Version = 3
	answer := answerTo(7, 0)
	for i := range n {
		if size > 0 {
			answer.Topics = append(answer.Topics, got("a", int32(i), strings.Repeat("r", size/n)))
		}
	}
	c := New(Config{Transport: &kafka.Transport{Dial: func(context.Context, string, string) (net.Conn, error) {
		return &rerun{hello: frame(0, hello, speaks(modern())), answer: frame(0, &kmsg.FetchRequest{Version: fetchMost}, answer)}, nil
	}}})
	tb.Cleanup(c.Close)
	c.learn(map[int32]string{1: "broker-1:9092"})
	s := c.Session(1)
	for i := range n {
		s.Set(at("a", int32(i), 0))
	}
	return s
}

// BenchmarkFetch is what one fetch costs on this side of the socket: request, answer, parse.
func BenchmarkFetch(b *testing.B) {
	for _, tc := range []struct{ partitions, size int }{{1, 1 << 20}, {50, 16 << 20}, {1000, 1 << 20}, {10000, 0}} {
		b.Run(fmt.Sprintf("partitions=%d/bytes=%d", tc.partitions, tc.size), func(b *testing.B) {
			s := rerunSession(b, tc.partitions, tc.size)
			lim := Limits{MinBytes: 1, MaxBytes: 32 << 20, MaxWait: time.Second}
			b.SetBytes(int64(tc.size))
			b.ReportAllocs()
			offset := int64(0)
			for b.Loop() {
				if err := s.Send(b.Context(), lim); err != nil {
					b.Fatal(err)
				}
				r, err := s.Receive(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				offset++
				for i := range r.Partitions {
					s.Set(at("a", r.Partitions[i].Partition, offset))
				}
				r.Release()
			}
		})
	}
}

func TestIdleFetchCostsTheSameForAnyNumberOfPartitions(t *testing.T) {
	cost := func(partitions int) float64 {
		s := rerunSession(t, partitions, 0)
		return testing.AllocsPerRun(100, func() {
			require.NoError(t, s.Send(t.Context(), limits))
			r, err := s.Receive(t.Context())
			require.NoError(t, err)
			r.Release()
		})
	}
	require.InDelta(t, cost(1), cost(5000), 2)
}
