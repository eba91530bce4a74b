package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/clustermirror/mirror/internal/summary"
)

// Dry runs: what Remove and AddTopics would do now. They ask, and change nothing.

// nothing is how a plan without steps prints.
const nothing = "nothing to do\n"

// RemovePlan is what PlanRemove answers, by topic and partition. It prints as a table.
type RemovePlan []RemoveStep

// RemoveStep is one partition of a RemovePlan.
type RemoveStep struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	State     State     `json:"state"`
	Health    Health    `json:"health"`      // UNREACHABLE: what follows of the source is as old as Age
	Lag       int64     `json:"lag"`         // source end - end; -1 unknown
	LagTime   float64   `json:"lag_seconds"` // since it last held all that the source had, in seconds; -1 unknown
	Missing   Range     `json:"missing"`     // what is known to be at the source and not here; empty: nothing
	Age       float64   `json:"age_seconds"` // since the source last answered, in seconds; -1 never
	Open      []OpenTxn `json:"open_transactions,omitempty"`
	Cut       []Range   `json:"cut,omitempty"` // with TruncateToStable: what would be dropped here because of open transactions
	Position  Position  `json:"position"`      // that would be stored as the last mirrored one; offset -1: none would
}

// OpenTxn is a transaction without a marker: Remove would abort it, or with TruncateToStable cut it.
type OpenTxn struct {
	ProducerID  int64     `json:"producer_id"`
	FirstOffset int64     `json:"first_offset"`
	Since       time.Time `json:"since"` // greatest timestamp of its first batch; zero if it has none
}

// PlanRemove says what Remove would do with topics now; of all topics if none are named. It asks nothing of the source, which may be
// dead: what the source has got since it last answered is not in it, nor are partitions that it has added since the last refresh of the
// metadata. With an error there is no plan.
func (m *Mirror) PlanRemove(ctx context.Context, topics ...string) (RemovePlan, error) {
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	list, err := m.all(topics...)
	if err != nil {
		return nil, err
	}
	if _, err := m.c.listTopics(ctx); err != nil { // a stop finds out what the host has deleted
		return nil, err
	}
	var plan RemovePlan
	for _, t := range list {
		for _, r := range t.partitions() {
			s, err := r.planRemove(ctx)
			if err != nil {
				return nil, m.failed(t.name, fmt.Errorf("partition %d: %w", r.num, err))
			}
			plan = append(plan, s)
		}
	}
	return plan, nil
}

func (r *replica) planRemove(ctx context.Context) (RemoveStep, error) {
	p, err := r.partition(ctx)
	st := r.status(time.Now())
	s := RemoveStep{
		Topic: r.t.name, Partition: r.num, State: st.State, Health: st.Health, Lag: st.Lag, LagTime: st.LagTime, Age: -1,
		Missing: Range{r.num, max(st.End, 0), max(st.SourceEnd, st.End, 0)}, Position: Position{-1, -1},
	}
	r.mu.Lock()
	rd, heard := r.round, r.heard
	r.mu.Unlock()
	if !heard.IsZero() {
		s.Age = time.Since(heard).Seconds()
	}
	if rd.Stored || rd.Known {
		s.Position = Position{rd.Epoch, rd.Offset}
	}
	switch {
	case errors.Is(err, ErrUnknownPartition), errors.Is(err, ErrTopicConflict):
		return s, nil
	case err != nil:
		return s, err
	}
	l, err := p.lineage(ctx)
	if err != nil {
		return s, err
	}
	pending, ok, err := get[cutEntry](r.m.c.store, r.key(typeCut)) // a stop begins with it
	if err != nil {
		return s, err
	}
	done, err := pending.carriedOut(ctx, p)
	if err != nil {
		return s, err
	}
	if ok && !done {
		s.Cut = append(s.Cut, Range{r.num, pending.From, pending.To})
		l = l.after(pending)
	}
	if st.State == Stopped || rd.untouched() {
		return s, nil
	}
	open, err := p.openTxns(ctx)
	if err != nil {
		return s, err
	}
	for _, o := range open {
		txn := OpenTxn{ProducerID: o.ProducerID, FirstOffset: o.FirstOffset}
		if o.Timestamp >= 0 {
			txn.Since = time.UnixMilli(o.Timestamp)
		}
		s.Open = append(s.Open, txn)
	}
	if rd, _, err = r.position(ctx, p, rd, l.end, l.latest()); err != nil {
		return s, err
	}
	if rd.Stored {
		s.Position = Position{rd.Epoch, rd.Offset}
	}
	if r.m.opts.stable >= 0 && rd.Stored && !rd.Raised && rd.Offset < l.end {
		s.Cut = append(s.Cut, Range{r.num, max(rd.Offset, l.start), l.end})
	}
	return s, nil
}

