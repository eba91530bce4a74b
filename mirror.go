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
// Contexts bound calls; Close ends lives. What is called later, or cut by it, answers ErrClosed; ErrFenced, if it was a newer Coordinator
// that ended it. Everything may be called concurrently. Commands name their topics, and refuse to be called for none; PlanRemove and
// WaitCaughtUp take all topics of the mirror if none are named.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

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

	ctx     context.Context // ends with Close, or when the coordinator is fenced
	cancel  context.CancelCauseFunc
	tasks   sync.WaitGroup      // its goroutines
	asking  *semaphore.Weighted // bounds the questions about single partitions
	soon    chan struct{}       // asks for fresh metadata
	changed *broadcast          // whenever a partition's state has changed

	mu       sync.Mutex
	started  bool
	peer     string // the source's cluster id, "" until one has answered
	looks    int    // so many times metadata have been asked for
	topics   map[string]*mirrorTopic
	fetchers map[int32]*fetcher
}

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

// Name is the mirror's name.
func (m *Mirror) Name() string { return m.name }

// Coordinator is the one that the mirror belongs to.
func (m *Mirror) Coordinator() *Coordinator { return m.c }

// Start begins mirroring what was added, in goroutines that run until Close; ctx bounds the call only. It works with the source
// down: topics found in the state go on when it answers. Start twice is harmless.
func (m *Mirror) Start(context.Context) error {
	m.mu.Lock()
	switch err := m.ended(); {
	case err != nil:
		m.mu.Unlock()
		return fmt.Errorf("mirror %s: %w", m.name, err)
	case m.client == nil:
		m.mu.Unlock()
		return fmt.Errorf("mirror %s: %w", m.name, advised(errDetached))
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
// read-only, and the next run goes on from the log's end. Calls in progress, and later ones, answer ErrClosed. A mirror made with New
// closes its Coordinator too. Close twice is harmless.
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
	m.cancel(ErrClosed)
	m.mu.Unlock()
	if m.client != nil {
		m.client.Close()
	}
	m.tasks.Wait()
}

// background runs f in a goroutine that Close waits for. f must end soon after its context.
func (m *Mirror) background(f func(context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() == nil {
		m.tasks.Go(func() { f(m.ctx) })
	}
}

// enter lets a call in, unless the mirror has ended; Close waits for those that are in, and ends what they wait for.
func (m *Mirror) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ended(); err != nil {
		return nil, nil, fmt.Errorf("mirror %s: %w", m.name, err)
	}
	m.tasks.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(m.ctx, cancel)
	return ctx, func() { stop(); cancel(); m.tasks.Done() }, nil
}

// ended is ErrClosed or ErrFenced once the mirror has ended.
func (m *Mirror) ended() error { return context.Cause(m.ctx) }

// failed is what a topic answers. Whatever a call has run into when the mirror ends, the end is why.
func (m *Mirror) failed(topic string, err error) error {
	if ended := m.ended(); ended != nil {
		err = ended
	}
	e := &TopicError{Mirror: m.name, Topic: topic, Err: err}
	if h, ok := errors.AsType[*hinted](err); ok {
		e.Next = h.next
	} else if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrFenced) {
		e.Next = "call it again once that is mended"
	}
	return e
}

// AddTopics mirrors topics of the source, with all their partitions, from now on. Each is created here with the source's id, and is
// read-only here at once. It returns when what is wished is durable, not when the topics are mirrored: see WaitCaughtUp.
//
// A topic that is in this mirror already is left as it is, so programs may add their topics at every boot; with the source down that
// still succeeds, while a new one answers ErrSourceUnreachable and nothing of it is stored. A topic that has records here is refused
// with ErrNoProof and the ranges, unless it is proven that they are the source's: same topic id, epochs that agree, and the last batch
// byte for byte.
//
// WARNING: it may be a failback. Where the source has mirrored the topic from here and has taken it over, what was written here after
// its last mirrored position is cut and reported. Those records are gone; PlanAdd names them first. The other way round, where this
// mirror was the last to take the topic over, the answer is ErrStopped: see Resume.
//
// Each topic has its own result: the error joins a *TopicError for each that failed, and the others are added.
func (m *Mirror) AddTopics(ctx context.Context, topics ...string) error {
	found, sourceErr := m.look(ctx, m.unknown(topics))
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
			return sourceErr
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
// Each partition gets markers of its own at the end: an ABORT per open transaction, and one that resets the producers' states
// (MIRROR_PID_RESET of KIP-1279). Readers don't see them, but the end grows, and mirroring again cuts them and reports that.
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
		return t.awaitStop(ctx)
	})
}

