package mirror

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/summary"
	"github.com/clustermirror/mirror/internal/wire"
)

// Coordinator is the one owner of desired and current state on a host, and of the write gate of its topics. It persists, then
// acts. One Coordinator may carry several mirrors. All its methods may be called concurrently.
type Coordinator struct {
	host   Host
	opts   options
	log    *slog.Logger
	store  *statelog.Store
	gate   gate
	events *eventQueue
	budget *budget

	raise ProducerIDRaiser // nil if the host has no such ability
	clamp OffsetClamper

	flooring  lock // held while the producer id floor is raised
	attaching lock // held while a mirror is made, attached or detached
	listing   lock // held while the host is asked for its topics

	ctx    context.Context // ends when Close is called or the coordinator is fenced
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup // every goroutine but the event queue's
	queued sync.WaitGroup

	delivered chan struct{} // closed when no more events will come

	mu      sync.Mutex
	closed  bool
	mirrors map[string]*Mirror
	topics  map[string]Topic // of the host, as last listed; nil if they may have changed
	listed  topicList
	asked   int64 // so many times the host was asked for its topics
	parts   map[partitionKey]*opening
	opens   int64                              // so many partitions were opened
	pieces  map[partitionID]map[int64]struct{} // of the checkpoints that are durable
	claims  map[string]lock                    // by topic: one AddTopics at a time
}

type partitionKey struct {
	topic string
	num   int32
}

// topicList is an answer of the host, shared by all who asked before it was asked for.
type topicList struct {
	nth    int64
	byName map[string]Topic
	sorted []Topic
}

// opening is a partition that is open, or about to be.
type opening struct {
	ready chan struct{}
	nth   int64 // which opening it was
	part  *Partition
	err   error
}

// opened says that the rest may be read.
func (o *opening) opened() bool {
	select {
	case <-o.ready:
		return true
	default:
		return false
	}
}

// Open loads the state of a host: on return the gate is right. It fences every Coordinator that was opened on the host before: their
// next state write fails with ErrFenced, and their mirrors end: whatever is asked of those answers ErrFenced. Mirrors found in the state
// are read-only and wait for Coordinator.Mirror to attach their source; they can be removed without one.
func Open(ctx context.Context, h Host, opts ...Option) (*Coordinator, error) {
	o := defaultOptions()
	for _, opt := range opts {
		opt.apply(&o)
	}
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("options: %w", err)
	}
	switch {
	case h == nil:
		return nil, errors.New("the Host is nil: give one, as disklog.Open makes it")
	case h.ClusterID() == "":
		return nil, errors.New("the Host's ClusterID is empty: it must tell this host from all others, and stay the same")
	}
	c := &Coordinator{
		host: h, opts: o, log: o.logger, events: newEventQueue(), budget: newBudget(o.byteBudget),
		flooring: newLock(), attaching: newLock(), listing: newLock(), delivered: make(chan struct{}),
		mirrors: make(map[string]*Mirror), parts: make(map[partitionKey]*opening), claims: make(map[string]lock),
	}
	c.raise, _ = h.(ProducerIDRaiser)
	c.clamp, _ = h.(OffsetClamper)
	if c.raise == nil {
		c.log.Info("host has no RaiseProducerID: it must take Coordinator.ProducerIDFloor before it hands out producer ids")
	}
	if c.clamp == nil {
		c.log.Info("host has no ClampOffsets: it must take Coordinator.OffsetCeiling before it serves committed offsets")
	}
	if err := h.EnsureTopic(ctx, Topic{Name: StateTopic, Partitions: 1}); err != nil {
		return nil, fmt.Errorf("create topic %s: %w", StateTopic, err)
	}
	state, err := h.OpenLog(ctx, StateTopic, 0)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", StateTopic, err)
	}
	if c.store, err = statelog.Open(ctx, state, ErrOutOfOrder, statelog.Logger(c.log)); err != nil {
		return nil, errors.Join(fmt.Errorf("load state: %w", advised(ofState(err))), state.Close())
	}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.indexCheckpoints()
	c.gate.forbid(StateTopic, fmt.Errorf("topic %s is kept by the library", StateTopic))
	c.queued.Go(func() { c.events.run(c.delivered, o.onEvent) })
	if err := c.load(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Host is the host that Open was given.
func (c *Coordinator) Host() Host { return c.host }

// Mirrors are the names of all mirrors, also of those without a source, in order.
func (c *Coordinator) Mirrors() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sortedKeys(c.mirrors)
}

