package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/epochs"
	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/summary"
	"github.com/clustermirror/mirror/internal/txn"
)

// Partition is one partition of the host, mirrored or not: its log, what the library knows of it, and who waits for it. Readers,
// the broker and the fetcher all go through it. All its methods may be called concurrently.
//
// The log's bytes are the truth. What is known of them (leader epochs, open and aborted transactions) is a summary that is
// brought up to the log's end before it answers, so a host that appends past the Partition stays right.
type Partition struct {
	c     *Coordinator
	topic string
	id    TopicID
	num   int32
	log   Log
	gone  chan struct{} // closed when the host has no such log any more

	// writing is held by whoever changes the log or brings the summary up to date; it may be held across I/O.
	writing lock
	// checkpointing is taken before writing, and kept out of by cuts: a checkpoint never becomes durable after the cut that
	// made it wrong.
	checkpointing lock

	mu      sync.Mutex // guards what follows; never held across I/O
	sum     *summary.Summary
	stale   bool // whoever holds writing is changing sum: others wait for writing
	waiters map[chan<- struct{}]struct{}
	epoch   int32 // leader epoch: as persisted, or as found in the log
	raised  bool  // since this open, before a first local append (decision: what was visible may not have been durable)
	writers int   // local writers between BeginWrite and done
	idle    chan struct{}
}

// AbortedTxn is one aborted transaction of a partition: what a read-committed reader needs to leave its records out.
type AbortedTxn struct {
	ProducerID  int64
	FirstOffset int64 // of its first batch here
	LastOffset  int64 // of its ABORT marker
}

func newPartition(c *Coordinator, t Topic, num int32, log Log, epoch int32) *Partition {
	return &Partition{
		c: c, topic: t.Name, id: t.ID, num: num, log: log, gone: make(chan struct{}), epoch: epoch, stale: true,
		writing: newLock(), checkpointing: newLock(),
	}
}

// Topic is the topic's name.
func (p *Partition) Topic() string { return p.topic }

// TopicID is the topic's id.
func (p *Partition) TopicID() TopicID { return p.id }

// ID is the partition's number.
func (p *Partition) ID() int32 { return p.num }

// Bounds are the first offset held and the offset after the last one. Never blocks.
func (p *Partition) Bounds() (start, end int64) { return p.log.Bounds() }

// LeaderEpoch is the partition's current leader epoch, at least every epoch in its log as far as that has been read since Open: all of it,
// unless the state is older than the log. 0 before the first write, as in Kafka.
func (p *Partition) LeaderEpoch() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.epoch, 0)
}

// LastStableOffset is the first offset of the oldest open transaction, or the end if none is open.
func (p *Partition) LastStableOffset(ctx context.Context) (lso int64, err error) {
	err = p.know(ctx, func(s *summary.Summary) { lso = s.LastStable() })
	return lso, err
}

// EpochEnd answers OffsetForLeaderEpoch (KIP-101, KIP-279): the greatest epoch of the log at or below epoch, and where it ends.
// (-1, -1) if there is none. Asked for the current leader epoch it answers (last epoch of the log, end), as Kafka's leader does: also
// of a log that has no batch, and no epoch but the current one.
func (p *Partition) EpochEnd(ctx context.Context, epoch int32) (found int32, end int64, err error) {
	current := p.LeaderEpoch()
	err = p.know(ctx, func(s *summary.Summary) {
		latest := s.Epochs().Latest()
		if epoch == current && latest < 0 {
			found, end = epoch, s.End()
			return
		}
		if epoch == current {
			epoch = min(epoch, latest)
		}
		found, end = s.Epochs().EndOf(epoch, s.End())
	})
	return found, end, err
}

// EpochAt is the leader epoch of the batch that holds offset, or of the next one in a gap; -1 if it is not known.
func (p *Partition) EpochAt(ctx context.Context, offset int64) (epoch int32, err error) {
	err = p.know(ctx, func(s *summary.Summary) { epoch = s.Epochs().At(offset) })
	return epoch, err
}