// String is a table.
func (p RemovePlan) String() string {
	if len(p) == 0 {
		return nothing
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITION\tSTATE\tHEALTH\tLAG\tSECONDS\tNOT MIRRORED\tSEEN\tOPEN TRANSACTIONS\tWOULD BE CUT\tPOSITION")
	for _, s := range p {
		missing, seen := "-", "never"
		if s.Missing.From != s.Missing.To {
			missing = fmt.Sprintf("[%d, %d)", s.Missing.From, s.Missing.To)
		} else if s.Health == Unreachable {
			missing = "unknown"
		}
		if s.Age >= 0 {
			seen = fmt.Sprintf("%.0fs ago", s.Age)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\tepoch %d, offset %d\n", s.Topic, s.Partition, s.State, s.Health, known(s.Lag), seconds(s.LagTime),
			missing, seen, len(s.Open), whole(s.Cut), s.Position.Epoch, s.Position.Offset)
	}
	_ = w.Flush() // into memory
	return b.String()
}

// AddPlan is what PlanAdd answers, by topic and partition. It prints as a table.
type AddPlan []AddStep

// AddStep is one partition of an AddPlan.
type AddStep struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Start     int64    `json:"start"`      // here
	End       int64    `json:"end"`        // here
	Position  Position `json:"position"`   // that it would be aligned by; offset -1: none is known
	Cut       []Range  `json:"cut"`        // what would be reported as cut or lost, the last first: what is here and not the source's, markers too
	Aborted   []Range  `json:"aborted"`    // what would be reported as lost though it stays: transactions committed here that the source has aborted
	SourceEnd int64    `json:"source_end"` // -1 unknown
}

// PlanAdd says what AddTopics would cut here: records that were never mirrored to the source. A topic that AddTopics would refuse
// answers with the same error, and one that it would leave as it is with nothing. Topics that fail are left out; the others are
// planned, also if there is an error.
func (m *Mirror) PlanAdd(ctx context.Context, topics ...string) (AddPlan, error) {
	mirrored := func(name string) bool {
		t := m.topic(name)
		return t != nil && t.wishedNow() != Stopped
	}
	found, sourceErr := m.look(ctx, slices.DeleteFunc(slices.Clone(topics), mirrored))
	var plan AddPlan
	err := m.each(ctx, topics, func(ctx context.Context, name string) error {
		switch {
		case mirrored(name):
			return nil
		case sourceErr != nil:
			return sourceErr
		}
		if t := m.topic(name); t != nil { // AddTopics waits for a stop to end, too
			if err := t.awaitStop(ctx); err != nil {
				return err
			}
		}
		t, err := m.candidate(ctx, name, found[name])
		if err != nil || t == nil {
			return err
		}
		t = t.shadow()
		if err := m.adopt(ctx, t, found[name]); err != nil {
			return err
		}
		rounds, _, err := m.chooseRounds(ctx, t, adding)
		if err != nil {
			return err
		}
		var steps AddPlan
		for _, r := range t.partitions() {
			s, err := r.planAdd(ctx, rounds[r])
			if err != nil {
				return fmt.Errorf("partition %d: %w", r.num, err)
			}
			steps = append(steps, s)
		}
		m.mu.Lock()
		plan = append(plan, steps...)
		m.mu.Unlock()
		return nil
	})
	slices.SortStableFunc(plan, func(a, b AddStep) int { return strings.Compare(a.Topic, b.Topic) })
	return plan, err
}

// shadow is a copy of a topic, of which nobody else knows.
func (t *mirrorTopic) shadow() *mirrorTopic {
	return &mirrorTopic{m: t.m, name: t.name, id: t.id, command: newLock(), wished: t.wishedNow(), replicas: t.partitions()}
}

