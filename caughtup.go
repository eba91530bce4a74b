package mirror

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// WaitCaughtUp waits until the mirror holds everything up to the source's end as it is after the call, trailing transaction markers and
// partitions that the source has added included; of all topics that are not stopped if none are named. While the source is away it waits: bound it with ctx.
// When that ends, the error says how far the mirror has come and what is known to hold it back. A partition that is FAILED, a topic that
// is paused or named and stopped, or topics of a mirror that was not started end it with an error at once.
func (m *Mirror) WaitCaughtUp(ctx context.Context, topics ...string) error {
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	list, err := m.all(topics...)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		list = slices.DeleteFunc(list, func(t *mirrorTopic) bool { return t.wishedNow() == Stopped })
	}
	look := m.nextLook()
	waited := make(map[*replica]bool)
	for before := -1; before < len(waited); { // again for those that were added meanwhile
		before = len(waited)
		g, ctx := errgroup.WithContext(ctx)
		for _, t := range list {
			for _, r := range t.partitions() {
				if waited[r] {
					continue
				}
				waited[r] = true
				g.Go(func() error {
					if err := r.waitCaughtUp(ctx, look); err != nil {
						return m.failed(t.name, fmt.Errorf("partition %d: %w", r.num, err))
					}
					return nil
				})
			}
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (r *replica) waitCaughtUp(ctx context.Context, look int) error {
	target := int64(-1)
	var held error // why it looks again
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		changed := r.m.changed.next()
		if err := r.hopeless(); err != nil {
			return err
		}
		var wait <-chan time.Time
		var moved chan struct{}
		stop := func() {}
		r.mu.Lock()
		p, leader, epoch := r.part, r.leader, r.leaderEpoch
		r.mu.Unlock()
		switch {
		case p == nil || leader < 0 || !r.settled() || r.t.unseen(look):
			// Not prepared yet, about to be cut, or not the whole topic: a change of state, or a look again, will tell.
			target = -1
			wait = time.After(pause)
		case target < 0:
			_, end, err := r.sourceBounds(ctx, leader, epoch)
			if err == nil {
				err = r.agrees(ctx, p, leader, epoch)
			}
			if ctx.Err() == nil {
				held = err
			}
			if err != nil {
				if !isSourceTrouble(err) {
					return err
				}
				wait = time.After(pause)
				break
			}
			target = end
			continue
		default:
			moved = make(chan struct{}, 1)
			stop = p.Notify(moved)
			if _, end := p.Bounds(); end >= target && r.settled() {
				stop()
				if end > target { // new records, or a tail that the source has lost just now?
					_, sourceEnd, err := r.sourceBounds(ctx, leader, epoch)
					if err != nil || sourceEnd < end {
						target, wait = -1, time.After(pause)
						break
					}
				}
				return nil
			}
		}
		select {
		case <-changed:
		case <-moved:
		case <-wait:
		case <-ctx.Done():
			stop()
			return r.behind(target, held, context.Cause(ctx))
		}
		stop()
	}
}

// behind says how far it has come, and what is known to hold it back.
func (r *replica) behind(target int64, held, cause error) error {
	s := r.status(time.Now())
	text := fmt.Sprintf("%s, at offset %d of %s", s.State, s.End, known(max(target, s.SourceEnd)))
	switch {
	case s.Reason != "":
		text += ": " + s.Reason
	case held != nil:
		text += ": " + held.Error()
	}
	return hint(fmt.Errorf("%s: %w", text, cause), "it goes on by itself: wait again")
}

// unreachable is why the source can't be asked for it; nil if it can.
func (r *replica) unreachable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.health == Unreachable {
		return r.trouble
	}
	return nil
}

// settled says that what is in the log is the source's: it is not about to be cut.
func (r *replica) settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stored.state == Mirroring && r.diverged == ""
}

// hopeless is why it will not catch up by itself.
func (r *replica) hopeless() error {
	switch r.t.wishedNow() {
	case Paused:
		return hint(ErrPaused, "Resume it")
	case Stopped:
		return hint(ErrStopped, "Resume mirrors it again")
	}
	r.m.mu.Lock()
	started := r.m.started
	r.m.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s := r.stored; {
	case s.state == Failed && s.decide:
		return hint(fmt.Errorf("%w in %s: %s", ErrFailed, s.before, s.text), "Recover it when that is mended or decided")
	case s.state == Failed:
		return hint(fmt.Errorf("%w in %s: %s", ErrFailed, s.before, s.text), "it is tried again by itself; Recover tries at once")
	case r.m.client == nil:
		return errDetached
	case !started:
		return hint(errNotStarted, "call Start")
	}
	return nil
}
