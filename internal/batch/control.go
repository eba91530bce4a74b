package batch

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Types of control records. KRaft's own (2 to 6) never occur in a topic that is mirrored, but their numbers are taken.
const (
	ControlAbort          int16 = 0
	ControlCommit         int16 = 1
	ControlLeaderChange   int16 = 2
	ControlSnapshotHeader int16 = 3
	ControlSnapshotFooter int16 = 4
	ControlKRaftVersion   int16 = 5
	ControlKRaftVoters    int16 = 6

	// ControlMirrorPIDReset ends the producer state of a partition at a takeover (KIP-1279's MIRROR_PID_RESET). The KIP has
	// not fixed the number: this is the one that is written.
	ControlMirrorPIDReset int16 = 7
)

// mirrorPIDResets lists every number that ever stood for MIRROR_PID_RESET in a log. Bytes are never rewritten, so readers
// accept all of them for ever; a change of ControlMirrorPIDReset adds to the list.
var mirrorPIDResets = []int16{ControlMirrorPIDReset}

const controlKeySize = 4 // int16 version, int16 type

// Control is what a control record says. A control batch holds one.
type Control struct {
	Type             int16
	Version          int16 // of the record's value
	CoordinatorEpoch int32 // ABORT and COMMIT only: of the transaction coordinator that decided
}

// EndsTransaction says that the record is a COMMIT or an ABORT.
func (c Control) EndsTransaction() bool { return c.Type == ControlAbort || c.Type == ControlCommit }

// PIDReset says that the record is a MIRROR_PID_RESET, under whichever number it was written.
func (c Control) PIDReset() bool { return slices.Contains(mirrorPIDResets, c.Type) }

// ParseControl reads the control record of the control batch that begins at b[0]. It looks at no more than the record's key and the
// first bytes of its value, so b may end before the batch does: ErrShort if it ends too early. Types that are not known are
// no error: they mean nothing to the reader.
func ParseControl(b []byte) (Control, error) {
	h, err := Parse(b)
	if err != nil {
		return Control{}, err
	}
	bad := func(what string) (Control, error) {
		return Control{}, fmt.Errorf("%w: offset %d: control record: %s", ErrCorrupt, h.Base, what)
	}
	switch {
	case !h.Control():
		return bad("the batch is none of control records")
	case h.Codec() != 0:
		return bad("compressed")
	case h.Records == 0:
		return bad("none in the batch")
	}

	whole := len(b) >= h.Size()
	if whole {
		b = b[:h.Size()]
	}
	// What is missing from a whole batch will never come.
	missing := func(what string) (Control, error) {
		if whole {
			return bad(what)
		}
		return Control{}, ErrShort
	}
	p := parser{b: b[HeaderSize:]}
	p.varint() // length
	p.byte()   // attributes
	p.varint() // timestamp delta
	p.varint() // offset delta
	keyLen := p.varint()
	if p.ok() && keyLen < controlKeySize {
		return bad("key too short")
	}
	key := p.take(keyLen)
	valueLen := p.varint()
	if !p.ok() {
		return missing("cut short")
	}
	c := Control{Type: int16(binary.BigEndian.Uint16(key[2:]))}
	if v := int16(binary.BigEndian.Uint16(key)); v < 0 {
		return bad("negative version")
	}
	if !c.EndsTransaction() {
		if valueLen >= 2 {
			if v := p.take(2); p.ok() {
				c.Version = int16(binary.BigEndian.Uint16(v))
			}
		}
		return c, nil
	}
	if valueLen < 6 {
		return bad("value too short")
	}
	v := p.take(6)
	if !p.ok() {
		return missing("cut short")
	}
	c.Version, c.CoordinatorEpoch = int16(binary.BigEndian.Uint16(v)), int32(binary.BigEndian.Uint32(v[2:]))
	if c.Version < 0 {
		return bad("negative version")
	}
	return c, nil
}

// AppendControl appends a control batch with one record at offset base. ABORT and COMMIT belong to the producer pid and are
// transactional; any other type belongs to no producer, whatever pid says: the reset of all producers least of all.
func AppendControl(dst []byte, base int64, epoch int32, pid int64, pidEpoch int16, c Control, timestampMs int64) []byte {
	h := Header{
		Base:          base,
		LeaderEpoch:   epoch,
		Attributes:    attrControl,
		BaseTimestamp: timestampMs,
		ProducerID:    -1,
		ProducerEpoch: -1,
		BaseSequence:  -1,
	}
	key := binary.BigEndian.AppendUint16(make([]byte, 0, controlKeySize), 0)
	key = binary.BigEndian.AppendUint16(key, uint16(c.Type))
	value := binary.BigEndian.AppendUint16(make([]byte, 0, 6), uint16(c.Version))
	if c.EndsTransaction() {
		h.Attributes |= attrTransactional
		h.ProducerID, h.ProducerEpoch = pid, pidEpoch
		value = binary.BigEndian.AppendUint32(value, uint32(c.CoordinatorEpoch))
	}
	return Append(dst, h, []Record{{Key: key, Value: value}})
}
