package mirror

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/batch"
)

func someBatch(base int64, records int, epoch int32) []byte {
	h := batch.Header{Base: base, LeaderEpoch: epoch, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}
	var list []batch.Record
	for i := range records {
		list = append(list, batch.Record{OffsetDelta: int32(i), Value: []byte("some value")})
	}
	return batch.Append(nil, h, list)
}

func TestAnswersAreTakenUpToTheFirstBadBatch(t *testing.T) {
	a, b, c := someBatch(10, 5, 3), someBatch(15, 5, 3), someBatch(20, 5, 4)
	gap, after, last := someBatch(30, 1, 4), someBatch(31, 1, 4), someBatch(998, 2, 4)
	damaged := func(x []byte, at int) []byte {
		x = slices.Clone(x)
		x[at] ^= 0x40
		return x
	}
	join := slices.Concat[[]byte]
	for _, x := range []struct {
		name        string
		records     []byte
		next        int64
		epoch       int32
		leaderEpoch int32
		empty       bool
		gap         int64 // seen before
		bytes       int   // taken
		to          int64 // position after it
		err         error // nil: none
	}{
		{"nothing", nil, 10, 3, 4, false, -1, 0, 10, nil},
		{"all", join(a, b, c), 10, 3, 4, false, -1, len(a) + len(b) + len(c), 25, nil},
		{"a gap between batches", join(a, gap, after), 10, 3, 4, false, -1, len(a) + len(gap) + len(after), 32, nil},
		{"a gap before the first", join(gap, after), 10, 3, 4, false, -1, len(gap) + len(after), 32, nil},
		{"a gap before the last", join(a, gap), 10, 3, 4, false, -1, len(a), 15, nil},
		{"a gap before the last, seen twice", join(gap), 15, 3, 4, false, 30, len(gap), 31, nil},
		{"a gap before the last, another one the first time", join(gap), 15, 3, 4, false, 94, 0, 15, nil},
		{"a gap up to the source's end", join(a, last), 10, 3, 4, false, -1, len(a) + len(last), 1000, nil},
		{"a flipped base offset", join(a, gap, b), 10, 3, 4, false, -1, len(a), 15, errDisorder},
		{"the last one cut short", join(a, b[:40]), 10, 3, 4, false, -1, len(a), 15, nil},
		{"the last one cut short in its first bytes", join(a, b[:5]), 10, 3, 4, false, -1, len(a), 15, nil},
		{"not even the first whole", a[:70], 10, 3, 4, false, -1, 0, 10, batch.ErrShort},
		{"a bit flipped in the records", join(a, damaged(b, 70)), 10, 3, 4, false, -1, len(a), 15, batch.ErrCorrupt},
		{"a bit flipped in the last offset delta", join(a, damaged(b, 26)), 10, 3, 4, false, -1, len(a), 15, batch.ErrCorrupt},
		{"a bit flipped in the magic", join(a, damaged(b, 16)), 10, 3, 4, false, -1, len(a), 15, batch.ErrCorrupt},
		{"a batch twice", join(a, a), 10, 3, 4, false, -1, len(a), 15, errDisorder},
		{"begins below the wanted offset", join(a, b), 12, 3, 4, false, -1, 0, 12, errDisorder},
		{"begins below the wanted offset of an empty log", join(a, b), 12, -1, 4, true, -1, len(a) + len(b), 20, nil},
		{"ends below the wanted offset of an empty log", join(a, b), 15, -1, 4, true, -1, 0, 15, errDisorder},
		{"an epoch that falls", join(c, someBatch(25, 1, 3)), 20, 3, 4, false, -1, len(c), 25, errDisorder},
		{"an epoch above the metadata", join(a, b, c), 10, 3, 3, false, -1, len(a) + len(b), 20, errStaleLeaderEpoch},
		{"no epochs in old metadata", join(a, b, c), 10, 3, -1, false, -1, len(a) + len(b) + len(c), 25, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			v, err := validate(x.records, expected{x.next, x.epoch, x.leaderEpoch, 1000, x.empty, x.gap})
			if x.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, x.err)
			}
			require.Len(t, v.bytes, x.bytes)
			require.Equal(t, x.to, v.next)
		})
	}
}

func TestABatchThatDoesNotFitSaysWhatItNeeds(t *testing.T) {
	a := someBatch(10, 500, 3)
	v, err := validate(a[:200], expected{10, 3, 3, 1000, false, -1})
	require.Error(t, err)
	require.Equal(t, int64(len(a)), v.need)
}

// Never panics, never takes what is not a run of whole, undamaged batches in order, and gives back a part of its input.
func FuzzValidate(f *testing.F) {
	a, b := someBatch(10, 5, 3), someBatch(15, 5, 4)
	f.Add(slices.Concat(a, b), int64(10), int32(3), int32(4), false)
	f.Add(a[:30], int64(12), int32(-1), int32(-1), true)
	f.Fuzz(func(t *testing.T, records []byte, next int64, epoch, leaderEpoch int32, empty bool) {
		v, _ := validate(records, expected{next, epoch, leaderEpoch, next + 10, empty, -1})
		require.LessOrEqual(t, len(v.bytes), len(records))
		at := next
		for rest := v.bytes; len(rest) > 0; {
			h, raw, err := batch.Next(rest)
			require.NoError(t, err)
			require.NoError(t, batch.Check(raw))
			if len(rest) < len(v.bytes) || !empty {
				require.GreaterOrEqual(t, h.Base, at)
			}
			at, rest = h.Next(), rest[len(raw):]
		}
		require.Equal(t, at, v.next)
	})
}
