// Package batch reads and checks the headers of Kafka record batches (message format 2, KIP-98) without decoding records.
//
// The bytes of a batch, after 12 bytes that the log itself owns:
//
//	 0  base offset            int64   not covered by the CRC
//	 8  length                 int32   bytes after this field
//	12  partition leader epoch int32   not covered by the CRC
//	16  magic                  int8    always 2 here
//	17  CRC-32C                uint32  of everything from byte 21 on
//	21  attributes             int16   0-2 codec, 3 log append time, 4 transactional, 5 control
//	23  last offset delta      int32
//	27  base timestamp         int64
//	35  max timestamp          int64
//	43  producer id            int64
//	51  producer epoch         int16
//	53  base sequence          int32
//	57  record count           int32
//	61  records
package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

const (
	// HeaderSize is the length of a batch header; no batch is shorter.
	HeaderSize = 61
	// LengthSize is the length of the part that the batch's own length field does not count.
	LengthSize = 12

	crcFrom = 21
)

const (
	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
)

var (
	// ErrShort says that the bytes end before the batch does: more of them may make it whole.
	ErrShort = errors.New("record batch is cut short")
	// ErrCorrupt is wrapped by every finding that more bytes cannot mend.
	ErrCorrupt = errors.New("record batch is corrupt")
	// ErrOldFormat says that the batch has message format 0 or 1.
	ErrOldFormat = errors.New("message format 0 or 1")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is a batch header, by value: it does not refer to the bytes it was read from.
type Header struct {
	Base            int64
	Length          int32
	LeaderEpoch     int32
	Magic           int8
	CRC             uint32
	Attributes      int16
	LastOffsetDelta int32
	BaseTimestamp   int64 // ms
	MaxTimestamp    int64 // ms, -1: none
	ProducerID      int64 // -1: none
	ProducerEpoch   int16
	BaseSequence    int32
	Records         int32
}

// Size is the number of bytes of the whole batch.
func (h *Header) Size() int { return LengthSize + int(h.Length) }

// Next is the offset after the batch's last one. A compacted batch keeps it even if its last records are gone.
func (h *Header) Next() int64 { return h.Base + int64(h.LastOffsetDelta) + 1 }

// Codec is the compression codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
func (h *Header) Codec() int { return int(h.Attributes & attrCodec) }

// LogAppendTime says that the broker stamped the records (message.timestamp.type).
func (h *Header) LogAppendTime() bool { return h.Attributes&attrLogAppendTime != 0 }

// Transactional says that the batch belongs to a transaction or ends one.
func (h *Header) Transactional() bool { return h.Attributes&attrTransactional != 0 }

// Control says that the batch holds a control record, which no consumer sees.
func (h *Header) Control() bool { return h.Attributes&attrControl != 0 }

// Parse reads the header at the start of b and checks what can be checked without the records. It needs HeaderSize bytes
// (ErrShort otherwise) and never looks beyond them.
func Parse(b []byte) (Header, error) {
	var h Header
	if len(b) > 16 && (b[16] == 0 || b[16] == 1) {
		return h, fmt.Errorf("offset %d: %w", int64(binary.BigEndian.Uint64(b)), ErrOldFormat)
	}
	if len(b) < HeaderSize {
		return h, ErrShort
	}
	h = Header{
		Base:            int64(binary.BigEndian.Uint64(b[0:])),
		Length:          int32(binary.BigEndian.Uint32(b[8:])),
		LeaderEpoch:     int32(binary.BigEndian.Uint32(b[12:])),
		Magic:           int8(b[16]),
		CRC:             binary.BigEndian.Uint32(b[17:]),
		Attributes:      int16(binary.BigEndian.Uint16(b[21:])),
		LastOffsetDelta: int32(binary.BigEndian.Uint32(b[23:])),
		BaseTimestamp:   int64(binary.BigEndian.Uint64(b[27:])),
		MaxTimestamp:    int64(binary.BigEndian.Uint64(b[35:])),
		ProducerID:      int64(binary.BigEndian.Uint64(b[43:])),
		ProducerEpoch:   int16(binary.BigEndian.Uint16(b[51:])),
		BaseSequence:    int32(binary.BigEndian.Uint32(b[53:])),
		Records:         int32(binary.BigEndian.Uint32(b[57:])),
	}
	return h, h.check()
}

func (h *Header) check() error {
	bad := func(field string, v int64) error {
		return fmt.Errorf("%w: offset %d: %s %d", ErrCorrupt, h.Base, field, v)
	}
	switch {
	case h.Magic != 2:
		return bad("magic", int64(h.Magic))
	case h.Length < HeaderSize-LengthSize, h.Length > math.MaxInt32-LengthSize: // Size is an int, which may have 32 bits
		return bad("length", int64(h.Length))
	case h.Base < 0:
		return bad("base offset", h.Base)
	case h.LastOffsetDelta < 0:
		return bad("last offset delta", int64(h.LastOffsetDelta))
	case h.Base > math.MaxInt64-int64(h.LastOffsetDelta)-1:
		return bad("base offset overflows with last offset delta", int64(h.LastOffsetDelta))
	case h.Records < 0:
		return bad("record count", int64(h.Records))
	case h.LeaderEpoch < -1:
		return bad("leader epoch", int64(h.LeaderEpoch))
	}
	return nil
}

// Next reads the first batch of b: its header and its bytes (a part of b). ErrShort means that b ends within it; io.EOF is
// never returned, an empty b is short. The CRC is not checked: see Check.
func Next(b []byte) (Header, []byte, error) {
	h, err := Parse(b)
	if err != nil {
		return h, nil, err
	}
	if len(b) < h.Size() {
		return h, nil, ErrShort
	}
	return h, b[:h.Size():h.Size()], nil
}

// Check compares the CRC of one whole batch with its bytes.
func Check(b []byte) error {
	if len(b) < HeaderSize {
		return ErrShort
	}
	if want, got := binary.BigEndian.Uint32(b[17:]), Sum(b); want != got {
		return fmt.Errorf("%w: offset %d: CRC %08x, its bytes give %08x", ErrCorrupt, int64(binary.BigEndian.Uint64(b)), want, got)
	}
	return nil
}

// Sum is the CRC-32C of one whole batch, as its header should state it.
func Sum(b []byte) uint32 { return crc32.Checksum(b[crcFrom:], castagnoli) }

// SetBase writes the base offset of the batch that begins at b[0]. The CRC does not cover it.
func SetBase(b []byte, base int64) { binary.BigEndian.PutUint64(b, uint64(base)) }

// SetLeaderEpoch writes the leader epoch of the batch that begins at b[0]. The CRC does not cover it.
func SetLeaderEpoch(b []byte, epoch int32) { binary.BigEndian.PutUint32(b[12:], uint32(epoch)) }
