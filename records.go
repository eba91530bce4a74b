package mirror

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/summary"
)

const (
	// recordsChunk is how much of a log Records reads at once; more only for a batch that is larger.
	recordsChunk = 64 << 10
	// maxRecord is the size beyond which a record is not believed: what a few bytes decompress to has no bound of its own.
	maxRecord = 256 << 20
)

// ReadOption changes what Records yields.
type ReadOption func(*readOptions)

type readOptions struct{ uncommitted, follow bool }

// ReadUncommitted yields records of open and aborted transactions too. By default Records is read-committed, as
// isolation.level=read_committed is for Kafka's consumers.
func ReadUncommitted() ReadOption { return func(o *readOptions) { o.uncommitted = true } }

// Follow goes on at the end and waits for more. It ends only with the context, an error, or the loop's break.
func Follow() ReadOption { return func(o *readOptions) { o.follow = true } }

// CutError is yielded by Records when the log no longer holds what was read from it: the source lost records (an unclean election), or
// a failback dropped what it never had. Whoever acted on the records from From on has to undo that; if the loop goes on, Records reads
// on from From, and tells of cuts that came meanwhile. From may lie below where Records began: then of what was read before, with
// another Records, some is gone too.
//
// Cuts from before Records began are not told. A program that stores where it is, to go on after a restart, stores EpochAt of the
// offset before with it: if the partition answers another epoch then, it was cut.
type CutError struct {
	Topic     string
	Partition int32
	From, To  int64 // of the offsets below To, those from From on are gone, or are others now
}

func (e *CutError) Error() string {
	return fmt.Sprintf("%s-%d was cut: the records read at offsets [%d, %d) are gone; undo what they led to and read on from %d",
		e.Topic, e.Partition, e.From, e.To, e.From)
}

// Records yields the partition's records from an offset on, at the source's offsets; control records never. It ends at the end of
// the log as it is when the iteration begins, or without ReadUncommitted at the last stable offset, unless it follows. The
// messages are the caller's. A null key or value is nil; Time is the batch's for LogAppendTime, zero if the record has none.
//
// To begin with the first record take the start that Bounds answers: 0 is out of range once the log begins later.
//
// An error is yielded with an otherwise empty message, and is the last thing: one that wraps ErrOutOfRange and names the bounds for
// an offset outside of them (also if retention overtakes a slow reader), the error of ctx, or one that names the offset of bytes that
// cannot be decoded. Only a *CutError, if the log was cut below what was read, is followed by the records that are there now.
func (p *Partition) Records(ctx context.Context, from int64, opts ...ReadOption) iter.Seq2[kafka.Message, error] {
	return func(yield func(kafka.Message, error) bool) {
		r := reader{p: p, from: from, pos: from}
		for _, opt := range opts {
			opt(&r.readOptions)
		}
		err := r.begin(ctx)
		for {
			if err == nil {
				err = r.run(ctx, func(m kafka.Message) bool { return yield(m, nil) })
			}
			if err == nil || errors.Is(err, errBreak) {
				return
			}
			var cut *CutError
			if !yield(kafka.Message{Topic: p.topic, Partition: int(p.num)}, err) || !errors.As(err, &cut) {
				return
			}
			err = r.back(ctx, cut.From)
		}
	}
}

// errBreak says that the loop over the records wants no more.
var errBreak = errors.New("break")

// reader is one iteration of Records.
type reader struct {
	readOptions
	p     *Partition
	from  int64
	start int64 // of the log when it began
	pos   int64 // everything from from up to here was read
	buf   []byte

	// past are the leader epochs of the log up to pos, as Partition.EpochAt answers them, each with where it ended so far. While
	// they still are what the log says, nothing below pos was cut: an epoch and an offset never name two batches.
	past []epochUpTo
}

type epochUpTo struct {
	epoch int32
	end   int64
}

