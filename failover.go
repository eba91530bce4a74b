package mirror

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/txn"
)

// Taking over: what STOPPING does, once nothing is fetched any more. Each step is persisted before the next, and each may be run again
// after a crash: a position is stored once per round (round.Stored), the leader epoch is raised far above everything seen in the same
// write (round.Raised), by one when that is tried again, and nothing shows twice. DESIGN.md has it as a drawing.

// epochStep keeps the epochs of two lineages apart: a takeover goes to the next multiple above everything seen, plus a random number
// below half of it, so that two sides that take over from the same base don't use the same numbers.
const epochStep = 1 << 18

// takeoverEpoch is the leader epoch of a takeover: 8,191 of them fit, then it goes by one.
func takeoverEpoch(seen, random int32) int32 {
	if next := (int64(max(seen, 0))/epochStep + 1) * epochStep; next+epochStep/2 < 1<<31 {
		return int32(next) + random%(epochStep/2)
	}
	return seen + 1
}

// stop ends with what the round becomes when STOPPED is persisted.
func (r *replica) stop(ctx context.Context) (done round, err error) {
	r.stopFetching(ctx)
	r.mu.Lock()
	rd, sourceEpoch := r.round, r.leaderEpoch
	r.mu.Unlock()
	p, err := r.partition(ctx)
	if errors.Is(err, ErrUnknownPartition) || errors.Is(err, ErrTopicConflict) { // not here, or another topic's: nothing to take over
		rd.TakenOver = true
		return rd, nil
	}
	if err == nil {
		if err = r.finishCut(ctx, p); errors.Is(err, errors.ErrUnsupported) {
			err = nil // what was to be dropped stays, as where nobody has asked for the cut
		}
	}
	if err == nil {
		err = p.Sync(ctx)
	}
	if err != nil {
		return rd, err
	}
	r.mu.Lock()
	rd = r.round // finishCut may have changed it
	r.mu.Unlock()
	if rd.untouched() {
		rd.TakenOver = rd.Open
		return rd, nil
	}
	end, epoch, err := p.tip(ctx)
	if err != nil {
		return rd, err
	}
	rd, position, err := r.position(ctx, p, rd, end, epoch)
	if err != nil {
		return rd, err
	}
	if position != nil && rd.Offset < end { // TruncateToStable
		l, err := p.lineage(ctx)
		if err == nil {
			err = r.drop(ctx, p, l.cutting(rd.Offset, "TruncateToStable: transactions were open"), rd, position...)
		}
		if err != nil {
			return rd, err
		}
		rd.Cut, position = true, nil
	}
	if rd, err = r.raiseForTakeover(ctx, p, rd, sourceEpoch, position); err != nil {
		return rd, err
	}
	if err := p.settle(ctx, rd); err != nil {
		return rd, err
	}
	if err := r.m.c.raisePIDFloor(ctx, p); err != nil {
		return rd, err
	}
	rd.TakenOver = rd.Aligned || rd.Open || !rd.Existed
	return rd, nil
}

// untouched says that the round has done nothing yet to a partition that was here before.
func (rd round) untouched() bool { return !rd.Aligned && !rd.Cut && rd.Existed }

// position is the last mirrored position of a log with that end and last epoch, and the record that stores it, unless this round has
// stored one: what follows changes the log's end. A round that was not aligned keeps the position of the one before; a partition that
// the mirror made has mirrored nothing.
func (r *replica) position(ctx context.Context, p *Partition, rd round, end int64, epoch int32) (round, []statelog.Record, error) {
	if rd.Stored || !rd.Aligned && rd.Existed {
		return rd, nil, nil
	}
	switch {
	case !rd.Aligned:
		epoch = -1
	case r.m.opts.stable >= 0:
		var err error
		if end, epoch, err = r.stablePosition(ctx, p, end, epoch); err != nil {
			return rd, nil, err
		}
	}
	if before := (Position{rd.Epoch, rd.Offset}); rd.Known && !(Position{epoch, end}).beats(before) {
		// The source has lost something since, or nothing of it came, so the numbers are not greater, and yet this is the later
		// takeover. An epoch above the last one's says so; more is not kept for it, since the cut goes to the smaller of the offset
		// and the epoch's end.
		epoch = max(epoch, p.LeaderEpoch(), min(before.Epoch, math.MaxInt32-1)+1)
	}
	rd.Stored, rd.Epoch, rd.Offset = true, epoch, end
	return rd, []statelog.Record{{Key: r.key(statelog.TypePosition), Value: statelog.Position{Epoch: epoch, Offset: end}.Append(nil)}}, nil
}

// stablePosition is the position of TruncateToStable: it is stored, and then the log is cut to it. A host that can't cut keeps all.
func (r *replica) stablePosition(ctx context.Context, p *Partition, end int64, epoch int32) (int64, int32, error) {
	lso, err := p.LastStableOffset(ctx)
	if err != nil || lso >= end {
		return end, epoch, err
	}
	if can, err := p.canCut(ctx); err != nil || !can {
		return end, epoch, err
	}
	if limit := r.m.opts.stable; end-lso > limit {
		if err := r.mustAllow(fmt.Errorf("%s: TruncateToStable would cut [%d, %d), more than its limit of %d; Recover allows it", r, lso, end, limit)); err != nil {
			return 0, 0, err
		}
	}
	if start, _ := p.Bounds(); lso <= start {
		return lso, -1, nil
	}
	epoch, err = p.EpochAt(ctx, lso-1)
	return lso, epoch, err
}

