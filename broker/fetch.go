package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

const (
	readCommitted int8 = 1

	// maxAnswer bounds the records of one answer, maxBatch a single batch: both only what a client's own limits leave.
	maxAnswer = 64 << 20
	maxBatch  = 512 << 20
)

// want is a partition that a client fetches: what it asked for, and in a session what it was told last.
type want struct {
	key       wantKey
	topic     string // from the catalog of that generation
	resource  string // the same for the authorizer
	known     int64  // generation of the catalog
	offset    int64
	maxBytes  int32
	epoch     int32 // current leader epoch, as the client knows it
	lastEpoch int32 // of the last record that the client has
	part      *mirror.Partition
	stop      func() // of the notification

	told      bool // what follows was told without an error
	hw, start int64
}

// wantKey is the topic as the client names it: by id from version 13 on.
type wantKey struct {
	topic     string
	id        mirror.TopicID
	partition int32
}

// found is what there is to tell of a partition.
type found struct {
	code       int16
	start, hw  int64
	lso        int64
	records    []byte
	aborted    []kmsg.FetchResponseTopicPartitionAbortedTransaction
	diverging  bool
	divergence kmsg.FetchResponseTopicPartitionDivergingEpoch
}

// urgent says that the client must hear of it at once.
func (f *found) urgent() bool { return f.code != noError || f.diverging }

func (b *Broker) fetch(ctx context.Context, c *call, req *kmsg.FetchRequest, resp *kmsg.FetchResponse) {
	s, full, code := b.sessions.begin(c.Node, req)
	if code != noError {
		resp.ErrorCode = code
		return
	}
	defer b.sessions.end(s)
	if len(s.wants) > 0 { // otherwise the session ends here
		resp.SessionID = s.id
	}

	r := fetching{b: b, c: c, s: s, committed: req.IsolationLevel == readCommitted, limit: int(min(max(req.MaxBytes, 0), maxAnswer))}
	wait := time.Duration(max(req.MaxWaitMillis, 0)) * time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for waited := wait == 0; ; {
		changed := b.cluster.watch()
		r.pass(ctx)
		if waited || r.urgent || r.bytes >= min(int(max(req.MinBytes, 0)), r.limit) || len(s.wants) == 0 {
			break
		}
		select {
		case <-s.wake:
		case <-changed:
		case <-timer.C:
			waited = true
		case <-ctx.Done():
			waited = true
		}
	}
	r.tell(resp, full)
}

// fetching is one fetch on its way.
type fetching struct {
	b         *Broker
	c         *call
	s         *session
	committed bool
	limit     int

	bytes  int
	urgent bool
}

// pass looks at every partition once, beginning after the one that was served last.
func (r *fetching) pass(ctx context.Context) {
	r.c.room.rewind()
	r.bytes, r.urgent = 0, false
	n := len(r.s.wants)
	if len(r.s.found) != n {
		r.s.found = make([]found, n)
	}
	for i := range n {
		at := (r.s.first + i) % n
		f := &r.s.found[at]
		*f = found{start: -1, hw: -1, lso: -1}
		if err := r.look(ctx, r.s.wants[at], f); err != nil {
			f.code, f.records = r.b.code(err), nil
			if errors.Is(err, mirror.ErrClosed) { // the topic may be gone
				_ = r.b.refresh(ctx, r.c)
			}
		}
		r.bytes += len(f.records)
		r.urgent = r.urgent || f.urgent()
	}
}

// look finds out what there is to tell of one partition. The order of the checks is Kafka's.
func (r *fetching) look(ctx context.Context, w *want, f *found) error {
	b := r.b
	if f.code = b.resolve(ctx, r.c, r.s, w); f.code != noError {
		return nil
	}
	if f.code = b.leads(r.c.Node, w.part, w.epoch); f.code != noError {
		return nil
	}
	start, end := w.part.Bounds()
	f.start, f.hw = start, max(start, b.cluster.highWatermark(place{w.topic, w.key.partition}, end))
	if w.lastEpoch >= 0 {
		if err := b.compare(ctx, w, start, f); err != nil || f.urgent() {
			return err
		}
	}
	if w.offset < start || w.offset > end {
		f.code = offsetOutOfRange
		return nil
	}
	bound, room := f.hw, min(int(w.maxBytes), r.limit-r.bytes)
	if w.offset >= bound || room <= 0 && r.bytes > 0 {
		return nil
	}
	if r.committed {
		var err error
		if bound, err = b.bound(ctx, w.part, f.hw, true); err != nil {
			return err
		}
		f.lso = bound
	}
	if w.offset >= bound {
		return nil
	}
	records, next, err := read(ctx, w.part, &r.c.room, w.offset, bound, room, r.bytes == 0)
	if err != nil || len(records) == 0 {
		return err
	}
	f.records = records
	if r.committed {
		aborted, err := w.part.Aborted(ctx, w.offset, next)
		if err != nil {
			return err
		}
		for _, a := range aborted {
			t := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
			t.ProducerID, t.FirstOffset = a.ProducerID, a.FirstOffset
			f.aborted = append(f.aborted, t)
		}
	}
	return nil
}

