package mirror_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

// judge knows every batch that was ever in a log of any site, and says what must never be:
//
//   - an epoch and an offset name two batches, at whatever sites
//   - a batch follows another one than it followed where it was written: a mirror is a prefix of one lineage of its source
//   - a mirror's log gets what its source never had, or has a gap
//   - a mirror that was aligned cuts what its source has written and holds
//   - a mirror drops what its source held when its topic was deleted there, whatever has the name since
//   - the gate is open while a partition is mirrored
//   - a leader epoch falls, of a partition or within its log
//   - something is cut from a mirror and never reported
//   - a round's position is stored twice
//   - a mirror whose state is older than its data cuts anything or ends before someone has said so, or is not named
//   - a mirror with FailOnDivergence cuts what Recover did not allow by name
//   - anything but Overwrite drops what was written at the site that took over last
//   - a partition is taken over with a transaction open
//   - a reader that follows the tail believes in what was cut
//   - what the library knows of a log is not what its bytes say
type judge struct {
	w *world

	mu          sync.Mutex
	takeovers   int
	wrong       string
	topics      map[*site]mirror.TopicID // that has the name there; zero: none
	creators    map[mirror.TopicID]*site
	nodes       map[nodeKey]*node
	logs        map[logKey]*logModel
	overwriting map[*site]int // calls that have not ended
	states      map[*site]*stateModel
	spoken      map[*link]bool // a command was given since the site that mirrors came up
}

type nodeKey struct {
	id        mirror.TopicID
	partition int32
	epoch     int32
	base      int64
}

// node is a batch, wherever it is.
type node struct {
	id      mirror.TopicID
	h       batch.Header
	raw     []byte
	by      string // the site that wrote it
	prev    *node  // what it followed there; nil: nothing, or it is not known
	after   int64  // where the log ended there
	values  []string
	control int16
	sites   map[*site]bool // that have ever held it
}

type logKey struct {
	s         *site
	id        mirror.TopicID
	partition int32
}

// logModel is what a log should hold.
type logModel struct {
	start, end int64
	retained   int64              // the greatest start that there was: what lies below was given up, even if a crash brings it back
	nodes      []*node            // held, in order
	last       *node              // the batch before end, also if it is held no more; nil after a reset
	deleted    []*node            // held when the topic was deleted
	epoch      int32              // the greatest leader epoch that was recorded of the partition
	owned      bool               // the site is where its records come from, or has taken it over once
	takeovers  map[*site]tookOver // by the site that it was taken over from: the last one
	overwrite  bool               // Overwrite was called since, or has ended since
	cuts       []span             // not reported yet
	reports    []span             // all of them
	allowed    []span             // to be cut, by Recover
	older      *link              // that mirrors by a state older than what the log holds: nothing is cut until someone says so; nil if none
	changes    int                // appends, cuts and moves of the start
	fetched    int                // batches that came from elsewhere
	aborted    []int64            // producers whose transactions were aborted here by a takeover
	ceiling    int64              // where the lowest cut ended; -1 without one
	cutSize    int64              // offsets that a mirror has dropped here
	totals     map[*link]int64
}

// tookOver says which of all takeovers it was, and under which epoch.
type tookOver struct {
	number int
	epoch  int32
	round  int64
}

type span struct{ from, to int64 }

func newJudge(w *world) *judge {
	return &judge{
		w: w, topics: make(map[*site]mirror.TopicID), creators: make(map[mirror.TopicID]*site),
		nodes: make(map[nodeKey]*node), logs: make(map[logKey]*logModel), states: make(map[*site]*stateModel), overwriting: make(map[*site]int),
		spoken: make(map[*link]bool),
	}
}

// accuse keeps the first thing that is wrong.
func (j *judge) accuse(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.blame(format, args...)
}

func (j *judge) blame(format string, args ...any) {
	if j.wrong == "" {
		j.wrong = fmt.Sprintf(format, args...)
	}
}

func (j *judge) verdict() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.wrong
}

