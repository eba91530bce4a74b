package broker_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
)

func TestEveryMetadataVersion(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 2, "payments": 1})
	w := dial(t, b, "node-1")
	for v := range int16(14) {
		m := w.metadata(v)
		require.Len(t, m.Topics, 2, "version %d: all topics, and not the library's own", v)
		require.Equal(t, "orders", *m.Topics[0].Topic)
		require.Len(t, m.Topics[0].Partitions, 2)
		require.Equal(t, int32(1), m.Topics[0].Partitions[0].Leader)
		require.Equal(t, "node-1", m.Brokers[0].Host)
		require.Equal(t, int32(9092), m.Brokers[0].Port)
		if v >= 2 {
			require.Equal(t, "cluster", *m.ClusterID)
		}
		require.Equal(t, int16(3), w.metadata(v, "nothing").Topics[0].ErrorCode)
	}
	none := kmsg.NewPtrMetadataRequest()
	none.Version, none.Topics = 9, []kmsg.MetadataRequestTopic{}
	require.Empty(t, ask[*kmsg.MetadataResponse](w, none).Topics)
}

func TestMetadataByID(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	for _, id := range [][16]byte{topicID(t, w, "orders"), {1, 2, 3}} {
		rt := kmsg.NewMetadataRequestTopic()
		rt.TopicID = id
		req.Topics = append(req.Topics, rt)
	}
	m := ask[*kmsg.MetadataResponse](w, req)
	require.Equal(t, "orders", *m.Topics[0].Topic)
	require.Equal(t, int16(100), m.Topics[1].ErrorCode)
}

func TestAutoCreate(t *testing.T) {
	w := dial(t, start(t, newHost(), nil, broker.AutoCreate(4)), "node-1")
	require.Empty(t, w.metadata(9, "orders").Topics[0].Partitions, "the client does not want it")
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.AllowAutoTopicCreation = 9, true
	for _, name := range []string{"orders", "__internal", "a b"} {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = &name
		req.Topics = append(req.Topics, rt)
	}
	m := ask[*kmsg.MetadataResponse](w, req)
	require.Len(t, m.Topics[0].Partitions, 4)
	require.Equal(t, int16(17), m.Topics[1].ErrorCode)
	require.Equal(t, int16(17), m.Topics[2].ErrorCode)
}

func createTopics(w *client, version int16, validate bool, topics ...kmsg.CreateTopicsRequestTopic) map[string]kmsg.CreateTopicsResponseTopic {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.Topics, req.ValidateOnly = version, topics, validate
	answers := make(map[string]kmsg.CreateTopicsResponseTopic)
	for _, rt := range ask[*kmsg.CreateTopicsResponse](w, req).Topics {
		answers[rt.Topic] = rt
	}
	return answers
}

func newTopic(name string, partitions int32, replicas int16) kmsg.CreateTopicsRequestTopic {
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, replicas
	return rt
}

func TestCreateTopics(t *testing.T) {
	host := newHost()
	b := start(t, host, one("there"), broker.Nodes(3))
	w := dial(t, b, "node-1")
	for v := int16(2); v <= 7; v++ {
		name := "new" + string('a'+rune(v))
		rt := newTopic(name, 3, 3)
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = "retention.ms", new("1000")
		rt.Configs = append(rt.Configs, c)
		require.Zero(t, createTopics(w, v, false, rt)[name].ErrorCode)
		require.Len(t, w.metadata(9, name).Topics[0].Partitions, 3)
		if v == 7 {
			require.Equal(t, topicID(t, w, name), createTopicsID(host, t, name))
		}
	}
	answers := createTopics(w, 7, false,
		newTopic("there", 1, 1), newTopic("twice", 1, 1), newTopic("twice", 1, 1), newTopic("__offsets", 1, 1), newTopic("", 1, 1),
		newTopic("..", 1, 1), newTopic("a/b", 1, 1), newTopic(strings.Repeat("x", 250), 1, 1), newTopic("none", 0, 1), newTopic("far", 1, 4),
		newTopic("many", 1<<30, 1), newTopic("default", -1, -1))
	codes := make(map[string]int16)
	for name, a := range answers {
		codes[name] = a.ErrorCode
		require.Equal(t, a.ErrorCode == 0, a.ErrorMessage == nil, name)
	}
	require.Equal(t, map[string]int16{
		"there": 36, "twice": 42, "__offsets": 17, "": 17, "..": 17, "a/b": 17, strings.Repeat("x", 250): 17, "none": 37, "far": 38, "many": 37, "default": 0,
	}, codes)
	require.NotNil(t, answers["default"].Configs, "Java's client takes null for a bug")
	require.Zero(t, createTopics(w, 7, true, newTopic("only-asked", 1, 1))["only-asked"].ErrorCode)
	require.Equal(t, int16(3), w.metadata(9, "only-asked").Topics[0].ErrorCode)
}

func createTopicsID(host mirror.Host, t *testing.T, name string) [16]byte {
	topics, err := host.Topics(context.Background())
	require.NoError(t, err)
	for _, topic := range topics {
		if topic.Name == name {
			return topic.ID
		}
	}
	t.Fatalf("no topic %s", name)
	return [16]byte{}
}

func TestCreatePartitions(t *testing.T) {
	w := dial(t, start(t, newHost(), one("orders")), "node-1")
	grow := func(count int32) int16 {
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.Version = 3
		rt := kmsg.NewCreatePartitionsRequestTopic()
		rt.Topic, rt.Count = "orders", count
		req.Topics = append(req.Topics, rt)
		return ask[*kmsg.CreatePartitionsResponse](w, req).Topics[0].ErrorCode
	}
	require.Zero(t, grow(3))
	require.Equal(t, int16(37), grow(3))
	require.Equal(t, int16(37), grow(2))
	require.Equal(t, int64(0), w.write("orders", 2, records(1)))
}