// resolve finds the partition that the client means, unless it was found before and nothing has changed since. What the client may
// do is asked every time.
func (b *Broker) resolve(ctx context.Context, c *call, s *session, w *want) int16 {
	code := noError
	if w.part == nil || w.part.Gone() || w.known != b.topics.seen() {
		code = b.find(ctx, c, s, w)
	}
	if code == noError && !b.allowed(c, "Read", w.resource) {
		return topicAuthorizationFailed
	}
	return code
}

func (b *Broker) find(ctx context.Context, c *call, s *session, w *want) int16 {
	t, code := b.topic(ctx, c, w.key.topic, w.key.id)
	w.known = b.topics.seen()
	w.topic, w.resource = t.Name, "Topic:"+t.Name
	var p *mirror.Partition
	if code == noError {
		var err error
		if p, err = b.c.Partition(ctx, t.Name, w.key.partition); err != nil {
			code, p = b.code(err), nil
		} else if code = b.meant(ctx, c, p, w.key.id); code != noError {
			p = nil
		}
	}
	if p != w.part {
		if w.stop != nil {
			w.stop()
		}
		if w.part, w.stop = p, nil; p != nil {
			w.stop = p.Notify(s.wake)
		}
	}
	return code
}

// compare tells a client where its log parted from this one, by the epoch of the last record that it has. The answers are those of
// Kafka's leader: an epoch that nothing is known of is out of range, and so is an offset below the log.
func (b *Broker) compare(ctx context.Context, w *want, start int64, f *found) error {
	epoch, end, err := w.part.EpochEnd(ctx, w.lastEpoch)
	if err != nil {
		return err
	}
	if end < 0 || w.offset < start {
		f.code = offsetOutOfRange
		return nil
	}
	if epoch < w.lastEpoch || end < w.offset {
		f.diverging = true
		f.divergence.Epoch, f.divergence.EndOffset = epoch, end
	}
	return nil
}

// bound is the offset up to which a reader may see: the high watermark, or the last stable offset below it.
func (b *Broker) bound(ctx context.Context, p *mirror.Partition, hw int64, committed bool) (int64, error) {
	if !committed {
		return hw, nil
	}
	lso, err := p.LastStableOffset(ctx)
	return min(lso, hw), err
}

// read reads whole batches that end at or below bound, of at most limit bytes altogether. If the first one is larger it is read
// all the same where must is set (KIP-74): otherwise nobody would ever get past it.
func read(ctx context.Context, p *mirror.Partition, room *room, offset, bound int64, limit int, must bool) (records []byte, next int64, err error) {
	buf := room.tail(max(limit, batch.HeaderSize))
	n, err := p.Read(ctx, offset, buf)
	if err != nil {
		return nil, 0, err
	}
	whole, next, err := visibleBatches(buf[:n], bound)
	if err != nil {
		return nil, 0, fmt.Errorf("%s at offset %d: %w", p, offset, err)
	}
	if whole > limit {
		whole = 0 // a header's worth was read although less was allowed
	}
	if whole == 0 && must && n >= batch.HeaderSize {
		h, err := batch.Parse(buf[:n])
		if err != nil {
			return nil, 0, fmt.Errorf("%s at offset %d: %w", p, offset, err)
		}
		if h.Next() > bound {
			return nil, 0, nil
		}
		if h.Size() > maxBatch {
			return nil, 0, fmt.Errorf("%s: %w: batch at offset %d claims %d bytes", p, batch.ErrCorrupt, h.Base, h.Size())
		}
		buf = room.tail(h.Size())
		if len(buf) < h.Size() {
			buf = make([]byte, h.Size())
		}
		if n, err = p.Read(ctx, offset, buf[:h.Size()]); err != nil {
			return nil, 0, err
		}
		if whole, next, err = visibleBatches(buf[:n], bound); err != nil {
			return nil, 0, fmt.Errorf("%s at offset %d: %w", p, offset, err)
		}
	}
	room.use(buf, whole)
	return buf[:whole:whole], next, nil
}

