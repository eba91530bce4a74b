package disklog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

// state is what a log may be: batches from start on, of which the first durable ones are safe.
type state struct {
	start   int64
	batches [][]byte
	durable int
}

func next(b []byte) int64 {
	h, _ := batch.Parse(b)
	return h.Next()
}

func (s state) end() int64 {
	if n := len(s.batches); n > 0 {
		return max(s.start, next(s.batches[n-1]))
	}
	return s.start
}

// from is the state with its start advanced: batches wholly below are no longer seen.
func (s state) from(start int64) state {
	n := 0
	for n < len(s.batches) && next(s.batches[n]) <= start {
		n++
	}
	return state{start, s.batches[n:], max(0, s.durable-n)}
}

func (s state) truncated(end int64) state {
	switch {
	case end >= s.end():
		return s
	case end < s.start:
		return state{start: end}
	}
	n := 0
	for n < len(s.batches) && next(s.batches[n]) <= end {
		n++
	}
	return state{s.start, slices.Clone(s.batches[:n]), n} // a cut is durable, what is left of the log with it
}

// admits says whether a log found after a crash may be what the state became: a prefix that holds all that was durable.
func (s state) admits(start, end int64, found []byte) error {
	if start != s.start {
		return fmt.Errorf("start %d, not %d", start, s.start)
	}
	n := 0
	rest := found
	for ; n < len(s.batches) && len(rest) > 0; n++ {
		if !bytes.HasPrefix(rest, s.batches[n]) {
			return fmt.Errorf("batch %d is another", n)
		}
		rest = rest[len(s.batches[n]):]
	}
	left := state{s.start, s.batches[:n], 0}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%d bytes too many", len(rest))
	case n < s.durable:
		return fmt.Errorf("%d of %d durable batches", n, s.durable)
	case end != left.end():
		return fmt.Errorf("end %d, not %d", end, left.end())
	}
	return nil
}

// player does random calls on a log and keeps book.
type player struct {
	t    testing.TB
	r    *rand.Rand
	fs   *vfs.Mem
	h    *Host
	l    mirror.Log
	opts []Option

	now state   // what the log is
	may []state // what it may become, besides, while a call is under way or after one that failed
	did []string

	// All batches of a size: where bytes of one incarnation of the log stay behind, they look like batches of the next.
	uniform bool
}

func newPlayer(t testing.TB, seed uint64) *player {
	size := [...]int64{4096, 32 << 10, 16 << 10}[seed%3]
	p := &player{t: t, r: newRand(seed), fs: vfs.NewMem(), opts: []Option{quiet, SegmentBytes(size)}, uniform: seed%3 == 2}
	p.open()
	return p
}

func (p *player) open() {
	p.h, p.l = openMem(p.t, p.fs, p.opts...)
}

func (p *player) story() string { return strings.Join(p.did, "\n") }

// check compares what a crash left with what it may have left, and answers that.
func (p *player) check(fs *vfs.Mem) (*Host, mirror.Log) {
	h, l := openMem(p.t, fs, p.opts...)
	found, err := contents(l)
	require.NoError(p.t, err, p.story())
	start, end := l.Bounds()
	var errs []error
	for _, s := range append([]state{p.now}, p.may...) {
		err := s.admits(start, end, found)
		if err == nil {
			requireLookups(p.t, l, found, p.story)
			requireNoLeftovers(p.t, fs, start, p.story)
			return h, l
		}
		errs = append(errs, err)
	}
	require.NoError(p.t, errors.Join(errs...), p.story())
	return nil, nil
}

// requireLookups compares what the indexes lead to with a walk over all bytes.
func requireLookups(t testing.TB, l mirror.Log, all []byte, story func() string) {
	start, _ := l.Bounds()
	buf := make([]byte, batch.HeaderSize)
	for b := range mirror.Batches(all) {
		_, err := l.Read(ctx, max(start, b.Next-1), buf)
		require.NoError(t, err, story())
		require.Equal(t, b.Bytes[:len(buf)], buf, story())
		first := b
		for c := range mirror.Batches(all) {
			if !c.MaxTime.Before(b.MaxTime) {
				first = c
				break
			}
		}
		base, err := l.(mirror.OffsetForTimer).OffsetForTime(ctx, b.MaxTime)
		require.NoError(t, err, story())
		require.Equal(t, first.Base, base, story())
	}
}

// requireNoLeftovers sees that no file is kept that holds nothing above the start.
func requireNoLeftovers(t testing.TB, fs *vfs.Mem, start int64, story func() string) {
	names, err := fs.List("data/t-0")
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	require.NoError(t, err)
	var bases []int64
	for _, name := range names {
		if base, kind := parseName(name); kind == logFile {
			bases = append(bases, base)
		} else if kind > logFile {
			require.Contains(t, names, strings.TrimSuffix(strings.TrimSuffix(name, ".index"), ".timeindex")+".log", story())
		}
	}
	require.False(t, len(bases) > 1 && bases[1] <= start, "%v, start %d\n%s", names, start, story())
}

// settle finds out what a call that failed has done: it must have left one of the states that it might.
func (p *player) settle() {
	found, err := contents(p.l)
	require.NoError(p.t, err, p.story())
	start, end := p.l.Bounds()
	for _, s := range append([]state{p.now}, p.may...) {
		for n := len(s.batches); n >= s.durable; n-- { // of an append any number of whole batches may have stayed
			s := state{s.start, s.batches[:n], s.durable}
			if s.end() == end && s.start == start && bytes.Equal(found, cat(s.batches...)) {
				// On disk it may still be any of the others, until a later call succeeds.
				p.may = append(p.may, p.now)
				p.now = s
				return
			}
		}
	}
	p.t.Fatalf("after a call that failed the log is none of what it might be: [%d, %d)\n%s", start, end, p.story())
}

