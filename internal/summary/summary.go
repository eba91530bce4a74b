// Package summary keeps what the library knows of one partition's log: leader epochs, transactions, the last batch. All of it
// comes from batch headers and control records, so it can be lost and found again; the log's bytes are the truth.
package summary

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/epochs"
	"github.com/clustermirror/mirror/internal/txn"
)

// Reader is the part of a host's log that a Summary reads.
type Reader interface {
	Bounds() (start, end int64)
	Read(ctx context.Context, offset int64, buf []byte) (n int, err error)
}

const (
	// DefaultInterval is the number of bytes of log between two checkpoints, and between two marks.
	DefaultInterval = 64 << 20

	// keptMarks bounds how far back a cut is cheap. Cuts are small: what an unclean election or a stop took.
	keptMarks = 4

	// readSize is what a walk reads at a time: small batches come many at once, of a large one little is read in vain.
	readSize = 4096
)

// ErrOrder is wrapped by the error for a batch that begins below the end.
var ErrOrder = errors.New("batch begins below the end of the log")

// Summary is what is known of one log from its start to End. Its answers are those of a fresh walk over the log, whatever
// happened before, with these exceptions, each of which tells more than the bytes do:
//
//   - the greatest producer id never falls;
//   - the leader epoch in force just below the log's start stays known (epochs.Table), also when retention has emptied the log;
//   - a transaction, open or aborted, that began below the log's start is answered as beginning at the start, where a fresh
//     walk would find its next batch, or in the case of an aborted one perhaps no batch. An open one counts as long as data
//     of it is left.
//
// Not safe for concurrent use: one goroutine owns it at a time. CatchUp, Cut and Restore read the log, so the owner holds no mutex
// across them; everything else is pure memory. After an error of CatchUp or Cut the Summary is right for the log up to End, and the
// next CatchUp goes on from there.
type Summary struct {
	// Interval is the number of bytes between two checkpoints, and between two marks: DefaultInterval unless changed.
	Interval int64

	start, end int64
	last       lastBatch
	epochs     epochs.Table
	txn        txn.Table
	marks      []mark // ascending; what a cut goes back to

	sinceMark       int64 // bytes
	sinceCheckpoint int64 // bytes
}

// lastBatch is the last batch of the log; the zero value says that there is none.
type lastBatch struct {
	base, next int64
	crc        uint32
}

func (l lastBatch) ok() bool { return l.next > 0 }

// mark is the state at the end of a batch, as far as it can't be found by cutting: a marker that was cut off reopens its
// transaction, and of committed ones no other trace is kept.
type mark struct {
	last lastBatch
	txn  txn.Mark
}

// New is the Summary of an empty log that starts at start.
func New(start int64) *Summary {
	s := &Summary{Interval: DefaultInterval}
	s.Reset(start)
	return s
}

// Start is the log's start as far as it is known here.
func (s *Summary) Start() int64 { return s.start }

// End is the offset up to which the log is known here.
func (s *Summary) End() int64 { return s.end }

// LastStable is the first offset of the oldest open transaction, or End.
func (s *Summary) LastStable() int64 { return s.txn.LastStable(s.end) }

// LastBatch names the last batch below End; not ok if none is held.
func (s *Summary) LastBatch() (base int64, crc uint32, ok bool) {
	return s.last.base, s.last.crc, s.last.ok()
}

// Epochs is the leader-epoch table. It is changed by this Summary only; a copy of the value may be given to readers.
func (s *Summary) Epochs() *epochs.Table { return &s.epochs }

// Txn is the table of transactions. It is changed by this Summary only.
func (s *Summary) Txn() *txn.Table { return &s.txn }

// Observe notes a batch that was appended at End or, after a gap, beyond. raw is the whole batch; only of control batches more
// than the header is looked at. On an error nothing is noted: ErrOrder, or batch.ErrCorrupt for a control record that can't be
// read. Whoever takes batches from outside asks batch.ParseControl before they are appended, for then it is too late.
func (s *Summary) Observe(h *batch.Header, raw []byte) error {
	// The log may start inside its first batch.
	if first := !s.last.ok() && h.Base < s.start && h.Next() > s.start; h.Base < s.end && !first {
		return fmt.Errorf("%w: base offset %d, end %d", ErrOrder, h.Base, s.end)
	}
	var control *batch.Control
	if h.Control() && h.Records > 0 {
		c, err := batch.ParseControl(raw)
		if err != nil {
			return err
		}
		control = &c
	}

	s.epochs.Assign(h.LeaderEpoch, max(s.last.next, s.start)) // not end: a gap after the last batch belongs to this one
	s.txn.Observe(h, control)
	s.last = lastBatch{base: h.Base, next: h.Next(), crc: h.CRC}
	s.end = s.last.next

	s.sinceCheckpoint += int64(h.Size())
	if s.sinceMark += int64(h.Size()); s.sinceMark >= s.Interval {
		s.mark()
	}
	return nil
}

func (s *Summary) mark() {
	if len(s.marks) == keptMarks {
		s.marks = append(s.marks[:0], s.marks[1:]...)
	}
	s.marks = append(s.marks, mark{last: s.last, txn: s.txn.Mark()})
	s.sinceMark = 0
}

