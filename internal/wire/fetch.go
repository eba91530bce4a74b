package wire

import (
	"cmp"
	"context"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	fetchMost   = 18 // the newest version that is understood here
	fetchNamed  = 12 // the last one that goes by topic names
	fetchEpochs = 12 // the first one that carries LastFetchedEpoch (Kafka 2.7)

	finalEpoch = -1 // with session id 0: no session is wanted

	// What an answer may hold besides records: for itself, and for each partition.
	answerOverhead    = 4 << 10
	partitionOverhead = 256
)

// prepare fills in the next request.
func (s *Session) prepare(lim Limits) error {
	if !s.full && slices.ContainsFunc(s.changed, s.breaks) {
		s.full = true
	}
	if s.full {
		if err := s.chooseVersion(); err != nil {
			return err
		}
		s.epoch = 0 // with an id: closes that session and opens another
		clear(s.byID)
		s.changed = s.changed[:0]
		for _, q := range s.parts {
			q.known = false
			s.changed = append(s.changed, q)
		}
	}
	newFetch(&s.req, s.version, lim)
	s.req.SessionID, s.req.SessionEpoch = s.id, s.epoch
	slices.SortFunc(s.changed, func(a, b *part) int {
		return cmp.Or(cmp.Compare(a.served, b.served), strings.Compare(a.want.Topic, b.want.Topic),
			cmp.Compare(a.want.Partition, b.want.Partition))
	})
	topics, forgotten := make(map[topicKey]int), make(map[topicKey]int)
	for _, q := range s.changed {
		q.queued = false
		switch {
		case q.gone:
			if q.known {
				forget(&s.req, forgotten, &q.asked)
			}
			delete(s.parts, key{q.want.Topic, q.want.Partition})
			if at := (idKey{q.asked.ID, q.asked.Partition}); s.byID[at] == q {
				delete(s.byID, at)
			}
		case !q.known || moved(&q.want, &q.asked):
			ask(&s.req, topics, &q.want)
			s.byID[idKey{q.want.ID, q.want.Partition}] = q
			q.known = true
		}
		q.asked = q.want
	}
	clear(s.changed)
	s.changed = s.changed[:0]
	s.wait = lim.MaxWait
	s.expect = int(min(int64(max(lim.MaxBytes, 0))+answerOverhead+partitionOverhead*int64(len(s.parts)), maxFrame))
	return nil
}

// breaks says that a change doesn't fit into the broker's session. Brokers before Kafka 2.7 keep the leader epoch that a
// partition came into the session with, whatever is sent later: after an election they would fence it for ever.
func (s *Session) breaks(q *part) bool {
	switch {
	case q.gone:
		return false
	case s.version > fetchNamed && q.want.ID == [16]byte{}:
		return true
	case !q.known:
		return false
	}
	return q.want.ID != q.asked.ID || s.version < fetchEpochs && q.want.CurrentLeaderEpoch != q.asked.CurrentLeaderEpoch
}

// moved says that the broker must be told.
func moved(want, asked *FetchPartition) bool {
	return want.Offset != asked.Offset || want.CurrentLeaderEpoch != asked.CurrentLeaderEpoch ||
		want.LastFetchedEpoch != asked.LastFetchedEpoch || want.MaxBytes != asked.MaxBytes
}

// chooseVersion takes the newest that both sides speak, and that does without ids if one is missing.
func (s *Session) chooseVersion() (err error) {
	most := int16(fetchMost)
	for _, q := range s.parts {
		if !q.gone && q.want.ID == [16]byte{} {
			most = fetchNamed
		}
	}
	s.version, err = s.conn.version(int16(kmsg.Fetch), fetchFloor, most)
	return err
}

// newFetch makes req an empty request of a consumer that reads to the high watermark.
func newFetch(req *kmsg.FetchRequest, version int16, lim Limits) {
	*req = kmsg.FetchRequest{Topics: req.Topics[:0], ForgottenTopics: req.ForgottenTopics[:0]}
	req.Default()
	req.Version = version
	req.MaxWaitMillis = int32(min(max(lim.MaxWait, 0)/time.Millisecond, math.MaxInt32))
	req.MinBytes, req.MaxBytes = lim.MinBytes, lim.MaxBytes
}