// play does one call.
func (p *player) play() {
	var err error
	was := p.now
	say := func(format string, args ...any) { p.did = append(p.did, fmt.Sprintf(format, args...)) }
	switch k := p.r.IntN(21); {
	case k < 9:
		var bs [][]byte
		base := was.end()
		for range 1 + p.r.IntN(3) {
			b := mk(base, 1, 2500, p.r.Int64N(1e6))
			if !p.uniform {
				b = mk(base+int64(p.r.IntN(8)/7), 1+p.r.IntN(4), 61+p.r.IntN(1+p.r.IntN(3000)), p.r.Int64N(1e6))
			}
			bs, base = append(bs, b), next(b)
		}
		then := state{was.start, append(slices.Clone(was.batches), bs...), was.durable}
		p.may = append(p.may, then)
		say("append %d batches, %d bytes, to %d", len(bs), len(cat(bs...)), then.end())
		if err = p.l.Append(ctx, cat(bs...)); err == nil {
			p.now = then
		}
	case k < 13:
		say("sync")
		if err = p.l.Sync(ctx); err == nil {
			p.now.durable = len(p.now.batches)
		}
	case k < 15:
		end := was.start + p.r.Int64N(was.end()-was.start+1)
		if p.r.IntN(10) == 0 {
			end = max(0, was.start-1)
		}
		say("truncate to %d", end)
		p.may = append(p.may, was.truncated(end))
		if err = p.l.TruncateTo(ctx, end); err == nil {
			p.now = was.truncated(end)
		}
	case k < 17:
		start := was.start + p.r.Int64N(was.end()-was.start+1)
		say("advance start to %d", start)
		p.may = append(p.may, was.from(start))
		if err = p.l.AdvanceStart(ctx, start); err == nil {
			p.now = was.from(start)
		}
	case k < 18:
		start := p.r.Int64N(was.end() + 10)
		say("reset to %d", start)
		p.may = append(p.may, state{start: start})
		if err = p.l.Reset(ctx, start); err == nil {
			p.now = state{start: start}
		}
	case k < 19:
		say("close, open")
		if err = p.h.Close(); err == nil {
			p.now.durable = len(p.now.batches)
		}
		p.fs.Hook(nil) // the hook's errors are for calls of the log
		p.open()
	default:
		say("crash")
		p.fs = p.fs.Crash(p.r)
		p.h, p.l = p.check(p.fs)
		found, cerr := contents(p.l)
		require.NoError(p.t, cerr)
		start, _ := p.l.Bounds()
		p.now = state{start: start}
		for b := range mirror.Batches(found) {
			p.now.batches = append(p.now.batches, bytes.Clone(b.Bytes))
		}
		p.may = nil
	}
	if err != nil {
		say("  failed: %v", err)
		p.settle()
		return
	}
	p.may = nil
}

// A power cut between any two disk calls leaves what was synced, and of the rest a prefix in whole batches; a cut, a
// reset and an advanced start are durable when the call returns, and never half done; what was cut never comes back,
// also after more was appended and the power was cut again.
func TestPowerCutAtEveryStep(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := newPlayer(t, seed)
			crash := newRand(seed + 1000)
			for range 40 {
				p.fs.Hook(func(c vfs.Call) error {
					if c.Changes() {
						p.did = append(p.did, "  "+c.String())
						p.check(p.fs.Crash(crash))
					}
					return nil
				})
				p.play()
				p.fs.Hook(nil)
				p.check(p.fs.Crash(crash))
				requireState(t, p)
			}
		})
	}
}

func requireState(t testing.TB, p *player) {
	t.Helper()
	found, err := contents(p.l)
	require.NoError(t, err, p.story())
	start, end := p.l.Bounds()
	require.Equal(t, [2]int64{p.now.start, p.now.end()}, [2]int64{start, end}, p.story())
	require.True(t, bytes.Equal(cat(p.now.batches...), found), p.story())
}

// Whichever disk call fails, the log is as before the call or as after it (of an append, whole batches), goes on when
// the disk does, and a power cut later on loses nothing that was durable.
func TestAnyDiskCallMayFail(t *testing.T) {
	for seed := range uint64(2) {
		for i, done := 0, false; !done; i++ {
			p := newPlayer(t, seed)
			crash := newRand(seed ^ uint64(i)<<8)
			left := i
			done = true
			for range 25 {
				p.fs.Hook(func(c vfs.Call) error {
					if left--; left != -1 {
						return nil
					}
					done = false
					p.did = append(p.did, "  fails: "+c.String())
					if c.Op == "write" {
						return &vfs.Short{N: c.Len / 2, Err: syscall.EIO}
					}
					return syscall.EIO
				})
				p.play()
				p.fs.Hook(nil)
				requireState(t, p)
				p.check(p.fs.Crash(crash))
			}
			require.NoError(t, p.l.Sync(ctx), p.story())
			p.now.durable = len(p.now.batches)
			p.check(p.fs.Crash(crash))
			require.NoError(t, p.h.Close(), p.story())
			p.check(p.fs.Crash(crash))
		}
	}
}
