package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/wire"
)

// How a round begins: for a new topic, for one that was stopped, and for one that comes back from the side that had taken it over
// (failback). All three close the gate, find out what of the log is the source's, persist PREPARING, and look at the peer a second
// time before anything can be cut:
//
//	gate closed -> local writers ended -> peer asked -> position chosen -> PREPARING persisted -> peer asked again
//	                                                                          |                       |
//	                                                       refused: everything as before  <-----------+-> alignment (align.go)
//
// So two sides that add at once never cut each other: each sees the other's PREPARING in its second look, and takes its own back.

// how says which verb begins the round.
type how int

const (
	adding      how = iota // AddTopics: never undoes a takeover of this host
	resuming               // Resume: goes on at the greatest position, if nothing written here is lost
	overwriting            // Overwrite: drops what stands in the way
)

// known tells a position from none: (-1, n) is that of an empty log, (e, -1) knows the epoch only.
func (p Position) known() bool { return p.Offset >= 0 || p.Epoch >= 0 }

// beats says that p is the later one. An epoch without an offset never wins against a position with one.
func (p Position) beats(q Position) bool {
	if (p.Offset < 0) != (q.Offset < 0) {
		return q.Offset < 0
	}
	return p.Epoch > q.Epoch || p.Epoch == q.Epoch && p.Offset > q.Offset
}

// ownPosition is the last mirrored position that this host stored for the pair of clusters, under whichever mirror's name.
func (c *Coordinator) ownPosition(topic string, id TopicID, partition int32, cluster string) (best Position, ok bool) {
	for _, m := range c.list() {
		t := m.topic(topic)
		if t == nil || t.id != id {
			continue
		}
		r := t.partition(partition)
		if r == nil {
			continue
		}
		r.mu.Lock()
		rd := r.round
		r.mu.Unlock()
		if p := (Position{rd.Epoch, rd.Offset}); rd.Peer == cluster && (rd.Stored || rd.Known) && p.known() && (!ok || p.beats(best)) {
			best, ok = p, true
		}
	}
	return best, ok
}

// resume begins a new round of a stopped topic.
func (m *Mirror) resume(ctx context.Context, t *mirrorTopic, h how) error {
	release, err := m.c.claim(ctx, t.name)
	if err != nil {
		return err
	}
	defer release()
	return m.resumeClaimed(ctx, t, h)
}

func (m *Mirror) resumeClaimed(ctx context.Context, t *mirrorTopic, h how) error {
	if owner := m.c.ownerOf(t.name); owner != nil && owner.m != m && !owner.over() {
		return hint(fmt.Errorf("%w: %s", ErrTopicOwned, owner.m.name), "Remove it there first")
	}
	if err := t.command.acquire(ctx); err != nil {
		return err
	}
	defer t.command.release()
	switch now := m.topic(t.name); {
	case now == nil:
		return hint(ErrUnknownTopic, m.whereElse(t.name))
	case now != t, t.wishedNow() != Stopped:
		return nil // another call was faster
	}
	if err := t.awaitStop(ctx); err != nil {
		return err
	}
	found, err := m.look(ctx, []string{t.name})
	if err != nil {
		return err
	}
	now, err := m.candidate(ctx, t.name, found[t.name])
	switch {
	case err != nil:
		return err
	case now == t:
		return m.beginRound(ctx, t, found[t.name], h)
	}
	if err := m.forget(ctx, t); err != nil {
		return err
	}
	return m.begin(ctx, now, found[t.name], h)
}

// forget takes a stopped topic that is no more out of the mirror: another one has its name by now.
func (m *Mirror) forget(ctx context.Context, t *mirrorTopic) error {
	var recs []statelog.Record
	for _, typ := range []int16{statelog.TypePartitionState, statelog.TypePosition, typeTopic, typeRound, typeCut, typeTotals} {
		for k := range m.c.store.All(typ) {
			if k.Mirror == m.name && k.Topic == t.id {
				recs = append(recs, statelog.Record{Key: k})
			}
		}
	}
	if err := m.c.put(ctx, recs...); err != nil {
		return fmt.Errorf("forget topic %s: %w", t.id, err)
	}
	m.mu.Lock()
	delete(m.topics, t.name)
	m.mu.Unlock()
	m.c.regate(t.name)
	return nil
}

