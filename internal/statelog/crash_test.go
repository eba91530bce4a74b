package statelog

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// history runs a store against a map, with a log that fails and crashes, and compares them after every step. It needs a bubble of
// synctest, to know when the store has nothing more to do.
type history struct {
	t     *testing.T
	log   *testLog
	store *Store

	mu       sync.Mutex
	acked    map[Key]string   // what successful Puts add up to
	possible []map[Key]string // acked, and that with one of the Puts that failed since, or are under way

	calls  int           // of the log
	faults map[int]fault // by number of the call

	crashFrom, crashTo int // look at what a crash would leave before these calls
}

func newHistory(t *testing.T) *history {
	h := &history{t: t, acked: make(map[Key]string), faults: make(map[int]fault)}
	h.possible = append(h.possible, h.acked)
	h.use(newTestLog())
	h.reopen()
	return h
}

func (h *history) use(log *testLog) {
	h.log = log
	log.before = func(context.Context, string) fault {
		if h.calls >= h.crashFrom && h.calls < h.crashTo {
			h.checkImages()
		}
		h.calls++
		return h.faults[h.calls]
	}
}

// reopen opens the log as it is. What the store then knows was durable when Open returned.
func (h *history) reopen() {
	h.close()
	for try := 0; h.store == nil; try++ {
		s, err := Open(h.t.Context(), h.log, errOrder, SnapshotAfter(400))
		if err != nil {
			require.ErrorIs(h.t, err, errDisk)
			require.Less(h.t, try, 100)
			continue
		}
		h.store = s
	}
	h.answered(h.mustBePossible(h.store))
}

// answered takes down what is certain from now on.
func (h *history) answered(state map[Key]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acked, h.possible = state, []map[Key]string{state}
}

func (h *history) close() {
	if h.store != nil {
		require.NoError(h.t, h.store.Close())
		h.store = nil
	}
}

// put lets records be put, which may fail, and compares memory.
func (h *history) put(recs ...Record) {
	after := maps.Clone(h.acked)
	for _, r := range recs {
		delete(after, r.Key)
		if r.Value != nil {
			after[r.Key] = string(r.Value)
		}
	}
	h.mu.Lock()
	h.possible = append(h.possible, after)
	h.mu.Unlock()
	if err := h.store.Put(h.t.Context(), recs...); err != nil {
		require.ErrorIs(h.t, err, errDisk)
	} else {
		h.answered(after)
	}
	synctest.Wait() // a snapshot may follow
	require.Equal(h.t, h.acked, contents(h.store))
}

// checkImages opens every log that a crash could leave now. It runs where the log is called: mostly in the store's goroutine.
func (h *history) checkImages() {
	for _, image := range h.log.images() {
		s, err := Open(h.t.Context(), image, errOrder)
		require.NoError(h.t, err)
		h.mustBePossible(s)
		require.NoError(h.t, s.Close())
	}
}

func (h *history) mustBePossible(s *Store) map[Key]string {
	got := contents(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, want := range h.possible {
		if maps.Equal(want, got) {
			return got
		}
	}
	require.Fail(h.t, "a state that never was", "got %v, possible are %v", got, h.possible)
	return nil
}

// Each call of the log fails once, in each way, and before each call that follows a crash is tried.
func TestEveryCallMayFailAndEveryMomentMayCrash(t *testing.T) {
	script := func(h *history) {
		for i := range int64(14) {
			h.put(rec(i%4, fmt.Sprint("value ", i)), rec(i%3+10, "other"), del(i%2+10))
			if i == 9 {
				h.reopen()
			}
		}
		h.reopen()
		h.close()
	}
	synctest.Test(t, func(t *testing.T) {
		undisturbed := newHistory(t)
		script(undisturbed)
		require.Positive(t, undisturbed.log.count("advance"))

		for call := range undisturbed.calls {
			for _, f := range []fault{failClean, failStay, failDrop} {
				h := newHistory(t)
				h.faults[call+1], h.faults[call+2] = f, f
				h.crashFrom, h.crashTo = call+1, call+12
				script(h)
			}
		}
	})
}

// run reads a history from bytes: each step is one byte for what to do and what it needs.
func (h *history) run(script []byte) {
	next := func() int64 {
		if len(script) == 0 {
			return 0
		}
		b := script[0]
		script = script[1:]
		return int64(b)
	}
	for steps := 0; len(script) > 0 && steps < 200; steps++ {
		switch op := next(); op % 8 {
		case 0, 1, 2, 3:
			var recs []Record
			for range op/8%4 + 1 {
				k := next()
				r := rec(k%6, fmt.Sprint(steps, " ", k))
				if k/6%4 == 0 {
					r.Value = nil
				}
				recs = append(recs, r)
			}
			h.put(recs...)
		case 4, 5:
			h.faults[h.calls+int(op/8%16)] = fault(next() % 4)
		case 6:
			h.reopen()
		case 7:
			images := h.log.images()
			h.close()
			h.use(images[int(op/8)%len(images)])
			h.reopen()
		}
	}
	clear(h.faults)
	h.put(rec(0, "the end"))
	h.reopen()
	require.Equal(h.t, "the end", h.acked[own(0)])
	h.close()
}

func runHistory(t *testing.T, script []byte) {
	synctest.Test(t, func(t *testing.T) { newHistory(t).run(script) })
}

func TestRandomHistories(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		script := make([]byte, 300)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { runHistory(t, script) })
	}
}

// Whatever fails, and whenever the machine crashes: memory is what the successful Puts add up to, and a log that is opened again
// gives that, or that with one Put which was not answered with success.
func FuzzHistory(f *testing.F) {
	f.Add([]byte("any bytes are a history"))
	f.Add([]byte{0, 1, 4 + 8, 1, 0, 2, 0, 3, 6, 7, 0, 4})
	f.Fuzz(runHistory)
}
