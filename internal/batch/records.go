package batch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
)

// Attributes of a batch that Append writes as they are given.
const (
	LogAppendTime int16 = attrLogAppendTime
	Transactional int16 = attrTransactional
)

// ErrCompressed is returned by Records for a batch whose records are compressed: nothing here decompresses.
var ErrCompressed = errors.New("record batch is compressed")

// Record is one record of a batch. A nil key or value is Kafka's null.
type Record struct {
	OffsetDelta    int32 // to the batch's base offset
	TimestampDelta int64 // to the batch's base timestamp, ms
	Key, Value     []byte
	Headers        []RecordHeader
}

// RecordHeader is one header of a record.
type RecordHeader struct {
	Key   string
	Value []byte
}

// Append appends a whole uncompressed batch of the records. Of h it takes base, leader epoch, attributes except the codec,
// timestamps and the producer's three fields (a ProducerID of 0 is a producer; -1 is none); length, CRC and count it finds
// itself. A record whose OffsetDelta does not lie above that of the record before gets the next one, so records without
// deltas are numbered from 0. LastOffsetDelta and MaxTimestamp are raised to what the records need: given higher (as
// compaction leaves them, in a batch without records too) they stay; of LogAppendTime MaxTimestamp is taken as it is.
func Append(dst []byte, h Header, records []Record) []byte {
	from := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)

	next, maxTime := int32(0), h.MaxTimestamp
	for _, r := range records {
		delta := max(next, r.OffsetDelta)
		next = delta + 1
		maxTime = max(maxTime, h.BaseTimestamp+r.TimestampDelta)
		dst = binary.AppendVarint(dst, int64(recordSize(&r, delta)))
		dst = append(dst, 0)
		dst = binary.AppendVarint(dst, r.TimestampDelta)
		dst = binary.AppendVarint(dst, int64(delta))
		dst = appendBytes(dst, r.Key)
		dst = appendBytes(dst, r.Value)
		dst = binary.AppendVarint(dst, int64(len(r.Headers)))
		for _, x := range r.Headers {
			dst = binary.AppendVarint(dst, int64(len(x.Key)))
			dst = append(dst, x.Key...)
			dst = appendBytes(dst, x.Value)
		}
	}
	if h.Attributes&attrLogAppendTime != 0 {
		maxTime = h.MaxTimestamp
	}

	b := dst[from:]
	binary.BigEndian.PutUint64(b[0:], uint64(h.Base))
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-LengthSize))
	binary.BigEndian.PutUint32(b[12:], uint32(h.LeaderEpoch))
	b[16] = 2
	binary.BigEndian.PutUint16(b[21:], uint16(h.Attributes&^attrCodec))
	binary.BigEndian.PutUint32(b[23:], uint32(max(h.LastOffsetDelta, next-1, 0)))
	binary.BigEndian.PutUint64(b[27:], uint64(h.BaseTimestamp))
	binary.BigEndian.PutUint64(b[35:], uint64(maxTime))
	binary.BigEndian.PutUint64(b[43:], uint64(h.ProducerID))
	binary.BigEndian.PutUint16(b[51:], uint16(h.ProducerEpoch))
	binary.BigEndian.PutUint32(b[53:], uint32(h.BaseSequence))
	binary.BigEndian.PutUint32(b[57:], uint32(len(records)))
	binary.BigEndian.PutUint32(b[17:], Sum(b))
	return dst
}

// Records decodes the records of the whole batch that begins at b[0]. Keys, values and header values are parts of b. It ends
// with the first error: ErrCompressed, ErrShort, or ErrCorrupt for bytes that are not the records which the header promises.
// The CRC is not checked.
func Records(b []byte) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		h, raw, err := Next(b)
		if err == nil && h.Codec() != 0 {
			err = fmt.Errorf("offset %d: %w", h.Base, ErrCompressed)
		}
		if err != nil {
			yield(Record{}, err)
			return
		}
		p := parser{b: raw[HeaderSize:]}
		h.records(yield, func() ([]byte, error) {
			if len(p.b) == 0 {
				return nil, io.EOF
			}
			one := p.take(p.varint())
			if !p.ok() {
				return nil, io.ErrUnexpectedEOF
			}
			return one, nil
		})
	}
}

