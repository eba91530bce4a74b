package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sort"
	"sync"

	"github.com/clustermirror/mirror"
)

// Log stands for the log of a broker that was there before: all topics in memory, under one lock. The methods that the library needs
// make it a mirror.Host; add is the broker's own way in.
type Log struct {
	id     string
	mu     sync.Mutex
	topics map[string]*topic
}

type topic struct {
	mirror.Topic
	partitions []*partition
}

// partition holds batches; [start, end) are its offsets.
type partition struct {
	start, end int64
	batches    []mirror.Batch
}

// NewLog has no topics yet.
func NewLog() *Log { return &Log{id: "custom-" + rand.Text(), topics: make(map[string]*topic)} }

// add gives batches of a producer the next offsets and the leader epoch, and keeps them. The CRC covers neither.
func (l *Log) add(name string, num, epoch int32, batches []byte) (base int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.find(name, num)
	if err != nil {
		return 0, err
	}
	base, next := p.end, p.end
	batches = slices.Clone(batches)
	for b, err := range mirror.Batches(batches) {
		if err != nil {
			return 0, err
		}
		binary.BigEndian.PutUint64(b.Bytes, uint64(next))
		binary.BigEndian.PutUint32(b.Bytes[12:], uint32(epoch))
		next += b.Next - b.Base
	}
	return base, p.append(batches)
}

func (l *Log) find(name string, num int32) (*partition, error) {
	if t := l.topics[name]; t != nil && num >= 0 && int(num) < len(t.partitions) {
		return t.partitions[num], nil
	}
	return nil, fmt.Errorf("%s-%d: %w", name, num, mirror.ErrUnknownPartition)
}

// ClusterID tells this cluster from others.
func (l *Log) ClusterID() string { return l.id }

// Topics lists what there is.
func (l *Log) Topics(context.Context) (list []mirror.Topic, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.topics {
		answer := t.Topic
		answer.Configs = maps.Clone(t.Configs) // the caller's
		list = append(list, answer)
	}
	return list, nil
}

// EnsureTopic creates a topic or grows it.
func (l *Log) EnsureTopic(_ context.Context, want mirror.Topic) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[want.Name]
	switch {
	case t != nil && want.ID != (mirror.TopicID{}) && want.ID != t.ID:
		return fmt.Errorf("topic %s has id %s: %w", t.Name, t.ID, mirror.ErrTopicConflict)
	case t == nil:
		if want.ID == (mirror.TopicID{}) {
			rand.Read(want.ID[:])
		}
		t = &topic{Topic: mirror.Topic{Name: want.Name, ID: want.ID, Configs: maps.Clone(want.Configs)}}
		l.topics[want.Name] = t
	}
	for t.Partitions < want.Partitions {
		t.partitions = append(t.partitions, new(partition))
		t.Partitions++
	}
	return nil
}

// OpenLog opens one partition.
func (l *Log) OpenLog(_ context.Context, name string, num int32) (mirror.Log, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.find(name, num)
	if err != nil {
		return nil, err
	}
	return &handle{log: l, p: p}, nil
}

// handle is a mirror.Log: what the library does with a partition.
type handle struct {
	log    *Log
	p      *partition
	closed bool
}

func (h *handle) do(f func(p *partition) error) error {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	if h.closed {
		return mirror.ErrClosed
	}
	return f(h.p)
}

func (h *handle) Bounds() (start, end int64) {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	return h.p.start, h.p.end
}

func (h *handle) Append(_ context.Context, batches []byte) error {
	batches = slices.Clone(batches) // the slice is the caller's
	return h.do(func(p *partition) error { return p.append(batches) })
}

func (h *handle) Read(_ context.Context, offset int64, buf []byte) (n int, err error) {
	return n, h.do(func(p *partition) error {
		if offset < p.start || offset > p.end {
			return mirror.ErrOutOfRange
		}
		for _, b := range p.batches[p.before(offset):] {
			if n == len(buf) {
				break
			}
			n += copy(buf[n:], b.Bytes)
		}
		return nil
	})
}

// Sync has nothing to do in memory.
func (h *handle) Sync(context.Context) error { return h.do(func(*partition) error { return nil }) }

func (h *handle) TruncateTo(_ context.Context, end int64) error {
	return h.do(func(p *partition) error { p.truncate(end); return nil })
}

func (h *handle) AdvanceStart(_ context.Context, start int64) error {
	return h.do(func(p *partition) error { p.advance(start); return nil })
}

func (h *handle) Reset(_ context.Context, start int64) error {
	return h.do(func(p *partition) error { *p = partition{start: start, end: start}; return nil })
}

func (h *handle) Close() error {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	h.closed = true
	return nil
}

// append keeps the batches, which are the log's from now on.
func (p *partition) append(batches []byte) error {
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
}

// before is the number of batches that end at or below an offset.
func (p *partition) before(offset int64) int {
	return sort.Search(len(p.batches), func(i int) bool { return p.batches[i].Next > offset })
}

func (p *partition) truncate(end int64) {
	switch {
	case end < p.start:
		*p = partition{start: end, end: end}
	case end < p.end:
		p.batches, p.end = p.batches[:p.before(end)], p.start
		if n := len(p.batches); n > 0 {
			p.end = max(p.start, p.batches[n-1].Next)
		}
	}
}

func (p *partition) advance(start int64) {
	switch {
	case start > p.end:
		*p = partition{start: start, end: start}
	case start > p.start:
		p.batches, p.start = slices.Clone(p.batches[p.before(start):]), start
	}
}