// topicKey tells two incarnations of a topic apart: its partitions are set to the new one by and by.
type topicKey struct {
	name string
	id   [16]byte
}

// ask adds a partition; at holds where in the request its topic stands.
func ask(req *kmsg.FetchRequest, at map[topicKey]int, p *FetchPartition) {
	t := place(&req.Topics, at, topicKey{p.Topic, p.ID}, kmsg.FetchRequestTopic{Topic: p.Topic, TopicID: p.ID})
	q := kmsg.NewFetchRequestTopicPartition()
	q.Partition, q.CurrentLeaderEpoch = p.Partition, p.CurrentLeaderEpoch
	q.FetchOffset, q.LastFetchedEpoch = p.Offset, p.LastFetchedEpoch
	q.PartitionMaxBytes = p.MaxBytes
	t.Partitions = append(t.Partitions, q)
}

func forget(req *kmsg.FetchRequest, at map[topicKey]int, p *FetchPartition) {
	t := place(&req.ForgottenTopics, at, topicKey{p.Topic, p.ID}, kmsg.FetchRequestForgottenTopic{Topic: p.Topic, TopicID: p.ID})
	t.Partitions = append(t.Partitions, p.Partition)
}

// place finds a topic in the list of a request, whose positions at holds; a new one is added as blank.
func place[T any, K comparable](list *[]T, at map[K]int, topic K, blank T) *T {
	i, ok := at[topic]
	if !ok {
		i = len(*list)
		at[topic] = i
		*list = append(*list, blank)
	}
	return &(*list)[i]
}

// parseFetch reads an answer without copying: strings and records are parts of frame.
func parseFetch(resp *kmsg.FetchResponse, req *kmsg.FetchRequest, frame []byte) error {
	body, err := responseBody(frame, req)
	if err != nil {
		return err
	}
	*resp = kmsg.FetchResponse{Version: req.Version, Topics: resp.Topics[:0]}
	if err := resp.UnsafeReadFrom(body); err != nil {
		return protocolError("%v", err)
	}
	return nil
}

// accept turns an answer into r. An error is for the whole answer.
func (s *Session) accept(r *Response, frame []byte) error {
	if err := parseFetch(&s.resp, &s.req, frame); err != nil {
		return err
	}
	defer clear(s.resp.Topics) // they point into the frame
	r.Throttle = s.conn.throttle(s.resp.ThrottleMillis)
	if err := s.advance(s.resp.ErrorCode, s.resp.SessionID); err != nil || s.resp.ErrorCode != 0 {
		return err
	}
	s.client.learnEndpoints(&s.resp)
	s.answers++
	for i := range s.resp.Topics {
		t := &s.resp.Topics[i]
		r.Partitions = slices.Grow(r.Partitions, len(t.Partitions))
		for j := range t.Partitions {
			p := &t.Partitions[j]
			q := s.find(t, p.Partition)
			switch {
			case q == nil:
				return protocolError("topic %.249q (id %x) partition %d was never asked for", t.Topic, t.TopicID, p.Partition)
			case q.gone:
				continue
			case q.seen == s.answers:
				f := &r.Partitions[q.slot]
				f.Err, f.Records, f.Diverging = protocolError("the partition stands twice in one answer"), nil, nil
				continue
			}
			q.seen, q.slot = s.answers, len(r.Partitions)
			r.Partitions = append(r.Partitions, fetched(p, &q.asked))
			if len(p.RecordBatches) > 0 {
				q.served = s.answers
			}
		}
	}
	return nil
}

// find is the partition that an answer is about, nil if it was not asked for.
func (s *Session) find(t *kmsg.FetchResponseTopic, partition int32) *part {
	q := s.byID[idKey{t.TopicID, partition}]
	if s.version <= fetchNamed {
		q = s.parts[key{t.Topic, partition}]
	}
	if q == nil || !q.known {
		return nil
	}
	return q
}