// Aborted are the aborted transactions that overlap [from, to), by first offset. The caller owns the answer.
func (p *Partition) Aborted(ctx context.Context, from, to int64) (list []AbortedTxn, err error) {
	err = p.know(ctx, func(s *summary.Summary) {
		for _, a := range s.Txn().Aborted(from, to) {
			list = append(list, AbortedTxn(a))
		}
	})
	return list, err
}

// MaxProducerID is the greatest producer id seen in the log; -1 if none was. A host hands out ids above it.
func (p *Partition) MaxProducerID(ctx context.Context) (id int64, err error) {
	err = p.know(ctx, func(s *summary.Summary) { id = s.Txn().GreatestProducerID() })
	return id, err
}

// Read fills buf as Log.Read does, with errors that name the partition.
func (p *Partition) Read(ctx context.Context, offset int64, buf []byte) (int, error) {
	n, err := p.log.Read(ctx, offset, buf)
	if err != nil && ctx.Err() == nil {
		start, end := p.log.Bounds()
		err = fmt.Errorf("read %s at offset %d, log is [%d, %d): %w", p, offset, start, end, p.lost(err))
	}
	return n, err
}

// lost looks at an error of the log: if that is no more, the next one who asks for the partition gets the one that is there now.
func (p *Partition) lost(err error) error {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrUnknownPartition) {
		p.c.evict(p)
	}
	return err
}

// Gone says that the host no longer has this log: the topic was deleted. Coordinator.Partition answers what is there now.
func (p *Partition) Gone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// String is topic-partition, as in Kafka's folder names.
func (p *Partition) String() string { return fmt.Sprintf("%s-%d", p.topic, p.num) }

// Append adds one or more whole batches of a local writer: it passes the gate, gives them the next offsets and the current leader
// epoch (both are written into batches; the CRC covers neither), and answers the first base offset. Visible on return, durable
// after the next Sync. A *ReadOnlyError while a mirror owns the topic.
func (p *Partition) Append(ctx context.Context, batches []byte) (base int64, err error) {
	if err := p.enter(ctx); err != nil {
		return 0, err
	}
	defer p.leave()
	err = p.change(ctx, func(ctx context.Context) error {
		_, base = p.log.Bounds()
		epoch, next := p.LeaderEpoch(), base
		for b := batches; len(b) > 0; {
			h, raw, err := batch.Next(b)
			if err == nil && h.Control() && h.Records > 0 { // it must be understood before it is in the log
				_, err = batch.ParseControl(raw)
			}
			if err != nil {
				return fmt.Errorf("append to %s: %w", p, err)
			}
			batch.SetBase(raw, next)
			batch.SetLeaderEpoch(raw, epoch)
			next += int64(h.LastOffsetDelta) + 1
			b = b[len(raw):]
		}
		return p.store(ctx, batches)
	})
	return base, err
}

// Truncate drops each batch that reaches beyond end, as a leader that lost its tail would. It passes the gate: never on a mirror
// topic. WARNING: the records are gone.
func (p *Partition) Truncate(ctx context.Context, end int64) error {
	if err := p.enter(ctx); err != nil {
		return err
	}
	defer p.leave()
	return p.cut(ctx, end)
}

// AdvanceStart drops a prefix, as DeleteRecords and retention do. It passes the gate: never on a mirror topic, whose start follows
// the source's.
func (p *Partition) AdvanceStart(ctx context.Context, start int64) error {
	if err := p.enter(ctx); err != nil {
		return err
	}
	defer p.leave()
	return p.advance(ctx, start)
}

// Sync makes durable what was appended before.
func (p *Partition) Sync(ctx context.Context) error {
	if err := p.log.Sync(ctx); err != nil {
		return fmt.Errorf("sync %s: %w", p, p.lost(err))
	}
	return nil
}

// Wait returns nil when the end lies beyond the offset or below it (the log was cut), and the error of ctx when that ends;
// ErrUnknownPartition if the topic was deleted.
func (p *Partition) Wait(ctx context.Context, beyond int64) error {
	ch := make(chan struct{}, 1)
	defer p.Notify(ch)()
	for {
		if _, end := p.log.Bounds(); end != beyond {
			return nil
		}
		select {
		case <-ch:
		case <-p.gone:
			return fmt.Errorf("%s: %w", p, ErrUnknownPartition)
		case <-ctx.Done():
			return ctx.Err()
		case <-p.c.ctx.Done():
			return context.Cause(p.c.ctx)
		}
	}
}