func (r *reader) run(ctx context.Context, yield func(kafka.Message) bool) error {
	moved := make(chan struct{}, 1)
	defer r.p.Notify(moved)()
	_, end := r.p.Bounds()
	for {
		limit, err := r.limit(ctx, end)
		for more := true; err == nil && more && r.pos < limit; {
			more, err = r.chunk(ctx, limit, yield)
		}
		if err != nil || !r.follow {
			return err
		}
		select {
		case <-moved:
		case <-r.p.gone:
			return fmt.Errorf("records of %s: wait at offset %d: %w", r.p, r.pos, ErrUnknownPartition)
		case <-ctx.Done():
			return fmt.Errorf("records of %s: wait at offset %d: %w", r.p, r.pos, ctx.Err())
		case <-r.p.c.ctx.Done():
			return fmt.Errorf("records of %s: wait at offset %d: %w", r.p, r.pos, context.Cause(r.p.c.ctx))
		}
		if err := r.checkCut(ctx); err != nil {
			return err
		}
		if _, end = r.p.Bounds(); end < r.pos {
			return r.cut(ctx)
		}
	}
}

// begin notes the epochs of what lies below, for somebody may have read it before: a cut that begins there is told from there on.
func (r *reader) begin(ctx context.Context) error {
	if start, end := r.p.Bounds(); r.from < start || r.from > end {
		return fmt.Errorf("records of %s from offset %d, log is [%d, %d): %w", r.p, r.from, start, end, ErrOutOfRange)
	}
	return r.p.know(ctx, func(s *summary.Summary) {
		r.start, _ = r.p.Bounds()
		end := r.from
		for _, e := range slices.Backward(s.Epochs().Entries()) {
			if e.Start < r.from {
				r.past = append(r.past, epochUpTo{e.Epoch, end})
				end = e.Start
			}
		}
		slices.Reverse(r.past)
		r.passed(s.Epochs().At(r.from-1), r.from)
	})
}

// back goes back to where a cut began: what was read below it still counts.
func (r *reader) back(ctx context.Context, to int64) error {
	if to <= r.start {
		r.from, r.pos, r.past = to, to, nil
		return r.begin(ctx)
	}
	known := slices.IndexFunc(r.past, func(e epochUpTo) bool { return e.end >= to })
	r.past = r.past[:known+1]
	r.past[known].end, r.pos = to, to
	return r.checkCut(ctx)
}

// limit is how far to read now; end is the end of the log, taken before.
func (r *reader) limit(ctx context.Context, end int64) (int64, error) {
	if r.uncommitted {
		return end, nil
	}
	stable, err := r.p.LastStableOffset(ctx)
	return min(stable, end), err
}

// chunk reads some batches that begin below limit, and yields their records. more is false if there are none.
func (r *reader) chunk(ctx context.Context, limit int64, yield func(kafka.Message) bool) (more bool, err error) {
	b, err := r.read(ctx)
	if err != nil || len(b) == 0 {
		return false, err
	}
	var aborted []AbortedTxn
	if !r.uncommitted {
		if aborted, err = r.p.Aborted(ctx, r.pos, endOf(b)); err != nil {
			return false, err
		}
	}
	_, end := r.p.Bounds()
	for len(b) > 0 {
		h, raw, err := batch.Next(b)
		if errors.Is(err, batch.ErrShort) {
			break // it begins the next chunk
		}
		if err == nil && h.Base >= limit {
			return false, nil
		}
		if err == nil {
			err = reaches(&h, r.pos)
		}
		if err == nil {
			err = r.batch(ctx, h, raw, aborted, end, yield)
		}
		if errors.Is(err, errBreak) {
			return false, err
		}
		if err != nil {
			return false, fmt.Errorf("records of %s at offset %d: %w", r.p, r.pos, err)
		}
		r.pos = h.Next()
		r.passed(h.LeaderEpoch, r.pos)
		b = b[len(raw):]
	}
	return true, nil
}

// reaches refuses a batch that a host should not have answered for the offset: whoever reads on behind it would never end.
func reaches(h *batch.Header, offset int64) error {
	if h.Next() <= offset {
		return fmt.Errorf("%w: the host answered batch [%d, %d)", batch.ErrCorrupt, h.Base, h.Next())
	}
	return nil
}

// endOf is where the last whole batch in b ends.
func endOf(b []byte) (end int64) {
	for {
		h, raw, err := batch.Next(b)
		if err != nil {
			return end
		}
		end, b = h.Next(), b[len(raw):]
	}
}

// read answers whole batches from pos on; nothing at the end of the log. What was read before was still in the log after they
// were.
func (r *reader) read(ctx context.Context) (b []byte, err error) {
	b, r.buf, err = r.p.readBatches(ctx, r.pos, r.buf)
	if cut := r.checkCut(ctx); cut != nil {
		return nil, cut
	}
	return b, err
}

