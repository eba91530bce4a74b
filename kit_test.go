package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

// source is a cluster to mirror from: a broker over a host in memory, reached without a port.
type source struct {
	t      *testing.T
	host   *memlog.Host
	c      *mirror.Coordinator
	broker *broker.Broker
	peers  []*peer // that stand before it
}

func newSource(t *testing.T, opts ...broker.Option) *source {
	t.Helper()
	return sourceOn(t, memlog.New(), opts...)
}

func sourceOn(t *testing.T, host *memlog.Host, opts ...broker.Option) *source {
	t.Helper()
	c, err := mirror.Open(t.Context(), host)
	require.NoError(t, err)
	b, err := broker.New(c, opts...)
	require.NoError(t, err)
	s := &source{t: t, host: host, c: c, broker: b}
	t.Cleanup(s.close)
	return s
}

// newOrders is a source with n records in the only partition of its topic orders.
func newOrders(t *testing.T, n int, opts ...broker.Option) *source {
	t.Helper()
	s := newSource(t, opts...)
	s.create("orders", 1)
	s.write("orders", 0, n)
	return s
}

func (s *source) close() {
	require.NoError(s.t, s.broker.Close())
	require.NoError(s.t, s.c.Close())
	for _, p := range s.peers {
		p.hangUp()
		p.relays.Wait() // what one of them does may take its time
	}
}

func (s *source) create(topic string, partitions int32) {
	s.t.Helper()
	require.NoError(s.t, s.host.EnsureTopic(s.t.Context(), mirror.Topic{Name: topic, Partitions: partitions}))
}

func (s *source) partition(topic string, num int32) *mirror.Partition {
	s.t.Helper()
	return open(s.t, s.c, topic, num)
}

// write appends batches of the given numbers of records.
func (s *source) write(topic string, num int32, records ...int) {
	s.t.Helper()
	for _, n := range records {
		_, err := s.partition(topic, num).Append(s.t.Context(), plain(n))
		require.NoError(s.t, err)
	}
}

func open(t *testing.T, c *mirror.Coordinator, topic string, num int32) *mirror.Partition {
	t.Helper()
	p, err := c.Partition(t.Context(), topic, num)
	require.NoError(t, err)
	return p
}

// plain is a batch of n records of no producer.
func plain(n int) []byte { return produced(n, -1, false) }

// produced is a batch of a producer, in a transaction or not.
func produced(n int, pid int64, transactional bool) []byte {
	h := batch.Header{BaseTimestamp: time.Now().UnixMilli(), ProducerID: pid, ProducerEpoch: -1, BaseSequence: -1}
	if pid >= 0 {
		h.ProducerEpoch = 0
	}
	if transactional {
		h.Attributes = 0x10
	}
	var records []batch.Record
	for i := range n {
		records = append(records, batch.Record{OffsetDelta: int32(i), Key: fmt.Append(nil, "key ", i), Value: []byte(strings.Repeat("value ", i%5))})
	}
	return batch.Append(nil, h, records)
}

// newMirror opens a mirror on a host and starts it.
func newMirror(t *testing.T, s *source, host mirror.Host, opts ...mirror.Option) *mirror.Mirror {
	t.Helper()
	return mirrorOf(t, s.broker.Source(), host, opts...)
}

// mirrorOrders is newMirror with orders in it, and all of that.
func mirrorOrders(t *testing.T, s *source, host mirror.Host, opts ...mirror.Option) *mirror.Mirror {
	t.Helper()
	m := newMirror(t, s, host, opts...)
	addOrders(t, m)
	return m
}

func addOrders(t *testing.T, m *mirror.Mirror) {
	t.Helper()
	require.NoError(t, m.AddTopics(t.Context(), "orders"))
	caughtUp(t, m)
}

func caughtUp(t *testing.T, m *mirror.Mirror, topics ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	require.NoError(t, m.WaitCaughtUp(ctx, topics...), "%v", m.Describe())
}

