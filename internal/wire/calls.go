package wire

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The oldest versions that carry what a mirror cannot do without: leader epochs that fence (KIP-320). Apache Kafka has all
// of them since 2.1.
const (
	fetchFloor       = 10
	metadataFloor    = 7
	listOffsetsFloor = 4
	epochEndFloor    = 2
)

// Metadata is what a broker says of its cluster.
type Metadata struct {
	ClusterID string
	Brokers   map[int32]string // host:port
	Topics    []TopicMeta      // by name
}

// TopicMeta is a topic of the source. Without Err the partitions are complete: Partitions[i].ID is i.
type TopicMeta struct {
	Name       string
	ID         [16]byte // zero: the broker knows no ids (before Kafka 2.8)
	Err        error
	Internal   bool
	Partitions []PartitionMeta
}

// PartitionMeta is one partition. Leader is -1 if there is none.
type PartitionMeta struct{ ID, Leader, LeaderEpoch int32 }

// Metadata asks any broker about the cluster and the topics named; nil means none. Topics are never created by it. The
// brokers' addresses are remembered for the calls that take a broker.
func (c *Client) Metadata(ctx context.Context, topics []string) (*Metadata, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = make([]kmsg.MetadataRequestTopic, len(topics)) // empty: none
	for i := range topics {
		req.Topics[i] = kmsg.NewMetadataRequestTopic()
		req.Topics[i].Topic = &topics[i]
	}
	return c.metadata(ctx, req)
}

// TopicAt asks one broker for a topic. Err if it has none of that name.
func (c *Client) TopicAt(ctx context.Context, broker int32, topic string) (TopicMeta, error) {
	ctx, done, err := c.begin(ctx, c.life)
	if err != nil {
		return TopicMeta{}, err
	}
	defer done()
	req := kmsg.NewPtrMetadataRequest()
	want := kmsg.NewMetadataRequestTopic()
	want.Topic = &topic
	req.Topics = append(req.Topics, want)
	resp, err := c.askBroker(ctx, broker, req, metadataFloor, req.MaxVersion())
	if err != nil {
		return TopicMeta{}, err
	}
	m, err := readMetadata(resp.(*kmsg.MetadataResponse))
	if err != nil {
		return TopicMeta{}, err
	}
	if len(m.Topics) != 1 || m.Topics[0].Name != topic {
		return TopicMeta{}, protocolError("asked for topic %s, the answer is about %d topics", topic, len(m.Topics))
	}
	return m.Topics[0], nil
}

// ListTopics asks any broker for all topics that it lets us see, internal ones included.
func (c *Client) ListTopics(ctx context.Context) ([]TopicMeta, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = nil // all
	m, err := c.metadata(ctx, req)
	if err != nil {
		return nil, err
	}
	return m.Topics, nil
}

func (c *Client) metadata(ctx context.Context, req *kmsg.MetadataRequest) (*Metadata, error) {
	ctx, done, err := c.begin(ctx, c.life)
	if err != nil {
		return nil, err
	}
	defer done()
	req.AllowAutoTopicCreation = false
	resp, err := c.askAny(ctx, req, metadataFloor, req.MaxVersion())
	if err != nil {
		return nil, err
	}
	m, err := readMetadata(resp.(*kmsg.MetadataResponse))
	if err != nil {
		return nil, err
	}
	if c.cfg.Accept != nil {
		if err := c.cfg.Accept(m.ClusterID); err != nil {
			return nil, err
		}
	}
	c.learn(m.Brokers)
	return m, nil
}