// CheckWrite says whether a local writer may append now: nil, or a *ReadOnlyError that names the mirror. It takes no lock.
func (c *Coordinator) CheckWrite(topic string, partition int32) error {
	return c.gate.check(topic, partition)
}

// BeginWrite passes the gate for one append of a host that appends to its own log: it answers the leader epoch to stamp, and
// done, to be called when the append has ended. AddTopics waits for writers that have begun, so done must be called soon.
// Transaction markers are writes too. A host that has deleted a topic calls Topics before it writes to another one of that name.
func (c *Coordinator) BeginWrite(ctx context.Context, topic string, partition int32) (epoch int32, done func(), err error) {
	p, err := c.Partition(ctx, topic, partition)
	if err != nil {
		return 0, nil, err
	}
	if err := p.enter(ctx); err != nil {
		return 0, nil, err
	}
	return p.LeaderEpoch(), func() { p.leave(); p.notify() }, nil
}

// RaiseLeaderEpoch raises a partition's leader epoch to atLeast, or by one if it is there already, and answers the new one, as an
// election does. Durable on return. Not between BeginWrite and done of another append: what that one stamps would come too late, and
// epochs that fall in a log can't be mirrored.
func (c *Coordinator) RaiseLeaderEpoch(ctx context.Context, topic string, partition, atLeast int32) (epoch int32, err error) {
	p, err := c.Partition(ctx, topic, partition)
	if err != nil {
		return 0, err
	}
	err = p.change(ctx, func(ctx context.Context) error {
		next, err := p.nextEpoch()
		if err != nil {
			return err
		}
		epoch = max(atLeast, next, 1) // clients are told of 0 before anything is written
		return p.setEpoch(ctx, epoch)
	})
	return epoch, err
}