// readBatches reads from offset on into buf, or a larger one if the first batch needs it. The last batch may be cut short; nothing
// at the end of the log.
func (p *Partition) readBatches(ctx context.Context, offset int64, buf []byte) (b, grown []byte, err error) {
	if buf == nil {
		buf = make([]byte, recordsChunk)
	}
	for {
		n, err := p.Read(ctx, offset, buf)
		if err != nil {
			return nil, buf, err
		}
		if _, end := p.Bounds(); n == 0 && end == offset {
			return nil, buf, nil
		}
		if _, _, err := batch.Next(buf[:n]); !errors.Is(err, batch.ErrShort) {
			return buf[:n], buf, nil
		}
		if n < len(buf) {
			return nil, buf, fmt.Errorf("read %s at offset %d: the log ends inside a batch: %w", p, offset, batch.ErrCorrupt)
		}
		buf = make([]byte, 2*len(buf)) // not what the batch claims: as far as the log has bytes for it
	}
}

// passed notes that everything below end was read, up to a batch of the epoch.
func (r *reader) passed(epoch int32, end int64) {
	last := len(r.past) - 1
	if last < 0 || epoch > r.past[last].epoch {
		r.past = append(r.past, epochUpTo{epoch, end})
		return
	}
	r.past[last].end = end // an epoch below the one before it counts as that one, as in the log's own table
}

// checkCut answers the *CutError if the log no longer holds what was read.
func (r *reader) checkCut(ctx context.Context) error {
	epoch, err := r.p.EpochAt(ctx, r.pos-1)
	if err != nil {
		return err
	}
	start, end := r.p.Bounds()
	switch {
	case end < r.pos:
		return r.cut(ctx)
	case start >= r.pos:
		return nil // nothing that was read is held any more, and nobody knows its epoch
	case epoch != r.past[len(r.past)-1].epoch:
		return r.cut(ctx)
	}
	return nil
}

// cut makes the *CutError: what was there and what is there part where the last epoch that both know ends for the first of them.
//
//	read   epoch 3 [0, 50)  epoch 5 [50, 60)
//	now    epoch 3 [0, 40)  epoch 6 [40, 90)      cut at 40
func (r *reader) cut(ctx context.Context) error {
	e := &CutError{Topic: r.p.topic, Partition: r.p.num, From: r.start, To: r.pos}
	for _, known := range slices.Backward(r.past) {
		var found int32
		var end int64
		err := r.p.know(ctx, func(s *summary.Summary) { found, end = s.Epochs().EndOf(known.epoch, s.End()) }) // of batches, not of the leader
		if err != nil {
			return err
		}
		if found == known.epoch && found >= 0 {
			e.From = min(end, known.end)
			break
		}
	}
	_, end := r.p.Bounds()
	e.From = min(e.From, end)
	return e
}

// batch yields the records of one batch.
func (r *reader) batch(ctx context.Context, h batch.Header, raw []byte, aborted []AbortedTxn, end int64, yield func(kafka.Message) bool) error {
	if h.Control() || h.Records == 0 || isAborted(&h, aborted) {
		return ctx.Err() // the host may not look at it
	}
	for rec, err := range decode(h, raw) {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		offset := h.Base + int64(rec.OffsetDelta)
		if offset < r.pos {
			continue // the batch begins below what was asked for
		}
		m := kafka.Message{
			Topic:         r.p.topic,
			Partition:     int(r.p.num),
			Offset:        offset,
			HighWaterMark: end,
			Key:           rec.Key,
			Value:         rec.Value,
			Time:          recordTime(&h, &rec),
		}
		if len(rec.Headers) > 0 {
			m.Headers = make([]kafka.Header, len(rec.Headers))
			for i, x := range rec.Headers {
				m.Headers[i] = kafka.Header(x)
			}
		}
		if !yield(m) {
			return errBreak
		}
	}
	return nil
}

func isAborted(h *batch.Header, aborted []AbortedTxn) bool {
	if !h.Transactional() {
		return false
	}
	for _, a := range aborted {
		if a.ProducerID == h.ProducerID && a.FirstOffset < h.Next() && h.Base <= a.LastOffset {
			return true
		}
	}
	return false
}