// named notes which topic has the name at a site now.
func (j *judge) named(s *site) {
	list, err := s.host.Topics(context.WithValue(context.Background(), unwatched{}, true))
	if err != nil {
		return // it has crashed: what it has is seen when it is up again
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.topics[s] = mirror.TopicID{}
	for _, t := range list {
		if t.Name == simTopic {
			j.topics[s] = t.ID
			if j.creators[t.ID] == nil {
				j.creators[t.ID] = s
			}
		}
	}
}

// drop deletes a site's topic. What is there then is not the library's doing.
func (j *judge) drop(s *site) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := s.host.DeleteTopic(context.Background(), simTopic); err != nil {
		return false // there is none, or the site has crashed
	}
	for num := range j.w.partitions {
		m := j.log(s, num)
		m.deleted = m.nodes
		m.start, m.end, m.retained, m.nodes, m.last = 0, 0, 0, nil, nil
		m.cuts, m.cutSize, m.ceiling, m.older = nil, 0, -1, nil
		clear(m.totals) // a mirror may forget it now, and the topic may come back
	}
	j.topics[s] = mirror.TopicID{}
	return true
}

// created says that a site has made a topic once.
func (j *judge) created(s *site) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, by := range j.creators {
		if by == s {
			return true
		}
	}
	return false
}

func (j *judge) topic(s *site) mirror.TopicID {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.topics[s]
}

// log is the model of a partition of the topic that has the name at a site.
func (j *judge) log(s *site, partition int32) *logModel { return j.logOf(s, j.topics[s], partition) }

func (j *judge) logOf(s *site, id mirror.TopicID, partition int32) *logModel {
	k := logKey{s, id, partition}
	m := j.logs[k]
	if m == nil {
		m = &logModel{epoch: -1, ceiling: -1, totals: make(map[*link]int64), takeovers: make(map[*site]tookOver)}
		j.logs[k] = m
	}
	return m
}

func (j *judge) bounds(s *site, partition int32) (start, end int64, epoch int32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := j.log(s, partition)
	epoch = -1
	if m.last != nil {
		epoch = m.last.h.LeaderEpoch
	}
	return m.start, m.end, epoch
}

// watch lets a log be changed, and takes note: of batches that are appended, or of a cut to an offset.
func (j *judge) watch(l *watchedLog, batches []byte, to int64, change func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := j.logOf(l.s, l.id, l.partition)
	err := change()
	if errors.Is(err, mirror.ErrClosed) {
		return err // of a host that has crashed: nothing has changed, and it is another's log by now
	}
	start, end := l.Bounds()
	m.changes++
	if len(batches) > 0 {
		j.appended(l, m, batches, end)
	} else if end < m.end {
		j.cut(l, m, to, end)
	}
	m.start, m.retained = start, max(m.retained, start)
	m.nodes = m.nodes[nodesUpTo(m.nodes, start):]
	if m.end != end {
		j.blame("%s ends at offset %d, expected %d", j.name(l), end, m.end)
	}
	return err
}

// owned says whether the site may write to a partition that nobody mirrors there. One that was never taken over would begin an unrelated
// log of the same name.
func (j *judge) owned(s *site, partition int32) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	id := j.topics[s]
	return id != mirror.TopicID{} && (s == j.creators[id] || j.log(s, partition).owned)
}

func (j *judge) name(l *watchedLog) string {
	return fmt.Sprintf("%s's %s-%d", l.s.name, simTopic, l.partition)
}

// nodesUpTo is how many nodes end at or below an offset.
func nodesUpTo(nodes []*node, offset int64) int {
	n := 0
	for n < len(nodes) && nodes[n].h.Next() <= offset {
		n++
	}
	return n
}