// beginRound takes a topic into a round, or leaves everything as it was. The caller holds the topic's command and its claim.
func (m *Mirror) beginRound(ctx context.Context, t *mirrorTopic, meta wire.TopicMeta, h how) error {
	before := m.remember(t)
	if err := m.adopt(ctx, t, meta); err != nil {
		return errors.Join(err, before.restore(ctx, untouched))
	}
	if t.written() { // a look without closing the gate: a boot of a program that has taken over must not hold up its writers
		if _, _, err := m.chooseRounds(ctx, t, h); err != nil {
			return errors.Join(err, before.restore(ctx, untouched))
		}
	}
	m.c.gate.closeTopic(t.name, m.name, int32(len(t.partitions())))
	err := t.drain(ctx)
	var rounds map[*replica]round
	var upstreams []string
	if err == nil {
		rounds, upstreams, err = m.chooseRounds(ctx, t, h)
	}
	if err != nil {
		return errors.Join(err, before.restore(ctx, shut))
	}
	if err := m.persistRounds(ctx, t, rounds, upstreams); err != nil {
		return errors.Join(err, before.restore(ctx, persisted)) // it may have been written all the same
	}
	t.undo = nil
	m.show(t, rounds, upstreams)
	if _, err := m.askIdlePeer(ctx, t); err != nil {
		return errors.Join(err, before.restore(ctx, persisted))
	}
	for r := range rounds {
		r.mu.Lock()
		r.round.Confirmed = true
		r.mu.Unlock()
	}
	m.tried(t)
	m.refreshSoon()
	for r := range rounds {
		r.kick()
	}
	return nil
}

// show lets the peer, if it asks, see PREPARING before it is asked the second time. Nothing is done about it until tried.
func (m *Mirror) show(t *mirrorTopic, rounds map[*replica]round, upstreams []string) {
	m.mu.Lock()
	t.trying, t.wished, t.upstreams = true, Mirroring, upstreams
	m.topics[t.name] = t
	m.mu.Unlock()
	for r, v := range rounds {
		begun := r.begun()
		r.mu.Lock()
		r.round, r.stored = v, begun
		r.mu.Unlock()
	}
}

// begun is the state that its next round begins with.
func (r *replica) begun() stored {
	r.mu.Lock()
	defer r.mu.Unlock()
	return stored{state: Preparing, before: Unknown, epoch: r.stored.epoch + 1}
}

func (m *Mirror) tried(t *mirrorTopic) {
	m.mu.Lock()
	t.trying = false
	m.mu.Unlock()
}

// adopt takes in the partitions that the host has added since the topic was stopped: their records are asked about like all others.
func (m *Mirror) adopt(ctx context.Context, t *mirrorTopic, meta wire.TopicMeta) error {
	here, err := m.c.listTopics(ctx)
	if err != nil {
		return err
	}
	local, theirs := here[t.name].Partitions, int32(len(meta.Partitions))
	if local > theirs { // grown since it was looked up
		return fewerPartitions(local, theirs)
	}
	m.mu.Lock()
	for num := int32(len(t.replicas)); num < local; num++ {
		r := newReplica(t, num)
		r.round.Existed, r.round.Open = true, true
		t.replicas = append(t.replicas, r)
	}
	m.mu.Unlock()
	t.led(meta)
	return nil
}

// written says that local writers may be at work in the topic.
func (t *mirrorTopic) written() bool {
	for _, r := range t.partitions() {
		r.mu.Lock()
		open := r.round.TakenOver || r.round.Number == 0 && r.round.Open
		r.mu.Unlock()
		if open {
			return true
		}
	}
	return false
}

