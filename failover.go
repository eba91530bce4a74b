package mirror

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/clustermirror/mirror/internal/statelog"
)

// stop is what STOPPING does, once nothing is fetched any more. Each step may be run again: a position is stored once per round,
// whatever happens in between.
//
//	fetching ended -> log synced -> position stored, once per round -> STOPPED
func (r *replica) stop(ctx context.Context) error {
	r.detach(ctx)
	p, err := r.partition(ctx)
	if errors.Is(err, ErrUnknownPartition) {
		return nil // never created here
	}
	if err != nil {
		return err
	}
	if err := p.Sync(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	rd := r.round
	r.mu.Unlock()
	if !rd.Aligned || rd.Stored {
		return nil // not aligned: what is here is not known to be the source's, and the older position stays
	}
	end, epoch, err := p.tip(ctx)
	if err != nil {
		return err
	}
	rd.Stored, rd.Epoch, rd.Offset = true, epoch, end
	err = r.m.c.put(ctx, r.roundRecord(rd), statelog.Record{
		Key: r.key(statelog.TypePosition), Value: statelog.Position{Epoch: epoch, Offset: end}.Append(nil),
	})
	if err != nil {
		return fmt.Errorf("store last mirrored position of %s: %w", r, err)
	}
	r.mu.Lock()
	r.round = rd
	r.mu.Unlock()
	return nil
}

// clampOffsets makes sure that no committed offset lies above a cut: the ceiling is kept for hosts that ask, and hosts that can do
// it at once are told.
func (c *Coordinator) clampOffsets(ctx context.Context, t *mirrorTopic, partition int32, end int64) error {
	key := statelog.Key{Type: typeCeiling, Topic: t.id, Partition: partition}
	if b, ok := c.store.Get(key); ok && len(b) == 8 {
		end = min(end, int64(binary.BigEndian.Uint64(b)))
	}
	if c.clamp != nil {
		if err := c.clamp.ClampOffsets(ctx, t.name, partition, end); err != nil {
			return fmt.Errorf("clamp committed offsets of %s-%d to %d: %w", t.name, partition, end, err)
		}
		return nil
	}
	return c.put(ctx, statelog.Record{Key: key, Value: binary.BigEndian.AppendUint64(nil, uint64(end))})
}