// Partition opens one partition of the host, or answers the one that is open. ErrUnknownPartition if the host has none.
func (c *Coordinator) Partition(ctx context.Context, topic string, partition int32) (*Partition, error) {
	key := partitionKey{topic, partition}
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		o := c.parts[key]
		if o == nil {
			o = &opening{ready: make(chan struct{})}
			c.opens++
			o.nth = c.opens
			c.parts[key] = o
			c.mu.Unlock()
			o.part, o.err = c.open(ctx, key)
			if o.err != nil { // the next one tries again
				c.mu.Lock()
				delete(c.parts, key)
				c.mu.Unlock()
			}
			close(o.ready)
			return o.part, o.err
		}
		c.mu.Unlock()
		select {
		case <-o.ready:
			// That the one who opened it has given up is no answer for others.
			if !errors.Is(o.err, context.Canceled) && !errors.Is(o.err, context.DeadlineExceeded) {
				return o.part, o.err
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *Coordinator) open(ctx context.Context, key partitionKey) (*Partition, error) {
	t, err := c.topic(ctx, key.topic, key.num)
	if err != nil {
		return nil, err
	}
	log, err := c.host.OpenLog(ctx, key.topic, key.num)
	if err != nil {
		return nil, fmt.Errorf("open log of %s-%d: %w", key.topic, key.num, err)
	}
	if of, ok := log.(TopicIDer); ok && of.TopicID() != t.ID { // made anew since the topics were listed
		t.ID = of.TopicID()
		c.mu.Lock()
		c.topics = nil
		c.mu.Unlock()
	}
	return newPartition(c, t, key.num, log, c.leaderEpoch(t.ID, key.num)), nil
}

// topic is what the host says of a topic that has the partition.
func (c *Coordinator) topic(ctx context.Context, name string, partition int32) (Topic, error) {
	has := func(t Topic) bool { return t.Name != "" && partition >= 0 && partition < t.Partitions }
	c.mu.Lock()
	t := c.topics[name]
	c.mu.Unlock()
	if !has(t) {
		list, err := c.listTopics(ctx)
		if err != nil {
			return Topic{}, err
		}
		t = list[name]
	}
	if !has(t) {
		return Topic{}, fmt.Errorf("%s-%d: %w", name, partition, ErrUnknownPartition)
	}
	return t, nil
}

// Topics are the topics of the host, by name, the state topic included. A topic that the host has deleted is found out here, or when
// its log is next used: its partitions are forgotten, and those of another one that was made under its name take their place.
func (c *Coordinator) Topics(ctx context.Context) ([]Topic, error) {
	list, err := c.ask(ctx)
	return slices.Clone(list.sorted), err
}

// listTopics is Topics by name, not to be changed.
func (c *Coordinator) listTopics(ctx context.Context) (map[string]Topic, error) {
	list, err := c.ask(ctx)
	return list.byName, err
}

// ask asks the host for its topics. Commands on many topics do so at once, each several times: those that wait meanwhile share the next
// answer.
func (c *Coordinator) ask(ctx context.Context) (topicList, error) {
	c.mu.Lock()
	called := c.asked
	c.mu.Unlock()
	if err := c.listing.acquire(ctx); err != nil {
		return topicList{}, err
	}
	defer c.listing.release()
	c.mu.Lock()
	if c.listed.nth > called { // asked for after the call
		defer c.mu.Unlock()
		return c.listed, nil
	}
	c.asked++
	nth, before := c.asked, c.opens
	c.mu.Unlock()
	sorted, err := c.host.Topics(ctx)
	if err != nil {
		return topicList{}, fmt.Errorf("list the host's topics: %w", err)
	}
	slices.SortFunc(sorted, func(a, b Topic) int { return strings.Compare(a.Name, b.Name) })
	topics := make(map[string]Topic, len(sorted))
	for _, t := range sorted {
		topics[t.Name] = t
	}
	list := topicList{nth, topics, sorted}
	c.mu.Lock()
	c.topics, c.listed = topics, list
	var gone []*Partition
	for key, o := range c.parts {
		// Deleted, and perhaps made anew; what was opened since the host was asked may be newer than its answer.
		if t := topics[key.topic]; o.opened() && o.err == nil && o.nth <= before && t.ID != o.part.id {
			gone = append(gone, o.part)
		}
	}
	c.mu.Unlock()
	for _, p := range gone {
		c.evict(p)
	}
	return list, nil
}

// opened is a partition that is open already; nil if it isn't.
func (c *Coordinator) opened(topic string, num int32) *Partition {
	c.mu.Lock()
	o := c.parts[partitionKey{topic, num}]
	c.mu.Unlock()
	if o == nil || !o.opened() {
		return nil
	}
	return o.part // nil if it could not be opened
}

// evict forgets an open partition whose log is no more. Who waits for it is told.
func (c *Coordinator) evict(p *Partition) {
	key := partitionKey{p.topic, p.num}
	c.mu.Lock()
	o := c.parts[key]
	current := o != nil && o.opened() && o.part == p
	if current {
		delete(c.parts, key)
		c.topics = nil // another topic may have the name by now
	}
	c.mu.Unlock()
	if !current {
		return
	}
	close(p.gone)
	p.notify()
	if err := p.log.Close(); err != nil {
		c.log.Warn("close the log of a partition that is gone", "partition", p.String(), "err", err)
	}
}

// Close ends every mirror and every goroutine, closes the gate and all logs. What was appended is synced, so that the next run
// goes on from there. Close twice is harmless.
func (c *Coordinator) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.tasks.Wait()
		c.queued.Wait()
		return nil
	}
	c.closed = true
	mirrors := make([]*Mirror, 0, len(c.mirrors))
	for _, m := range c.mirrors {
		mirrors = append(mirrors, m)
	}
	c.mu.Unlock()
	c.gate.close(fmt.Errorf("write gate: %w", ErrClosed))
	c.cancel(ErrClosed)
	for _, m := range mirrors {
		m.disconnect()
	}
	c.tasks.Wait()
	close(c.delivered)
	c.queued.Wait()

	c.mu.Lock()
	parts := slices.Collect(maps.Values(c.parts))
	c.mu.Unlock()
	ctx := context.WithoutCancel(c.ctx)
	var g errgroup.Group // at once, so that checkpoints share their syncs
	g.SetLimit(256)
	for _, o := range parts {
		<-o.ready
		if o.err == nil {
			g.Go(func() error { return o.part.shut(ctx) })
		}
	}
	return errors.Join(g.Wait(), c.store.Close())
}

// shut leaves a log from which the next run goes on without reading it all.
func (p *Partition) shut(ctx context.Context) error {
	p.mu.Lock()
	dirty := !p.stale && p.sum.Unsaved()
	p.mu.Unlock()
	if dirty {
		p.saveCheckpoint(ctx)
	}
	if err := p.log.Close(); err != nil {
		return fmt.Errorf("close log of %s: %w", p, err)
	}
	return nil
}