func TestDeleteRecords(t *testing.T) {
	w := dial(t, start(t, newHost(), one("orders")), "node-1")
	for range 3 {
		w.write("orders", 0, records(10))
	}
	before := func(offset int64) kmsg.DeleteRecordsResponseTopicPartition {
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Version = 2
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rt.Topic = "orders"
		rp := kmsg.NewDeleteRecordsRequestTopicPartition()
		rp.Partition, rp.Offset = 0, offset
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		return ask[*kmsg.DeleteRecordsResponse](w, req).Topics[0].Partitions[0]
	}
	p := before(15)
	require.Zero(t, p.ErrorCode)
	require.Equal(t, int64(15), p.LowWatermark)
	require.Equal(t, int64(15), w.listOffset("orders", 0, -2, 0).Offset)
	require.Equal(t, int16(1), w.fetch(11, want("orders", 0, 14)).ErrorCode)
	require.Equal(t, []int64{10, 20}, offsets(t, w.fetch(11, want("orders", 0, 15)).RecordBatches))
	require.Equal(t, int64(15), before(3).LowWatermark, "it never moves down")
	require.Equal(t, int16(1), before(31).ErrorCode)
	require.Equal(t, int64(30), before(-1).LowWatermark)
}

func TestListOffsets(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	p := w.listOffset("orders", 0, -1, 0)
	require.Zero(t, p.Offset)
	require.Equal(t, int32(-1), p.LeaderEpoch, "nothing was written under any epoch")
	w.write("orders", 0, records(10)) // stamped 1,000,000 to 1,000,009
	require.NoError(t, b.Elect("orders", 0, 1, false))
	w.write("orders", 0, records(20)) // 1,000,000 to 1,000,019
	at := func(ms int64) [3]int64 {
		p := w.listOffset("orders", 0, ms, 0)
		require.Zero(t, p.ErrorCode)
		return [3]int64{p.Offset, p.Timestamp, int64(p.LeaderEpoch)}
	}
	require.Equal(t, [3]int64{0, -1, 0}, at(-2))
	require.Equal(t, [3]int64{30, -1, 1}, at(-1))
	require.Equal(t, [3]int64{0, 1_000_000, 0}, at(0))
	require.Equal(t, [3]int64{5, 1_000_005, 0}, at(1_000_005), "the record, not its batch")
	require.Equal(t, [3]int64{20, 1_000_010, 1}, at(1_000_010))
	require.Equal(t, [3]int64{-1, -1, -1}, at(1_000_020))
	require.Equal(t, [3]int64{29, 1_000_019, 1}, at(-3), "the greatest timestamp")
	require.Equal(t, [3]int64{0, -1, 0}, at(-4))
	require.Equal(t, [3]int64{-1, -1, -1}, at(-5))
	require.Equal(t, int16(35), w.listOffset("orders", 0, -6, 0).ErrorCode)
	require.Equal(t, int16(3), w.listOffset("nothing", 0, -1, 0).ErrorCode)
}

func TestOffsetForLeaderEpoch(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(10))
	require.NoError(t, b.Elect("orders", 0, 1, false))
	require.NoError(t, b.Elect("orders", 0, 1, false))
	w.write("orders", 0, records(10))
	require.NoError(t, b.Elect("orders", 0, 1, false))
	for _, c := range []struct{ asked, epoch, end int64 }{
		{0, 0, 10}, {1, 0, 10}, {2, 2, 20},
		{3, 2, 20}, // the leader's own epoch, in which nothing was written
		{4, -1, -1},
	} {
		p := w.epochEnd("orders", 0, -1, int32(c.asked))
		require.Equal(t, [2]int64{c.epoch, c.end}, [2]int64{int64(p.LeaderEpoch), p.EndOffset}, "epoch %d", c.asked)
	}
	require.Equal(t, int16(74), w.epochEnd("orders", 0, 2, 0).ErrorCode)
	require.Equal(t, int16(75), w.epochEnd("orders", 0, 4, 0).ErrorCode)
}

func TestDescribeConfigsTellsOfOverrides(t *testing.T) {
	host := newHost()
	require.NoError(t, host.EnsureTopic(context.Background(), mirror.Topic{Name: "orders", Partitions: 1, Configs: map[string]string{"retention.ms": "1", "cleanup.policy": "compact"}}))
	w := dial(t, start(t, host, nil), "node-1")
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version = 4
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, "orders"
	req.Resources = append(req.Resources, r)
	out := ask[*kmsg.DescribeConfigsResponse](w, req).Resources[0]
	require.Zero(t, out.ErrorCode)
	require.Len(t, out.Configs, 2)
	require.Equal(t, "cleanup.policy", out.Configs[0].Name)
	require.Equal(t, "compact", *out.Configs[0].Value)
}

func TestDescribeCluster(t *testing.T) {
	w := dial(t, start(t, newHost(), nil, broker.Nodes(2)), "node-1")
	req := kmsg.NewPtrDescribeClusterRequest()
	req.Version, req.EndpointType = 1, 1
	resp := ask[*kmsg.DescribeClusterResponse](w, req)
	require.Equal(t, "cluster", resp.ClusterID)
	require.Len(t, resp.Brokers, 2)
}
