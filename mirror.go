// Package mirror keeps an exact, read-only copy of selected Kafka topics inside a Go program: same names, ids, partitions, offsets,
// leader epochs and bytes. It is Kafka's Cluster Mirroring (KIP-1279) as a library.
//
// The program is the host: it brings the logs (Host and Log; package disklog has a pair for local disk), and owes the library:
//
//  1. A log that does what Log says. Package logtest checks it.
//  2. One Coordinator at a time per host, made with Open or New before the first local write. A newer one fences the older.
//  3. A question to the gate before each local append: CheckWrite, BeginWrite, or Partition.Append, which asks itself. A mirrored topic
//     is read-only until a mirror has given it up.
//  4. Close, which leaves a state from which the next run goes on. A crash instead costs only what was not synced, and that is
//     fetched again.
//
// In return every batch in a mirrored log is the source's, verbatim and in order; what is dropped or missing is reported with its
// range; and a trouble of one partition is a state of that partition, with a reason and a next step.
//
//	host, err := disklog.Open("replica")
//	m, err := mirror.New(ctx, "dr", mirror.Source{Addr: kafka.TCP("kafka-1:9092")}, host)
//	defer m.Close()
//	err = m.Start(ctx)                           // also with the source down
//	err = m.AddTopics(ctx, "orders", "payments") // harmless to repeat at every boot
//	err = m.WaitCaughtUp(ctx)
//	fmt.Print(m.Describe())
//	for msg, err := range m.Records(ctx, "orders", 0, 0) {
//		// kafka.Message at the source's offset
//	}
//
// A program with several mirrors, or with a broker of its own, opens a Coordinator and makes the mirrors on it:
//
//	c, err := mirror.Open(ctx, host)
//	m, err := c.Mirror("dr", src)
//	p, err := c.Partition(ctx, "orders", 0)
//
// Contexts bound calls; Close ends lives. Everything may be called concurrently.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"regexp"
	"strings"
	"sync"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/wire"
)

// Source is the cluster to mirror from. It may hold secrets and is never stored.
type Source struct {
	// Addr are the bootstrap brokers, as kafka.TCP("kafka-1:9092", "kafka-2:9092") gives them.
	Addr net.Addr
	// Transport carries TLS, SASL, client id and dial function; nil means plain TCP. Its exported fields are copied, it is
	// not used itself.
	Transport *kafka.Transport
	// ClusterID, if set, is the only cluster that may answer at Addr. Without it the first one that does is remembered.
	ClusterID string
}

// Mirror is one named link from one source cluster. All its methods may be called concurrently.
type Mirror struct {
	c      *Coordinator
	name   string
	opts   mirrorOptions
	client *wire.Client // nil while detached
	src    Source
	owner  bool // New made the coordinator: Close closes it too

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	tasks   sync.WaitGroup      // its goroutines
	asking  *semaphore.Weighted // bounds the questions about single partitions
	soon    chan struct{}       // asks for fresh metadata
	changed *broadcast          // whenever a partition's state has changed

	mu       sync.Mutex
	started  bool
	closed   bool
	peer     string // the source's cluster id, "" until one has answered
	topics   map[string]*mirrorTopic
	fetchers map[int32]*fetcher
}

// mirrorTopic is a topic of a mirror; its fields are guarded by the mirror's mutex but for the first three.
type mirrorTopic struct {
	m    *Mirror
	name string
	id   TopicID

	command   lock // one command on a topic at a time
	wished    wish
	upstreams []string // clusters that the source mirrors the topic from, and so on up
	replicas  []*replica
	confirmed bool // the source says that its topic has this id
	trying    bool // a round is being tried: nothing is done until it is certain
	missing   int  // refreshes in a row that did not find it at the source
}

// topicRecord and mirrorRecord are what is persisted of them.
type (
	topicRecord struct {
		Name       string   `json:"name"`
		Wished     wish     `json:"wished"`
		Partitions int32    `json:"partitions"`
		Upstreams  []string `json:"upstreams,omitempty"`
	}
	mirrorRecord struct {
		Peer string `json:"peer"`
	}
)

// New is Open and Coordinator.Mirror in one; Close of the mirror then closes both.
func New(ctx context.Context, name string, src Source, h Host, opts ...Option) (*Mirror, error) {
	c, err := Open(ctx, h, opts...)
	if err != nil {
		return nil, err
	}
	m, err := c.attach(ctx, name, src, c.opts.mirror)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	m.owner = true
	return m, nil
}

