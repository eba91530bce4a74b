package summary

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/txn"
)

// A Summary that has lived through any history gives the answers of a walk over all bytes of the log, after each step of it. To
// replay a seed, put it in the place of rand.Uint64().
func TestSummaryAnswersAsAFreshWalk(t *testing.T) {
	seed := rand.Uint64()
	restored, stale := 0, 0
	for i := range uint64(600) {
		h := newHistory(seed + i)
		if err := h.run(80); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed+i, err, strings.Join(h.trace, "\n"))
		}
		restored, stale = restored+h.restored, stale+h.stale
	}
	if restored < 300 || stale < 30 {
		t.Fatalf("%d checkpoints restored, %d stale: the histories test too little", restored, stale)
	}
}

// history drives one log and its Summary.
type history struct {
	*rand.Rand
	log   fakeLog
	s     *Summary
	trace []string

	// What is durable: the log up to synced, a start at or above syncedStart, checkpoints.
	synced, syncedStart int64
	trimmed             [][]byte // by retention since the last sync: a crash may bring it back
	heads               []checkpoint
	stored              map[int64][]byte

	interval        int64
	unknown         bool // something happened to the log that the Summary was not told of
	restored, stale int
}

type checkpoint struct {
	Piece
	start, end int64
	epoch      int32
	last       []byte // batch
}

func newHistory(seed uint64) *history {
	rng := rand.New(rand.NewPCG(seed, 0))
	h := &history{Rand: rng, stored: map[int64][]byte{}, interval: 200 + rng.Int64N(2000)}
	h.log.reset(rng.Int64N(50))
	h.log.keepsGaps = rng.IntN(2) == 0
	h.fresh()
	return h
}

func (h *history) fresh() {
	h.s = New(h.log.start)
	h.s.Interval = h.interval
	h.unknown = true
}

func (h *history) note(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...)+fmt.Sprintf("   log [%d, %d)", h.log.start, h.log.end))
}

func (h *history) run(steps int) error {
	for range steps {
		if err := h.step(); err != nil {
			return err
		}
		if h.unknown && h.IntN(3) > 0 {
			if err := h.s.CatchUp(context.Background(), &h.log); err != nil {
				return err
			}
			h.unknown = false
			h.note("catch up")
		}
		if h.unknown {
			continue
		}
		if err := check(h.s, &h.log); err != nil {
			return err
		}
		if err := h.lookBack(); err != nil {
			return err
		}
		again := New(h.log.start)
		if err := again.CatchUp(context.Background(), &h.log); err != nil {
			return err
		}
		if err := check(again, &h.log); err != nil {
			return fmt.Errorf("a new summary: %w", err)
		}
	}
	return nil
}

// lookBack asks what was open where some batch ends, and compares with a walk over a log that ends there.
func (h *history) lookBack() error {
	if len(h.log.batches) == 0 {
		return nil
	}
	offset := next(h.log.batches[h.IntN(len(h.log.batches))])
	short := fakeLog{start: h.log.start, end: h.log.end, batches: slices.Clone(h.log.batches), keepsGaps: h.log.keepsGaps}
	short.truncateTo(offset)
	got, err := h.s.Fork(offset).OpenAt(context.Background(), &h.log, offset)
	if err != nil {
		return err
	}
	open := func(list []txn.Open) map[int64]int64 { // the first offset may be the log's start
		m := make(map[int64]int64)
		for _, o := range list {
			m[o.ProducerID] = o.Next
		}
		return m
	}
	if want := short.walk().open; !maps.Equal(open(got), open(want)) {
		return fmt.Errorf("open at offset %d: %v, a walk finds %v", offset, got, want)
	}
	return nil
}

func (h *history) step() error {
	switch n := h.IntN(100); {
	case n < 65:
		return h.append()
	case n < 73:
		h.cut()
	case n < 80:
		h.retain()
	case n < 81:
		start := h.Int64N(h.log.end + 20)
		h.log.reset(start)
		h.durable()
		h.s.Reset(start)
		h.note("reset to %d", start)
	case n < 90:
		return h.checkpoint()
	default:
		return h.crash()
	}
	return nil
}

