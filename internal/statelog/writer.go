package statelog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/clustermirror/mirror/internal/batch"
)

// batchBytes is what a batch may hold so that it stays below Kafka's default limit of 1 MB. A single Put is never split.
const batchBytes = 900 << 10

// writer is the only one who writes to the log, and knows after each error how much of what it wrote has stayed.
//
//	       durable            end
//	----------|---------|------|
//	          |  tail[0] tail[1]    appended since the last Sync that succeeded
//
// Memory knows what lies below durable, no more. When an append or a sync has failed, settle asks the log which batches of the
// tail have stayed; their keys, and all others of the failed attempt, are in doubt until memory's values for them have been
// written behind.
type writer struct {
	log           Log
	outOfOrder    error
	logger        *slog.Logger
	snapshotAfter int64

	end     int64
	durable int64
	tail    []appended
	failed  bool             // since settle was last called
	doubt   map[Key]struct{} // what the log says of these may not be what memory says
	size    int64            // bytes from the newest whole snapshot on, about
}

// appended is a batch since the last Sync.
type appended struct {
	base, next int64
	header     [batch.HeaderSize]byte // with the CRC: tells it from anybody else's batch at this offset
}

const (
	readBytes   = 256 << 10 // first size of the buffer for replay
	openRetries = 16        // of Open, when others write at the same time
)