// background runs f in a goroutine that Close waits for. f must end soon after its context.
func (c *Coordinator) background(f func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.tasks.Go(func() { f(c.ctx) })
	}
}

// put persists records. A coordinator that finds itself fenced ends.
func (c *Coordinator) put(ctx context.Context, recs ...statelog.Record) error {
	err := c.store.Put(ctx, recs...)
	if errors.Is(err, statelog.ErrFenced) {
		err = fmt.Errorf("write state: %s: %w", StateTopic, ErrFenced)
		c.gate.close(err)
		c.cancel(err)
		c.log.Error("fenced: the gate is closed and all mirrors end", "err", err)
		for _, m := range c.list() {
			for _, t := range m.mustAll() {
				for _, r := range t.partitions() {
					r.feel(Stalled, err)
				}
			}
		}
	} else if err != nil {
		err = fmt.Errorf("write state: %w", ofState(err))
	}
	return err
}

// ofState names the topic, and says what to do about one that is damaged.
func ofState(err error) error {
	err = fmt.Errorf("%s: %w", StateTopic, err)
	if _, ok := errors.AsType[*statelog.DamagedError](err); ok {
		return hint(fmt.Errorf("%w: %w", ErrStateDamaged, err), "put the topic back from a copy, and Open again; without one delete it: its mirrors and their last mirrored "+
			"positions are gone then, all topics are writable, and AddTopics takes those for the source's that it can prove to be")
	}
	return err
}

// What is kept in the state besides the documents' own two records. Values are JSON but for checkpoints.
const (
	typeMirror      int16 = 1000 // mirror: what it mirrors from
	typeTopic       int16 = 1001 // mirror, topic: what is wished for it
	typeLeaderEpoch int16 = 1002 // topic, partition: 4 bytes
	typeRound       int16 = 1003 // mirror, topic, partition: the current or last round
	typeCheckpoint  int16 = 1004 // topic, partition, piece
	typeCut         int16 = 1006 // mirror, topic, partition: a cut that is not reported yet
	typePIDFloor    int16 = 1007 // 8 bytes
	typeCeiling     int16 = 1008 // topic, partition: 8 bytes, no committed offset may lie above it
	typeTotals      int16 = 1009 // mirror, topic, partition
)

// get reads a JSON value.
func get[T any](s *statelog.Store, k statelog.Key) (v T, ok bool, err error) {
	b, ok := s.Get(k)
	if !ok {
		return v, false, nil
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, false, fmt.Errorf("state record %v: %w", k, err)
	}
	return v, true, nil
}

// record makes a state record with a JSON value. Only values of our own types come here, which all have one.
func record(k statelog.Key, v any) statelog.Record {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("state record %v: %v", k, err))
	}
	return statelog.Record{Key: k, Value: b}
}

func (c *Coordinator) leaderEpoch(topic TopicID, partition int32) int32 {
	b, ok := c.store.Get(statelog.Key{Type: typeLeaderEpoch, Topic: topic, Partition: partition})
	if !ok || len(b) != 4 {
		return -1
	}
	return int32(binary.BigEndian.Uint32(b))
}

func leaderEpochRecord(topic TopicID, partition, epoch int32) statelog.Record {
	return statelog.Record{
		Key:   statelog.Key{Type: typeLeaderEpoch, Topic: topic, Partition: partition},
		Value: binary.BigEndian.AppendUint32(nil, uint32(epoch)),
	}
}

// ProducerIDFloor is the greatest producer id that came with a topic that was taken over; -1 if none was. A host hands out ids
// above it only.
func (c *Coordinator) ProducerIDFloor() int64 {
	b, ok := c.store.Get(statelog.Key{Type: typePIDFloor})
	if !ok || len(b) != 8 {
		return -1
	}
	return int64(binary.BigEndian.Uint64(b))
}

// OffsetCeiling is the smallest end that a cut has left since the partition's committed offsets were last clamped; not ok if there
// was none. A host without ClampOffsets lowers what is committed above it before it serves, and calls OffsetsClamped.
func (c *Coordinator) OffsetCeiling(ctx context.Context, topic string, partition int32) (end int64, ok bool, err error) {
	t, err := c.topic(ctx, topic, partition)
	if err != nil {
		return 0, false, err
	}
	end, ok = c.ceiling(t.ID, partition)
	return end, ok, nil
}