// appended notes what was appended of batches; j.mu is held.
func (j *judge) appended(l *watchedLog, m *logModel, batches []byte, end int64) {
	for b := batches; len(b) > 0; {
		h, raw, err := batch.Next(b)
		if err != nil || h.Next() > end || h.Base < m.end && len(m.nodes) > 0 {
			return
		}
		b = b[len(raw):]
		n, known := j.know(l, m, h, raw)
		if n == nil {
			return
		}
		closed := l.s.closed(l.partition)
		switch {
		case known && !closed:
			j.blame("%s gets a batch of %s at offset %d while its gate is open", j.name(l), n.by, h.Base)
		case !known && closed && !h.Control() && l.s.mirrored(l.partition) != nil:
			j.blame("%s gets a batch that is not its source's at offset %d while it is mirrored", j.name(l), h.Base)
		case known && h.Base > m.end && n.after != m.end && len(m.nodes) > 0:
			j.blame("%s has a gap [%d, %d)", j.name(l), m.end, h.Base)
		case len(m.nodes) > 0 && h.LeaderEpoch < m.last.h.LeaderEpoch:
			j.blame("%s has epoch %d at offset %d after %d", j.name(l), h.LeaderEpoch, h.Base, m.last.h.LeaderEpoch)
		case known && len(m.nodes) > 0 && n.prev != nil && n.prev != m.last && j.held(n.prev, l.partition) && !j.first(l, n):
			j.blame("%s: the batch at offset %d (epoch %d) follows (epoch %d, offset %d) of %s, at %s it followed (epoch %d, offset %d) of %s",
				j.name(l), h.Base, h.LeaderEpoch, m.last.h.LeaderEpoch, m.last.h.Base, m.last.by, n.by, n.prev.h.LeaderEpoch, n.prev.h.Base, n.prev.by)
		}
		if known {
			m.fetched++
		} else if closed && n.control == batch.ControlAbort {
			m.aborted = append(m.aborted, h.ProducerID)
		}
		m.nodes, m.last, m.end = append(m.nodes, n), n, h.Next()
		n.sites[l.s] = true
		if n.control == batch.ControlMirrorPIDReset && !known {
			j.takenOver(l, m)
		}
	}
}

// first says that a batch is the first that its source has left: nothing of what a mirror holds before it can be compared with any more,
// and all of that goes at once.
func (j *judge) first(l *watchedLog, n *node) bool {
	by := l.s.mirrored(l.partition)
	if by == nil {
		return false
	}
	theirs := j.logOf(by.src, l.id, l.partition).nodes
	return len(theirs) > 0 && theirs[0] == n
}

// held says whether any site has a batch. Nobody can compare with one that retention has dropped everywhere: what a mirror holds in its
// place lies below the source's start, and goes at once.
func (j *judge) held(n *node, partition int32) bool {
	for k, m := range j.logs {
		if k.partition == partition && k.id == n.id && slices.Contains(m.nodes, n) {
			return true
		}
	}
	return false
}

// know finds or makes the node of a batch; nil if its name stands for another.
func (j *judge) know(l *watchedLog, m *logModel, h batch.Header, raw []byte) (n *node, known bool) {
	k := nodeKey{l.id, l.partition, h.LeaderEpoch, h.Base}
	if n := j.nodes[k]; n != nil {
		if !bytes.Equal(n.raw, raw) {
			j.blame("epoch %d and offset %d of partition %d name two batches, one of %s and one of %s", h.LeaderEpoch, h.Base, l.partition, n.by, l.s.name)
			return nil, false
		}
		return n, true
	}
	n = &node{id: l.id, h: h, raw: bytes.Clone(raw), by: l.s.name, prev: m.last, after: m.end, control: -1, sites: make(map[*site]bool)}
	if h.Control() {
		if c, err := batch.ParseControl(raw); err == nil {
			n.control = c.Type
		}
	} else {
		for rec, err := range batch.Records(raw) {
			if err == nil {
				n.values = append(n.values, string(rec.Value))
			}
		}
	}
	j.nodes[k] = n
	return n, false
}

// closed says whether local writers are refused.
func (s *site) closed(partition int32) bool {
	s.mu.Lock()
	c := s.gate
	s.mu.Unlock()
	return c != nil && c.CheckWrite(simTopic, partition) != nil
}

// mirrored is the link whose round has begun and not ended; nil if there is none. Local writers that passed the gate before may end
// until then.
func (s *site) mirrored(partition int32) *link {
	s.mu.Lock()
	mirrors := maps.Clone(s.attached)
	s.mu.Unlock()
	for l, m := range mirrors {
		if st, _, ok := partitionStatus(m, partition); ok && st.State != mirror.Stopped {
			return l
		}
	}
	return nil
}

// stops says that a mirror's stop is under way: what it cuts, it was asked for.
func (s *site) stops(partition int32) bool {
	by := s.mirrored(partition)
	if by == nil {
		return false
	}
	s.mu.Lock()
	m := s.attached[by]
	s.mu.Unlock()
	st, _, _ := partitionStatus(m, partition)
	return st.State == mirror.Stopping
}

