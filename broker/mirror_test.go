package broker_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
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

// What is asked about and is not there is named, or left out where the message has no room for it; it is never another answer's.
func TestQuestionsAboutMirrorsThatAreNotThere(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	source, dest, m := pair(t, "payments")
	from, to := dial(t, source, "node-1"), dial(t, dest, "node-1")
	require.Zero(t, createTopics(from, 7, false, newTopic("orders", 2, 1))["orders"].ErrorCode)
	from.write("orders", 0, records(7))
	require.NoError(t, m.AddTopics(ctx, "orders"))
	require.NoError(t, m.WaitCaughtUp(ctx))
	id, strange := topicID(t, from, "orders"), [16]byte{1}

	lookup := func(id [16]byte, partitions ...int32) []wire.TopicPartitions {
		return []wire.TopicPartitions{{ID: id, Partitions: partitions}}
	}
	for name, c := range map[string]struct {
		req  wire.DescribeMirrorsRequest
		want map[string]int16 // error codes by mirror
		told int              // partitions
	}{
		"all":                          {wire.DescribeMirrorsRequest{}, map[string]int16{"dr": 0}, 2},
		"none":                         {wire.DescribeMirrorsRequest{Mirrors: []string{}}, map[string]int16{}, 0},
		"one, and one that is not":     {wire.DescribeMirrorsRequest{Mirrors: []string{"dr", "x"}}, map[string]int16{"dr": 0, "x": 137}, 2},
		"one that is not":              {wire.DescribeMirrorsRequest{Mirrors: []string{"x"}}, map[string]int16{"x": 137}, 0},
		"of its source":                {wire.DescribeMirrorsRequest{ClusterID: "source"}, map[string]int16{"dr": 0}, 2},
		"of another source":            {wire.DescribeMirrorsRequest{ClusterID: "x"}, map[string]int16{}, 0},
		"the partition":                {wire.DescribeMirrorsRequest{Lookups: lookup(id, 0)}, map[string]int16{"dr": 0}, 1},
		"twice":                        {wire.DescribeMirrorsRequest{Lookups: lookup(id, 0, 0)}, map[string]int16{"dr": 0}, 1},
		"a partition that is not":      {wire.DescribeMirrorsRequest{Lookups: lookup(id, 5, -1)}, map[string]int16{"dr": 0}, 0},
		"a topic that is not":          {wire.DescribeMirrorsRequest{Lookups: lookup(strange, 0)}, map[string]int16{"dr": 0}, 0},
		"no partition":                 {wire.DescribeMirrorsRequest{Lookups: []wire.TopicPartitions{}}, map[string]int16{"dr": 0}, 0},
		"another source and partition": {wire.DescribeMirrorsRequest{ClusterID: "x", Lookups: lookup(id, 0)}, map[string]int16{}, 0},
	} {
		resp := ask[*wire.DescribeMirrorsResponse](to, &c.req)
		got, told := make(map[string]int16), 0
		for _, v := range resp.Mirrors {
			got[v.Name] = v.ErrorCode
			for _, topic := range v.Topics {
				told += len(topic.Partitions)
			}
		}
		require.Zero(t, resp.ErrorCode, name)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.told, told, name)
	}

	unknown := wire.LastMirroredPartition{Epoch: -1, Offset: -1}
	older := func(version int16, topics []wire.TopicPartitions) (list []wire.LastMirroredPartition) {
		resp := ask[*wire.LastMirroredOffsetsResponse](to, &wire.LastMirroredOffsetsRequest{Version: version, ClusterID: "source", Topics: topics})
		require.Zero(t, resp.ErrorCode)
		for _, topic := range resp.Topics {
			list = append(list, topic.Partitions...)
		}
		return list
	}
	for version := range int16(2) {
		require.Equal(t, []wire.LastMirroredPartition{unknown}, older(version, lookup(id, 0)), "while it is mirrored there is no last position")
	}
	require.NoError(t, m.Remove(ctx, "orders"))
	at := wire.LastMirroredPartition{Offset: 7}
	require.Equal(t, []wire.LastMirroredPartition{at, at}, older(1, lookup(id, 0, 0)))
	require.Equal(t, []wire.LastMirroredPartition{{Partition: 5, Epoch: -1, Offset: -1}, {Partition: -1, Epoch: -1, Offset: -1}}, older(1, lookup(id, 5, -1)))
	require.Equal(t, []wire.LastMirroredPartition{unknown}, older(1, lookup(strange, 0)))
	require.Empty(t, older(1, nil))
	require.NoError(t, m.Resume(ctx, "orders"))
	require.Equal(t, []wire.LastMirroredPartition{unknown}, older(1, lookup(id, 0)), "it is mirrored again")
}

