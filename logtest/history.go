package logtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/clustermirror/mirror"
)

// anyHistory does random things to a log, reopening or crashing the host in between if asked to, and compares the log with
// the model after each step. A failure tells the seed and the last steps.
func anyHistory(e *env, end need) {
	const (
		seeds = 20
		steps = 120
	)
	for seed := range uint64(seeds) {
		h := &history{env: e, end: end, rng: rand.New(rand.NewPCG(seed, uint64(end))), topic: e.topic(), model: &model{}}
		h.log = e.open(h.topic, 0)
		for range steps {
			h.told(seed, h.step)
		}
		h.told(seed, func() { h.same(h.log, h.model) })
		e.must(h.log.Close(), "Close")
	}
}

type history struct {
	*env
	end   need // how the host ends now and then: toReopen, toCrash, or not at all
	rng   *rand.Rand
	topic string
	log   mirror.Log
	model *model
	steps []string
}

func (h *history) step() {
	start, end := h.model.start, h.model.end
	switch k := h.rng.IntN(100); {
	case k < 45:
		var list []batch
		base := end
		for range 1 + h.rng.IntN(3) {
			if h.rng.IntN(4) == 0 {
				base += h.rng.Int64N(4)
			}
			offsets := 1 + h.rng.IntN(4)
			b := made(base, offsets, h.rng.IntN(offsets+1), h.rng.IntN(200), h.rng.Int32N(100))
			list, base = append(list, b), b.next
		}
		h.does("append %v", list)
		h.append(h.log, list...)
		h.model.append(list...)
	case k < 50 && end > 0:
		base := h.rng.Int64N(end)
		h.does("append out of order at %d", base)
		h.is(h.log.Append(h.ctx, made(base, 2, 2, 10, 100).bytes), mirror.ErrOutOfOrder, "Append below the end")
	case k < 62:
		at := max(0, start-2+h.rng.Int64N(end-start+5))
		h.does("truncate to %d", at)
		if err := h.log.TruncateTo(h.ctx, at); !errors.Is(err, errors.ErrUnsupported) {
			h.must(err, "TruncateTo")
			h.model.truncate(at)
		}
	case k < 72:
		at := max(0, start-2+h.rng.Int64N(end-start+4))
		h.does("advance start to %d", at)
		h.must(h.log.AdvanceStart(h.ctx, at), "AdvanceStart")
		h.model.advance(at)
	case k < 75:
		at := max(0, start-5+h.rng.Int64N(end-start+10))
		h.does("reset to %d", at)
		h.must(h.log.Reset(h.ctx, at), "Reset")
		h.model.reset(at)
	case k < 85:
		h.does("sync")
		h.sync(h.log)
		h.model.sync()
	case k < 90:
		h.does("close and open")
		h.must(h.log.Close(), "Close")
		h.log = h.open(h.topic, 0)
	case k < 94 && h.end == toReopen:
		h.does("reopen the host")
		h.reopen()
		h.log = h.open(h.topic, 0)
	case k < 94 && h.end == toCrash:
		h.does("crash")
		h.crash(h.rng)
		h.log = h.open(h.topic, 0)
		h.afterCrash(h.log, h.model)
	default:
		h.does("compare everything")
		h.same(h.log, h.model)
	}
	h.bounds(h.log, h.model.start, h.model.end)
	offset := h.model.start + h.rng.Int64N(h.model.end-h.model.start+1)
	h.reads(h.log, offset, 1+h.rng.IntN(500), h.model.from(offset)...)
}

func (h *history) does(format string, args ...any) {
	h.steps = append(h.steps, fmt.Sprintf(format, args...))
}

// told runs f; a failure tells the steps that led to it.
func (h *history) told(seed uint64, f func()) {
	defer h.explain(func() string {
		last := h.steps[max(0, len(h.steps)-12):]
		return fmt.Sprintf("seed %d, step %d, the last ones: %s", seed, len(h.steps), strings.Join(last, "; "))
	})
	f()
}

func topicsReopened(e *env) {
	id := e.host.ClusterID()
	want := mirror.Topic{Name: "orders", ID: idA, Partitions: 3, Configs: map[string]string{"retention.ms": "1000"}}
	e.ensure(want)
	e.ensure(mirror.Topic{Name: "any", Partitions: 1})
	chosen := e.find("any")
	l, m := e.sample()
	name := fmt.Sprintf("topic-%d", e.topics)
	e.must(l.AdvanceStart(e.ctx, 22), "AdvanceStart") // inside a batch
	m.advance(22)
	empty := e.open("orders", 2)
	e.append(empty, plain(0, 5))
	e.must(empty.AdvanceStart(e.ctx, 5), "AdvanceStart") // nothing left, but the end
	e.reopen()
	if again := e.host.ClusterID(); again != id {
		e.fail("ClusterID was %q, now it is %q", id, again)
	}
	e.expect(want)
	e.expect(chosen)
	e.bounds(e.open("orders", 0), 0, 0)
	e.bounds(e.open("orders", 2), 5, 5)
	e.same(e.open(name, 0), m)
}
