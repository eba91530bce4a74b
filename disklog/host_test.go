package disklog

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/vfs"
)

func open(t testing.TB, fs vfs.FS) *Host {
	t.Helper()
	h, err := Open("data", onFS(fs), quiet)
	require.NoError(t, err)
	return h
}

func TestTopicsSurviveARestart(t *testing.T) {
	fs := vfs.NewMem()
	h := open(t, fs)
	id := h.ClusterID()
	require.Len(t, id, 22)
	want := mirror.Topic{Name: "orders", ID: mirror.TopicID{1, 2}, Partitions: 3, Configs: map[string]string{"retention.ms": "5"}}
	require.NoError(t, h.EnsureTopic(ctx, want))
	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: 2}))
	require.ErrorIs(t, h.EnsureTopic(ctx, mirror.Topic{Name: "orders", ID: mirror.TopicID{9}, Partitions: 3}), mirror.ErrTopicConflict)
	longest := strings.Repeat("x", 249)
	for _, name := range []string{"a-1", "a", "meta", "lock", "clean", "topics", "..."} {
		require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: name, Partitions: 2}))
	}
	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: longest, Partitions: 100_000}))
	require.Error(t, h.EnsureTopic(ctx, mirror.Topic{Name: longest, Partitions: 100_001})) // folder names end there
	for _, name := range []string{"", ".", "..", "a/b", "a~", "\u00e4", strings.Repeat("x", 250)} {
		require.Error(t, h.EnsureTopic(ctx, mirror.Topic{Name: name, Partitions: 1}), "%q", name)
	}
	require.Error(t, h.EnsureTopic(ctx, mirror.Topic{Name: "none", Partitions: 0}))
	before, err := h.Topics(ctx)
	require.NoError(t, err)
	for seed := range uint64(10) { // no Close, no Sync: durable on return
		after := open(t, fs.Crash(newRand(seed)))
		require.Equal(t, id, after.ClusterID())
		got, err := after.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, before, got)
	}
	require.True(t, slices.ContainsFunc(before, func(tp mirror.Topic) bool { return fmt.Sprint(tp) == fmt.Sprint(want) }))
	_, err = h.OpenLog(ctx, "orders", 3)
	require.ErrorIs(t, err, mirror.ErrUnknownPartition)
	_, err = h.OpenLog(ctx, "nope", 0)
	require.ErrorIs(t, err, mirror.ErrUnknownPartition)
}

// A topic that was deleted never comes back, nor does its data under a new topic of the same name, wherever the power
// is cut and whichever disk call fails.
func TestADeletedTopicNeverComesBack(t *testing.T) {
	old, fresh := mk(0, 5, 3000, 1), mk(0, 1, 100, 2)
	for i, done := 0, false; !done; i++ {
		fs := vfs.NewMem()
		h, l := openMem(t, fs)
		require.NoError(t, l.Append(ctx, old))
		require.NoError(t, l.Sync(ctx))
		before, err := h.Topics(ctx)
		require.NoError(t, err)
		rng, left, made := newRand(uint64(i)), i, false
		done = true
		fs.Hook(func(c vfs.Call) error {
			if c.Changes() {
				_, l := openMem(t, fs.Crash(rng))
				got, err := contents(l)
				require.NoError(t, err)
				if len(got) > 0 && string(got) != string(fresh) {
					require.Equal(t, old, got)
					require.False(t, made, "data of a deleted topic came back")
				}
			}
			if left--; left == -1 {
				done = false
				return syscall.EIO
			}
			return nil
		})
		err = h.DeleteTopic(ctx, "t")
		if err == nil {
			require.ErrorIs(t, l.Append(ctx, mk(5, 1, 100, 2)), mirror.ErrUnknownPartition)
			_, err := l.Read(ctx, 0, make([]byte, 100))
			require.ErrorIs(t, err, mirror.ErrUnknownPartition)
		}
		err = h.EnsureTopic(ctx, mirror.Topic{Name: "t", Partitions: 1})
		if err != nil {
			require.NoError(t, h.DeleteTopic(ctx, "t"))
			require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "t", Partitions: 1}))
		}
		fs.Hook(nil)
		after, err := h.Topics(ctx)
		require.NoError(t, err)
		if after[0].ID == before[0].ID {
			require.NoError(t, h.DeleteTopic(ctx, "t")) // it had failed before it took effect
			require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "t", Partitions: 1}))
		}
		made = true
		l = openLog(t, h, "t", 0)
		requireBounds(t, l, 0, 0)
		require.NoError(t, l.Append(ctx, fresh))
		require.NoError(t, l.Sync(ctx))
		_, l = openMem(t, fs.Crash(rng))
		requireContents(t, l, fresh)
	}
}

