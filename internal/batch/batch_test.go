package batch

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sample has a null key, a null value, empty ones, headers, and a gap as compaction leaves it.
func sample() []byte {
	return Append(nil, Header{Base: 100, LeaderEpoch: 7, BaseTimestamp: 1_700_000_000_000, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}, []Record{
		{Key: []byte("k"), Value: []byte("v")},
		{Value: []byte("without key"), TimestampDelta: -5},
		{Key: []byte("deleted"), OffsetDelta: 5, TimestampDelta: 1000},
		{Key: []byte{}, Value: []byte{}, Headers: []RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "", Value: nil}, {Key: "c", Value: []byte{}}}},
	})
}

func TestHeaderOfABuiltBatch(t *testing.T) {
	b := sample()
	h, raw, err := Next(append(bytes.Clone(b), "next batch"...))
	require.NoError(t, err)
	require.Equal(t, b, raw)
	require.NoError(t, Check(b))
	require.Equal(t, Header{
		Base: 100, Length: int32(len(b) - 12), LeaderEpoch: 7, Magic: 2, CRC: Sum(b), LastOffsetDelta: 6,
		BaseTimestamp: 1_700_000_000_000, MaxTimestamp: 1_700_000_001_000, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, Records: 4,
	}, h)
	require.EqualValues(t, 107, h.Next())
	require.Equal(t, len(b), h.Size())
}

// The bytes of a transaction marker as Apache Kafka 3.x writes it: one record, key (version 0, type 1), value (version 0, epoch 0).
func TestMarkerHasKafkasLayout(t *testing.T) {
	b := AppendControl(nil, 2, 0, 4711, 3, Control{Type: ControlCommit}, 1000)
	require.Len(t, b, 78)
	require.Equal(t, strings.Join([]string{
		"0000000000000002", "00000042", "00000000", "02", // base, length, epoch, magic
	}, ""), hex.EncodeToString(b[:17]))
	require.Equal(t, strings.Join([]string{
		"0030", "00000000", // transactional and control; last offset delta
		"00000000000003e8", "00000000000003e8", // timestamps
		"0000000000001267", "0003", "ffffffff", "00000001", // producer, base sequence, count
		"20", "00", "00", "00", // length 16, attributes, deltas
		"08", "00000001", // key
		"0c", "000000000000", // value
		"00", // headers
	}, ""), hex.EncodeToString(b[21:]))
}

func TestAnEmptyRetainedBatchKeepsItsOffsets(t *testing.T) {
	b := Append(nil, Header{Base: 100, LastOffsetDelta: 9, MaxTimestamp: 5, ProducerID: 1}, nil)
	h, _, err := Next(b)
	require.NoError(t, err)
	require.EqualValues(t, 110, h.Next())
	require.EqualValues(t, 0, h.Records)
	require.EqualValues(t, 5, h.MaxTimestamp)
	for range Records(b) {
		t.Fatal("it has no records")
	}
}

func TestLogAppendTimeOverridesTheRecords(t *testing.T) {
	b := Append(nil, Header{Attributes: LogAppendTime, BaseTimestamp: 10, MaxTimestamp: 20}, []Record{{TimestampDelta: 500}})
	h, err := Parse(b)
	require.NoError(t, err)
	require.True(t, h.LogAppendTime())
	require.EqualValues(t, 20, h.MaxTimestamp)
}

func TestRecordsComeBack(t *testing.T) {
	var got []Record
	for r, err := range Records(sample()) {
		require.NoError(t, err)
		got = append(got, r)
	}
	require.Equal(t, []Record{
		{Key: []byte("k"), Value: []byte("v")},
		{OffsetDelta: 1, Value: []byte("without key"), TimestampDelta: -5},
		{OffsetDelta: 5, Key: []byte("deleted"), TimestampDelta: 1000},
		{OffsetDelta: 6, Key: []byte{}, Value: []byte{}, Headers: []RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "", Value: nil}, {Key: "c", Value: []byte{}}}},
	}, got)
}

