package mirror

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrUnknownPartition is returned for a topic or partition that the host does not have.
	ErrUnknownPartition = errors.New("unknown topic or partition")
	// ErrUnknownTopic is returned for a topic that the source does not have, or that is not in this mirror.
	ErrUnknownTopic = errors.New("unknown topic")
	// ErrInternalTopic is returned by AddTopics for a topic that Kafka or the library keeps for itself: one that the source says is
	// internal, or whose name begins with __.
	ErrInternalTopic = errors.New("internal topic")
	// ErrTopicOwned is returned by AddTopics, Resume and Overwrite for a topic that another mirror mirrors.
	ErrTopicOwned = errors.New("topic belongs to another mirror")
	// ErrSourceUnreachable is returned by AddTopics for new topics, and by Resume and Overwrite for new and stopped ones, while no broker of
	// the source answers; nothing is stored.
	ErrSourceUnreachable = errors.New("source unreachable")
	// ErrSourceTooOld is returned by AddTopics for a source older than Kafka 2.1: it can't tell by leader epochs what it has lost.
	ErrSourceTooOld = errors.New("source is older than Kafka 2.1")
	// ErrWrongCluster is returned, or keeps every partition FAILED, when another cluster answers at the source's address, or this host.
	ErrWrongCluster = errors.New("wrong cluster at the source's address")
	// ErrStopped is returned for a topic that this mirror has stopped.
	ErrStopped = errors.New("topic is stopped")
	// ErrPaused is returned by WaitCaughtUp and Promote for a topic that is paused.
	ErrPaused = errors.New("topic is paused")
	// ErrFailed is returned by WaitCaughtUp, Promote and Remove for a partition that is FAILED.
	ErrFailed = errors.New("partition has failed")
	// ErrNoProof is returned by AddTopics and Resume for a topic that has records here of which nothing proves that they are the source's.
	ErrNoProof = errors.New("records here are not proven to be the source's")
	// ErrWritten is returned by Resume for a stopped topic in which records were written since: they would be cut.
	ErrWritten = errors.New("records were written here since the mirror was stopped")
	// ErrPeerActive is returned for a topic that the source itself mirrors from here, directly or through others: neither side
	// could go on.
	ErrPeerActive = errors.New("the source mirrors this topic from here")
	// ErrPeerUnclear is returned where the source refuses to say what it has mirrored from here, or says what can't be. That is never
	// taken for "nothing": it would cut what was mirrored. Nothing was changed.
	ErrPeerUnclear = errors.New("the source does not say clearly what it has mirrored from here")
	// ErrUnknownMirror is returned for a mirror that the coordinator does not have, or not without a source.
	ErrUnknownMirror = errors.New("unknown mirror")
	// ErrDetached is returned by what needs the source of a mirror that was found in the state without one.
	ErrDetached = errors.New("mirror has no source attached")
	// ErrStateDamaged is returned by Open, and by what must be written, when the StateTopic does not hold what was written to it. Nothing is
	// changed then. WARNING: a host without its state has no mirrors and no positions, and all its topics are writable.
	ErrStateDamaged = errors.New("the state is damaged")
	// ErrFenced is returned by everything once a state write has found out that another Coordinator was opened on the same host.
	ErrFenced = errors.New("another coordinator has been opened on this host, and only the newest mirrors: close this one")
)

var errNotStarted = errors.New("mirror is not started")

// errDetached says what to do about it.
var errDetached = hint(ErrDetached, "attach it with Coordinator.Mirror")

// errNoEpochLeft means that the greatest leader epoch that the protocol can say is in use: the topic must be copied to a new one.
var errNoEpochLeft = errors.New("there is no greater leader epoch left")

// TopicError is what one topic of a command answers. Commands join them, so that errors.Is and errors.As find each.
type TopicError struct {
	Mirror string
	Topic  string
	Next   string // what to do about it
	Err    error
}

func (e *TopicError) Error() string {
	s := fmt.Sprintf("mirror %s, topic %s: %v", e.Mirror, e.Topic, e.Err)
	if e.Next != "" {
		s += "; " + e.Next
	}
	return s
}

// Unwrap gives the cause.
func (e *TopicError) Unwrap() error { return e.Err }

// Range is the offsets [From, To) of one partition.
type Range struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}

func (r Range) String() string {
	return fmt.Sprintf("partition %d [%d, %d)", r.Partition, r.From, r.To)
}

// RangeError carries the ranges that a refusal is about.
type RangeError struct {
	Ranges []Range
	Err    error
}

func (e *RangeError) Error() string {
	list := make([]string, len(e.Ranges))
	for i, r := range e.Ranges {
		list[i] = r.String()
	}
	return fmt.Sprintf("%v: %s", e.Err, strings.Join(list, ", "))
}

// Unwrap gives the cause.
func (e *RangeError) Unwrap() error { return e.Err }

// failure is why a partition is FAILED: by itself it is retried for ever, decide says that someone must decide first.
type failure struct {
	err    error
	decide bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// undecided makes a failure that is not retried.
func undecided(err error) error { return &failure{err: err, decide: true} }

// mustDecide says that it is such a one.
func mustDecide(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.decide
}

// retried makes a failure that is retried with back-off.
func retried(err error) error { return &failure{err: err} }

// hinted carries what to do next up to the TopicError, which says it.
type hinted struct {
	err  error
	next string
}

func (h *hinted) Error() string { return h.err.Error() }

func (h *hinted) Unwrap() error { return h.err }

// advised is an error whose text says what to do next, for those that end in no TopicError.
func advised(err error) error {
	if h, ok := errors.AsType[*hinted](err); ok {
		return fmt.Errorf("%w; %s", err, h.next)
	}
	return err
}

func hint(err error, next string) error { return &hinted{err, next} }
