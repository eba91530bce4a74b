package logtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	wire "github.com/clustermirror/mirror/internal/batch"
)

// batch is a whole record batch, as a source would send it.
type batch struct {
	base, next int64
	bytes      []byte
}

func (b batch) String() string { return fmt.Sprintf("[%d, %d)", b.base, b.next) }

// plain has one small record at each of its offsets.
func plain(base int64, offsets int) batch { return made(base, offsets, offsets, 40, 0) }

// made builds a batch that covers offsets and holds records (the first of them), each with a value of size bytes. All of
// it follows from the arguments.
func made(base int64, offsets, records, size int, epoch int32) batch {
	rng := rand.New(rand.NewPCG(uint64(base), uint64(epoch)))
	b := make([]byte, wire.HeaderSize, wire.HeaderSize+records*(size+12))
	for i := range records {
		value := make([]byte, 0, size+8)
		for len(value) < size {
			value = binary.LittleEndian.AppendUint64(value, rng.Uint64())
		}
		value = value[:size]
		r := []byte{0}                          // attributes
		r = binary.AppendVarint(r, int64(i))    // timestamp delta
		r = binary.AppendVarint(r, int64(i))    // offset delta
		r = binary.AppendVarint(r, -1)          // no key
		r = binary.AppendVarint(r, int64(size)) // value
		r = append(r, value...)
		r = binary.AppendVarint(r, 0) // no headers
		b = binary.AppendVarint(b, int64(len(r)))
		b = append(b, r...)
	}
	const begin = 1_700_000_000_000
	last := int64(-1)
	if records > 0 {
		last = begin + base + int64(records) - 1
	}
	be := binary.BigEndian
	be.PutUint64(b[0:], uint64(base))
	be.PutUint32(b[8:], uint32(len(b)-wire.LengthSize))
	be.PutUint32(b[12:], uint32(epoch))
	b[16] = 2
	be.PutUint32(b[23:], uint32(offsets-1))
	be.PutUint64(b[27:], uint64(begin+base))
	be.PutUint64(b[35:], uint64(last))
	be.PutUint64(b[43:], uint64(1000+base%7))
	be.PutUint32(b[53:], uint32(base))
	be.PutUint32(b[57:], uint32(records))
	return sealed(b)
}

// control is a COMMIT marker.
func control(base int64) batch {
	b := made(base, 1, 0, 0, 3).bytes
	key, value := []byte{0, 0, 0, 1}, []byte{0, 0, 0, 0, 0, 0}
	r := []byte{0, 0, 0}
	r = append(binary.AppendVarint(r, int64(len(key))), key...)
	r = append(binary.AppendVarint(r, int64(len(value))), value...)
	r = binary.AppendVarint(r, 0)
	b = append(binary.AppendVarint(b, int64(len(r))), r...)
	binary.BigEndian.PutUint16(b[21:], 0x30)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-wire.LengthSize))
	binary.BigEndian.PutUint32(b[57:], 1)
	return sealed(b)
}

// sealed sets the CRC of a finished batch.
func sealed(b []byte) batch {
	binary.BigEndian.PutUint32(b[17:], wire.Sum(b))
	h, raw, err := wire.Next(b)
	if err != nil || len(raw) != len(b) {
		panic("logtest: bad batch of its own: " + fmt.Sprint(err))
	}
	return batch{base: h.Base, next: h.Next(), bytes: b}
}

// join lays batches end to end in a slice of its own.
func join(list []batch) []byte {
	all := make([]byte, 0, size(list))
	for _, b := range list {
		all = append(all, b.bytes...)
	}
	return all
}

func size(list []batch) (n int) {
	for _, b := range list {
		n += len(b.bytes)
	}
	return n
}

// differ says in words how got differs from want; empty if it does not.
func differ(got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("got %s, want %s; they part at byte %d", show(got), show(want), i)
}

// show lists the batches in b.
func show(b []byte) string {
	s := fmt.Sprintf("%d bytes {", len(b))
	for len(b) > 0 {
		h, raw, err := wire.Next(b)
		if err != nil {
			return s + fmt.Sprintf(" %d more bytes: %v }", len(b), err)
		}
		s += fmt.Sprintf(" [%d, %d) epoch %d", h.Base, h.Next(), h.LeaderEpoch)
		b = b[len(raw):]
	}
	return s + " }"
}
