package statelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// The two values that Kafka's KIP-1279 defines begin with a version, 0 as yet, and have no tagged fields.
const valueVersion = 0

// PartitionState is the value of a TypePartitionState key.
type PartitionState struct {
	State         int8
	LeaderEpoch   int32  // of the destination when this was written, -1: none
	StateEpoch    int32  // one higher with each change of the state
	Error         string // why State is FAILED; empty is written as null
	RetryAttempt  int16  // attempts since the first failure, -1: will not be retried
	PreviousState int8   // before the first failure, -1: none
}

// Append adds the value's bytes to dst. A text beyond 32,767 bytes is cut.
func (v PartitionState) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, valueVersion)
	dst = append(dst, byte(v.State))
	dst = binary.BigEndian.AppendUint32(dst, uint32(v.LeaderEpoch))
	dst = binary.BigEndian.AppendUint32(dst, uint32(v.StateEpoch))
	if v.Error == "" {
		dst = binary.BigEndian.AppendUint16(dst, math.MaxUint16)
	} else {
		dst = appendString(dst, cutText(v.Error, math.MaxInt16))
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(v.RetryAttempt))
	return append(dst, byte(v.PreviousState))
}

// ParsePartitionState is the reverse of PartitionState.Append.
func ParsePartitionState(b []byte) (v PartitionState, err error) {
	r := reader{b: b}
	version := int16(r.uint16())
	v.State = int8(r.uint8())
	v.LeaderEpoch = int32(r.uint32())
	v.StateEpoch = int32(r.uint32())
	if n := int16(r.uint16()); n != -1 {
		v.Error = string(r.take(int(n)))
	}
	v.RetryAttempt = int16(r.uint16())
	v.PreviousState = int8(r.uint8())
	if err := r.end(version); err != nil {
		return PartitionState{}, fmt.Errorf("partition state: %w", err)
	}
	return v, nil
}

// Position is the value of a TypePosition key: the last mirrored position. Offset -1 means that it is not known.
type Position struct {
	Epoch  int32
	Offset int64
}

// Append adds the value's bytes to dst.
func (v Position) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, valueVersion)
	dst = binary.BigEndian.AppendUint32(dst, uint32(v.Epoch))
	return binary.BigEndian.AppendUint64(dst, uint64(v.Offset))
}

// ParsePosition is the reverse of Position.Append.
func ParsePosition(b []byte) (v Position, err error) {
	r := reader{b: b}
	version := int16(r.uint16())
	v.Epoch = int32(r.uint32())
	v.Offset = int64(r.uint64())
	if err := r.end(version); err != nil {
		return Position{}, fmt.Errorf("last mirrored position: %w", err)
	}
	return v, nil
}

// end says whether the value had a version that is known, and exactly its fields.
func (r *reader) end(version int16) error {
	switch {
	case version != valueVersion:
		return fmt.Errorf("version %d of the value is not known: a newer release wrote it", version)
	case r.short:
		return errors.New("value is cut short")
	case len(r.b) > 0:
		return errors.New("value has bytes after its last field")
	}
	return nil
}

// cutText shortens s to at most n bytes without splitting a character.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
