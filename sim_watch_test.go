package mirror_test

import (
	"context"
	"time"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/memlog"
)

// watchedHost shows the judge every change of a log at the moment it happens: nobody can have seen what it has not.
type watchedHost struct {
	*memlog.Host
	s *site
}

func (h watchedHost) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	l, err := h.Host.OpenLog(ctx, topic, partition)
	if err != nil {
		return nil, err
	}
	switch topic {
	case simTopic:
		h.s.w.judge.named(h.s)
		return &watchedLog{l, h.s, l.(mirror.TopicIDer).TopicID(), partition}, nil
	case mirror.StateTopic:
		return &stateLog{l, h.s}, nil
	}
	return l, nil
}

// watchedLog is a partition of the topic.
type watchedLog struct {
	mirror.Log
	s         *site
	id        mirror.TopicID
	partition int32
}

func (l *watchedLog) TopicID() mirror.TopicID { return l.id }

func (l *watchedLog) Append(ctx context.Context, batches []byte) error {
	l.s.mu.Lock()
	l.s.appending++
	l.s.mu.Unlock()
	defer func() {
		l.s.mu.Lock()
		l.s.appending--
		l.s.mu.Unlock()
	}()
	if d := l.s.takesLong(); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return l.s.w.judge.watch(l, batches, 0, func() error { return l.Log.Append(ctx, batches) })
}

func (l *watchedLog) TruncateTo(ctx context.Context, end int64) error {
	return l.s.w.judge.watch(l, nil, end, func() error { return l.Log.TruncateTo(ctx, end) })
}

func (l *watchedLog) AdvanceStart(ctx context.Context, start int64) error {
	return l.s.w.judge.watch(l, nil, 0, func() error { return l.Log.AdvanceStart(ctx, start) })
}

func (l *watchedLog) Reset(ctx context.Context, start int64) error {
	return l.s.w.judge.watchReset(l, start, func() error { return l.Log.Reset(ctx, start) })
}

// stateLog is the log of the coordinator's state.
type stateLog struct {
	mirror.Log
	s *site
}

func (l *stateLog) Append(ctx context.Context, batches []byte) error {
	return l.s.w.judge.watchState(l.s, batches, func() error { return l.Log.Append(ctx, batches) })
}