// planAdd goes through alignment on a copy of the epoch table.
func (r *replica) planAdd(ctx context.Context, rd round) (AddStep, error) {
	s := AddStep{Topic: r.t.name, Partition: r.num, Position: Position{-1, -1}, SourceEnd: -1}
	r.mu.Lock()
	leader, epoch := r.leader, r.leaderEpoch
	r.mu.Unlock()
	p, err := r.partition(ctx)
	var l lineage // empty, if the host has no such partition yet
	if err == nil {
		l, err = p.lineage(ctx)
	}
	absent := errors.Is(err, ErrUnknownPartition)
	if err != nil && !absent {
		return s, err
	}
	s.Start, s.End = l.start, l.end
	drop := func(e cutEntry) error {
		if e.From < e.To {
			s.Cut = append(s.Cut, Range{r.num, e.From, e.To})
		}
		if !e.Reset { // a cut inside a batch comes out lower
			base, err := p.batchBase(ctx, e.Target)
			if err != nil {
				return err
			}
			e.Target = base
		}
		l = l.after(e)
		return nil
	}
	if rd.Known {
		s.Position = Position{rd.Epoch, rd.Offset}
		if to := l.byPosition(s.Position); l.start < l.end && to < l.end {
			if s.Aborted, err = p.wouldAbort(ctx, to); err != nil {
				return s, err
			}
			if err := drop(l.cutting(to, "")); err != nil {
				return s, err
			}
		}
	}
	low, high := int64(-1), int64(-1)
	if err = errNoLeader; leader >= 0 {
		low, high, err = r.sourceBounds(ctx, leader, epoch)
	}
	switch {
	case err != nil && absent: // nothing to cut, whether its leader answers or not
		return s, nil
	case err != nil:
		return s, err
	}
	s.SourceEnd = high
	if l.start < l.end {
		if err := r.current(l, leader, epoch); err != nil {
			return s, err
		}
	}
	for l.start < l.end {
		if low > l.end {
			return s, drop(l.restarting(low, ""))
		}
		v, err := r.ask(ctx, l, leader, epoch, low, high)
		switch {
		case err != nil:
			return s, err
		case v.kind == agree:
			return s, nil
		case v.kind == unknown:
			return s, drop(l.restarting(v.to, ""))
		}
		if err := drop(l.cutting(v.to, "")); err != nil {
			return s, err
		}
	}
	if rd.Known && rd.Offset == l.end && low > l.end { // what the source has dropped meanwhile is never got
		return s, drop(l.restarting(low, ""))
	}
	return s, nil
}

// wouldAbort are the records below a cut of transactions that are open there and committed beyond.
func (p *Partition) wouldAbort(ctx context.Context, cut int64) (list []Range, err error) {
	commits, err := p.commits(ctx, cut)
	if err != nil || len(commits) == 0 {
		return nil, err
	}
	var then *summary.Summary
	if err := p.know(ctx, func(s *summary.Summary) { then = s.Fork(cut) }); err != nil {
		return nil, err
	}
	open, err := then.OpenAt(ctx, p.log, cut)
	for _, o := range open {
		if _, ok := commits[o.ProducerID]; ok {
			list = append(list, Range{p.num, o.FirstOffset, o.Next})
		}
	}
	return list, err
}

// String is a table.
func (p AddPlan) String() string {
	if len(p) == 0 {
		return nothing
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITION\tSTART\tEND\tSOURCE-END\tPOSITION\tWOULD BE CUT\tWOULD BE ABORTED")
	for _, s := range p {
		at := "-"
		if s.Position.known() {
			at = fmt.Sprintf("epoch %d, offset %d", s.Position.Epoch, s.Position.Offset)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%d\n", s.Topic, s.Partition, s.Start, s.End, known(s.SourceEnd), at, whole(s.Cut), len(s.Aborted))
	}
	_ = w.Flush() // into memory
	return b.String()
}

// whole is what ranges come to that touch one another.
func whole(cut []Range) string {
	if len(cut) == 0 {
		return "-"
	}
	from, to := cut[0].From, cut[0].To
	for _, r := range cut[1:] {
		from, to = min(from, r.From), max(to, r.To)
	}
	return fmt.Sprintf("[%d, %d)", from, to)
}