// drain waits for local writers that passed the gate before it was closed.
func (t *mirrorTopic) drain(ctx context.Context) error {
	for _, r := range t.partitions() {
		p, err := r.partition(ctx)
		if errors.Is(err, ErrUnknownPartition) {
			continue
		}
		if err == nil {
			err = p.drain(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chooseRounds decides for each partition what the round begins with. Nothing is changed.
func (m *Mirror) chooseRounds(ctx context.Context, t *mirrorTopic, h how) (_ map[*replica]round, upstreams []string, _ error) {
	p, err := m.askIdlePeer(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	rounds := make(map[*replica]round)
	var unproven, written []Range
	var taken []string
	for _, r := range t.partitions() {
		v, err := r.choose(ctx, p, h)
		if err != nil {
			return nil, nil, fmt.Errorf("partition %d: %w", r.num, err)
		}
		rounds[r] = v.round
		if v.unproven != nil {
			unproven = append(unproven, *v.unproven)
		}
		if v.written != nil {
			written = append(written, *v.written)
		}
		if v.ours {
			taken = append(taken, fmt.Sprintf("partition %d at epoch %d, offset %d", r.num, v.round.Epoch, v.round.Offset))
		}
	}
	switch {
	case h == adding && len(taken) > 0:
		next := "it stays writable and need not be added; Resume mirrors it again, and drops nothing that was written here"
		if owner := m.c.ownerOf(t.name); m.topic(t.name) == nil && owner != nil {
			next = fmt.Sprintf("mirror %s has stopped it here: Resume it there; "+
				"or Overwrite takes it into this mirror, and drops what was written here since", owner.m.name)
		}
		return nil, nil, hint(fmt.Errorf("%w here: %s", ErrStopped, strings.Join(taken, ", ")), next)
	case h != overwriting && len(unproven) > 0:
		return nil, nil, hint(&RangeError{unproven, ErrNoProof}, "Overwrite drops them and mirrors the topic from the source's start")
	case h == resuming && len(written) > 0:
		return nil, nil, hint(&RangeError{written, ErrWritten}, "to keep them, mirror the topic from here on the other side; Overwrite drops them")
	}
	return rounds, p.upstreams, nil
}

// choice is what one partition's round would begin with, and what that would cost.
type choice struct {
	round    round
	ours     bool   // the greatest position is one that this host stored when it took over
	unproven *Range // records of which nothing proves that they are the source's
	written  *Range // records that were written here after the position
}

func (r *replica) choose(ctx context.Context, p peer, h how) (c choice, err error) {
	r.mu.Lock()
	last := r.round
	r.mu.Unlock()
	c.round = round{Number: last.Number + 1, Peer: r.m.peerID(), Open: last.TakenOver || last.Number == 0 && last.Open, Local: last.Local, Epoch: -1, Offset: -1}
	theirs, known := p.positions[r.num]
	part, err := r.partition(ctx)
	switch {
	case errors.Is(err, ErrUnknownPartition): // it will be made
		if known {
			c.round.Known, c.round.Epoch, c.round.Offset = true, theirs.Epoch, theirs.Offset
		}
		return c, nil
	case err != nil:
		return c, err
	}
	c.round.Existed = last.Existed || last.Number > 0
	own, mine := r.m.c.ownPosition(r.t.name, r.t.id, r.num, c.round.Peer)
	start, end := part.Bounds()
	switch {
	case known && (!mine || theirs.beats(own)):
		c.round.Known, c.round.Epoch, c.round.Offset = true, theirs.Epoch, theirs.Offset
	case mine:
		c.round.Known, c.round.Epoch, c.round.Offset = true, own.Epoch, own.Offset
		c.ours = true
	case start == end && end == 0:
		return c, nil // nothing was ever here
	default:
		proven, err := r.prove(ctx)
		if err != nil {
			return c, fmt.Errorf("compare with the source: %w", err)
		}
		if !proven {
			if start == end {
				start = 0 // what was here had these offsets
			}
			c.unproven = &Range{r.num, start, end}
			c.round.Empty = h == overwriting
		}
		return c, nil
	}
	if h == resuming && c.round.Open {
		l, err := part.lineage(ctx)
		if err != nil {
			return c, err
		}
		from := max(start, l.byPosition(Position{c.round.Epoch, c.round.Offset})) // where the cut will be
		data, err := part.hasData(ctx, from)
		if err != nil {
			return c, err
		}
		if data {
			c.written = &Range{r.num, from, end}
		}
	}
	return c, nil
}

func (m *Mirror) persistRounds(ctx context.Context, t *mirrorTopic, rounds map[*replica]round, upstreams []string) error {
	topic := topicRecord{t.name, Mirroring, int32(len(t.partitions())), upstreams}
	recs := []statelog.Record{record(t.key(), topic)}
	for r, v := range rounds {
		recs = append(recs, r.roundRecord(v), r.stateRecord(r.begun()))
	}
	return m.c.put(context.WithoutCancel(ctx), recs...) // a write that nobody waits for may still happen
}

// hasData says whether there is a batch from an offset on that a consumer can see.
func (p *Partition) hasData(ctx context.Context, from int64) (bool, error) {
	var head [batch.HeaderSize]byte
	for _, end := p.Bounds(); from < end; {
		n, err := p.Read(ctx, from, head[:])
		if err != nil || n == 0 {
			return false, err
		}
		h, err := batch.Parse(head[:n])
		if err != nil {
			return false, fmt.Errorf("read %s at offset %d: %w", p, from, err)
		}
		if !h.Control() {
			return true, nil
		}
		from = h.Next()
	}
	return false, nil
}

// memory is a topic as it was before a round was tried.
type memory struct {
	m        *Mirror
	t        *mirrorTopic
	new      bool
	wished   wish
	chain    []string
	replicas []*replica
	rounds   []round
	states   []stored
}

// depth is how far a try has come.
type depth int

const (
	untouched depth = iota
	shut            // the gate was closed
	persisted       // PREPARING may be in the state
)

func (m *Mirror) remember(t *mirrorTopic) memory {
	mem := memory{m: m, t: t, new: m.topic(t.name) == nil, wished: t.wishedNow(), chain: t.chain(), replicas: t.partitions()}
	for _, r := range mem.replicas {
		r.mu.Lock()
		mem.rounds, mem.states = append(mem.rounds, r.round), append(mem.states, r.stored)
		r.mu.Unlock()
	}
	return mem
}

// restore takes a try back: first what was persisted, then what others can see, then the gate. It must happen even if the caller has
// given up by now.
func (mem memory) restore(ctx context.Context, d depth) error {
	m, t := mem.m, mem.t
	undo := t.undo
	if d == persisted {
		undo = mem.records(t.partitions())
	}
	err := m.c.put(context.WithoutCancel(ctx), undo...)
	if err != nil && mem.new {
		m.tried(t)
		if m.topic(t.name) == t { // it is in the state, and goes on: the peer is asked again before anything is cut
			for _, r := range t.partitions() {
				r.kick()
			}
		}
		return hint(fmt.Errorf("take back what was persisted; the topic stays read-only: %w", err), "add it again once the state can be written")
	}
	m.mu.Lock()
	t.wished, t.upstreams, t.replicas = mem.wished, mem.chain, mem.replicas
	if mem.new && m.topics[t.name] == t {
		delete(m.topics, t.name)
	}
	m.mu.Unlock()
	for i, r := range mem.replicas {
		r.mu.Lock()
		r.round, r.stored = mem.rounds[i], mem.states[i]
		r.mu.Unlock()
	}
	m.tried(t)
	m.changed.broadcast()
	if err != nil {
		t.undo = undo
		return hint(fmt.Errorf("take back what was persisted; the topic stays read-only: %w", err), "call it again, or Remove it, once the state can be written")
	}
	t.undo = nil
	if d == untouched && len(undo) == 0 {
		return nil
	}
	m.c.regate(t.name)
	return nil
}

// records say what was persisted before: of what is new, nothing.
func (mem memory) records(tried []*replica) (recs []statelog.Record) {
	known := mem.replicas
	if mem.new {
		known = nil
		recs = append(recs, statelog.Record{Key: mem.t.key()})
	} else {
		recs = append(recs, record(mem.t.key(), topicRecord{mem.t.name, mem.wished, int32(len(known)), mem.chain}))
	}
	for i, r := range known {
		recs = append(recs, r.roundRecord(mem.rounds[i]), r.stateRecord(mem.states[i]))
	}
	for _, r := range tried[len(known):] {
		recs = append(recs, statelog.Record{Key: r.key(typeRound)}, statelog.Record{Key: r.key(statelog.TypePartitionState)})
	}
	return recs
}

// regate sets the gate of a topic to what the mirror says that has it; to open, if none has.
func (c *Coordinator) regate(topic string) {
	if owner := c.ownerOf(topic); owner != nil {
		c.gateOf(owner)
	} else {
		c.gate.release(topic)
	}
}

// gateOf sets the gate of a topic to what its partitions' rounds say.
func (c *Coordinator) gateOf(t *mirrorTopic) {
	replicas := t.partitions()
	c.gate.openWhere(t.name, t.m.name, int32(len(replicas)), func(partition int32) bool { return replicas[partition].isTakenOver() })
}
