package disklog

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

var ctx = context.Background()

func TestAppendedBatchesComeBackVerbatim(t *testing.T) {
	_, l := openMem(t, vfs.NewMem())
	a, b, c := mk(0, 10, 100, 1), mk(15, 1, 5000, 2), mk(16, 4, 80, 3)
	in := cat(a, b)
	require.NoError(t, l.Append(ctx, in))
	clear(in) // the slice is not kept
	require.NoError(t, l.Append(ctx, c))
	requireBounds(t, l, 0, 20)
	requireContents(t, l, a, b, c)

	buf := make([]byte, batch.HeaderSize)
	for _, at := range []struct{ offset, base int64 }{{0, 0}, {9, 0}, {10, 15}, {15, 15}, {16, 16}, {19, 16}} {
		n, err := l.Read(ctx, at.offset, buf)
		require.NoError(t, err)
		require.Equal(t, len(buf), n)
		require.EqualValues(t, at.base, binary.BigEndian.Uint64(buf), "batch that holds %d, or the next", at.offset)
	}
	n, err := l.Read(ctx, 20, buf)
	require.NoError(t, err)
	require.Zero(t, n)
	for _, off := range []int64{-1, 21} {
		_, err = l.Read(ctx, off, buf)
		require.ErrorIs(t, err, mirror.ErrOutOfRange)
		require.ErrorContains(t, err, "t-0")
	}
}

func TestAppendRefusesWhatIsNotInOrderOrNotWholeAndStoresNothing(t *testing.T) {
	_, l := openMem(t, vfs.NewMem())
	require.NoError(t, l.Append(ctx, mk(0, 10, 100, 1)))
	again, err := l.(*handle).log.host.OpenLog(ctx, "t", 0)
	require.NoError(t, err)
	for _, h := range []mirror.Log{l, again} {
		require.ErrorIs(t, h.Append(ctx, mk(9, 5, 100, 1)), mirror.ErrOutOfOrder)
		require.ErrorIs(t, h.Append(ctx, cat(mk(10, 5, 100, 1), mk(14, 1, 100, 1))), mirror.ErrOutOfOrder)
		require.ErrorIs(t, h.Append(ctx, mk(10, 1, 100, 1)[:99]), batch.ErrShort)
		require.ErrorIs(t, h.Append(ctx, append(mk(10, 1, 100, 1), 0)), batch.ErrShort)
		requireBounds(t, h, 0, 10)
	}
	require.NoError(t, again.Append(ctx, mk(10, 1, 100, 1)))
	require.ErrorIs(t, l.Append(ctx, mk(10, 1, 100, 1)), mirror.ErrOutOfOrder)
}

func TestReadGoesOnAcrossSegments(t *testing.T) {
	_, l := openMem(t, vfs.NewMem(), SegmentBytes(4096))
	var all [][]byte
	for i := range int64(20) {
		all = append(all, mk(i*3, 2, 1000, i))
	}
	require.NoError(t, l.Append(ctx, cat(all...)))
	require.Equal(t, 5, l.(*handle).log.view.Load().count())
	requireContents(t, l, all...)
	buf := make([]byte, 20_000)
	n, err := l.Read(ctx, 0, buf)
	require.NoError(t, err)
	require.Equal(t, cat(all...), buf[:n])
	n, err = l.Read(ctx, 3*3+2, buf) // in the gap between two segments
	require.NoError(t, err)
	require.Equal(t, cat(all[4:]...), buf[:n])
}

