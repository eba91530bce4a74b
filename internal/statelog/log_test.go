package statelog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/clustermirror/mirror/internal/batch"
)

var (
	errOrder  = errors.New("out of order")
	errRange  = errors.New("out of range")
	errDisk   = errors.New("disk full")
	errPuzzle = errors.New("the log was asked for something that it cannot mean")
)

// fault is what a call of the log gets instead of its due.
type fault int

const (
	noFault   fault = iota
	failClean       // the call fails, nothing has happened
	failStay        // the call fails after its work was done; what an append brought stays
	failDrop        // a sync fails, and everything that was not durable is gone
)

// testLog is a partition log in memory that remembers what was synced. Several stores may share it.
type testLog struct {
	before func(ctx context.Context, op string) fault // asked first, without the lock; may be nil

	mu      sync.Mutex
	batches []testBatch
	start   int64
	end     int64
	synced  int   // how many of the batches are durable
	floor   int64 // a start that a crash may fall back to
	ops     map[string]int
}

type testBatch struct {
	base, next int64
	raw        []byte
}

func newTestLog() *testLog { return &testLog{ops: make(map[string]int)} }

func (l *testLog) ask(ctx context.Context, op string) fault {
	l.mu.Lock()
	l.ops[op]++
	before := l.before
	l.mu.Unlock()
	if before == nil {
		return noFault
	}
	return before(ctx, op)
}

func (l *testLog) count(op string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ops[op]
}

func (l *testLog) Bounds() (int64, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start, l.end
}

func (l *testLog) Append(ctx context.Context, b []byte) error {
	f := l.ask(ctx, "append")
	l.mu.Lock()
	defer l.mu.Unlock()
	h, raw, err := batch.Next(b)
	if err != nil || len(raw) != len(b) {
		return fmt.Errorf("%w: append of %d bytes, one batch expected: %w", errPuzzle, len(b), err)
	}
	switch {
	case h.Base < l.end:
		return errOrder
	case f == failClean, f == failDrop:
		return errDisk
	}
	l.batches = append(l.batches, testBatch{h.Base, h.Next(), slices.Clone(b)})
	l.end = h.Next()
	if f == failStay {
		return errDisk
	}
	return nil
}

func (l *testLog) Read(ctx context.Context, offset int64, buf []byte) (int, error) {
	f := l.ask(ctx, "read")
	l.mu.Lock()
	defer l.mu.Unlock()
	if f != noFault {
		return 0, errDisk
	}
	if offset < l.start || offset > l.end {
		return 0, errRange
	}
	n := 0
	for _, b := range l.batches {
		if b.next > offset {
			n += copy(buf[n:], b.raw)
		}
	}
	return n, nil
}

func (l *testLog) Sync(ctx context.Context) error {
	f := l.ask(ctx, "sync")
	l.mu.Lock()
	defer l.mu.Unlock()
	if f == failDrop {
		l.lose(l.synced)
	}
	if f == failClean || f == failDrop {
		return errDisk
	}
	l.synced = len(l.batches)
	if f == failStay {
		return errDisk
	}
	return nil
}

func (l *testLog) AdvanceStart(ctx context.Context, start int64) error {
	f := l.ask(ctx, "advance")
	l.mu.Lock()
	defer l.mu.Unlock()
	if start > l.end {
		return errPuzzle
	}
	if f == failClean || f == failDrop {
		return errDisk
	}
	l.start = max(l.start, start)
	if f == failStay {
		return errDisk
	}
	return nil
}

// lose forgets all batches but the first n.
func (l *testLog) lose(n int) {
	l.batches = l.batches[:n]
	l.end = l.start
	if n > 0 {
		l.end = l.batches[n-1].next
	}
}

// images are the logs that a crash at this moment may leave: any part of what was not synced, and any start from the one that
// is known to be durable on.
func (l *testLog) images() (all []*testLog) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kept := l.synced; kept <= len(l.batches); kept++ {
		for _, start := range l.starts() {
			c := newTestLog()
			c.start, c.floor, c.synced = start, start, kept
			for _, b := range l.batches[:kept] {
				c.end = b.next
				if b.next > start {
					c.batches = append(c.batches, b)
				}
			}
			c.synced, c.end = len(c.batches), max(c.end, start)
			all = append(all, c)
		}
	}
	return all
}

// starts are the start and, of those that were there before, the first, the last and one between.
func (l *testLog) starts() []int64 {
	var old []int64
	for _, b := range l.batches {
		if b.base >= l.floor && b.base < l.start {
			old = append(old, b.base)
		}
	}
	if len(old) > 3 {
		old = []int64{old[0], old[len(old)/2], old[len(old)-1]}
	}
	return append(old, l.start)
}

// clone is the log as it is, for somebody else to change.
func (l *testLog) clone() *testLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &testLog{
		batches: slices.Clone(l.batches), start: l.start, end: l.end, synced: l.synced, floor: l.floor, ops: make(map[string]int),
	}
}