func TestHeadersThatPromiseTheImpossibleAreCorrupt(t *testing.T) {
	put16 := func(at int, v uint16) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint16(b[at:], v) } }
	put32 := func(at int, v uint32) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) } }
	put64 := func(at int, v uint64) func([]byte) { return func(b []byte) { binary.BigEndian.PutUint64(b[at:], v) } }
	for name, c := range map[string]struct {
		damage func([]byte)
		want   error
	}{
		"format 0":                   {func(b []byte) { b[16] = 0 }, ErrOldFormat},
		"format 1":                   {func(b []byte) { b[16] = 1 }, ErrOldFormat},
		"format 3":                   {func(b []byte) { b[16] = 3 }, ErrCorrupt},
		"length below a header":      {put32(8, 48), ErrCorrupt},
		"negative length":            {put32(8, math.MaxUint32), ErrCorrupt},
		"length beyond 2 GiB":        {put32(8, math.MaxInt32), ErrCorrupt},
		"claims more than there is":  {put32(8, 1<<30), ErrShort},
		"negative base":              {put64(0, 1<<63), ErrCorrupt},
		"base overflows":             {put64(0, math.MaxInt64-3), ErrCorrupt},
		"negative last offset delta": {put32(23, 1<<31), ErrCorrupt},
		"negative count":             {put32(57, 1<<31), ErrCorrupt},
		"leader epoch below -1":      {put32(12, 1<<31), ErrCorrupt},
		"no leader epoch":            {put32(12, math.MaxUint32), nil},
		"any attributes":             {put16(21, 0xffff), nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := sample()
			c.damage(b)
			_, _, err := Next(b)
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestEveryCutOfABatchIsShort(t *testing.T) {
	b := sample()
	for n := range b {
		_, _, err := Next(b[:n])
		require.ErrorIs(t, err, ErrShort, "%d bytes", n)
	}
	h, err := Parse(b[:HeaderSize])
	require.NoError(t, err, "a header is enough for Parse")
	require.Equal(t, len(b), h.Size())
	require.ErrorIs(t, Check(b[:HeaderSize-1]), ErrShort)
}

func TestCheckFindsEveryFlippedBitItCovers(t *testing.T) {
	b := sample()
	for i := crcFrom * 8; i < len(b)*8; i++ {
		b[i/8] ^= 1 << (i % 8)
		require.ErrorIs(t, Check(b), ErrCorrupt, "bit %d", i)
		b[i/8] ^= 1 << (i % 8)
	}
	SetBase(b, 500)
	SetLeaderEpoch(b, 9)
	require.NoError(t, Check(b), "what the log itself owns is not covered")
	h, err := Parse(b)
	require.NoError(t, err)
	require.EqualValues(t, 500, h.Base)
	require.EqualValues(t, 9, h.LeaderEpoch)
}

func TestRecordsThatDifferFromTheHeaderAreCorrupt(t *testing.T) {
	one := Append(nil, Header{}, []Record{{Key: []byte("key"), Value: []byte("value")}})
	at := func(i int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[HeaderSize+i] = v; return b }
	}
	count := func(n uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint32(b[57:], n); return b }
	}
	for name, breakIt := range map[string]func([]byte) []byte{
		"one record too many promised":  count(2),
		"two thousand million promised": count(math.MaxInt32),
		"one record too few promised":   count(0),
		"record length too long":        at(0, 0x7e),
		"record length too short":       at(0, 0x02),
		"record length negative":        at(0, 0x01),
		"offset beyond the header's":    at(3, 0x02),
		"offset negative":               at(3, 0x01),
		"key longer than the record":    at(4, 0x7e),
		"key length below null":         at(4, 0x03),
		"headers beyond the record":     at(len(one)-HeaderSize-1, 0x02),
		"headers negative":              at(len(one)-HeaderSize-1, 0x01),
	} {
		t.Run(name, func(t *testing.T) {
			var last error
			for _, last = range Records(breakIt(bytes.Clone(one))) {
			}
			require.ErrorIs(t, last, ErrCorrupt)
		})
	}
}

