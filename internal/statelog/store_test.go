package statelog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/batch"
)

func open(t testing.TB, log Log, opts ...Option) *Store {
	t.Helper()
	s, err := Open(t.Context(), log, errOrder, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func own(n int64) Key { return Key{Type: 1000, N: n} }

func rec(n int64, value string) Record { return Record{own(n), []byte(value)} }

func del(n int64) Record { return Record{Key: own(n)} }

// contents is all that a store holds, as text.
func contents(s *Store) map[Key]string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[Key]string)
	for _, r := range s.state.all() {
		all[r.Key] = string(r.Value)
	}
	return all
}

func TestRecordsAreThereAfterReopening(t *testing.T) {
	log := newTestLog()
	s := open(t, log)
	state := Record{Key{Type: TypePartitionState, Mirror: "dr", Topic: [16]byte{1}, Partition: 3}, PartitionState{State: 3}.Append(nil)}
	require.NoError(t, s.Put(t.Context(), state, rec(1, "a"), rec(2, "b"), rec(3, "")))
	require.NoError(t, s.Put(t.Context()))
	require.NoError(t, s.Put(t.Context(), rec(1, "c"), del(2)))
	require.NoError(t, s.Close())

	s = open(t, log)
	for k, want := range map[Key]string{state.Key: string(state.Value), own(1): "c", own(3): ""} {
		v, ok := s.Get(k)
		require.True(t, ok)
		require.NotNil(t, v)
		require.Equal(t, want, string(v))
	}
	_, ok := s.Get(own(2))
	require.False(t, ok)
}

func TestTheLastRecordOfAKeyInOnePutCounts(t *testing.T) {
	log := newTestLog()
	s := open(t, log)
	require.NoError(t, s.Put(t.Context(), rec(1, "a"), del(1), rec(1, "b"), rec(2, "x"), del(2)))
	require.Equal(t, map[Key]string{own(1): "b"}, contents(s))
	require.NoError(t, s.Close())
	require.Equal(t, map[Key]string{own(1): "b"}, contents(open(t, log)))
}

func TestAllIsSortedAndOfOneType(t *testing.T) {
	s := open(t, newTestLog())
	keys := []Key{
		{Type: 1000}, {Type: 1000, N: 1}, {Type: 1000, Name: "a"}, {Type: 1000, Partition: 1}, {Type: 1000, Topic: [16]byte{1}},
		{Type: 1000, Topic: [16]byte{2}}, {Type: 1000, Mirror: "a"}, {Type: 1000, Mirror: "b", N: 5},
	}
	for i, k := range slices.Backward(keys) {
		require.NoError(t, s.Put(t.Context(), Record{k, []byte{byte(i)}}, Record{Key{Type: 1001, N: int64(i)}, []byte("other")}))
	}
	i := 0
	for k, v := range s.All(1000) {
		require.Equal(t, keys[i], k)
		require.Equal(t, []byte{byte(i)}, v)
		i++
	}
	require.Equal(t, len(keys), i)
	for range s.All(1000) {
		break
	}
	for range s.All(7) {
		t.Fatal("nothing has this type")
	}
}

func TestPutCopiesItsValues(t *testing.T) {
	s := open(t, newTestLog())
	v := []byte("before")
	require.NoError(t, s.Put(t.Context(), Record{own(1), v}))
	copy(v, "XXXXXX")
	got, _ := s.Get(own(1))
	require.Equal(t, "before", string(got))
}

func TestTheLogsOwnKeysAndBrokenKeysAreRefused(t *testing.T) {
	log := newTestLog()
	s := open(t, log)
	before := log.count("append")
	for _, k := range []Key{{Type: typeFence}, {Type: typeSnapshot}, {Type: 1, N: 1}} {
		require.Error(t, s.Put(t.Context(), rec(1, "a"), Record{k, []byte("x")}))
	}
	require.Equal(t, before, log.count("append"))
	require.Empty(t, contents(s))
}

func TestAnOlderStoreIsFencedForEver(t *testing.T) {
	log := newTestLog()
	old := open(t, log)
	require.NoError(t, old.Put(t.Context(), rec(1, "a")))
	young := open(t, log)
	for range 3 {
		require.ErrorIs(t, old.Put(t.Context(), rec(1, "b")), ErrFenced)
	}
	require.NoError(t, young.Put(t.Context(), rec(2, "c")))
	require.ErrorIs(t, old.Put(t.Context(), rec(1, "b")), ErrFenced)
	require.Equal(t, map[Key]string{own(1): "a"}, contents(old))
	require.Equal(t, map[Key]string{own(1): "a", own(2): "c"}, contents(young))
	require.NoError(t, old.Close())
	require.ErrorIs(t, old.Put(t.Context(), rec(1, "b")), ErrFenced, "the first cause stays")
}

