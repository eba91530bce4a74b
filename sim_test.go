package mirror_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The simulation: seeded histories of two or three sites in memory and in virtual time. A history is a script of some fifty steps, drawn
// before it is played: what a step does depends on nothing but the script and the state it finds. sim_world_test.go plays it, sim_watch_test.go
// sees every change of every log, sim_judge_test.go says what must never be.
//
//	SIM_HISTORIES=2000   how many histories (300 by default)
//	SIM_SEED=17          from which seed on (1 by default)
//	SIM_STEPS=3,9,14     only these steps of the script of SIM_SEED, and with a trace; "all" for all
//	SIM_REPEAT=50        that many times
//	SIM_LOUD=1           with the library's log, as it happens
//	SIM_SHRINK=no        a failing script is not made shorter
//
// The library draws its pauses, and a takeover its epoch, at random, and the scheduler is free too: a seed may have to be played some times.
const (
	simDefault  = 300
	simPatience = time.Minute // of real time: a history in which virtual time stands still is stuck
)

func TestSimulation(t *testing.T) {
	first, count := envInt(t, "SIM_SEED", 1), envInt(t, "SIM_HISTORIES", simDefault)
	if only := os.Getenv("SIM_STEPS"); only != "" {
		replay(t, uint64(first), only)
		return
	}
	var next atomic.Int64
	next.Store(int64(first))
	for worker := range runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprintf("worker=%d", worker), func(t *testing.T) {
			t.Parallel()
			for !t.Failed() {
				seed := next.Add(1) - 1
				if seed >= int64(first+count) {
					return
				}
				h := draw(uint64(seed))
				if trace, wrong := h.play(t); wrong != "" {
					t.Errorf("%s", h.report(t, trace, wrong))
				}
			}
		})
	}
}

func envInt(t *testing.T, name string, otherwise int) int {
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// replay plays chosen steps of one script and prints what happened.
func replay(t *testing.T, seed uint64, only string) {
	h := draw(seed)
	if only != "all" {
		var steps []step
		for s := range strings.SplitSeq(only, ",") {
			i, err := strconv.Atoi(s)
			if err != nil || i < 0 || i >= len(h.steps) {
				t.Fatalf("SIM_STEPS: %q is no step of this script", s)
			}
			steps = append(steps, h.steps[i])
		}
		h.steps = steps
	}
	for range envInt(t, "SIM_REPEAT", 1) {
		trace, wrong := h.play(t)
		if wrong != "" {
			t.Fatalf("seed %d: %s\n%s", seed, wrong, strings.Join(trace, "\n"))
		}
		t.Logf("seed %d: nothing wrong\n%s", seed, strings.Join(trace, "\n"))
	}
}

// history is what a seed stands for.
type history struct {
	seed       uint64
	sites      int
	partitions int32
	grown      bool // the topic begins with one partition
	stable     bool // takeovers cut to the last stable offset
	follow     bool // a deletion at the source is a takeover
	careful    bool // FailOnDivergence
	steps      []step
}

// step is one event of a script. What its numbers mean is the matter of its op.
type step struct {
	index   int
	op      op
	site    int
	x, y, z int
}

func (s step) String() string {
	return fmt.Sprintf("%3d %-9s %c %2d %2d %2d", s.index, s.op, 'A'+s.site, s.x, s.y, s.z)
}

const drawn = 100 // the numbers of a step lie below it

func draw(seed uint64) history {
	r := rand.New(rand.NewPCG(seed, 0))
	h := history{seed: seed, sites: 2, partitions: 1 + int32(r.IntN(2)), grown: r.IntN(3) == 0, stable: r.IntN(6) == 0, follow: r.IntN(4) == 0, careful: r.IntN(4) == 0}
	if r.IntN(4) == 0 {
		h.sites = 3
	}
	weights, total := slices.Clone(weights), 0
	weights[r.IntN(len(weights))].weight += 15 // what is rare is frequent in some histories
	for _, w := range weights {
		total += w.weight
	}
	for i := range 40 + r.IntN(21) {
		n := r.IntN(total)
		s := step{index: i, site: r.IntN(h.sites), x: r.IntN(drawn), y: r.IntN(drawn), z: r.IntN(drawn)}
		for _, w := range weights {
			if n -= w.weight; n < 0 {
				s.op = w.op
				break
			}
		}
		h.steps = append(h.steps, s)
	}
	return h
}

// play runs the script in a bubble of its own and answers what was wrong, "" if nothing was.
func (h history) play(t *testing.T) (trace []string, wrong string) {
	watchdog := time.AfterFunc(simPatience, func() { panic(fmt.Sprintf("seed %d does not come to an end: %v", h.seed, h.steps)) })
	defer watchdog.Stop()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, h)
		w.play()
		trace, wrong = w.trace, w.judge.verdict()
	})
	return trace, wrong
}

// report says how to see it again, with as few steps as still show it.
func (h history) report(t *testing.T, first []string, wrong string) string {
	if os.Getenv("SIM_SHRINK") == "no" {
		return fmt.Sprintf("seed %d, %s", h.seed, wrong)
	}
	short := h.shrink(t)
	trace, again := short.play(t)
	for range 20 {
		if again != "" {
			break
		}
		trace, again = short.play(t)
	}
	if again == "" {
		again, trace = "(not seen again in 20 tries; what was seen first:) "+wrong, first
	}
	var indexes, lines []string
	for _, s := range short.steps {
		indexes, lines = append(indexes, strconv.Itoa(s.index)), append(lines, s.String())
	}
	return fmt.Sprintf("seed %d, %d sites, %d partitions: %s\n%s\nscript:\n%s\ntrace:\n%s\nagain: SIM_SEED=%d SIM_STEPS=%s go test -run TestSimulation -v .",
		h.seed, h.sites, h.partitions, wrong, again, strings.Join(lines, "\n"), strings.Join(trace, "\n"), h.seed, strings.Join(indexes, ","))
}

// shrink leaves out what is not needed for something to go wrong.
func (h history) shrink(t *testing.T) history {
	tries := 0
	wrong := func(steps []step) bool {
		h := h
		for range 3 {
			tries++
			h.steps = steps
			if _, wrong := h.play(t); wrong != "" {
				return true
			}
		}
		return false
	}
	for size := len(h.steps) / 2; size > 0; size /= 2 {
		for at := 0; at < len(h.steps) && tries < 1500; {
			fewer := slices.Delete(slices.Clone(h.steps), at, min(at+size, len(h.steps)))
			if wrong(fewer) {
				h.steps = fewer
			} else {
				at += size
			}
		}
	}
	return h
}

// lockedRand is a source of chance for several goroutines.
type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (l *lockedRand) IntN(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.IntN(n)
}