func TestFoldersOfAnUnknownTopicAreNeitherTakenNorRemoved(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs)
	require.NoError(t, l.Append(ctx, mk(0, 5, 3000, 1)))
	fs = fs.Clone()
	require.NoError(t, fs.Remove("data/topics/t"))
	h := open(t, fs)
	require.ErrorContains(t, h.EnsureTopic(ctx, mirror.Topic{Name: "t", Partitions: 1}), "move them away")
	names, err := fs.List("data/t-0")
	require.NoError(t, err)
	require.NotEmpty(t, names)
}

func TestASecondHostIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	h, err := Open(dir)
	require.NoError(t, err)
	_, err = Open(dir)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, dir, locked.Dir)
	require.NoError(t, h.Close())
	h, err = Open(dir)
	require.NoError(t, err)
	require.NoError(t, h.Close())
}

func TestAFolderThatIsNotOursIsRefusedUntouched(t *testing.T) {
	fs := vfs.NewMem()
	require.NoError(t, fs.Mkdir("data"))
	f, err := fs.Create("data/precious")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	var foreign *FormatError
	_, err = Open("data", onFS(fs))
	require.ErrorAs(t, err, &foreign)
	names, err := fs.List("data")
	require.NoError(t, err)
	require.Equal(t, []string{"precious"}, names)

	fs = vfs.NewMem()
	require.NoError(t, fs.Mkdir("data"))
	require.NoError(t, store(fs, "data", metaFile, meta{Format: format + 1, ClusterID: "x"}))
	for _, open := range []func() (*Host, error){
		func() (*Host, error) { return Open("data", onFS(fs)) },
		func() (*Host, error) { return openReadOnlyMem(fs) },
	} {
		_, err = open()
		require.ErrorAs(t, err, &foreign)
		require.Equal(t, format+1, foreign.Format)
		require.ErrorContains(t, err, "newer")
	}
}

func TestOpenSaysWhatIsWrongWithAFolder(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "missing", "data"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = OpenReadOnly(filepath.Join(t.TempDir(), "data"))
	require.ErrorIs(t, err, os.ErrNotExist)

	fs := vfs.NewMem()
	require.NoError(t, open(t, fs).Close())
	fs.Hook(func(c vfs.Call) error {
		if c.Changes() && c.Op != "mkdir" || c.Op == "lock" {
			return syscall.EROFS
		}
		return nil
	})
	_, err = Open("data", onFS(fs))
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorContains(t, err, "OpenReadOnly")

	_, err = Open("data", SegmentBytes(1), MaxOpenFiles(0), SegmentAge(0), SyncBytes(-1), Logger(nil))
	for _, name := range []string{"SegmentBytes", "MaxOpenFiles", "SegmentAge", "SyncBytes", "Logger"} {
		require.ErrorContains(t, err, name)
	}
}

