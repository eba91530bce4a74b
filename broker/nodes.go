package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/clustermirror/mirror"
)

// place names a partition.
type place struct {
	topic     string
	partition int32
}

func (p place) String() string { return fmt.Sprintf("%s-%d", p.topic, p.partition) }

// cluster is the play of several brokers: who is alive, who leads, whose replica is held back. It knows no logs; whoever asks
// says where the log ends. With one node there is nothing to play.
type cluster struct {
	n int32

	mu      sync.Mutex // guards what follows; never held across I/O
	dead    map[int32]bool
	parts   map[place]*replicas
	changed chan struct{} // closed and replaced at each change
}

// replicas are those of one partition. All replicas are copies of one log, up to where each is held back.
type replicas struct {
	leader   int32 // 0: none
	election bool  // under way; there is no leader meanwhile

	// hw is the high watermark as of the last time somebody asked. It never falls, but by an election that cuts the log.
	hw      int64
	held    map[int32]int64 // Lag
	stopped map[int32]int64 // where the replica of a dead node ended
}

func newCluster(n int32) *cluster {
	return &cluster{n: n, dead: make(map[int32]bool), parts: make(map[place]*replicas), changed: make(chan struct{})}
}

// end is where a node's replica ends. The leader's replica is the log.
func (r *replicas) end(node int32, leo int64) int64 {
	if node == r.leader {
		return leo
	}
	end := leo
	if v, ok := r.held[node]; ok {
		end = min(end, v)
	}
	if v, ok := r.stopped[node]; ok {
		end = min(end, v)
	}
	return end
}

// of is the partition's entry. A new one is led by the first living node from its place in the order on.
func (c *cluster) of(p place) *replicas {
	r := c.parts[p]
	if r == nil {
		r = &replicas{held: make(map[int32]int64), stopped: make(map[int32]int64)}
		for i := range c.n {
			if node := (p.partition+i)%c.n + 1; !c.dead[node] {
				r.leader = node
				break
			}
		}
		c.parts[p] = r
	}
	return r
}

