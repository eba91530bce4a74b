package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
)

// maxPartitions bounds what a client may ask for.
const maxPartitions = 100_000

// catalog remembers the host's topics, so that not each request asks the host.
type catalog struct {
	c *mirror.Coordinator

	mu         sync.Mutex // guards what follows
	generation int64      // changes when the topics do
	byName     map[string]mirror.Topic
	byID       map[mirror.TopicID]string
}

func newCatalog(c *mirror.Coordinator) *catalog { return &catalog{c: c} }

// visible are the topics that clients see: the library's state is nobody's business, nor is ours.
func visible(name string) bool { return name != mirror.StateTopic && name != StateTopic }

func internalTopic(name string) bool { return strings.HasPrefix(name, "__") }

// load asks the host, and answers its topics by name. The caller owns the slice.
func (t *catalog) load(ctx context.Context) ([]mirror.Topic, error) {
	list, err := t.c.Topics(ctx)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(t mirror.Topic) bool { return !visible(t.Name) })
	t.mu.Lock()
	defer t.mu.Unlock()
	same := len(list) == len(t.byName)
	for _, n := range list {
		o := t.byName[n.Name]
		same = same && o.ID == n.ID && o.Partitions == n.Partitions && maps.Equal(o.Configs, n.Configs)
	}
	if same {
		return list, nil
	}
	t.generation++
	t.byName = make(map[string]mirror.Topic, len(list))
	t.byID = make(map[mirror.TopicID]string, len(list))
	for _, n := range list {
		t.byName[n.Name] = n
		t.byID[n.ID] = n.Name
	}
	return list, nil
}

func (t *catalog) seen() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.generation
}

func (t *catalog) named(name string) (mirror.Topic, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	topic, ok := t.byName[name]
	return topic, ok
}

func (t *catalog) withID(id mirror.TopicID) (mirror.Topic, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, ok := t.byID[id]
	return t.byName[name], ok
}

// refresh reads the catalog from the host, once per request.
func (b *Broker) refresh(ctx context.Context, c *call) error {
	if c.fresh {
		return nil
	}
	c.fresh = true
	_, err := b.topics.load(ctx)
	return err
}

// topic finds a topic by name, or by id where there is no name.
func (b *Broker) topic(ctx context.Context, c *call, name string, id mirror.TopicID) (t mirror.Topic, code int16) {
	find, missing := func() (mirror.Topic, bool) { return b.topics.named(name) }, unknownTopicOrPartition
	if name == "" {
		find, missing = func() (mirror.Topic, bool) { return b.topics.withID(id) }, unknownTopicID
	}
	t, ok := find()
	if !ok {
		if err := b.refresh(ctx, c); err != nil {
			return t, b.code(err)
		}
		if t, ok = find(); !ok {
			return t, missing
		}
	}
	return t, noError
}

// meant says whether a partition is of the topic that a client has asked for by id, if it has: one that was deleted may not have been
// missed yet, and another one have its name.
func (b *Broker) meant(ctx context.Context, c *call, p *mirror.Partition, id mirror.TopicID) int16 {
	if id == (mirror.TopicID{}) || p.TopicID() == id {
		return noError
	}
	if err := b.refresh(ctx, c); err != nil {
		return b.code(err)
	}
	return unknownTopicID
}

// anyEpoch is the leader epoch of a client that does not know it.
const anyEpoch int32 = -1

// leading is a partition that this node leads, under the leader epoch that the client knows.
func (b *Broker) leading(ctx context.Context, c *call, topic string, partition, epoch int32) (*mirror.Partition, int16) {
	if !visible(topic) {
		return nil, unknownTopicOrPartition
	}
	p, err := b.c.Partition(ctx, topic, partition)
	if err != nil {
		return nil, b.code(err)
	}
	return p, b.leads(c.Node, p, epoch)
}

func (b *Broker) leads(node int32, p *mirror.Partition, epoch int32) int16 {
	now := p.LeaderEpoch()
	switch {
	case epoch != anyEpoch && epoch < now:
		return fencedLeaderEpoch
	case epoch != anyEpoch && epoch > now:
		return unknownLeaderEpoch
	case b.cluster.leader(place{p.Topic(), p.ID()}) != node:
		return notLeaderOrFollower
	}
	return noError
}

