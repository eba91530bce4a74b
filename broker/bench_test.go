package broker_test

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// BenchmarkFetch reads a log over loopback, 1 MiB an answer, and looks at nothing: what is measured is the broker's side.
func BenchmarkFetch(b *testing.B) {
	br := start(b, newHost(), one("orders"))
	w := dial(b, br, "node-1")
	for range 64 {
		w.write("orders", 0, records(50_000))
	}
	require.NoError(b, br.Listen("127.0.0.1:0"))
	nc, err := net.Dial("tcp", br.Addr().String())
	require.NoError(b, err)
	c := connected(b, nc)
	buf := make([]byte, 2<<20)
	b.ResetTimer()
	for b.Loop() {
		c.send(fetchRequest(11, want("orders", 0, 0)))
		_, err := io.ReadFull(nc, buf[:4])
		require.NoError(b, err)
		size := binary.BigEndian.Uint32(buf)
		_, err = io.ReadFull(nc, buf[:size])
		require.NoError(b, err)
		b.SetBytes(int64(size))
	}
}

// BenchmarkIdleSession is one fetch of a session with 10,000 partitions that have nothing new.
func BenchmarkIdleSession(b *testing.B) {
	const partitions = 10_000
	br := start(b, newHost(), map[string]int32{"many": partitions})
	w := dial(b, br, "node-1")
	wants := make([]fetchWant, partitions)
	for i := range wants {
		wants[i] = want("many", int32(i), 0)
	}
	req := fetchRequest(12, wants...)
	req.SessionEpoch = 0
	resp := ask[*kmsg.FetchResponse](w, req)
	next := fetchRequest(12)
	next.SessionID, next.SessionEpoch, next.MinBytes = resp.SessionID, 0, 0
	b.ReportAllocs()
	for b.Loop() {
		next.SessionEpoch++
		require.Zero(b, ask[*kmsg.FetchResponse](w, next).ErrorCode)
	}
}
