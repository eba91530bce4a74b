package mirror

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// ReadOnlyError is returned by the write gate for a topic that a mirror owns (READ_ONLY_TOPIC in KIP-1279).
type ReadOnlyError struct {
	Topic  string
	Mirror string
}

func (e *ReadOnlyError) Error() string {
	return fmt.Sprintf("topic %s is read-only: mirror %s owns it until Remove has taken it over", e.Topic, e.Mirror)
}

// gate says who may write. It is read without a lock on every append; whoever changes it replaces what the readers look at.
type gate struct {
	changing sync.Mutex
	shut     atomic.Pointer[error] // why nobody may write: closed, or fenced
	topics   sync.Map              // name -> *gateTopic
}

// gateTopic is a topic of a mirror. A topic that is in no mirror has none, and is open.
type gateTopic struct {
	err    error
	open   []atomic.Bool // by partition: taken over, or kept from before
	closed atomic.Int32  // how many are not; once none is, those are open too that the host adds to what it has taken over
}

func newGateTopic(err error, partitions int32) *gateTopic {
	t := &gateTopic{err: err, open: make([]atomic.Bool, partitions)}
	t.closed.Store(max(partitions, 1)) // with no partition there is none that could open the others
	return t
}

func (t *gateTopic) set(partition int32, open bool) {
	if int(partition) >= len(t.open) || t.open[partition].Swap(open) == open {
		return
	}
	if open {
		t.closed.Add(-1)
	} else {
		t.closed.Add(1)
	}
}

func (g *gate) check(topic string, partition int32) error {
	if err := g.shut.Load(); err != nil {
		return *err
	}
	t := g.topic(topic)
	switch {
	case t == nil:
		return nil
	case partition >= 0 && int(partition) < len(t.open) && t.open[partition].Load():
		return nil
	case int(partition) >= len(t.open) && t.closed.Load() == 0:
		return nil
	}
	return t.err
}

func (g *gate) topic(name string) *gateTopic {
	t, _ := g.topics.Load(name)
	found, _ := t.(*gateTopic)
	return found
}

// closeTopic closes all partitions of a topic for everyone but the mirror.
func (g *gate) closeTopic(topic, mirror string, partitions int32) {
	g.replace(topic, newGateTopic(&ReadOnlyError{Topic: topic, Mirror: mirror}, partitions))
}

// openWhere closes a topic for everyone but the mirror, except where open says otherwise: at once, so that no writer is refused between.
// open is asked while nobody else changes the gate.
func (g *gate) openWhere(topic, mirror string, partitions int32, open func(partition int32) bool) {
	t := newGateTopic(&ReadOnlyError{Topic: topic, Mirror: mirror}, partitions)
	g.changing.Lock()
	defer g.changing.Unlock()
	for i := range partitions {
		t.set(i, open(i))
	}
	g.topics.Store(topic, t)
}

// grow keeps what is open and adds closed partitions.
func (g *gate) grow(topic, mirror string, partitions int32) {
	t := newGateTopic(&ReadOnlyError{Topic: topic, Mirror: mirror}, partitions)
	g.changing.Lock()
	defer g.changing.Unlock()
	if old := g.topic(topic); old != nil {
		for i := range old.open {
			t.set(int32(i), old.open[i].Load())
		}
	}
	g.topics.Store(topic, t)
}

// release makes the topic an ordinary one: no mirror has ever had it, or an addition is taken back.
func (g *gate) release(topic string) {
	g.changing.Lock()
	defer g.changing.Unlock()
	g.topics.Delete(topic)
}

// setOpen opens or closes one partition of a mirror topic.
func (g *gate) setOpen(topic string, partition int32, open bool) {
	g.changing.Lock()
	defer g.changing.Unlock()
	if t := g.topic(topic); t != nil {
		t.set(partition, open)
	}
}

// forbid closes a topic that no local writer may ever write.
func (g *gate) forbid(topic string, err error) { g.replace(topic, newGateTopic(err, 0)) }

func (g *gate) replace(topic string, t *gateTopic) {
	g.changing.Lock()
	defer g.changing.Unlock()
	g.topics.Store(topic, t)
}

// close shuts the gate for good; the first reason stays.
func (g *gate) close(err error) { g.shut.CompareAndSwap(nil, &err) }
