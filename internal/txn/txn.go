// Package txn keeps what a partition's log says of transactions: which are open, which were aborted, and the greatest producer
// id that ever occurred.
package txn

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sort"

	"github.com/clustermirror/mirror/internal/batch"
)

// Open is a transaction without a marker yet.
type Open struct {
	ProducerID  int64
	FirstOffset int64 // of its first batch; the log's start if that lies below it
	Next        int64 // offset after its last batch so far
	Timestamp   int64 // greatest of its first batch, ms; -1: none
}

// Aborted is a transaction that ended with an ABORT marker.
type Aborted struct {
	ProducerID  int64
	FirstOffset int64 // of its first batch
	LastOffset  int64 // of its marker
}

// chunkEntries is the number of aborted transactions after which a part of the list is sealed.
const chunkEntries = 4096

// Table is the table of one log. The zero value is that of an empty log that starts at 0. Not safe for concurrent use.
//
// Transactions are keyed by producer id alone: newer markers carry the producer's next epoch. A marker of a producer that has
// nothing open is legal (compaction took the batches, or retention did) and leaves no trace. A MIRROR_PID_RESET ends no
// transaction: whoever writes one has written the markers before. It says that sequence numbers of before mean nothing
// after it, and no sequence number is kept here.
type Table struct {
	start    int64 // of the log
	greatest int64 // producer id with all bits inverted, so that the zero value says -1: none
	open     queue

	// The aborted transactions in the order of their markers: full chunks that never change, then the tail. Only the
	// tail is written anew by each checkpoint.
	sealed []chunk
	tail   []Aborted
	chunks int64 // number of chunks ever sealed, those cut off included
	taken  int64 // number of transactions that AdvanceStart took off the front of the list
}

// chunk is a sealed part of the aborted list, kept as the bytes that a checkpoint stores.
type chunk struct {
	id    int64 // number<<32 | CRC-32C of data
	first int64 // smallest FirstOffset
	data  []byte
}

func (c *chunk) at(i int) Aborted { return getAborted(c.data[i*abortedSize:]) }

func (c *chunk) last() int64 { return c.at(chunkEntries - 1).LastOffset }

// Reset forgets everything but the greatest producer id and the numbers of chunks: the log is empty and goes on at start.
func (t *Table) Reset(start int64) {
	*t = Table{start: start, greatest: t.greatest, chunks: t.chunks}
}

// Observe notes one batch. control is the record of a control batch; nil for a data batch, and for a control batch whose record
// compaction took.
//
// A data batch without records opens nothing. Compaction leaves such batches, only below the last stable offset of its time,
// and may have taken their marker: a transaction opened by one would hang for ever.
func (t *Table) Observe(h *batch.Header, control *batch.Control) {
	t.greatest = ^max(^t.greatest, h.ProducerID)
	switch {
	case control != nil:
		if !control.EndsTransaction() {
			return
		}
		o, ok := t.open.remove(h.ProducerID)
		if ok && control.Type == batch.ControlAbort {
			t.abort(Aborted{h.ProducerID, o.FirstOffset, h.Next() - 1})
		}
	case h.Transactional() && !h.Control() && h.ProducerID >= 0 && h.Records > 0:
		t.open.add(Open{h.ProducerID, max(h.Base, t.start), h.Next(), h.MaxTimestamp})
	}
}

func (t *Table) abort(a Aborted) {
	t.tail = append(t.tail, a)
	if len(t.tail) < chunkEntries {
		return
	}
	c := chunk{first: t.tail[0].FirstOffset, data: make([]byte, 0, chunkEntries*abortedSize)}
	for _, a := range t.tail {
		c.first = min(c.first, a.FirstOffset)
		c.data = appendAborted(c.data, a)
	}
	t.chunks++
	c.id = t.chunks<<32 | int64(sum(c.data))
	t.sealed, t.tail = append(t.sealed, c), nil
}

// LastStable is the first offset of the oldest open transaction, or end if none is open.
func (t *Table) LastStable(end int64) int64 {
	if o, ok := t.open.oldest(); ok {
		return min(o.FirstOffset, end)
	}
	return end
}

// Open are the open transactions, by first offset.
func (t *Table) Open() []Open { return t.open.list() }

// GreatestProducerID is the greatest producer id ever observed; -1 if there was none. It never falls, whatever is cut: an id
// that was once here is not handed out again.
func (t *Table) GreatestProducerID() int64 { return ^t.greatest }

