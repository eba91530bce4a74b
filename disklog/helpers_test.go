package disklog

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

var quiet = Logger(slog.New(slog.DiscardHandler))

// mk is a batch of n offsets from base on, size bytes long (at least a header's), with a max timestamp.
func mk(base int64, n, size int, ts int64) []byte {
	b := make([]byte, max(size, batch.HeaderSize))
	r := rand.New(rand.NewPCG(uint64(base), uint64(ts)^uint64(size)<<32))
	for i := batch.HeaderSize; i+8 <= len(b); i += 8 {
		binary.BigEndian.PutUint64(b[i:], r.Uint64())
	}
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-batch.LengthSize))
	b[16] = 2
	binary.BigEndian.PutUint32(b[23:], uint32(n-1))
	binary.BigEndian.PutUint64(b[27:], uint64(ts))
	binary.BigEndian.PutUint64(b[35:], uint64(ts))
	binary.BigEndian.PutUint64(b[43:], 1<<64-1)
	binary.BigEndian.PutUint32(b[57:], uint32(n))
	binary.BigEndian.PutUint32(b[17:], batch.Sum(b))
	return b
}

func cat(bs ...[]byte) (all []byte) {
	for _, b := range bs {
		all = append(all, b...)
	}
	return all
}

// openMem opens a host with one topic "t" of one partition in a file system in memory.
func openMem(t testing.TB, fs vfs.FS, opts ...Option) (*Host, mirror.Log) {
	t.Helper()
	h, err := Open("data", append([]Option{onFS(fs), quiet}, opts...)...)
	require.NoError(t, err)
	return h, openLog(t, h, "t", 0)
}

func openLog(t testing.TB, h *Host, topic string, partition int32) mirror.Log {
	t.Helper()
	if !h.readOnly {
		require.NoError(t, h.EnsureTopic(context.Background(), mirror.Topic{Name: topic, Partitions: partition + 1}))
	}
	l, err := h.OpenLog(context.Background(), topic, partition)
	require.NoError(t, err)
	return l
}

// openReadOnlyMem is OpenReadOnly in a file system in memory.
func openReadOnlyMem(fs vfs.FS) (*Host, error) {
	o := defaults()
	quiet.set(&o)
	o.fs = fs
	h := newHost("data", o)
	h.readOnly = true
	if err := h.readMeta(); err != nil {
		return nil, err
	}
	return h, h.readTopics()
}

// contents reads a log from its start to its end.
func contents(l mirror.Log) ([]byte, error) {
	var all []byte
	off, end := l.Bounds()
	buf := make([]byte, 64<<10)
	for off < end {
		n, err := l.Read(context.Background(), off, buf)
		if err != nil {
			return all, err
		}
		got := 0
		for b, err := range mirror.Batches(buf[:n]) {
			if err != nil {
				return all, err
			}
			off, got = b.Next, got+len(b.Bytes)
		}
		if got == 0 && len(buf) > 16<<20 {
			return all, io.ErrUnexpectedEOF
		}
		if got == 0 {
			buf = make([]byte, 2*len(buf)) // one batch is larger
		}
		all = append(all, buf[:got]...)
	}
	return all, nil
}

func requireBounds(t testing.TB, l mirror.Log, start, end int64) {
	t.Helper()
	s, e := l.Bounds()
	require.Equal(t, [2]int64{start, end}, [2]int64{s, e}, "bounds")
}

func requireContents(t testing.TB, l mirror.Log, want ...[]byte) {
	t.Helper()
	got, err := contents(l)
	require.NoError(t, err)
	require.Equal(t, cat(want...), got)
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// wellFormed says what is wrong with what Read gave for an offset.
func wellFormed(b []byte, off int64) error {
	end := int64(-1)
	for v, err := range mirror.Batches(b) {
		switch {
		case err != nil:
			return err
		case batch.Check(v.Bytes) != nil:
			return batch.Check(v.Bytes)
		case end == -1 && v.Next <= off:
			return fmt.Errorf("asked for %d, got a batch that ends at %d", off, v.Next)
		case v.Base < end:
			return fmt.Errorf("batch at %d after one that ends at %d", v.Base, end)
		}
		end = v.Next
	}
	return nil
}