func ceilingKey(id TopicID, partition int32) statelog.Key {
	return statelog.Key{Type: typeCeiling, Topic: id, Partition: partition}
}

func (c *Coordinator) ceiling(id TopicID, partition int32) (end int64, ok bool) {
	b, ok := c.store.Get(ceilingKey(id, partition))
	if !ok || len(b) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(b)), true
}

// OffsetsClamped says that no offset is committed above end, which OffsetCeiling has answered: what is committed from now on is no longer
// held against it. A cut that has left less since then stays to be asked for. Durable on return.
func (c *Coordinator) OffsetsClamped(ctx context.Context, topic string, partition int32, end int64) error {
	p, err := c.Partition(ctx, topic, partition)
	if err != nil {
		return err
	}
	return p.change(ctx, func(ctx context.Context) error { // as clampOffsets
		if now, ok := c.ceiling(p.id, partition); !ok || now < end {
			return nil
		}
		return c.put(ctx, statelog.Record{Key: ceilingKey(p.id, partition)})
	})
}

// partitionID names a partition in the state, where topics go by id.
type partitionID struct {
	topic TopicID
	num   int32
}

// indexCheckpoints finds the pieces of all checkpoints once, so that opening a partition need not look through all of them.
func (c *Coordinator) indexCheckpoints() {
	c.pieces = make(map[partitionID]map[int64]struct{})
	for k := range c.store.All(typeCheckpoint) {
		c.notePiece(k)
	}
}

func (c *Coordinator) notePiece(k statelog.Key) {
	id := partitionID{k.Topic, k.Partition}
	if c.pieces[id] == nil {
		c.pieces[id] = make(map[int64]struct{})
	}
	c.pieces[id][k.N] = struct{}{}
}

// stored are the pieces of a partition's checkpoint that are durable.
func (c *Coordinator) stored(topic TopicID, partition int32) map[int64]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.pieces[partitionID{topic, partition}])
}

// checkpoint is the durable checkpoint of a partition; empty if there is none.
func (c *Coordinator) checkpoint(topic TopicID, partition int32) (pieces []summary.Piece) {
	for id := range c.stored(topic, partition) {
		if b, ok := c.store.Get(statelog.Key{Type: typeCheckpoint, Topic: topic, Partition: partition, N: id}); ok {
			pieces = append(pieces, summary.Piece{ID: id, Data: b})
		}
	}
	return pieces
}

func (c *Coordinator) putCheckpoint(ctx context.Context, topic TopicID, partition int32, fresh []summary.Piece, gone []int64) error {
	var recs []statelog.Record
	for _, piece := range fresh {
		recs = append(recs, statelog.Record{Key: statelog.Key{Type: typeCheckpoint, Topic: topic, Partition: partition, N: piece.ID}, Value: piece.Data})
	}
	for _, id := range gone {
		recs = append(recs, statelog.Record{Key: statelog.Key{Type: typeCheckpoint, Topic: topic, Partition: partition, N: id}})
	}
	if err := c.put(ctx, recs...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range recs {
		if r.Value != nil {
			c.notePiece(r.Key)
		} else {
			delete(c.pieces[partitionID{topic, partition}], r.Key.N)
		}
	}
	return nil
}

// Mirror creates a mirror, or attaches the source to one found in the state. Nothing is asked of the source before Start or
// AddTopics. The options given to Open that are MirrorOptions too are its defaults.
//
// A name is 1 to 249 of A-Z a-z 0-9 . _ -, and not . or .. . One that has a source attached already is refused; it can be attached again,
// also with another Source and other options, after Mirror.Close.
func (c *Coordinator) Mirror(name string, src Source, opts ...MirrorOption) (*Mirror, error) {
	o := c.opts.mirror
	for _, opt := range opts {
		opt.applyMirror(&o)
	}
	return c.attach(c.ctx, name, src, o)
}

// Detached is a mirror that was found in the state and has no source attached. It can be described, and topics can be removed from
// it: that is failover without the source. ErrUnknownMirror if there is none.
func (c *Coordinator) Detached(name string) (*Mirror, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mirrors[name]
	switch {
	case m == nil:
		return nil, fmt.Errorf("mirror %s: %w", name, ErrUnknownMirror)
	case m.client != nil:
		return nil, fmt.Errorf("mirror %s: %w without a source: it is attached, Close it first", name, ErrUnknownMirror)
	}
	return m, nil
}

var legalName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)