// Mirror creates a mirror, or attaches the source to one found in the state. Nothing is asked of the source before Start or
// AddTopics. The options given to Open that are MirrorOptions too are its defaults.
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
	if m == nil || m.client != nil {
		return nil, fmt.Errorf("mirror %s: %w", name, ErrUnknownMirror)
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
	m.ctx, m.cancel = context.WithCancel(c.ctx)
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
			r.part = c.opened(t.name, r.num)
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

func (m *Mirror) newTopic(name string, id TopicID, wished wish, partitions int32) *mirrorTopic {
	t := &mirrorTopic{m: m, name: name, id: id, wished: wished, command: newLock()}
	for i := range partitions {
		t.replicas = append(t.replicas, newReplica(t, i))
	}
	return t
}

func (t *mirrorTopic) key() statelog.Key {
	return statelog.Key{Type: typeTopic, Mirror: t.m.name, Topic: t.id}
}

func (t *mirrorTopic) record(wished wish, partitions int32) statelog.Record {
	return record(t.key(), topicRecord{t.name, wished, partitions, t.chain()})
}

// wish is what is wished for the topic, and whether anything can be done about it now.
func (t *mirrorTopic) wish() (w wish, able bool) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.wished, !t.trying && (t.m.started && t.m.client != nil || t.wished == Stopped)
}

func (t *mirrorTopic) partitions() []*replica {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return append([]*replica(nil), t.replicas...)
}

// Name is the mirror's name.
func (m *Mirror) Name() string { return m.name }

// Coordinator is the one that the mirror belongs to.
func (m *Mirror) Coordinator() *Coordinator { return m.c }

// Start begins mirroring what was added, in goroutines that run until Close; ctx bounds the call only. It works with the source
// down: topics found in the state go on when it answers. Start twice is harmless.
func (m *Mirror) Start(context.Context) error {
	m.mu.Lock()
	switch {
	case m.closed:
		m.mu.Unlock()
		return fmt.Errorf("mirror %s: %w", m.name, ErrClosed)
	case m.client == nil:
		m.mu.Unlock()
		return fmt.Errorf("mirror %s: %w: attach it with Coordinator.Mirror", m.name, ErrDetached)
	case m.started:
		m.mu.Unlock()
		return nil
	}
	m.started = true
	m.mu.Unlock()
	m.background(m.run)
	return nil
}

// Close ends every goroutine of the mirror and cuts its connections at once, also inside a long poll. What is mirrored stays
// read-only, and the next run goes on from the log's end. A mirror made with New closes its Coordinator too. Close twice is
// harmless.
func (m *Mirror) Close() error {
	if m.owner {
		return m.c.Close()
	}
	m.disconnect()
	ctx := context.WithoutCancel(m.ctx)
	if err := m.c.attaching.acquire(ctx); err != nil {
		return err
	}
	defer m.c.attaching.release()
	m.c.mu.Lock()
	current := !m.c.closed && m.c.mirrors[m.name] == m
	m.c.mu.Unlock()
	if !current {
		return nil
	}
	return m.c.publish(m.c.newMirror(m.name)) // detached again: listed, read-only, can be attached or removed
}

func (m *Mirror) disconnect() {
	m.mu.Lock()
	m.closed = true
	client := m.client
	m.mu.Unlock()
	m.cancel()
	if client != nil {
		client.Close()
	}
	m.tasks.Wait()
}

// background runs f in a goroutine that Close waits for. f must end soon after its context.
func (m *Mirror) background(f func(context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.tasks.Go(func() { f(m.ctx) })
	}
}

// enter lets a command in, unless the mirror is closed; Close waits for those that are in, and ends what they wait for.
func (m *Mirror) enter() (leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("mirror %s: %w", m.name, ErrClosed)
	}
	m.tasks.Add(1)
	return m.tasks.Done, nil
}

// AddTopics mirrors topics of the source, with all their partitions, from now on. Each is created here with the source's id, and is
// read-only here at once. It returns when what is wished is durable, not when the topics are mirrored: see WaitCaughtUp.
//
// A topic that is in this mirror already is left as it is, so programs may add their topics at every boot; with the source down that
// still succeeds, while a new one answers ErrSourceUnreachable and nothing of it is stored. A topic that this mirror has stopped
// answers ErrStopped: see Resume. A topic that has records here is refused with ErrNoProof and the ranges, unless it is proven that
// they are the source's: same topic id, epochs that agree, and the last batch byte for byte.
//
// Each topic has its own result: the error joins a *TopicError for each that failed, and the others are added.
func (m *Mirror) AddTopics(ctx context.Context, topics ...string) error {
	var fresh []string
	for _, name := range topics {
		if m.topic(name) == nil {
			fresh = append(fresh, name)
		}
	}
	found, sourceErr := m.look(ctx, fresh)
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		if t := m.topic(name); t != nil {
			release, err := m.c.claim(ctx, name)
			if err != nil {
				return err
			}
			defer release()
			return m.again(ctx, t)
		}
		if sourceErr != nil {
			return hint(sourceErr, "check the address and the network, then add it again; nothing was stored")
		}
		return m.add(ctx, name, found[name], adding)
	})
}