// A failed append leaves room at the log's end, where a younger store's fence may come to lie: at the same offset, with as many
// records. That must not be taken for the batch that failed.
func TestAYoungerStoresBatchIsNotTakenForOnesOwn(t *testing.T) {
	for _, f := range []fault{failClean, failDrop} {
		log := newTestLog()
		fail := noFault
		log.before = func(_ context.Context, op string) fault {
			if op == "append" && fail == failClean || op == "sync" && fail == failDrop {
				return fail
			}
			return noFault
		}
		for younger := range 3 {
			older := open(t, log)
			fail = f
			require.ErrorIs(t, older.Put(t.Context(), rec(1, "a")), errDisk)
			fail = noFault
			young := open(t, log)
			for i := range younger {
				require.NoError(t, young.Put(t.Context(), rec(1, fmt.Sprint("b", i))))
			}
			require.ErrorIs(t, older.Put(t.Context(), rec(1, "c")), ErrFenced)
			require.NoError(t, young.Put(t.Context(), rec(1, "d")))
		}
	}
}

func TestConcurrentPutsShareAppendsAndSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newTestLog()
		s := open(t, log)
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		log.before = func(_ context.Context, op string) fault {
			if op == "sync" {
				once.Do(func() { close(held); <-release })
			}
			return noFault
		}
		var puts sync.WaitGroup
		put := func(i int64) {
			puts.Go(func() { require.NoError(t, s.Put(t.Context(), rec(i, "a"))) })
		}
		put(0)
		<-held
		for i := range int64(1000) {
			put(i + 1)
		}
		synctest.Wait()
		syncs := log.count("sync")
		close(release)
		puts.Wait()
		require.Equal(t, syncs+1, log.count("sync"))
		require.Len(t, contents(s), 1001)
		require.NoError(t, s.Close())
		require.Len(t, contents(open(t, log)), 1001)
	})
}

func TestPutsThatComeOneByOneShareSyncsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newTestLog()
		s := open(t, log)
		before := log.count("sync")
		log.before = func(_ context.Context, op string) fault {
			if op == "sync" {
				time.Sleep(200 * time.Microsecond) // virtual: what a sync takes
			}
			return noFault
		}
		var puts sync.WaitGroup
		for i := range int64(1000) { // each on its way through three states, behind the one before it
			puts.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond) // virtual: one after another
				for state := range int64(3) {
					require.NoError(t, s.Put(t.Context(), rec(i, fmt.Sprint(state))))
				}
			})
		}
		puts.Wait()
		require.Less(t, log.count("sync")-before, 20)
		require.Len(t, contents(s), 1000)
	})
}

func TestALonePutWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, newTestLog())
		began := time.Now()
		for i := range int64(100) {
			require.NoError(t, s.Put(t.Context(), rec(i, "a")))
		}
		require.Equal(t, began, time.Now())
	})
}

func TestPutsThatDoNotFitOneBatchTakeSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newTestLog()
		s := open(t, log)
		release := make(chan struct{})
		log.before = func(context.Context, string) fault { <-release; return noFault }
		var puts sync.WaitGroup
		big := string(make([]byte, 300<<10))
		for i := range int64(10) {
			puts.Go(func() { require.NoError(t, s.Put(t.Context(), rec(i, big))) })
		}
		synctest.Wait()
		close(release)
		puts.Wait()
		for _, b := range log.batches {
			require.Less(t, len(b.raw), 1<<20)
		}
		require.Len(t, contents(s), 10)
	})
}

func TestAPutLargerThanAnyBufferComesBack(t *testing.T) {
	log := newTestLog()
	s := open(t, log)
	big := bytes.Repeat([]byte("x"), 3<<20)
	require.NoError(t, s.Put(t.Context(), rec(1, "a"), Record{own(2), big}))
	require.NoError(t, s.Close())
	got, ok := open(t, log).Get(own(2))
	require.True(t, ok)
	require.True(t, bytes.Equal(big, got))
}