func (c *Coordinator) attach(ctx context.Context, name string, src Source, o mirrorOptions) (*Mirror, error) {
	var errs []error
	if !legalName.MatchString(name) || name == "." || name == ".." {
		errs = append(errs, fmt.Errorf("mirror name %q: must be 1 to 249 of A-Z a-z 0-9 . _ -, and not . or ..", name))
	}
	if src.Addr == nil {
		errs = append(errs, fmt.Errorf("mirror %s: Source.Addr is nil: give the bootstrap brokers, as in kafka.TCP(\"kafka-1:9092\")", name))
	}
	if err := o.validate(); err != nil {
		errs = append(errs, fmt.Errorf("options of mirror %s: %w", name, err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := c.attaching.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.attaching.release()
	c.mu.Lock()
	old, closed := c.mirrors[name], c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case old != nil && old.client != nil:
		return nil, fmt.Errorf("mirror %s is attached already: Close it first", name)
	case old != nil && src.ClusterID != "" && old.peerID() != "" && src.ClusterID != old.peerID():
		return nil, fmt.Errorf("mirror %s mirrors cluster %s, Source.ClusterID is %s: %w", name, old.peerID(), src.ClusterID, ErrWrongCluster)
	case old != nil:
		old.disconnect() // what was commanded of it without a source has ended
	default:
		if err := c.put(ctx, record(statelog.Key{Type: typeMirror, Mirror: name}, mirrorRecord{})); err != nil {
			return nil, fmt.Errorf("create mirror %s: %w", name, err)
		}
	}
	m := c.newMirror(name)
	m.src, m.opts = src, o
	m.client = wire.New(wire.Config{
		Addr: src.Addr, Transport: src.Transport, ClientID: o.clientID, RequestTimeout: o.requestTimeout, Logger: c.log,
		Reserve: c.budget.reserve, Accept: m.accept,
	})
	return m, c.publish(m)
}

func (c *Coordinator) newMirror(name string) *Mirror {
	m := &Mirror{
		c: c, name: name, opts: c.opts.mirror, soon: make(chan struct{}, 1), changed: newBroadcast(),
		topics: make(map[string]*mirrorTopic), fetchers: make(map[int32]*fetcher), asking: semaphore.NewWeighted(askAtOnce),
	}
	m.ctx, m.cancel = context.WithCancelCause(c.ctx)
	return m
}

// load makes what the state says, so that the gate is right before anyone can ask.
func (c *Coordinator) load(ctx context.Context) error {
	for k := range c.store.All(typeMirror) {
		if err := c.publish(c.newMirror(k.Mirror)); err != nil {
			return fmt.Errorf("load mirror %s: %w", k.Mirror, err)
		}
	}
	for _, m := range c.list() {
		for _, t := range m.mustAll() {
			for _, r := range t.partitions() {
				if err := r.check(ctx); err != nil { // that of one partition keeps no other from being taken over
					c.log.Error("partition at open", "mirror", m.name, "partition", r.String(), "err", err)
				}
			}
		}
	}
	return nil
}

// publish fills a mirror with what the state says of it, and lets others see it.
func (c *Coordinator) publish(m *Mirror) error {
	v, _, err := get[mirrorRecord](c.store, statelog.Key{Type: typeMirror, Mirror: m.name})
	if err != nil {
		return err
	}
	m.peer = v.Peer
	for k := range c.store.All(typeTopic) {
		if k.Mirror != m.name {
			continue
		}
		v, _, err := get[topicRecord](c.store, k)
		if err != nil {
			return err
		}
		t := m.newTopic(v.Name, k.Topic, v.Wished, v.Partitions)
		for _, r := range t.replicas {
			if err := r.load(c.store); err != nil {
				return err
			}
			if p := c.opened(t.name, r.num); p != nil && p.id == t.id {
				r.part = p
			}
		}
		t.upstreams = v.Upstreams
		m.topics[t.name] = t
	}
	c.mu.Lock()
	c.mirrors[m.name] = m
	c.mu.Unlock()
	for topic := range m.topics { // of several mirrors that have had it, the one that mirrors it now decides
		c.gateOf(c.ownerOf(topic))
	}
	return nil
}

// list are the mirrors by name.
func (c *Coordinator) list() []*Mirror {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Mirror, 0, len(c.mirrors))
	for _, name := range sortedKeys(c.mirrors) {
		list = append(list, c.mirrors[name])
	}
	return list
}
