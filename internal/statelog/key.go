package statelog

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The types of keys that have a meaning here. Below typeOwn are Kafka's, from there on the library's.
const (
	TypePartitionState int16 = 1 // Mirror, Topic, Partition; the value is a PartitionState
	TypePosition       int16 = 2 // Mirror, Topic, Partition; the value is a Position

	typeOwn      int16 = 1000
	typeFence    int16 = 2000 // nothing; a Store was opened here
	typeSnapshot int16 = 2001 // N; a snapshot that began at offset N is whole
)

// Key names a record of the state. Keys are compared by all their fields.
//
// Three layouts exist on the wire, each after the type:
//
//	1, 2           Mirror, Topic, Partition as Kafka writes them; Name and N must be zero
//	1000 and above all fields
//	other          Name is the whole rest of the key, the other fields are zero: another program's record, kept as it is
type Key struct {
	Type      int16
	Mirror    string
	Topic     [16]byte
	Partition int32
	Name      string
	N         int64
}

var (
	errKeyShort = errors.New("key is cut short")
	errKeyLong  = errors.New("key has bytes after its last field")
)

// String names the fields that are set.
func (k Key) String() string {
	s := fmt.Sprintf("type %d", k.Type)
	if k.Mirror != "" {
		s += fmt.Sprintf(" mirror %q", k.Mirror)
	}
	if k.Topic != [16]byte{} {
		s += fmt.Sprintf(" topic %s partition %d", base64.RawURLEncoding.EncodeToString(k.Topic[:]), k.Partition)
	}
	if k.Name != "" {
		s += fmt.Sprintf(" name %q", k.Name)
	}
	if k.N != 0 {
		s += fmt.Sprintf(" n %d", k.N)
	}
	return s
}

func (k Key) compare(o Key) int {
	return cmp.Or(
		cmp.Compare(k.Type, o.Type),
		cmp.Compare(k.Mirror, o.Mirror),
		bytes.Compare(k.Topic[:], o.Topic[:]),
		cmp.Compare(k.Partition, o.Partition),
		cmp.Compare(k.Name, o.Name),
		cmp.Compare(k.N, o.N),
	)
}

// check says whether the key's layout can carry its fields.
func (k Key) check() error {
	used := k
	switch {
	case k.Type == TypePartitionState, k.Type == TypePosition:
		used.Name, used.N = "", 0
	case k.Type < typeOwn:
		used = Key{Type: k.Type, Name: k.Name}
	}
	if used != k {
		return fmt.Errorf("state key %v has fields that its type does not carry", k)
	}
	if len(k.Mirror) > math.MaxInt16 || k.Type >= typeOwn && len(k.Name) > math.MaxInt16 {
		return fmt.Errorf("state key of type %d has a name longer than %d bytes", k.Type, math.MaxInt16)
	}
	return nil
}

// append adds the key's bytes to dst. The key has passed check.
func (k Key) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(k.Type))
	if k.Type < typeOwn && k.Type != TypePartitionState && k.Type != TypePosition {
		return append(dst, k.Name...)
	}
	dst = appendString(dst, k.Mirror)
	dst = append(dst, k.Topic[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(k.Partition))
	if k.Type < typeOwn {
		return dst
	}
	dst = appendString(dst, k.Name)
	return binary.BigEndian.AppendUint64(dst, uint64(k.N))
}

// parseKey is the reverse of Key.append: each key has one form only. It keeps nothing of b.
func parseKey(b []byte) (k Key, err error) {
	r := reader{b: b}
	k.Type = int16(r.uint16())
	switch {
	case k.Type == TypePartitionState, k.Type == TypePosition, k.Type >= typeOwn:
		k.Mirror = r.string()
		copy(k.Topic[:], r.take(len(k.Topic)))
		k.Partition = int32(r.uint32())
		if k.Type >= typeOwn {
			k.Name = r.string()
			k.N = int64(r.uint64())
		}
	default:
		k.Name = string(r.take(len(r.b)))
	}
	switch {
	case r.short:
		return Key{}, errKeyShort
	case len(r.b) > 0:
		return Key{}, errKeyLong
	}
	return k, nil
}

func appendString(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// reader takes big-endian fields from the front of b. Once b was too short it gives zeros only.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if r.short || n < 0 || n > len(r.b) {
		r.short = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) uint8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// string takes a string with its length before it. A negative length, which means null elsewhere, is no string.
func (r *reader) string() string { return string(r.take(int(int16(r.uint16())))) }