// Aborted are the aborted transactions that overlap [from, to), by first offset. A first offset below the log's start is answered
// as the start.
func (t *Table) Aborted(from, to int64) []Aborted {
	from = max(from, t.start)
	var found []Aborted
	take := func(a Aborted) {
		if a.FirstOffset < to && a.LastOffset >= from {
			a.FirstOffset = max(a.FirstOffset, t.start)
			found = append(found, a)
		}
	}
	for i := range t.sealed {
		// Markers ascend, first offsets do not: a chunk is passed over only if no entry of it begins below to.
		if c := &t.sealed[i]; c.first < to && c.last() >= from {
			begin := sort.Search(chunkEntries, func(i int) bool { return c.at(i).LastOffset >= from })
			for i := begin; i < chunkEntries; i++ {
				take(c.at(i))
			}
		}
	}
	for _, a := range t.tail {
		take(a)
	}
	slices.SortStableFunc(found, func(a, b Aborted) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return found
}

// AdvanceStart follows the log's start upwards. A transaction of which no data is left is no longer open; of one that began below
// start, start becomes the first offset. Aborted transactions whose marker is gone are dropped.
func (t *Table) AdvanceStart(start int64) {
	if start <= t.start {
		return
	}
	t.start = start
	t.open.advance(start)
	for len(t.sealed) > 0 && t.sealed[0].last() < start {
		t.sealed[0] = chunk{} // for the garbage collector: the array behind the slice lives on
		t.sealed = t.sealed[1:]
		t.taken += chunkEntries
	}
	if len(t.sealed) > 0 {
		return
	}
	gone := sort.Search(len(t.tail), func(i int) bool { return t.tail[i].LastOffset >= start })
	if gone > 0 {
		t.tail = slices.Clone(t.tail[gone:])
		t.taken += int64(gone)
	}
}

// Mark is the state of a Table at one offset, to go back to.
type Mark struct {
	open    []Open
	aborted int64 // number of aborted transactions ever, those taken off the front included
}

// Mark notes the present state. It costs nothing but a copy of the open transactions.
func (t *Table) Mark() Mark {
	return Mark{open: t.open.list(), aborted: t.taken + t.length()}
}

// Begin lets an empty table of a log begin with the transactions that were open at a mark of another table of it.
func (t *Table) Begin(m Mark) {
	for _, o := range m.open {
		t.open.add(o)
	}
	t.open.advance(t.start)
}

func (t *Table) length() int64 { return int64(len(t.sealed)*chunkEntries + len(t.tail)) }

// Rewind goes back to a mark of this table, of an offset at or above the log's start, after the log was cut to that offset. Marks
// made after it become invalid, as do all by Reset. The greatest producer id stays.
func (t *Table) Rewind(m Mark) {
	t.open = queue{}
	t.Begin(m)
	keep := max(m.aborted-t.taken, 0)
	if n := keep / chunkEntries; n < int64(len(t.sealed)) {
		// The entries of a chunk that was sealed too late go back to the tail; its number is spent.
		c := t.sealed[n]
		t.sealed, t.tail = t.sealed[:n:n], nil
		for i := range int(keep % chunkEntries) {
			t.tail = append(t.tail, c.at(i))
		}
		return
	}
	t.tail = t.tail[:keep-int64(len(t.sealed)*chunkEntries)]
}

// Chunk is a sealed part of the aborted list. Its ID, above 0, stands for its Data for ever: it holds the chunk's number, which is
// not used again after a cut, and a CRC, should a crash bring back a checkpoint that did not know of the number.
type Chunk struct {
	ID   int64
	Data []byte
}

// Chunks are the sealed parts, oldest first. The caller does not change Data.
func (t *Table) Chunks() []Chunk {
	out := make([]Chunk, len(t.sealed))
	for i, c := range t.sealed {
		out[i] = Chunk{c.id, c.data}
	}
	return out
}

// ErrCorrupt is wrapped by every error of Decode.
var ErrCorrupt = errors.New("transaction table is corrupt")

const (
	abortedSize = 24
	openSize    = 32
	chunkIDSize = 8
)

// AppendBinary appends everything but the sealed parts, of which it gives the ids:
//
//	int64 greatest producer id, int64 number of chunks ever sealed
//	uint32 n, n times: int64 producer id, first offset, next offset, timestamp    open
//	uint32 n, n times: int64 id                                                   sealed chunks
//	uint32 n, n times: int64 producer id, first offset, last offset               tail of the aborted list
func (t *Table) AppendBinary(dst []byte) []byte {
	dst = appendInts(dst, ^t.greatest, t.chunks)
	open := t.open.list()
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(open)))
	for _, o := range open {
		dst = appendInts(dst, o.ProducerID, o.FirstOffset, o.Next, o.Timestamp)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(t.sealed)))
	for _, c := range t.sealed {
		dst = appendInts(dst, c.id)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(t.tail)))
	for _, a := range t.tail {
		dst = appendAborted(dst, a)
	}
	return dst
}

