package mirror

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Status is what Describe answers: a copy, a table when printed, and JSON.
type Status struct {
	Mirror    string        `json:"mirror"`
	Source    string        `json:"source"`            // bootstrap addresses; empty while detached
	ClusterID string        `json:"source_cluster_id"` // empty until the source has answered
	Topics    []TopicStatus `json:"topics"`            // by name
}

// TopicStatus is one topic of a Status.
type TopicStatus struct {
	Name       string            `json:"name"`
	ID         TopicID           `json:"id"`
	Desired    State             `json:"desired"`
	Upstreams  []string          `json:"upstreams,omitempty"` // clusters that the source mirrors it from, and so on up
	Partitions []PartitionStatus `json:"partitions"`
}

// PartitionStatus is one partition of a TopicStatus.
type PartitionStatus struct {
	Partition     int32     `json:"partition"`
	State         State     `json:"state"`
	Health        Health    `json:"health"`
	Reason        string    `json:"reason,omitempty"`   // of FAILED, or of bad health
	Before        State     `json:"previous,omitzero"`  // the state before FAILED; otherwise UNKNOWN, and not in JSON
	Attempts      int       `json:"attempts,omitempty"` // failures in a row
	NeedsDecision bool      `json:"needs_decision,omitempty"`
	Start         int64     `json:"start"`                            // here; -1 unknown: the log is not open
	End           int64     `json:"end"`                              // here; -1 unknown
	SourceStart   int64     `json:"source_start"`                     // -1 unknown
	SourceEnd     int64     `json:"source_end"`                       // -1 unknown
	Lag           int64     `json:"lag"`                              // source end - end, in offsets; -1 unknown, never negative otherwise
	LagTime       float64   `json:"lag_seconds"`                      // since it last held all that the source had, in seconds; -1 unknown
	Bytes         int64     `json:"bytes"`                            // appended since Start
	LeaderEpoch   int32     `json:"leader_epoch"`                     // here; -1 until the log is open
	SourceEpoch   int32     `json:"source_leader_epoch"`              // the leader epoch at the source; -1 unknown
	TakenOver     bool      `json:"taken_over,omitempty"`             // this mirror has given it up, and it is writable here
	Position      *Position `json:"last_mirrored_position,omitempty"` // of the last round that was stopped
	Totals        Totals    `json:"totals"`
}

// Position is a last mirrored position (KIP-1279): the greatest leader epoch that came from the source, and the end offset, when
// mirroring stopped. Epoch -1 is an empty log's.
type Position struct {
	Epoch  int32 `json:"epoch"`
	Offset int64 `json:"offset"`
}

// Totals count what was dropped, over the life of the mirror.
type Totals struct {
	Lost int64 `json:"lost"` // offsets that are missing because the source no longer had them
	Cut  int64 `json:"cut"`  // offsets that were cut because they were not the source's, a takeover's own markers too
	Cuts int64 `json:"cuts"` // how many times
}

