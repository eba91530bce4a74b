package broker_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/memlog"
)

func commitOffset(w *client, version int16, group, topic string, partition int32, offset int64) int16 {
	return commitEpoch(w, version, group, topic, partition, offset, -1)
}

// commitEpoch commits an offset with the leader epoch of the last record before it.
func commitEpoch(w *client, version int16, group, topic string, partition int32, offset int64, epoch int32) int16 {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = version, group, -1
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata = partition, offset, epoch, new("note")
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.OffsetCommitResponse](w, req).Topics[0].Partitions[0].ErrorCode
}

// committedOffset asks for one offset in the given version; all of the group where the version allows to name none.
func committedOffset(w *client, version int16, group, topic string, partition int32) int64 {
	w.t.Helper()
	offset, _ := committedEpoch(w, version, group, topic, partition)
	return offset
}

func committedEpoch(w *client, version int16, group, topic string, partition int32) (offset int64, epoch int32) {
	w.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = version, group
	if version >= 8 {
		g := kmsg.NewOffsetFetchRequestGroup()
		g.Group = group
		req.Groups = append(req.Groups, g)
		resp := ask[*kmsg.OffsetFetchResponse](w, req)
		require.Len(w.t, resp.Groups[0].Topics, 1)
		require.Zero(w.t, resp.Groups[0].Topics[0].Partitions[0].ErrorCode)
		p := resp.Groups[0].Topics[0].Partitions[0]
		return p.Offset, p.LeaderEpoch
	}
	rt := kmsg.NewOffsetFetchRequestTopic()
	rt.Topic, rt.Partitions = topic, []int32{partition}
	req.Topics = append(req.Topics, rt)
	resp := ask[*kmsg.OffsetFetchResponse](w, req)
	require.Zero(w.t, resp.Topics[0].Partitions[0].ErrorCode)
	p := resp.Topics[0].Partitions[0]
	return p.Offset, p.LeaderEpoch
}

func TestCommittedOffsets(t *testing.T) {
	host := memlog.New()
	c, err := mirror.Open(context.Background(), host)
	require.NoError(t, err)
	b := over(t, c, one("orders"))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(100))
	require.Equal(t, int64(-1), committedOffset(w, 1, "g", "orders", 0))
	for v := int16(2); v <= 9; v++ {
		require.Zero(t, commitOffset(w, v, "g", "orders", 0, int64(10*v)))
		for f := int16(1); f <= 9; f++ {
			require.Equal(t, int64(10*v), committedOffset(w, f, "g", "orders", 0), "committed with version %d, asked for with %d", v, f)
		}
	}
	require.Equal(t, int16(3), commitOffset(w, 9, "g", "nothing", 0, 1))
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	w = dial(t, start(t, host, nil), "node-1")
	require.Equal(t, int64(90), committedOffset(w, 9, "g", "orders", 0), "after a restart")
}

func TestMembersAreNotCoordinated(t *testing.T) {
	w := dial(t, start(t, newHost(), one("orders")), "node-1")
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 8, "g", "someone", 3
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic = "orders"
	rt.Partitions = append(rt.Partitions, kmsg.NewOffsetCommitRequestTopicPartition())
	req.Topics = append(req.Topics, rt)
	require.Equal(t, int16(25), ask[*kmsg.OffsetCommitResponse](w, req).Topics[0].Partitions[0].ErrorCode)
}

