package mirror

import (
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/epochs"
)

func TestWhereTwoLogsPart(t *testing.T) {
	ours := lineage{start: 0, end: 100, epochs: []epochs.Entry{{Epoch: 1, Start: 0}, {Epoch: 3, Start: 40}, {Epoch: 7, Start: 80}}}
	for _, c := range []struct {
		name string
		ask  probe
		a    answer
		want verdict
	}{
		{"same epoch, source longer", probe{7, 100}, answer{7, 120}, verdict{kind: agree}},
		{"same epoch, source ends with us", probe{7, 100}, answer{7, 100}, verdict{kind: agree}},
		{"same epoch, source shorter", probe{7, 100}, answer{7, 90}, verdict{kind: cutTo, to: 90}},
		{"source has a lower epoch that ends below ours", probe{7, 100}, answer{3, 60}, verdict{kind: cutTo, to: 60}},
		{"source has a lower epoch that ends beyond ours", probe{7, 100}, answer{3, 95}, verdict{kind: cutTo, to: 80}},
		{"source has an epoch between ours", probe{7, 100}, answer{5, 85}, verdict{kind: cutTo, to: 80}},
		{"source knows nothing so high", probe{7, 100}, answer{-1, -1}, verdict{kind: askNext, next: probe{3, 80}}},
		{"the next lower epoch agrees", probe{3, 80}, answer{3, 80}, verdict{kind: cutTo, to: 80}},
		{"the next lower epoch goes on at the source", probe{3, 80}, answer{3, 99}, verdict{kind: cutTo, to: 80}},
		{"the next lower epoch is shorter at the source", probe{3, 80}, answer{3, 50}, verdict{kind: cutTo, to: 50}},
		{"no epoch left to ask", probe{1, 40}, answer{-1, -1}, verdict{kind: unknown}},
		{"source only has epochs below our first", probe{7, 100}, answer{0, 10}, verdict{kind: unknown}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ours.compare(c.ask, c.a)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestLyingAnswersAreRefused(t *testing.T) {
	ours := lineage{start: 0, end: 10, epochs: []epochs.Entry{{Epoch: 1, Start: 0}}}
	for _, a := range []answer{{2, 5}, {1, -1}, {0, -3}} {
		_, err := ours.compare(probe{1, 10}, a)
		require.Error(t, err, "%v", a)
	}
}

func TestLogsWithoutCommonEpoch(t *testing.T) {
	none := lineage{start: 5, end: 100}
	to, reset := none.strange(0, 60)
	require.Equal(t, int64(60), to)
	require.False(t, reset)
	some := lineage{start: 5, end: 100, epochs: []epochs.Entry{{Epoch: 9, Start: 5}}}
	to, reset = some.strange(20, 60)
	require.Equal(t, int64(20), to)
	require.True(t, reset)
}

// A log as a list of records' epochs and unique ids. Two logs that share a beginning and then go on under different epochs, the
// source through several elections: the questions and cuts must end with exactly a prefix of the source, and never cut what
// both have, apart from what the source's own elections took.
func TestAlignmentEndsWithAPrefix(t *testing.T) {
	type rec struct {
		epoch int32
		id    int
	}
	tableOf := func(log []rec, start int64) lineage {
		l := lineage{start: start, end: start + int64(len(log))}
		for i, r := range log {
			if n := len(l.epochs); n == 0 || r.epoch > l.epochs[n-1].Epoch {
				l.epochs = append(l.epochs, epochs.Entry{Epoch: r.epoch, Start: start + int64(i)})
			}
		}
		return l
	}
	for seed := range int64(20000) {
		rng := rand.New(rand.NewSource(seed))
		id, epoch := 0, int32(0)
		grow := func(log []rec) []rec {
			for range rng.Intn(5) {
				id++
				log = append(log, rec{epoch, id})
			}
			return log
		}
		var source, ours []rec
		for range 1 + rng.Intn(6) {
			source = grow(source)
			epoch += int32(1 + rng.Intn(2))
		}
		ours = append(ours, source...)
		common := len(ours)
		for range rng.Intn(4) { // unclean elections: a tail is lost, others are written under a higher epoch
			cut := rng.Intn(len(source) + 1)
			source = append([]rec(nil), source[:cut]...)
			common = min(common, cut)
			if rng.Intn(2) == 0 {
				ours = append([]rec(nil), ours[:min(len(ours), common)]...)
				ours = append(ours, source[len(ours):]...)
				common = len(ours)
			}
			epoch += int32(1 + rng.Intn(2))
			source = grow(source)
		}
		theirs := tableOf(source, 0)
		for steps := 0; ; steps++ {
			require.Less(t, steps, 50, "seed %d: no end", seed)
			l := tableOf(ours, 0)
			ask := l.last()
			if ask.epoch < 0 {
				break
			}
			var v verdict
			for {
				a := answer{-1, -1}
				if len(theirs.epochs) > 0 && ask.epoch <= theirs.epochs[len(theirs.epochs)-1].Epoch {
					a = answer(theirs.below(ask.epoch + 1))
				}
				var err error
				v, err = l.compare(ask, a)
				require.NoError(t, err)
				if v.kind != askNext {
					break
				}
				ask = v.next
			}
			if v.kind == agree {
				break
			}
			if v.kind == unknown {
				v.to, _ = l.strange(0, int64(len(source)))
			}
			ours = ours[:v.to]
		}
		require.LessOrEqual(t, len(ours), len(source), "seed %d", seed)
		for i := range ours {
			require.Equal(t, source[i], ours[i], "seed %d, offset %d", seed, i)
		}
	}
}