// takenOver notes a takeover, with its last batch just appended.
func (j *judge) takenOver(l *watchedLog, m *logModel) {
	if m.older != nil && !j.asked(m.older) {
		j.blame("%s is taken over, though its state is older and nobody has asked for it", j.name(l))
	}
	m.owned, m.overwrite, m.older = true, j.overwriting[l.s] > 0, nil
	if by := l.s.mirrored(l.partition); by != nil {
		round := j.state(l.s).rounds[stateKey(by.name, l.id, l.partition)].Number
		if m.takeovers[by.src].round != round { // otherwise it is resumed
			j.takeovers++
			m.takeovers[by.src] = tookOver{j.takeovers, m.last.h.LeaderEpoch, round}
		}
	}
	if open := m.open(); len(open) > 0 {
		j.blame("%s is taken over with transactions of producers %v open", j.name(l), open)
	}
}

// open are the producers of transactions that no marker has ended, by what is held.
func (m *logModel) open() (producers []int64) {
	open := make(map[int64]bool)
	for _, n := range m.nodes {
		switch {
		case !n.h.Transactional():
		case n.h.Control():
			delete(open, n.h.ProducerID)
		default:
			open[n.h.ProducerID] = true
		}
	}
	return slices.Sorted(maps.Keys(open))
}

// overwrite calls Overwrite: what was written at the site may be dropped from the call on, which may take long.
func (j *judge) overwrite(ctx context.Context, s *site, m *mirror.Mirror) error {
	allow := func(calls int) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.overwriting[s] += calls
		for num := range j.w.partitions {
			m := j.log(s, num)
			m.overwrite, m.older = true, nil
		}
	}
	allow(1)
	defer allow(-1)
	return m.Overwrite(ctx, simTopic)
}

// undoes says that a mirror's cut drops what was written here since the site took over from the other one, though that has not taken over
// from here since, nor ever had it and lost it. Nobody but Overwrite may do that.
func (j *judge) undoes(l *watchedLog, m *logModel, dropped []*node) bool {
	by := l.s.mirrored(l.partition)
	if by == nil || m.overwrite {
		return false
	}
	ours, theirs := m.takeovers[by.src], j.logOf(by.src, l.id, l.partition).takeovers[l.s]
	return ours.number >= theirs.number && slices.ContainsFunc(dropped, func(n *node) bool {
		return n.by == l.s.name && n.h.LeaderEpoch >= ours.epoch && !n.h.Control() && !n.sites[by.src]
	})
}

// recover calls Recover, which allows the cuts that failures name.
func (j *judge) recover(ctx context.Context, l *link) error {
	m := l.dst.mirrors[l]
	for num := range j.w.partitions {
		st, id, ok := partitionStatus(m, num)
		j.mu.Lock()
		if model := j.logOf(l.dst, id, num); ok && (model.older != nil || strings.Contains(st.Reason, "older than the data") || strings.Contains(st.Reason, "compares them all the same")) {
			model.older, model.overwrite = nil, true // whatever the state no longer knows of
		}
		j.mu.Unlock()
		var named span
		if _, text, found := strings.Cut(st.Reason, "offsets "); ok && st.State == mirror.Failed && found {
			if n, _ := fmt.Sscanf(text, "[%d, %d) would be dropped", &named.from, &named.to); n == 2 {
				j.mu.Lock()
				model := j.logOf(l.dst, id, num)
				model.allowed = append(model.allowed, named)
				j.mu.Unlock()
			}
		}
	}
	return m.Recover(ctx, simTopic)
}

// holds says that a mirror that was aligned drops what its source has written itself, and holds.
func (j *judge) holds(l *watchedLog, dropped []*node) bool {
	by := l.s.mirrored(l.partition)
	if by == nil || l.s.stops(l.partition) || by.src.closed(l.partition) {
		return false
	}
	rd := j.state(l.s).rounds[stateKey(by.name, l.id, l.partition)]
	theirs := j.logOf(by.src, l.id, l.partition).nodes
	return rd.Aligned && slices.ContainsFunc(dropped, func(n *node) bool { return n.by == by.src.name && slices.Contains(theirs, n) })
}

