package disklog

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/clustermirror/mirror"
)

// handle is what OpenLog gives: a log, until it is closed. Several handles may share a log.
type handle struct {
	log    *log
	closed atomic.Bool
}

// do runs one call and says in its error what was asked of which partition.
func (h *handle) do(op string, f func(*log) error) error {
	if h.closed.Load() {
		return h.log.fault(op, mirror.ErrClosed)
	}
	return h.log.fault(op, f(h.log))
}

func (h *handle) Bounds() (start, end int64) {
	v := h.log.view.Load()
	return v.start, v.end
}

func (h *handle) TopicID() mirror.TopicID { return mirror.TopicID(h.log.id) }

func (h *handle) Append(ctx context.Context, batches []byte) error {
	return h.do("append to", func(l *log) error { return l.append(ctx, batches) })
}

func (h *handle) Read(ctx context.Context, offset int64, buf []byte) (n int, err error) {
	err = h.do("read", func(l *log) error {
		n, err = l.read(ctx, offset, buf)
		return err
	})
	return n, err
}

func (h *handle) Sync(ctx context.Context) error {
	return h.do("sync", func(l *log) error { return l.sync(ctx) })
}

func (h *handle) TruncateTo(ctx context.Context, end int64) error {
	return h.do("truncate", func(l *log) error { return l.truncateTo(ctx, end) })
}

func (h *handle) AdvanceStart(ctx context.Context, start int64) error {
	return h.do("advance the start of", func(l *log) error { return l.advanceStart(ctx, start) })
}

func (h *handle) Reset(ctx context.Context, start int64) error {
	return h.do("reset", func(l *log) error { return l.reset(ctx, start) })
}

func (h *handle) OffsetForTime(ctx context.Context, t time.Time) (base int64, err error) {
	err = h.do("look up a time in", func(l *log) error {
		base, err = l.offsetForTime(ctx, t)
		return err
	})
	return base, err
}

func (h *handle) Close() error {
	h.closed.Store(true)
	return nil
}