func TestTruncateToDropsEachBatchThatReachesBeyond(t *testing.T) {
	a, b, c := mk(5, 5, 100, 1), mk(12, 3, 9000, 2), mk(15, 1, 100, 3)
	for _, at := range []struct {
		end, want int64
		kept      [][]byte
	}{
		{99, 16, [][]byte{a, b, c}}, {16, 16, [][]byte{a, b, c}}, {15, 15, [][]byte{a, b}}, {14, 10, [][]byte{a}},
		{12, 10, [][]byte{a}}, {10, 10, [][]byte{a}}, {9, 5, nil}, {5, 5, nil},
	} {
		t.Run(fmt.Sprint(at.end), func(t *testing.T) {
			fs := vfs.NewMem()
			h, l := openMem(t, fs, SegmentBytes(4096))
			require.NoError(t, l.Reset(ctx, 5))
			require.NoError(t, l.Append(ctx, cat(a, b, c)))
			require.NoError(t, l.TruncateTo(ctx, at.end))
			requireBounds(t, l, 5, at.want)
			requireContents(t, l, at.kept...)
			d := mk(at.want+1, 1, 70, 4)
			require.NoError(t, l.Append(ctx, d))
			requireContents(t, l, append(at.kept, d)...)
			require.NoError(t, h.Close())
			_, l = openMem(t, fs)
			requireBounds(t, l, 5, at.want+2)
			requireContents(t, l, append(at.kept, d)...)
		})
	}
}

func TestTruncateToBelowTheStartResets(t *testing.T) {
	_, l := openMem(t, vfs.NewMem())
	require.NoError(t, l.Reset(ctx, 5))
	require.NoError(t, l.Append(ctx, mk(5, 5, 100, 1)))
	require.NoError(t, l.TruncateTo(ctx, 3))
	requireBounds(t, l, 3, 3)
}

func TestAdvanceStartMayFallInsideABatch(t *testing.T) {
	fs := vfs.NewMem()
	h, l := openMem(t, fs, SegmentBytes(4096))
	a, b := mk(0, 10, 3000, 1), mk(10, 10, 3000, 2)
	require.NoError(t, l.Append(ctx, cat(a, b)))
	require.NoError(t, l.AdvanceStart(ctx, 13))
	require.NoError(t, l.AdvanceStart(ctx, 12)) // changes nothing
	requireBounds(t, l, 13, 20)
	_, err := l.Read(ctx, 12, make([]byte, 100))
	require.ErrorIs(t, err, mirror.ErrOutOfRange)
	requireContents(t, l, b)
	names, err := fs.List("data/t-0")
	require.NoError(t, err)
	require.NotContains(t, names, "00000000000000000000.log")
	require.NoError(t, h.Close())
	_, l = openMem(t, fs)
	requireBounds(t, l, 13, 20)
	require.NoError(t, l.AdvanceStart(ctx, 20))
	requireBounds(t, l, 20, 20)
	require.NoError(t, l.AdvanceStart(ctx, 30)) // beyond the end: Reset
	requireBounds(t, l, 30, 30)
	require.NoError(t, l.Append(ctx, mk(30, 1, 100, 3)))
	requireBounds(t, l, 30, 31)
}

func TestResetGoesOnAtStart(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs)
	require.NoError(t, l.Append(ctx, mk(0, 10, 100, 1)))
	require.NoError(t, l.Reset(ctx, 500))
	requireBounds(t, l, 500, 500)
	_, l = openMem(t, fs.Clone())
	requireBounds(t, l, 500, 500)
	require.ErrorIs(t, l.Append(ctx, mk(499, 1, 100, 1)), mirror.ErrOutOfOrder)
	require.Error(t, l.Reset(ctx, -1))
}

func TestClosedThingsAnswerErrClosed(t *testing.T) {
	h, l := openMem(t, vfs.NewMem())
	require.NoError(t, l.Append(ctx, mk(0, 10, 100, 1)))
	other := openLog(t, h, "t", 0)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	check := func(l mirror.Log) {
		_, err := l.Read(ctx, 0, make([]byte, 100))
		require.ErrorIs(t, err, mirror.ErrClosed)
		require.ErrorIs(t, l.Append(ctx, mk(10, 1, 100, 1)), mirror.ErrClosed)
		require.ErrorIs(t, l.Sync(ctx), mirror.ErrClosed)
		require.ErrorIs(t, l.TruncateTo(ctx, 0), mirror.ErrClosed)
		require.ErrorIs(t, l.AdvanceStart(ctx, 1), mirror.ErrClosed)
		require.ErrorIs(t, l.Reset(ctx, 0), mirror.ErrClosed)
		requireBounds(t, l, 0, 10)
	}
	check(l)
	requireContents(t, other, mk(0, 10, 100, 1))
	require.NoError(t, h.Close())
	require.NoError(t, h.Close())
	check(other)
	_, err := h.OpenLog(ctx, "t", 0)
	require.ErrorIs(t, err, mirror.ErrClosed)
	_, err = h.Topics(ctx)
	require.ErrorIs(t, err, mirror.ErrClosed)
	require.ErrorIs(t, h.EnsureTopic(ctx, mirror.Topic{Name: "u", Partitions: 1}), mirror.ErrClosed)
}

