package mirror

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// EventKind says what happened.
type EventKind string

const (
	// DataLoss says that records [From, To) are not, or no longer, in the mirror though they were at the source or here.
	DataLoss EventKind = "DATA_LOSS"
	// Truncated says that [From, To) was cut here because it is not the source's. Where it held no records, only markers (such as a
	// takeover's own), the reason says so.
	Truncated EventKind = "TRUNCATED"
	// StateChanged says that the partition went from one state to another.
	StateChanged EventKind = "STATE_CHANGED"
	// HealthChanged says that the partition became STALLED or UNREACHABLE, or recovered, also by being paused or stopped.
	HealthChanged EventKind = "HEALTH_CHANGED"
)

// Event is what OnEvent gets, by value.
type Event struct {
	Kind      EventKind
	Time      time.Time
	Mirror    string
	Topic     string
	Partition int32
	From, To  int64  // a range of offsets; 0, 0 where there is none
	Before    string // the state or health before
	After     string // and after
	Reason    string
	Err       error
	Dropped   int64 // events dropped before this one because the callee was slow
}

// String is a sentence.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s mirror %s %s-%d", e.Kind, e.Mirror, e.Topic, e.Partition)
	if e.From != e.To {
		fmt.Fprintf(&b, " [%d, %d)", e.From, e.To)
	}
	if e.After != "" {
		fmt.Fprintf(&b, " %s -> %s", e.Before, e.After)
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, ": %s", e.Reason)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Dropped > 0 {
		fmt.Fprintf(&b, " (%d events before this one were dropped)", e.Dropped)
	}
	return b.String()
}

const eventBacklog = 1024

// eventQueue hands events to the host's function, one at a time, without ever making a sender wait.
type eventQueue struct {
	mu      sync.Mutex
	queue   []Event
	dropped int64
	wake    chan struct{}
}

func newEventQueue() *eventQueue { return &eventQueue{wake: make(chan struct{}, 1)} }

func (q *eventQueue) send(e Event) {
	e.Time = time.Now()
	q.mu.Lock()
	if len(q.queue) == eventBacklog {
		q.queue = q.queue[1:]
		q.dropped++
	}
	q.queue = append(q.queue, e)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) take() (Event, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return Event{}, false
	}
	e := q.queue[0]
	q.queue = q.queue[1:]
	e.Dropped, q.dropped = q.dropped, 0
	return e, true
}

// run delivers until done is closed, and then what is left.
func (q *eventQueue) run(done <-chan struct{}, deliver func(Event)) {
	for ended := false; ; {
		for e, ok := q.take(); ok; e, ok = q.take() {
			deliver(e)
		}
		if ended {
			return
		}
		select {
		case <-q.wake:
		case <-done:
			ended = true
		}
	}
}
