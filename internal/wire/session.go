package wire

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// FetchPartition is where to read one partition from.
type FetchPartition struct {
	Topic              string
	ID                 [16]byte // zero: not known; the whole session then goes by names
	Partition          int32
	CurrentLeaderEpoch int32 // that metadata gave, so that the broker can fence us; -1: not checked
	Offset             int64
	LastFetchedEpoch   int32 // of the batch before Offset, so that the broker sees divergence; -1: unknown
	MaxBytes           int32
	Tag                any // comes back with what was fetched from this position; may be a generation
}

// Limits are those of one fetch.
type Limits struct {
	MinBytes, MaxBytes int32
	MaxWait            time.Duration // how long the broker may wait for MinBytes
}

// EpochEnd is a leader epoch and the offset after its last record.
type EpochEnd struct {
	Epoch int32
	End   int64
}

// Leader names a broker and the epoch in which it leads; both -1: not known.
type Leader struct{ ID, Epoch int32 }

// Fetched is the answer for one partition.
type Fetched struct {
	Tag       any
	Topic     string
	Partition int32
	Offset    int64 // that was asked for

	// Err concerns this partition only: an error code, or ErrProtocol for an answer that makes no sense. Nothing else of
	// Fetched counts then, but Leader.
	Err error

	HighWatermark, LastStable, LogStart int64

	// Diverging, if not nil, says that the source's log parts from ours: the greatest epoch it has at or below
	// LastFetchedEpoch, and its end there. No records come with it.
	Diverging *EpochEnd
	// Leader is who leads now, with errors that say that this broker does not. Its address is known to the Client.
	Leader Leader
	// Records are whole batches, the last one perhaps cut. They live until the Response is released.
	Records []byte
}

// Response is the answer to one fetch. It has news of the partitions only: one that is missing has none. The one who got it
// holds it; each Retain and the receipt itself need a Release, after which its Records may be overwritten.
type Response struct {
	Throttle   time.Duration // the next Send waits that long
	Partitions []Fetched

	holders atomic.Int32
	buf     *buffer
	unbook  func()
}

// Retain adds a holder.
func (r *Response) Retain() { r.holders.Add(1) }

// Release takes a holder away; with the last one the memory goes back.
func (r *Response) Release() {
	switch n := r.holders.Add(-1); {
	case n == 0:
		r.buf.release()
		r.unbook()
	case n < 0:
		panic("wire: a Response was released once too often")
	}
}

type key struct {
	topic     string
	partition int32
}

type idKey struct {
	id        [16]byte
	partition int32
}

// part is a partition of a session: what is wanted, and what the broker was asked for last.
type part struct {
	want, asked FetchPartition
	known       bool   // the broker's session has it, as asked
	gone        bool   // to be forgotten with the next request
	queued      bool   // is in Session.changed
	served      uint64 // number of the last answer that had data for it
	seen        uint64 // number of the last answer that it stood in
	slot        int    // where in that answer
}

// Session fetches from one broker over a connection of its own, one request in flight. It tells the broker only what has
// changed since the last request (KIP-227), so that idle partitions cost nothing; without the broker's help (it keeps a
// limited number of sessions) each request names all partitions, those that waited longest first.
//
// A broker repeats what it said of a partition, data or error, at once in each answer until the partition is set anew or
// forgotten.
//
// All methods but Close belong to one goroutine. After an error of Send or Receive the session is good for the next Send,
// which connects again if need be; the position of every partition is then as Set left it.
type Session struct {
	client *Client
	broker int32
	life   context.Context
	end    context.CancelCauseFunc

	conn   *conn
	flying bool // a request is out
	wait   time.Duration
	expect int // bytes that the answer should not exceed

	parts   map[key]*part
	byID    map[idKey]*part // as asked, where the session goes by ids
	changed []*part

	full    bool  // the next request names everything
	id      int32 // the broker's number for the session, 0: none
	epoch   int32 // of the next request
	version int16 // of Fetch, the same for the life of the broker's session
	answers uint64
	req     kmsg.FetchRequest
	resp    kmsg.FetchResponse
}

// Session makes a session with a broker that metadata has named. Nothing is dialled before the first Send.
func (c *Client) Session(broker int32) *Session {
	s := &Session{client: c, broker: broker, full: true, parts: make(map[key]*part), byID: make(map[idKey]*part)}
	s.life, s.end = context.WithCancelCause(c.life)
	return s
}

