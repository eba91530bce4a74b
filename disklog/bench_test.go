package disklog

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/vfs"
)

// BenchmarkAppend writes the same bytes once through a log and once to a plain file, in turns, and prints how much
// longer the log takes: what it costs to walk headers, keep indexes and change segments.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("batches of %d KiB", size>>10), func(b *testing.B) {
			const chunk, total = 1 << 20, 1 << 30 // bytes handed over at once, and before both start anew
			h, err := Open(filepath.Join(b.TempDir(), "data"), quiet, SegmentBytes(256<<20))
			require.NoError(b, err)
			l := openLog(b, h, "t", 0)
			plain, err := os.Create(filepath.Join(b.TempDir(), "plain"))
			require.NoError(b, err)
			var buf []byte
			for len(buf) < chunk {
				buf = append(buf, mk(0, 1, size, 1)...)
			}
			offset := int64(0)
			var logged, written time.Duration
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				for at := 0; at < len(buf); at += size {
					binary.BigEndian.PutUint64(buf[at:], uint64(offset))
					offset++
				}
				start := time.Now()
				require.NoError(b, l.Append(ctx, buf))
				logged += time.Since(start)
				start = time.Now()
				_, err := plain.Write(buf)
				require.NoError(b, err)
				written += time.Since(start)
				if offset*int64(size)%total == 0 {
					b.StopTimer()
					require.NoError(b, l.Reset(ctx, offset))
					require.NoError(b, plain.Truncate(0))
					_, err := plain.Seek(0, 0)
					require.NoError(b, err)
					b.StartTimer()
				}
			}
			b.ReportMetric(logged.Seconds()/written.Seconds(), "x-plain-file")
			require.NoError(b, plain.Close())
			require.NoError(b, h.Close())
		})
	}
}

// BenchmarkRead reads 1 MiB at random offsets of a log of 256 MiB.
func BenchmarkRead(b *testing.B) {
	h, err := Open(filepath.Join(b.TempDir(), "data"), quiet, SegmentBytes(64<<20))
	require.NoError(b, err)
	l := openLog(b, h, "t", 0)
	const batches = 16 << 10
	for i := range int64(batches) {
		require.NoError(b, l.Append(ctx, mk(i, 1, 16<<10, i)))
	}
	buf := make([]byte, 1<<20)
	r := newRand(1)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		_, err := l.Read(ctx, r.Int64N(batches-64), buf)
		require.NoError(b, err)
	}
	require.NoError(b, h.Close())
}

// BenchmarkOpen10000 opens 10,000 logs of a host that was shut down cleanly, or killed.
func BenchmarkOpen10000(b *testing.B) {
	const partitions = 10_000
	for _, how := range []string{"clean", "killed"} {
		b.Run(how, func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "data")
			open := func() *Host {
				h, err := Open(dir, quiet, onFS(noSync{vfs.OS}))
				require.NoError(b, err)
				return h
			}
			h := open()
			require.NoError(b, h.EnsureTopic(ctx, mirror.Topic{Name: "t", Partitions: partitions}))
			for p := range int32(partitions) {
				require.NoError(b, openLog(b, h, "t", p).Append(ctx, mk(0, 3, 500, 1)))
			}
			require.NoError(b, h.Close())
			for b.Loop() {
				if how == "killed" {
					require.NoError(b, os.Remove(filepath.Join(dir, cleanFile)))
				}
				h := open()
				for p := range int32(partitions) {
					openLog(b, h, "t", p)
				}
				b.StopTimer()
				require.NoError(b, h.Close())
				b.StartTimer()
			}
		})
	}
}