func (h *history) append() error {
	epoch := h.s.Epochs().Latest()
	for _, b := range slices.Concat(h.trimmed, h.log.batches) { // the Summary may be behind
		x, _ := batch.Parse(b)
		epoch = max(epoch, x.LeaderEpoch)
	}
	for _, c := range h.heads { // or have lost what the state still knows
		epoch = max(epoch, c.epoch)
	}
	epoch += []int32{0, 0, 0, 0, 1, 3}[h.IntN(6)]
	at, pid := h.log.end, h.Int64N(6)
	if h.IntN(5) == 0 {
		at += h.Int64N(6) // a gap
	}
	var b []byte
	records := make([]batch.Record, 1+h.IntN(3))
	records[0].Value = make([]byte, h.IntN(200))
	head := batch.Header{Base: at, LeaderEpoch: epoch, BaseTimestamp: h.Int64N(1000), ProducerID: -1, LastOffsetDelta: h.Int32N(5)}
	var kind string
	switch n := h.IntN(20); {
	case n < 3:
		kind, b = "plain", batch.Append(nil, head, records)
	case n < 5:
		head.ProducerID = pid + 100
		kind, b = "idempotent", batch.Append(nil, head, records)
	case n < 12:
		head.ProducerID, head.Attributes = pid, batch.Transactional
		kind, b = "transactional", batch.Append(nil, head, records)
	case n < 14:
		head.ProducerID, head.Attributes = pid, batch.Transactional*int16(h.IntN(2))
		kind, b = "empty", batch.Append(nil, head, nil)
	case n < 15: // compaction took the marker out of its batch
		head.ProducerID, head.Attributes = pid, 0x30
		kind, b = "empty control", batch.Append(nil, head, nil)
	case n < 16:
		kind, b = "reset batch", batch.AppendControl(nil, at, epoch, pid, 0, batch.Control{Type: batch.ControlMirrorPIDReset}, 5)
	default:
		c := batch.Control{Type: int16(h.IntN(2)), CoordinatorEpoch: 7}
		kind, b = []string{"abort", "commit"}[c.Type], batch.AppendControl(nil, at, epoch, pid, 1, c, 5)
	}
	h.log.append(b)
	h.note("%s of producer %d at %d, epoch %d", kind, pid, at, epoch)
	if h.unknown || h.IntN(8) == 0 { // the host appended past the Summary
		h.unknown = true
		return nil
	}
	x, raw, err := batch.Next(b)
	if err != nil {
		return err
	}
	return h.s.Observe(&x, raw)
}

// durable notes a call that is durable on return, and before which the checkpoints were withdrawn.
func (h *history) durable() {
	h.heads, h.trimmed = nil, nil
	h.synced, h.syncedStart = min(h.synced, h.log.end), h.log.start
}

func (h *history) cut() {
	end := h.log.end - h.Int64N(1+min(30, h.log.end))
	if h.IntN(3) == 0 {
		end = max(0, h.log.start-3) + h.Int64N(h.log.end-h.log.start+4)
	}
	h.log.truncateTo(end)
	h.durable()
	h.note("cut to %d", end)

	failing := h.log.reads + 1 + h.IntN(6)
	h.log.onRead = func() error {
		if h.log.reads >= failing {
			return errors.New("a failing disk")
		}
		return nil
	}
	defer func() { h.log.onRead = nil }()
	if h.IntN(5) == 0 { // the host's own cut, seen when the end is lower
		h.unknown = h.s.CatchUp(context.Background(), &h.log) != nil
	} else {
		h.unknown = h.s.Cut(context.Background(), &h.log, end) != nil
	}
}