// Promote is Remove for a planned move: it first waits until nothing that the source has acknowledged is missing here, in two looks at
// the leaders' real ends between which they have not moved, and no transaction is open. WARNING: the topics become writable here. The
// producers at the source must have been stopped. When ctx ends first, its error says what still moved, and nothing has changed. When the
// stop itself fails it stays decided: Remove goes on with it.
func (m *Mirror) Promote(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		switch {
		case t == nil:
			return hint(ErrUnknownTopic, m.whereElse(name))
		case m.client == nil:
			return errDetached
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
// records were written here since, it is refused with ErrWritten and the ranges. If the source has mirrored the topic from here since
// and has taken it over, what it mirrored stays, and the rest is the range that is refused. It returns when that is durable. Resuming a
// topic that is mirrored changes nothing.
func (m *Mirror) Resume(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		if t == nil {
			return hint(ErrUnknownTopic, m.whereElse(name))
		}
		return m.goOn(ctx, t, resuming)
	})
}

// Overwrite mirrors topics whatever stands here. WARNING: records are lost. Of a stopped topic it drops what was written here since the
// last mirrored position; of a topic that AddTopics refuses with ErrNoProof, all records of the refused partitions. Each range is
// reported as an event and counted.
func (m *Mirror) Overwrite(ctx context.Context, topics ...string) error {
	found, sourceErr := m.look(ctx, m.unknown(topics))
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		if t == nil && sourceErr != nil {
			return sourceErr
		}
		if t == nil {
			return m.add(ctx, name, found[name], overwriting)
		}
		return m.goOn(ctx, t, overwriting)
	})
}

// goOn makes paused topics go on, and begins a round of stopped ones.
func (m *Mirror) goOn(ctx context.Context, t *mirrorTopic, h how) error {
	switch {
	case t.wishedNow() != Stopped:
		_, err := m.want(ctx, t.name, Mirroring)
		return err
	case m.client == nil:
		return errDetached
	}
	return m.resume(ctx, t, h)
}

// Recover tries FAILED partitions of the topics again, also those where someone must decide first: calling it is the decision. With
// FailOnDivergence it allows the cut that the failure names, and no other.
func (m *Mirror) Recover(ctx context.Context, topics ...string) error {
	return m.each(ctx, topics, func(ctx context.Context, name string) error {
		t := m.topic(name)
		if t == nil {
			return hint(ErrUnknownTopic, m.whereElse(name))
		}
		for _, r := range t.partitions() {
			r.mu.Lock()
			if r.stored.text != "" { // FAILED, or just being tried again by itself
				r.stored.decide, r.stored.tries, r.realigned, r.told = false, 0, 0, true
				if !slices.Contains(r.allowed, r.stored.text) { // one may stand behind another: both are needed then
					r.allowed = append(r.allowed, r.stored.text)
				}
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

// command is a topic of the mirror that nobody else commands until its command is released.
func (m *Mirror) command(ctx context.Context, name string) (*mirrorTopic, error) {
	for {
		t := m.topic(name)
		if t == nil {
			return nil, hint(ErrUnknownTopic, m.whereElse(name))
		}
		if err := t.command.acquire(ctx); err != nil {
			return nil, hint(fmt.Errorf("nothing is stored, another command may be at work on the topic: %w", err), "try again")
		}
		if m.topic(name) == t {
			return t, nil
		}
		t.command.release() // its addition was taken back, or another one has its name by now
	}
}

// want makes a wish durable and has the partitions follow it.
func (m *Mirror) want(ctx context.Context, name string, w wish) (*mirrorTopic, error) {
	t, err := m.command(ctx, name)
	if err != nil {
		return nil, err
	}
	defer t.command.release()
	if t.undo != nil {
		if err := m.c.put(context.WithoutCancel(ctx), t.undo...); err != nil {
			return nil, fmt.Errorf("take back a round that was tried: %w", err)
		}
		t.undo = nil
		m.c.regate(name)
	}
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
		r.mu.Lock()
		r.told = true
		r.mu.Unlock()
		r.kick()
	}
	return t, nil
}

// Records is Partition.Records of one partition of the host: the mirror's records at the source's offsets. They begin at Partition.Bounds,
// which Describe shows.
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

// each runs a command for each topic, at the same time, and joins what goes wrong. None is a mistake: in a disaster a takeover of nothing
// must not pass for one of everything.
func (m *Mirror) each(ctx context.Context, topics []string, f func(context.Context, string) error) error {
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if len(topics) == 0 {
		return fmt.Errorf("mirror %s: no topic is named: name the topics; Describe and PlanRemove list those of the mirror", m.name)
	}
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
			if err := f(ctx, name); err != nil {
				errs[i] = m.failed(name, err)
			}
			return nil
		})
	}
	_ = g.Wait() // errors are collected by topic
	return errors.Join(errs...)
}

func (m *Mirror) newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(m.opts.backoffMin), backoff.WithMaxInterval(m.opts.backoffMax),
		backoff.WithMaxElapsedTime(0), backoff.WithRandomizationFactor(0.5))
}

// askAtOnce bounds the questions about single partitions that a mirror asks its source at the same time.
const askAtOnce = 16

func internalTopic(name string) bool { return strings.HasPrefix(name, "__") }