// unasked says that a mirror drops offsets that someone should have been asked about.
func (j *judge) unasked(l *watchedLog, m *logModel, dropped span) bool {
	by := l.s.mirrored(l.partition)
	if by == nil || !j.w.careful {
		return false
	}
	rd := j.state(l.s).rounds[stateKey(by.name, l.id, l.partition)]
	return rd.Aligned && !rd.Stored && !slices.ContainsFunc(m.allowed, func(a span) bool { return a.from <= dropped.from && dropped.to <= a.to })
}

// strange says that a mirror's cut drops what the source held when its topic was deleted: another one may have answered in its name.
func (j *judge) strange(l *watchedLog, m *logModel, dropped []*node) bool {
	by := l.s.mirrored(l.partition)
	if by == nil || m.overwrite || j.topics[by.src] == l.id {
		return false
	}
	if l.s.stops(l.partition) {
		return false // to the last stable offset
	}
	had := j.logOf(by.src, l.id, l.partition).deleted
	return slices.ContainsFunc(dropped, func(n *node) bool { return slices.Contains(had, n) })
}

// cut notes that everything from end on was dropped: from an offset on, and the batch that it lies in; j.mu is held.
func (j *judge) cut(l *watchedLog, m *logModel, to, end int64) {
	kept := nodesUpTo(m.nodes, end)
	if kept < len(m.nodes) && l.s.mirrored(l.partition) != nil { // the mirror's doing; of an election that passed the gate before, it awaits the end
		m.dropped(span{to, m.end}, to)
		if j.undoes(l, m, m.nodes[kept:]) {
			j.blame("%s: a cut to %d drops what was written there since the takeover", j.name(l), to)
		}
		if !m.overwrite && j.holds(l, m.nodes[kept:]) {
			j.blame("%s: a cut to %d drops what the source holds", j.name(l), to)
		}
		if m.older != nil && !l.s.stops(l.partition) {
			j.blame("%s: a cut to %d, though its state is older", j.name(l), to)
		}
		if j.unasked(l, m, span{max(to, m.retained), m.end}) {
			j.blame("%s: a cut to %d was never allowed", j.name(l), to)
		}
		if j.strange(l, m, m.nodes[kept:]) {
			j.blame("%s: a cut to %d drops what the source held when its topic was deleted", j.name(l), to)
		}
	}
	if kept < len(m.nodes) {
		m.last = m.nodes[kept].prev
	}
	m.nodes, m.end = m.nodes[:kept:kept], end
}

func (m *logModel) dropped(s span, end int64) {
	if s.from = max(s.from, m.retained); s.from >= s.to {
		return
	}
	m.cuts = append(m.cuts, s)
	m.cutSize += s.to - s.from
	if m.ceiling < 0 || end < m.ceiling {
		m.ceiling = end
	}
}

func (j *judge) watchReset(l *watchedLog, start int64, change func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := j.logOf(l.s, l.id, l.partition)
	if err := change(); err != nil {
		return err
	}
	if len(m.nodes) > 0 && l.s.mirrored(l.partition) != nil {
		gone := span{m.start, m.end}
		if start > m.end {
			gone = span{m.end, start} // what was never got; what is dropped the source has dropped too
		}
		m.dropped(gone, start)
		if start <= m.end && !m.overwrite && j.holds(l, m.nodes) {
			j.blame("%s: a reset to %d drops what the source holds", j.name(l), start)
		}
		if m.older != nil {
			j.blame("%s: a reset to %d, though its state is older", j.name(l), start)
		}
		if j.unasked(l, m, gone) {
			j.blame("%s: a reset to %d was never allowed", j.name(l), start)
		}
		if j.undoes(l, m, m.nodes) {
			j.blame("%s: a reset to %d drops what was written there since the takeover", j.name(l), start)
		}
		if j.strange(l, m, m.nodes) {
			j.blame("%s: a reset to %d drops what the source held when its topic was deleted", j.name(l), start)
		}
	}
	m.start, m.end, m.retained, m.nodes, m.last = start, start, start, nil, nil
	m.changes++
	return nil
}