func (h *history) retain() {
	start := h.log.start + h.Int64N(h.log.end-h.log.start+1)
	switch h.IntN(10) {
	case 0:
		start = h.log.end
	case 1:
		start = h.log.end + 1 + h.Int64N(20)
	}
	before := h.log
	h.log.advanceStart(start)
	h.trimmed = append(h.trimmed, before.batches[:len(before.batches)-len(h.log.batches)]...)
	if start > before.end {
		h.durable()
		h.synced = start
	}
	h.note("start to %d", start)
	if h.unknown || h.IntN(3) == 0 {
		h.unknown = true
		return
	}
	h.s.AdvanceStart(start)
}

func (h *history) checkpoint() error {
	if h.unknown && h.s.End() > h.log.end || h.s.Start() != h.log.start {
		return nil
	}
	if h.s.Due() == (h.IntN(4) == 0) { // mostly when it is due, but not only
		return nil
	}
	h.synced, h.syncedStart, h.trimmed = h.log.end, h.log.start, nil
	pieces := h.s.Checkpoint()
	if h.s.Due() {
		return errors.New("due again at once")
	}
	c := checkpoint{Piece: pieces[0], start: h.s.Start(), end: h.s.End(), epoch: h.s.Epochs().Latest()}
	for _, b := range h.log.batches {
		if next(b) <= c.end {
			c.last = b
		}
	}
	h.heads = append(h.heads, c)
	for _, p := range pieces[1:] {
		if old, ok := h.stored[p.ID]; ok && !slices.Equal(old, p.Data) {
			return fmt.Errorf("piece %d changed", p.ID)
		}
		h.stored[p.ID] = p.Data
	}
	h.note("checkpoint of [%d, %d)", c.start, c.end)
	return nil
}

// crash loses batches that were not synced, and perhaps an advance of the start; then a checkpoint, not always the newest, is restored.
func (h *history) crash() error {
	kind := "reopened"
	if h.IntN(3) > 0 {
		kind = "crashed"
		floor := h.synced
		if h.IntN(6) == 0 { // the disk lied about a sync
			kind, floor = "crashed badly", h.log.start
		}
		if lost := h.log.end - max(floor, h.log.start); lost > 0 {
			h.log.truncateTo(h.log.end - h.Int64N(lost+1))
		}
		if len(h.trimmed) > 0 && h.IntN(2) == 0 {
			kind += ", start undone"
			h.log.batches = slices.Concat(h.trimmed, h.log.batches)
			h.log.start = h.syncedStart
		}
		h.trimmed, h.syncedStart = nil, h.log.start
	}
	h.synced = min(h.synced, h.log.end)
	h.note("%s", kind)

	h.s = nil
	if len(h.heads) > 0 {
		c := h.heads[len(h.heads)-1]
		if h.IntN(4) == 0 {
			c = h.heads[h.IntN(len(h.heads))]
		}
		pieces := []Piece{c.Piece}
		for id, data := range h.stored {
			pieces = append(pieces, Piece{id, data})
		}
		h.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		s, err := Restore(context.Background(), &h.log, pieces)
		fits := h.log.start >= c.start && h.log.end >= c.end && h.log.start <= c.end
		if fits && (c.last == nil || next(c.last) <= h.log.start) {
			fits = h.log.end == c.end || c.last == nil && h.log.start == c.end
		}
		if (err == nil) != fits || err != nil && !errors.Is(err, ErrStale) {
			return fmt.Errorf("checkpoint of [%d, %d): fits %v, restored with %v", c.start, c.end, fits, err) //nolint:errorlint // it may be nil
		}
		if s != nil {
			h.restored++
			s.Interval, h.s, h.unknown = h.interval, s, true
			h.note("restored from [%d, %d)", c.start, c.end)
		} else {
			h.stale++
		}
	}
	if h.s == nil {
		h.fresh()
	}
	// Those that know what is lost would name other bytes once the log has grown again.
	h.heads = slices.DeleteFunc(h.heads, func(c checkpoint) bool { return c.end > h.log.end || c.start > h.log.start })
	return nil
}