// checkName says what is wrong with the name of a topic that is to be created.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case name == "." || name == "..":
		return fmt.Errorf("%q cannot be a topic", name)
	case len(name) > 249:
		return fmt.Errorf("the name has %d characters, at most 249 are allowed", len(name))
	case internalTopic(name):
		return errors.New("names that begin with __ are for internal topics")
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return fmt.Errorf("character %q: letters, digits, '.', '_' and '-' are allowed", r)
		}
	}
	return nil
}

func (b *Broker) createTopics(ctx context.Context, c *call, req *kmsg.CreateTopicsRequest, resp *kmsg.CreateTopicsResponse) {
	times := make(map[string]int)
	for _, t := range req.Topics {
		times[t.Topic]++
	}
	loadErr := b.refresh(ctx, c)
	for _, t := range req.Topics {
		if times[t.Topic] == 0 {
			continue // a second one of the same name, answered already
		}
		out := kmsg.NewCreateTopicsResponseTopic()
		out.Topic, out.Configs = t.Topic, createdConfigs(nil)
		fail := func(code int16, format string, args ...any) {
			text := fmt.Sprintf(format, args...)
			out.ErrorCode, out.ErrorMessage = code, &text
		}
		partitions, nameErr := t.NumPartitions, checkName(t.Topic)
		if len(t.ReplicaAssignment) > 0 {
			partitions = int32(len(t.ReplicaAssignment))
		} else if partitions == -1 {
			partitions = max(b.opts.autoCreate, 1)
		}
		_, exists := b.topics.named(t.Topic)
		switch {
		case loadErr != nil:
			fail(b.code(loadErr), "%v", loadErr)
		case nameErr != nil:
			fail(invalidTopic, "topic %q: %v", t.Topic, nameErr)
		case times[t.Topic] > 1:
			fail(invalidRequest, "topic %s is asked for %d times", t.Topic, times[t.Topic])
		case !b.allowed(c, "Create", "Cluster:kafka-cluster") && !b.allowed(c, "Create", "Topic:"+t.Topic):
			fail(topicAuthorizationFailed, "%s may not create topic %s", c.Principal, t.Topic)
		case exists:
			fail(topicAlreadyExists, "topic %s exists", t.Topic)
		case partitions < 1 || partitions > maxPartitions:
			fail(invalidPartitions, "%d partitions: want 1 to %d", partitions, maxPartitions)
		case len(t.ReplicaAssignment) == 0 && (t.ReplicationFactor == 0 || t.ReplicationFactor < -1 || int32(t.ReplicationFactor) > b.opts.nodes):
			fail(invalidReplicationFactor, "replication factor %d: there are %d nodes", t.ReplicationFactor, b.opts.nodes)
		default:
			configs := make(map[string]string, len(t.Configs))
			for _, kv := range t.Configs {
				if kv.Value != nil {
					configs[kv.Name] = *kv.Value
				}
			}
			out.NumPartitions, out.ReplicationFactor = partitions, int16(b.opts.nodes)
			out.Configs = createdConfigs(configs)
			if req.ValidateOnly {
				break
			}
			created, err := b.create(ctx, mirror.Topic{Name: t.Topic, Partitions: partitions, Configs: configs})
			if err != nil {
				fail(b.code(err), "%v", err)
			}
			out.TopicID = created.ID
		}
		times[t.Topic] = 0
		resp.Topics = append(resp.Topics, out)
	}
}

// create makes a topic and answers what the host made of it.
func (b *Broker) create(ctx context.Context, t mirror.Topic) (mirror.Topic, error) {
	if err := b.host.EnsureTopic(ctx, t); err != nil {
		return t, fmt.Errorf("create topic %s: %w", t.Name, err)
	}
	if _, err := b.topics.load(ctx); err != nil {
		return t, err
	}
	t, _ = b.topics.named(t.Name)
	return t, nil
}

func createdConfigs(configs map[string]string) []kmsg.CreateTopicsResponseTopicConfig {
	list := []kmsg.CreateTopicsResponseTopicConfig{} // null would mean that the client may not know, which Java's does not expect
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		c := kmsg.NewCreateTopicsResponseTopicConfig()
		c.Name, c.Value, c.Source = name, new(configs[name]), int8(kmsg.ConfigSourceDynamicTopicConfig)
		list = append(list, c)
	}
	return list
}

