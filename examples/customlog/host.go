package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sort"
	"sync"

	"github.com/clustermirror/mirror"
)

// Host is the smallest that keeps the whole contract: each partition is a slice of batches. Yours has its own log instead.
type Host struct {
	mu     sync.Mutex
	topics map[string]mirror.Topic
	logs   map[string]*partition // by topic-partition
}

// NewHost has no topics yet.
func NewHost() *Host {
	return &Host{topics: make(map[string]mirror.Topic), logs: make(map[string]*partition)}
}

// ClusterID must stay the same for the life of the data. These live as long as the process.
func (h *Host) ClusterID() string { return fmt.Sprintf("customlog-%p", h) }

// Topics lists what there is.
func (h *Host) Topics(context.Context) (list []mirror.Topic, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		t.Configs = maps.Clone(t.Configs) // the answer is the caller's
		list = append(list, t)
	}
	return list, nil
}

// EnsureTopic creates a topic or grows it.
func (h *Host) EnsureTopic(_ context.Context, t mirror.Topic) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, exists := h.topics[t.Name]; exists {
		if t.ID != (mirror.TopicID{}) && t.ID != old.ID {
			return fmt.Errorf("topic %s has id %s: %w", t.Name, old.ID, mirror.ErrTopicConflict)
		}
		old.Partitions = max(old.Partitions, t.Partitions) // may grow, nothing else
		h.topics[t.Name] = old
		return nil
	}
	if t.ID == (mirror.TopicID{}) {
		rand.Read(t.ID[:])
	}
	t.Configs = maps.Clone(t.Configs)
	h.topics[t.Name] = t
	return nil
}

// OpenLog opens one partition.
func (h *Host) OpenLog(_ context.Context, topic string, num int32) (mirror.Log, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if num < 0 || num >= h.topics[topic].Partitions {
		return nil, fmt.Errorf("%s-%d: %w", topic, num, mirror.ErrUnknownPartition)
	}
	name := fmt.Sprintf("%s/%d", topic, num)
	if h.logs[name] == nil {
		h.logs[name] = new(partition)
	}
	return &handle{p: h.logs[name]}, nil // all handles of a partition share its log
}

type partition struct {
	mu         sync.RWMutex
	start, end int64
	batches    []mirror.Batch
}

// handle is one opening of a partition.
type handle struct {
	p      *partition
	closed bool
}

// do runs f alone on the log. A log on disk would keep Bounds out of this: they must not wait for a disk.
func (h *handle) do(f func(p *partition) error) error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if h.closed {
		return mirror.ErrClosed
	}
	return f(h.p)
}

func (h *handle) Bounds() (start, end int64) {
	h.p.mu.RLock()
	defer h.p.mu.RUnlock()
	return h.p.start, h.p.end
}

func (h *handle) Append(_ context.Context, batches []byte) error {
	batches = slices.Clone(batches) // the slice is the caller's
	return h.do(func(p *partition) error {
		for b, err := range mirror.Batches(batches) {
			switch {
			case err != nil:
				return err
			case b.Base < p.end:
				return mirror.ErrOutOfOrder
			}
			p.batches, p.end = append(p.batches, b), b.Next
		}
		return nil
	})
}

func (h *handle) Read(_ context.Context, offset int64, buf []byte) (n int, err error) {
	h.p.mu.RLock()
	defer h.p.mu.RUnlock()
	switch {
	case h.closed:
		return 0, mirror.ErrClosed
	case offset < h.p.start || offset > h.p.end:
		return 0, mirror.ErrOutOfRange
	}
	for i := h.p.below(offset); i < len(h.p.batches) && n < len(buf); i++ {
		n += copy(buf[n:], h.p.batches[i].Bytes)
	}
	return n, nil
}

// below is the number of batches that end at or below the offset.
func (p *partition) below(offset int64) int {
	return sort.Search(len(p.batches), func(i int) bool { return p.batches[i].Next > offset })
}

// Sync has nothing to do here. On disk it makes durable what was appended before.
func (h *handle) Sync(context.Context) error {
	return h.do(func(*partition) error { return nil })
}

func (h *handle) TruncateTo(_ context.Context, end int64) error {
	return h.do(func(p *partition) error {
		switch {
		case end < p.start:
			return p.reset(end)
		case end < p.end:
			p.batches, p.end = p.batches[:p.below(end)], p.start
			if n := len(p.batches); n > 0 {
				p.end = max(p.start, p.batches[n-1].Next)
			}
		}
		return nil
	})
}

func (h *handle) AdvanceStart(_ context.Context, start int64) error {
	return h.do(func(p *partition) error {
		switch {
		case start > p.end:
			return p.reset(start)
		case start > p.start:
			p.batches, p.start = slices.Clone(p.batches[p.below(start):]), start
		}
		return nil
	})
}

func (h *handle) Reset(_ context.Context, start int64) error {
	return h.do(func(p *partition) error { return p.reset(start) })
}

func (p *partition) reset(start int64) error {
	p.batches, p.start, p.end = nil, start, start
	return nil
}

func (h *handle) Close() error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	h.closed = true
	return nil
}
