package mirror_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/disklog"
	"github.com/clustermirror/mirror/memlog"
)

// counting counts the syncs of a host's logs that had something to sync.
type counting struct {
	mirror.Host
	syncs atomic.Int64
}

type countingLog struct {
	mirror.Log
	host  *counting
	dirty atomic.Bool
}

func (h *counting) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	l, err := h.Host.OpenLog(ctx, topic, partition)
	return &countingLog{Log: l, host: h}, err
}

func (l *countingLog) Append(ctx context.Context, b []byte) error {
	l.dirty.Store(true)
	return l.Log.Append(ctx, b)
}

func (l *countingLog) Sync(ctx context.Context) error {
	if l.dirty.Swap(false) {
		l.host.syncs.Add(1)
	}
	return l.Log.Sync(ctx)
}

// Failover of 1,000 partitions to writable, beside the same number of syncs of as many files, as many at a time, done alone.
func BenchmarkTakeoverOf1000Partitions(b *testing.B) {
	const partitions = 1000
	var took, alone time.Duration
	for range b.N {
		t, n := takeover(b, partitions)
		took += t
		alone += syncsAlone(b, partitions, n)
	}
	b.ReportMetric(took.Seconds()*1000/float64(b.N), "ms/takeover")
	b.ReportMetric(alone.Seconds()*1000/float64(b.N), "ms/syncs-alone")
	b.ReportMetric(took.Seconds()/alone.Seconds(), "ratio")
	b.ReportMetric(0, "ns/op")
}

func takeover(b *testing.B, partitions int32) (time.Duration, int64) {
	ctx := context.Background()
	origin, err := mirror.Open(ctx, memlog.New())
	require.NoError(b, err)
	server, err := broker.New(origin)
	require.NoError(b, err)
	require.NoError(b, origin.Host().EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: partitions}))
	for num := range partitions {
		p, err := origin.Partition(ctx, "orders", num)
		require.NoError(b, err)
		_, err = p.Append(ctx, plain(10))
		require.NoError(b, err)
	}
	disk, err := disklog.Open(b.TempDir())
	require.NoError(b, err)
	host := &counting{Host: disk}
	m, err := mirror.New(ctx, "dr", server.Source(), host)
	require.NoError(b, err)
	require.NoError(b, m.Start(ctx))
	require.NoError(b, m.AddTopics(ctx, "orders"))
	require.NoError(b, m.WaitCaughtUp(ctx))
	for num := range partitions { // a mirror that has run for a while: the files are known to be there, their ends are not
		p, err := m.Coordinator().Partition(ctx, "orders", num)
		require.NoError(b, err)
		require.NoError(b, p.Sync(ctx))
		p, err = origin.Partition(ctx, "orders", num)
		require.NoError(b, err)
		_, err = p.Append(ctx, plain(10))
		require.NoError(b, err)
	}
	require.NoError(b, m.WaitCaughtUp(ctx))

	before, began := host.syncs.Load(), time.Now()
	require.NoError(b, m.Remove(ctx, "orders"))
	took, syncs := time.Since(began), host.syncs.Load()-before

	require.NoError(b, m.Coordinator().CheckWrite("orders", partitions-1))
	require.NoError(b, m.Close())
	require.NoError(b, disk.Close())
	require.NoError(b, server.Close())
	require.NoError(b, origin.Close())
	return took, syncs
}

func syncsAlone(b *testing.B, files int32, syncs int64) time.Duration {
	dir := b.TempDir()
	list := make([]*os.File, files)
	for i := range list {
		part := filepath.Join(dir, fmt.Sprint(i)) // as a log has it: the file system syncs files of one folder more cheaply
		require.NoError(b, os.Mkdir(part, 0o755))
		f, err := os.Create(filepath.Join(part, "log"))
		require.NoError(b, err)
		require.NoError(b, f.Sync())
		list[i] = f
	}
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(syncs)
	began := time.Now()
	for _, f := range list {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				_, err := f.Write(make([]byte, 100))
				require.NoError(b, err)
				require.NoError(b, f.Sync())
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	for _, f := range list {
		require.NoError(b, f.Close())
	}
	return took
}

// Memory of idle partitions on disk, over what the program needs anyway.
func BenchmarkMemoryOf10000IdlePartitions(b *testing.B) {
	const partitions = 10_000
	ctx := context.Background()
	for range b.N {
		origin, err := mirror.Open(ctx, memlog.New())
		require.NoError(b, err)
		server, err := broker.New(origin)
		require.NoError(b, err)
		require.NoError(b, origin.Host().EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: partitions}))
		for num := range int32(partitions) {
			p, err := origin.Partition(ctx, "orders", num)
			require.NoError(b, err)
			_, err = p.Append(ctx, plain(1))
			require.NoError(b, err)
		}
		disk, err := disklog.Open(b.TempDir())
		require.NoError(b, err)
		base := heap()
		m, err := mirror.New(ctx, "dr", server.Source(), disk)
		require.NoError(b, err)
		require.NoError(b, m.Start(ctx))
		require.NoError(b, m.AddTopics(ctx, "orders"))
		require.NoError(b, m.WaitCaughtUp(ctx))
		b.ReportMetric(float64(heap()-base)/partitions, "B/partition") // the source's fetch session is in it
		require.NoError(b, m.Close())
		require.NoError(b, disk.Close())
		require.NoError(b, server.Close())
		require.NoError(b, origin.Close())
	}
	b.ReportMetric(0, "ns/op")
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapInuse + s.StackInuse)
}