func TestADamagedSmallFileIsNotBelieved(t *testing.T) {
	for _, name := range []string{metaFile, topicsDir + "/t", "t-0/" + boundsFile, cleanFile} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			h, l := openMem(t, fs)
			require.NoError(t, l.Reset(ctx, 7))
			require.NoError(t, h.Close())
			f, err := fs.Open("data/"+name, true)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte{'9'}, 11)
			require.NoError(t, err)
			h, err = Open("data", onFS(fs), quiet)
			switch name {
			case cleanFile: // the logs are looked at instead
				require.NoError(t, err)
				requireBounds(t, openLog(t, h, "t", 0), 7, 7)
				return
			case "t-0/" + boundsFile: // only that partition suffers, when it is needed
				require.NoError(t, err)
				_, err = openLog(t, h, "t", 0).Read(ctx, 7, make([]byte, 10))
			}
			var damaged *CorruptError
			require.ErrorAs(t, err, &damaged)
			require.Equal(t, "data/"+name, damaged.File)
		})
	}
}

func TestAFolderThatWasChangedAfterACleanShutdownIsChecked(t *testing.T) {
	fs := vfs.NewMem()
	h, l := openMem(t, fs)
	a, b := mk(0, 5, 3000, 1), mk(5, 5, 3000, 1)
	require.NoError(t, l.Append(ctx, cat(a, b)))
	require.NoError(t, h.Close())
	f, err := fs.Open("data/t-0/00000000000000000000.log", true)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(5000))
	h, l = openMem(t, fs)
	require.ErrorContains(t, l.Append(ctx, mk(10, 1, 100, 1)), "open it again")
	require.NoError(t, h.Close())
	_, l = openMem(t, fs)
	requireContents(t, l, a)
}

func TestDamagedBytesAreNamedAndCanBeCut(t *testing.T) {
	fs := vfs.NewMem()
	h, l := openMem(t, fs, SegmentBytes(4096))
	a, b, c := mk(0, 5, 2000, 1), mk(5, 5, 2000, 1), mk(10, 5, 2000, 1)
	require.NoError(t, l.Append(ctx, cat(a, b, c)))
	require.NoError(t, l.Sync(ctx))
	f, err := fs.Open("data/t-0/00000000000000000000.log", true)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{9}, 2016) // the magic of b
	require.NoError(t, err)
	_, err = l.Read(ctx, 6, make([]byte, 100))
	var damaged *CorruptError
	require.ErrorAs(t, err, &damaged)
	require.EqualValues(t, 2000, damaged.Position)
	require.ErrorContains(t, err, "t-0")
	n, err := l.Read(ctx, 11, make([]byte, 100)) // the next segment is whole
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.NoError(t, l.TruncateTo(ctx, 7))
	requireContents(t, l, a)
	require.NoError(t, l.Append(ctx, b))
	require.NoError(t, h.Close())
	_, l = openMem(t, fs)
	requireContents(t, l, a, b)
}

func TestIndexesAreWrittenAnewWhenMissingOrDamaged(t *testing.T) {
	for _, damage := range []string{"missing", "garbage", "zeros", "empty", "short"} {
		t.Run(damage, func(t *testing.T) {
			fs := vfs.NewMem()
			h, l := openMem(t, fs, SegmentBytes(40_000))
			for i := range int64(100) {
				require.NoError(t, l.Append(ctx, mk(i*2, 2, 1500, i)))
			}
			require.NoError(t, h.Close())
			good := map[string][]byte{}
			names, err := fs.List("data/t-0")
			require.NoError(t, err)
			for _, name := range names {
				name := "data/t-0/" + name
				good[name], err = readAll(fs, name)
				require.NoError(t, err)
				if strings.HasSuffix(name, ".log") {
					continue
				}
				f, err := fs.Open(name, true)
				require.NoError(t, err)
				size, err := f.Size()
				require.NoError(t, err)
				switch damage {
				case "missing":
					require.NoError(t, fs.Remove(name))
				case "garbage":
					for i := range size {
						_, err = f.WriteAt([]byte{byte(i*37 + 11)}, i)
						require.NoError(t, err)
					}
				case "zeros":
					_, err = f.WriteAt(make([]byte, size), 0)
					require.NoError(t, err)
				case "empty":
					require.NoError(t, f.Truncate(0))
				case "short":
					require.NoError(t, f.Truncate(size/2))
				}
			}
			h, l = openMem(t, fs, SegmentBytes(40_000))
			all, err := contents(l)
			require.NoError(t, err)
			switch damage {
			case "missing", "garbage", "zeros":
				requireLookups(t, l, all, func() string { return damage })
			}
			for b := range mirror.Batches(all) {
				buf := make([]byte, len(b.Bytes))
				_, err := l.Read(ctx, b.Base+1, buf)
				require.NoError(t, err)
				require.Equal(t, b.Bytes, buf)
			}
			require.NoError(t, l.Append(ctx, mk(200, 1, 100, 1)))
			require.NoError(t, h.Close())
			if damage == "missing" { // what is written anew is what was there
				for name, want := range good {
					got, err := readAll(fs, name)
					require.NoError(t, err)
					require.Equal(t, want, got[:len(want)], name)
				}
			}
		})
	}
}