// requireSame compares what both sides hold, byte for byte, from where the mirror's log starts.
func requireSame(t *testing.T, s *source, m *mirror.Mirror, topic string, partitions int32) {
	t.Helper()
	for num := range partitions {
		theirs, ours := s.partition(topic, num), open(t, m.Coordinator(), topic, num)
		start, end := ours.Bounds()
		sourceStart, sourceEnd := theirs.Bounds()
		require.Equal(t, sourceEnd, end, "%s-%d", topic, num)
		require.Equal(t, sourceStart, start, "%s-%d", topic, num)
		require.Equal(t, content(t, theirs, start), content(t, ours, start), "%s-%d", topic, num)
	}
}

// content is the log from an offset on.
func content(t *testing.T, p *mirror.Partition, from int64) []byte {
	t.Helper()
	var all []byte
	buf := make([]byte, 16<<20)
	for _, end := p.Bounds(); from < end; {
		n, err := p.Read(t.Context(), from, buf)
		require.NoError(t, err)
		before := from
		for b, err := range mirror.Batches(buf[:n]) {
			require.NoError(t, err)
			all = append(all, b.Bytes...)
			from = b.Next
		}
		require.Greater(t, from, before)
	}
	return all
}

// state is what Describe says of one partition.
func state(t *testing.T, m *mirror.Mirror, topic string, num int32) mirror.PartitionStatus {
	t.Helper()
	for _, ts := range m.Describe().Topics {
		if ts.Name == topic && int(num) < len(ts.Partitions) {
			return ts.Partitions[num]
		}
	}
	t.Fatalf("no partition %s-%d in %v", topic, num, m.Describe())
	return mirror.PartitionStatus{}
}

var errDisk = errors.New("the disk is full")

// failing makes a host's calls fail while a condition holds.
func failing(host *memlog.Host, when func(op memlog.Op, topic string, partition int32) bool) (mend func()) {
	var over atomic.Bool
	host.Fail(func(_ context.Context, op memlog.Op, topic string, partition int32) error {
		if !over.Load() && when(op, topic, partition) {
			return errDisk
		}
		return nil
	})
	return func() { over.Store(true) }
}

// holding lets calls hang until they are released.
func holding(host *memlog.Host, when func(op memlog.Op, topic string, partition int32) bool) (release func()) {
	stuck := make(chan struct{})
	host.Fail(func(_ context.Context, op memlog.Op, topic string, partition int32) error {
		if when(op, topic, partition) {
			<-stuck
		}
		return nil
	})
	return func() { close(stuck) }
}

// nth is the nth of such calls.
func nth(n int64, when func(memlog.Op, string, int32) bool) func(memlog.Op, string, int32) bool {
	var calls atomic.Int64
	return func(op memlog.Op, topic string, partition int32) bool {
		return when(op, topic, partition) && calls.Add(1) == n
	}
}

// on is one kind of call on one topic, for failing and holding.
func on(call memlog.Op, name string) func(memlog.Op, string, int32) bool {
	return func(op memlog.Op, topic string, _ int32) bool { return op == call && topic == name }
}

// eventually lets virtual time go on until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		synctest.Wait()
		if ok() {
			return
		}
		pass(50 * time.Millisecond)
	}
	t.Fatalf("not reached: %s", what)
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// copyOf is another host of the same cluster with all that a host holds: a broker over it is one that has not heard of anything since.
func copyOf(ctx context.Context, host *memlog.Host) (*memlog.Host, error) {
	c := memlog.New(memlog.ClusterID(host.ClusterID()))
	topics, err := host.Topics(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range topics {
		if err := c.EnsureTopic(ctx, t); err != nil {
			return nil, err
		}
		for num := range t.Partitions {
			from, err := host.OpenLog(ctx, t.Name, num)
			if err != nil {
				return nil, err
			}
			to, err := c.OpenLog(ctx, t.Name, num)
			if err != nil {
				return nil, err
			}
			start, end := from.Bounds()
			first, all := end, readAll(ctx, from)
			for b := range mirror.Batches(all) {
				first = b.Base
				break
			}
			if err := errors.Join(to.Reset(ctx, min(first, start)), to.Append(ctx, all), to.AdvanceStart(ctx, start)); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}
