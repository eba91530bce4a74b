package mirror

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/batch"
)

// FuzzDecode decodes a batch with any body under any codec. It ends, without a panic; what it yields lies within the batch, in
// order; and no loss hides: as many records as the header promises, or an error that wraps ErrCorrupt.
func FuzzDecode(f *testing.F) {
	for codec := compress.None; codec <= compress.Zstd; codec++ {
		var b bytes.Buffer
		set := protocol.RecordSet{Version: 2, Attributes: protocol.Attributes(codec), Records: protocol.NewRecordReader(
			protocol.Record{Key: protocol.NewBytes([]byte("key")), Value: protocol.NewBytes([]byte("some value"))},
			protocol.Record{Headers: []protocol.Header{{Key: "k", Value: []byte("v")}}})}
		_, err := set.WriteTo(&b)
		require.NoError(f, err)
		f.Add(uint8(codec), uint16(2), b.Bytes()[4+batch.HeaderSize:])
	}
	f.Add(uint8(7), uint16(1), []byte{})
	f.Fuzz(func(t *testing.T, codec uint8, records uint16, body []byte) {
		raw := batch.Append(nil, batch.Header{Base: 5, ProducerID: -1, LastOffsetDelta: int32(records)}, nil)
		raw = append(raw, body...)
		raw[22] = codec & 7
		binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-batch.LengthSize))
		binary.BigEndian.PutUint32(raw[57:], uint32(records))
		binary.BigEndian.PutUint32(raw[17:], batch.Sum(raw))
		h, raw, err := batch.Next(raw)
		require.NoError(t, err)
		n, last := uint16(0), int32(-1)
		for r, err := range decode(h, raw) {
			if err != nil {
				require.ErrorIs(t, err, batch.ErrCorrupt)
				return
			}
			require.Greater(t, r.OffsetDelta, last)
			require.LessOrEqual(t, r.OffsetDelta, int32(records))
			last = r.OffsetDelta
			n++
		}
		require.Equal(t, records, n)
	})
}
