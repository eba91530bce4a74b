package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing/synctest"
	"time"

	"github.com/clustermirror/mirror"
)

// Dry runs: a plan is made and carried out at once, while nothing else goes on. What was announced is what happens, no more and no less.

// quiet says that nothing is under way that a link is concerned with, and that nothing will fail.
func (w *world) quiet(l *link) bool {
	if _, id, ok := partitionStatus(l.dst.mirrors[l], 0); ok && id != w.judge.topic(l.dst) {
		return false // its topic was deleted, and will be made again
	}
	for num := range w.partitions {
		st, _, ok := partitionStatus(l.dst.mirrors[l], num)
		if ok && slices.Contains([]mirror.State{mirror.Preparing, mirror.Pausing, mirror.Stopping}, st.State) {
			return false // on its way
		}
	}
	for _, s := range w.sites {
		s.mu.Lock()
		calm := s.c != nil && s.after == nil && s.crashIn == 0 && s.faults == 0 && s.slow == 0
		s.mu.Unlock()
		if !calm {
			return false
		}
	}
	for _, l := range w.links {
		if !l.cable.isWhole() {
			return false
		}
	}
	return w.pending.Load() == 0
}

// moment is what a link's logs were like.
type moment struct {
	source []int // its partitions, and the changes of each
	ends   []int64
	ours   []logModel
}

func (w *world) moment(l *link) (at moment) {
	if list, err := l.src.host.Topics(context.WithValue(w.t.Context(), unwatched{}, true)); err == nil {
		for _, t := range list {
			at.source = append(at.source, int(t.Partitions))
		}
	}
	w.judge.mu.Lock()
	defer w.judge.mu.Unlock()
	for num := range w.partitions {
		src := w.judge.log(l.src, num)
		at.source, at.ends = append(at.source, src.changes), append(at.ends, src.end)
		at.ours = append(at.ours, *w.judge.log(l.dst, num))
	}
	return at
}

// asPlanned makes a plan, carries it out, and compares, unless the source has moved on.
func (w *world) asPlanned(l *link, st step, carryOut func(context.Context, *link, step, moment) error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	w.judge.speak(l)
	before := w.moment(l)
	if err := carryOut(ctx, l, st, before); err != nil && slices.Equal(w.moment(l).source, before.source) {
		w.judge.accuse("%s: %s does not do what was planned: %v", l.name, st.op, err)
	}
}

func (w *world) planRemove(ctx context.Context, l *link, st step, before moment) error {
	m := l.dst.mirrors[l]
	plan, planErr := m.PlanRemove(ctx, simTopic)
	err := m.Remove(ctx, simTopic)
	w.judge.answer(l, st, err)
	synctest.Wait()
	after := w.moment(l)
	if planErr != nil || err != nil {
		return unlike(planErr, err)
	}
	for _, p := range plan {
		was, is := before.ours[p.Partition], after.ours[p.Partition]
		if was.fetched != is.fetched || was.end < before.ends[p.Partition] {
			continue // it was not caught up, and what is on its way may have raised the leader epoch
		}
		st, _, _ := partitionStatus(m, p.Partition)
		stored := mirror.Position{Epoch: -1, Offset: -1}
		if st.Position != nil {
			stored = *st.Position
		}
		if stored != p.Position {
			return fmt.Errorf("partition %d stores position %v, planned was %v", p.Partition, stored, p.Position)
		}
		if err := happened(was, is, p.Partition, p.Cut); err != nil {
			return err
		}
		var open []int64
		for _, o := range p.Open {
			open = append(open, o.ProducerID)
		}
		if aborted := is.aborted[len(was.aborted):]; len(p.Cut) == 0 && !slices.Equal(slices.Sorted(slices.Values(open)), slices.Sorted(slices.Values(aborted))) {
			return fmt.Errorf("partition %d: transactions of producers %v were aborted, planned was %v", p.Partition, aborted, open)
		}
	}
	return nil
}

func (w *world) planAdd(ctx context.Context, l *link, st step, before moment) error {
	m := l.dst.mirrors[l]
	plan, planErr := m.PlanAdd(ctx, simTopic)
	err := m.AddTopics(ctx, simTopic)
	w.judge.answer(l, st, err)
	if planErr != nil || err != nil {
		return unlike(planErr, err)
	}
	for _, p := range plan {
		for st, _, _ := partitionStatus(m, p.Partition); st.State != mirror.Mirroring; st, _, _ = partitionStatus(m, p.Partition) {
			if ctx.Err() != nil {
				return fmt.Errorf("partition %d stays %s: %s", p.Partition, st.State, st.Reason)
			}
			pass(100 * time.Millisecond)
		}
	}
	synctest.Wait()
	after := w.moment(l)
	for _, p := range plan {
		if st, _, _ := partitionStatus(m, p.Partition); p.Position.Offset >= 0 && (st.Position == nil || *st.Position != p.Position) {
			return fmt.Errorf("partition %d begins with position %v, planned was %v", p.Partition, st.Position, p.Position)
		}
		if err := happened(before.ours[p.Partition], after.ours[p.Partition], p.Partition, append(p.Cut, p.Aborted...)); err != nil {
			return err
		}
	}
	return nil
}

// unlike says that a command and its plan have not answered alike.
func unlike(plan, command error) error {
	for _, known := range []error{
		mirror.ErrStopped, mirror.ErrNoProof, mirror.ErrPeerActive, mirror.ErrTopicConflict, mirror.ErrTopicOwned, mirror.ErrUnknownTopic,
	} {
		if errors.Is(plan, known) != errors.Is(command, known) {
			return fmt.Errorf("it answers %w, the plan was %w", command, plan)
		}
	}
	if (plan == nil) != (command == nil) {
		return fmt.Errorf("it answers %w, the plan was %w", command, plan)
	}
	return nil
}

// happened compares what was planned to be dropped with what was reported, and with what was dropped.
func happened(was, is logModel, partition int32, planned []mirror.Range) error {
	var announced []span
	for _, r := range planned {
		announced = append(announced, span{r.From, r.To})
	}
	reported := is.reports[len(was.reports):]
	for _, s := range was.cuts {
		reported = without(reported, s) // made before the plan was
	}
	for _, pair := range [][2][]span{{announced, reported}, {reported, announced}} {
		rest := pair[0]
		for _, s := range pair[1] {
			rest = without(rest, s)
		}
		if len(rest) > 0 {
			return fmt.Errorf("partition %d reports %v, planned was %v", partition, reported, announced)
		}
	}
	return nil
}
