package epochs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func table(start int64, entries ...Entry) *Table {
	t := &Table{start: start}
	for _, e := range entries {
		t.Assign(e.Epoch, e.Start)
	}
	return t
}

// The questions and answers of KIP-101 and KIP-279, as Kafka's leader gives them.
func TestEndOf(t *testing.T) {
	log := table(0, Entry{2, 0}, Entry{3, 10}, Entry{7, 25})
	for _, c := range []struct {
		asked, found int32
		end          int64
	}{
		{-1, -1, -1}, // unknown to who asks
		{0, 0, 0},    // below the first: nothing of it is here
		{2, 2, 10},
		{3, 3, 25},
		{5, 3, 25}, // never here: the next lower one, and where that ended
		{7, 7, 40}, // the latest goes on to the end
		{8, -1, -1},
	} {
		found, end := log.EndOf(c.asked, 40)
		require.Equal(t, []any{c.found, c.end}, []any{found, end}, "epoch %d", c.asked)
	}
	found, end := new(Table).EndOf(0, 0)
	require.Equal(t, []any{int32(-1), int64(-1)}, []any{found, end}, "an empty table knows nothing")
}

func TestAGapBelongsToTheNewerEpoch(t *testing.T) {
	log := table(0, Entry{2, 0}, Entry{3, 10}) // batches [0, 10) and, after a gap, [20, 30)
	require.EqualValues(t, 2, log.At(9))
	require.EqualValues(t, 3, log.At(10))
	require.EqualValues(t, 3, log.At(29))
	_, end := log.EndOf(2, 30)
	require.EqualValues(t, 10, end)
}

func TestEpochsNeverFall(t *testing.T) {
	log := table(0, Entry{5, 0})
	log.Assign(5, 10)
	log.Assign(3, 20)
	log.Assign(-1, 30)
	require.Equal(t, []Entry{{5, 0}}, log.Entries())
	require.EqualValues(t, -1, new(Table).At(0))
}

func TestCutForgetsTheEpochsAbove(t *testing.T) {
	log := table(0, Entry{2, 0}, Entry{3, 10}, Entry{7, 25})
	log.Cut(25)
	require.EqualValues(t, 3, log.Latest())
	log.Cut(11)
	require.EqualValues(t, 3, log.Latest())
	log.Cut(0)
	require.EqualValues(t, -1, log.Latest())
}

func TestAnEmptiedLogKeepsItsLastEpoch(t *testing.T) {
	log := table(0, Entry{2, 0}, Entry{3, 10})
	log.AdvanceStart(30)
	require.EqualValues(t, 3, log.Latest())
	require.Equal(t, []Entry{{3, 30}}, log.Entries())
	log.Cut(30)
	require.EqualValues(t, 3, log.Latest(), "a cut to the start takes nothing that retention took")

	log.Assign(4, 30)
	require.Equal(t, []Entry{{4, 30}}, log.Entries())
	found, end := log.EndOf(3, 50)
	require.Equal(t, []any{int32(3), int64(30)}, []any{found, end})
	require.EqualValues(t, 3, log.At(29), "the epoch of the batch before the start")

	log.Cut(30)
	require.EqualValues(t, 3, log.Latest())
	log.Reset(0)
	require.EqualValues(t, -1, log.Latest())
}

func TestAnEpochThatBeginsAtTheStartGoesWithItsBatches(t *testing.T) {
	log := table(0, Entry{2, 0}, Entry{3, 10})
	log.AdvanceStart(10)
	require.Equal(t, []Entry{{3, 10}}, log.Entries())
	log.Cut(10)
	require.EqualValues(t, 2, log.Latest())
}

func TestACopyStaysWhatItWas(t *testing.T) {
	log := table(0, Entry{2, 0}, Entry{3, 10}, Entry{7, 25})
	before := *log
	log.Cut(5)
	log.Assign(9, 5)
	log.Assign(10, 6)
	log.AdvanceStart(6)
	require.Equal(t, []Entry{{2, 0}, {3, 10}, {7, 25}}, before.Entries())
}

// naive keeps every batch that was ever before the end, those below the log's start too, and searches them.
type naive struct {
	start, end int64
	batches    []span
}

type span struct {
	epoch    int32
	from, to int64 // from: where the batch before ended
}

func (n *naive) endOf(epoch int32) (int32, int64) {
	latest := n.at(n.end)
	if epoch < 0 || epoch > latest {
		return -1, -1
	}
	found, end, above := epoch, n.end, false
	for _, b := range n.batches {
		if b.epoch > epoch && !above {
			end, above = max(b.from, n.start), true
		}
	}
	for _, b := range n.batches {
		if b.epoch >= 0 && b.epoch <= epoch {
			found = b.epoch
		}
	}
	if n.known(found) {
		return found, end
	}
	return epoch, end
}