// Notify sends on ch after each change of the partition's bounds, without waiting: a channel with room for one value never
// misses that something changed. Until stop is called.
func (p *Partition) Notify(ch chan<- struct{}) (stop func()) {
	p.mu.Lock()
	if p.waiters == nil {
		p.waiters = make(map[chan<- struct{}]struct{})
	}
	p.waiters[ch] = struct{}{}
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		delete(p.waiters, ch)
		p.mu.Unlock()
	}
}

func (p *Partition) notify() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ch := range p.waiters {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// enter passes the gate for a local writer: on return the leader epoch to stamp is set, and leave must be called.
func (p *Partition) enter(ctx context.Context) error {
	p.mu.Lock()
	if err := p.c.CheckWrite(p.topic, p.num); err != nil {
		p.mu.Unlock()
		return err
	}
	p.writers++
	raised := p.raised
	p.mu.Unlock()
	if raised {
		return nil
	}
	if err := p.firstRaise(ctx); err != nil {
		p.leave()
		return err
	}
	return nil
}

// firstRaise raises the leader epoch once per open: the unsynced tail of an earlier life may have been seen by readers and is
// gone after a crash, so nothing may be written again under its epoch.
func (p *Partition) firstRaise(ctx context.Context) error {
	return p.change(ctx, func(ctx context.Context) error {
		p.mu.Lock()
		raised := p.raised
		p.mu.Unlock()
		if raised {
			return nil
		}
		epoch, err := p.nextEpoch()
		if err != nil {
			return err
		}
		return p.setEpoch(ctx, epoch)
	})
}

// nextEpoch is a leader epoch that was never used. If the state is older than the log, nobody knows what was used since: then it is one
// as for a takeover. The caller holds writing.
func (p *Partition) nextEpoch() (int32, error) {
	p.mu.Lock()
	epoch := p.epoch // -1 if nothing was written
	p.mu.Unlock()
	switch {
	case epoch == math.MaxInt32:
		return 0, fmt.Errorf("raise leader epoch of %s: %w", p, errNoEpochLeft)
	case epoch > p.c.leaderEpoch(p.id, p.num):
		return takeoverEpoch(epoch, rand.Int32()), nil //nolint:gosec // apart, not secret
	}
	return epoch + 1, nil
}

func (p *Partition) leave() {
	p.mu.Lock()
	p.writers--
	if p.writers == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
	p.mu.Unlock()
}

// drain waits until no local writer is between enter and leave; the caller has closed the gate.
func (p *Partition) drain(ctx context.Context) error {
	p.mu.Lock()
	if p.writers == 0 {
		p.mu.Unlock()
		return nil
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	idle := p.idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for local writers of %s: %w", p, ctx.Err())
	}
}

// setEpoch persists a leader epoch, and more in the same write. The caller holds writing.
func (p *Partition) setEpoch(ctx context.Context, epoch int32, more ...statelog.Record) error {
	if err := p.c.put(ctx, append(more, leaderEpochRecord(p.id, p.num, epoch))...); err != nil {
		return fmt.Errorf("raise leader epoch of %s to %d: %w", p, epoch, err)
	}
	p.mu.Lock()
	p.epoch, p.raised = epoch, true
	p.mu.Unlock()
	return nil
}

// know calls f with a summary that reaches the log's end. f must not keep it, nor do I/O.
func (p *Partition) know(ctx context.Context, f func(*summary.Summary)) error {
	p.mu.Lock()
	if _, end := p.log.Bounds(); !p.stale && p.sum.End() == end {
		f(p.sum)
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	return p.change(ctx, func(context.Context) error {
		p.mu.Lock()
		f(p.sum)
		p.mu.Unlock()
		return nil
	})
}

// change runs f as the only one who changes the log, with a summary that reaches the log's end.
func (p *Partition) change(ctx context.Context, f func(context.Context) error) error {
	if err := p.writing.acquire(ctx); err != nil {
		return err
	}
	defer p.writing.release()
	if err := p.catchUp(ctx); err != nil {
		return p.lost(err)
	}
	return p.lost(f(ctx))
}

// catchUp brings the summary to the log's end. The caller holds writing.
func (p *Partition) catchUp(ctx context.Context) error {
	p.mu.Lock()
	start, end := p.log.Bounds()
	if !p.stale && p.sum.End() == end {
		p.sum.AdvanceStart(start)
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	return p.rework(func() error {
		if p.sum == nil {
			if err := p.restore(ctx); err != nil {
				return err
			}
		}
		if p.sum.End() > end { // the host cut its log itself
			return p.sum.Cut(ctx, p.log, end)
		}
		err := p.sum.CatchUp(ctx, p.log)
		if errors.Is(err, summary.ErrOrder) { // it is not the log that was summed up: the host has cut and filled it again
			p.sum = summary.New(start)
			err = p.sum.CatchUp(ctx, p.log)
		}
		return err
	})
}

// rework runs f, which changes the summary and may do I/O, while readers of the summary wait. The caller holds writing. If f
// fails the summary stays stale and the next one who needs it tries again.
func (p *Partition) rework(f func() error) error {
	p.mu.Lock()
	p.stale = true
	p.mu.Unlock()
	if err := f(); err != nil {
		return fmt.Errorf("read headers of %s: %w", p, err)
	}
	p.mu.Lock()
	p.stale = false
	p.epoch = max(p.epoch, p.sum.Epochs().Latest()) // the state may be older than the log
	p.mu.Unlock()
	return nil
}

// restore makes a summary from the newest durable checkpoint, or an empty one at the log's start.
func (p *Partition) restore(ctx context.Context) error {
	if pieces := p.c.checkpoint(p.id, p.num); len(pieces) > 0 {
		s, err := summary.Restore(ctx, p.log, pieces)
		switch {
		case err == nil:
			p.sum = s
			return nil
		case !errors.Is(err, summary.ErrStale):
			return err
		}
		p.c.log.Warn("checkpoint does not fit the log, reading all headers", "partition", p.String(), "err", err)
	}
	start, _ := p.log.Bounds()
	p.sum = summary.New(start)
	return nil
}

// store appends whole batches verbatim and adds them to the summary. The caller holds writing, the summary reaches the end.
func (p *Partition) store(ctx context.Context, batches []byte) error {
	err := p.log.Append(ctx, batches)
	_, end := p.log.Bounds() // on error: which whole batches stayed
	if errors.Is(err, ErrOutOfOrder) {
		return fmt.Errorf("append to %s at offset %d: %w", p, end, err) // none of them: someone else's lie there
	}
	p.mu.Lock()
	var due bool
	for b := batches; len(b) > 0; {
		h, raw, perr := batch.Next(b)
		if perr != nil || h.Next() > end || h.Base < p.sum.End() {
			break
		}
		if oerr := p.sum.Observe(&h, raw); oerr != nil {
			p.stale, p.sum = true, nil // made anew from the log's bytes by the next one who asks
			p.c.log.Warn("summary of a batch", "partition", p.String(), "err", oerr)
			break
		}
		b = b[len(raw):]
	}
	if p.sum != nil && p.sum.Due() {
		due = true
	}
	p.mu.Unlock()
	p.notify()
	if due {
		p.c.background(func(ctx context.Context) { p.saveCheckpoint(ctx) })
	}
	if err != nil {
		return fmt.Errorf("append to %s at offset %d: %w", p, end, err)
	}
	return nil
}

// saveCheckpoint makes the log durable, and then what is known of it up to a point that the sync covers.
func (p *Partition) saveCheckpoint(ctx context.Context) {
	if !p.checkpointing.tryAcquire() {
		return // one is on its way; the next one comes 64 MB later
	}
	defer p.checkpointing.release()
	p.mu.Lock()
	if p.stale || p.sum == nil {
		p.mu.Unlock()
		return
	}
	pieces := p.sum.Checkpoint()
	p.mu.Unlock()
	err := p.Sync(ctx)
	if err == nil {
		err = p.putPieces(ctx, pieces)
	}
	if err != nil && ctx.Err() == nil {
		p.c.log.Warn("checkpoint not saved", "partition", p.String(), "err", err)
	}
}

// putPieces stores a checkpoint: its head, and the sealed pieces that are not durable yet. The caller holds checkpointing.
func (p *Partition) putPieces(ctx context.Context, pieces []summary.Piece) error {
	var fresh []summary.Piece
	stored, keep := p.c.stored(p.id, p.num), make(map[int64]struct{}, len(pieces))
	for _, piece := range pieces {
		keep[piece.ID] = struct{}{}
		if _, there := stored[piece.ID]; piece.ID == 0 || !there {
			fresh = append(fresh, piece)
		}
	}
	var gone []int64
	for id := range stored {
		if _, ok := keep[id]; !ok {
			gone = append(gone, id)
		}
	}
	return p.c.putCheckpoint(ctx, p.id, p.num, fresh, gone)
}

// cut drops each batch that reaches beyond end; end below the start empties the log there. Checkpoints are durably withdrawn
// first. On errors.ErrUnsupported nothing has changed.
func (p *Partition) cut(ctx context.Context, end int64) error {
	return p.withoutCheckpoint(ctx, func(ctx context.Context) error {
		if start, _ := p.log.Bounds(); end < start {
			return p.emptyAt(ctx, end)
		}
		if err := p.log.TruncateTo(ctx, end); err != nil {
			return fmt.Errorf("cut %s to offset %d: %w", p, end, err)
		}
		return p.rework(func() error {
			_, now := p.log.Bounds()
			return p.sum.Cut(ctx, p.log, now)
		})
	})
}

// canCut asks the host by a cut that drops nothing.
func (p *Partition) canCut(ctx context.Context) (bool, error) {
	err := p.change(ctx, func(ctx context.Context) error { return p.log.TruncateTo(ctx, math.MaxInt64) })
	if errors.Is(err, errors.ErrUnsupported) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the host whether it can cut %s: %w", p, err)
	}
	return true, nil
}

// reset drops everything; the log goes on, empty, at start.
func (p *Partition) reset(ctx context.Context, start int64) error {
	return p.withoutCheckpoint(ctx, func(ctx context.Context) error { return p.emptyAt(ctx, start) })
}

func (p *Partition) emptyAt(ctx context.Context, start int64) error {
	if err := p.log.Reset(ctx, start); err != nil {
		return fmt.Errorf("reset %s to offset %d: %w", p, start, err)
	}
	p.mu.Lock()
	p.sum.Reset(start)
	p.mu.Unlock()
	return nil
}

func (p *Partition) withoutCheckpoint(ctx context.Context, f func(context.Context) error) error {
	if err := p.checkpointing.acquire(ctx); err != nil {
		return err
	}
	defer p.checkpointing.release()
	defer p.notify()
	return p.change(ctx, func(ctx context.Context) error {
		gone := slices.Collect(maps.Keys(p.c.stored(p.id, p.num)))
		if err := p.c.putCheckpoint(ctx, p.id, p.num, nil, gone); err != nil {
			return fmt.Errorf("withdraw checkpoint of %s: %w", p, err)
		}
		return f(ctx)
	})
}

// advance drops a prefix. If that empties the log, what no byte holds any more (its last epoch) is made durable first.
func (p *Partition) advance(ctx context.Context, start int64) error {
	if err := p.checkpointing.acquire(ctx); err != nil {
		return err
	}
	defer p.checkpointing.release()
	defer p.notify()
	return p.change(ctx, func(ctx context.Context) error {
		first, end := p.log.Bounds()
		if start <= first {
			return nil
		}
		if start >= end {
			start = end
			p.mu.Lock()
			pieces := p.sum.Checkpoint()
			p.mu.Unlock()
			if err := p.Sync(ctx); err != nil {
				return err
			}
			if err := p.putPieces(ctx, pieces); err != nil {
				return err
			}
		}
		if err := p.log.AdvanceStart(ctx, start); err != nil {
			return fmt.Errorf("advance start of %s to offset %d: %w", p, start, err)
		}
		p.mu.Lock()
		p.sum.AdvanceStart(start)
		p.mu.Unlock()
		return nil
	})
}

// mirror appends batches of the source verbatim.
func (p *Partition) mirror(ctx context.Context, w fetched) error {
	if err := p.keepAbove(ctx, w.epoch); err != nil {
		return err
	}
	if err := p.forget(ctx, w.bytes); err != nil {
		return err
	}
	inside := int64(-1)
	err := p.change(ctx, func(ctx context.Context) error {
		if start, end := p.log.Bounds(); start == end && w.base < end {
			// The wanted start lies inside the batch: the whole batch is kept, and the offsets below the start are not read.
			inside = end
			if err := p.emptyAt(ctx, w.base); err != nil {
				return err
			}
		}
		return p.store(ctx, w.bytes)
	})
	if err != nil || inside < 0 {
		return err
	}
	return p.advance(ctx, inside)
}

// forget drops what an emptied log remembers of its last epoch if what follows shows that it was of another lineage.
func (p *Partition) forget(ctx context.Context, follows []byte) error {
	start, end := p.Bounds()
	if start < end {
		return nil
	}
	h, err := batch.Parse(follows)
	if err != nil {
		return fmt.Errorf("append to %s: %w", p, err)
	}
	if _, latest, err := p.tip(ctx); err != nil || h.LeaderEpoch >= latest {
		return err
	}
	return p.withoutCheckpoint(ctx, func(context.Context) error {
		p.mu.Lock()
		p.sum.Reset(end)
		p.mu.Unlock()
		return nil
	})
}

// lastEpochs are kept for takeovers: near the greatest number the leader epoch only keeps up with the source's.
const lastEpochs = math.MaxInt32 - 1000

// keepAbove raises the leader epoch here before a batch that needs it is visible (KIP-1279: never below a source epoch; raised by ten
// when that comes within three, so that it is rarely done).
func (p *Partition) keepAbove(ctx context.Context, sourceEpoch int32) error {
	enough := func() bool {
		epoch := p.LeaderEpoch()
		return sourceEpoch <= epoch-3 || sourceEpoch <= epoch && epoch >= lastEpochs
	}
	if enough() {
		return nil
	}
	return p.change(ctx, func(ctx context.Context) error {
		if enough() {
			return nil
		}
		return p.setEpoch(ctx, max(sourceEpoch, min(sourceEpoch, lastEpochs-10)+10))
	})
}

// tip is where fetching goes on: the log's end, and the last epoch before it (-1 if unknown).
func (p *Partition) tip(ctx context.Context) (end int64, epoch int32, err error) {
	err = p.know(ctx, func(s *summary.Summary) { end, epoch = s.End(), s.Epochs().Latest() })
	return end, epoch, err
}

// openTxns are the transactions that are open at the log's end.
func (p *Partition) openTxns(ctx context.Context) (list []txn.Open, err error) {
	err = p.know(ctx, func(s *summary.Summary) { list = s.Txn().Open() })
	return list, err
}

// batchBase is where the batch begins that holds offset; offset itself at the end and in a gap.
func (p *Partition) batchBase(ctx context.Context, offset int64) (int64, error) {
	var head [batch.HeaderSize]byte
	if start, end := p.Bounds(); offset <= start || offset >= end {
		return offset, nil
	}
	if _, err := p.Read(ctx, offset, head[:]); err != nil {
		return 0, err
	}
	h, err := batch.Parse(head[:])
	if err != nil {
		return 0, fmt.Errorf("read %s at offset %d: %w", p, offset, err)
	}
	return min(h.Base, offset), nil
}

// lineage is a copy of the epoch table with the bounds it belongs to.
func (p *Partition) lineage(ctx context.Context) (l lineage, err error) {
	err = p.know(ctx, func(s *summary.Summary) {
		l.start, _ = p.log.Bounds()
		l.end = s.End()
		l.epochs = append([]epochs.Entry(nil), s.Epochs().Entries()...)
	})
	return l, err
}