// raiseForTakeover persists the position and the new leader epoch in one write.
func (r *replica) raiseForTakeover(ctx context.Context, p *Partition, rd round, sourceEpoch int32, position []statelog.Record) (round, error) {
	err := p.change(ctx, func(ctx context.Context) error {
		p.mu.Lock()
		seen := max(p.epoch, p.sum.Epochs().Latest(), sourceEpoch, rd.Epoch, -1)
		p.mu.Unlock()
		if seen == math.MaxInt32 {
			return undecided(fmt.Errorf("take over %s: %w", r, errNoEpochLeft))
		}
		// Tried again, it goes up by one: what was written under the last one may be lost, and may have been seen. If the log has more
		// than the state knows, or the state was loaded since, which may be an older one, the next one may be another's.
		to := seen + 1
		if !rd.Raised || !r.raised || seen > p.c.leaderEpoch(p.id, p.num) {
			to = takeoverEpoch(seen, rand.Int32()) //nolint:gosec // apart, not secret
		}
		if !rd.Raised {
			rd.Raised, rd.Local = true, to
		}
		return p.setEpoch(ctx, to, append(position, r.roundRecord(rd))...)
	})
	if err != nil {
		return rd, err
	}
	r.raised = true
	r.mu.Lock()
	r.round = rd
	r.mu.Unlock()
	return rd, nil
}

// settle ends the open transactions and the producers' states: on return the log is one that local writers can go on with.
func (p *Partition) settle(ctx context.Context, rd round) error {
	return p.change(ctx, func(ctx context.Context) error {
		now := time.Now().UnixMilli()
		p.mu.Lock()
		open := p.sum.Txn().Open()
		epoch := p.epoch
		p.mu.Unlock()
		for _, o := range open {
			_, end := p.log.Bounds()
			producerEpoch, err := p.producerEpoch(ctx, o)
			if err == nil {
				err = p.store(ctx, batch.AppendControl(nil, end, epoch, o.ProducerID, producerEpoch, batch.Control{Type: batch.ControlAbort}, now))
			}
			if err != nil {
				return fmt.Errorf("abort the transaction of producer %d, open since offset %d: %w", o.ProducerID, o.FirstOffset, err)
			}
		}
		done, err := p.endsWithReset(ctx, rd)
		if err != nil {
			return err
		}
		if !done {
			_, end := p.log.Bounds()
			if err := p.store(ctx, batch.AppendControl(nil, end, epoch, -1, -1, batch.Control{Type: batch.ControlMirrorPIDReset}, now)); err != nil {
				return fmt.Errorf("reset producers: %w", err)
			}
		}
		return p.Sync(ctx)
	})
}

// endsWithReset says that an earlier run of this stop got as far as the reset batch.
func (p *Partition) endsWithReset(ctx context.Context, rd round) (bool, error) {
	p.mu.Lock()
	base, _, ok := p.sum.LastBatch()
	end := p.sum.End()
	p.mu.Unlock()
	if !ok || base < rd.Offset || end == rd.Offset {
		return false, nil
	}
	raw, err := p.readBatch(ctx, base)
	if err != nil {
		return false, err
	}
	h, err := batch.Parse(raw)
	if err != nil || !h.Control() {
		return false, err
	}
	c, err := batch.ParseControl(raw)
	return err == nil && c.PIDReset() && h.LeaderEpoch > rd.Epoch, err
}

// raisePIDFloor makes sure that no producer id is handed out here that came with the topic: with the same id, the first batches of a
// new producer would pass for duplicates.
func (c *Coordinator) raisePIDFloor(ctx context.Context, p *Partition) error {
	top, err := p.MaxProducerID(ctx)
	if err != nil {
		return err
	}
	if err := c.flooring.acquire(ctx); err != nil { // partitions stop at once: the greatest of them must stay
		return err
	}
	defer c.flooring.release()
	if floor := c.ProducerIDFloor(); top > floor {
		rec := statelog.Record{Key: statelog.Key{Type: typePIDFloor}, Value: binary.BigEndian.AppendUint64(nil, uint64(top))}
		if err := c.put(ctx, rec); err != nil {
			return fmt.Errorf("persist producer id floor %d: %w", top, err)
		}
	}
	if c.raise != nil {
		if err := c.raise.RaiseProducerID(ctx, max(top, c.ProducerIDFloor())); err != nil {
			return fmt.Errorf("raise the host's producer ids above %d: %w", top, err)
		}
	}
	return nil
}