// MarshalText gives the form in which Kafka prints ids.
func (id TopicID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// Describe is the mirror's status now. It asks nobody and never waits for I/O.
func (m *Mirror) Describe() Status { return m.describe(func(TopicID) bool { return true }) }

func (m *Mirror) describe(wanted func(TopicID) bool) Status {
	m.mu.Lock()
	s := Status{Mirror: m.name, ClusterID: m.peer}
	if m.client != nil {
		s.Source = m.src.Addr.String()
	}
	m.mu.Unlock()
	for _, t := range m.those(wanted) {
		ts := TopicStatus{Name: t.name, ID: t.id, Desired: t.wishedNow(), Upstreams: t.chain()}
		for _, r := range t.partitions() {
			ts.Partitions = append(ts.Partitions, r.status(time.Now()))
		}
		s.Topics = append(s.Topics, ts)
	}
	return s
}

func (t *mirrorTopic) chain() []string {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return append([]string(nil), t.upstreams...)
}

// those are the mirror's topics with a wanted id, by name.
func (m *Mirror) those(wanted func(TopicID) bool) (list []*mirrorTopic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.topics {
		if wanted(t.id) {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *mirrorTopic) int { return strings.Compare(a.name, b.name) })
	return list
}

// Describe is the status of every mirror, by name; with chosen topics only, if any are given.
func (c *Coordinator) Describe(topics ...TopicID) []Status {
	chosen := make(map[TopicID]bool, len(topics))
	for _, id := range topics {
		chosen[id] = true
	}
	wanted := func(id TopicID) bool { return len(chosen) == 0 || chosen[id] }
	var list []Status
	for _, name := range c.Mirrors() {
		c.mu.Lock()
		m := c.mirrors[name]
		c.mu.Unlock()
		list = append(list, m.describe(wanted))
	}
	return list
}

func (r *replica) status(now time.Time) PartitionStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := PartitionStatus{
		Partition: r.num, State: r.stored.state, Health: r.health, Before: Unknown, Attempts: r.stored.tries,
		Start: -1, End: -1, SourceStart: r.sourceStart, SourceEnd: r.sourceEnd, Bytes: r.bytes, Lag: -1, LagTime: -1,
		SourceEpoch: r.leaderEpoch, LeaderEpoch: -1, Totals: r.totals,
	}
	s.TakenOver = r.round.TakenOver && r.m.c.gate.check(r.t.name, r.num) == nil // another mirror may have it by now
	if r.round.Stored || r.round.Known {
		s.Position = &Position{r.round.Epoch, r.round.Offset}
	}
	if r.part != nil {
		s.Start, s.End = r.part.Bounds()
		s.LeaderEpoch = r.part.LeaderEpoch()
		if r.sourceEnd >= 0 {
			s.Lag = max(r.sourceEnd-s.End, 0)
		}
		switch {
		case s.Lag == 0:
			s.LagTime = 0
		case s.Lag > 0 && !r.whole.IsZero():
			s.LagTime = now.Sub(r.whole).Seconds()
		}
	}
	switch {
	case s.State == Failed:
		s.Before, s.Reason, s.NeedsDecision = r.stored.before, r.stored.text, r.stored.decide
	case r.trouble != nil:
		s.Reason = r.trouble.Error()
	default:
		s.Reason = r.hung
	}
	if s.State == Paused || s.State == Stopped {
		s.Health, s.Reason = OK, ""
	}
	if ended := r.m.ended(); errors.Is(ended, ErrFenced) { // also if it is stopped: the gate is closed
		s.Health, s.Reason = Stalled, ended.Error()
	}
	return s
}

// String is a table: a line per partition, and below it reasons, what was dropped, and what was taken over.
func (s Status) String() string {
	var b strings.Builder
	source := s.Source
	if source == "" {
		source = "(detached)"
	}
	fmt.Fprintf(&b, "mirror %s from %s, cluster %s\n", s.Mirror, source, dash(s.ClusterID))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tPARTITION\tSTATE\tHEALTH\tSTART\tEND\tSOURCE-END\tLAG\tSECONDS")
	var below strings.Builder
	for _, t := range s.Topics {
		for _, p := range t.Partitions {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.Name, p.Partition, p.State, p.Health, known(p.Start), known(p.End),
				known(p.SourceEnd), known(p.Lag), seconds(p.LagTime))
			say := func(format string, args ...any) {
				fmt.Fprintf(&below, "%s-%d: %s\n", t.Name, p.Partition, fmt.Sprintf(format, args...))
			}
			if p.Reason != "" {
				say("%s", p.Reason)
			}
			if p.Totals.Cuts > 0 {
				say("%d offsets cut, %d lost", p.Totals.Cut, p.Totals.Lost)
			}
			switch {
			case p.TakenOver && p.Position != nil:
				say("taken over at epoch %d, offset %d", p.Position.Epoch, p.Position.Offset)
			case p.TakenOver:
				say("taken over")
			}
		}
	}
	_ = w.Flush() // into memory
	return b.String() + below.String()
}

// JSON is the status as indented JSON.
func (s Status) JSON() string {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err.Error() // plain fields: does not happen
	}
	return string(b)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func known(n int64) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func seconds(s float64) string {
	if s < 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", s)
}
