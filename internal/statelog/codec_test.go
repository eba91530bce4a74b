package statelog

import (
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestKeysHaveTheDocumentsLayout(t *testing.T) {
	topic := [16]byte{0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	const id = "a0" + "0102030405060708090a0b0c0d0e0f"
	for _, c := range []struct {
		name string
		key  Key
		hex  string
	}{
		{"partition state", Key{Type: 1, Mirror: "dr", Topic: topic, Partition: 7}, "0001" + "00026472" + id + "00000007"},
		{"last mirrored position", Key{Type: 2, Mirror: "dr", Topic: topic, Partition: -1}, "0002" + "00026472" + id + "ffffffff"},
		{"own", Key{Type: 1000, Mirror: "dr", Topic: topic, Partition: 7, Name: "x", N: -2}, "03e8" + "00026472" + id + "00000007" + "000178" + "fffffffffffffffe"},
		{"own, of the highest type", Key{Type: math.MaxInt16}, "7fff" + "0000" + strings.Repeat("00", 16) + "00000000" + "0000" + "0000000000000000"},
		{"somebody else's", Key{Type: 3, Name: "\x00\xff"}, "0003" + "00ff"},
		{"somebody else's, negative", Key{Type: -1}, "ffff"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, c.key.check())
			require.Equal(t, c.hex, hex.EncodeToString(c.key.append(nil)))
			back, err := parseKey(c.key.append(nil))
			require.NoError(t, err)
			require.Equal(t, c.key, back)
		})
	}
}

func TestKeysThatTheirLayoutCannotCarryAreRefused(t *testing.T) {
	long := strings.Repeat("x", math.MaxInt16+1)
	for _, k := range []Key{
		{Type: 1, Name: "x"},
		{Type: 2, N: 1},
		{Type: 3, Mirror: "x"},
		{Type: 999, Partition: 1},
		{Type: -1, Topic: [16]byte{1}},
		{Type: 1, Mirror: long},
		{Type: 1000, Name: long},
	} {
		require.Error(t, k.check())
	}
	require.NoError(t, Key{Type: 3, Name: long}.check())
}

func TestValuesHaveTheDocumentsLayout(t *testing.T) {
	state := PartitionState{State: 8, LeaderEpoch: 5, StateEpoch: 258, Error: "no", RetryAttempt: -1, PreviousState: 3}
	require.Equal(t, "0000"+"08"+"00000005"+"00000102"+"00026e6f"+"ffff"+"03", hex.EncodeToString(state.Append(nil)))
	back, err := ParsePartitionState(state.Append(nil))
	require.NoError(t, err)
	require.Equal(t, state, back)

	fresh := PartitionState{LeaderEpoch: -1, PreviousState: -1}
	require.Equal(t, "0000"+"00"+"ffffffff"+"00000000"+"ffff"+"0000"+"ff", hex.EncodeToString(fresh.Append(nil)))

	pos := Position{Epoch: 3, Offset: 1 << 40}
	require.Equal(t, "0000"+"00000003"+"0000010000000000", hex.EncodeToString(pos.Append(nil)))
	gotPos, err := ParsePosition(pos.Append(nil))
	require.NoError(t, err)
	require.Equal(t, pos, gotPos)
}

func TestAnErrorTextTooLongIsCutBetweenCharacters(t *testing.T) {
	v := PartitionState{Error: strings.Repeat("x", math.MaxInt16-1) + "\u00e9"}
	back, err := ParsePartitionState(v.Append(nil))
	require.NoError(t, err)
	require.Len(t, back.Error, math.MaxInt16-1)
	require.True(t, utf8.ValidString(back.Error))
}

func TestValuesOfAnotherLengthAreRefused(t *testing.T) {
	state := func(b []byte) error { _, err := ParsePartitionState(b); return err }
	position := func(b []byte) error { _, err := ParsePosition(b); return err }
	for _, c := range []struct {
		whole []byte
		parse func([]byte) error
	}{
		{Position{Epoch: 1}.Append(nil), position},
		{PartitionState{Error: "why"}.Append(nil), state},
		{PartitionState{}.Append(nil), state},
	} {
		require.NoError(t, c.parse(c.whole))
		require.Error(t, c.parse(append(slices.Clip(c.whole), 0)))
		for n := range c.whole {
			require.Error(t, c.parse(c.whole[:n]))
		}
	}
}

func TestValuesOfNewerReleasesAreNamed(t *testing.T) {
	b := Position{}.Append(nil)
	b[1] = 1
	_, err := ParsePosition(b)
	require.ErrorContains(t, err, "version 1")
	b = PartitionState{}.Append(nil)
	b[1] = 1
	_, err = ParsePartitionState(b)
	require.ErrorContains(t, err, "version 1")
}

// A key that parses is one that may be put, and has these bytes and no others.
func FuzzParseKey(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(Key{Type: 1, Mirror: "dr", Partition: 7}.append(nil))
	f.Add(Key{Type: 1000, Name: "x", N: 1}.append(nil))
	f.Add(Key{Type: 4, Name: "other"}.append(nil))
	f.Add([]byte{0, 1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parseKey(b)
		if err != nil {
			require.Equal(t, Key{}, k)
			return
		}
		require.NoError(t, k.check())
		require.Equal(t, b, k.append([]byte{}))
	})
}

// A value that parses is written back as the same bytes, but for an empty text, which becomes null.
func FuzzParsePartitionState(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(PartitionState{State: 8, Error: "why", RetryAttempt: 3}.Append(nil))
	f.Add(PartitionState{State: 3, LeaderEpoch: -1}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParsePartitionState(b)
		if err != nil {
			require.Equal(t, PartitionState{}, v)
			return
		}
		const text = 2 + 1 + 4 + 4
		if b[text] == 0 && b[text+1] == 0 {
			b = slices.Clone(b)
			b[text], b[text+1] = 0xff, 0xff
		}
		require.Equal(t, b, v.Append(nil))
	})
}

// A value that parses is written back as the same bytes.
func FuzzParsePosition(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(Position{Epoch: -1, Offset: -1}.Append(nil))
	f.Add(Position{Epoch: 3, Offset: 100}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParsePosition(b)
		if err != nil {
			require.Equal(t, Position{}, v)
			return
		}
		require.Equal(t, b, v.Append(nil))
	})
}