// visibleBatches counts the bytes of whole batches that end at or below bound, and says where the last of them ends.
func visibleBatches(b []byte, bound int64) (whole int, next int64, err error) {
	for whole < len(b) {
		h, raw, err := batch.Next(b[whole:])
		if errors.Is(err, batch.ErrShort) || err == nil && h.Next() > bound {
			break
		}
		if err != nil {
			if whole > 0 {
				break // what is good is served; the next fetch begins at what is not
			}
			return 0, 0, err
		}
		whole, next = whole+len(raw), h.Next()
	}
	return whole, next, nil
}

// tell writes the answer. In a session only what is new is told.
func (r *fetching) tell(resp *kmsg.FetchResponse, full bool) {
	var topic *kmsg.FetchResponseTopic
	var topicKey wantKey
	leaders := make(map[int32]bool)
	served := -1
	n := len(r.s.wants)
	for i := range n {
		at := (r.s.first + i) % n
		w, f := r.s.wants[at], &r.s.found[at]
		news := full || f.urgent() || len(f.records) > 0 || !w.told || w.hw != f.hw || w.start != f.start
		w.told, w.hw, w.start = f.code == noError, f.hw, f.start
		if len(f.records) > 0 {
			served = at
		}
		if !news {
			continue
		}
		if key := (wantKey{topic: w.key.topic, id: w.key.id}); topic == nil || key != topicKey {
			t := kmsg.NewFetchResponseTopic()
			t.Topic, t.TopicID = w.key.topic, w.key.id
			resp.Topics = append(resp.Topics, t)
			topic, topicKey = &resp.Topics[len(resp.Topics)-1], key
		}
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.ErrorCode = w.key.partition, f.code
		p.HighWatermark, p.LogStartOffset, p.LastStableOffset = f.hw, f.start, f.lso
		p.RecordBatches, f.records = f.records, nil
		if p.RecordBatches == nil {
			p.RecordBatches = []byte{}
		}
		if r.committed {
			p.AbortedTransactions = f.aborted
			if f.aborted == nil {
				p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
			}
		}
		if f.lso < 0 && f.code == noError {
			p.LastStableOffset = r.stable(w, f.hw)
		}
		if f.diverging {
			p.DivergingEpoch = f.divergence
		}
		if movedLeader(f.code) && w.part != nil {
			if leader := r.b.cluster.leader(place{w.topic, w.key.partition}); leader > 0 {
				p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = leader, w.part.LeaderEpoch()
				leaders[leader] = true
			}
		}
		topic.Partitions = append(topic.Partitions, p)
	}
	if served >= 0 {
		r.s.first = (served + 1) % n
	}
	if resp.Version < 16 {
		return
	}
	for node := range leaders {
		if host, port, ok := r.b.endpoint(r.c, node); ok {
			n := kmsg.NewFetchResponseBroker()
			n.NodeID, n.Host, n.Port = node, host, port
			resp.Brokers = append(resp.Brokers, n)
		}
	}
}

// stable is the last stable offset where no reading needed it; the high watermark if it cannot be told.
func (r *fetching) stable(w *want, hw int64) int64 {
	lso, err := r.b.bound(r.b.ctx, w.part, hw, true)
	if err != nil {
		return hw
	}
	return lso
}

func movedLeader(code int16) bool { return code == notLeaderOrFollower || code == fencedLeaderEpoch }

// room is where one fetch reads records to: blocks that are filled one after the other and used again by later fetches.
type room struct {
	blocks []*[]byte
	used   int // bytes of the last block
}

const blockSize = 1 << 20

var blocks = sync.Pool{New: func() any { b := make([]byte, blockSize); return &b }}

// tail is a free place of at most n bytes. It is smaller where a block ends, but not by much.
func (r *room) tail(n int) []byte {
	n = min(n, blockSize)
	if len(r.blocks) == 0 || blockSize-r.used < n/4 || blockSize-r.used < batch.HeaderSize {
		r.blocks = append(r.blocks, blocks.Get().(*[]byte))
		r.used = 0
	}
	last := *r.blocks[len(r.blocks)-1]
	return last[r.used:min(r.used+n, blockSize):min(r.used+n, blockSize)]
}

// use keeps the first n bytes of what tail answered last. Memory from elsewhere is no concern of the blocks.
func (r *room) use(tail []byte, n int) {
	if n == 0 || len(r.blocks) == 0 {
		return
	}
	last := *r.blocks[len(r.blocks)-1]
	if r.used < blockSize && &last[r.used] == &tail[0] {
		r.used += n
	}
}

// rewind makes everything free again; what was read before is void.
func (r *room) rewind() {
	for len(r.blocks) > 1 {
		last := len(r.blocks) - 1
		blocks.Put(r.blocks[last])
		r.blocks = r.blocks[:last]
	}
	r.used = 0
}

// release gives the blocks back.
func (r *room) release() {
	for _, b := range r.blocks {
		blocks.Put(b)
	}
	r.blocks, r.used = nil, 0
}