func TestACancelledContextChangesNothing(t *testing.T) {
	_, l := openMem(t, vfs.NewMem())
	require.NoError(t, l.Append(ctx, mk(0, 10, 100, 1)))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, l.Append(gone, mk(10, 1, 100, 1)), context.Canceled)
	require.ErrorIs(t, l.TruncateTo(gone, 0), context.Canceled)
	require.ErrorIs(t, l.Reset(gone, 7), context.Canceled)
	require.ErrorIs(t, l.AdvanceStart(gone, 7), context.Canceled)
	require.ErrorIs(t, l.Sync(gone), context.Canceled)
	_, err := l.Read(gone, 0, make([]byte, 100))
	require.ErrorIs(t, err, context.Canceled)
	requireBounds(t, l, 0, 10)
}

func TestSyncIsSkippedWhenNothingWasWritten(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs)
	require.NoError(t, l.Append(ctx, mk(0, 10, 100, 1)))
	syncs := 0
	fs.Hook(func(c vfs.Call) error {
		if c.Op == "sync" {
			syncs++
		}
		return nil
	})
	for range 3 {
		require.NoError(t, l.Sync(ctx))
	}
	require.Equal(t, 1, syncs)
}

func TestAppendSyncsByItselfWhereAsked(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs, SyncBytes(1000))
	syncs := 0
	fs.Hook(func(c vfs.Call) error {
		if c.Op == "sync" {
			syncs++
		}
		return nil
	})
	for i := range int64(40) {
		require.NoError(t, l.Append(ctx, mk(i, 1, 250, i)))
	}
	require.Equal(t, 10, syncs)
}

func TestDiskFullLeavesNothingTornAndMendsItself(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs, SegmentBytes(8192))
	a, b, c := mk(0, 10, 3000, 1), mk(10, 10, 3000, 2), mk(20, 1, 6000, 3)
	require.NoError(t, l.Append(ctx, a))
	fs.Limit(1000)
	require.ErrorIs(t, l.Append(ctx, b), syscall.ENOSPC)
	requireBounds(t, l, 0, 10)
	requireContents(t, l, a)
	_, crashed := openMem(t, fs.Clone())
	requireBounds(t, crashed, 0, 10)
	fs.Limit(5000)
	require.ErrorIs(t, l.Append(ctx, cat(b, c)), syscall.ENOSPC) // b fits, c needs a segment of its own, which does not
	requireBounds(t, l, 0, 20)
	fs.Limit(-1)
	require.NoError(t, l.Append(ctx, c))
	requireContents(t, l, a, b, c)
	_, crashed = openMem(t, fs.Clone())
	requireContents(t, crashed, a, b, c)
}

func TestSyncThatFailedIsNotTakenForDoneTheNextTime(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs)
	a, b := mk(0, 10, 3000, 1), mk(10, 10, 40_000, 2)
	require.NoError(t, l.Append(ctx, a))
	require.NoError(t, l.Sync(ctx))
	require.NoError(t, l.Append(ctx, b))
	fs.Hook(func(c vfs.Call) error {
		if c.Op == "sync" {
			return syscall.EIO
		}
		return nil
	})
	require.ErrorIs(t, l.Sync(ctx), syscall.EIO)
	fs.Hook(nil)
	require.NoError(t, l.Sync(ctx))
	for seed := range uint64(20) {
		_, crashed := openMem(t, fs.Crash(newRand(seed)))
		requireContents(t, crashed, a, b)
	}
}

