// Package logtest checks that a mirror.Host keeps its contract. Whoever writes one runs it in a test:
//
//	func TestHost(t *testing.T) {
//		logtest.Run(t, logtest.Harness{
//			Fresh: func(context.Context) (mirror.Host, error) { return Open(t.TempDir()) },
//		})
//	}
//
// Every check is a subtest that carries the sentence it checks. Run it with -race: some of them read while others write.
// Where the suite and the comments of mirror.Host and mirror.Log say different things, the suite is wrong.
package logtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/clustermirror/mirror"
)

// Harness is how the suite gets at what it tests. A host that has a Close method (io.Closer) is closed when a check is
// done with it.
type Harness struct {
	// Fresh answers a host over new, empty storage. Needed.
	Fresh func(ctx context.Context) (mirror.Host, error)

	// Reopen ends h in an orderly way and answers a host over the same storage. Without it the suite does not look at what
	// is left after a restart.
	Reopen func(ctx context.Context, h mirror.Host) (mirror.Host, error)

	// Crash ends h as a power cut would, possibly while calls are under way, and answers a host over what is left. What is
	// left beyond the contract's promises should be left to rng. Without it the suite does not look at durability.
	Crash func(ctx context.Context, h mirror.Host, rng *rand.Rand) (mirror.Host, error)

	// Full makes appends to h fail, from some batch on, until it is called with false: a full disk. Without it the suite
	// does not look at appends that fail half-way.
	Full func(h mirror.Host, full bool)
}

// Failure is a check that failed.
type Failure struct {
	Check string // name of the check
	Says  string // what the contract says
	Err   error  // what happened instead
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%s: %v\n\tthe contract: %s", f.Check, f.Err, f.Says)
}

func (f *Failure) Unwrap() error { return f.Err }

// Run runs each check that the harness has the means for as a subtest, and logs those that were left out.
func Run(t *testing.T, h Harness) {
	can, err := means(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if can&c.needs != c.needs {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if err := c.against(t.Context(), h); err != nil {
				t.Error(err)
			}
		})
	}
	for _, s := range can.leftOut() {
		t.Log(s)
	}
}