func readMetadata(resp *kmsg.MetadataResponse) (*Metadata, error) {
	if err := CodeError(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	m := &Metadata{Brokers: make(map[int32]string, len(resp.Brokers))}
	if resp.ClusterID != nil {
		m.ClusterID = *resp.ClusterID
	}
	for _, b := range resp.Brokers {
		if addr, ok := endpoint(b.NodeID, b.Host, b.Port); ok {
			m.Brokers[b.NodeID] = addr
		}
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if t.Topic == nil || *t.Topic == "" {
			continue
		}
		m.Topics = append(m.Topics, readTopic(t))
	}
	slices.SortStableFunc(m.Topics, func(a, b TopicMeta) int { return cmp.Compare(a.Name, b.Name) })
	m.Topics = slices.CompactFunc(m.Topics, func(a, b TopicMeta) bool { return a.Name == b.Name })
	return m, nil
}

func readTopic(t *kmsg.MetadataResponseTopic) TopicMeta {
	topic := TopicMeta{Name: *t.Topic, ID: t.TopicID, Err: CodeError(t.ErrorCode), Internal: t.IsInternal}
	for _, p := range t.Partitions {
		topic.Partitions = append(topic.Partitions, PartitionMeta{p.Partition, p.Leader, p.LeaderEpoch})
	}
	slices.SortFunc(topic.Partitions, func(a, b PartitionMeta) int { return cmp.Compare(a.ID, b.ID) })
	for i, p := range topic.Partitions {
		// A hole would make a topic look smaller than it is, or as large as one number claims.
		if int(p.ID) != i && topic.Err == nil {
			topic.Err = protocolError("partitions of topic %s are not numbered 0 to %d", topic.Name, len(topic.Partitions)-1)
			topic.Partitions = nil
			break
		}
	}
	return topic
}

// OffsetQuery asks where a partition's log starts (Timestamp -2), ends (-1), or holds the first record at or after a time (ms).
type OffsetQuery struct {
	Topic              string
	Partition          int32
	CurrentLeaderEpoch int32 // -1: not checked
	Timestamp          int64
}

// OffsetAnswer is the answer to one OffsetQuery. Offset is -1 if no record is that young.
type OffsetAnswer struct {
	Offset, Timestamp int64
	LeaderEpoch       int32 // of the record, -1 if unknown
	Err               error
}

// Offsets asks the leader of the partitions (ListOffsets, uncommitted records included). Answers come in the order of the
// queries; the error is for the whole call.
func (c *Client) Offsets(ctx context.Context, broker int32, qs []OffsetQuery) ([]OffsetAnswer, error) {
	answers := make([]OffsetAnswer, len(qs))
	name := func(i int) key { return key{qs[i].Topic, qs[i].Partition} }
	err := c.inWaves(ctx, len(qs), name, func(ctx context.Context, wave []int) error {
		req := kmsg.NewPtrListOffsetsRequest()
		req.ReplicaID, req.IsolationLevel = -1, 0
		at := make(map[string]int)
		for _, i := range wave {
			q := &qs[i]
			t := place(&req.Topics, at, q.Topic, kmsg.ListOffsetsRequestTopic{Topic: q.Topic})
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.Timestamp = q.Partition, q.CurrentLeaderEpoch, q.Timestamp
			t.Partitions = append(t.Partitions, p)
		}
		resp, err := c.askBroker(ctx, broker, req, listOffsetsFloor, req.MaxVersion())
		if err != nil {
			return err
		}
		got := make(map[key]OffsetAnswer, len(wave))
		for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				a := OffsetAnswer{p.Offset, p.Timestamp, p.LeaderEpoch, CodeError(p.ErrorCode)}
				if a.Err == nil && (a.Offset < -1 || a.LeaderEpoch < -1) {
					a.Err = protocolError("offset %d, leader epoch %d", a.Offset, a.LeaderEpoch)
				}
				got[key{t.Topic, p.Partition}] = a
			}
		}
		for _, i := range wave {
			a, ok := got[name(i)]
			if !ok {
				a.Err = protocolError("the partition is missing in the answer")
			}
			answers[i] = a
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// EpochQuery asks where a leader epoch ends in a partition's log.
type EpochQuery struct {
	Topic              string
	Partition          int32
	CurrentLeaderEpoch int32 // -1: not checked
	Epoch              int32
}

// EpochAnswer is the greatest epoch at or below the one asked, and its end; both -1 if there is none.
type EpochAnswer struct {
	Epoch int32
	End   int64
	Err   error
}

// EpochEnds asks the leader of the partitions (OffsetForLeaderEpoch). Answers come in the order of the queries; the error is
// for the whole call.
func (c *Client) EpochEnds(ctx context.Context, broker int32, qs []EpochQuery) ([]EpochAnswer, error) {
	answers := make([]EpochAnswer, len(qs))
	name := func(i int) key { return key{qs[i].Topic, qs[i].Partition} }
	err := c.inWaves(ctx, len(qs), name, func(ctx context.Context, wave []int) error {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.ReplicaID = -1
		at := make(map[string]int)
		for _, i := range wave {
			q := &qs[i]
			t := place(&req.Topics, at, q.Topic, kmsg.OffsetForLeaderEpochRequestTopic{Topic: q.Topic})
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = q.Partition, q.CurrentLeaderEpoch, q.Epoch
			t.Partitions = append(t.Partitions, p)
		}
		resp, err := c.askBroker(ctx, broker, req, epochEndFloor, req.MaxVersion())
		if err != nil {
			return err
		}
		got := make(map[key]EpochAnswer, len(wave))
		for _, t := range resp.(*kmsg.OffsetForLeaderEpochResponse).Topics {
			for _, p := range t.Partitions {
				got[key{t.Topic, p.Partition}] = EpochAnswer{p.LeaderEpoch, p.EndOffset, CodeError(p.ErrorCode)}
			}
		}
		for _, i := range wave {
			a, ok := got[name(i)]
			switch {
			case !ok:
				a.Err = protocolError("the partition is missing in the answer")
			case a.Err == nil && (a.Epoch < -1 || a.End < -1 || a.Epoch > qs[i].Epoch || (a.Epoch < 0) != (a.End < 0)):
				a.Err = protocolError("epoch %d with end %d, asked about epoch %d", a.Epoch, a.End, qs[i].Epoch)
			}
			answers[i] = a
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// inWaves hands the numbers of n queries to ask, in as few calls as possible: no partition may stand twice in one request.
func (c *Client) inWaves(ctx context.Context, n int, name func(int) key, ask func(ctx context.Context, wave []int) error) error {
	ctx, done, err := c.begin(ctx, c.life)
	if err != nil {
		return err
	}
	defer done()
	var waves [][]int
	times := make(map[key]int)
	for i := range n {
		k := name(i)
		if times[k] == len(waves) {
			waves = append(waves, nil)
		}
		waves[times[k]] = append(waves[times[k]], i)
		times[k]++
	}
	for _, wave := range waves {
		if err := ask(ctx, wave); err != nil {
			return err
		}
	}
	return nil
}

// Versions are the newest versions that a broker speaks, by request key; what it does not speak is missing.
type Versions map[int16]int16

// Versions asks what a broker speaks. ErrVersion if it is too old to mirror from.
func (c *Client) Versions(ctx context.Context, broker int32) (Versions, error) {
	ctx, done, err := c.begin(ctx, c.life)
	if err != nil {
		return nil, err
	}
	defer done()
	to, err := c.broker(broker)
	if err != nil {
		return nil, err
	}
	k, _, err := c.take(ctx, to)
	if err != nil {
		return nil, err
	}
	defer c.give(k)
	for _, need := range []struct {
		req   kmsg.Request
		floor int16
	}{
		{new(kmsg.FetchRequest), fetchFloor},
		{new(kmsg.OffsetForLeaderEpochRequest), epochEndFloor},
		{new(kmsg.ListOffsetsRequest), listOffsetsFloor},
	} {
		if _, err := k.version(need.req.Key(), need.floor, need.req.MaxVersion()); err != nil {
			return nil, err
		}
	}
	v := make(Versions, len(k.versions))
	for api, speaks := range k.versions {
		v[api] = speaks[1]
	}
	return v, nil
}