func TestAPutThatNoBatchCanHoldIsRefused(t *testing.T) {
	log := newTestLog()
	s := open(t, log)
	recs := slices.Repeat([]Record{{own(1), make([]byte, 1<<20)}}, int(maxPut>>20))
	require.ErrorContains(t, s.Put(t.Context(), recs...), "256 state records")
	require.NoError(t, s.Put(t.Context(), rec(2, "b")))
	require.Equal(t, map[Key]string{own(2): "b"}, contents(s))
}

func TestAFailedPutLeavesMemoryAsItWasAndTheNextOneWorks(t *testing.T) {
	for _, op := range []string{"append", "sync"} {
		for _, f := range []fault{failClean, failStay, failDrop} {
			t.Run(fmt.Sprint(op, f), func(t *testing.T) {
				log := newTestLog()
				s := open(t, log)
				require.NoError(t, s.Put(t.Context(), rec(1, "a"), rec(2, "b")))
				log.before = func(_ context.Context, o string) fault {
					if o == op {
						return f
					}
					return noFault
				}
				for range 3 {
					require.ErrorIs(t, s.Put(t.Context(), rec(1, "lost"), del(2), rec(3, "lost")), errDisk)
				}
				want := map[Key]string{own(1): "a", own(2): "b"}
				require.Equal(t, want, contents(s))

				log.before = nil
				require.NoError(t, s.Put(t.Context(), rec(4, "d")))
				want[own(4)] = "d"
				require.Equal(t, want, contents(s))

				repaired := log.count("append")
				require.NoError(t, s.Put(t.Context(), rec(4, "d")))
				require.Equal(t, repaired+1, log.count("append"), "what is repaired is not repaired again")
				require.NoError(t, s.Close())
				require.Equal(t, want, contents(open(t, log)), "the log says what memory said")
			})
		}
	}
}

func TestAPutThatIsGivenUpInTheQueueIsNeverWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newTestLog()
		s := open(t, log)
		held, release := make(chan struct{}), make(chan struct{})
		log.before = func(_ context.Context, op string) fault {
			if op == "sync" {
				close(held)
				<-release
			}
			return noFault
		}
		var puts sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		puts.Go(func() { require.ErrorIs(t, s.Put(ctx, rec(1, "being written")), context.Canceled) })
		<-held
		puts.Go(func() { require.ErrorIs(t, s.Put(ctx, rec(2, "queued")), context.Canceled) })
		synctest.Wait()
		cancel()
		puts.Wait()
		require.ErrorIs(t, s.Put(ctx, rec(3, "too late")), context.Canceled)
		log.before = nil
		close(release)
		require.NoError(t, s.Put(t.Context(), rec(4, "next")))
		require.Equal(t, map[Key]string{own(1): "being written", own(4): "next"}, contents(s))
	})
}

func TestCloseEndsPutsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newTestLog()
		s := open(t, log)
		log.before = func(ctx context.Context, op string) fault {
			if op == "append" {
				<-ctx.Done()
				return failClean
			}
			return noFault
		}
		var puts sync.WaitGroup
		for i := range int64(3) {
			puts.Go(func() { require.ErrorIs(t, s.Put(t.Context(), rec(i, "a")), ErrClosed) })
		}
		synctest.Wait()
		require.NoError(t, s.Close())
		puts.Wait()
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.Put(t.Context(), rec(1, "a")), ErrClosed)
		_, ok := s.Get(own(1))
		require.False(t, ok)
	})
}

// The end of the context that Open was called with must not end the store.
func TestTheContextOfOpenBoundsOpenOnly(t *testing.T) {
	log := newTestLog()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Open(ctx, log, errOrder)
	require.NoError(t, err)
	log.before = func(ctx context.Context, _ string) fault {
		require.NoError(t, ctx.Err())
		return noFault
	}
	cancel()
	require.NoError(t, s.Put(t.Context(), rec(1, "a")))
	require.NoError(t, s.Close())
}

func TestASnapshotDropsWhatIsSuperseded(t *testing.T) {
	log := newTestLog()
	s := open(t, log, SnapshotAfter(2000))
	for i := range int64(5) {
		require.NoError(t, s.Put(t.Context(), rec(i, "stays")))
	}
	for i := range 1000 {
		require.NoError(t, s.Put(t.Context(), rec(100, fmt.Sprint(i))))
	}
	want := contents(s)
	require.Len(t, want, 6)
	require.NoError(t, s.Close())
	require.Greater(t, log.start, int64(900))
	require.Less(t, log.end-log.start, int64(100))
	require.Equal(t, want, contents(open(t, log)))
}

