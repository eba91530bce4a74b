package summary

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/epochs"
	"github.com/clustermirror/mirror/internal/txn"
)

var ctx = context.Background()

// plain is a batch of one record.
func plain(base int64, epoch int32) []byte {
	return batch.Append(nil, batch.Header{Base: base, LeaderEpoch: epoch, ProducerID: -1}, []batch.Record{{Value: []byte("value")}})
}

func transactional(base, pid int64) []byte {
	return batch.Append(nil, batch.Header{Base: base, ProducerID: pid, Attributes: batch.Transactional}, []batch.Record{{Value: []byte("value")}})
}

func marker(base, pid int64, typ int16) []byte {
	return batch.AppendControl(nil, base, 0, pid, 0, batch.Control{Type: typ}, 0)
}

func logOf(batches ...[]byte) *fakeLog {
	l := &fakeLog{}
	for _, b := range batches {
		l.append(b)
	}
	return l
}

func summaryOf(t testing.TB, l *fakeLog) *Summary {
	s := New(l.start)
	require.NoError(t, s.CatchUp(ctx, l))
	return s
}

func TestObserveRefusesABatchBelowTheEnd(t *testing.T) {
	s := summaryOf(t, logOf(plain(0, 0), plain(1, 0)))
	b := plain(1, 5)
	h, raw, err := batch.Next(b)
	require.NoError(t, err)
	require.ErrorIs(t, s.Observe(&h, raw), ErrOrder)
	require.EqualValues(t, 0, s.Epochs().Latest(), "nothing is noted")
}

func TestObserveRefusesAControlRecordItCannotRead(t *testing.T) {
	s := New(0)
	b := batch.Append(nil, batch.Header{Attributes: 0x30, ProducerID: 1}, []batch.Record{{Key: []byte{0}}})
	h, raw, err := batch.Next(b)
	require.NoError(t, err)
	require.ErrorIs(t, s.Observe(&h, raw), batch.ErrCorrupt)
	require.EqualValues(t, 0, s.End())
}

func TestALogMayStartInsideItsFirstBatch(t *testing.T) {
	b := batch.Append(nil, batch.Header{Base: 100, LeaderEpoch: 3, LastOffsetDelta: 9, ProducerID: 7, Attributes: batch.Transactional}, []batch.Record{{}})
	l := logOf(b, marker(110, 7, batch.ControlAbort))
	l.advanceStart(105)
	s := summaryOf(t, l)
	require.NoError(t, check(s, l))
	require.Equal(t, []epochs.Entry{{Epoch: 3, Start: 105}}, s.Epochs().Entries())
	require.Equal(t, []txn.Aborted{{ProducerID: 7, FirstOffset: 105, LastOffset: 110}}, s.Txn().Aborted(105, 111))
}

func TestACutReopensTheTransactionWhoseMarkerItTook(t *testing.T) {
	l := logOf(transactional(0, 1), transactional(1, 2), marker(2, 1, batch.ControlCommit), marker(3, 2, batch.ControlAbort))
	s := summaryOf(t, l)
	require.EqualValues(t, 4, s.LastStable())
	l.truncateTo(2)
	require.NoError(t, s.Cut(ctx, l, 2))
	require.EqualValues(t, 0, s.LastStable())
	require.Len(t, s.Txn().Open(), 2)
	require.Empty(t, s.Txn().Aborted(0, 9))
}

func TestACutWalksFromTheNewestMark(t *testing.T) {
	l, s := logOf(), New(0)
	s.Interval = 10 * int64(len(plain(0, 0)))
	for i := range int64(1000) {
		b := plain(i, 0)
		l.append(b)
		h, raw, _ := batch.Next(b)
		require.NoError(t, s.Observe(&h, raw))
	}
	require.Len(t, s.marks, keptMarks)
	cut := func(end int64) int {
		before := l.reads
		l.truncateTo(end)
		require.NoError(t, s.Cut(ctx, l, end))
		require.NoError(t, check(s, l))
		return l.reads - before
	}
	require.LessOrEqual(t, cut(985), 1)
	require.LessOrEqual(t, cut(971), 1)
	require.Greater(t, cut(900), 1, "below the marks it begins at the log's start")
}

func TestSmallBatchesAreWalkedManyToARead(t *testing.T) {
	l := logOf()
	for i := range int64(1000) {
		l.append(marker(i, 1, batch.ControlCommit))
	}
	summaryOf(t, l)
	require.Less(t, l.reads, 1000/(readSize/78)+10)
}

func TestLargeBatchesAreNotRead(t *testing.T) {
	large := batch.Append(nil, batch.Header{ProducerID: -1}, []batch.Record{{Value: make([]byte, 8<<20)}})
	l := logOf(large)
	s := summaryOf(t, l)
	require.Equal(t, 1, l.reads)
	require.NoError(t, check(s, l))
}

// Deleting a prefix may overlap a walk: what is gone is not missed.
func TestRetentionDuringAWalk(t *testing.T) {
	l := logOf()
	for i := range int64(300) {
		l.append(plain(i, int32(i/10)))
	}
	l.onRead = func() error {
		if l.reads == 2 {
			l.advanceStart(250)
		}
		return nil
	}
	s := summaryOf(t, l)
	require.NoError(t, check(s, l))
}

