package mirror

import (
	"errors"
	"fmt"
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
	if ended := r.m.ended(); ended != nil { // that requests are cut says nothing of the source
		if !errors.Is(ended, ErrFenced) {
			return
		}
		h, err = Stalled, ended
	}
	r.mu.Lock()
	if s := r.stored.state; s == Paused || s == Stopped { // nothing is asked of the source for it
		h, err = OK, nil
	}
	before := r.health
	r.health, r.trouble = h, err
	if before == Unreachable && h != Unreachable {
		r.moved = time.Now() // it is not its fault that nothing came
	}
	// Catching up and being caught up alternate with every batch: only what someone may want to act on is an event.
	bad := h == Unreachable || h == Stalled
	tell := h != before && (bad || before == Unreachable || before == Stalled)
	if tell { // under the mutex, so that the last event is the last change
		r.m.c.events.send(Event{
			Kind: HealthChanged, Mirror: r.m.name, Topic: r.t.name, Partition: r.num,
			Before: string(before), After: string(h), Err: err,
		})
	}
	r.mu.Unlock()
	if tell {
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
	still := h == CatchingUp && r.health == Stalled && now.Sub(r.moved) > r.m.opts.stallAfter
	r.mu.Unlock()
	if !still { // an answer without records ends no stall
		r.feel(h, nil)
	}
}

// progressed says that records were appended.
func (r *replica) progressed(bytes int) {
	r.mu.Lock()
	r.bytes += int64(bytes)
	r.moved, r.realigned = time.Now(), 0
	r.mu.Unlock()
	r.recovered()
}

// watch finds partitions that are behind and get nothing: fresh metadata and a new connection may help, again and again while the source
// answers, and someone should know.
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
			fresh := r.health == CatchingUp
			stuck := r.stored.state == Mirroring && (fresh || r.health == Stalled) && r.sourceEnd > ours && since > m.opts.stallAfter
			prod := stuck && (fresh || r.heard.After(r.prodded) && now.Sub(r.prodded) > m.opts.stallAfter)
			if prod {
				r.prodded = now
			}
			sourceEnd := r.sourceEnd
			if p != nil {
				r.hung = p.hung(now, ours >= sourceEnd, r.sourceLSO)
			}
			r.mu.Unlock()
			if !stuck {
				continue
			}
			r.feel(Stalled, fmt.Errorf("source end %d, mirrored to %d, and no record for %v", sourceEnd, ours, since.Round(time.Second)))
			if f != nil && prod {
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