// event notes what was reported.
func (j *judge) event(s *site, e mirror.Event) {
	if e.Kind != mirror.DataLoss && e.Kind != mirror.Truncated || e.Topic != simTopic {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.w.answers = append(j.w.answers, fmt.Sprintf("        %s", e))
	m := j.log(s, e.Partition)
	m.cuts = without(m.cuts, span{e.From, e.To})
	m.reports = append(m.reports, span{e.From, e.To})
}

// without is what a span leaves of others.
func without(list []span, gone span) (rest []span) {
	for _, c := range list {
		for _, part := range []span{{c.from, min(c.to, gone.from)}, {max(c.from, gone.to), c.to}} {
			if part.from < part.to {
				rest = append(rest, part)
			}
		}
	}
	return rest
}

// crashed reads what a crash has left.
func (j *judge) crashed(s *site, restored bool) {
	ctx := context.WithValue(context.Background(), unwatched{}, true)
	j.named(s)
	j.mu.Lock()
	defer j.mu.Unlock()
	for num := range j.w.partitions {
		m := j.log(s, num)
		l, err := s.host.OpenLog(ctx, simTopic, num)
		if err != nil {
			if m.end > 0 {
				j.blame("%s lost %s-%d: %v", s.name, simTopic, num, err)
			}
			continue
		}
		start, end := l.Bounds()
		all := readAll(ctx, l)
		m.start, m.end, m.nodes = start, end, nil
		for b := all; len(b) > 0; {
			h, raw, err := batch.Next(b)
			if err != nil {
				j.blame("%s-%d of %s after a crash: %v", simTopic, num, s.name, err)
				return
			}
			n := j.nodes[nodeKey{j.topics[s], num, h.LeaderEpoch, h.Base}]
			if n == nil {
				j.blame("%s-%d of %s after a crash: unknown batch at offset %d", simTopic, num, s.name, h.Base)
				return
			}
			m.nodes, m.last = append(m.nodes, n), n
			b = b[len(raw):]
		}
		if len(m.nodes) == 0 && (m.last == nil || m.last.h.Next() != end) {
			m.last = nil
		}
	}
	st := newStateModel()
	if l, err := s.host.OpenLog(ctx, mirror.StateTopic, 0); err == nil {
		st.read(readAll(ctx, l))
	}
	j.states[s] = st
	maps.DeleteFunc(j.spoken, func(l *link, _ bool) bool { return l.dst == s })
	j.age(s, restored)
}

// speak notes that a command is given.
func (j *judge) speak(l *link) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.spoken[l] = true
}

// asked says that a mirror's end may have been asked for since its site came up; j.mu is held.
func (j *judge) asked(l *link) bool { return j.spoken[l] || j.w.follow }

func readAll(ctx context.Context, l mirror.Log) []byte {
	start, end := l.Bounds()
	if start == end {
		return nil
	}
	for size := 1 << 16; ; size *= 2 {
		buf := make([]byte, size)
		n, err := l.Read(ctx, start, buf)
		if err != nil {
			return nil
		}
		if n < size {
			return buf[:n]
		}
	}
}

// answer checks what a command has answered.
func (j *judge) answer(l *link, st step, err error) {
	if err != nil {
		short := strings.ReplaceAll(err.Error(), "\n", " ")
		j.mu.Lock()
		j.w.answers = append(j.w.answers, fmt.Sprintf("        %d %s: %.200s", st.index, l.name, short))
		j.mu.Unlock()
	}
}

// look checks what holds at every moment of quiet.
func (j *judge) look() {
	for _, s := range j.w.sites {
		if s.c == nil {
			continue
		}
		s.mu.Lock()
		down := s.after != nil
		s.mu.Unlock()
		if down {
			continue
		}
		for num := range j.w.partitions {
			j.lookAt(s, num)
		}
	}
}

