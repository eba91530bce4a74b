// Package epochs keeps the leader-epoch table of one partition's log: which leader epoch begins at which offset (KIP-101,
// KIP-279, KIP-595).
package epochs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Entry says that the batches from offset Start on carry the epoch, up to the next entry's Start.
//
// An epoch starts where the batch before it ended, not at the base of its own first batch. In a gap between the two nothing
// can be compared: counted to the newer epoch it is cut and fetched again where logs part, counted to the older one it would
// be kept unseen.
type Entry struct {
	Epoch int32
	Start int64
}

// Table is the table of one log. The zero value is that of an empty log that starts at 0. It is a value: a copy stays as it
// was whatever is done with the original, provided that only one of them is changed. Not safe for concurrent changes.
//
// Epochs in a log never fall. A batch with a lower epoch than one before it, or with none (-1), changes nothing here: it is
// answered as if it had the greatest epoch before it.
type Table struct {
	start int64 // of the log

	// entries ascend strictly by epoch and start. The first one may start below the log: it is the epoch in force at start-1,
	// which no byte of the log shows any more if the next entry begins at start or the log is empty. It keeps its own start,
	// so that a cut tells it from an epoch that begins at the log's start and goes with its batches.
	entries []Entry
}

// Reset forgets everything: the log is empty and goes on at start.
func (t *Table) Reset(start int64) { *t = Table{start: start} }

// Assign notes that a batch of the epoch follows; start is where the batch before it ended (or the log's start). An epoch at or
// below the latest one changes nothing.
func (t *Table) Assign(epoch int32, start int64) {
	if epoch > t.Latest() {
		t.entries = append(t.entries, Entry{epoch, start})
	}
}

// Latest is the greatest epoch, that of the batch before the end of the log; -1 if there is none. An empty log keeps the epoch
// that it had when retention took the last batch.
func (t *Table) Latest() int32 {
	if len(t.entries) == 0 {
		return -1
	}
	return t.entries[len(t.entries)-1].Epoch
}

// EndOf answers OffsetForLeaderEpoch as Kafka's leader does: the greatest epoch here at or below the one asked for, and where it
// ends: where the next one starts, logEnd for the latest. An epoch below all of them ends where the first one starts, and is
// itself the answer's epoch. (-1, -1) for an epoch above the latest, or below 0: nothing is known of it. A leader whose own
// epoch is above the table's latest asks for the latest when it is asked for its own.
func (t *Table) EndOf(epoch int32, logEnd int64) (found int32, end int64) {
	latest := t.Latest()
	switch {
	case epoch < 0 || epoch > latest:
		return -1, -1
	case epoch == latest:
		return latest, logEnd
	}
	next := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].Epoch > epoch })
	end = max(t.entries[next].Start, t.start)
	if next == 0 {
		return epoch, end
	}
	return t.entries[next-1].Epoch, end
}

// At is the epoch in force at the offset; that of the batch before an offset o is At(o-1). -1 if it is not known, the latest
// beyond the end.
func (t *Table) At(offset int64) int32 {
	next := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].Start > offset })
	if next == 0 {
		return -1
	}
	return t.entries[next-1].Epoch
}

// Cut forgets what starts at or above end, the log's end after a cut. The epoch in force below the log's start stays.
func (t *Table) Cut(end int64) {
	n := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].Start >= max(end, t.start) })
	t.entries = t.entries[:n:n] // the next Assign must not write into copies
}

// AdvanceStart follows the log's start upwards: of the entries that start below it only the last is kept.
func (t *Table) AdvanceStart(start int64) {
	if start <= t.start {
		return
	}
	t.start = start
	if below := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].Start >= start }); below > 1 {
		t.entries = slices.Clone(t.entries[below-1:])
	}
}

// Entries is a copy of the epochs in force from the log's start on, the first one moved up to it. Of an empty log it is the
// epoch that the log had last, if that is known.
func (t *Table) Entries() []Entry {
	e := slices.Clone(t.entries)
	if len(e) > 1 && e[1].Start <= t.start {
		e = e[1:]
	}
	if len(e) > 0 {
		e[0].Start = max(e[0].Start, t.start)
	}
	return e
}

// ErrCorrupt is wrapped by every error of Decode.
var ErrCorrupt = errors.New("leader-epoch table is corrupt")

const entrySize = 12

// AppendBinary appends the table: uint32 number of entries, then int32 epoch and int64 start of each.
func (t *Table) AppendBinary(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(t.entries)))
	for _, e := range t.entries {
		dst = binary.BigEndian.AppendUint32(dst, uint32(e.Epoch))
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.Start))
	}
	return dst
}

// Decode takes the table of a log that starts at start off the front of b, and answers what follows it.
func Decode(b []byte, start int64) (t Table, rest []byte, err error) {
	if len(b) < 4 {
		return Table{}, nil, fmt.Errorf("%w: cut short", ErrCorrupt)
	}
	t.start = start
	n := int64(binary.BigEndian.Uint32(b))
	b = b[4:]
	if n > int64(len(b)/entrySize) {
		return Table{}, nil, fmt.Errorf("%w: %d entries claimed in %d bytes", ErrCorrupt, n, len(b))
	}
	for range n {
		t.entries = append(t.entries, Entry{int32(binary.BigEndian.Uint32(b)), int64(binary.BigEndian.Uint64(b[4:]))})
		b = b[entrySize:]
	}
	if err := t.valid(); err != nil {
		return Table{}, nil, err
	}
	return t, b, nil
}

// valid states what every method relies on and keeps. It is asked at the gateway only.
func (t *Table) valid() error {
	for i, e := range t.entries {
		switch {
		case e.Epoch < 0 || e.Start < 0:
			return fmt.Errorf("%w: epoch %d starts at %d", ErrCorrupt, e.Epoch, e.Start)
		case i > 0 && (e.Epoch <= t.entries[i-1].Epoch || e.Start <= t.entries[i-1].Start):
			return fmt.Errorf("%w: epoch %d at %d follows epoch %d at %d", ErrCorrupt, e.Epoch, e.Start, t.entries[i-1].Epoch, t.entries[i-1].Start)
		case i > 0 && t.entries[i-1].Start < t.start && e.Start < t.start:
			return fmt.Errorf("%w: epochs %d and %d both start below the log, at %d", ErrCorrupt, t.entries[i-1].Epoch, e.Epoch, t.start)
		}
	}
	return nil
}
