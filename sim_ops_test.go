package mirror_test

import (
	"context"
	"time"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

// op is what a step does.
type op string

const (
	opWrite     op = "write"
	opTxn       op = "txn"
	opMarker    op = "marker"
	opDirect    op = "direct" // past the Partition, as a broker with a log of its own does; may leave a gap
	opElect     op = "elect"
	opUnclean   op = "unclean"
	opLag       op = "lag"
	opRetain    op = "retain"
	opGrow      op = "grow"
	opDelete    op = "delete" // the topic, and perhaps makes another one of that name
	opSwap      op = "swap"   // the same at a source, while a mirror is paused
	opCreate    op = "create" // one where it was deleted
	opAdd       op = "add"
	opPause     op = "pause"
	opResume    op = "resume"
	opRemove    op = "remove"
	opPromote   op = "promote"
	opOverwrite op = "overwrite"
	opRecover   op = "recover"
	opAnew      op = "anew"   // what is advised when the source has another topic of that name by now
	opBroken    op = "broken" // a round that begins over a cable which breaks, and is stopped
	opBoth      op = "both"   // ends of a link add at once
	opCrash     op = "crash"
	opCrashSoon op = "crashsoon"
	opRestore   op = "restore" // a crash, after which the state is an older copy of itself
	opLose      op = "lose"    // a crash that takes what was synced, too
	opRestart   op = "restart"
	opFaults    op = "faults"
	opSlow      op = "slow"
	opCable     op = "cable"
	opGhost     op = "ghost" // a node of the source that is no leader any more, and does not know it
	opMend      op = "mend"
	opWait      op = "wait"
)

// weights say how often each op is drawn.
var weights = []struct {
	op     op
	weight int
}{
	{opWrite, 26}, {opTxn, 14}, {opMarker, 10}, {opDirect, 4},
	{opElect, 4}, {opUnclean, 5}, {opLag, 3}, {opRetain, 4}, {opGrow, 2}, {opDelete, 1}, {opSwap, 1}, {opCreate, 1},
	{opAdd, 12}, {opPause, 3}, {opResume, 5}, {opRemove, 4}, {opPromote, 2}, {opOverwrite, 4}, {opRecover, 3}, {opAnew, 2}, {opBroken, 3}, {opBoth, 1},
	{opCrash, 2}, {opCrashSoon, 6}, {opRestore, 1}, {opLose, 1}, {opRestart, 2}, {opFaults, 3}, {opSlow, 2},
	{opCable, 4}, {opGhost, 2}, {opMend, 4}, {opWait, 16},
}

// step does what a step says. What can't be done as things stand is not done.
func (w *world) step(st step) {
	s := w.sites[st.site]
	num := int32(st.x) % w.partitions
	if s.c == nil {
		return
	}
	b := s.broker
	switch st.op {
	case opWrite:
		w.append(s, num, w.records(s, 1+st.y%3, int64(st.z%4)-1, false), st.y%2 == 0, st.x%3 > 0)
	case opTxn:
		w.append(s, num, w.records(s, 1+st.y%3, 10+int64(st.z%3), true), st.y%2 == 0, st.x%3 > 0)
	case opMarker:
		c := batch.Control{Type: batch.ControlAbort}
		if st.y%2 == 0 {
			c.Type = batch.ControlCommit
		}
		w.append(s, num, batch.AppendControl(nil, 0, 0, 10+int64(st.z%3), 0, c, time.Now().UnixMilli()), st.y%3 == 0, true)
	case opDirect:
		w.direct(s, num, w.records(s, 1+st.y%3, -1, false), int64(st.z%3))
	case opElect:
		w.do(time.Second, func(context.Context) {
			_ = b.Lag(simTopic, num, int32(1+st.y%simNodes), -1)
			_ = b.Elect(simTopic, num, int32(1+st.y%simNodes), false)
		})
	case opUnclean:
		_, end, _ := w.judge.bounds(s, num)
		w.do(time.Second, func(context.Context) {
			_ = b.Lag(simTopic, num, int32(1+st.y%simNodes), max(end-int64(st.z%10), 0))
			_ = b.Elect(simTopic, num, int32(1+st.y%simNodes), true)
		})
	case opLag:
		_, end, _ := w.judge.bounds(s, num)
		w.do(time.Second, func(context.Context) { _ = b.Lag(simTopic, num, int32(1+st.y%simNodes), end-int64(st.z%4)) })
	case opRetain:
		start, end, _ := w.judge.bounds(s, num)
		c := s.c
		w.do(time.Second, func(ctx context.Context) {
			if p, err := c.Partition(ctx, simTopic, num); err == nil {
				_ = p.AdvanceStart(ctx, start+int64(st.y)*(end-start+1)/drawn)
			}
		})
	case opGrow:
		if w.judge.owned(s, 0) {
			_ = s.host.EnsureTopic(w.t.Context(), mirror.Topic{Name: simTopic, Partitions: w.partitions})
		}
	case opDelete:
		if (st.x%3 == 0 || !s.closed(num)) && w.judge.drop(s) && st.y%4 > 0 {
			w.create(s, num, st.z%12)
		}
	case opCreate:
		if w.judge.topic(s) == (mirror.TopicID{}) && w.judge.created(s) {
			w.create(s, num, st.z%12)
		}
	case opCrash:
		s.mu.Lock()
		s.crash()
		s.mu.Unlock()
	case opRestore:
		w.restore(s, st.y, st.z%3 == 0)
	case opLose:
		w.lose(s, num, st.y, st.z)
	case opCrashSoon:
		s.mu.Lock()
		s.crashIn = 1 + st.y%25
		s.mu.Unlock()
	case opRestart:
		s.close()
	case opFaults:
		s.mu.Lock()
		s.faults = 1 + st.y%4
		s.mu.Unlock()
	case opSlow:
		s.mu.Lock()
		s.slow = 1 + st.y%4
		s.mu.Unlock()
	case opWait:
		pass(time.Duration(st.x) * time.Duration(1+st.y%30) * time.Millisecond)
	default:
		w.command(s, st)
	}
}

// command is one of the mirror's own, on a link that ends at the site.
func (w *world) command(s *site, st step) {
	var mine []*link
	for _, l := range w.links {
		if l.dst == s {
			mine = append(mine, l)
		}
	}
	if len(mine) == 0 {
		return
	}
	l := mine[st.x%len(mine)]
	m := s.mirrors[l]
	wait := time.Duration(st.y*st.y) * 200 * time.Microsecond // up to 2 s; the command goes on if it takes longer
	run := func(f func(context.Context, ...string) error) {
		w.judge.speak(l)
		w.do(wait, func(ctx context.Context) { w.judge.answer(l, st, f(ctx, simTopic)) })
	}
	overwrite := func(ctx context.Context, _ ...string) error { return w.judge.overwrite(ctx, s, m) }
	switch st.op {
	case opAdd:
		if st.z%2 > 0 || !w.quiet(l) {
			run(m.AddTopics)
			return
		}
		w.asPlanned(l, st, w.planAdd)
	case opRecover:
		run(func(ctx context.Context, _ ...string) error { return w.judge.recover(ctx, l) })
	case opPause:
		run(m.Pause)
	case opResume:
		run(m.Resume)
	case opRemove:
		if st.z%2 > 0 || !w.quiet(l) {
			run(m.Remove)
			return
		}
		w.asPlanned(l, st, w.planRemove)
	case opPromote:
		run(m.Promote)
	case opOverwrite:
		run(overwrite)
	case opSwap:
		if num := int32(st.z) % w.partitions; w.judge.topic(l.src) == w.judge.topic(s) && !l.src.closed(num) {
			run(m.Pause)
			if w.judge.drop(l.src) {
				w.create(l.src, num, st.z%12)
			}
			run(m.Resume)
		}
	case opAnew:
		if !w.strange(l) {
			return
		}
		run(m.Remove)
		if w.judge.drop(s); st.z%2 == 0 {
			run(m.AddTopics)
		} else {
			run(overwrite)
		}
	case opBroken:
		l.cable.breakIn(10 + st.z)
		run(overwrite)
		run(m.Remove)
	case opBoth:
		for _, back := range w.links {
			if back.dst == l.src && back.src == s && back.dst.c != nil {
				other := back.dst.mirrors[back]
				w.judge.speak(back)
				w.do(0, func(ctx context.Context) { w.judge.answer(back, st, other.AddTopics(ctx, simTopic)) })
			}
		}
		run(m.AddTopics)
	case opCable:
		switch st.y % 3 {
		case 0:
			l.cable.set(true, 0, 0)
		case 1:
			l.cable.set(false, 1+st.z%12, 0)
		default:
			l.cable.set(false, 0, time.Duration(1+st.z)*5*time.Millisecond)
		}
	case opGhost:
		again := st.z%2 == 0
		if w.haunt(l, int32(st.y)%w.partitions, again); again { // questions that are asked of it now are put to the ghost
			run(m.Pause)
			run(m.Resume)
		}
	case opMend:
		l.cable.mend()
	}
}

// do runs f, and waits for it for a while only.
func (w *world) do(wait time.Duration, f func(context.Context)) {
	done := make(chan struct{})
	w.pending.Add(1)
	w.tasks.Go(func() {
		defer close(done)
		defer w.pending.Add(-1)
		ctx, cancel := context.WithTimeout(w.t.Context(), simTimeout)
		defer cancel()
		f(ctx)
	})
	select {
	case <-done:
	case <-time.After(wait):
	}
}

// append writes through the Partition; a write that takes long goes on unless it is waited for.
func (w *world) append(s *site, num int32, b []byte, sync, wait bool) {
	if !w.judge.owned(s, num) {
		return
	}
	c, patience := s.c, time.Duration(0)
	if wait {
		patience = time.Second
	}
	w.do(patience, func(ctx context.Context) {
		p, err := c.Partition(ctx, simTopic, num)
		if err != nil {
			return
		}
		if _, err := p.Append(ctx, b); err == nil && sync {
			_ = p.Sync(ctx)
		}
	})
}

// create makes a topic that nobody has yet, and writes a few batches to a partition.
func (w *world) create(s *site, num int32, batches int) {
	partitions := w.partitions
	if w.grown {
		partitions = 1
	}
	_ = s.host.EnsureTopic(w.t.Context(), mirror.Topic{Name: simTopic, Partitions: partitions})
	w.judge.named(s)
	for range batches {
		w.append(s, num%partitions, w.records(s, 2, -1, false), false, true)
	}
}

// strange says that the ends of a link have different topics of the name.
func (w *world) strange(l *link) bool {
	src, dst := w.judge.topic(l.src), w.judge.topic(l.dst)
	return src != dst && src != mirror.TopicID{} && dst != mirror.TopicID{}
}

// direct appends as a host does that has a log of its own: between BeginWrite and done. Nobody else writes meanwhile. It says when it
// has deleted a topic.
func (w *world) direct(s *site, num int32, b []byte, gap int64) {
	s.mu.Lock()
	busy := s.appending > 0
	s.mu.Unlock()
	if busy || !w.judge.owned(s, num) {
		return
	}
	c := s.c
	w.do(time.Second, func(ctx context.Context) {
		_, err := c.Topics(ctx)
		if err != nil {
			return
		}
		epoch, done, err := c.BeginWrite(ctx, simTopic, num)
		if err != nil {
			return
		}
		defer done()
		l, err := c.Host().OpenLog(ctx, simTopic, num)
		if err != nil {
			return
		}
		defer l.Close()
		_, end := l.Bounds()
		batch.SetBase(b, end+gap)
		batch.SetLeaderEpoch(b, epoch)
		_ = l.Append(ctx, b)
	})
}
