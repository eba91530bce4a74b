// Package memlog is the in-memory mirror.Host, for tests, examples and simulation.
//
//	host := memlog.New()
//	m, err := mirror.New(ctx, "dr", source, host)
//
// It keeps the whole contract of mirror.Host and mirror.Log, with two additions that tests need: Crash answers what a
// power cut would leave, and Fail makes any call fail or wait.
package memlog

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/clustermirror/mirror"
)

// Host holds topics in memory. All its methods may be called concurrently.
type Host struct {
	clusterID string
	before    atomic.Pointer[func(context.Context, Op, string, int32) error]

	mu     sync.Mutex // guards what follows
	rng    *rand.Rand // nil: crypto/rand
	topics map[string]*topic
	down   bool // crashed
}

type topic struct {
	id      mirror.TopicID
	configs map[string]string
	logs    []*log
}

// Option is an option of New.
type Option func(*Host)

// ClusterID sets the host's cluster id; by default it is random.
func ClusterID(id string) Option { return func(h *Host) { h.clusterID = id } }

// Rand makes the host draw cluster and topic ids from rng, so that a run can be repeated. The host uses rng under its own
// lock: nobody else may use it at the same time.
func Rand(rng *rand.Rand) Option { return func(h *Host) { h.rng = rng } }

// New makes an empty host.
func New(opts ...Option) *Host {
	h := &Host{topics: make(map[string]*topic)}
	for _, opt := range opts {
		opt(h)
	}
	if h.clusterID == "" {
		id := h.uuid()
		h.clusterID = base64.RawURLEncoding.EncodeToString(id[:])
	}
	return h
}

// uuid makes a random (version 4) UUID, as Kafka's ids are.
func (h *Host) uuid() (id [16]byte) {
	if h.rng == nil {
		crand.Read(id[:])
	} else {
		for i := range id {
			id[i] = byte(h.rng.Uint32())
		}
	}
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// Op names an operation for Fail.
type Op string

const (
	OpTopics       Op = "topics"
	OpEnsureTopic  Op = "ensure topic"
	OpOpenLog      Op = "open log"
	OpAppend       Op = "append"
	OpRead         Op = "read"
	OpSync         Op = "sync"
	OpTruncateTo   Op = "truncate to"
	OpAdvanceStart Op = "advance start"
	OpReset        Op = "reset"
)

// Fail has before called ahead of each operation, without a lock held; nil ends that. It may wait, and an error that it
// returns is the operation's answer: the operation does nothing. Append calls it once for each batch, before anything is
// stored; if it fails for the third batch the first two are stored, as on a disk that fills up. The topic is empty for
// OpTopics, the partition -1 for what concerns no single log. Bounds and Close cannot fail.
func (h *Host) Fail(before func(ctx context.Context, op Op, topic string, partition int32) error) {
	if before == nil {
		h.before.Store(nil)
		return
	}
	h.before.Store(&before)
}

// begin is what every operation does first.
func (h *Host) begin(ctx context.Context, op Op, topic string, partition int32) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if before := h.before.Load(); before != nil {
		return (*before)(ctx, op, topic, partition)
	}
	return nil
}

// ClusterID implements mirror.Host.
func (h *Host) ClusterID() string { return h.clusterID }

// Topics implements mirror.Host. The answer is sorted by name.
func (h *Host) Topics(ctx context.Context) ([]mirror.Topic, error) {
	if err := h.begin(ctx, OpTopics, "", -1); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return nil, mirror.ErrClosed
	}
	list := make([]mirror.Topic, 0, len(h.topics))
	for name, t := range h.topics {
		list = append(list, mirror.Topic{Name: name, ID: t.id, Partitions: int32(len(t.logs)), Configs: maps.Clone(t.configs)})
	}
	slices.SortFunc(list, func(a, b mirror.Topic) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// EnsureTopic implements mirror.Host. Configs are kept as they were when the topic was created.
func (h *Host) EnsureTopic(ctx context.Context, want mirror.Topic) error {
	if err := h.begin(ctx, OpEnsureTopic, want.Name, -1); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return mirror.ErrClosed
	}
	t := h.topics[want.Name]
	switch {
	case t == nil && (want.Name == "" || want.Partitions < 1):
		return fmt.Errorf("topic %q with %d partitions cannot be created", want.Name, want.Partitions)
	case t == nil:
		t = &topic{id: want.ID, configs: maps.Clone(want.Configs)}
		if t.id == (mirror.TopicID{}) {
			t.id = h.uuid()
		}
		h.topics[want.Name] = t
	case want.ID != (mirror.TopicID{}) && want.ID != t.id:
		return fmt.Errorf("topic %s has id %s, not %s: %w", want.Name, t.id, want.ID, mirror.ErrTopicConflict)
	}
	for int32(len(t.logs)) < want.Partitions {
		t.logs = append(t.logs, newLog(&view{}))
	}
	return nil
}

// DeleteTopic drops a topic with its data, durably. Handles of its logs answer mirror.ErrClosed afterwards.
// mirror.ErrUnknownPartition if there is none.
func (h *Host) DeleteTopic(_ context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[name]
	switch {
	case h.down:
		return mirror.ErrClosed
	case t == nil:
		return fmt.Errorf("delete topic %s: %w", name, mirror.ErrUnknownPartition)
	}
	for _, l := range t.logs {
		l.end()
	}
	delete(h.topics, name)
	return nil
}

// OpenLog implements mirror.Host. All handles of a partition speak to the same log.
func (h *Host) OpenLog(ctx context.Context, name string, partition int32) (mirror.Log, error) {
	if err := h.begin(ctx, OpOpenLog, name, partition); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return nil, mirror.ErrClosed
	}
	t := h.topics[name]
	if t == nil || partition < 0 || int(partition) >= len(t.logs) {
		return nil, fmt.Errorf("open %s-%d: %w", name, partition, mirror.ErrUnknownPartition)
	}
	return &handle{host: h, log: t.logs[partition], topic: name, id: t.id, partition: partition}, nil
}

// Crash cuts the power and answers the host that comes up afterwards, with the same cluster id. For each log it holds what
// was synced, and of what was appended since as many whole batches as rng decides, from none to all. Topics, cuts and
// resets are durable when they return; an AdvanceStart that no Sync followed may be undone, as rng decides. The host that
// crashed, and every handle of it, answers mirror.ErrClosed from now on: a call that is under way either counts as before
// the crash, or fails. Fail is not carried over.
func (h *Host) Crash(rng *rand.Rand) *Host {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = true
	next := &Host{clusterID: h.clusterID, rng: h.rng, topics: make(map[string]*topic, len(h.topics))}
	for _, name := range slices.Sorted(maps.Keys(h.topics)) { // a set order, so that rng decides the same again
		t := h.topics[name]
		logs := make([]*log, len(t.logs))
		for i, l := range t.logs {
			now, synced := l.end()
			logs[i] = newLog(crashed(now, synced, rng))
		}
		next.topics[name] = &topic{id: t.id, configs: t.configs, logs: logs}
	}
	return next
}