func TestASnapshotOfMuchStaysInSmallBatches(t *testing.T) {
	log := newTestLog()
	s := open(t, log, SnapshotAfter(1))
	for i := range int64(8) {
		require.NoError(t, s.Put(t.Context(), Record{own(i), make([]byte, 400<<10)}))
	}
	for range 10 {
		require.NoError(t, s.Put(t.Context(), Record{own(0), make([]byte, 400<<10)}))
	}
	want := contents(s)
	require.NoError(t, s.Close())
	require.Positive(t, log.start)
	for _, b := range log.batches {
		require.Less(t, len(b.raw), 1<<20)
	}
	require.Equal(t, want, contents(open(t, log)))
}

// While the start cannot be advanced the log is longer than it must be, and replay gives the same; Open makes up for it.
func TestAStartThatCannotBeAdvancedIsMadeUpForLater(t *testing.T) {
	log := newTestLog()
	log.before = func(_ context.Context, op string) fault {
		if op == "advance" {
			return failClean
		}
		return noFault
	}
	var warnings bytes.Buffer
	s := open(t, log, SnapshotAfter(500), Logger(slog.New(slog.NewTextHandler(&warnings, nil))))
	for i := range 100 {
		require.NoError(t, s.Put(t.Context(), rec(int64(i%3), fmt.Sprint(i))))
	}
	require.NoError(t, s.Put(t.Context(), del(0)))
	want := contents(s)
	require.NoError(t, s.Close())
	require.Contains(t, warnings.String(), "advance")
	require.Zero(t, log.start)
	require.Less(t, log.count("advance"), 50, "not tried again with every put")
	require.Equal(t, want, contents(open(t, log.clone())))

	log.before = nil
	s = open(t, log)
	require.Positive(t, log.start)
	require.Equal(t, want, contents(s))
}

func TestASnapshotThatFailsFailsNoPut(t *testing.T) {
	log := newTestLog()
	var warnings bytes.Buffer
	s := open(t, log, SnapshotAfter(500), Logger(slog.New(slog.NewTextHandler(&warnings, nil))))
	var appends int
	log.before = func(_ context.Context, op string) fault {
		if op == "append" {
			appends++
		}
		if op == "sync" && appends%2 == 0 || op == "append" && appends%5 == 0 {
			return failStay
		}
		return noFault
	}
	failed := 0
	want := make(map[Key]string)
	for i := range 200 {
		r := rec(int64(i%3), fmt.Sprint(i))
		if err := s.Put(t.Context(), r); err != nil {
			require.ErrorIs(t, err, errDisk)
			failed++
			continue
		}
		want[r.Key] = string(r.Value)
		require.Equal(t, want, contents(s))
	}
	require.Positive(t, failed)
	log.before = nil
	require.NoError(t, s.Put(t.Context(), rec(9, "end")))
	want[own(9)] = "end"
	require.NoError(t, s.Close())
	require.Equal(t, want, contents(open(t, log)))
}

func TestForeignRecordsAreKept(t *testing.T) {
	log := newTestLog()
	s := open(t, log, SnapshotAfter(500))
	want := map[Key]string{
		{Type: 3, Name: "\x00\x01any"}:      "theirs",
		{Type: 77}:                          "",
		{Type: -5, Name: "x"}:               "negative",
		{Type: 9999, Mirror: "dr", N: 3}:    "a newer release's",
		{Type: TypePosition, Mirror: "old"}: "value in no known form",
	}
	foreign := make([]batch.Record, 0, len(want))
	for k, v := range want {
		foreign = append(foreign, batch.Record{Key: k.append(nil), Value: []byte(v), Headers: []batch.RecordHeader{{Key: "h"}}})
	}
	require.NoError(t, s.Close())
	b := batch.Append(nil, batch.Header{Base: log.end, LeaderEpoch: 12, ProducerID: 4711}, foreign)
	b = batch.AppendControl(b, log.end+int64(len(foreign)), 12, 4711, 0, batch.Control{Type: batch.ControlCommit}, 0)
	for len(b) > 0 {
		_, raw, err := batch.Next(b)
		require.NoError(t, err)
		require.NoError(t, log.Append(t.Context(), raw))
		b = b[len(raw):]
	}

	s = open(t, log, SnapshotAfter(500))
	require.Equal(t, want, contents(s))
	for i := range 100 {
		require.NoError(t, s.Put(t.Context(), rec(1, fmt.Sprint(i))))
	}
	require.NoError(t, s.Put(t.Context(), del(1)))
	require.NoError(t, s.Close())
	require.Greater(t, log.start, int64(len(want)), "snapshots have replaced what came from elsewhere")
	require.Equal(t, want, contents(open(t, log)))
}