// fetched checks what one partition answered.
func fetched(p *kmsg.FetchResponseTopicPartition, asked *FetchPartition) Fetched {
	f := Fetched{
		Tag: asked.Tag, Topic: asked.Topic, Partition: asked.Partition, Offset: asked.Offset,
		Err:           CodeError(p.ErrorCode),
		HighWatermark: p.HighWatermark, LastStable: p.LastStableOffset, LogStart: p.LogStartOffset,
		Leader: Leader{p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch},
	}
	if f.Leader.ID < 0 || f.Leader.Epoch < 0 {
		f.Leader = Leader{-1, -1}
	}
	switch d := &p.DivergingEpoch; {
	case f.Err != nil:
	case p.HighWatermark < 0:
		f.Err = protocolError("high watermark %d", p.HighWatermark)
	case p.LogStartOffset < -1:
		f.Err = protocolError("log start %d", p.LogStartOffset)
	case d.Epoch != -1 || d.EndOffset != -1:
		if d.Epoch < 0 || d.EndOffset < 0 || d.Epoch > asked.LastFetchedEpoch ||
			d.Epoch == asked.LastFetchedEpoch && d.EndOffset >= asked.Offset {
			f.Err = protocolError("diverging epoch %d with end %d, asked at offset %d about epoch %d",
				d.Epoch, d.EndOffset, asked.Offset, asked.LastFetchedEpoch)
			break
		}
		f.Diverging = &EpochEnd{d.Epoch, d.EndOffset}
	default:
		f.Records = p.RecordBatches
	}
	return f
}

// learnEndpoints remembers where the leaders listen that an answer points to (KIP-951).
func (c *Client) learnEndpoints(resp *kmsg.FetchResponse) {
	if len(resp.Brokers) == 0 {
		return
	}
	known := make(map[int32]string, len(resp.Brokers))
	for _, b := range resp.Brokers {
		if addr, ok := endpoint(b.NodeID, b.Host, b.Port); ok {
			known[b.NodeID] = addr
		}
	}
	c.learn(known)
}

// endpoint checks where a broker says that it listens. The name is copied: it may be part of a frame.
func endpoint(id int32, host string, port int32) (addr string, ok bool) {
	if id < 0 || host == "" || port <= 0 || port > math.MaxUint16 {
		return "", false
	}
	return strings.Clone(net.JoinHostPort(host, strconv.Itoa(int(port)))), true
}

// Read fetches once from the leader of the partition, outside any session and without waiting for records. The answer is the
// caller's.
func (c *Client) Read(ctx context.Context, broker int32, p FetchPartition, maxBytes int32) (*Fetched, error) {
	ctx, done, err := c.begin(ctx, c.life)
	if err != nil {
		return nil, err
	}
	defer done()
	req := new(kmsg.FetchRequest)
	newFetch(req, 0, Limits{MaxBytes: maxBytes})
	req.SessionEpoch = finalEpoch
	p.MaxBytes = maxBytes
	ask(req, make(map[topicKey]int), &p)
	most := int16(fetchMost)
	if p.ID == [16]byte{} {
		most = fetchNamed
	}
	got, err := c.askBroker(ctx, broker, req, fetchFloor, most)
	if err != nil {
		return nil, err
	}
	resp := got.(*kmsg.FetchResponse)
	if err := CodeError(resp.ErrorCode); err != nil {
		return nil, err
	}
	c.learnEndpoints(resp)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 || resp.Topics[0].Partitions[0].Partition != p.Partition ||
		req.Version <= fetchNamed && resp.Topics[0].Topic != p.Topic || req.Version > fetchNamed && resp.Topics[0].TopicID != p.ID {
		return nil, protocolError("one partition was asked for, and another or several answered")
	}
	f := fetched(&resp.Topics[0].Partitions[0], &p)
	return &f, nil
}
