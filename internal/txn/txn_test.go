package txn

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/batch"
)

// log writes batches at the end of a log and lets a Table observe them.
type log struct {
	Table
	end int64
}

func (l *log) data(pid int64) *log {
	h := batch.Header{Base: l.end, Attributes: batch.Transactional, ProducerID: pid, Records: 1, MaxTimestamp: 1000 + l.end}
	l.Observe(&h, nil)
	l.end = h.Next()
	return l
}

func (l *log) control(typ int16, pid int64) *log {
	h, err := batch.Parse(batch.AppendControl(nil, l.end, 0, pid, 0, batch.Control{Type: typ}, 0))
	if err != nil {
		panic(err)
	}
	l.Observe(&h, &batch.Control{Type: typ})
	l.end = h.Next()
	return l
}

func (l *log) commit(pid int64) *log { return l.control(batch.ControlCommit, pid) }
func (l *log) abort(pid int64) *log  { return l.control(batch.ControlAbort, pid) }

func TestTransactionsInterleave(t *testing.T) {
	l := new(log).data(1).data(2).data(1).data(3).abort(2).commit(1).data(2)
	require.Equal(t, []Open{{3, 3, 4, 1003}, {2, 6, 7, 1006}}, l.Open())
	require.EqualValues(t, 3, l.LastStable(l.end))
	require.Equal(t, []Aborted{{2, 1, 4}}, l.Aborted(0, l.end))
	l.abort(2).abort(3)
	require.Empty(t, l.Open())
	require.Equal(t, l.end, l.LastStable(l.end))
	require.Equal(t, []Aborted{{2, 1, 4}, {3, 3, 8}, {2, 6, 7}}, l.Aborted(0, l.end), "by first offset, though the markers came in another order")
}

func TestAbortedAreThoseThatOverlapTheRange(t *testing.T) {
	l := new(log).data(1).data(2).abort(1).data(3).abort(2).abort(3) // 1: [0, 2], 2: [1, 4], 3: [3, 5]
	for _, c := range []struct {
		from, to int64
		want     []Aborted
	}{
		{0, 0, nil},
		{0, 1, []Aborted{{1, 0, 2}}},
		{2, 3, []Aborted{{1, 0, 2}, {2, 1, 4}}},
		{3, 4, []Aborted{{2, 1, 4}, {3, 3, 5}}},
		{5, 6, []Aborted{{3, 3, 5}}},
		{6, 9, nil},
	} {
		require.Equal(t, c.want, l.Aborted(c.from, c.to), "[%d, %d)", c.from, c.to)
	}
}

func TestAMarkerWithNothingOpenIsLegal(t *testing.T) {
	l := new(log).abort(1).commit(2)
	require.Empty(t, l.Aborted(0, 9))
	require.Empty(t, l.Open())
	require.EqualValues(t, 2, l.GreatestProducerID())
}

func TestAResetBatchEndsNoTransaction(t *testing.T) {
	l := new(log).data(1).control(batch.ControlMirrorPIDReset, -1).control(999, -1)
	require.EqualValues(t, 0, l.LastStable(l.end))
}

func TestOnlyTransactionalRecordsOpen(t *testing.T) {
	for name, h := range map[string]batch.Header{
		"idempotent":               {ProducerID: 1, Records: 1},
		"without records":          {ProducerID: 1, Attributes: batch.Transactional},
		"without producer":         {ProducerID: -1, Records: 1, Attributes: batch.Transactional},
		"control without a record": {ProducerID: 1, Attributes: 0x30},
	} {
		var table Table
		table.Observe(&h, nil)
		require.Empty(t, table.Open(), name)
		require.Equal(t, h.ProducerID, table.GreatestProducerID(), name)
	}
}

func TestTheGreatestProducerIDNeverFalls(t *testing.T) {
	var l log
	require.EqualValues(t, -1, l.GreatestProducerID())
	mark := l.Mark()
	l.data(math.MaxInt64).commit(math.MaxInt64).data(5)
	require.Equal(t, int64(math.MaxInt64), l.GreatestProducerID())
	l.Rewind(mark)
	require.Equal(t, int64(math.MaxInt64), l.GreatestProducerID())
	l.Reset(0)
	require.Equal(t, int64(math.MaxInt64), l.GreatestProducerID())
}