// open replays the log and appends a fence at its end. Whoever writes in between makes the fence come out of order, or moves the
// start of the log away: then there is more to replay.
func (w *writer) open(ctx context.Context) (*state, error) {
	var st *state
	for try := 0; ; try++ {
		if st == nil {
			start, _ := w.log.Bounds()
			st = newState(start)
		}
		err := w.replay(ctx, st)
		if now, _ := w.log.Bounds(); err != nil && now > st.next && try < openRetries {
			st = nil // the prefix went away under the reads
			continue
		}
		if err == nil {
			err = st.check()
		}
		if err != nil {
			return nil, err
		}
		w.end, w.durable, w.tail, w.failed = st.next, st.next, nil, false
		err = w.append(ctx, []Record{{Key: Key{Type: typeFence}, Value: []byte{}}})
		if errors.Is(err, ErrFenced) && try < openRetries {
			continue
		}
		if err == nil {
			err = w.sync(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("fence: %w", err)
		}
		w.size += st.size
		if st.snapshot > st.start { // a crash, or an error, came before this
			w.advance(ctx, st.snapshot)
		}
		return st, nil
	}
}

// replay reads to the end of the log. The buffer grows only after the log has filled it, never by what a batch says of itself.
func (w *writer) replay(ctx context.Context, st *state) error {
	buf := make([]byte, readBytes)
	for {
		_, end := w.log.Bounds()
		n, err := w.log.Read(ctx, st.next, buf)
		if err != nil {
			return fmt.Errorf("read at offset %d: %w", st.next, err)
		}
		if n == 0 && st.next >= end {
			return nil
		}
		used, err := st.replay(buf[:n])
		if err != nil {
			return err
		}
		switch {
		case used > 0:
		case n < len(buf):
			return &DamagedError{Offset: st.next, Err: fmt.Errorf("the log ends at offset %d, but gives %d bytes of the next batch: %w", end, n, batch.ErrShort)}
		default:
			buf = make([]byte, 2*len(buf))
		}
	}
}

// commit makes recs durable as one batch. The caller then tells memory, which is what the next commit trusts.
func (w *writer) commit(ctx context.Context, recs []Record, memory func(Key) ([]byte, bool)) error {
	if err := w.settle(ctx); err != nil {
		return err
	}
	err := w.repair(ctx, memory)
	if err == nil {
		err = w.append(ctx, recs)
	}
	if err == nil {
		err = w.sync(ctx)
	}
	if err == nil {
		clear(w.doubt)
		return nil
	}
	for _, r := range recs {
		w.doubt[r.Key] = struct{}{}
	}
	return err
}

// settle finds out where the log ends after something has failed.
func (w *writer) settle(ctx context.Context) error {
	if !w.failed {
		return nil
	}
	_, end := w.log.Bounds()
	stayed := len(w.tail)
	for stayed > 0 && w.tail[stayed-1].next != end {
		stayed--
	}
	switch {
	case stayed > 0: // the newest of ours, or somebody else's batch at its place
		last := &w.tail[stayed-1]
		var header [batch.HeaderSize]byte
		n, err := w.log.Read(ctx, last.base, header[:])
		if err != nil {
			return fmt.Errorf("read back offset %d: %w", last.base, err)
		}
		if n < len(header) || header != last.header {
			return fmt.Errorf("%w: its batch is at offset %d", ErrFenced, last.base)
		}
	case end > w.durable:
		return fmt.Errorf("%w: the log ends at offset %d, not at %d", ErrFenced, end, w.durable)
	case end < w.durable:
		return &DamagedError{Offset: end, Err: fmt.Errorf("the log ends here, but was durable up to offset %d", w.durable)}
	}
	w.end, w.tail, w.failed = end, w.tail[:stayed], false
	return nil
}

// repair writes memory's values of what is in doubt.
func (w *writer) repair(ctx context.Context, memory func(Key) ([]byte, bool)) error {
	recs := make([]Record, 0, len(w.doubt))
	for k := range w.doubt {
		value, _ := memory(k)
		recs = append(recs, Record{k, value})
	}
	return w.appendAll(ctx, recs)
}

// snapshot writes recs, which are all that memory has, and drops what came before.
func (w *writer) snapshot(ctx context.Context, recs []Record) error {
	base := w.end
	recs = append(recs, Record{Key: Key{Type: typeSnapshot, N: base}, Value: []byte{}})
	err := w.appendAll(ctx, recs)
	if err == nil {
		err = w.sync(ctx)
	}
	if err == nil {
		w.advance(ctx, base)
	}
	return err
}

// advance drops what lies before a snapshot. If that fails the log is longer than it must be, until the next snapshot.
func (w *writer) advance(ctx context.Context, start int64) {
	if err := w.log.AdvanceStart(ctx, start); err != nil && ctx.Err() == nil {
		w.logger.Warn("advance the start of the state log", "offset", start, "err", err)
	}
}

// appendAll appends records as batches that stay below batchBytes, unless a single record does not.
func (w *writer) appendAll(ctx context.Context, recs []Record) error {
	for len(recs) > 0 {
		n, size := 0, int64(0)
		for n < len(recs) && (n == 0 || size+recs[n].size() <= batchBytes) {
			size += recs[n].size()
			n++
		}
		if err := w.append(ctx, recs[:n]); err != nil {
			return err
		}
		recs = recs[n:]
	}
	return nil
}

// append appends one batch.
func (w *writer) append(ctx context.Context, recs []Record) error {
	wire := make([]batch.Record, len(recs))
	for i, r := range recs {
		wire[i] = batch.Record{Key: r.Key.append(nil), Value: r.Value}
	}
	now := time.Now().UnixMilli()
	b := batch.Append(nil, batch.Header{
		Base: w.end, LeaderEpoch: -1, BaseTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	}, wire)
	t := appended{base: w.end, next: w.end + int64(len(recs)), header: [batch.HeaderSize]byte(b)}
	w.tail = append(w.tail, t)
	if err := w.log.Append(ctx, b); err != nil {
		w.failed = true
		if errors.Is(err, w.outOfOrder) {
			return fmt.Errorf("%w: %w", ErrFenced, err)
		}
		return fmt.Errorf("append at offset %d: %w", t.base, err)
	}
	w.end = t.next
	w.size += int64(len(b))
	return nil
}

// sync makes durable what was appended.
func (w *writer) sync(ctx context.Context) error {
	if err := w.log.Sync(ctx); err != nil {
		w.failed = true
		return fmt.Errorf("sync up to offset %d: %w", w.end, err)
	}
	w.durable, w.tail = w.end, w.tail[:0]
	return nil
}