// ReadRecords decodes the records of the batch with header h from body: what follows the header, decompressed. Memory is
// taken for one record at a time, as its bytes arrive, and belongs to whoever gets the record; one that claims more than
// limit bytes ends it. Errors are those of Records, and those of body as ErrCorrupt.
func ReadRecords(h Header, body io.Reader, limit int) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		r := bufio.NewReader(body)
		h.records(yield, func() ([]byte, error) {
			n, err := binary.ReadVarint(r)
			if err != nil {
				return nil, err
			}
			if n < 0 || n > int64(limit) {
				return nil, fmt.Errorf("length %d, at most %d", n, limit)
			}
			if n <= believed {
				one := make([]byte, n)
				_, err = io.ReadFull(r, one)
				return one, err
			}
			var one bytes.Buffer
			_, err = io.CopyN(&one, r, n)
			return one.Bytes(), err
		})
	}
}

// believed is the length of a record for which memory is taken before its bytes have been seen.
const believed = 64 << 10

// records yields the records that h promises; next answers the bytes of one after the other, without its length, and io.EOF at
// the end.
func (h *Header) records(yield func(Record, error) bool, next func() ([]byte, error)) {
	bad := func(what any, i int32) {
		yield(Record{}, fmt.Errorf("%w: offset %d: record %d of %d: %v", ErrCorrupt, h.Base, i, h.Records, what))
	}
	last := int32(-1)
	for i := range h.Records {
		one, err := next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			bad("cut short", i)
			return
		}
		if err != nil {
			bad(err, i)
			return
		}
		r, ok := (&parser{b: one}).record()
		if !ok {
			bad("its parts and its length differ", i)
			return
		}
		if r.OffsetDelta <= last || r.OffsetDelta > h.LastOffsetDelta {
			bad("offset out of order", i)
			return
		}
		last = r.OffsetDelta
		if !yield(r, nil) {
			return
		}
	}
	switch _, err := next(); {
	case errors.Is(err, io.EOF):
	case err == nil:
		bad("more bytes after the last one", h.Records)
	default:
		bad(err, h.Records)
	}
}

func recordSize(r *Record, delta int32) int {
	n := 1 + varintSize(r.TimestampDelta) + varintSize(int64(delta)) + bytesSize(r.Key) + bytesSize(r.Value) + varintSize(int64(len(r.Headers)))
	for _, x := range r.Headers {
		n += varintSize(int64(len(x.Key))) + len(x.Key) + bytesSize(x.Value)
	}
	return n
}

func varintSize(v int64) int {
	n := 1
	for u := uint64(v)<<1 ^ uint64(v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

func bytesSize(b []byte) int {
	if b == nil {
		return varintSize(-1)
	}
	return varintSize(int64(len(b))) + len(b)
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return binary.AppendVarint(dst, -1)
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}

// parser takes pieces off the front of b. After the first piece that is not there everything is zero and ok is false.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) ok() bool { return !p.bad }

func (p *parser) fail() {
	p.b, p.bad = nil, true
}

func (p *parser) byte() byte {
	if len(p.b) == 0 {
		p.fail()
		return 0
	}
	v := p.b[0]
	p.b = p.b[1:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) take(n int64) []byte {
	if n < 0 || n > int64(len(p.b)) {
		p.fail()
		return nil
	}
	v := p.b[:n:n]
	p.b = p.b[n:]
	return v
}

// nullable takes a length and as many bytes; nil for the length -1.
func (p *parser) nullable() []byte {
	n := p.varint()
	if n == -1 {
		return nil
	}
	return p.take(n)
}

// record takes one record that fills p.
func (p *parser) record() (r Record, ok bool) {
	p.byte() // attributes, unused
	r.TimestampDelta = p.varint()
	delta := p.varint()
	r.OffsetDelta = int32(delta)
	r.Key = p.nullable()
	r.Value = p.nullable()
	n := p.varint()
	// A header is at least two bytes long: a claim beyond that is refused before it is believed.
	if int64(r.OffsetDelta) != delta || n < 0 || n > int64(len(p.b)/2) {
		return r, false
	}
	if n > 0 {
		r.Headers = make([]RecordHeader, n)
	}
	for i := range r.Headers {
		r.Headers[i] = RecordHeader{Key: string(p.take(p.varint())), Value: p.nullable()}
	}
	return r, p.ok() && len(p.b) == 0
}