func TestFilesStayBoundedWithManyPartitions(t *testing.T) {
	const partitions, limit = 2000, 32
	fs := &counting{FS: vfs.NewMem()}
	h, err := Open("data", onFS(fs), MaxOpenFiles(limit))
	require.NoError(t, err)
	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "wide", Partitions: partitions}))
	logs := make([]mirror.Log, partitions)
	for p := range logs {
		logs[p], err = h.OpenLog(ctx, "wide", int32(p))
		require.NoError(t, err)
	}
	for round := range int64(3) {
		var g errgroup.Group
		const atOnce = 8
		g.SetLimit(atOnce)
		for _, l := range logs {
			g.Go(func() error {
				if err := l.Append(ctx, mk(round*2, 2, 200, round)); err != nil {
					return err
				}
				_, err := l.Read(ctx, round, make([]byte, 100))
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.LessOrEqual(t, fs.most, limit+2*atOnce)
	}
	require.NoError(t, h.Close())
	require.Zero(t, fs.now, "files left open")
}

// counting counts open files.
type counting struct {
	vfs.FS
	mu        sync.Mutex
	now, most int
}

type countedFile struct {
	vfs.File
	fs *counting
}

func (c *counting) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

func (c *counting) count(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	c.add(1)
	return countedFile{f, c}, nil
}

func (c *counting) Create(name string) (vfs.File, error) { return c.count(c.FS.Create(name)) }
func (c *counting) Open(name string, write bool) (vfs.File, error) {
	return c.count(c.FS.Open(name, write))
}

func (f countedFile) Close() error {
	f.fs.add(-1)
	return f.File.Close()
}

// After a clean shutdown, opening logs touches no file of theirs, and a log that is not used is small.
func TestIdleLogsCostLittle(t *testing.T) {
	const partitions = 2000
	fs := vfs.NewMem()
	h := open(t, fs)
	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "wide", Partitions: partitions}))
	for p := range int32(partitions) {
		require.NoError(t, openLog(t, h, "wide", p).Append(ctx, mk(0, 3, 70, 1)))
	}
	require.NoError(t, h.Close())
	h = open(t, fs)
	calls := 0
	fs.Hook(func(vfs.Call) error { calls++; return nil })
	before := heap()
	logs := make([]mirror.Log, partitions)
	var err error
	for p := range logs {
		logs[p], err = h.OpenLog(ctx, "wide", int32(p))
		require.NoError(t, err)
	}
	each := float64(heap()-before) / partitions
	t.Logf("%.0f bytes for a log that was opened", each)
	require.Less(t, each, 1000.0)
	require.Zero(t, calls)
	fs.Hook(nil)
	for _, l := range logs {
		requireBounds(t, l, 0, 3)
		require.NoError(t, l.Append(ctx, mk(3, 3, 70, 1)))
		require.NoError(t, l.Sync(ctx))
	}
	runtime.KeepAlive(h)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestReadOnlyHostFollowsAWriter(t *testing.T) {
	fs := vfs.NewMem()
	h, l := openMem(t, fs, SegmentBytes(8192))
	a, b := mk(0, 10, 3000, 10), mk(10, 10, 3000, 20)
	require.NoError(t, l.Append(ctx, a))

	fs.Hook(func(c vfs.Call) error { return nil })
	r, err := openReadOnlyMem(fs)
	require.NoError(t, err)
	require.Equal(t, h.ClusterID(), r.ClusterID())
	rl := openLog(t, r, "t", 0)
	requireContents(t, rl, a)
	require.NoError(t, l.Append(ctx, b))
	requireBounds(t, rl, 0, 10)
	buf := make([]byte, 4000)
	n, err := rl.Read(ctx, 10, buf) // looks again at the end
	require.NoError(t, err)
	require.Equal(t, b, buf[:n])
	requireBounds(t, rl, 0, 20)
	base, err := rl.(mirror.OffsetForTimer).OffsetForTime(ctx, time.UnixMilli(15))
	require.NoError(t, err)
	require.EqualValues(t, 10, base)

	// A cut, and other bytes in its place: what was seen before is void.
	require.NoError(t, l.TruncateTo(ctx, 10))
	c := mk(10, 1, 500, 30)
	require.NoError(t, l.Append(ctx, cat(c, mk(11, 20, 2500, 40))))
	n, err = rl.Read(ctx, 10, buf[:500])
	require.NoError(t, err)
	require.Equal(t, c, buf[:n])
	require.NoError(t, l.AdvanceStart(ctx, 11))
	require.NoError(t, l.Reset(ctx, 100))
	_, err = rl.Read(ctx, 12, buf)
	require.ErrorIs(t, err, mirror.ErrOutOfRange)
	requireBounds(t, rl, 100, 100)

	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "later", Partitions: 1}))
	later, err := r.OpenLog(ctx, "later", 0)
	require.NoError(t, err)
	requireBounds(t, later, 0, 0)
	topics, err := r.Topics(ctx)
	require.NoError(t, err)
	require.Len(t, topics, 2)

	fs.Hook(func(c vfs.Call) error {
		if c.Changes() || c.Op == "lock" {
			t.Errorf("a host that reads only did %v", c)
		}
		return nil
	})
	require.ErrorIs(t, rl.Append(ctx, c), ErrReadOnly)
	require.ErrorIs(t, rl.TruncateTo(ctx, 0), ErrReadOnly)
	require.ErrorIs(t, rl.AdvanceStart(ctx, 0), ErrReadOnly)
	require.ErrorIs(t, rl.Reset(ctx, 0), ErrReadOnly)
	require.NoError(t, rl.Sync(ctx))
	require.ErrorIs(t, r.EnsureTopic(ctx, mirror.Topic{Name: "x", Partitions: 1}), ErrReadOnly)
	require.ErrorIs(t, r.DeleteTopic(ctx, "t"), ErrReadOnly)
	require.ErrorIs(t, r.Trim(ctx, "t", TrimPolicy{}), ErrReadOnly)
	_, err = rl.Read(ctx, 100, buf)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	_, err = rl.Read(ctx, 100, buf)
	require.ErrorIs(t, err, mirror.ErrClosed)
}