func TestAFailedWalkGoesOnWhereItWas(t *testing.T) {
	l := logOf()
	for i := range int64(500) {
		l.append(transactional(i, i%3))
	}
	broken := errors.New("a failing disk")
	s := New(0)
	for i := 1; ; i++ {
		l.reads = 0
		l.onRead = func() error {
			if l.reads > 1 {
				return broken
			}
			return nil
		}
		err := s.CatchUp(ctx, l)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, broken)
		require.Less(t, i, 100)
	}
	require.NoError(t, check(s, l))
}

// A host that answers nonsense gets an error, never an endless walk.
func TestAWalkOverNonsenseEnds(t *testing.T) {
	again := plain(5, 0)
	long := plain(10, 0)
	binary.BigEndian.PutUint32(long[8:], math.MaxInt32)
	for name, r := range map[string]lyingLog{
		"zeros":                    {end: 20, answer: make([]byte, 100)},
		"a piece of a header":      {end: 20, answer: again[:60]},
		"the same batch for ever":  {start: 5, end: 20, answer: again},
		"a batch of another place": {start: 10, end: 20, answer: again},
		"a claim of 2 GiB":         {start: 10, end: 20, answer: long},
		"half a marker":            {end: 20, answer: marker(0, 1, batch.ControlAbort)[:65]},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(r.start)
			require.Error(t, s.CatchUp(ctx, r))
			require.LessOrEqual(t, s.End(), r.end)
		})
	}
}

type lyingLog struct {
	start, end int64
	answer     []byte
}

func (l lyingLog) Bounds() (start, end int64) { return l.start, l.end }
func (l lyingLog) Read(_ context.Context, _ int64, buf []byte) (int, error) {
	return copy(buf, l.answer), nil
}

func TestCheckpointsAreDueByBytes(t *testing.T) {
	l := logOf(plain(0, 0), plain(1, 0), plain(2, 0))
	s := New(0)
	s.Interval = int64(3 * len(plain(0, 0)))
	require.False(t, s.Due())
	require.NoError(t, s.CatchUp(ctx, l))
	require.True(t, s.Due())
	s.Checkpoint()
	require.False(t, s.Due())

	l.truncateTo(2)
	require.NoError(t, s.Cut(ctx, l, 2))
	require.True(t, s.Due(), "the cut withdrew it")
	s.Checkpoint()
	s.AdvanceStart(1)
	require.False(t, s.Due())
	s.AdvanceStart(2)
	require.True(t, s.Due(), "the last epoch of an emptied log stands nowhere else")
}

func TestTheLastEpochOfAnEmptiedLogIsRestored(t *testing.T) {
	l := logOf(plain(0, 3), plain(1, 7))
	s := summaryOf(t, l)
	l.advanceStart(2)
	s.AdvanceStart(2)
	pieces := s.Checkpoint()
	require.EqualValues(t, -1, summaryOf(t, l).Epochs().Latest(), "no byte tells")

	s, err := Restore(ctx, l, pieces)
	require.NoError(t, err)
	require.EqualValues(t, 7, s.Epochs().Latest())

	l.append(plain(2, 9)) // and not yet in a newer checkpoint
	s, err = Restore(ctx, l, pieces)
	require.NoError(t, err)
	require.NoError(t, s.CatchUp(ctx, l))
	require.NoError(t, check(s, l))
	found, end := s.Epochs().EndOf(7, s.End())
	require.Equal(t, []any{int32(7), int64(2)}, []any{found, end})
}

func TestRetentionAfterTheCheckpointIsFollowed(t *testing.T) {
	l := logOf(plain(0, 3), plain(1, 7), plain(2, 7))
	pieces := summaryOf(t, l).Checkpoint()
	l.advanceStart(3)
	s, err := Restore(ctx, l, pieces)
	require.NoError(t, err)
	require.EqualValues(t, 7, s.Epochs().Latest())
	require.NoError(t, check(s, l))
}