// Decode takes the table of a log that starts at start off the front of b, and answers what follows it. find gives the data of
// a sealed chunk, nil if there is none; the table keeps the slices.
func Decode(b []byte, start int64, find func(id int64) []byte) (t Table, rest []byte, err error) {
	bad := func(format string, args ...any) (Table, []byte, error) {
		return Table{}, nil, fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
	}
	if len(b) < 16 {
		return bad("cut short")
	}
	t.start, t.greatest, t.chunks = start, ^getInt(b, 0), getInt(b, 1)
	if ^t.greatest < -1 || t.chunks < 0 {
		return bad("greatest producer id %d, %d chunks", ^t.greatest, t.chunks)
	}
	b = b[16:]

	open, b, ok := list(b, openSize)
	if !ok {
		return bad("open transactions cut short")
	}
	first := t.start // offset of the open transaction before
	for ; len(open) > 0; open = open[openSize:] {
		o := Open{getInt(open, 0), getInt(open, 1), getInt(open, 2), getInt(open, 3)}
		_, twice := t.open.index[o.ProducerID]
		if o.ProducerID < 0 || twice || o.FirstOffset < first || o.Next <= o.FirstOffset {
			return bad("open transaction of producer %d from %d to %d", o.ProducerID, o.FirstOffset, o.Next)
		}
		first = o.FirstOffset
		t.open.add(o)
	}

	ids, b, ok := list(b, chunkIDSize)
	if !ok {
		return bad("ids of chunks cut short")
	}
	marker := int64(-1) // offset of the marker before
	check := func(a Aborted) bool {
		ok := a.FirstOffset >= 0 && a.FirstOffset <= a.LastOffset && a.LastOffset > marker
		marker = a.LastOffset
		return ok
	}
	for number := int64(0); len(ids) > 0; ids = ids[chunkIDSize:] {
		c := chunk{id: getInt(ids, 0)}
		if c.id>>32 <= number || c.id>>32 > t.chunks {
			return bad("chunk %d of %d follows chunk %d", c.id>>32, t.chunks, number)
		}
		number = c.id >> 32
		c.data = find(c.id)
		if len(c.data) != chunkEntries*abortedSize || sum(c.data) != uint32(c.id) {
			return bad("chunk %d is missing or damaged", number)
		}
		c.first = c.at(0).FirstOffset
		for i := range chunkEntries {
			if !check(c.at(i)) {
				return bad("chunk %d: entry %d", number, i)
			}
			c.first = min(c.first, c.at(i).FirstOffset)
		}
		t.sealed = append(t.sealed, c)
	}

	tail, b, ok := list(b, abortedSize)
	if !ok || len(tail) >= chunkEntries*abortedSize {
		return bad("aborted transactions cut short or too many")
	}
	for ; len(tail) > 0; tail = tail[abortedSize:] {
		a := getAborted(tail)
		if !check(a) {
			return bad("aborted transaction of producer %d from %d to %d", a.ProducerID, a.FirstOffset, a.LastOffset)
		}
		t.tail = append(t.tail, a)
	}
	return t, b, nil
}

// list takes a counted list of items off the front of b.
func list(b []byte, size int) (items, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := int64(binary.BigEndian.Uint32(b)) * int64(size)
	if b = b[4:]; n > int64(len(b)) {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

func appendAborted(dst []byte, a Aborted) []byte {
	return appendInts(dst, a.ProducerID, a.FirstOffset, a.LastOffset)
}

func getAborted(b []byte) Aborted { return Aborted{getInt(b, 0), getInt(b, 1), getInt(b, 2)} }

func appendInts(dst []byte, vs ...int64) []byte {
	for _, v := range vs {
		dst = binary.BigEndian.AppendUint64(dst, uint64(v))
	}
	return dst
}

func getInt(b []byte, i int) int64 { return int64(binary.BigEndian.Uint64(b[8*i:])) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
