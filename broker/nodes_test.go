package broker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror/broker"
)

func leaderOf(w *client, topic string, partition int) kmsg.MetadataResponseTopicPartition {
	w.t.Helper()
	return w.metadata(12, topic).Topics[0].Partitions[partition]
}

func TestNodesShareLeadership(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 6}, broker.Nodes(3))
	w := dial(t, b, "node-2")
	m := w.metadata(12, "orders")
	require.Len(t, m.Brokers, 3)
	require.Equal(t, "node-3", m.Brokers[2].Host)
	var leaders []int32
	for _, p := range m.Topics[0].Partitions {
		leaders = append(leaders, p.Leader)
		require.Equal(t, []int32{1, 2, 3}, p.Replicas)
		require.Equal(t, []int32{1, 2, 3}, p.ISR)
	}
	require.Equal(t, []int32{1, 2, 3, 1, 2, 3}, leaders)
	require.Equal(t, int16(6), w.produce("orders", 0, records(1)).ErrorCode)
	require.Equal(t, int64(0), w.write("orders", 1, records(1)))
	require.Equal(t, int16(6), w.listOffset("orders", 0, -1, 0).ErrorCode)
	require.Equal(t, int16(6), w.epochEnd("orders", 0, -1, 0).ErrorCode)
}

func TestElectRaisesTheLeaderEpoch(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(3))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(10))
	before := leaderOf(w, "orders", 0)
	require.NoError(t, b.Elect("orders", 0, 3, false))
	now := leaderOf(w, "orders", 0)
	require.Equal(t, int32(3), now.Leader)
	require.Equal(t, before.LeaderEpoch+1, now.LeaderEpoch)
	require.Equal(t, int64(10), dial(t, b, "node-3").write("orders", 0, records(1)), "nothing is lost")

	require.Error(t, b.Elect("orders", 0, 4, false))
	require.Error(t, b.Elect("nothing", 0, 1, false))
}

func TestAReplicaThatLagsHoldsTheHighWatermarkBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newHost(), one("orders"), broker.Nodes(2))
		w := dial(t, b, "node-1")
		w.write("orders", 0, records(10))
		require.NoError(t, b.Lag("orders", 0, 2, 10))

		req := produceRequest(9, "orders", 0, records(5))
		req.Acks = 1
		require.Zero(t, ask[*kmsg.ProduceResponse](w, req).Topics[0].Partitions[0].ErrorCode)
		p := w.fetch(11, want("orders", 0, 0))
		require.Equal(t, int64(10), p.HighWatermark)
		require.Equal(t, []int64{0}, offsets(t, p.RecordBatches))
		require.Empty(t, w.fetch(11, want("orders", 0, 10)).RecordBatches)
		require.Equal(t, int64(10), w.listOffset("orders", 0, -1, 0).Offset)
		require.Equal(t, int64(15), w.epochEnd("orders", 0, -1, leaderOf(w, "orders", 0).LeaderEpoch).EndOffset, "the leader's own end")

		begin := time.Now()
		late := w.produce("orders", 0, records(1))
		require.Equal(t, int16(7), late.ErrorCode, "acks=all waits in vain")
		require.Equal(t, time.Second, time.Since(begin))

		other := dial(t, b, "node-1")
		poll := fetchRequest(11, want("orders", 0, 10))
		poll.MaxWaitMillis = 10_000
		w.send(poll)
		synctest.Wait()
		other.send(produceRequest(9, "orders", 0, records(1)))
		synctest.Wait()
		require.NoError(t, b.Lag("orders", 0, 2, -1))
		require.Equal(t, []int64{10, 15, 16}, offsets(t, w.receive(poll).(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches))
		require.Zero(t, other.receive(produceRequest(9, "orders", 0, nil)).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
		require.Equal(t, time.Second, time.Since(begin), "at once")
	})
}

func TestAnUncleanElectionCutsTheLog(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	for range 10 {
		w.write("orders", 0, records(10))
	}
	old := leaderOf(w, "orders", 0).LeaderEpoch
	require.NoError(t, b.Lag("orders", 0, 2, 55))
	require.Equal(t, []int32{1}, leaderOf(w, "orders", 0).ISR)
	require.Equal(t, int64(100), w.fetch(11, want("orders", 0, 0)).HighWatermark, "what was in sync stays")
	require.ErrorContains(t, b.Elect("orders", 0, 2, false), "unclean")
	require.NoError(t, b.Elect("orders", 0, 2, true))

	w = dial(t, b, "node-2")
	require.Equal(t, int64(50), w.listOffset("orders", 0, -1, 0).Offset, "whole batches only")
	require.Equal(t, int64(50), w.write("orders", 0, records(20)))
	require.Equal(t, int64(50), w.epochEnd("orders", 0, -1, old).EndOffset)
	f := want("orders", 0, 100)
	f.last = old
	p := w.fetch(12, f)
	require.Equal(t, old, p.DivergingEpoch.Epoch)
	require.Equal(t, int64(50), p.DivergingEpoch.EndOffset)
	require.Equal(t, []int32{1, 2}, leaderOf(w, "orders", 0).ISR)
	require.Equal(t, old+2, leaderOf(w, "orders", 0).LeaderEpoch, "the epoch in between is that of whoever wrote before the cut")
}