func TestSyncCoversNoAppendThatComesWhileItRuns(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs)
	a, b := mk(0, 10, 3000, 1), mk(10, 10, 3000, 2)
	require.NoError(t, l.Append(ctx, a))
	fs.Hook(func(c vfs.Call) error {
		if c.Op == "syncdir" { // the bytes of a are on disk, its name comes next
			fs.Hook(nil)
			return l.Append(ctx, b)
		}
		return nil
	})
	require.NoError(t, l.Sync(ctx))
	requireContents(t, l, a, b)
	require.NoError(t, l.Sync(ctx))
	for seed := range uint64(20) {
		_, crashed := openMem(t, fs.Crash(newRand(seed)))
		requireContents(t, crashed, a, b)
	}
}

func TestBatchesOfAnAppendThatFailedNeverStandBehindTheNext(t *testing.T) {
	for seed := range uint64(500) {
		fs := vfs.NewMem()
		_, l := openMem(t, fs)
		a := mk(0, 1, 1000, 1)
		require.NoError(t, l.Append(ctx, a))
		require.NoError(t, l.Sync(ctx))
		fs.Hook(func(c vfs.Call) error {
			if c.Op == "write" {
				return &vfs.Short{N: 2500, Err: syscall.EIO}
			}
			return nil
		})
		require.ErrorIs(t, l.Append(ctx, cat(mk(1, 1, 1000, 2), mk(2, 1, 1000, 2), mk(3, 1, 1000, 2))), syscall.EIO)
		requireContents(t, l, a)
		fs.Hook(nil)
		b := mk(1, 1, 1000, 3)
		require.NoError(t, l.Append(ctx, b))
		_, crashed := openMem(t, fs.Crash(newRand(seed)))
		if _, end := crashed.Bounds(); end > 1 {
			requireContents(t, crashed, a, b)
		} else {
			requireContents(t, crashed, a)
		}
	}
}

func TestIndexEntriesOfWhatWasCutNeverVouchForWhatComesNext(t *testing.T) {
	fs := vfs.NewMem()
	_, l := openMem(t, fs)
	var all []byte
	for i := range int64(8) {
		all = append(all, mk(i, 1, 2500, 1)...)
	}
	require.NoError(t, l.Append(ctx, all))
	require.NoError(t, l.Sync(ctx))
	require.NoError(t, l.TruncateTo(ctx, 2))
	for i := range int64(6) { // the same places, other bytes
		require.NoError(t, l.Append(ctx, mk(2+i, 1, 2500, 2)))
	}
	want, err := contents(l)
	require.NoError(t, err)
	for seed := range uint64(500) {
		_, crashed := openMem(t, fs.Crash(newRand(seed)))
		got, err := contents(crashed)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(want, got), "seed %d", seed)
	}
}

func TestIndexesAreWholeThoughTheirSyncFailedOnce(t *testing.T) {
	for _, kind := range []string{".index", ".timeindex"} {
		files := func(fail bool) string {
			fs := vfs.NewMem()
			_, l := openMem(t, fs, SegmentBytes(40_000))
			for i := range int64(12) {
				require.NoError(t, l.Append(ctx, mk(i, 1, 3000, i)))
				require.NoError(t, l.Sync(ctx))
			}
			failed := false
			fs.Hook(func(c vfs.Call) error {
				if fail && !failed && c.Op == "sync" && strings.HasSuffix(c.Name, kind) {
					failed = true
					return syscall.EIO
				}
				return nil
			})
			if fail {
				require.ErrorIs(t, l.Append(ctx, mk(12, 1, 6000, 20)), syscall.EIO)
			}
			require.NoError(t, l.Append(ctx, mk(12, 1, 6000, 20)))
			require.NoError(t, l.Sync(ctx))
			return dump(t, fs.Crash(newRand(1)), "data/t-0", "")
		}
		require.Equal(t, files(false), files(true))
	}
}