func (r *replica) putRound(ctx context.Context, rd round, more ...statelog.Record) error {
	if err := r.m.c.put(ctx, append(more, r.roundRecord(rd))...); err != nil {
		return fmt.Errorf("persist round of %s: %w", r, err)
	}
	r.mu.Lock()
	r.round = rd
	r.mu.Unlock()
	return nil
}

// clampOffsets makes sure that no committed offset lies above a cut: the ceiling is kept for hosts that ask, and hosts that can do
// it at once are told.
func (p *Partition) clampOffsets(ctx context.Context, end int64) error {
	return p.change(ctx, func(ctx context.Context) error {
		if before, ok := p.c.ceiling(p.id, p.num); ok {
			end = min(end, before)
		}
		if p.c.clamp != nil {
			if err := p.c.clamp.ClampOffsets(ctx, p.topic, p.num, end); err != nil {
				return fmt.Errorf("clamp committed offsets of %s to %d: %w", p, end, err)
			}
			return nil
		}
		return p.c.put(ctx, statelog.Record{Key: ceilingKey(p.id, p.num), Value: binary.BigEndian.AppendUint64(nil, uint64(end))})
	})
}

// producerEpoch finds the epoch of an open transaction's producer: its marker must carry it.
func (p *Partition) producerEpoch(ctx context.Context, o txn.Open) (int16, error) {
	var head [batch.HeaderSize]byte
	for at := o.FirstOffset; at < o.Next; {
		if _, err := p.Read(ctx, at, head[:]); err != nil {
			return 0, err
		}
		h, err := batch.Parse(head[:])
		if err != nil {
			return 0, fmt.Errorf("read %s at offset %d: %w", p, at, err)
		}
		if h.ProducerID == o.ProducerID {
			return h.ProducerEpoch, nil
		}
		at = h.Next()
	}
	return 0, fmt.Errorf("no batch of producer %d in %s [%d, %d)", o.ProducerID, p, o.FirstOffset, o.Next)
}

// promote waits until nothing that the source has acknowledged is missing here, and then takes the topic over. What counts is the
// real end of the leader's log, not its high watermark: acks=1 writes above it were acknowledged too, and a commit may wait for its
// marker.
func (m *Mirror) promote(ctx context.Context, t *mirrorTopic) error {
	pause := m.newBackoff()
	var moved error
	ends := make(map[int32]int64)
	look := m.nextLook()
	for quiet := 0; ; { // two looks, so that a write between two answers is seen, also if it has been mirrored since
		moved = nil
		if t.wishedNow() == Stopped {
			return hint(ErrStopped, "it is writable here, or about to be: Remove answers when it is")
		}
		if t.unseen(look) {
			moved = errors.New("the source has not said yet which partitions it has")
		}
		for _, r := range t.partitions() {
			if err := r.hopeless(); err != nil {
				return fmt.Errorf("partition %d: %w", r.num, err)
			}
			end, err := r.missing(ctx)
			if err == nil {
				if before, ok := ends[r.num]; ok && end != before {
					err = fmt.Errorf("the source has gone on from offset %d to %d", before, end)
				}
				ends[r.num] = end
			}
			if err != nil {
				moved = errors.Join(moved, fmt.Errorf("partition %d: %w", r.num, err))
			}
		}
		if quiet++; moved != nil {
			quiet = 0
		}
		if quiet == 2 {
			break
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
			if moved == nil {
				moved = errors.New("the source was quiet for one look only")
			}
			next := "stop the producers at the source and call Promote again"
			for _, r := range t.partitions() {
				if err := r.unreachable(); err != nil {
					next = fmt.Sprintf("the source does not answer (%v): call Promote again when it does", err)
					break
				}
			}
			return hint(fmt.Errorf("%w: %w", ctx.Err(), moved), next+", or give up what is missing with Remove")
		}
	}
	if _, err := m.want(ctx, t.name, Stopped); err != nil {
		return err
	}
	return t.awaitStop(ctx)
}

// missing says what of the source is not here yet; if nothing is, it answers the end.
func (r *replica) missing(ctx context.Context) (end int64, err error) {
	r.mu.Lock()
	p, leader, epoch := r.part, r.leader, r.leaderEpoch
	r.mu.Unlock()
	if p == nil || leader < 0 || !r.settled() {
		if err := r.unreachable(); err != nil {
			return -1, fmt.Errorf("not mirroring yet: %w", err)
		}
		return -1, errors.New("not mirroring yet")
	}
	a, err := r.epochEnd(ctx, leader, epoch, epoch)
	if err != nil {
		return -1, err
	}
	_, end = p.Bounds()
	lso, err := p.LastStableOffset(ctx)
	switch {
	case err != nil:
	case a.end < 0:
		err = fmt.Errorf("the source does not say where its leader epoch %d ends, so nobody can know that all is here", epoch)
	case a.end != end:
		err = fmt.Errorf("the source ends at offset %d, here it is %d", a.end, end)
	case lso != end:
		err = fmt.Errorf("a transaction is open since offset %d", lso)
	default:
		err = r.agrees(ctx, p, leader, epoch)
	}
	return end, err
}

func (r *replica) isTakenOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.round.TakenOver
}