// What a reader in another process is given is always a run of whole, true batches that follow each other, whatever the
// writer does meanwhile.
func TestReadOnlyHostBesideABusyWriter(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs, SegmentBytes(8192))
	r, err := openReadOnlyMem(fs)
	require.NoError(t, err)
	rl := openLog(t, r, "t", 0)
	stop := make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		defer close(stop)
		rng := newRand(1)
		for range 2000 {
			start, end := l.Bounds()
			var err error
			switch k := rng.IntN(12); {
			case k < 8:
				err = l.Append(ctx, mk(end, 1+rng.IntN(3), 61+rng.IntN(2000), rng.Int64()))
			case k < 9:
				err = l.Sync(ctx)
			case k < 10:
				err = l.TruncateTo(ctx, start+rng.Int64N(end-start+1))
			case k < 11:
				err = l.AdvanceStart(ctx, start+rng.Int64N(end-start+1)/4)
			default:
				if rng.IntN(20) == 0 {
					err = l.Reset(ctx, end/2)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error {
		rng := newRand(2)
		buf := make([]byte, 20_000)
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			start, end := rl.Bounds()
			off := start + rng.Int64N(end-start+1)
			n, err := rl.Read(ctx, off, buf)
			if err != nil {
				if errors.Is(err, mirror.ErrOutOfRange) {
					continue
				}
				return err
			}
			if err := wellFormed(buf[:n], off); err != nil {
				return err
			}
		}
	})
	require.NoError(t, g.Wait())
}

