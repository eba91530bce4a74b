package logtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	wire "github.com/clustermirror/mirror/internal/batch"

	"github.com/clustermirror/mirror"
)

// together runs write again and again, with a count, beside several goroutines that run read again and again, until both
// have had their share.
func (e *env) together(write func(round int) error, read func(rng *rand.Rand) error) {
	const (
		rounds  = 100
		reads   = 2000
		readers = 4
	)
	group, ctx := errgroup.WithContext(e.ctx)
	var done, stop atomic.Int64
	group.Go(func() error {
		defer stop.Store(1)
		for round := 0; round < rounds || done.Load() < reads; round++ {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := write(round); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range uint64(readers) {
		group.Go(func() error {
			rng := rand.New(rand.NewPCG(i, 0))
			for stop.Load() == 0 {
				if err := read(rng); err != nil {
					return err
				}
				done.Add(1)
				runtime.Gosched() // or else whoever writes waits for the scheduler
			}
			return nil
		})
	}
	over := make(chan error, 1)
	go func() { over <- group.Wait() }()
	e.must(e.await(over), "calls at the same time")
}

// loadSize is the size of values in what is appended under load, so that readers can make each batch anew from its header.
const loadSize = 50

// loaded is the batch that was appended under load at base.
func loaded(base int64, epoch int32) batch {
	n := 1 + int(base%3)
	return made(base, n, n, loadSize, epoch)
}

// wellRead checks what a read at offset gave of a log without gaps under load: batches that were appended, whole but for the
// last one, each at the end of the one before, the first holding offset. follows says whether b may come after a.
func wellRead(got []byte, offset int64, follows func(a, b wire.Header) error) error {
	var last wire.Header
	for first := true; len(got) >= wire.HeaderSize; first = false {
		h, err := wire.Parse(got)
		if err != nil {
			return fmt.Errorf("read at offset %d: %w", offset, err)
		}
		want := loaded(h.Base, h.LeaderEpoch).bytes
		n := min(len(want), len(got))
		if d := differ(got[:n], want[:n]); d != "" {
			return fmt.Errorf("read at offset %d: a batch that was never appended: %s", offset, d)
		}
		switch {
		case first && (offset < h.Base || offset >= h.Next()):
			return fmt.Errorf("read at offset %d begins with batch [%d, %d)", offset, h.Base, h.Next())
		case !first && h.Base != last.Next():
			return fmt.Errorf("read at offset %d: batch [%d, %d) follows one that ends at %d", offset, h.Base, h.Next(), last.Next())
		case !first:
			if err := follows(last, h); err != nil {
				return fmt.Errorf("read at offset %d: %w", offset, err)
			}
		}
		last, got = h, got[n:]
	}
	return nil
}

func anyFollows(_, _ wire.Header) error { return nil }

func boundsNeverBlock(e *env) {
	l := e.log()
	big := make([]int64, 0, 100)
	var next int64
	e.together(
		func(round int) error {
			if round%20 != 0 {
				return l.Sync(e.ctx)
			}
			b := made(next, 8, 8, 64<<10, 0)
			next = b.next
			big = append(big, next)
			return l.Append(e.ctx, b.bytes)
		},
		func(*rand.Rand) error {
			began := time.Now()
			start, end := l.Bounds()
			if took := time.Since(began); took > slowBounds {
				return fmt.Errorf("Bounds took %v", took)
			}
			if start != 0 || end%8 != 0 {
				return fmt.Errorf("Bounds are [%d, %d) while batches of 8 are appended", start, end)
			}
			return nil
		})
	e.bounds(l, 0, next)
}

func readWhileAppending(e *env) {
	l := e.log()
	e.append(l, loaded(0, 0))
	e.together(
		func(int) error {
			_, end := l.Bounds()
			a := loaded(end, 0)
			b := loaded(a.next, 0)
			return l.Append(e.ctx, join([]batch{a, b}))
		},
		func(rng *rand.Rand) error {
			_, end := l.Bounds()
			offset := rng.Int64N(end)
			buf := make([]byte, 1+rng.IntN(2000))
			n, err := l.Read(e.ctx, offset, buf)
			if err != nil {
				return err
			}
			if n == 0 {
				return fmt.Errorf("read at offset %d of a log that has ended at %d answered 0", offset, end)
			}
			return wellRead(buf[:n], offset, anyFollows)
		})
}

func readWhileAdvancing(e *env) {
	l := e.log()
	e.append(l, loaded(0, 0))
	rng := rand.New(rand.NewPCG(1, 1))
	e.together(
		func(int) error {
			start, end := l.Bounds()
			for range 4 {
				b := loaded(end, 0)
				if err := l.Append(e.ctx, b.bytes); err != nil {
					return err
				}
				end = b.next
			}
			return l.AdvanceStart(e.ctx, start+rng.Int64N(end-start))
		},
		func(rng *rand.Rand) error {
			start, end := l.Bounds()
			offset := start + rng.Int64N(end-start)
			buf := make([]byte, 1+rng.IntN(2000))
			n, err := l.Read(e.ctx, offset, buf)
			if now, _ := l.Bounds(); errors.Is(err, mirror.ErrOutOfRange) && offset < now {
				return nil
			}
			if err != nil {
				return err
			}
			if n == 0 {
				return fmt.Errorf("read at offset %d of a log that has ended at %d answered 0", offset, end)
			}
			return wellRead(buf[:n], offset, anyFollows)
		})
}

// readWhileCutting gives each life of the log, from one cut to the next, an epoch of its own.
func readWhileCutting(e *env) {
	l := e.log()
	e.append(l, loaded(0, 0))
	var mu sync.Mutex
	cutAt := []int64{0} // by epoch: where the log ended when it began; -1 after a reset, as nothing older was left
	rng := rand.New(rand.NewPCG(2, 2))
	follows := func(a, b wire.Header) error {
		mu.Lock()
		defer mu.Unlock()
		for epoch := a.LeaderEpoch + 1; epoch <= b.LeaderEpoch; epoch++ {
			if a.Next() > cutAt[epoch] {
				return fmt.Errorf("batch [%d, %d), which was cut, with batch [%d, %d), which came later", a.Base, a.Next(), b.Base, b.Next())
			}
		}
		if b.LeaderEpoch < a.LeaderEpoch {
			return fmt.Errorf("batch [%d, %d) of epoch %d after one of epoch %d", b.Base, b.Next(), b.LeaderEpoch, a.LeaderEpoch)
		}
		return nil
	}
	e.together(
		func(round int) error {
			start, end := l.Bounds()
			epoch := int32(round + 1)
			if round%10 == 9 {
				if err := l.Reset(e.ctx, max(0, end-rng.Int64N(5))); err != nil {
					return err
				}
				end = -1
			} else {
				if err := l.TruncateTo(e.ctx, start+rng.Int64N(end-start+1)); err != nil {
					return err
				}
				_, end = l.Bounds()
			}
			mu.Lock()
			cutAt = append(cutAt, end)
			mu.Unlock()
			_, end = l.Bounds()
			for range 1 + rng.IntN(6) {
				b := loaded(end, epoch)
				if err := l.Append(e.ctx, b.bytes); err != nil {
					return err
				}
				end = b.next
			}
			return nil
		},
		func(rng *rand.Rand) error {
			start, end := l.Bounds()
			if end < start {
				return fmt.Errorf("Bounds are [%d, %d)", start, end)
			}
			offset := start + rng.Int64N(end-start+1)
			buf := make([]byte, 1+rng.IntN(3000))
			n, err := l.Read(e.ctx, offset, buf)
			if errors.Is(err, mirror.ErrOutOfRange) {
				return nil
			}
			if err != nil {
				return err
			}
			return wellRead(buf[:n], offset, follows)
		})
}

func syncWhileAppending(e *env) {
	logs := []mirror.Log{e.log(), e.log(), e.log()}
	e.together(
		func(round int) error {
			l := logs[round%len(logs)]
			_, end := l.Bounds()
			return l.Append(e.ctx, plain(end, 2).bytes)
		},
		func(rng *rand.Rand) error { return logs[rng.IntN(len(logs))].Sync(e.ctx) })
	for _, l := range logs {
		_, end := l.Bounds()
		var want []batch
		for base := int64(0); base < end; base += 2 {
			want = append(want, plain(base, 2))
		}
		e.holds(l, want...)
	}
}
