package broker

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
)

// maxSessions bounds the memory that clients can take. Kafka: max.incremental.fetch.session.cache.slots.
const maxSessions = 1000

const (
	initialEpoch int32 = 0  // asks for a new session
	finalEpoch   int32 = -1 // asks for none, and ends the one it names
)

// sessions are the incremental fetch sessions (KIP-227).
type sessions struct {
	mu   sync.Mutex // guards what follows, and of a session what is said there
	byID map[int32]*session
	uses int64
}

// session is what a client fetches, fetch after fetch. A fetch without a session has one for itself, with id 0. While a fetch
// goes on it owns the session.
type session struct {
	id    int32
	node  int32
	byID  bool // topics go by id
	wants []*want
	found []found // of each want, by the fetch that goes on
	index map[wantKey]*want
	first int           // where the next fetch begins
	wake  chan struct{} // told of every change of a partition

	// Guarded by sessions.mu.
	epoch int32 // that the next request must have
	busy  bool
	gone  bool
	used  int64
}

func newSessions() *sessions { return &sessions{byID: make(map[int32]*session)} }

// begin finds or makes the session of a request and brings it up to date. full says that the client must be told everything.
// Who gets a session must call end.
func (s *sessions) begin(node int32, req *kmsg.FetchRequest) (_ *session, full bool, code int16) {
	if req.Version < 7 {
		return newSession(node, req), true, noError
	}
	if req.SessionEpoch == initialEpoch || req.SessionEpoch == finalEpoch {
		s.drop(func(old *session) bool { return old.id == req.SessionID && old.node == node })
		n := newSession(node, req)
		if req.SessionEpoch == initialEpoch && len(n.wants) > 0 {
			s.add(n)
		}
		return n, true, noError
	}
	return s.next(node, req)
}

// add gives a new session an id. If there are too many, the one that rested longest makes room.
func (s *sessions) add(n *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) >= maxSessions {
		var oldest *session
		for _, o := range s.byID {
			if !o.busy && (oldest == nil || o.used < oldest.used) {
				oldest = o
			}
		}
		if oldest == nil {
			return // no room: the client goes on without a session
		}
		delete(s.byID, oldest.id)
		oldest.close()
	}
	for n.id == 0 || s.byID[n.id] != nil {
		n.id = rand.Int32()
	}
	s.uses++
	n.epoch, n.busy, n.used = 1, true, s.uses
	s.byID[n.id] = n
}

// next goes on with a session.
func (s *sessions) next(node int32, req *kmsg.FetchRequest) (*session, bool, int16) {
	s.mu.Lock()
	n := s.byID[req.SessionID]
	code := noError
	switch {
	case n == nil || n.node != node:
		code = fetchSessionIDNotFound
	case n.busy || n.epoch != req.SessionEpoch:
		code = invalidFetchSessionEpoch
	case n.byID != (req.Version >= 13):
		code = fetchSessionTopicIDError
	default:
		if n.epoch++; n.epoch <= 0 {
			n.epoch = 1
		}
		s.uses++
		n.busy, n.used = true, s.uses
	}
	s.mu.Unlock()
	if code != noError {
		return nil, false, code
	}
	n.update(req)
	n.forget(req)
	return n, false, noError
}

// end gives the session back.
func (s *sessions) end(n *session) {
	s.mu.Lock()
	n.busy = false
	over := n.id == 0 || n.gone || len(n.wants) == 0
	if over {
		delete(s.byID, n.id)
	}
	s.mu.Unlock()
	if over {
		n.close()
	}
}

// drop ends sessions. One that is busy ends when its fetch does.
func (s *sessions) drop(which func(*session) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.byID {
		if !which(n) {
			continue
		}
		delete(s.byID, id)
		if n.gone = true; !n.busy {
			n.close()
		}
	}
}

func newSession(node int32, req *kmsg.FetchRequest) *session {
	n := &session{node: node, byID: req.Version >= 13, wake: make(chan struct{}, 1), index: make(map[wantKey]*want)}
	n.update(req)
	return n
}

// close ends what the session watches.
func (n *session) close() {
	for _, w := range n.wants {
		if w.stop != nil {
			w.stop()
		}
	}
}

// update takes what a request asks for anew.
func (n *session) update(req *kmsg.FetchRequest) {
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			key := wantKey{topic: t.Topic, id: mirror.TopicID(t.TopicID), partition: p.Partition}
			w := n.index[key]
			if w == nil {
				w = &want{key: key}
				n.index[key] = w
				n.wants = append(n.wants, w)
			}
			w.offset, w.maxBytes, w.epoch, w.lastEpoch = p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch, p.LastFetchedEpoch
		}
	}
}

// forget drops what the client no longer wants.
func (n *session) forget(req *kmsg.FetchRequest) {
	dropped := false
	for i := range req.ForgottenTopics {
		t := &req.ForgottenTopics[i]
		for _, p := range t.Partitions {
			key := wantKey{topic: t.Topic, id: mirror.TopicID(t.TopicID), partition: p}
			if w := n.index[key]; w != nil {
				if w.stop != nil {
					w.stop()
				}
				delete(n.index, key)
				dropped = true
			}
		}
	}
	if dropped {
		n.wants = slices.DeleteFunc(n.wants, func(w *want) bool { return n.index[w.key] != w })
		n.first = 0
	}
}