// known says that the epoch is one that the log holds, or that was in force just below its start.
func (n *naive) known(epoch int32) bool {
	for _, b := range n.batches {
		if b.epoch == epoch && b.to > n.start {
			return true
		}
	}
	return epoch >= 0 && n.at(n.start-1) == epoch
}

func (n *naive) at(offset int64) int32 {
	epoch := int32(-1)
	for _, b := range n.batches {
		if b.from <= offset {
			epoch = b.epoch
		}
	}
	return epoch
}

func TestTableAnswersAsAWalkOverAllBatches(t *testing.T) {
	seed := rand.Uint64()
	for i := range uint64(2000) {
		history(t, seed+i)
	}
}

func history(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	n, log := naive{}, Table{}
	var trace []string
	for range 40 {
		switch rng.IntN(8) {
		case 0: // cut at a batch
			end := n.start
			if keep := rng.IntN(len(n.batches) + 1); keep > 0 {
				end = max(end, n.batches[keep-1].to)
			}
			n.end = end
			n.batches = slices.DeleteFunc(n.batches, func(b span) bool { return b.to > end && b.from >= n.start })
			if last := len(n.batches) - 1; last >= 0 && n.batches[last].to > end {
				n.batches[last].to = n.start // what the start has passed of it was there all the same
			}
			log.Cut(end)
			trace = append(trace, fmt.Sprint("cut ", end))
		case 1: // anywhere, inside batches and gaps too
			n.start += rng.Int64N(n.end - n.start + 1)
			log.AdvanceStart(n.start)
			trace = append(trace, fmt.Sprint("start ", n.start))
		case 2:
			if rng.IntN(4) == 0 {
				n = naive{start: rng.Int64N(100)}
				n.end = n.start
				log.Reset(n.start)
				trace = append(trace, fmt.Sprint("reset ", n.start))
			}
		default:
			b := span{epoch: n.at(n.end), from: n.end, to: n.end + 1 + rng.Int64N(10) + rng.Int64N(2)*rng.Int64N(5)}
			if len(n.batches) > 0 {
				b.from = max(n.start, n.batches[len(n.batches)-1].to)
			}
			b.epoch += int32(max(0, rng.IntN(5)-2))
			n.batches, n.end = append(n.batches, b), b.to
			log.Assign(b.epoch, b.from)
			trace = append(trace, fmt.Sprint("batch ", b))
		}

		fail := func(format string, args ...any) {
			t.Fatalf("seed %d: %v: %+v: %s", seed, trace, log, fmt.Sprintf(format, args...))
		}
		decoded, rest, err := Decode(append(log.AppendBinary(nil), 1, 2), n.start)
		if err != nil || len(rest) != 2 {
			fail("decoded: %v, %d bytes left", err, len(rest))
		}
		for _, log := range []*Table{&log, &decoded} {
			if got, want := log.Latest(), n.at(n.end); got != want {
				fail("latest %d, not %d", got, want)
			}
			for epoch := int32(-2); epoch <= n.at(n.end)+2; epoch++ {
				found, end := n.endOf(epoch)
				if gotFound, gotEnd := log.EndOf(epoch, n.end); gotFound != found || gotEnd != end {
					fail("end of %d: (%d, %d), not (%d, %d)", epoch, gotFound, gotEnd, found, end)
				}
			}
			for offset := n.start - 1; offset <= n.end; offset++ {
				if got, want := log.At(offset), n.at(offset); got != want {
					fail("at %d: %d, not %d", offset, got, want)
				}
			}
			for i, e := range log.Entries() {
				if e.Start < n.start || i > 0 && e.Start <= log.Entries()[i-1].Start {
					fail("entries %v", log.Entries())
				}
			}
		}
	}
}

// FuzzDecode: no bytes make Decode panic or claim memory that they do not fill. What it accepts is valid: every method answers, and
// encoding it gives the bytes that were taken.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, int64(0))
	f.Add(table(0).AppendBinary(nil), int64(0))
	f.Add(table(10, Entry{2, 0}, Entry{3, 10}, Entry{7, 25}).AppendBinary(nil), int64(10))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1}, int64(5))
	f.Fuzz(func(t *testing.T, b []byte, start int64) {
		log, rest, err := Decode(b, start)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.Equal(t, b[:len(b)-len(rest)], log.AppendBinary(nil))
		for _, e := range log.Entries() {
			require.Equal(t, e.Epoch, log.At(e.Start))
			if found, _ := log.EndOf(e.Epoch, 1<<62); found != e.Epoch {
				t.Fatalf("end of %d is of %d", e.Epoch, found)
			}
		}
		log.AdvanceStart(start + 1)
		log.Cut(start + 2)
		log.Assign(log.Latest(), start+2)
		require.NoError(t, log.valid())
	})
}