// Another store that writes, snapshots and trims while this one opens: what it has replayed so far may be gone.
func TestOpenGoesOnWhenOthersWriteMeanwhile(t *testing.T) {
	for _, op := range []string{"read", "append"} {
		log := newTestLog()
		other := open(t, log, SnapshotAfter(500))
		for i := range 20 {
			require.NoError(t, other.Put(t.Context(), rec(int64(i), "a")))
		}
		var busy bool
		log.before = func(_ context.Context, o string) fault {
			if o == op && !busy && log.ops[op] < 200 {
				busy = true
				for i := range 30 {
					require.NoError(t, other.Put(t.Context(), rec(1, fmt.Sprint(i))))
				}
				busy = false
				log.before = nil
			}
			return noFault
		}
		s := open(t, log)
		want := contents(other)
		require.Equal(t, "29", want[own(1)])
		require.Equal(t, want, contents(s))
		require.ErrorIs(t, other.Put(t.Context(), rec(1, "b")), ErrFenced)
	}
}

func TestOpenGivesUpWhenOthersNeverStop(t *testing.T) {
	log := newTestLog()
	log.before = func(ctx context.Context, op string) fault {
		if op == "append" {
			raw := batch.Append(nil, batch.Header{Base: log.end, ProducerID: -1}, []batch.Record{{Key: own(1).append(nil)}})
			before := log.before
			log.before = nil
			require.NoError(t, log.Append(ctx, raw))
			log.before = before
		}
		return noFault
	}
	_, err := Open(t.Context(), log, errOrder)
	require.ErrorIs(t, err, ErrFenced)
}

func TestOpenReportsErrorsOfTheLog(t *testing.T) {
	for _, op := range []string{"read", "append", "sync"} {
		log := newTestLog()
		log.before = func(_ context.Context, o string) fault {
			if o == op {
				return failClean
			}
			return noFault
		}
		_, err := Open(t.Context(), log, errOrder)
		require.ErrorIs(t, err, errDisk)
	}
}

// filled is a log with a few batches of each kind.
func filled(t testing.TB) *testLog {
	log := newTestLog()
	s := open(t, log, SnapshotAfter(200))
	for i := range 12 {
		require.NoError(t, s.Put(t.Context(), rec(int64(i%2), fmt.Sprint("value ", i)), del(5)))
	}
	require.NoError(t, s.Close())
	require.Positive(t, log.start)
	s = open(t, log)
	for i := range 3 {
		require.NoError(t, s.Put(t.Context(), rec(1, fmt.Sprint("after the snapshot ", i))))
	}
	require.NoError(t, s.Close())
	log.batches = slices.DeleteFunc(log.batches, func(b testBatch) bool { return b.next <= log.start })
	return log
}

func TestEveryFlippedBitIsFoundOrMeansNothing(t *testing.T) {
	log := filled(t)
	want := contents(open(t, log.clone()))
	for i, b := range log.batches {
		for at := range b.raw {
			damaged := log.clone()
			raw := slices.Clone(b.raw)
			raw[at] ^= 1 << (at % 8)
			damaged.batches[i].raw = raw
			s, err := Open(t.Context(), damaged, errOrder)
			if err == nil { // the leader epoch is the log's own affair
				require.True(t, at >= 12 && at < 16, "byte %d of batch %d", at, i)
				require.Equal(t, want, contents(s))
				require.NoError(t, s.Close())
				continue
			}
			var de *DamagedError
			require.ErrorAs(t, err, &de, "byte %d of batch %d", at, i)
			require.Contains(t, err.Error(), fmt.Sprintf("damaged at offset %d: ", de.Offset))
			require.Zero(t, damaged.count("append"), "nothing is written to a damaged log")
		}
	}
}

