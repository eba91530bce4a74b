package summary

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/epochs"
	"github.com/clustermirror/mirror/internal/txn"
)

// Piece is a part of a checkpoint. The one with ID 0 is the head and differs each time. Any other ID stands for the same Data
// for ever, so a piece that is stored already need not be stored again, and one that a later checkpoint no longer has can be
// dropped. Data is not to be changed.
type Piece struct {
	ID   int64
	Data []byte
}

// ErrStale is wrapped by Restore's error for a checkpoint that does not fit the log: the caller begins with an empty Summary and
// walks from the log's start.
var ErrStale = errors.New("checkpoint does not fit the log")

// The head: int8 version, int64 start and end of the log, int64 base and next offset and uint32 CRC of the last batch (all 0: none),
// the leader-epoch table, the transaction table, uint32 CRC-32C of all that.
const (
	headVersion = 1
	headFixed   = 1 + 4*8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Due says that a checkpoint is worth its bytes: Interval bytes were observed since the last one, or the log was cut, or retention
// emptied it, so that its last epoch stands nowhere else.
func (s *Summary) Due() bool { return s.sinceCheckpoint >= s.Interval }

// Unsaved says that something was observed, cut or dropped since the last checkpoint.
func (s *Summary) Unsaved() bool { return s.sinceCheckpoint > 0 }

// Checkpoint is the present state, to be stored once the log is durable up to End, pieces before the head. It must be
// withdrawn, durably, before the log is cut below End or reset.
func (s *Summary) Checkpoint() []Piece {
	s.sinceCheckpoint = 0
	head := append(make([]byte, 0, 256), headVersion)
	for _, v := range []int64{s.start, s.end, s.last.base, s.last.next} {
		head = binary.BigEndian.AppendUint64(head, uint64(v))
	}
	head = binary.BigEndian.AppendUint32(head, s.last.crc)
	head = s.epochs.AppendBinary(head)
	head = s.txn.AppendBinary(head)
	head = binary.BigEndian.AppendUint32(head, crc32.Checksum(head, castagnoli))

	pieces := []Piece{{Data: head}}
	for _, c := range s.txn.Chunks() {
		pieces = append(pieces, Piece(c))
	}
	return pieces
}

// Restore is the Summary that the pieces of a checkpoint tell of, in any order; pieces of others do no harm. End is where
// it was then: CatchUp does the rest. It proves that the log still holds the last batch of then, by offset and CRC, or is empty
// at exactly the end of then. ErrStale if it does not or if the pieces are damaged; other errors are the log's own. It reads the
// log.
func Restore(ctx context.Context, r Reader, pieces []Piece) (*Summary, error) {
	stale := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrStale}, args...)...)
	}
	s, err := decode(pieces)
	if err != nil {
		return nil, stale("%w", err)
	}

	start, end := r.Bounds()
	if start < s.start || start > s.end || end < s.end {
		return nil, stale("it covers [%d, %d), the log is [%d, %d)", s.start, s.end, start, end)
	}
	wasEmpty := !s.last.ok()
	s.AdvanceStart(start)
	if !s.last.ok() {
		// A log that was empty may have grown from there since: nothing of it lies below.
		if end != s.end && !(wasEmpty && start == s.end) {
			return nil, stale("the log starts at %d and goes on to %d", start, end)
		}
		return s, nil
	}

	buf := make([]byte, batch.HeaderSize)
	n, err := r.Read(ctx, max(s.last.base, start), buf)
	if err != nil {
		return nil, fmt.Errorf("offset %d: %w", s.last.base, err)
	}
	h, err := batch.Parse(buf[:n])
	if err != nil {
		return nil, stale("%w", err)
	}
	if got := (lastBatch{h.Base, h.Next(), h.CRC}); got != s.last {
		return nil, stale("batch [%d, %d) has CRC %08x, the log holds [%d, %d) with %08x", s.last.base, s.last.next, s.last.crc, got.base, got.next, got.crc)
	}
	s.mark()
	return s, nil
}

// decode checks all that can be checked without the log.
func decode(pieces []Piece) (*Summary, error) {
	find := func(id int64) []byte {
		for _, p := range pieces {
			if p.ID == id {
				return p.Data
			}
		}
		return nil
	}
	head := find(0)
	if len(head) < headFixed+4 {
		return nil, errors.New("head missing or cut short")
	}
	if head[0] != headVersion {
		return nil, fmt.Errorf("version %d", head[0])
	}
	b, crc := head[:len(head)-4], binary.BigEndian.Uint32(head[len(head)-4:])
	if crc32.Checksum(b, castagnoli) != crc {
		return nil, errors.New("CRC of the head")
	}

	int64At := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[1+8*i:])) }
	s := New(int64At(0))
	s.end = int64At(1)
	s.last = lastBatch{int64At(2), int64At(3), binary.BigEndian.Uint32(b[headFixed-4:])}
	if s.start < 0 || s.end < s.start || s.last.base < 0 || s.last.next > s.end || s.last.ok() && (s.last.base >= s.last.next || s.last.next <= s.start) {
		return nil, fmt.Errorf("log [%d, %d) with last batch [%d, %d)", s.start, s.end, s.last.base, s.last.next)
	}
	var err error
	if s.epochs, b, err = epochs.Decode(b[headFixed:], s.start); err != nil {
		return nil, err
	}
	if s.txn, b, err = txn.Decode(b, s.start, find); err != nil {
		return nil, err
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d bytes too many", len(b))
	}
	return s, nil
}