func TestCompressedRecordsAreRefused(t *testing.T) {
	b := sample()
	b[22] |= 4
	for _, err := range Records(b) {
		require.ErrorIs(t, err, ErrCompressed)
	}
}

func TestControlRecordsComeBack(t *testing.T) {
	for _, c := range []Control{
		{Type: ControlAbort, CoordinatorEpoch: 3},
		{Type: ControlCommit, Version: 1, CoordinatorEpoch: math.MaxInt32},
		{Type: ControlLeaderChange, Version: 2},
		{Type: ControlMirrorPIDReset},
		{Type: 999, Version: 5},
	} {
		b := AppendControl([]byte("before"), 42, 9, 4711, 3, c, 1000)[len("before"):]
		require.NoError(t, Check(b))
		got, err := ParseControl(b)
		require.NoError(t, err)
		require.Equal(t, c, got)

		h, raw, err := Next(b)
		require.NoError(t, err)
		require.Equal(t, b, raw)
		require.True(t, h.Control())
		require.EqualValues(t, 43, h.Next())
		require.EqualValues(t, 9, h.LeaderEpoch)
		require.EqualValues(t, 1000, h.MaxTimestamp)
		require.Equal(t, c.EndsTransaction(), h.Transactional())
		if c.EndsTransaction() {
			require.EqualValues(t, 4711, h.ProducerID)
			require.EqualValues(t, 3, h.ProducerEpoch)
		} else {
			require.EqualValues(t, -1, h.ProducerID, "a control batch of no producer")
			require.EqualValues(t, -1, h.ProducerEpoch)
		}
	}
}

// The KIP's number is provisional and must stay outside those that Kafka has given away.
func TestTheResetIsKnownByEveryNumberItEverHad(t *testing.T) {
	require.Contains(t, mirrorPIDResets, ControlMirrorPIDReset)
	for _, n := range mirrorPIDResets {
		require.Greater(t, n, ControlKRaftVoters)
		require.True(t, Control{Type: n}.PIDReset())
	}
	require.False(t, Control{Type: ControlAbort}.PIDReset())
}

func TestAControlRecordIsReadFromTheFrontOfItsBatch(t *testing.T) {
	for _, c := range []Control{{Type: ControlAbort, CoordinatorEpoch: 3}, {Type: ControlMirrorPIDReset}} {
		b := AppendControl(nil, 42, 9, 4711, 3, c, 1000)
		read := false
		for n := range b {
			got, err := ParseControl(b[:n])
			if err == nil {
				require.Equal(t, c.Type, got.Type, "%d bytes", n)
				require.Equal(t, c.CoordinatorEpoch, got.CoordinatorEpoch, "%d bytes", n)
				read = true
				continue
			}
			require.ErrorIs(t, err, ErrShort, "%d bytes", n)
			require.False(t, read, "more bytes, less known")
		}
		require.True(t, read)
	}
}