// isr are the living nodes whose replica reaches the high watermark. One that is held back below it has fallen out.
func (c *cluster) isr(r *replicas, leo int64) (nodes []int32) {
	for node := int32(1); node <= c.n; node++ {
		if !c.dead[node] && r.end(node, leo) >= min(r.hw, leo) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// advance raises the high watermark to the smallest end in the ISR.
func (c *cluster) advance(r *replicas, leo int64) int64 {
	r.hw = min(r.hw, leo) // the log may have been cut from elsewhere
	if r.leader == 0 {
		return r.hw
	}
	smallest := leo
	for _, node := range c.isr(r, leo) {
		smallest = min(smallest, r.end(node, leo))
	}
	r.hw = max(r.hw, smallest)
	return r.hw
}

func (c *cluster) broadcast() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// watch is closed at the next change.
func (c *cluster) watch() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *cluster) alive(node int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.dead[node]
}

// living are the nodes that are alive.
func (c *cluster) living() (nodes []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for node := int32(1); node <= c.n; node++ {
		if !c.dead[node] {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// leader is the node that leads; 0 if none does.
func (c *cluster) leader(p place) int32 {
	if c.n == 1 {
		return 1
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(p).leader
}

// highWatermark is the offset up to which consumers may read.
func (c *cluster) highWatermark(p place, leo int64) int64 {
	if c.n == 1 {
		return leo
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.advance(c.of(p), leo)
}

// view is what metadata tells of a partition.
func (c *cluster) view(p place, leo int64) (leader int32, isr, offline []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.of(p)
	c.advance(r, leo)
	for node := int32(1); node <= c.n; node++ {
		if c.dead[node] {
			offline = append(offline, node)
		}
	}
	return r.leader, c.isr(r, leo), offline
}

// Elect makes a node the leader of a partition under a higher leader epoch, which is durable on return. A node that is held back
// (Lag) brings its shorter replica: the log is cut to it. Such an election is clean while the node is in sync, as only records above
// the high watermark go; otherwise it must be said to be unclean. WARNING: what is cut is gone.
func (b *Broker) Elect(topic string, partition, node int32, unclean bool) error {
	fail := func(err error) error {
		return fmt.Errorf("elect node %d leader of %s-%d: %w", node, topic, partition, err)
	}
	p, err := b.c.Partition(b.ctx, topic, partition)
	if err != nil {
		return fail(err)
	}
	_, leo := p.Bounds()
	where := place{topic, partition}
	before, keep, err := b.cluster.beginElection(where, node, leo, unclean)
	if err != nil {
		return fail(err)
	}
	end, err := b.takeLead(p, keep)
	b.cluster.endElection(where, before, node, end, err)
	if err != nil {
		return fail(err)
	}
	return nil
}

// takeLead raises the leader epoch and cuts the log to what the new leader has. What a late writer appends in between has the epoch
// in between, so that no epoch and offset ever name two batches.
func (b *Broker) takeLead(p *mirror.Partition, keep int64) (end int64, err error) {
	raise := func() error {
		_, err := b.c.RaiseLeaderEpoch(b.ctx, p.Topic(), p.ID(), p.LeaderEpoch())
		return err
	}
	if err := raise(); err != nil {
		return 0, err
	}
	if _, end := p.Bounds(); keep >= end {
		return end, nil
	}
	if err := p.Truncate(b.ctx, keep); err != nil {
		return 0, err
	}
	err = raise()
	_, end = p.Bounds()
	return end, err
}

func (c *cluster) beginElection(p place, node int32, leo int64, unclean bool) (before int32, keep int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if node < 1 || node > c.n {
		return 0, 0, fmt.Errorf("there are nodes 1 to %d", c.n)
	}
	r := c.of(p)
	c.advance(r, leo)
	switch {
	case c.dead[node]:
		return 0, 0, errors.New("the node is dead")
	case r.election:
		return 0, 0, errors.New("another election is under way")
	case !unclean && !slices.Contains(c.isr(r, leo), node):
		return 0, 0, fmt.Errorf("not in sync: its replica ends at offset %d, the high watermark is %d; only an unclean election can", r.end(node, leo), r.hw)
	}
	before, keep = r.leader, r.end(node, leo)
	r.leader, r.election = 0, true
	return before, keep, nil
}

func (c *cluster) endElection(p place, before, node int32, end int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.of(p)
	r.election = false
	if r.leader = before; err == nil {
		r.leader, r.hw = node, min(r.hw, end)
		delete(r.held, node)
		for n := range r.stopped { // who lives follows the new leader
			if !c.dead[n] {
				delete(r.stopped, n)
			}
		}
	}
	c.broadcast()
}

// Lag holds a follower's replica of a partition back at an offset; a negative one lets it go on. Held at or above the high
// watermark it stays in sync, and holds the high watermark back. Held below, it falls out of sync, as a replica does that has lost
// its tail or was too slow.
func (b *Broker) Lag(topic string, partition, node int32, offset int64) error {
	fail := func(err error) error {
		return fmt.Errorf("hold back node %d's replica of %s-%d: %w", node, topic, partition, err)
	}
	p, err := b.c.Partition(b.ctx, topic, partition)
	if err != nil {
		return fail(err)
	}
	_, leo := p.Bounds()
	c := b.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.of(place{topic, partition})
	switch {
	case node < 1 || node > c.n:
		return fail(fmt.Errorf("there are nodes 1 to %d", c.n))
	case node == r.leader:
		return fail(errors.New("it is the leader, whose replica is the log"))
	}
	c.advance(r, leo) // what was in sync until now counts
	if offset < 0 {
		delete(r.held, node)
	} else {
		r.held[node] = offset
	}
	c.broadcast()
	return nil
}

// Kill takes a node down: its connections are cut, new ones refused. Partitions that it led pass to the next living node that is in
// sync, by Elect; those without one have no leader until Restart, or an unclean Elect.
func (b *Broker) Kill(node int32) error {
	if node < 1 || node > b.opts.nodes {
		return fmt.Errorf("kill node %d: there are nodes 1 to %d", node, b.opts.nodes)
	}
	ends, err := b.ends(b.ctx)
	if err != nil {
		return fmt.Errorf("kill node %d: %w", node, err)
	}
	var led []place
	c := b.cluster
	c.mu.Lock()
	for p, leo := range ends {
		r := c.of(p)
		c.advance(r, leo)
		r.stopped[node] = r.end(node, leo)
		if r.leader == node {
			r.leader = 0
			led = append(led, p)
		}
	}
	c.dead[node] = true
	c.broadcast()
	c.mu.Unlock()
	b.hangUp(node)
	return b.electAny(led)
}

// Restart brings a killed node back. Its replicas catch up where there is a leader; where there is none it becomes the leader if it
// was in sync.
func (b *Broker) Restart(node int32) error {
	if node < 1 || node > b.opts.nodes {
		return fmt.Errorf("restart node %d: there are nodes 1 to %d", node, b.opts.nodes)
	}
	var orphans []place
	c := b.cluster
	c.mu.Lock()
	delete(c.dead, node)
	for p, r := range c.parts {
		if r.leader != 0 {
			delete(r.stopped, node)
		} else if !r.election {
			orphans = append(orphans, p)
		}
	}
	c.broadcast()
	c.mu.Unlock()
	return b.electAny(orphans)
}

// electAny gives partitions without a leader the first node that is in sync, if there is one.
func (b *Broker) electAny(orphans []place) error {
	var errs []error
	for _, where := range orphans {
		p, err := b.c.Partition(b.ctx, where.topic, where.partition)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		_, leo := p.Bounds()
		if _, isr, _ := b.cluster.view(where, leo); len(isr) > 0 {
			next := isr[int(where.partition)%len(isr)]
			errs = append(errs, b.Elect(where.topic, where.partition, next, false))
		}
	}
	return errors.Join(errs...)
}

// hangUp cuts a node's connections and forgets its sessions.
func (b *Broker) hangUp(node int32) {
	b.mu.Lock()
	var cut []*conn
	for c := range b.conns {
		if c.node == node {
			cut = append(cut, c)
		}
	}
	b.mu.Unlock()
	for _, c := range cut {
		c.nc.Close()
	}
	b.sessions.drop(func(s *session) bool { return s.node == node })
}

// ends are the ends of all logs.
func (b *Broker) ends(ctx context.Context) (map[place]int64, error) {
	list, err := b.topics.load(ctx)
	if err != nil {
		return nil, err
	}
	ends := make(map[place]int64)
	for _, t := range list {
		for i := range t.Partitions {
			p, err := b.c.Partition(ctx, t.Name, i)
			if err != nil {
				return nil, err
			}
			_, ends[place{t.Name, i}] = p.Bounds()
		}
	}
	return ends, nil
}