// Check runs the same checks without package testing's machinery. The error joins one *Failure for each that failed.
func Check(ctx context.Context, h Harness) error {
	can, err := means(ctx, h)
	if err != nil {
		return err
	}
	var failures []error
	for _, c := range checks {
		if can&c.needs != c.needs {
			continue
		}
		if err := c.against(ctx, h); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

type need int

const (
	toCut    need = 1 << iota // TruncateTo is supported
	toNotCut                  // it is not
	toReopen
	toCrash
	toFill
)

// means says what the harness and its host can do.
func means(ctx context.Context, h Harness) (can need, err error) {
	if h.Fresh == nil {
		return 0, errors.New("logtest: Harness.Fresh is nil")
	}
	if h.Reopen != nil {
		can |= toReopen
	}
	if h.Crash != nil {
		can |= toCrash
	}
	if h.Full != nil {
		can |= toFill
	}
	err = run(ctx, h, func(e *env) {
		l := e.log()
		e.append(l, plain(0, 1), plain(1, 1))
		if errors.Is(l.TruncateTo(e.ctx, 1), errors.ErrUnsupported) {
			can |= toNotCut
		} else {
			can |= toCut // whether rightly so is for the checks to find
		}
	})
	if err != nil {
		return 0, fmt.Errorf("logtest: first steps: %w", err)
	}
	return can, nil
}

// leftOut says which checks there were no means for.
func (can need) leftOut() (lines []string) {
	for _, m := range []struct {
		need need
		why  string
	}{
		{toCut, "TruncateTo answers errors.ErrUnsupported"},
		{toReopen, "Harness.Reopen is nil"},
		{toCrash, "Harness.Crash is nil"},
		{toFill, "Harness.Full is nil"},
	} {
		var names []string
		for _, c := range checks {
			if m.need&^can&c.needs != 0 {
				names = append(names, c.name)
			}
		}
		if len(names) > 0 {
			lines = append(lines, fmt.Sprintf("NOT TESTED, as %s: %s", m.why, strings.Join(names, "; ")))
		}
	}
	return lines
}

// check is one sentence of the contract and how to see whether it holds.
type check struct {
	name  string
	says  string
	needs need
	run   func(*env)
}

func (c *check) against(ctx context.Context, h Harness) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := run(ctx, h, c.run); err != nil {
		return &Failure{Check: c.name, Says: c.says, Err: err}
	}
	return nil
}

// patience bounds one check, and slowBounds one call of Bounds: far more than either takes.
const (
	patience   = time.Minute
	slowBounds = 5 * time.Second
)

// env is what a check works with. Its methods end the check when something is not as it should be, by a panic that run
// turns into an error; so only the check's own goroutine may call them.
type env struct {
	ctx     context.Context
	harness Harness
	host    mirror.Host
	topics  int
	opened  []mirror.Log
}

type ended struct{ err error }

// run gives f a fresh host.
func run(ctx context.Context, h Harness, f func(*env)) (err error) {
	e := &env{ctx: ctx, harness: h}
	defer e.close()
	defer func() {
		if r := recover(); r != nil {
			end, ours := r.(ended)
			if !ours {
				panic(r)
			}
			err = end.err
		}
	}()
	e.fresh()
	f(e)
	return nil
}

func (e *env) close() {
	for _, l := range e.opened {
		l.Close()
	}
	e.opened = nil
	if c, ok := e.host.(io.Closer); ok {
		c.Close()
	}
	e.host = nil
}

func (e *env) fail(format string, args ...any) { panic(ended{fmt.Errorf(format, args...)}) }

// explain, deferred, puts words before the failure that ends the check.
func (e *env) explain(words func() string) {
	if r := recover(); r != nil {
		if end, ours := r.(ended); ours {
			e.fail("%s: %w", words(), end.err)
		}
		panic(r)
	}
}

func (e *env) must(err error, doing string) {
	if err != nil {
		e.fail("%s: %w", doing, err)
	}
}

func (e *env) is(err, want error, doing string) {
	if !errors.Is(err, want) {
		e.fail("%s answered %v, not %q", doing, err, want)
	}
}

// fresh takes a new host; the one before is closed.
func (e *env) fresh() {
	e.close()
	h, err := e.harness.Fresh(e.ctx)
	e.must(err, "Harness.Fresh")
	e.host = h
}

func (e *env) reopen() {
	for _, l := range e.opened {
		l.Close()
	}
	e.opened = nil
	h, err := e.harness.Reopen(e.ctx, e.host)
	e.must(err, "Harness.Reopen")
	e.host = h
}

func (e *env) crash(rng *rand.Rand) {
	h, err := e.harness.Crash(e.ctx, e.host, rng)
	e.must(err, "Harness.Crash")
	e.host, e.opened = h, nil
}

// topic makes a new one with one partition.
func (e *env) topic() string {
	e.topics++
	name := fmt.Sprintf("topic-%d", e.topics)
	e.ensure(mirror.Topic{Name: name, Partitions: 1})
	return name
}

func (e *env) ensure(t mirror.Topic) {
	e.must(e.host.EnsureTopic(e.ctx, t), "EnsureTopic "+t.Name)
}

func (e *env) open(topic string, partition int32) mirror.Log {
	l, err := e.host.OpenLog(e.ctx, topic, partition)
	e.must(err, fmt.Sprintf("OpenLog %s %d", topic, partition))
	e.opened = append(e.opened, l)
	return l
}

// log opens partition 0 of a new topic.
func (e *env) log() mirror.Log { return e.open(e.topic(), 0) }

func (e *env) append(l mirror.Log, list ...batch) {
	e.must(l.Append(e.ctx, join(list)), fmt.Sprintf("Append of %v", list))
}

func (e *env) sync(l mirror.Log) { e.must(l.Sync(e.ctx), "Sync") }

func (e *env) bounds(l mirror.Log, start, end int64) {
	if s, n := l.Bounds(); s != start || n != end {
		e.fail("Bounds are [%d, %d), not [%d, %d)", s, n, start, end)
	}
}

// holds compares the whole log.
func (e *env) holds(l mirror.Log, list ...batch) {
	start, _ := l.Bounds()
	e.reads(l, start, size(list)+1, list...)
}

// reads reads at offset with room for n bytes: what comes out must be list, cut to n bytes.
func (e *env) reads(l mirror.Log, offset int64, n int, list ...batch) {
	want := join(list)
	want = want[:min(n, len(want))]
	buf := make([]byte, n)
	got, err := l.Read(e.ctx, offset, buf)
	e.must(err, fmt.Sprintf("Read at offset %d", offset))
	if got < 0 || got > len(buf) {
		e.fail("Read at offset %d into %d bytes answered %d", offset, n, got)
	}
	if d := differ(buf[:got], want); d != "" {
		e.fail("Read at offset %d into %d bytes: %s", offset, n, d)
	}
}

func (e *env) outOfRange(l mirror.Log, offset int64) {
	_, err := l.Read(e.ctx, offset, make([]byte, 100))
	start, end := l.Bounds()
	e.is(err, mirror.ErrOutOfRange, fmt.Sprintf("Read at offset %d of a log [%d, %d)", offset, start, end))
}