func TestCheckpointsThatDoNotFitAreStale(t *testing.T) {
	at := func() *fakeLog { return logOf(plain(0, 3), plain(1, 7), plain(2, 7)) }
	pieces := summaryOf(t, at()).Checkpoint()
	head := pieces[0].Data
	reseal := func(change func(b []byte)) []Piece {
		b := append([]byte(nil), head...)
		change(b)
		binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
		return []Piece{{Data: b}}
	}
	shorter, other, later, emptied := at(), at(), at(), at()
	shorter.truncateTo(2)
	other.truncateTo(2)
	other.append(batch.Append(nil, batch.Header{Base: 2, LeaderEpoch: 7, ProducerID: -1}, []batch.Record{{Value: []byte("another")}}))
	later.append(plain(3, 7))
	later.advanceStart(4)
	emptied.append(plain(3, 7))
	emptied.advanceStart(3)
	for name, c := range map[string]struct {
		log    *fakeLog
		pieces []Piece
	}{
		"nothing":                 {at(), nil},
		"a log that is shorter":   {shorter, pieces},
		"another last batch":      {other, pieces},
		"a log that starts later": {later, pieces},
		"nothing left to compare": {emptied, pieces},
		"a version of tomorrow":   {at(), reseal(func(b []byte) { b[0] = 2 })},
		"an end below the start":  {at(), reseal(func(b []byte) { b[1] = 1 })},
		"a table of nonsense":     {at(), reseal(func(b []byte) { b[headFixed] = 0xff })},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Restore(ctx, c.log, c.pieces)
			require.ErrorIs(t, err, ErrStale)
		})
	}
	for i := range head {
		b := append([]byte(nil), head...)
		b[i] ^= 0x10
		_, err := Restore(ctx, at(), []Piece{{Data: b}})
		require.ErrorIs(t, err, ErrStale, "byte %d", i)
		_, err = Restore(ctx, at(), []Piece{{Data: head[:i]}})
		require.ErrorIs(t, err, ErrStale, "cut at %d", i)
	}
}

func TestAFailingLogIsNoStaleCheckpoint(t *testing.T) {
	l := logOf(plain(0, 3))
	pieces := summaryOf(t, l).Checkpoint()
	broken := errors.New("a failing disk")
	l.onRead = func() error { return broken }
	_, err := Restore(ctx, l, pieces)
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, ErrStale)
}

// What was sealed once is the same piece in every later checkpoint, and none that differs bears its name after a cut.
func TestSealedPiecesAreWrittenOnce(t *testing.T) {
	l, s := logOf(), New(0)
	s.Interval = 300_000
	add := func(pid int64, n int) {
		for range n {
			for _, b := range [][]byte{transactional(l.end, pid), marker(l.end+1, pid, batch.ControlAbort)} {
				l.append(b)
				h, raw, _ := batch.Next(b)
				require.NoError(t, s.Observe(&h, raw))
			}
		}
	}
	stored := map[int64]string{}
	store := func() (fresh int) {
		pieces := s.Checkpoint()
		for _, p := range pieces[1:] {
			old, ok := stored[p.ID]
			if !ok {
				fresh++
				old = string(p.Data)
			}
			require.Equal(t, old, string(p.Data))
			stored[p.ID] = old
		}
		restored, err := Restore(ctx, l, pieces)
		require.NoError(t, err)
		require.Equal(t, s.Txn().Aborted(0, l.end), restored.Txn().Aborted(0, l.end))
		require.Less(t, len(pieces[0].Data), 4096*24+1000)
		return fresh
	}
	add(1, 9000)
	require.Equal(t, 2, store())
	require.Equal(t, 0, store())
	end := int64(8000 * 2)
	l.truncateTo(end)
	require.NoError(t, s.Cut(ctx, l, end))
	require.Len(t, s.Txn().Aborted(0, end), 8000)
	add(2, 1000)
	require.Equal(t, 1, store(), "the chunk that was cut into is another one now")
}

func TestAnIdlePartitionCostsLittle(t *testing.T) {
	l := logOf(plain(0, 3), transactional(1, 1), marker(2, 1, batch.ControlCommit), plain(3, 5), plain(4, 9))
	pieces := summaryOf(t, l).Checkpoint()
	const n = 10_000
	all := make([]*Summary, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range all {
		all[i], _ = Restore(ctx, l, pieces)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%d bytes each", each)
	require.Less(t, each, int64(640))
	runtime.KeepAlive(all)
}

func TestObservingDataAllocatesNothing(t *testing.T) {
	s, b := New(0), plain(0, 0)
	h, raw, _ := batch.Next(b)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		h.Base = s.End()
		_ = s.Observe(&h, raw)
	}))
}

// FuzzRestore: no bytes of a head make Restore panic, even with a right CRC. What it accepts covers a part of the log, and catches up to
// its end.
func FuzzRestore(f *testing.F) {
	l := logOf(plain(0, 3), transactional(1, 1), plain(2, 7), transactional(3, 2), marker(4, 2, batch.ControlAbort), plain(5, 7))
	for _, end := range []int64{0, 2, 4, 6} {
		part := *l
		part.truncateTo(end)
		f.Add(summaryOf(f, &part).Checkpoint()[0].Data)
		part.advanceStart(end)
		f.Add(summaryOf(f, &part).Checkpoint()[0].Data)
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		if len(head) >= 4 {
			binary.BigEndian.PutUint32(head[len(head)-4:], crc32.Checksum(head[:len(head)-4], castagnoli))
		}
		s, err := Restore(ctx, l, []Piece{{Data: head}})
		if err != nil {
			require.ErrorIs(t, err, ErrStale)
			return
		}
		require.GreaterOrEqual(t, s.End(), s.Start())
		require.LessOrEqual(t, s.End(), l.end)
		require.NoError(t, s.CatchUp(ctx, l))
		require.Equal(t, l.end, s.End())
		require.NoError(t, s.Cut(ctx, l, 0))
		s.Checkpoint()
	})
}
