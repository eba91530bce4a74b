package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/wire"
	"github.com/clustermirror/mirror/memlog"
)

// pair is a source, and a mirror of its topic with a broker over it.
func pair(t *testing.T, topic string, opts ...broker.Option) (source, dest *broker.Broker, m *mirror.Mirror) {
	ctx := context.Background()
	source = start(t, memlog.New(memlog.ClusterID("source")), one(topic), opts...)
	c, err := mirror.Open(ctx, memlog.New(memlog.ClusterID("dest")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	dest = over(t, c, nil)
	m, err = c.Mirror("dr", source.Source())
	require.NoError(t, err)
	require.NoError(t, m.Start(ctx))
	return source, dest, m
}

func TestAMirrorIsReadThroughTheBroker(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	source, dest, m := pair(t, "orders")
	from, to := dial(t, source, "node-1"), dial(t, dest, "node-1")
	from.write("orders", 0, sequenced(50, 1, 0, 0, 0))
	from.write("orders", 0, records(7))
	from.write("orders", 0, sequenced(1, 5000, 0, 0, 0))
	first := initProducer(to, "", -1, -1).ProducerID // the ids in the logs have been looked at
	require.Less(t, first, int64(5000))
	require.NoError(t, m.AddTopics(ctx, "orders"))
	require.NoError(t, m.WaitCaughtUp(ctx))

	require.Equal(t, topicID(t, from, "orders"), topicID(t, to, "orders"))
	require.Equal(t, from.fetch(12, want("orders", 0, 0)).RecordBatches, to.fetch(12, want("orders", 0, 0)).RecordBatches)
	require.GreaterOrEqual(t, leaderOf(to, "orders", 0).LeaderEpoch, leaderOf(from, "orders", 0).LeaderEpoch)

	require.Equal(t, int16(134), to.produce("orders", 0, records(1)).ErrorCode)
	require.Equal(t, int16(134), to.produce("orders", 0, sequenced(1, 1, 0, 50, 0)).ErrorCode)
	tx := initProducer(to, "tx", -1, -1)
	require.Equal(t, []int16{134}, addToTxn(to, "tx", tx.ProducerID, tx.ProducerEpoch, "orders", 0))
	require.Zero(t, commitOffset(to, 9, "g", "orders", 0, 57))

	require.NoError(t, m.Remove(ctx, "orders"))
	end := to.listOffset("orders", 0, -1, 0).Offset
	id := initProducer(to, "", -1, -1).ProducerID
	require.Greater(t, id, int64(5000), "above every id that was mirrored")
	require.Equal(t, end, to.write("orders", 0, sequenced(50, id, 0, 0, 0)))
	require.Equal(t, end+50, to.write("orders", 0, sequenced(50, 1, 0, 0, 0)), "whatever ids the source used")
	require.Equal(t, int64(57), committedOffset(to, 9, "g", "orders", 0))
}

// Offsets that were committed at the source are committed here by whoever moves a group, when others may write here already: the
// group must go on with the first record that it has not seen.
func TestOffsetsThatAreCarriedOverLeadToTheFirstOtherRecord(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	source, dest, m := pair(t, "orders")
	from, to := dial(t, source, "node-1"), dial(t, dest, "node-1")
	from.write("orders", 0, records(100))
	require.NoError(t, m.AddTopics(ctx, "orders"))
	require.NoError(t, m.WaitCaughtUp(ctx))
	epoch := leaderOf(from, "orders", 0).LeaderEpoch
	require.NoError(t, m.Pause(ctx, "orders"))
	require.NoError(t, source.Elect("orders", 0, 1, false))
	from.write("orders", 0, records(50)) // never mirrored
	carry := func(when string) {
		require.Zero(t, commitEpoch(to, 9, when, "orders", 0, 150, epoch+1))
		require.Zero(t, commitEpoch(to, 9, when+", without epochs", "orders", 0, 150, -1))
	}
	carry("mirroring")
	require.NoError(t, m.Remove(ctx, "orders"))
	carry("taken over")
	to.write("orders", 0, records(20))
	require.Equal(t, int64(121), to.listOffset("orders", 0, -1, 0).Offset, "a reset of the producers, and the records")
	carry("written to")
	for range 2 {
		for when, end := range map[string]int64{"mirroring": 100, "taken over": 101, "written to": 121} {
			offset, at := committedEpoch(to, 9, when, "orders", 0)
			require.Equal(t, int64(100), offset, when)
			require.Equal(t, epoch, at, when)
			require.Equal(t, end, committedOffset(to, 9, when+", without epochs", "orders", 0), when) // no better can be known
		}
		to.write("orders", 0, records(100)) // what lies at their offsets then is not what they have seen
	}
}

// A client that is told of a leader epoch above the metadata's takes those for stale, and asks for others for ever.
func TestNoCommittedEpochIsAboveTheLeaderEpoch(t *testing.T) {
	w := dial(t, start(t, newHost(), one("orders")), "node-1")
	w.write("orders", 0, records(100))
	now := leaderOf(w, "orders", 0).LeaderEpoch
	require.Zero(t, commitEpoch(w, 9, "g", "orders", 0, 60, now))
	require.Zero(t, commitEpoch(w, 9, "too early", "orders", 0, 60, now+1))
	for _, group := range []string{"g", "too early"} {
		offset, epoch := committedEpoch(w, 9, group, "orders", 0)
		require.Equal(t, int64(60), offset, group)
		require.Equal(t, now, epoch, group)
	}
}

func TestLastMirroredPositionsAreTold(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	source, dest, m := pair(t, "orders")
	from, to := dial(t, source, "node-1"), dial(t, dest, "node-1")
	from.write("orders", 0, records(57))
	require.NoError(t, m.AddTopics(ctx, "orders"))
	require.NoError(t, m.WaitCaughtUp(ctx))
	id := topicID(t, from, "orders")

	describe := func(req *wire.DescribeMirrorsRequest) *wire.DescribeMirrorsResponse {
		t.Helper()
		return ask[*wire.DescribeMirrorsResponse](to, req)
	}
	all := describe(&wire.DescribeMirrorsRequest{})
	require.Len(t, all.Mirrors, 1)
	require.Equal(t, "dr", all.Mirrors[0].Name)
	require.Equal(t, "source", all.Mirrors[0].SourceClusterID)
	part := all.Mirrors[0].Topics[0].Partitions[0]
	require.Equal(t, "MIRRORING", part.State)
	require.Equal(t, int64(57), part.DestinationOffset)

	require.NoError(t, m.Remove(ctx, "orders"))
	part = describe(&wire.DescribeMirrorsRequest{}).Mirrors[0].Topics[0].Partitions[0]
	require.Equal(t, "STOPPED", part.State)
	require.Equal(t, int64(57), part.LastMirrorOffset)
	require.Zero(t, part.LastMirrorEpoch)

	require.Empty(t, describe(&wire.DescribeMirrorsRequest{ClusterID: "another"}).Mirrors)
	require.Equal(t, int16(wire.UnknownMirror), describe(&wire.DescribeMirrorsRequest{Mirrors: []string{"nobody"}}).Mirrors[0].ErrorCode)
	require.Empty(t, describe(&wire.DescribeMirrorsRequest{Lookups: []wire.TopicPartitions{{ID: id, Partitions: []int32{5}}}}).Mirrors[0].Topics)

	older := func(version int16, cluster string) wire.LastMirroredPartition {
		req := &wire.LastMirroredOffsetsRequest{Version: version, ClusterID: cluster, Topics: []wire.TopicPartitions{{ID: id, Partitions: []int32{0}}}}
		return ask[*wire.LastMirroredOffsetsResponse](to, req).Topics[0].Partitions[0]
	}
	require.Equal(t, wire.LastMirroredPartition{Epoch: 0, Offset: 57}, older(1, "source"))
	require.Equal(t, wire.LastMirroredPartition{Epoch: -1, Offset: 57}, older(0, "source"))
	require.Equal(t, wire.LastMirroredPartition{Epoch: -1, Offset: -1}, older(1, "another"))
}

// A denied question must never look like "no position".
func TestPositionsNeedTheRightToReadTheCluster(t *testing.T) {
	b := start(t, newHost(), nil, broker.Authorize(func(_, operation, resource string) bool {
		return operation+" "+resource != "Read Cluster:kafka-cluster"
	}))
	w := dial(t, b, "node-1")
	require.Equal(t, int16(31), ask[*wire.DescribeMirrorsResponse](w, &wire.DescribeMirrorsRequest{}).ErrorCode)
	require.Equal(t, int16(31), ask[*wire.LastMirroredOffsetsResponse](w, &wire.LastMirroredOffsetsRequest{Version: 1}).ErrorCode)
}