// again is what AddTopics does with a topic that is in the mirror: nothing, unless it was stopped here and then mirrored on by the other
// side, which has stopped it too.
func (m *Mirror) again(ctx context.Context, t *mirrorTopic) error {
	if t.wishedNow() != Stopped {
		return nil
	}
	if m.client == nil {
		return hint(ErrStopped, "Resume mirrors it again, once the source is attached")
	}
	err := m.resumeClaimed(ctx, t, adding)
	if err != nil && isSourceTrouble(err) {
		return hint(fmt.Errorf("%w, and the source can't be asked whether it has gone on since: %w", ErrStopped, err), "add it again when it answers, or Resume it")
	}
	return err
}

// Remove takes topics over: WARNING, it is failover. Fetching ends, what was fetched is synced, the last mirrored position is stored,
// transactions that are open are aborted, and the topics become writable here. What the source has beyond is not waited for: see
// Promote. To stop fetching only, Pause.
//
// It works with the source down, and on partitions that are FAILED. Each partition opens by itself. It returns when every partition
// is STOPPED, or with an error for each topic of which one is not; then it can be called again. Removing a topic that is stopped
// changes nothing.
func (m *Mirror) Remove(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t, err := m.want(ctx, name, Stopped)
		if err != nil {
			return err
		}
		return t.await(ctx, Stopped)
	})
}

// Promote is Remove for a planned move: it first waits until nothing that the source has acknowledged is missing here, in two looks at
// the leaders' real ends, and no transaction is open. WARNING: the topics become writable here. The producers at the source must
// have been stopped. When ctx ends first, its error says what still moved, and nothing has changed.
func (m *Mirror) Promote(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		switch {
		case t == nil:
			return hint(ErrUnknownTopic, "it is not in this mirror")
		case m.client == nil:
			return ErrDetached
		}
		return m.promote(ctx, t)
	})
}

// Pause ends fetching; the topics stay read-only, and Resume goes on at the log's end. It returns when that is durable. Pausing a
// paused topic changes nothing.
func (m *Mirror) Pause(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		_, err := m.want(ctx, name, Paused)
		return err
	})
}

// Resume mirrors paused and stopped topics again. A stopped one goes on at its last mirrored position and is read-only again; if
// records were written here since, it is refused with ErrWritten and the ranges. It returns when that is durable. Resuming a topic
// that is mirrored changes nothing.
func (m *Mirror) Resume(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		if t == nil {
			return hint(ErrUnknownTopic, "it is not in this mirror")
		}
		return m.restart(ctx, t, resuming)
	})
}

// Overwrite mirrors topics whatever stands here. WARNING: records are lost. Of a stopped topic it drops what was written here since the
// last mirrored position; of a topic that AddTopics refuses with ErrNoProof, all records of the refused partitions. Each range is
// reported as an event and counted.
func (m *Mirror) Overwrite(ctx context.Context, topics ...string) error {
	var fresh []string
	for _, name := range topics {
		if m.topic(name) == nil {
			fresh = append(fresh, name)
		}
	}
	found, sourceErr := m.look(ctx, fresh)
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		if t == nil && sourceErr != nil {
			return sourceErr
		}
		if t == nil {
			return m.add(ctx, name, found[name], overwriting)
		}
		return m.restart(ctx, t, overwriting)
	})
}

// restart makes paused topics go on, and begins a round of stopped ones.
func (m *Mirror) restart(ctx context.Context, t *mirrorTopic, h how) error {
	switch {
	case t.wishedNow() != Stopped:
		_, err := m.want(ctx, t.name, Mirroring)
		return err
	case m.client == nil:
		return ErrDetached
	}
	return m.resume(ctx, t, h)
}

// Recover tries FAILED partitions of the topics again, also those where someone must decide first: calling it is the decision. With
// FailOnDivergence it allows the cut that the failure names.
func (m *Mirror) Recover(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		if t == nil {
			return hint(ErrUnknownTopic, "it is not in this mirror")
		}
		for _, r := range t.partitions() {
			r.mu.Lock()
			if r.stored.state == Failed {
				r.stored.decide, r.stored.tries, r.mayCut = false, 0, true
				r.retry = nil
				if r.timer != nil {
					r.timer.Stop()
					r.timer = nil
				}
			}
			r.mu.Unlock()
			r.kick()
		}
		return nil
	})
}