func (j *judge) lookAt(s *site, num int32) {
	ctx := context.WithValue(j.w.t.Context(), unwatched{}, true)
	p, err := s.c.Partition(ctx, simTopic, num)
	if errors.Is(err, mirror.ErrUnknownPartition) || errors.Is(err, mirror.ErrClosed) { // not made yet; a crash just now
		return
	}
	if err != nil {
		j.accuse("%s: open %s-%d: %v", s.name, simTopic, num, err)
		return
	}
	gate := s.c.CheckWrite(simTopic, num)
	for l, m := range s.mirrors {
		st, id, ok := partitionStatus(m, num)
		if !ok {
			continue
		}
		if gate == nil && st.State != mirror.Stopped && st.State != mirror.Unknown {
			j.accuse("%s: the gate of partition %d is open in state %s", l.name, num, st.State)
		}
		j.mu.Lock()
		model := j.logOf(s, id, num)
		switch {
		case model.older != l, st.State == mirror.Failed:
		case st.State == mirror.Stopping && j.asked(l):
		default:
			j.blame("%s: partition %d is %s, though its state is older than the data", l.name, num, st.State)
		}
		if total := st.Totals.Lost + st.Totals.Cut; total < model.totals[l] {
			j.blame("%s: totals of partition %d fell from %d to %d", l.name, num, model.totals[l], total)
		} else {
			model.totals[l] = total
		}
		j.mu.Unlock()
	}
	epoch := p.LeaderEpoch()
	if _, _, last := j.bounds(s, num); epoch < last {
		_, _, _ = p.EpochEnd(ctx, 0) // it has not looked at its log yet
		epoch = p.LeaderEpoch()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if p.TopicID() != j.topics[s] {
		return // deleted, and nobody has noticed yet
	}
	m := j.log(s, num)
	if epoch < m.epoch {
		j.blame("%s: leader epoch of partition %d fell from %d to %d", s.name, num, m.epoch, epoch)
	}
	m.epoch = min(epoch, j.state(s).leaderEpoch(p.TopicID(), num)) // it may also be found in the log, or be recorded by a write that failed
	if m.last != nil && len(m.nodes) > 0 && m.last.h.LeaderEpoch > epoch {
		j.blame("%s: partition %d holds epoch %d, above its leader epoch %d", s.name, num, m.last.h.LeaderEpoch, epoch)
	}
	if int(num) < len(s.tails) && s.tails[num].p == p {
		j.believes(s, num, m, s.tails[num])
	}
}

// believes compares what a reader has read with what is there; j.mu is held.
func (j *judge) believes(s *site, num int32, m *logModel, tl *tail) {
	s.mu.Lock()
	disturbed := s.slow > 0 || s.appending > 0
	s.mu.Unlock()
	if disturbed {
		return // a reader waits for the log
	}
	tl.mu.Lock()
	defer tl.mu.Unlock()
	if tl.busy {
		return
	}
	for _, n := range m.nodes {
		for i, v := range n.values {
			offset := n.h.Base + int64(i)
			if got, ok := tl.read[offset]; ok && got != v && offset >= m.start {
				j.blame("%s: a reader of partition %d was not told that %q at offset %d is %q now", s.name, num, got, offset, v)
				return
			}
		}
	}
	for offset, v := range tl.read {
		if offset >= m.end {
			j.blame("%s: a reader of partition %d was not told that %q at offset %d was cut, the log ends at %d", s.name, num, v, offset, m.end)
			return
		}
	}
}

// gone says that a link's source no longer has its topic, and that the link knows: its partitions are FAILED and wait for someone's word, or
// STOPPED if that was asked for.
func (j *judge) gone(l *link) bool {
	for num := range j.w.partitions {
		st, id, ok := partitionStatus(l.dst.mirrors[l], num)
		if !ok {
			continue
		}
		if theirs := j.topic(l.src); id == theirs && id == j.topic(l.dst) {
			return false
		} else if stopped := st.State == mirror.Stopped && j.w.follow && theirs == (mirror.TopicID{}); !stopped && (st.State != mirror.Failed || !st.NeedsDecision) {
			return false
		}
	}
	return true
}

// same compares both ends of a link that has caught up; a difference is wrong if that is final.
func (j *judge) same(l *link, final bool) bool {
	for num := range j.w.partitions {
		if _, _, ok := partitionStatus(l.dst.mirrors[l], num); !ok {
			continue
		}
		j.mu.Lock()
		ours, theirs := j.log(l.dst, num), j.log(l.src, num)
		equal := ours.end == theirs.end && ours.start >= theirs.start && ours.suffixOf(theirs)
		if !equal && final {
			j.blame("%s: partition %d is [%d, %d) %s, at the source it is [%d, %d) %s", l.name, num,
				ours.start, ours.end, drawing(ours.nodes), theirs.start, theirs.end, drawing(theirs.nodes))
		}
		j.mu.Unlock()
		if !equal {
			return false
		}
	}
	return true
}

// suffixOf says that a log holds the same as another, from its own start on: what was dropped here while it was writable doesn't come back.
func (m *logModel) suffixOf(o *logModel) bool {
	return slices.Equal(m.nodes, o.nodes[nodesUpTo(o.nodes, m.start):])
}

func drawing(nodes []*node) string {
	var b strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&b, " %s%d@%d", n.by, n.h.LeaderEpoch, n.h.Base)
	}
	return b.String()
}

