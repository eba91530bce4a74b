package mirror

import (
	"context"
	"fmt"

	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/wire"
)

// mirrorTopic is a topic of a mirror; its fields are guarded by the mirror's mutex but for the first five.
type mirrorTopic struct {
	m    *Mirror
	name string
	id   TopicID

	command lock              // one command on a topic at a time
	undo    []statelog.Record // what takes back a round that was tried; the gate stays shut until it is persisted. Guarded by command

	wished    wish
	upstreams []string // clusters that the source mirrors the topic from, and so on up
	replicas  []*replica
	confirmed bool // the source says that its topic has this id
	trying    bool // a round is being tried: nothing is done until it is certain
	missing   int  // refreshes in a row that did not find it at the source
	looked    int  // the last of the mirror's looks after which its partitions are known here
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

// wish is what is wished for the topic, and whether anything can be done about it now. Nothing is about one that is not in the mirror any
// more: its addition was taken back, or another one has its name.
func (t *mirrorTopic) wish() (w wish, able bool) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	able = t.m.topics[t.name] == t && !t.trying && (t.m.started && t.m.client != nil || t.wished == Stopped)
	return t.wished, able
}

func (t *mirrorTopic) wishedNow() wish {
	w, _ := t.wish()
	return w
}

func (t *mirrorTopic) partitions() []*replica {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return append([]*replica(nil), t.replicas...)
}

// partition is nil if the mirror has no such one.
func (t *mirrorTopic) partition(num int32) *replica {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	if num < 0 || int(num) >= len(t.replicas) {
		return nil
	}
	return t.replicas[num]
}

// awaitStop waits until every partition is STOPPED; a FAILED one ends it.
func (t *mirrorTopic) awaitStop(ctx context.Context) error {
	for _, r := range t.partitions() {
		for {
			changed := t.m.changed.next()
			r.mu.Lock()
			now, busy := r.stored, r.busy
			r.mu.Unlock()
			if now.state == Stopped && !busy {
				break
			}
			if w := t.wishedNow(); w != Stopped {
				return hint(fmt.Errorf("another command has asked for %s meanwhile", w), "that is what will be; Remove it again to stop it")
			}
			if now.state == Failed && !busy {
				return hint(fmt.Errorf("partition %d: %w in %s: %s", r.num, ErrFailed, now.before, now.text), "Remove goes on with it once the cause is mended")
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return hint(fmt.Errorf("partition %d is %s: %w", r.num, now.state, ctx.Err()), "it goes on by itself; Remove waits for it")
			}
		}
	}
	return nil
}

func (m *Mirror) topic(name string) *mirrorTopic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topics[name]
}

// all are the mirror's topics by name; the named ones, if any are named.
func (m *Mirror) all(names ...string) (list []*mirrorTopic, err error) {
	for _, name := range names {
		if m.topic(name) == nil {
			return nil, &TopicError{Mirror: m.name, Topic: name, Err: ErrUnknownTopic, Next: m.whereElse(name)}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(names) == 0 {
		names = sortedKeys(m.topics)
	}
	for _, name := range names {
		if t := m.topics[name]; t != nil {
			list = append(list, t)
		}
	}
	return list, nil
}

// whereElse says what to do about a topic that is not in this mirror.
func (m *Mirror) whereElse(name string) string {
	if owner := m.c.ownerOf(name); owner != nil {
		return fmt.Sprintf("it is in mirror %s, not in this one", owner.m.name)
	}
	return "it is not in this mirror: AddTopics first"
}

// unknown are those of the topics that the mirror does not have.
func (m *Mirror) unknown(topics []string) (names []string) {
	for _, name := range topics {
		if m.topic(name) == nil {
			names = append(names, name)
		}
	}
	return names
}

func (m *Mirror) mustAll() []*mirrorTopic {
	list, _ := m.all() // fails for names only
	return list
}

// over says that the mirror has stopped the topic, in all partitions.
func (t *mirrorTopic) over() bool {
	for _, r := range t.partitions() {
		r.mu.Lock()
		s := r.stored.state
		r.mu.Unlock()
		if s != Stopped {
			return false
		}
	}
	return t.wishedNow() == Stopped
}

// lastEpoch tells which of two mirrors that have stopped a topic did so later: epochs of takeovers only grow.
func (t *mirrorTopic) lastEpoch() (greatest int32) {
	for _, r := range t.partitions() {
		r.mu.Lock()
		greatest = max(greatest, r.round.Epoch)
		r.mu.Unlock()
	}
	return greatest
}

// led takes who leads the partitions of a topic that nothing is fetched of.
func (t *mirrorTopic) led(meta wire.TopicMeta) {
	for _, r := range t.partitions() {
		if int(r.num) < len(meta.Partitions) {
			p := meta.Partitions[r.num]
			r.mu.Lock()
			r.leader, r.leaderEpoch = p.Leader, p.LeaderEpoch
			r.mu.Unlock()
		}
	}
}

// ownerOf is the topic in the mirror that has it: one that mirrors it goes before one that has stopped, and of those the later one. Nil
// if none has.
func (c *Coordinator) ownerOf(topic string) (owner *mirrorTopic) {
	for _, m := range c.list() {
		if t := m.topic(topic); t != nil && (owner == nil || !t.over() || owner.over() && t.lastEpoch() > owner.lastEpoch()) {
			owner = t
		}
	}
	return owner
}

// claim makes one AddTopics of a name wait for another, whichever mirror they come from.
func (c *Coordinator) claim(ctx context.Context, name string) (release func(), err error) {
	c.mu.Lock()
	l, ok := c.claims[name]
	if !ok {
		l = newLock()
		c.claims[name] = l
	}
	c.mu.Unlock()
	if err := l.acquire(ctx); err != nil {
		return nil, hint(fmt.Errorf("nothing is stored, another command may be at work on the topic: %w", err), "try again")
	}
	return l.release, nil
}