func recordTime(h *batch.Header, rec *batch.Record) time.Time {
	ms := h.BaseTimestamp + rec.TimestampDelta
	if h.LogAppendTime() {
		ms = h.MaxTimestamp
	}
	if ms < 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// decode yields the records of one whole batch. They share no bytes with it, and memory is taken for one at a time, whatever it
// decompresses to.
func decode(h batch.Header, raw []byte) iter.Seq2[batch.Record, error] {
	return func(yield func(batch.Record, error) bool) {
		err := batch.Check(raw)
		body := io.Reader(bytes.NewReader(raw[batch.HeaderSize:]))
		if kind := compress.Compression(h.Codec()); err == nil && kind != compress.None {
			codec := kind.Codec()
			switch {
			case codec == nil:
				err = fmt.Errorf("%w: compression codec %d", batch.ErrCorrupt, h.Codec())
			case kind == compress.Snappy:
				err = checkSnappy(raw[batch.HeaderSize:])
			}
			if err == nil {
				decompressor := codec.NewReader(body)
				defer decompressor.Close()
				body = decompressor
			}
		}
		if err != nil {
			yield(batch.Record{}, err)
			return
		}
		batch.ReadRecords(h, body, maxRecord)(yield)
	}
}

// checkSnappy refuses blocks that claim more than they can hold: the decoder takes memory by the claim. The body is one block
// (as librdkafka writes it), or a header of 16 bytes and blocks that follow their lengths (as Java's library does).
func checkSnappy(body []byte) error {
	const growth = 22 // three bytes make 64 at most
	block := func(b []byte) error {
		if claim, n := binary.Uvarint(b); n <= 0 || claim > growth*uint64(len(b)) {
			return fmt.Errorf("%w: snappy block of %d bytes claims to hold %d", batch.ErrCorrupt, len(b), claim)
		}
		return nil
	}
	if !bytes.HasPrefix(body, []byte("\x82SNAPPY\x00")) || len(body) < 16 {
		return block(body)
	}
	for body = body[16:]; len(body) > 0; {
		if len(body) < 4 || int64(binary.BigEndian.Uint32(body)) > int64(len(body)-4) {
			return fmt.Errorf("%w: snappy block is cut short", batch.ErrCorrupt)
		}
		n := 4 + int(binary.BigEndian.Uint32(body))
		if err := block(body[4:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	return nil
}

// OffsetForTime is the first record whose timestamp is at or above t: its offset and timestamp; (-1, zero) if there is none.
// Kafka's ListOffsets by timestamp.
func (p *Partition) OffsetForTime(ctx context.Context, t time.Time) (offset int64, at time.Time, err error) {
	start, end := p.Bounds()
	pos := start
	if by, ok := p.log.(OffsetForTimer); ok {
		base, err := by.OffsetForTime(ctx, t)
		if err != nil {
			return -1, time.Time{}, fmt.Errorf("look up %v in %s: %w", t, p, err)
		}
		if base < 0 {
			return -1, time.Time{}, nil
		}
		pos = max(pos, base)
	}
	// A timestamp has milliseconds: the first at or above t is the first at or above the next whole one.
	ms := t.Add(time.Millisecond - 1).UnixMilli()
	fail := func(err error) (int64, time.Time, error) {
		return -1, time.Time{}, fmt.Errorf("look up %v in %s at offset %d: %w", t, p, pos, err)
	}
	var buf []byte
	for head := make([]byte, batch.HeaderSize); pos < end; {
		n, err := p.Read(ctx, pos, head)
		if err != nil {
			return fail(err)
		}
		h, err := batch.Parse(head[:n])
		if err == nil {
			err = reaches(&h, pos)
		}
		if err != nil {
			return fail(err)
		}
		if h.MaxTimestamp >= ms && h.Records > 0 {
			b, grown, err := p.readBatches(ctx, pos, buf)
			if err != nil {
				return fail(err)
			}
			buf = grown
			h, raw, err := batch.Next(b)
			if err != nil {
				return fail(err)
			}
			for rec, err := range decode(h, raw) {
				if err != nil {
					return fail(err)
				}
				at, offset := recordTime(&h, &rec), h.Base+int64(rec.OffsetDelta)
				if !at.IsZero() && at.UnixMilli() >= ms && offset >= start {
					return offset, at, nil
				}
			}
		}
		pos = h.Next()
	}
	return -1, time.Time{}, nil
}