func TestAnUncleanElectionLowersTheHighWatermark(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(3))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(100))
	w.write("orders", 0, records(1))
	require.NoError(t, b.Lag("orders", 0, 2, 100))
	require.NoError(t, b.Lag("orders", 0, 3, 100))
	require.NoError(t, b.Elect("orders", 0, 2, true))
	w = dial(t, b, "node-2")
	for range 10 {
		req := produceRequest(9, "orders", 0, records(1))
		req.Acks = 1
		require.Zero(t, ask[*kmsg.ProduceResponse](w, req).Topics[0].Partitions[0].ErrorCode)
	}
	require.Equal(t, int64(100), w.listOffset("orders", 0, -1, 0).Offset, "the third node is in sync again, and still held back")
}

// An election of a node that is in sync may lose what was above the high watermark, as with Kafka.
func TestACleanElectionCutsOnlyAboveTheHighWatermark(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(10))
	require.NoError(t, b.Lag("orders", 0, 2, 10))
	req := produceRequest(9, "orders", 0, records(5))
	req.Acks = 1
	ask[*kmsg.ProduceResponse](w, req)
	require.NoError(t, b.Elect("orders", 0, 2, false))
	require.Equal(t, int64(10), dial(t, b, "node-2").listOffset("orders", 0, -1, 0).Offset)
}

func TestKillAndRestart(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 2}, broker.Nodes(2))
	one, two := dial(t, b, "node-1"), dial(t, b, "node-2")
	one.write("orders", 0, records(10))
	two.write("orders", 1, records(10))

	require.NoError(t, b.Kill(1))
	_, err := one.nc.Read(make([]byte, 1))
	require.Error(t, err, "connections are cut")
	_, err = b.Dial(context.Background(), "tcp", "node-1:9092")
	require.Error(t, err)
	m := two.metadata(12, "orders")
	require.Len(t, m.Brokers, 1)
	for _, p := range m.Topics[0].Partitions {
		require.Equal(t, int32(2), p.Leader)
		require.Equal(t, []int32{2}, p.ISR)
		require.Equal(t, []int32{1}, p.OfflineReplicas)
	}
	require.Error(t, b.Elect("orders", 0, 1, true))
	require.Equal(t, int64(10), two.write("orders", 0, records(1)), "acks=all asks the living only")

	require.NoError(t, b.Restart(1))
	one = dial(t, b, "node-1")
	require.Equal(t, []int32{1, 2}, leaderOf(one, "orders", 0).ISR)
	require.Equal(t, int32(2), leaderOf(one, "orders", 0).Leader)
}

// The genuine unclean election: one node dies, the other goes on and dies too, the first one comes back alone.
func TestTheLastToDieIsNotTheFirstToReturn(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(10))
	require.NoError(t, b.Kill(2))
	w.write("orders", 0, records(10))
	require.NoError(t, b.Kill(1))
	require.NoError(t, b.Restart(2))
	w = dial(t, b, "node-2")
	p := leaderOf(w, "orders", 0)
	require.Equal(t, int32(-1), p.Leader)
	require.Equal(t, int16(5), p.ErrorCode)
	require.Error(t, b.Elect("orders", 0, 2, false))
	require.NoError(t, b.Elect("orders", 0, 2, true))
	require.Equal(t, int64(10), w.listOffset("orders", 0, -1, 0).Offset)
	require.NoError(t, b.Restart(1))
	require.Equal(t, []int32{1, 2}, leaderOf(w, "orders", 0).ISR)
	require.Equal(t, int64(10), w.write("orders", 0, records(1)))
}

func TestANodeThatWasInSyncLeadsAfterItsRestart(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(10))
	require.NoError(t, b.Kill(2))
	require.NoError(t, b.Kill(1))
	require.NoError(t, b.Restart(2))
	require.Equal(t, int32(2), leaderOf(dial(t, b, "node-2"), "orders", 0).Leader)
}
