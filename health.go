package mirror

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Health: what the fetch loops and requests see of the source, told apart from the states. Every change is an event.

// troubled says that the source, or a partition's leader, can't be reached or doesn't serve the partition.
func (m *Mirror) troubled(r *replica, err error) { r.feel(Unreachable, err) }

// reached says that the source serves the partition.
func (m *Mirror) reached(r *replica) {
	r.mu.Lock()
	unwell := r.health == Unreachable
	r.mu.Unlock()
	if unwell {
		r.feel(CatchingUp, nil)
	}
}

func (r *replica) feel(h Health, err error) {
	r.mu.Lock()
	before := r.health
	r.health, r.trouble = h, err
	if before == Unreachable && h != Unreachable {
		r.moved = time.Now() // it is not its fault that nothing came
	}
	r.mu.Unlock()
	// Catching up and being caught up alternate with every batch: only what someone may want to act on is an event.
	if bad := h == Unreachable || h == Stalled; h != before && (bad || before == Unreachable || before == Stalled) {
		r.m.c.events.send(Event{
			Kind: HealthChanged, Mirror: r.m.name, Topic: r.t.name, Partition: r.num,
			Before: string(before), After: string(h), Err: err,
		})
		r.m.c.log.Info("health", "mirror", r.m.name, "partition", r.String(), "from", string(before), "to", string(h), "err", err)
	}
}

// seen takes what an answer says of the source's log. Whoever has all of it is well.
func (r *replica) seen(start, end, ours int64) {
	now := time.Now()
	r.mu.Lock()
	behind := r.sourceEnd > ours
	r.sourceStart, r.sourceEnd, r.heard = start, max(end, ours), now
	h := CatchingUp
	if r.sourceEnd <= ours {
		h, r.whole = OK, now
	} else if !behind {
		r.moved = now // it falls behind now
	}
	r.mu.Unlock()
	r.feel(h, nil)
}

// progressed says that records were appended.
func (r *replica) progressed(bytes int) {
	r.mu.Lock()
	r.bytes += int64(bytes)
	r.moved, r.mayCut, r.partings = time.Now(), false, 0
	r.mu.Unlock()
	r.recovered()
}

// watch finds partitions that are behind and get nothing: fresh metadata and a new connection may help, and someone should know.
func (m *Mirror) watch(now time.Time) {
	stalled := make(map[*fetcher]bool)
	for _, t := range m.mustAll() {
		for _, r := range t.partitions() {
			r.mu.Lock()
			f, p, since := r.fetcher, r.part, now.Sub(r.moved)
			ours := int64(0)
			if p != nil {
				_, ours = p.Bounds()
			}
			stuck := r.stored.state == Mirroring && r.health == CatchingUp && r.sourceEnd > ours && since > m.opts.stallAfter
			sourceEnd := r.sourceEnd
			if p != nil {
				r.hung = p.hung(now, ours >= sourceEnd, r.sourceLSO)
			}
			r.mu.Unlock()
			if !stuck {
				continue
			}
			r.feel(Stalled, fmt.Errorf("source end %d, mirrored to %d, and no record for %v", sourceEnd, ours, since.Round(time.Second)))
			if f != nil {
				stalled[f] = true
			}
		}
	}
	for f := range stalled {
		f.reconnect()
		m.refreshSoon()
	}
}

// hungAfter is Kafka's transaction.max.timeout.ms: no transaction should be open for longer.
const hungAfter = 15 * time.Minute

// hung names a transaction that keeps read-committed readers waiting and that nobody will end: it has been open for too long, or the
// source has ended it and we hold all that it has. It asks only what is known without reading.
func (p *Partition) hung(now time.Time, whole bool, sourceLSO int64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stale || p.sum == nil {
		return ""
	}
	lso := p.sum.LastStable()
	if lso == p.sum.End() {
		return ""
	}
	if whole && sourceLSO > lso {
		return fmt.Sprintf("a transaction is open since offset %d, though the source's last stable offset is %d", lso, sourceLSO)
	}
	for _, o := range p.sum.Txn().Open() {
		if o.FirstOffset == lso && o.Timestamp >= 0 && now.Sub(time.UnixMilli(o.Timestamp)) > hungAfter {
			return fmt.Sprintf("the transaction of producer %d is open since offset %d, %s", o.ProducerID, o.FirstOffset, time.UnixMilli(o.Timestamp).UTC().Format(time.RFC3339))
		}
	}
	return ""
}

// reconnect closes the loop's connection; it makes a new one.
func (f *fetcher) reconnect() {
	f.mu.Lock()
	s := f.live
	f.mu.Unlock()
	if s != nil {
		f.asked.Store(true)
		s.Close()
	}
}

// absorb appends what was fetched, unless it was fetched for a position that holds no more.
func (r *replica) absorb(ctx context.Context, w fetched) error {
	if err := r.appending.acquire(ctx); err != nil {
		return nil // the loop is ending: the next one fetches it again
	}
	defer r.appending.release()
	r.mu.Lock()
	p, current := r.part, r.gen == w.c.gen
	r.mu.Unlock()
	if !current {
		return nil
	}
	if len(w.bytes) > 0 {
		if err := p.mirror(ctx, w); err != nil {
			return err
		}
		r.progressed(len(w.bytes))
	}
	start, end := p.Bounds()
	if w.logStart > start {
		if err := p.advance(ctx, min(w.logStart, end)); err != nil {
			return err
		}
	}
	r.seen(w.logStart, w.sourceEnd, end)
	return nil
}

// mirror appends batches of the source verbatim.
func (p *Partition) mirror(ctx context.Context, w fetched) error {
	if err := p.keepAbove(ctx, w.epoch); err != nil {
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
