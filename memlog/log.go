package memlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/clustermirror/mirror"
)

// log is one partition. Readers take the view as it stands and never wait; whoever changes the log puts a new one there.
type log struct {
	view atomic.Pointer[view]
	gone atomic.Bool // deleted or crashed; set under mu

	mu     sync.Mutex // held by whoever changes the log
	synced *view      // what is durable
}

func newLog(v *view) *log {
	l := &log{synced: v}
	l.view.Store(v)
	return l
}

// end makes the log answer ErrClosed, and says what it held and what of that is durable.
func (l *log) end() (now, synced *view) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone.Store(true)
	return l.view.Load(), l.synced
}

// change puts f's view in the place of the one before. f must not wait.
func (l *log) change(f func(*view) (*view, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone.Load() {
		return mirror.ErrClosed
	}
	v, err := f(l.view.Load())
	if err != nil {
		return err
	}
	l.view.Store(v)
	return nil
}

// view is a log at one moment. It never changes: a longer one may share its array of batches, as only elements beyond
// len(batches) are written, and a shorter one ends that sharing.
type view struct {
	start, end int64
	batches    []stored
}

type stored struct {
	base, next int64
	bytes      []byte
}

// find is the index of the first batch that reaches beyond offset.
func (v *view) find(offset int64) int {
	return sort.Search(len(v.batches), func(i int) bool { return v.batches[i].next > offset })
}

func (v *view) read(offset int64, buf []byte) (n int) {
	for _, b := range v.batches[v.find(offset):] {
		if n == len(buf) {
			break
		}
		n += copy(buf[n:], b.bytes)
	}
	return n
}

func (v *view) append(add []stored) *view {
	if len(add) == 0 {
		return v
	}
	return &view{start: v.start, end: add[len(add)-1].next, batches: append(v.batches, add...)}
}

// cut is the view without the batches that reach beyond end; end lies at or above the start.
func (v *view) cut(end int64) *view {
	n := v.find(end)
	if n == len(v.batches) {
		return v
	}
	cut := &view{start: v.start, end: v.start, batches: v.batches[:n:n]} // the next append must not write into v's array
	if n > 0 {
		cut.end = cut.batches[n-1].next
	}
	return cut
}

// advance is the view without what lies below start.
func (v *view) advance(start int64) *view {
	if start <= v.start {
		return v
	}
	return &view{start: start, end: max(start, v.end), batches: slices.Clone(v.batches[v.find(start):])} // cloned to let go of the rest
}

// crashed is what a crash leaves of a log that is now, and of which synced is durable.
func crashed(now, synced *view, rng *rand.Rand) *view {
	left := synced
	if now.start > synced.start && rng.IntN(2) == 0 {
		left = left.advance(now.start)
	}
	tail := now.batches[now.find(synced.end):]
	kept := &view{start: left.start, end: left.end, batches: slices.Clone(left.batches)} // shares no array with the other host
	return kept.append(tail[:rng.IntN(len(tail)+1)])
}

// handle is one opening of a log.
type handle struct {
	host      *Host
	log       *log
	topic     string
	id        mirror.TopicID
	partition int32
	closed    atomic.Bool
}

func (h *handle) begin(ctx context.Context, op Op) error {
	if h.closed.Load() || h.log.gone.Load() {
		return mirror.ErrClosed
	}
	return h.host.begin(ctx, op, h.topic, h.partition)
}

// Bounds implements mirror.Log.
func (h *handle) Bounds() (start, end int64) {
	v := h.log.view.Load()
	return v.start, v.end
}

// Append implements mirror.Log. Bytes that are not whole batches in order are refused before anything is stored.
func (h *handle) Append(ctx context.Context, batches []byte) error {
	if h.closed.Load() {
		return mirror.ErrClosed
	}
	var add []stored
	kept := slices.Clone(batches)
	for b, err := range mirror.Batches(kept) {
		if err != nil {
			return err
		}
		if n := len(add); n > 0 && b.Base < add[n-1].next {
			return fmt.Errorf("batch at offset %d follows one that ends at %d: %w", b.Base, add[n-1].next, mirror.ErrOutOfOrder)
		}
		add = append(add, stored{base: b.Base, next: b.Next, bytes: b.Bytes})
	}
	whole := 0
	for _, b := range add {
		whole += len(b.bytes)
	}
	if whole < len(kept) {
		return fmt.Errorf("the last %d bytes are not a whole batch", len(kept)-whole)
	}
	var failed error
	for i := range add {
		if failed = h.begin(ctx, OpAppend); failed != nil {
			add = add[:i]
			break
		}
	}
	err := h.log.change(func(v *view) (*view, error) {
		if len(add) > 0 && add[0].base < v.end {
			return nil, fmt.Errorf("base offset %d, log ends at %d: %w", add[0].base, v.end, mirror.ErrOutOfOrder)
		}
		return v.append(add), nil
	})
	if err != nil {
		return err
	}
	return failed
}

// Read implements mirror.Log.
func (h *handle) Read(ctx context.Context, offset int64, buf []byte) (int, error) {
	if err := h.begin(ctx, OpRead); err != nil {
		return 0, err
	}
	v := h.log.view.Load()
	if offset < v.start || offset > v.end {
		return 0, mirror.ErrOutOfRange
	}
	return v.read(offset, buf), nil
}

// Sync implements mirror.Log.
func (h *handle) Sync(ctx context.Context) error {
	if err := h.begin(ctx, OpSync); err != nil {
		return err
	}
	return h.log.change(func(v *view) (*view, error) {
		h.log.synced = v
		return v, nil
	})
}

// TruncateTo implements mirror.Log.
func (h *handle) TruncateTo(ctx context.Context, end int64) error {
	if err := h.begin(ctx, OpTruncateTo); err != nil {
		return err
	}
	return h.log.change(func(v *view) (*view, error) {
		if end < v.start {
			return h.log.reset(end)
		}
		h.log.synced = h.log.synced.cut(end) // what is left is no more durable than it was
		return v.cut(end), nil
	})
}

// AdvanceStart implements mirror.Log.
func (h *handle) AdvanceStart(ctx context.Context, start int64) error {
	if err := h.begin(ctx, OpAdvanceStart); err != nil {
		return err
	}
	return h.log.change(func(v *view) (*view, error) {
		if start > v.end {
			return h.log.reset(start)
		}
		if start > h.log.synced.end { // what was never synced and is dropped here cannot come back
			h.log.synced = &view{start: start, end: start}
		}
		return v.advance(start), nil
	})
}

// Reset implements mirror.Log.
func (h *handle) Reset(ctx context.Context, start int64) error {
	if err := h.begin(ctx, OpReset); err != nil {
		return err
	}
	return h.log.change(func(*view) (*view, error) { return h.log.reset(start) })
}

// reset is called under mu.
func (l *log) reset(start int64) (*view, error) {
	if start < 0 {
		return nil, fmt.Errorf("a log cannot start at offset %d", start)
	}
	l.synced = &view{start: start, end: start}
	return l.synced, nil
}

// TopicID implements mirror.TopicIDer.
func (h *handle) TopicID() mirror.TopicID { return h.id }

// Close implements mirror.Log.
func (h *handle) Close() error {
	h.closed.Store(true)
	return nil
}