func TestACommittedOffsetNeverLiesBehindACut(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	for range 10 {
		w.write("orders", 0, records(10))
	}
	require.Zero(t, commitOffset(w, 9, "low", "orders", 0, 30))
	require.Zero(t, commitOffset(w, 9, "high", "orders", 0, 80))
	require.Zero(t, commitOffset(w, 9, "ahead", "orders", 0, 500))
	require.Equal(t, int64(100), committedOffset(w, 9, "ahead", "orders", 0))
	require.NoError(t, b.Lag("orders", 0, 2, 50))
	require.NoError(t, b.Elect("orders", 0, 2, true))
	w = dial(t, b, "node-2")
	require.Equal(t, int64(30), committedOffset(w, 9, "low", "orders", 0))
	require.Equal(t, int64(50), committedOffset(w, 9, "high", "orders", 0))
	for range 10 {
		w.write("orders", 0, records(10)) // other records at the same offsets
	}
	require.Equal(t, int64(30), committedOffset(w, 9, "low", "orders", 0))
	require.Equal(t, int64(50), committedOffset(w, 9, "high", "orders", 0))
	require.Zero(t, commitOffset(w, 9, "high", "orders", 0, 120))
	require.Equal(t, int64(120), committedOffset(w, 9, "high", "orders", 0))
}

func TestFindCoordinator(t *testing.T) {
	b := start(t, newHost(), nil, broker.Nodes(2))
	require.NoError(t, b.Kill(1))
	w := dial(t, b, "node-2")
	for v := range int16(7) {
		req := kmsg.NewPtrFindCoordinatorRequest()
		req.Version, req.CoordinatorKey, req.CoordinatorKeys = v, "g", []string{"g"}
		resp := ask[*kmsg.FindCoordinatorResponse](w, req)
		if v < 4 {
			require.Equal(t, int32(2), resp.NodeID)
			require.Equal(t, "node-2", resp.Host)
		} else {
			require.Equal(t, int32(2), resp.Coordinators[0].NodeID)
		}
	}
}

func TestKafkaGoCommitsOffsets(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	client := clientOf(b)
	defer client.Transport.(*kafka.Transport).CloseIdleConnections()
	dial(t, b, "node-1").write("orders", 0, records(100))
	ctx := context.Background()
	resp, err := client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
		GroupID: "g", GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{"orders": {{Partition: 0, Offset: 42}}},
	})
	require.NoError(t, err)
	require.NoError(t, resp.Topics["orders"][0].Error)
	got, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: "g", Topics: map[string][]int{"orders": {0}}})
	require.NoError(t, err)
	require.Equal(t, int64(42), got.Topics["orders"][0].CommittedOffset)
}

// What the broker remembers is written anew when it has become much.
func TestWhatIsRememberedStaysSmall(t *testing.T) {
	host := memlog.New()
	c, err := mirror.Open(context.Background(), host)
	require.NoError(t, err)
	b := over(t, c, one("orders"))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(10))
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Generation = 8, -1
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic = "orders"
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Offset = 7
	for range 500 {
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	for i := range 50 {
		req.Group = fmt.Sprint("g", i%3)
		require.Zero(t, ask[*kmsg.OffsetCommitResponse](w, req).Topics[0].Partitions[0].ErrorCode)
	}
	p, err := c.Partition(context.Background(), broker.StateTopic, 0)
	require.NoError(t, err)
	start0, end := p.Bounds()
	require.Positive(t, start0)
	require.Less(t, end-start0, int64(11_000))
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	w = dial(t, start(t, host, nil), "node-1")
	for i := range 3 {
		require.Equal(t, int64(7), committedOffset(w, 9, fmt.Sprint("g", i), "orders", 0))
	}
}

// A name is not a topic: what a group has read of one says nothing of another that was made under its name.
func TestATopicMadeAnewHasNoCommittedOffsets(t *testing.T) {
	host := newHost()
	b := start(t, host, one("orders"))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(10))
	require.Zero(t, commitOffset(w, 9, "g", "orders", 0, 7))
	require.NoError(t, host.DeleteTopic(t.Context(), "orders"))
	require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", Partitions: 1}))
	w.metadata(9, "orders")
	w.write("orders", 0, records(10))
	require.Equal(t, int64(-1), committedOffset(w, 7, "g", "orders", 0))
	require.Zero(t, commitOffset(w, 9, "g", "orders", 0, 3))
	require.Equal(t, int64(3), committedOffset(w, 9, "g", "orders", 0))
}
