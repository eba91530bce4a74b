package disklog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clustermirror/mirror"
)

// TrimPolicy says what of a partition may be dropped. Zero values keep everything.
type TrimPolicy struct {
	MaxBytes int64         // drop the oldest segments while at least this many bytes remain; Kafka's retention.bytes
	MaxAge   time.Duration // drop the oldest segments whose youngest record is older than this; Kafka's retention.ms
}

// Trim drops old segments of each partition of a topic. It knows nothing of mirrors: the caller sees to it that only
// topics are trimmed that no mirror owns.
func (h *Host) Trim(ctx context.Context, topic string, policy TrimPolicy) error {
	if h.readOnly {
		return ErrReadOnly
	}
	h.mu.Lock()
	partitions := int32(0)
	if t := h.topics[topic]; t != nil && t.file != nil && !t.file.deleted {
		partitions = t.file.Partitions
	}
	h.mu.Unlock()
	if partitions == 0 {
		return fmt.Errorf("disklog: trim %s: %w", topic, mirror.ErrUnknownPartition)
	}
	var errs []error
	for p := range partitions {
		l, err := h.openLog(ctx, topic, p)
		if err == nil {
			err = l.trim(ctx, policy)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("disklog: trim %s: %w", partitionName(topic, p), err))
		}
	}
	return errors.Join(errs...)
}

// trim drops whole segments from the front of the log.
func (l *log) trim(ctx context.Context, p TrimPolicy) error {
	return l.change(ctx, func() error {
		v := l.view.Load()
		total := int64(0)
		for i := range v.count() {
			_, size := v.segment(i)
			total += size
		}
		oldest := time.Now().Add(-p.MaxAge).UnixMilli()
		start := v.start
		for i := range v.count() {
			_, size := v.segment(i)
			drop := p.MaxBytes > 0 && total-size >= p.MaxBytes
			if !drop && p.MaxAge > 0 {
				youngest, err := l.youngest(ctx, v, i)
				if err != nil {
					return err
				}
				drop = youngest >= 0 && youngest < oldest
			}
			if !drop {
				break
			}
			total -= size
			start = v.end
			if i+1 < v.count() {
				next, _ := v.segment(i + 1)
				start = next.base
			}
		}
		return l.advance(ctx, start)
	})
}

// youngest is the greatest timestamp in the i-th segment, -1 if its records have none. Writer is held.
func (l *log) youngest(ctx context.Context, v *view, i int) (int64, error) {
	ts, err := l.lastTime(v, i)
	if err != nil || ts != unknownTime {
		return ts, err
	}
	if err := l.flushing.lock(ctx); err != nil {
		return 0, err
	}
	defer l.flushing.unlock()
	if i == len(v.sealed) {
		err := l.makeSure()
		return l.view.Load().grow.max, err
	}
	if err := l.rebuild(v.sealed[i]); err != nil {
		return 0, err
	}
	return l.lastTime(v, i)
}
