package broker

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

const (
	// keptBatches is how many batches of a producer can come again: that many may be under way at once.
	keptBatches = 5
	// maxProducers bounds the producers that a partition remembers. Those that wrote last stay.
	maxProducers = 1 << 16
)

// lock is a mutex that may be held across I/O: whoever waits for it can be cancelled, and counts as idle in virtual time.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

func (l lock) acquire(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l lock) release() { <-l }

// producers are those of every partition.
type producers struct {
	mu      sync.Mutex // guards ledgers
	ledgers map[place]*ledger
}

func newProducers() *producers { return &producers{ledgers: make(map[place]*ledger)} }

// append appends a batch of an idempotent producer once, however often it comes.
func (ps *producers) append(ctx context.Context, p *mirror.Partition, h *batch.Header, raw []byte) (base int64, err error) {
	where := place{p.Topic(), p.ID()}
	ps.mu.Lock()
	l := ps.ledgers[where]
	if l == nil {
		l = &ledger{lock: newLock()}
		ps.ledgers[where] = l
	}
	ps.mu.Unlock()

	if err := l.lock.acquire(ctx); err != nil {
		return 0, err
	}
	defer l.lock.release()
	if err := l.catchUp(ctx, p); err != nil {
		return 0, err
	}
	base, again, err := l.check(h)
	if err != nil || again {
		return base, err
	}
	return p.Append(ctx, raw) // the next catchUp notes it, with whatever else comes between
}

// ledger is what a partition's log says of idempotent producers. It is made from the log's bytes, so it is right after a restart, a
// cut and a takeover, and whoever appended.
type ledger struct {
	lock lock // guards what follows; held across I/O

	part  *mirror.Partition
	epoch int32  // leader epoch when it was last compared with the log
	next  int64  // offset up to which it has read
	last  []byte // header of the last batch that it has read
	base  int64  // its offset
	ids   map[int64]*producer
}

// producer is one producer's last batches.
type producer struct {
	epoch   int16
	batches []sequence // oldest first
	latest  int64      // offset of the last thing seen of it
}

// sequence is one batch: its first and last sequence number and its offset.
type sequence struct {
	first, last int32
	base        int64
}

// catchUp reads what was appended since. A log that was cut and has grown again betrays itself by a new leader epoch: then the last
// batch must still be where it was, or all is read anew.
func (l *ledger) catchUp(ctx context.Context, p *mirror.Partition) error {
	start, end := p.Bounds()
	epoch := p.LeaderEpoch()
	if l.part != p || end < l.next || epoch != l.epoch && !l.same(ctx, p) {
		l.part, l.next, l.last, l.ids = p, start, nil, make(map[int64]*producer)
	}
	l.epoch = epoch
	err := walk(ctx, p, max(l.next, start), end, func(h *batch.Header, prefix []byte) {
		l.note(h, prefix)
		l.next, l.base, l.last = h.Next(), h.Base, append(l.last[:0], prefix[:batch.HeaderSize]...)
	})
	if err == nil {
		l.next = max(l.next, end)
	}
	return err
}

// same says that the last batch which was read is still there.
func (l *ledger) same(ctx context.Context, p *mirror.Partition) bool {
	var now [batch.HeaderSize]byte
	if l.last == nil {
		return false
	}
	n, err := p.Read(ctx, l.base, now[:])
	return err == nil && bytes.Equal(now[:n], l.last)
}

// note takes one batch of the log into account.
func (l *ledger) note(h *batch.Header, prefix []byte) {
	if h.Control() {
		l.noteControl(h, prefix)
		return
	}
	if h.ProducerID < 0 {
		return
	}
	p := l.ids[h.ProducerID]
	if p == nil {
		l.bound()
		p = &producer{epoch: h.ProducerEpoch}
		l.ids[h.ProducerID] = p
	}
	if h.ProducerEpoch != p.epoch {
		p.epoch, p.batches = h.ProducerEpoch, nil
	}
	if len(p.batches) == keptBatches {
		p.batches = append(p.batches[:0], p.batches[1:]...)
	}
	p.batches = append(p.batches, sequence{h.BaseSequence, after(h.BaseSequence, h.LastOffsetDelta), h.Base})
	p.latest = h.Base
}

func (l *ledger) noteControl(h *batch.Header, prefix []byte) {
	control, err := batch.ParseControl(prefix)
	if err != nil {
		return // a control batch that compaction emptied says nothing
	}
	if control.PIDReset() { // the log was taken over: what its producers wrote before concerns nobody here
		clear(l.ids)
		return
	}
	// A marker may end the producer's epoch.
	if p := l.ids[h.ProducerID]; p != nil {
		if h.ProducerEpoch > p.epoch {
			p.epoch, p.batches = h.ProducerEpoch, nil
		}
		p.latest = h.Base
	} else if control.EndsTransaction() {
		l.ids[h.ProducerID] = &producer{epoch: h.ProducerEpoch, latest: h.Base}
	}
}

// bound forgets the older half of the producers when there are too many.
func (l *ledger) bound() {
	if len(l.ids) < maxProducers {
		return
	}
	ids := slices.SortedFunc(maps.Keys(l.ids), func(a, b int64) int { return cmp.Compare(l.ids[a].latest, l.ids[b].latest) })
	for _, id := range ids[:len(ids)/2] {
		delete(l.ids, id)
	}
}

// check says whether a batch may be appended, or was already and where. The rules are Kafka's: a producer that nothing is known of
// may begin with any sequence number, since retention may have taken what it wrote.
func (l *ledger) check(h *batch.Header) (base int64, again bool, err error) {
	p := l.ids[h.ProducerID]
	if p == nil {
		return 0, false, nil
	}
	last := after(h.BaseSequence, h.LastOffsetDelta)
	switch {
	case h.ProducerEpoch < p.epoch:
		return 0, false, refuse(invalidProducerEpoch, "producer %d has epoch %d here, the batch has %d", h.ProducerID, p.epoch, h.ProducerEpoch)
	case h.ProducerEpoch > p.epoch || len(p.batches) == 0:
		if h.BaseSequence != 0 {
			return 0, false, refuse(outOfOrderSequence, "producer %d begins epoch %d with sequence %d", h.ProducerID, h.ProducerEpoch, h.BaseSequence)
		}
		return 0, false, nil
	}
	for _, s := range p.batches {
		if s.first == h.BaseSequence && s.last == last {
			return s.base, true, nil
		}
	}
	if want := after(p.batches[len(p.batches)-1].last, 1); h.BaseSequence != want {
		return 0, false, refuse(outOfOrderSequence, "producer %d: sequence %d, expected %d", h.ProducerID, h.BaseSequence, want)
	}
	return 0, false, nil
}

// after is the sequence number n steps on: they wrap to 0.
func after(sequence, n int32) int32 {
	return int32((int64(sequence) + int64(n)) % (math.MaxInt32 + 1))
}