// Versions that are not served, and bodies cut short, end their connection and no other; nothing of them is answered.
func TestQuestionsAboutMirrorsThatAreBroken(t *testing.T) {
	b := start(t, newHost(), nil)
	well := dial(t, b, "node-1")
	refused := func(frame []byte, what string) {
		t.Helper()
		nc, err := b.Dial(context.Background(), "tcp", "node-1:9092")
		require.NoError(t, err)
		defer nc.Close()
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		_, err = nc.Write(frame)
		require.NoError(t, err)
		_, err = nc.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, what)
	}
	lookups := []wire.TopicPartitions{{ID: [16]byte{9}, Partitions: []int32{0, 5}}}
	for _, req := range []kmsg.Request{
		&wire.DescribeMirrorsRequest{Mirrors: []string{"dr"}, ClusterID: "B", Lookups: lookups},
		&wire.LastMirroredOffsetsRequest{ClusterID: "B", Topics: lookups},
		&wire.LastMirroredOffsetsRequest{Version: 1, ClusterID: "B", Topics: lookups},
	} {
		frame := kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
		for n := len(frame) - len(req.AppendTo(nil)); n < len(frame); n++ {
			refused(slices.Clone(frame[:n]), fmt.Sprintf("%T cut to %d bytes", req, n))
		}
		for _, version := range []int16{-1, req.MaxVersion() + 1} {
			binary.BigEndian.PutUint16(frame[6:], uint16(version))
			refused(frame, fmt.Sprintf("%T version %d", req, version))
			req.SetVersion(version)
			_, err := b.Handle(context.Background(), broker.Client{}, req)
			require.ErrorContains(t, err, "not handled")
		}
	}
	require.Zero(t, ask[*wire.DescribeMirrorsResponse](well, &wire.DescribeMirrorsRequest{}).ErrorCode)
}

// A denied question must never look like "no position".
func TestPositionsNeedTheRightToReadTheCluster(t *testing.T) {
	b := start(t, newHost(), nil, broker.Authorize(func(_, operation, resource string) bool {
		return operation+" "+resource != "Read Cluster:kafka-cluster"
	}))
	w := dial(t, b, "node-1")
	denied := ask[*wire.DescribeMirrorsResponse](w, &wire.DescribeMirrorsRequest{Mirrors: []string{"x"}})
	require.Equal(t, int16(31), denied.ErrorCode)
	require.Contains(t, denied.ErrorMessage, "User:local")
	require.Empty(t, denied.Mirrors)
	require.Equal(t, int16(31), ask[*wire.LastMirroredOffsetsResponse](w, &wire.LastMirroredOffsetsRequest{Version: 1}).ErrorCode)
}

// takenOver is a mirror of seven records that has been stopped, and a client of the broker over it.
func takenOver(t *testing.T) (context.Context, *client, *mirror.Mirror) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	source, dest, m := pair(t, "orders")
	dial(t, source, "node-1").write("orders", 0, records(7))
	require.NoError(t, m.AddTopics(ctx, "orders"))
	require.NoError(t, m.WaitCaughtUp(ctx))
	require.NoError(t, m.Remove(ctx, "orders"))
	return ctx, dial(t, dest, "node-1"), m
}

// A transaction is open in a topic that a mirror takes: what can't be committed is not said to be.
func TestATransactionInATopicThatAMirrorHasTakenIsNotCommitted(t *testing.T) {
	ctx, w, m := takenOver(t)
	tx := initProducer(w, "tx", -1, -1)
	require.Equal(t, []int16{0}, addToTxn(w, "tx", tx.ProducerID, tx.ProducerEpoch, "orders", 0))
	require.NoError(t, m.Resume(ctx, "orders")) // nothing was written here
	require.Equal(t, int16(134), endTxn(w, "tx", tx.ProducerID, tx.ProducerEpoch, true))
	require.NoError(t, m.WaitCaughtUp(ctx))
	require.Equal(t, int64(7), w.listOffset("orders", 0, -1, 0).Offset)
	require.Zero(t, endTxn(w, "tx", tx.ProducerID, tx.ProducerEpoch, false), "it can be aborted, which says nothing of records")
}

// The mirror takes the topic while the commit is written down: it is decided, but nobody is told that it was done.
func TestACommitThatAMirrorOvertakesIsNotSaidToBeDone(t *testing.T) {
	ctx, w, m := takenOver(t)
	tx := initProducer(w, "tx", -1, -1)
	require.Equal(t, []int16{0}, addToTxn(w, "tx", tx.ProducerID, tx.ProducerEpoch, "orders", 0))
	require.Zero(t, txnProduce(w, 9, "tx", "orders", 0, sequenced(3, tx.ProducerID, tx.ProducerEpoch, 0, batch.Transactional)))
	written, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.Coordinator().Host().(*memlog.Host).Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
		if topic == broker.StateTopic && op == memlog.OpAppend {
			once.Do(func() {
				close(written)
				<-release
			})
		}
		return nil
	})
	done := make(chan int16, 1)
	go func() { done <- endTxn(w, "tx", tx.ProducerID, tx.ProducerEpoch, true) }()
	<-written
	require.NoError(t, m.Overwrite(ctx, "orders"))
	require.NoError(t, m.WaitCaughtUp(ctx))
	close(release)
	require.Equal(t, int16(134), <-done)
	require.Zero(t, initProducer(w, "tx", -1, -1).ErrorCode, "its producer goes on")
}

// A host that has clamped what was committed says so: what is committed stays as it is.
func TestOffsetsThatWereClampedAreStillCommitted(t *testing.T) {
	ctx, w, m := takenOver(t)
	w.write("orders", 0, records(20))
	require.NoError(t, m.Overwrite(ctx, "orders"))
	require.NoError(t, m.WaitCaughtUp(ctx))
	require.Zero(t, commitOffset(w, 9, "g", "orders", 0, 5))
	c := m.Coordinator()
	end, ok, err := c.OffsetCeiling(ctx, "orders", 0)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, c.OffsetsClamped(ctx, "orders", 0, end))
	require.Equal(t, int64(5), committedOffset(w, 9, "g", "orders", 0))
}
