package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// Dry runs: what Remove and AddTopics would do now. They ask, and change nothing.

// RemovePlan is what PlanRemove answers, by topic and partition. It prints as a table.
type RemovePlan []RemoveStep

// RemoveStep is one partition of a RemovePlan.
type RemoveStep struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	State     State     `json:"state"`
	Lag       int64     `json:"lag"`         // source end - end; -1 unknown
	LagTime   float64   `json:"lag_seconds"` // since it last held all that the source had; -1 unknown
	Missing   Range     `json:"missing"`     // what is known to be at the source and not here; empty: nothing
	Age       float64   `json:"age_seconds"` // since the source last answered; -1 never
	Open      []OpenTxn `json:"open_transactions,omitempty"`
	Position  Position  `json:"position"` // that would be stored as the last mirrored one; offset -1: none would
}

// OpenTxn is a transaction without a marker: Remove would abort it.
type OpenTxn struct {
	ProducerID  int64     `json:"producer_id"`
	FirstOffset int64     `json:"first_offset"`
	Since       time.Time `json:"since"` // greatest timestamp of its first batch; zero if it has none
}

// PlanRemove says what Remove would do with topics now; of all topics if none are named.
func (m *Mirror) PlanRemove(ctx context.Context, topics ...string) (RemovePlan, error) {
	list, err := m.all(topics...)
	if err != nil {
		return nil, err
	}
	var plan RemovePlan
	for _, t := range list {
		for _, r := range t.partitions() {
			s, err := r.planRemove(ctx)
			if err != nil {
				return nil, &TopicError{Mirror: m.name, Topic: t.name, Err: fmt.Errorf("partition %d: %w", r.num, err)}
			}
			plan = append(plan, s)
		}
	}
	return plan, nil
}

func (r *replica) planRemove(ctx context.Context) (RemoveStep, error) {
	st := r.status(time.Now())
	s := RemoveStep{
		Topic: r.t.name, Partition: r.num, State: st.State, Lag: st.Lag, LagTime: st.LagTime, Age: -1,
		Missing: Range{r.num, st.End, max(st.SourceEnd, st.End)}, Position: Position{-1, -1},
	}
	r.mu.Lock()
	rd, heard := r.round, r.heard
	r.mu.Unlock()
	if !heard.IsZero() {
		s.Age = time.Since(heard).Seconds()
	}
	p, err := r.partition(ctx)
	if errors.Is(err, ErrUnknownPartition) {
		return s, nil
	}
	if err != nil {
		return s, err
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
	end, epoch, err := p.tip(ctx)
	switch {
	case err != nil:
		return s, err
	case rd.Stored || rd.Known && !rd.Aligned:
		s.Position = Position{rd.Epoch, rd.Offset}
	case rd.Aligned:
		s.Position = Position{epoch, end}
	case !rd.Existed:
		s.Position = Position{-1, end}
	}
	return s, nil
}

// String is a table.
func (p RemovePlan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITION\tSTATE\tLAG\tSECONDS\tNOT MIRRORED\tSEEN\tOPEN TRANSACTIONS\tPOSITION")
	for _, s := range p {
		missing, seen := "-", "never"
		if s.Missing.From != s.Missing.To {
			missing = fmt.Sprintf("[%d, %d)", s.Missing.From, s.Missing.To)
		}
		if s.Age >= 0 {
			seen = fmt.Sprintf("%.0fs ago", s.Age)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\tepoch %d, offset %d\n", s.Topic, s.Partition, s.State, known(s.Lag), seconds(s.LagTime),
			missing, seen, len(s.Open), s.Position.Epoch, s.Position.Offset)
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
	Start     int64    `json:"start"`
	End       int64    `json:"end"`
	Position  Position `json:"position"` // that it would be aligned by; offset -1: none is known
	Cut       []Range  `json:"cut"`      // what is here and not at the source, and would be cut, the last first
	SourceEnd int64    `json:"source_end"`
}

// PlanAdd says what AddTopics would cut here: records that were never mirrored to the source. A topic that AddTopics would refuse
// answers with the same error.
func (m *Mirror) PlanAdd(ctx context.Context, topics ...string) (AddPlan, error) {
	found, err := m.look(ctx, topics)
	if err != nil {
		return nil, err
	}
	var plan AddPlan
	err = m.each(ctx, topics, func(ctx context.Context, name string) error {
		t, err := m.candidate(ctx, name, found[name])
		if err != nil || t == nil {
			return err
		}
		rounds, _, err := m.chooseRounds(ctx, t, adding)
		if err != nil {
			return err
		}
		for _, r := range t.partitions() {
			s, err := r.planAdd(ctx, rounds[r])
			if err != nil {
				return fmt.Errorf("partition %d: %w", r.num, err)
			}
			m.mu.Lock()
			plan = append(plan, s)
			m.mu.Unlock()
		}
		return nil
	})
	return plan, err
}

// planAdd goes through alignment on a copy of the epoch table.
func (r *replica) planAdd(ctx context.Context, rd round) (AddStep, error) {
	s := AddStep{Topic: r.t.name, Partition: r.num, Position: Position{-1, -1}, SourceEnd: -1}
	p, err := r.partition(ctx)
	if errors.Is(err, ErrUnknownPartition) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	l, err := p.lineage(ctx)
	if err != nil {
		return s, err
	}
	s.Start, s.End = l.start, l.end
	if rd.Known {
		s.Position = Position{rd.Epoch, rd.Offset}
		if to := l.byPosition(s.Position); to < l.end {
			s.Cut = append(s.Cut, Range{r.num, to, l.end})
			l = l.cut(to)
		}
	}
	r.mu.Lock()
	leader, epoch := r.leader, r.leaderEpoch
	r.mu.Unlock()
	if leader < 0 {
		return s, errNoLeader
	}
	low, high, err := r.sourceBounds(ctx, leader, epoch)
	if err != nil {
		return s, err
	}
	s.SourceEnd = high
	for l.start < l.end {
		if low > l.end {
			s.Cut = append(s.Cut, Range{r.num, l.start, l.end})
			break
		}
		v, err := r.ask(ctx, l, leader, epoch, low, high)
		if err != nil {
			return s, err
		}
		if v.kind == agree {
			break
		}
		from := max(v.to, l.start)
		if v.kind == unknown { // begins again
			from = l.start
		}
		s.Cut = append(s.Cut, Range{r.num, from, l.end})
		l = l.cut(from)
	}
	return s, nil
}

// String is a table.
func (p AddPlan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITION\tSTART\tEND\tSOURCE-END\tPOSITION\tWOULD BE CUT")
	for _, s := range p {
		cut, at := "-", "-"
		if len(s.Cut) > 0 {
			cut = fmt.Sprintf("[%d, %d)", s.Cut[len(s.Cut)-1].From, s.Cut[0].To)
		}
		if s.Position.known() {
			at = fmt.Sprintf("epoch %d, offset %d", s.Position.Epoch, s.Position.Offset)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", s.Topic, s.Partition, s.Start, s.End, known(s.SourceEnd), at, cut)
	}
	_ = w.Flush() // into memory
	return b.String()
}