func TestATransactionIsOpenAsLongAsDataOfItIsLeft(t *testing.T) {
	l := new(log).data(1).data(2).data(1)
	l.AdvanceStart(2)
	require.Equal(t, []Open{{1, 2, 3, 1000}}, l.Open())
	l.AdvanceStart(3)
	require.Empty(t, l.Open())
	require.EqualValues(t, 3, l.LastStable(3))
	require.Empty(t, l.abort(1).Aborted(0, 9))
}

// A log with many hanging transactions must not make each step as slow as there are many of them.
func TestManyOpenTransactions(t *testing.T) {
	var l log
	const n = 300_000
	for pid := range int64(n) {
		l.data(pid)
	}
	for pid := range int64(n / 2) {
		l.commit(pid)
		if got := l.LastStable(l.end); got != pid+1 {
			t.Fatalf("last stable offset %d, not %d", got, pid+1)
		}
	}
	for pid := int64(n - 1); pid > n/2; pid-- {
		l.abort(pid)
	}
	require.EqualValues(t, n/2, l.LastStable(l.end))
	require.Len(t, l.Open(), 1)
	require.LessOrEqual(t, len(l.open.items), 2)
	l.commit(n / 2)
	require.Nil(t, l.open.index, "nothing is kept of an empty queue")
}

// naive keeps every transaction there ever was and searches them all.
type naive struct {
	start   int64
	open    map[int64]Open
	aborted []Aborted
}

func (n *naive) clone() naive {
	return naive{n.start, maps.Clone(n.open), slices.Clone(n.aborted)}
}

func (n *naive) check(t *Table, end, from, to int64) error {
	open := slices.SortedFunc(maps.Values(n.open), func(a, b Open) int { return int(a.Timestamp - b.Timestamp) })
	if got := t.Open(); !slices.Equal(got, open) {
		return fmt.Errorf("open %v, not %v", got, open)
	}
	stable := end
	if len(open) > 0 {
		stable = open[0].FirstOffset
	}
	if got := t.LastStable(end); got != stable {
		return fmt.Errorf("last stable offset %d, not %d", got, stable)
	}
	var aborted []Aborted
	for _, a := range n.aborted {
		if a.FirstOffset < to && a.LastOffset >= max(from, n.start) {
			a.FirstOffset = max(a.FirstOffset, n.start)
			aborted = append(aborted, a)
		}
	}
	slices.SortStableFunc(aborted, func(a, b Aborted) int { return int(a.FirstOffset - b.FirstOffset) })
	if got := t.Aborted(from, to); !slices.Equal(got, aborted) {
		return fmt.Errorf("aborted in [%d, %d): %d, not %d", from, to, len(got), len(aborted))
	}
	return nil
}

// Over several chunks of aborted transactions, marks, rewinds, starts and restored checkpoints change no answer, and no id ever stands
// for two chunks.
func TestLongAbortedListsAnswerAsANaiveOne(t *testing.T) {
	seed := rand.Uint64()
	for i := range uint64(4) {
		if err := longHistory(seed + i); err != nil {
			t.Fatalf("seed %d: %v", seed+i, err)
		}
	}
}