// A reader that finds its file gone looks again, as often as the writer has dropped one meanwhile; and not for ever if nothing changes.
func TestReadOnlyHostIsPatientWithAWriter(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs, SegmentBytes(4096))
	for i := range int64(12) {
		require.NoError(t, l.Append(ctx, mk(i, 1, 3000, i))) // each in a file of its own
	}
	const drops = 10
	fs.Hook(func(c vfs.Call) error {
		if start, _ := l.Bounds(); c.Op == "open" && start < drops && c.Name == fmt.Sprintf("data/t-0/%020d.log", start) {
			require.NoError(t, l.AdvanceStart(ctx, start+1))
		}
		return nil
	})
	r, err := openReadOnlyMem(fs)
	require.NoError(t, err)
	rl, err := r.OpenLog(ctx, "t", 0)
	require.NoError(t, err)
	first, err := rl.(mirror.OffsetForTimer).OffsetForTime(ctx, time.UnixMilli(0))
	require.NoError(t, err)
	require.EqualValues(t, drops, first)

	fs.Hook(func(c vfs.Call) error {
		if c.Op == "open" && strings.HasSuffix(c.Name, suffixes[logFile]) {
			return iofs.ErrNotExist
		}
		return nil
	})
	r, err = openReadOnlyMem(fs)
	require.NoError(t, err)
	_, err = r.OpenLog(ctx, "t", 0)
	require.ErrorIs(t, err, iofs.ErrNotExist)
}

func TestAFullDiskCanBeEmptied(t *testing.T) {
	fs := vfs.NewMem()
	h, l := openMem(t, fs, SegmentBytes(4096))
	require.NoError(t, l.Append(ctx, cat(mk(0, 5, 3000, 1), mk(5, 5, 3000, 1))))
	fs.Limit(0)
	require.ErrorIs(t, l.Append(ctx, mk(10, 5, 3000, 1)), syscall.ENOSPC)
	require.NoError(t, h.Trim(ctx, "t", TrimPolicy{MaxBytes: 1}))
	requireBounds(t, l, 5, 10)
	require.NoError(t, l.Append(ctx, mk(10, 5, 2000, 1)))
	_, crashed := openMem(t, fs.Crash(newRand(1)))
	start, _ := crashed.Bounds()
	require.EqualValues(t, 5, start)
	fs.Limit(0)
	require.NoError(t, h.DeleteTopic(ctx, "t"))
	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "t", Partitions: 1}))
	require.NoError(t, openLog(t, h, "t", 0).Append(ctx, mk(0, 5, 3000, 1)))
}

func TestReadOnlyHostIsNotTakenInByATopicMadeAnew(t *testing.T) {
	fs := vfs.NewMem()
	h, l := openMem(t, fs)
	require.NoError(t, l.Append(ctx, mk(0, 5, 3000, 1)))
	r, err := openReadOnlyMem(fs)
	require.NoError(t, err)
	rl := openLog(t, r, "t", 0)
	requireContents(t, rl, mk(0, 5, 3000, 1))
	require.NoError(t, h.DeleteTopic(ctx, "t"))
	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{Name: "t", Partitions: 1}))
	fresh := mk(0, 9, 200, 2)
	require.NoError(t, openLog(t, h, "t", 0).Append(ctx, fresh))
	_, err = rl.Read(ctx, 5, make([]byte, 100))
	require.ErrorIs(t, err, mirror.ErrUnknownPartition)
	topics, err := r.Topics(ctx)
	require.NoError(t, err)
	require.Len(t, topics, 1)
	requireContents(t, openLog(t, r, "t", 0), fresh)
}