// createPartitions grows topics. Those of a mirror grow with their source only.
func (b *Broker) createPartitions(ctx context.Context, c *call, req *kmsg.CreatePartitionsRequest, resp *kmsg.CreatePartitionsResponse) {
	for _, t := range req.Topics {
		out := kmsg.NewCreatePartitionsResponseTopic()
		out.Topic = t.Topic
		have, code := b.topic(ctx, c, t.Topic, mirror.TopicID{})
		switch {
		case !b.allowed(c, "Alter", "Topic:"+t.Topic):
			code = topicAuthorizationFailed
		case code != noError:
		case internalTopic(t.Topic):
			code = invalidTopic
		case t.Count <= have.Partitions || t.Count > maxPartitions:
			code = invalidPartitions
		default:
			// The number that is checked is one that does not exist yet: the gate is closed for it as long as the topic is.
			if code = b.code(b.c.CheckWrite(t.Topic, have.Partitions)); code == noError && !req.ValidateOnly {
				_, err := b.create(ctx, mirror.Topic{Name: t.Topic, ID: have.ID, Partitions: t.Count})
				code = b.code(err)
			}
		}
		out.ErrorCode = code
		resp.Topics = append(resp.Topics, out)
	}
}

// deleteRecords moves log starts up. Those of a mirror follow their source only.
func (b *Broker) deleteRecords(ctx context.Context, c *call, req *kmsg.DeleteRecordsRequest, resp *kmsg.DeleteRecordsResponse) {
	for _, t := range req.Topics {
		out := kmsg.NewDeleteRecordsResponseTopic()
		out.Topic = t.Topic
		for _, want := range t.Partitions {
			low, code := b.deleteBefore(ctx, c, t.Topic, want.Partition, want.Offset)
			p := kmsg.NewDeleteRecordsResponseTopicPartition()
			p.Partition, p.LowWatermark, p.ErrorCode = want.Partition, low, code
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
}

func (b *Broker) deleteBefore(ctx context.Context, c *call, topic string, partition int32, offset int64) (low int64, code int16) {
	if !b.allowed(c, "Delete", "Topic:"+topic) {
		return -1, topicAuthorizationFailed
	}
	p, code := b.leading(ctx, c, topic, partition, anyEpoch)
	if code != noError {
		return -1, code
	}
	start, hw := b.readable(p)
	if offset == -1 { // all that consumers may have seen
		offset = hw
	}
	if offset < 0 || offset > hw {
		return -1, offsetOutOfRange
	}
	if offset > start {
		if err := p.AdvanceStart(ctx, offset); err != nil {
			return -1, b.code(err)
		}
	}
	start, _ = p.Bounds()
	return start, noError
}

// readable is what consumers may read: from the log's start up to the high watermark.
func (b *Broker) readable(p *mirror.Partition) (start, hw int64) {
	start, end := p.Bounds()
	return start, max(start, b.cluster.highWatermark(place{p.Topic(), p.ID()}, end))
}

// describeConfigs tells what topics override; nothing else is configured here in Kafka's sense.
func (b *Broker) describeConfigs(ctx context.Context, c *call, req *kmsg.DescribeConfigsRequest, resp *kmsg.DescribeConfigsResponse) {
	for _, r := range req.Resources {
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		if r.ResourceType == kmsg.ConfigResourceTypeTopic {
			out.Configs, out.ErrorCode = b.topicConfigs(ctx, c, &r)
		}
		resp.Resources = append(resp.Resources, out)
	}
}

func (b *Broker) topicConfigs(ctx context.Context, c *call, r *kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, int16) {
	if !b.allowed(c, "DescribeConfigs", "Topic:"+r.ResourceName) {
		return nil, topicAuthorizationFailed
	}
	if err := b.refresh(ctx, c); err != nil {
		return nil, b.code(err)
	}
	t, ok := b.topics.named(r.ResourceName)
	if !ok {
		return nil, unknownTopicOrPartition
	}
	var list []kmsg.DescribeConfigsResponseResourceConfig
	for _, name := range slices.Sorted(maps.Keys(t.Configs)) {
		if r.ConfigNames == nil || slices.Contains(r.ConfigNames, name) {
			kv := kmsg.NewDescribeConfigsResponseResourceConfig()
			kv.Name, kv.Value, kv.Source = name, new(t.Configs[name]), kmsg.ConfigSourceDynamicTopicConfig
			list = append(list, kv)
		}
	}
	return list, noError
}