// want makes a wish durable and has the partitions follow it.
func (m *Mirror) want(ctx context.Context, name string, w wish) (*mirrorTopic, error) {
	t := m.topic(name)
	if t == nil {
		return nil, hint(ErrUnknownTopic, "it is not in this mirror")
	}
	if err := t.command.acquire(ctx); err != nil {
		return nil, err
	}
	defer t.command.release()
	switch now := t.wishedNow(); {
	case now == Stopped && w == Paused:
		return nil, hint(ErrStopped, "only a topic that is mirrored can be paused")
	case now == Stopped && w == Mirroring:
		return nil, hint(ErrStopped, "it was stopped meanwhile: Resume it again")
	case now != w:
		if err := m.c.put(context.WithoutCancel(ctx), t.record(w, int32(len(t.partitions())))); err != nil {
			return nil, err
		}
		m.mu.Lock()
		t.wished = w
		m.mu.Unlock()
		for _, r := range t.partitions() {
			r.wishChanged()
		}
	}
	for _, r := range t.partitions() {
		r.kick()
	}
	return t, nil
}

func (t *mirrorTopic) wishedNow() wish {
	w, _ := t.wish()
	return w
}

// await waits until every partition is in the state; a FAILED one ends it.
func (t *mirrorTopic) await(ctx context.Context, s State) error {
	for _, r := range t.partitions() {
		for {
			changed := t.m.changed.next()
			r.mu.Lock()
			now, busy := r.stored, r.busy
			r.mu.Unlock()
			if now.state == s && !busy {
				break
			}
			if w := t.wishedNow(); w != s {
				return fmt.Errorf("another command has asked for %s meanwhile", w)
			}
			if now.state == Failed && !busy {
				return hint(fmt.Errorf("partition %d: %w in %s: %s", r.num, ErrFailed, now.before, now.text), "call it again once the cause is mended")
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return fmt.Errorf("partition %d is %s: %w", r.num, now.state, ctx.Err())
			case <-t.m.ctx.Done():
				return ErrClosed
			}
		}
	}
	return nil
}

// Records is Partition.Records of one partition of the host: the mirror's records at the source's offsets.
func (m *Mirror) Records(ctx context.Context, topic string, partition int32, from int64, opts ...ReadOption) iter.Seq2[kafka.Message, error] {
	return func(yield func(kafka.Message, error) bool) {
		p, err := m.c.Partition(ctx, topic, partition)
		if err != nil {
			yield(kafka.Message{}, err)
			return
		}
		for msg, err := range p.Records(ctx, from, opts...) {
			if !yield(msg, err) {
				return
			}
		}
	}
}

func (m *Mirror) topic(name string) *mirrorTopic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topics[name]
}

// all are the mirror's topics by name; the named ones, if any are named.
func (m *Mirror) all(names ...string) ([]*mirrorTopic, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(names) == 0 {
		names = sortedKeys(m.topics)
	}
	var list []*mirrorTopic
	for _, name := range names {
		t := m.topics[name]
		if t == nil {
			return nil, &TopicError{Mirror: m.name, Topic: name, Err: ErrUnknownTopic, Next: "it is not in this mirror: AddTopics first"}
		}
		list = append(list, t)
	}
	return list, nil
}

// each runs a command for each topic, at the same time, and joins what goes wrong.
func (m *Mirror) each(ctx context.Context, topics []string, f func(context.Context, string) error) error {
	leave, err := m.enter()
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	errs := make([]error, len(topics))
	var g errgroup.Group
	g.SetLimit(256)
	seen := make(map[string]bool)
	for i, name := range topics {
		if seen[name] {
			continue
		}
		seen[name] = true
		g.Go(func() error {
			err := f(ctx, name)
			var h *hinted
			switch {
			case err == nil:
			case errors.As(err, &h):
				errs[i] = &TopicError{Mirror: m.name, Topic: name, Err: err, Next: h.next}
			default:
				errs[i] = &TopicError{Mirror: m.name, Topic: name, Err: err}
			}
			return nil
		})
	}
	_ = g.Wait() // errors are collected by topic
	return errors.Join(errs...)
}

// hinted carries what to do next up to the TopicError, which says it.
type hinted struct {
	err  error
	next string
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

func hint(err error, next string) error { return &hinted{err, next} }

func (m *Mirror) newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(m.opts.backoffMin), backoff.WithMaxInterval(m.opts.backoffMax),
		backoff.WithMaxElapsedTime(0), backoff.WithRandomizationFactor(0.5))
}

func (m *Mirror) fetcherOf(broker int32) *fetcher {
	m.mu.Lock()
	f := m.fetchers[broker]
	fresh := f == nil
	if fresh {
		f = newFetcher(m, broker)
		m.fetchers[broker] = f
	}
	m.mu.Unlock()
	if fresh {
		m.background(f.run)
	}
	return f
}

// broadcast tells everyone who waits that something has changed.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// next is closed at the next broadcast. Take it before looking at what may change.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

func (b *broadcast) broadcast() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}

// askAtOnce bounds the questions about single partitions that a mirror asks its source at the same time.
const askAtOnce = 16

func internalTopic(name string) bool { return strings.HasPrefix(name, "__") }