func TestControlRecordsThatAreNoneAreCorrupt(t *testing.T) {
	marker := func(key, value []byte) []byte {
		return Append(nil, Header{Attributes: attrControl, ProducerID: 1}, []Record{{Key: key, Value: value}})
	}
	good := []byte{0, 0, 0, 0, 0, 0}
	compressed := marker(good[:4], good)
	compressed[22] |= 1
	cut := marker(good[:4], good)
	cut = cut[:len(cut)-3]
	binary.BigEndian.PutUint32(cut[8:], uint32(len(cut)-LengthSize))
	for name, b := range map[string][]byte{
		"null key":                   marker(nil, good),
		"short key":                  marker(good[:3], good),
		"negative key version":       marker([]byte{0x80, 0, 0, 0}, good),
		"null value":                 marker(good[:4], nil),
		"short value":                marker(good[:4], good[:5]),
		"negative value version":     marker(good[:4], []byte{0x80, 0, 0, 0, 0, 0}),
		"no record":                  Append(nil, Header{Attributes: attrControl}, nil),
		"no control batch":           sample(),
		"compressed":                 compressed,
		"record longer than a batch": cut,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseControl(b)
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

func seeds(f *testing.F) {
	f.Add([]byte{})
	f.Add(sample())
	f.Add(append(sample(), sample()...))
	f.Add(Append(nil, Header{LastOffsetDelta: 9, ProducerID: 1, Attributes: Transactional}, nil))
	for _, c := range []int16{ControlAbort, ControlCommit, ControlSnapshotHeader, ControlMirrorPIDReset} {
		f.Add(AppendControl(nil, 5, 1, 7, 2, Control{Type: c}, 1000))
	}
}

// FuzzNext: no bytes make Parse, Next, Check, Sum panic. What Next accepts has its header's size, no offset below 0, a Next above its
// Base, parses alone, and is read the same from a header alone. Every error is one of the three sentinels. A walk ends.
func FuzzNext(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			h, raw, err := Next(b)
			if err != nil {
				if !errors.Is(err, ErrShort) && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrOldFormat) {
					t.Fatalf("no sentinel: %v", err)
				}
				return
			}
			if len(raw) != h.Size() || len(raw) < HeaderSize || cap(raw) != len(raw) || h.Base < 0 || h.Next() <= h.Base {
				t.Fatalf("%+v of %d bytes", h, len(raw))
			}
			if again, err := Parse(raw[:HeaderSize]); err != nil || again != h {
				t.Fatalf("%+v then %+v, %v", h, again, err)
			}
			if ok := Check(raw) == nil; ok != (Sum(raw) == h.CRC) {
				t.Fatalf("Check says %v, Sum %08x, header %08x", ok, Sum(raw), h.CRC)
			}
			b = b[len(raw):]
		}
	})
}

// FuzzRecords: no bytes make Records panic; it yields at most as many records as the header claims, each inside the batch's offsets and
// made of the batch's bytes. A batch that decodes without error is decoded the same after Append has built it anew.
func FuzzRecords(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, _, _ := Next(b)
		var got []Record
		size := 0
		for r, err := range Records(b) {
			if err != nil {
				return
			}
			if r.OffsetDelta < 0 || r.OffsetDelta > h.LastOffsetDelta {
				t.Fatalf("offset delta %d", r.OffsetDelta)
			}
			size += len(r.Key) + len(r.Value) + 2*len(r.Headers)
			got = append(got, r)
		}
		if len(got) != int(h.Records) || size > len(b) {
			t.Fatalf("%d records of %d, %d bytes of %d", len(got), h.Records, size, len(b))
		}
		h.MaxTimestamp = math.MinInt64
		built := Append(nil, h, got)
		if err := Check(built); err != nil {
			t.Fatal(err)
		}
		var again []Record
		for r, err := range Records(built) {
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, r)
		}
		require.Equal(t, got, again)
	})
}

// FuzzParseControl: no bytes make it panic. What it reads from a batch it reads, or finds short, in every cut of it, and the record is what
// Records finds where both accept the batch.
func FuzzParseControl(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseControl(b)
		if err != nil {
			return
		}
		for n := range min(len(b), 200) {
			cut, err := ParseControl(b[:n])
			if err == nil && (cut.Type != c.Type || cut.CoordinatorEpoch != c.CoordinatorEpoch) || err != nil && !errors.Is(err, ErrShort) {
				t.Fatalf("%d of %d bytes: %+v, %v; all of them: %+v", n, len(b), cut, err, c)
			}
		}
		for r, err := range Records(b) {
			if err == nil && int16(binary.BigEndian.Uint16(r.Key[2:])) != c.Type {
				t.Fatalf("key %x, type %d", r.Key, c.Type)
			}
			return
		}
	})
}