func TestALogThatLostAPartIsRefused(t *testing.T) {
	var de *DamagedError
	whole := filled(t)

	beginning := whole.clone()
	require.NoError(t, beginning.AdvanceStart(t.Context(), whole.batches[1].base))
	_, err := Open(t.Context(), beginning, errOrder)
	require.ErrorAs(t, err, &de)
	require.Equal(t, beginning.start, de.Offset)

	inside := whole.clone()
	require.NoError(t, inside.AdvanceStart(t.Context(), whole.start+1))
	_, err = Open(t.Context(), inside, errOrder)
	require.ErrorAs(t, err, &de, "the first record of the snapshot is out of range")

	all := whole.clone()
	all.start, all.batches = all.end, nil
	_, err = Open(t.Context(), all, errOrder)
	require.ErrorAs(t, err, &de)

	middle := whole.clone()
	gone := middle.batches[2]
	middle.batches = slices.Delete(middle.batches, 2, 3)
	_, err = Open(t.Context(), middle, errOrder)
	require.ErrorAs(t, err, &de)
	require.Equal(t, gone.base, de.Offset)

	torn := whole.clone()
	last := &torn.batches[len(torn.batches)-1]
	last.raw = last.raw[:len(last.raw)-1]
	_, err = Open(t.Context(), torn, errOrder)
	require.ErrorAs(t, err, &de)
	require.ErrorIs(t, err, batch.ErrShort)

	silent := whole.clone()
	silent.end++
	_, err = Open(t.Context(), silent, errOrder)
	require.ErrorAs(t, err, &de)
	require.Equal(t, whole.end, de.Offset)
}

func TestALogThatShrinksUnderTheStoreIsDamaged(t *testing.T) {
	log := newTestLog()
	s := open(t, log)
	require.NoError(t, s.Put(t.Context(), rec(1, "a")))
	log.before = func(_ context.Context, op string) fault {
		if op == "append" {
			log.mu.Lock()
			log.lose(1)
			log.mu.Unlock()
			return failClean
		}
		return noFault
	}
	require.ErrorIs(t, s.Put(t.Context(), rec(2, "b")), errDisk)
	var de *DamagedError
	for range 2 {
		require.ErrorAs(t, s.Put(t.Context(), rec(2, "b")), &de)
	}
}

func TestCompressedStateIsRefused(t *testing.T) {
	log := newTestLog()
	raw := batch.Append(nil, batch.Header{ProducerID: -1}, []batch.Record{{Key: own(1).append(nil)}})
	raw[22] |= 1
	binary.BigEndian.PutUint32(raw[17:], batch.Sum(raw))
	require.NoError(t, log.Append(t.Context(), raw))
	_, err := Open(t.Context(), log, errOrder)
	require.ErrorIs(t, err, batch.ErrCompressed)
}

func TestARecordWithoutAKnownKeyIsDamage(t *testing.T) {
	for _, key := range [][]byte{nil, {}, {1}, own(1).append(nil)[:20], append(own(1).append(nil), 0)} {
		log := newTestLog()
		raw := batch.Append(nil, batch.Header{ProducerID: -1}, []batch.Record{{Key: key, Value: []byte("x")}})
		require.NoError(t, log.Append(t.Context(), raw))
		_, err := Open(t.Context(), log, errOrder)
		var de *DamagedError
		require.ErrorAs(t, err, &de)
	}
}

func TestDamagedErrorUnwraps(t *testing.T) {
	cause := errors.New("cause")
	require.ErrorIs(t, fmt.Errorf("open: %w", &DamagedError{Offset: 3, Err: cause}), cause)
}

// Whatever the bytes are, replay neither panics nor allocates by what they claim; and if they mean something, a snapshot of that
// means the same.
func FuzzReplay(f *testing.F) {
	var seed []byte
	for _, b := range filled(f).batches {
		f.Add(b.raw, b.base, b.base)
		seed = append(seed, b.raw...)
	}
	f.Add(seed, int64(10), int64(12))
	f.Fuzz(func(t *testing.T, b []byte, start, next int64) {
		st := newState(start)
		st.next = next
		n, err := st.replay(b)
		require.LessOrEqual(t, n, len(b))
		if err != nil {
			var de *DamagedError
			require.ErrorAs(t, err, &de)
			return
		}
		live := int64(0)
		for _, r := range st.all() {
			live += r.size()
		}
		require.Equal(t, live, st.live)
		log := newTestLog()
		w := writer{log: log, outOfOrder: errOrder}
		require.NoError(t, w.snapshot(t.Context(), st.all()))
		again := newState(0)
		require.NoError(t, w.replay(t.Context(), again))
		require.True(t, maps.EqualFunc(flat(st), flat(again), bytes.Equal))
		require.Zero(t, again.snapshot)
	})
}

func flat(st *state) map[Key][]byte {
	m := make(map[Key][]byte)
	for _, r := range st.all() {
		m[r.Key] = r.Value
	}
	return m
}