func longHistory(seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 0))
	type point struct {
		mark Mark
		end  int64
		naive
	}
	l, n, points, stored := new(log), naive{open: map[int64]Open{}}, []point{}, map[int64][]byte{}
	for range 60 {
		switch rng.IntN(9) {
		case 0, 1:
			points = append(points, point{l.Mark(), l.end, n.clone()})
		case 2:
			if len(points) == 0 {
				continue
			}
			i := rng.IntN(len(points))
			p := points[i]
			points = points[:i+1]
			l.end = p.end
			l.Rewind(p.mark)
			start := n.start
			n = p.clone()
			n.advance(start)
		case 3:
			start := n.start + rng.Int64N(min(l.end-n.start, 12000)+1)
			l.AdvanceStart(start)
			n.advance(start)
			points = slices.DeleteFunc(points, func(p point) bool { return p.end <= start })
		case 4: // a restored table has no marks
			head := l.AppendBinary(nil)
			for _, c := range l.Chunks() {
				if old, ok := stored[c.ID]; ok && !slices.Equal(old, c.Data) {
					return fmt.Errorf("id %d of two chunks", c.ID)
				}
				stored[c.ID] = slices.Clone(c.Data)
			}
			table, rest, err := Decode(append(head, 9), n.start, func(id int64) []byte { return stored[id] })
			if err != nil || len(rest) != 1 {
				return fmt.Errorf("decoded with %d bytes left: %w", len(rest), err)
			}
			if rng.IntN(3) > 0 {
				l.Table, points = table, nil
			}
		default:
			for range rng.IntN(3000) {
				pid := rng.Int64N(40)
				if o, ok := n.open[pid]; !ok || rng.IntN(8) == 0 {
					if !ok {
						o = Open{ProducerID: pid, FirstOffset: l.end, Timestamp: 1000 + l.end}
					}
					o.Next = l.end + 1
					n.open[pid] = o
					l.data(pid)
				} else if delete(n.open, pid); rng.IntN(10) == 0 {
					l.commit(pid)
				} else {
					n.aborted = append(n.aborted, Aborted{pid, o.FirstOffset, l.end})
					l.abort(pid)
				}
			}
		}
		from := n.start + rng.Int64N(l.end-n.start+1)
		for _, to := range []int64{from + 1, from + rng.Int64N(20000), l.end} {
			if err := n.check(&l.Table, l.end, from, to); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *naive) advance(start int64) {
	n.start = max(n.start, start)
	for pid, o := range n.open {
		o.FirstOffset = max(o.FirstOffset, n.start)
		if n.open[pid] = o; o.Next <= n.start {
			delete(n.open, pid)
		}
	}
}

func TestRetentionFreesTheAbortedList(t *testing.T) {
	var l log
	for range 3*chunkEntries + 10 {
		l.data(1).abort(1)
	}
	require.Len(t, l.Chunks(), 3)
	l.AdvanceStart(2*chunkEntries*2 + 1)
	require.Len(t, l.Chunks(), 1)
	l.AdvanceStart(l.end - 4)
	require.Empty(t, l.Chunks())
	require.Len(t, l.tail, 2)
}

// The first entry of a chunk is the first by its marker, not by its beginning.
func TestALongTransactionIsFoundInALaterChunk(t *testing.T) {
	l := new(log).data(1)
	for range chunkEntries + 10 {
		l.data(2).abort(2)
	}
	l.abort(1)
	last := l.end - 1
	for range chunkEntries {
		l.data(2).abort(2)
	}
	require.Len(t, l.Chunks(), 2)
	require.Equal(t, []Aborted{{1, 0, last}, {2, 9, 10}}, l.Aborted(9, 10))
}

func TestADamagedChunkIsRefused(t *testing.T) {
	var l log
	for range chunkEntries {
		l.data(1).abort(1)
	}
	head, chunk := l.AppendBinary(nil), slices.Clone(l.Chunks()[0].Data)
	decode := func(data []byte) error {
		_, _, err := Decode(head, 0, func(int64) []byte { return data })
		return err
	}
	require.NoError(t, decode(chunk))
	require.ErrorIs(t, decode(nil), ErrCorrupt)
	require.ErrorIs(t, decode(chunk[:len(chunk)-1]), ErrCorrupt)
	chunk[100] ^= 1
	require.ErrorIs(t, decode(chunk), ErrCorrupt)
}

// FuzzDecode: no bytes make Decode panic or claim memory that they do not fill. What it accepts is a table that answers, goes on, and
// gives back the bytes that were taken.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, int64(0))
	f.Add(new(Table).AppendBinary(nil), int64(0))
	f.Add(new(log).data(1).data(2).data(3).abort(2).AppendBinary(nil), int64(0))
	late := new(log).data(1).data(2).abort(1)
	late.AdvanceStart(1)
	f.Add(late.AppendBinary(nil), int64(1))
	f.Fuzz(func(t *testing.T, b []byte, start int64) {
		table, rest, err := Decode(b, start, func(int64) []byte { return nil })
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.Equal(t, b[:len(b)-len(rest)], table.AppendBinary(nil))
		open := table.Open()
		require.True(t, slices.IsSortedFunc(open, func(a, b Open) int { return int(a.FirstOffset - b.FirstOffset) }))
		if len(open) > 0 {
			require.Equal(t, open[0].FirstOffset, table.LastStable(math.MaxInt64))
		}
		mark := table.Mark()
		for _, o := range open {
			table.Observe(&batch.Header{Base: math.MaxInt64 - 1, Attributes: 0x30, ProducerID: o.ProducerID, Records: 1}, &batch.Control{Type: batch.ControlAbort})
		}
		require.Empty(t, table.Open())
		table.Rewind(mark)
		require.Equal(t, open, table.Open())
		table.AdvanceStart(math.MaxInt64)
		require.Empty(t, table.Aborted(0, math.MaxInt64))
	})
}