// atRest checks what holds once everything has come to rest.
func (j *judge) atRest() {
	ctx := context.WithValue(j.w.t.Context(), unwatched{}, true)
	for _, s := range j.w.sites {
		_, _ = s.c.Topics(ctx) // a topic that was deleted is gone for all
		for num := range j.w.partitions {
			p, err := s.c.Partition(ctx, simTopic, num)
			if errors.Is(err, mirror.ErrUnknownPartition) {
				continue
			}
			if err == nil {
				err = j.known(ctx, s, num, p)
			}
			if err != nil {
				j.accuse("%s: partition %d at rest: %v", s.name, num, err)
			}
		}
	}
}

// known compares what the library knows of a log with its bytes.
func (j *judge) known(ctx context.Context, s *site, num int32, p *mirror.Partition) error {
	j.mu.Lock()
	m := *j.log(s, num)
	j.mu.Unlock()
	if len(m.cuts) > 0 {
		return fmt.Errorf("cuts of %v were not reported", m.cuts)
	}
	var counted int64
	for _, n := range m.totals {
		counted += n
	}
	if counted < m.cutSize {
		return fmt.Errorf("%d offsets were dropped, the totals say %d", m.cutSize, counted)
	}
	if m.ceiling >= 0 {
		end, ok, err := s.c.OffsetCeiling(ctx, simTopic, num)
		if err != nil || !ok || end > m.ceiling {
			return fmt.Errorf("offset ceiling is %d (%v, %v) after a cut to %d", end, ok, err, m.ceiling) //nolint:errorlint // it may be nil
		}
	}
	for _, n := range m.nodes {
		if at := max(n.h.Base, m.start); true {
			epoch, err := p.EpochAt(ctx, at)
			if err != nil || epoch != n.h.LeaderEpoch {
				return fmt.Errorf("epoch at offset %d is %d, not %d (%w)", at, epoch, n.h.LeaderEpoch, err)
			}
		}
	}
	want, stable := m.committed()
	lso, err := p.LastStableOffset(ctx)
	if stable = max(stable, m.start); err == nil && lso <= m.start && lso < stable {
		return nil // held back by a transaction of which nothing is held any more
	}
	if err != nil || lso != stable {
		return fmt.Errorf("last stable offset is %d, not %d of [%d, %d) (%v)", lso, stable, m.start, m.end, err) //nolint:errorlint // it may be nil
	}
	var got []string
	for msg, err := range p.Records(ctx, m.start) {
		if err != nil {
			return err
		}
		got = append(got, string(msg.Value))
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("committed records are %v, not %v", got, want)
	}
	return nil
}

// committed are the values that a read-committed reader gets, and the last stable offset, by what is held.
func (m *logModel) committed() (values []string, stable int64) {
	stable = m.end
	decided := make(map[*node]int16) // batches of transactions that have ended
	for i, n := range m.nodes {
		if n.control != batch.ControlAbort && n.control != batch.ControlCommit && n.control != batch.ControlMirrorPIDReset {
			continue
		}
		for _, o := range m.nodes[:i] {
			if _, done := decided[o]; !done && o.h.Transactional() && !o.h.Control() && o.h.ProducerID == n.h.ProducerID {
				decided[o] = n.control
			}
		}
	}
	for _, n := range m.nodes {
		if n.h.Transactional() && !n.h.Control() {
			if _, done := decided[n]; !done {
				stable = min(stable, n.h.Base)
			}
		}
	}
	for _, n := range m.nodes {
		if n.h.Base >= stable || n.h.Transactional() && decided[n] != batch.ControlCommit {
			continue
		}
		for i, v := range n.values {
			if n.h.Base+int64(i) >= m.start {
				values = append(values, v)
			}
		}
	}
	return values, stable
}