func TestOffsetForTime(t *testing.T) {
	for _, how := range []string{"fresh", "reopened", "crashed", "bare"} {
		t.Run(how, func(t *testing.T) {
			fs := vfs.NewMem()
			h, l := openMem(t, fs, SegmentBytes(10_000))
			require.NoError(t, l.Append(ctx, mk(0, 5, 500, -1))) // no timestamp
			for i := range int64(100) {
				require.NoError(t, l.Append(ctx, mk(5+i*5, 5, 900, 1000*(i+1)-i%3*1500))) // out of order here and there
			}
			switch how {
			case "reopened":
				require.NoError(t, h.Close())
				_, l = openMem(t, fs)
			case "crashed":
				require.NoError(t, l.Sync(ctx))
				require.NoError(t, l.Append(ctx, mk(505, 5, 500, 200_000)))
				_, l = openMem(t, fs.Clone())
			case "bare":
				require.NoError(t, h.Close())
				names, err := fs.List("data/t-0")
				require.NoError(t, err)
				for _, name := range names {
					if _, kind := parseName(name); kind > logFile {
						require.NoError(t, fs.Remove("data/t-0/"+name))
					}
				}
				_, l = openMem(t, fs)
			}
			look := l.(mirror.OffsetForTimer)
			all, err := contents(l)
			require.NoError(t, err)
			for ms := int64(-10_000); ms < 250_000; ms += 333 {
				want := int64(-1)
				for b := range mirror.Batches(all) {
					if !b.MaxTime.IsZero() && b.MaxTime.UnixMilli() >= ms || b.MaxTime.IsZero() && ms <= -1 {
						want = b.Base
						break
					}
				}
				got, err := look.OffsetForTime(ctx, time.UnixMilli(ms))
				require.NoError(t, err)
				require.Equal(t, want, got, "at %d ms", ms)
			}
			got, err := look.OffsetForTime(ctx, time.UnixMilli(5000).Add(1)) // a nanosecond past the batch of 5000 ms
			require.NoError(t, err)
			want, err := look.OffsetForTime(ctx, time.UnixMilli(5001))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func TestSegmentsEndByAge(t *testing.T) {
	_, l := openMem(t, vfs.NewMem(), SegmentAge(time.Hour))
	hour := time.Hour.Milliseconds()
	for i, ts := range []int64{0, hour, hour + 1, hour + 2, math.MaxInt64, 5, 2*hour + 2} {
		require.NoError(t, l.Append(ctx, mk(int64(i), 1, 1<<20, ts)))
	}
	v := l.(*handle).log.view.Load()
	var bases []int64
	for i := range v.count() {
		s, _ := v.segment(i)
		bases = append(bases, s.base)
	}
	require.Equal(t, []int64{0, 2, 4}, bases)
}

func TestTrimDropsWholeSegmentsFromTheFront(t *testing.T) {
	for _, how := range []string{"fresh", "crashed"} {
		t.Run(how, func(t *testing.T) {
			fs := vfs.NewMem()
			h, l := openMem(t, fs, SegmentBytes(4096))
			now := time.Now()
			for i := range int64(10) { // two to a segment
				require.NoError(t, l.Append(ctx, mk(i, 1, 2000, now.Add(time.Duration(i-10)*time.Hour).UnixMilli())))
			}
			if how == "crashed" {
				h, l = openMem(t, fs.Clone(), SegmentBytes(4096))
			}
			require.NoError(t, h.Trim(ctx, "t", TrimPolicy{}))
			requireBounds(t, l, 0, 10)
			require.NoError(t, h.Trim(ctx, "t", TrimPolicy{MaxAge: 7*time.Hour + time.Minute})) // younger: 3 to 9
			requireBounds(t, l, 2, 10)
			require.NoError(t, h.Trim(ctx, "t", TrimPolicy{MaxBytes: 9000}))
			requireBounds(t, l, 4, 10)
			require.NoError(t, h.Trim(ctx, "t", TrimPolicy{MaxAge: time.Minute})) // the active segment too
			requireBounds(t, l, 10, 10)
			require.ErrorIs(t, h.Trim(ctx, "nope", TrimPolicy{}), mirror.ErrUnknownPartition)
		})
	}
}
