package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

// walkRead is how much is read at a time: many small batches at once, of large ones little more than the header.
const walkRead = 16 << 10

// walk calls f with each batch that ends beyond from and begins below to: its header and as many of its bytes as were read, which
// are enough for a control record.
func walk(ctx context.Context, p *mirror.Partition, from, to int64, f func(h *batch.Header, prefix []byte)) error {
	buf := make([]byte, walkRead)
	for from < to {
		n, err := p.Read(ctx, from, buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil // cut meanwhile
		}
		next := from
		for b := buf[:n]; len(b) > 0; {
			h, err := batch.Parse(b)
			if errors.Is(err, batch.ErrShort) {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
			if h.Size() > len(b) && next > from {
				break // read again from its beginning
			}
			if h.Base >= to {
				return nil
			}
			if h.Next() > from {
				f(&h, b[:min(h.Size(), len(b))])
			}
			next = max(next, h.Next())
			b = b[min(h.Size(), len(b)):]
		}
		if next <= from {
			return fmt.Errorf("%s: %w: no batch at offset %d", p, batch.ErrCorrupt, from)
		}
		from = next
	}
	return nil
}

// newest is the first record with the greatest timestamp below bound; -1 if there is none.
func (b *Broker) newest(ctx context.Context, p *mirror.Partition, start, bound int64) (offset, at int64, epoch int32, err error) {
	at = -1
	err = walk(ctx, p, start, bound, func(h *batch.Header, _ []byte) {
		if h.Next() <= bound && h.MaxTimestamp > at {
			at = h.MaxTimestamp
		}
	})
	if err != nil || at < 0 {
		return -1, -1, -1, err
	}
	epoch = -1
	if offset, _, err = p.OffsetForTime(ctx, time.UnixMilli(at)); err == nil && offset >= 0 {
		epoch, err = p.EpochAt(ctx, offset)
	}
	return offset, at, epoch, err
}