// Set adds a partition, or moves it. One that has answered with data and is not set again is asked for the same data again.
// It holds from the next Send on; what is in flight still carries the Tag it was asked with.
func (s *Session) Set(p FetchPartition) {
	k := key{p.Topic, p.Partition}
	q := s.parts[k]
	if q == nil {
		q = new(part)
		s.parts[k] = q
	}
	if q.gone && q.known {
		s.full = true // renewed: what the broker told meanwhile was dropped, and it would not tell it again
	}
	q.want, q.gone = p, false
	s.queue(q)
}

// Forget takes a partition out; from now on nothing comes back for it. Forgetting what is not there changes nothing.
func (s *Session) Forget(topic string, partition int32) {
	if q := s.parts[key{topic, partition}]; q != nil {
		q.gone = true
		s.queue(q)
	}
}

func (s *Session) queue(q *part) {
	if !q.queued {
		q.queued = true
		s.changed = append(s.changed, q)
	}
}

// errOrder means a bug of the caller's.
var errOrder = errors.New("wire: Send and Receive must take turns")

// Send writes the next request, after the time for which the broker has throttled us. ErrVersion if the broker is too old.
func (s *Session) Send(ctx context.Context, lim Limits) error {
	if s.flying {
		return errOrder
	}
	ctx, done, err := s.client.begin(ctx, s.life)
	if err != nil {
		return err
	}
	defer done()
	if s.conn == nil {
		to, err := s.client.broker(s.broker)
		if err != nil {
			return err
		}
		if s.conn, err = s.client.connect(ctx, s.life, to); err != nil {
			return err
		}
	}
	if err := s.prepare(lim); err != nil {
		s.drop()
		return err
	}
	if err := s.conn.send(ctx, &s.req); err != nil {
		s.drop()
		return err
	}
	s.flying = true
	return nil
}

// Receive waits for the answer to the last Send. An answer that only says that the broker has lost the session comes as an
// empty Response: the next Send renews it.
func (s *Session) Receive(ctx context.Context) (*Response, error) {
	if !s.flying {
		return nil, errOrder
	}
	s.flying = false
	ctx, done, err := s.client.begin(ctx, s.life)
	if err != nil {
		s.drop()
		return nil, err
	}
	defer done()
	var r *Response
	err = s.conn.guard(ctx, &s.req, func() error {
		r, err = s.receive(ctx)
		return err
	})
	if err != nil {
		if r != nil { // the context ended in the last moment
			r.Release()
		}
		s.drop()
		return nil, err
	}
	return r, nil
}

func (s *Session) receive(ctx context.Context) (*Response, error) {
	n, err := s.conn.readHead(s.wait, maxFrame)
	if err != nil {
		return nil, err
	}
	unbook := func() {}
	if reserve := s.client.cfg.Reserve; reserve != nil {
		if unbook, err = reserve(ctx, min(n, s.expect)); err != nil {
			return nil, err
		}
	}
	buf, err := s.conn.readBody(n, s.expect)
	if err != nil {
		unbook()
		return nil, err
	}
	r := &Response{buf: buf, unbook: unbook}
	r.holders.Store(1)
	if err := s.accept(r, buf.b[:n]); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// drop gives the connection up, and with it the broker's session.
func (s *Session) drop() {
	s.conn.close()
	s.conn, s.full = nil, true
}

// advance takes the broker's word on the session after an answer.
func (s *Session) advance(code int16, id int32) error {
	switch err := kafka.Error(code); {
	case code == 0:
	case err == kafka.FetchSessionIDNotFound, err == kafka.InvalidFetchSessionEpoch, err == kafka.FetchSessionTopicIDError:
		if s.full {
			return err // to a request that depends on no session: renewing it would go on for ever
		}
		if s.full = true; err == kafka.FetchSessionIDNotFound {
			s.id = 0
		}
		return nil
	default:
		return CodeError(code)
	}
	switch {
	case id < 0, !s.full && id != 0 && id != s.id:
		return protocolError("session id %d, expected %d", id, s.id)
	case id == 0: // it has no room, or has closed it
		s.id, s.full = 0, true
	case s.full || s.epoch == math.MaxInt32:
		s.id, s.epoch, s.full = id, 1, false
	default:
		s.epoch++
	}
	return nil
}

// Close cuts the connection at once: a Send or Receive in progress returns ErrClosed. Closing twice is harmless; the Client's
// Close closes its sessions too.
func (s *Session) Close() { s.end(ErrClosed) }