// CatchUp follows the log to the end that it has at the call: over headers and control records appended past this Summary, to a
// start that the host advanced, down to an end that came out lower. It reads the log.
func (s *Summary) CatchUp(ctx context.Context, r Reader) error {
	end := s.follow(r)
	if end < s.end {
		s.rewind(end)
	}
	if s.end == end {
		return nil
	}
	buf := make([]byte, readSize)
	for s.end < end {
		offset := s.end
		n, err := r.Read(ctx, offset, buf)
		switch {
		case err != nil:
			// Retention may have passed by just then. That ends: each time End is further on.
			if s.follow(r); s.end > offset {
				continue
			}
		case n == 0:
			s.end = end // a gap after the last batch
		default:
			err = s.observeAll(buf[:n])
		}
		if err != nil {
			return fmt.Errorf("offset %d: %w", offset, err)
		}
	}
	return nil
}

// follow takes over the log's start and answers its end.
func (s *Summary) follow(r Reader) (end int64) {
	start, end := r.Bounds()
	if start < s.start { // it began anew, or a crash undid the loss of a prefix that is not known here
		s.Reset(start)
	}
	s.AdvanceStart(start)
	return end
}

// observeAll notes the batches in b, the last of which may be cut short. One at least is noted, or an error returned.
func (s *Summary) observeAll(b []byte) error {
	for first := true; ; first = false {
		h, err := batch.Parse(b)
		if err == nil {
			err = s.Observe(&h, b)
		}
		switch {
		case errors.Is(err, batch.ErrShort) && !first:
			return nil // to be read again, from its beginning
		case errors.Is(err, batch.ErrShort):
			return fmt.Errorf("%w: %d bytes of a batch tell too little of it", batch.ErrCorrupt, len(b))
		case err != nil:
			return err
		case h.Size() >= len(b):
			return nil
		}
		b = b[h.Size():]
	}
}

// Cut follows a cut of the log to end, or to below it if a batch reached beyond. It goes back to the newest mark at or below end,
// or to the log's start, and walks from there. It reads the log, and is to be called before anything else is observed.
func (s *Summary) Cut(ctx context.Context, r Reader, end int64) error {
	if end < s.end {
		s.rewind(end)
	}
	return s.CatchUp(ctx, r)
}

// rewind goes back to the newest mark at or below end. The batches up to it are still there, wherever the cut came out: they
// end at or below end.
func (s *Summary) rewind(end int64) {
	n := len(s.marks)
	for n > 0 && s.marks[n-1].last.next > end {
		n--
	}
	s.marks = s.marks[:n]
	var m mark // of the log's start
	if n > 0 {
		m = s.marks[n-1]
	}
	s.last, s.end = m.last, max(m.last.next, s.start)
	s.epochs.Cut(s.end)
	s.txn.Rewind(m.txn)
	s.sinceMark, s.sinceCheckpoint = 0, s.Interval
}

// Fork is what is known of transactions at the newest mark at or below an offset, for OpenAt. It shares nothing that changes.
func (s *Summary) Fork(offset int64) *Summary {
	f := New(s.start)
	for _, m := range slices.Backward(s.marks) {
		if m.last.next <= offset {
			f.last, f.end = m.last, m.last.next
			f.txn.Begin(m.txn)
			break
		}
	}
	return f
}

// OpenAt are the transactions that are open at an offset where a batch ends, of a log that goes on there. It walks a Fork of that offset up
// to it, and reads the log.
func (s *Summary) OpenAt(ctx context.Context, r Reader, offset int64) ([]txn.Open, error) {
	buf := make([]byte, readSize)
	for s.end < offset {
		n, err := r.Read(ctx, s.end, buf)
		var h batch.Header
		if err == nil {
			h, err = batch.Parse(buf[:n])
		}
		if err == nil && h.Base < offset {
			err = s.Observe(&h, buf[:n])
		}
		if err != nil {
			return nil, fmt.Errorf("offset %d: %w", s.end, err)
		}
		s.end = max(s.end, h.Next())
	}
	return s.txn.Open(), nil
}

// AdvanceStart follows the log's start upwards, as Log.AdvanceStart moves it: a start above End is a Reset.
func (s *Summary) AdvanceStart(start int64) {
	switch {
	case start <= s.start:
		return
	case start > s.end:
		s.Reset(start)
		return
	}
	s.start = start
	s.epochs.AdvanceStart(start)
	s.txn.AdvanceStart(start)
	gone := 0
	for gone < len(s.marks) && s.marks[gone].last.next <= start {
		gone++
	}
	s.marks = append(s.marks[:0], s.marks[gone:]...)
	if s.last.next <= start {
		s.last = lastBatch{}
		s.sinceCheckpoint = s.Interval
	}
}

// Reset forgets the log, which is empty and goes on at start.
func (s *Summary) Reset(start int64) {
	s.start, s.end, s.last, s.marks = start, start, lastBatch{}, nil
	s.epochs.Reset(start)
	s.txn.Reset(start)
	s.sinceMark, s.sinceCheckpoint = 0, 0
}
