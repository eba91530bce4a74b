package batch

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func gather(list *[]Record) func(Record, error) bool {
	return func(r Record, err error) bool {
		if err == nil {
			*list = append(*list, r)
		}
		return err == nil
	}
}

func TestRecordsFromAStreamAreThoseOfTheBatch(t *testing.T) {
	big := make([]byte, 3*believed)
	b := Append(nil, Header{Base: 7, ProducerID: -1}, []Record{
		{Key: []byte("k"), Value: []byte("v"), Headers: []RecordHeader{{Key: "h", Value: []byte("x")}}},
		{Value: big, OffsetDelta: 4},
		{Key: []byte{}},
	})
	h, raw, err := Next(b)
	require.NoError(t, err)
	var want, got []Record
	Records(raw)(gather(&want))
	require.Len(t, want, 3)
	ReadRecords(h, iotest.OneByteReader(bytes.NewReader(raw[HeaderSize:])), 1<<20)(gather(&got))
	require.Equal(t, want, got)
	clear(raw)
	require.Equal(t, []byte("v"), got[0].Value, "a record's bytes are its own")
}

func TestAStreamThatFailsIsCorrupt(t *testing.T) {
	b := Append(nil, Header{Base: 7, ProducerID: -1}, []Record{{Value: make([]byte, 100)}, {Value: make([]byte, 100)}})
	h, raw, err := Next(b)
	require.NoError(t, err)
	body := raw[HeaderSize:]
	for name, c := range map[string]struct {
		body  io.Reader
		limit int
		want  string
	}{
		"short":   {bytes.NewReader(body[:150]), 1000, "record batch is corrupt: offset 7: record 1 of 2: cut short"},
		"missing": {bytes.NewReader(body[:len(body)/2]), 1000, "record batch is corrupt: offset 7: record 1 of 2: cut short"},
		"more":    {io.MultiReader(bytes.NewReader(body), bytes.NewReader(body)), 1000, "record batch is corrupt: offset 7: record 2 of 2: more bytes after the last one"},
		"large":   {bytes.NewReader(body), 50, "record batch is corrupt: offset 7: record 0 of 2: length 107, at most 50"},
		"broken":  {io.MultiReader(bytes.NewReader(body), iotest.ErrReader(io.ErrClosedPipe)), 1000, "record batch is corrupt: offset 7: record 2 of 2: io: read/write on closed pipe"},
	} {
		var last error
		for _, err := range ReadRecords(h, c.body, c.limit) {
			last = err
		}
		require.ErrorIs(t, last, ErrCorrupt, name)
		require.EqualError(t, last, c.want, name)
	}
}
