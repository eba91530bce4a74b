package logtest

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"github.com/clustermirror/mirror"
)

// crashes does the same with several seeds, each on a new topic: prepare fills a log and answers what it should hold; after
// the crash the log must hold what may be left of that, and take what is appended next.
func crashes(e *env, prepare func(l mirror.Log, m *model, rng *rand.Rand)) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		name, m := e.topic(), &model{}
		l := e.open(name, 0)
		prepare(l, m, rng)
		e.bounds(l, m.start, m.end)
		e.crash(rng)
		l = e.open(name, 0)
		e.afterCrash(l, m)
		more := made(m.end, 3, 3, 60, 8)
		e.append(l, more)
		m.append(more)
		e.same(l, m)
	}
}

// put appends to log and model.
func (e *env) put(l mirror.Log, m *model, list ...batch) {
	e.append(l, list...)
	m.append(list...)
}

// settle makes log and model durable.
func (e *env) settle(l mirror.Log, m *model) {
	e.sync(l)
	m.sync()
}

func crashTopics(e *env) {
	id := e.host.ClusterID()
	rng := rand.New(rand.NewPCG(0, 0))
	want := mirror.Topic{Name: "orders", ID: idA, Partitions: 1, Configs: map[string]string{"a": "b"}}
	e.ensure(want)
	e.ensure(mirror.Topic{Name: "any", Partitions: 2})
	chosen := e.find("any")
	e.crash(rng)
	e.expect(want)
	e.expect(chosen)
	want.Partitions = 3
	e.ensure(want)
	e.crash(rng)
	e.expect(want)
	e.bounds(e.open("orders", 2), 0, 0)
	e.is(e.host.EnsureTopic(e.ctx, mirror.Topic{Name: "orders", ID: idB, Partitions: 1}), mirror.ErrTopicConflict, "EnsureTopic with another id")
	if again := e.host.ClusterID(); again != id {
		e.fail("ClusterID was %q, now it is %q", id, again)
	}
}

func crashSynced(e *env) {
	crashes(e, func(l mirror.Log, m *model, rng *rand.Rand) {
		e.put(l, m, plain(0, 3))
		e.put(l, m, plain(5, 3), made(8, 20, 20, 1000, 1))
		e.settle(l, m)
		e.put(l, m, plain(30, 1))
		e.settle(l, m)
	})

	// A Sync covers what went through another handle, and what an earlier one had left.
	name, m := e.topic(), &model{}
	a, b := e.open(name, 0), e.open(name, 0)
	e.put(a, m, plain(0, 3))
	e.must(a.Close(), "Close")
	e.settle(b, m)
	e.crash(rand.New(rand.NewPCG(0, 0)))
	e.afterCrash(e.open(name, 0), m)
}

func crashUnsynced(e *env) {
	crashes(e, func(l mirror.Log, m *model, rng *rand.Rand) {
		if rng.IntN(2) == 0 {
			e.put(l, m, plain(0, 3), plain(3, 2))
			e.settle(l, m)
		}
		for range 1 + rng.IntN(5) {
			e.put(l, m, made(m.end, 3, 3, rng.IntN(2000), 1), plain(m.end+4, 2))
		}
	})
}

func crashTruncate(e *env) {
	crashes(e, func(l mirror.Log, m *model, rng *rand.Rand) {
		e.put(l, m, plain(0, 3), plain(3, 3), plain(6, 3))
		if rng.IntN(2) == 0 {
			e.settle(l, m)
		}
		e.put(l, m, plain(9, 3), plain(12, 3))
		at := rng.Int64N(14)
		e.must(l.TruncateTo(e.ctx, at), "TruncateTo")
		m.truncate(at)
	})
}

func crashNoResurrection(e *env) {
	crashes(e, func(l mirror.Log, m *model, rng *rand.Rand) {
		e.put(l, m, plain(0, 3), plain(3, 3))
		e.settle(l, m)
		e.put(l, m, made(6, 3, 3, 500, 1), plain(9, 3), plain(12, 3))
		if rng.IntN(2) == 0 {
			e.settle(l, m)
		}
		at := 3 + rng.Int64N(6)
		e.must(l.TruncateTo(e.ctx, at), "TruncateTo")
		m.truncate(at)
		e.put(l, m, made(m.end, 3, 3, 20, 2)) // shorter than what was there, so that the rest of that would show
		if rng.IntN(2) == 0 {
			e.settle(l, m)
		}
	})
}

func crashReset(e *env) {
	crashes(e, func(l mirror.Log, m *model, rng *rand.Rand) {
		e.put(l, m, plain(0, 3), plain(3, 3), made(6, 3, 3, 500, 1))
		if rng.IntN(2) == 0 {
			e.settle(l, m)
		}
		at := rng.Int64N(20) // also inside what was there
		e.must(l.Reset(e.ctx, at), "Reset")
		m.reset(at)
		if rng.IntN(2) == 0 {
			e.put(l, m, made(at, 3, 3, 20, 2), plain(at+3, 1))
		}
	})
}

func crashAdvance(e *env) {
	crashes(e, func(l mirror.Log, m *model, rng *rand.Rand) {
		e.put(l, m, plain(0, 3), plain(3, 3), plain(8, 3))
		e.settle(l, m)
		for range 1 + rng.IntN(2) {
			at := m.start + rng.Int64N(m.end-m.start+1)
			e.must(l.AdvanceStart(e.ctx, at), "AdvanceStart")
			m.advance(at)
		}
		if rng.IntN(2) == 0 {
			e.put(l, m, plain(m.end, 3))
		}
	})
}

func crashUnderLoad(e *env) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		name := e.topic()
		l := e.open(name, 0)
		var appended, synced atomic.Int64 // ends
		var over atomic.Bool
		enough, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			var err error
			for n := 0; n < 1000 && err == nil && !over.Load(); n++ {
				if n == 10+int(seed) {
					close(enough)
				}
				b := loaded(appended.Load(), 0)
				if err = l.Append(e.ctx, b.bytes); err == nil {
					appended.Store(b.next)
					if n%3 == 0 {
						if err = l.Sync(e.ctx); err == nil {
							synced.Store(b.next)
						}
					}
				}
			}
			stopped <- err
		}()
		select {
		case <-enough:
		case err := <-stopped:
			if err != nil {
				e.fail("Append or Sync before the crash: %w", err)
			}
			stopped <- nil // it was faster than this goroutine, and is asked again below
		}
		safe := synced.Load()
		e.crash(rng)
		over.Store(true)
		if err := e.await(stopped); err != nil && errors.Is(err, mirror.ErrOutOfOrder) {
			e.fail("Append during the crash: %w", err)
		}
		l = e.open(name, 0)
		m := &model{}
		for m.end < appended.Load()+3 { // one more may have been under way
			if b := loaded(m.end, 0); b.next <= safe {
				m.append(b)
				m.sync()
			} else {
				m.append(b)
			}
		}
		e.afterCrash(l, m)
		e.put(l, m, plain(m.end, 2))
		e.holds(l, m.held()...)
	}
}
