package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror/internal/e2e/judge"
	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
)

// createOn creates a topic whose partition i has the replicas replicas[i], the preferred leader first.
func createOn(t testing.TB, c *kafkatest.Cluster, topic string, replicas [][]int32, configs map[string]string) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...))
	require.NoError(t, err)
	defer cl.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = topic, -1, -1
	for p, on := range replicas {
		rt.ReplicaAssignment = append(rt.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(p), Replicas: on})
	}
	for name, value := range configs {
		rt.Configs = append(rt.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: name, Value: &value})
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
}

// writer writes to partitions in turn until it is stopped.
type writer struct {
	acknowledged atomic.Int64
	stop         func() // waits for what was sent, and fails the test if a record was not acknowledged
	abandon      func() // what was sent may be lost
}

func startWriter(t testing.TB, c *kafkatest.Cluster, topic string, partitions int32, options ...kgo.Opt) *writer {
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.Addrs()...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5 * time.Millisecond),
		kgo.MaxBufferedRecords(500), // holds the loop back while nobody leads
	}, options...)...)
	require.NoError(t, err)
	w := &writer{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		var failed atomic.Pointer[error]
		for i := 0; ctx.Err() == nil; i++ {
			r := &kgo.Record{Topic: topic, Partition: int32(i) % partitions, Key: fmt.Appendf(nil, "%d", i), Value: make([]byte, 200)}
			cl.Produce(context.WithoutCancel(ctx), r, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				w.acknowledged.Add(1)
			})
			if i%100 == 99 { // some thousand records a second leave the cores to the brokers
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
		err := cl.Flush(context.WithoutCancel(ctx))
		if f := failed.Load(); err == nil && f != nil {
			err = *f
		}
		done <- err
	}()
	w.stop = func() {
		cancel()
		require.NoError(t, <-done)
	}
	w.abandon = func() {
		cancel()
		cl.Close()
	}
	t.Cleanup(w.abandon)
	return w
}

// more waits until n more records are acknowledged.
func (w *writer) more(t testing.TB, n int64) {
	goal := w.acknowledged.Load() + n
	require.Eventually(t, func() bool { return w.acknowledged.Load() >= goal }, time.Minute, 20*time.Millisecond, "the writer stands still")
}

// requireSameEpochEnds asks both sides where each leader epoch ends: what a follower of the mirror, or a consumer that
// remembers an epoch, will ask.
func (s *site) requireSameEpochEnds(t testing.TB, leader *kafkatest.Broker, topic string, partition int32) {
	p := s.partition(t, topic, partition)
	start, end := p.Bounds()
	first, err := p.EpochAt(t.Context(), start)
	require.NoError(t, err)
	last, err := p.EpochAt(t.Context(), end-1)
	require.NoError(t, err)
	for epoch := first; epoch <= last; epoch++ {
		want, err := judge.EpochEnd(t.Context(), leader.Addr, topic, partition, epoch)
		require.NoError(t, err)
		_, got, err := p.EpochEnd(t.Context(), epoch)
		require.NoError(t, err)
		require.Equal(t, want, got, "%s-%d: end of epoch %d of [%d, %d]", topic, partition, epoch, first, last)
	}
	require.Less(t, first, last, "%s-%d: no other leader was elected", topic, partition)
}

// One leader is killed and another one shut down while records are written with acks=all; nothing is missing and nothing is twice.
func TestLeaderKilledUnderLoad(t *testing.T) {
	ctx := t.Context()
	c := threeBrokers(t)
	const topic = "load"
	createOn(t, c, topic, [][]int32{{2, 3, 1}, {3, 1, 2}, {1, 2, 3}}, map[string]string{"min.insync.replicas": "2"})
	w := startWriter(t, c, topic, 3)
	s := openSite(t, t.TempDir(), c.Addrs())
	require.NoError(t, s.AddTopics(ctx, topic))
	for b, end := range map[*kafkatest.Broker]func(){c.Brokers[1]: c.Brokers[1].Kill, c.Brokers[2]: c.Brokers[2].Stop} {
		w.more(t, 2000)
		end()
		w.more(t, 2000)
		require.NoError(t, b.Start(ctx))
	}
	w.more(t, 2000)
	w.stop()
	s.caughtUp(t)
	var records int64
	for p := range int32(3) {
		leader, err := c.Leader(ctx, topic, p)
		require.NoError(t, err)
		s.requireIdentical(t, leader, topic, p)
		if p < 2 { // partition 2 keeps its leader
			s.requireSameEpochEnds(t, leader, topic, p)
		}
		_, end := s.partition(t, topic, p).Bounds()
		records += end
	}
	require.Equal(t, w.acknowledged.Load(), records) // the producer is idempotent
	for _, topic := range s.Describe().Topics {
		for _, p := range topic.Partitions {
			require.Zero(t, p.Totals, "a clean election costs nothing")
		}
	}
}

// An election of a replica that lacks the newest records makes the source lose them, also where the mirror has them already: it
// must drop them, say so, and hold what the source holds. Once while the mirror runs, once while it is closed.
func TestUncleanElectionsTwiceInARow(t *testing.T) {
	ctx := t.Context()
	c := threeBrokers(t)
	const topic = "unclean"
	// Broker 1 holds no replica: it is the controller that elects.
	createOn(t, c, topic, [][]int32{{2, 3}}, map[string]string{"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
	first, second := c.Brokers[1], c.Brokers[2]
	w := startWriter(t, c, topic, 1, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	dir := t.TempDir()
	s := openSite(t, dir, c.Addrs())
	require.NoError(t, s.AddTopics(ctx, topic))
	w.more(t, 1000)

	// elect makes other the leader without what leader alone and the mirror have by then.
	elect := func(leader, other *kafkatest.Broker, meanwhile func()) {
		other.Kill()
		require.Eventually(t, func() bool {
			ids, err := c.InSync(ctx, topic, 0)
			return err == nil && slices.Equal(ids, []int32{leader.ID})
		}, time.Minute, 100*time.Millisecond, "broker %d stays in sync", other.ID)
		w.more(t, 1000)
		s.caughtUp(t)
		meanwhile()
		leader.Kill()
		require.NoError(t, other.Start(ctx))
		w.more(t, 100)
		require.NoError(t, leader.Start(ctx))
		w.more(t, 500)
	}
	leader, err := c.Leader(ctx, topic, 0)
	require.NoError(t, err)
	require.Equal(t, first, leader)
	elect(first, second, func() {})
	s.caughtUp(t)
	require.Eventually(t, func() bool { return s.Describe().Topics[0].Partitions[0].Totals.Cuts > 0 }, 10*time.Second, 10*time.Millisecond)

	elect(second, first, func() { s.close(t) })
	s = openSite(t, dir, c.Addrs())
	w.more(t, 500)
	w.stop()
	s.caughtUp(t)
	leader, err = c.Leader(ctx, topic, 0)
	require.NoError(t, err)
	require.Equal(t, first, leader)
	s.requireIdentical(t, leader, topic, 0)
	s.requireSameEpochEnds(t, leader, topic, 0)
	totals := s.Describe().Topics[0].Partitions[0].Totals
	require.GreaterOrEqual(t, totals.Cuts, int64(2))
	require.GreaterOrEqual(t, totals.Cut, int64(1000), "both times the mirror held more than this that the source lost")
}
