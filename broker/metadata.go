package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
)

func (b *Broker) metadata(ctx context.Context, c *call, req *kmsg.MetadataRequest, resp *kmsg.MetadataResponse) {
	cluster := b.host.ClusterID()
	resp.ClusterID = &cluster
	living := b.cluster.living()
	if len(living) > 0 {
		resp.ControllerID = living[0]
	}
	for _, node := range living {
		if host, port, ok := b.endpoint(c, node); ok {
			m := kmsg.NewMetadataResponseBroker()
			m.NodeID, m.Host, m.Port = node, host, port
			resp.Brokers = append(resp.Brokers, m)
		}
	}
	c.fresh = true
	all, err := b.topics.load(ctx)
	// Asked for no list (version 0: an empty one) we tell of everything that the client may see.
	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		if err != nil { // an empty list would mean that there are no topics
			c.failed = err
		}
		for _, t := range all {
			if b.allowed(c, "Describe", "Topic:"+t.Name) {
				resp.Topics = append(resp.Topics, b.describe(ctx, t))
			}
		}
		return
	}
	for _, want := range req.Topics {
		resp.Topics = append(resp.Topics, b.describeAsked(ctx, c, req, want, err))
	}
}

// describeAsked tells of a topic that the client named. One that it may not see looks as if it did not exist when asked for by id:
// the name is part of what is kept from it.
func (b *Broker) describeAsked(ctx context.Context, c *call, req *kmsg.MetadataRequest, want kmsg.MetadataRequestTopic, loadErr error) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID = want.Topic, want.TopicID
	byID := want.Topic == nil
	var t mirror.Topic
	var ok bool
	if byID {
		t, ok = b.topics.withID(want.TopicID)
	} else {
		t, ok = b.topics.named(*want.Topic)
		t.Name = *want.Topic
	}
	allowed := b.allowed(c, "Describe", "Topic:"+t.Name)
	switch {
	case loadErr != nil:
		out.ErrorCode = b.code(loadErr)
	case byID && (!ok || !allowed):
		out.ErrorCode = unknownTopicID
	case !allowed:
		out.ErrorCode = topicAuthorizationFailed
	case ok:
		return b.describe(ctx, t)
	case b.opts.autoCreate == 0 || !req.AllowAutoTopicCreation && req.Version >= 4:
		out.ErrorCode = unknownTopicOrPartition
	case checkName(t.Name) != nil:
		out.ErrorCode = invalidTopic
	case !b.allowed(c, "Create", "Topic:"+t.Name):
		out.ErrorCode = topicAuthorizationFailed
	default:
		t, err := b.create(ctx, mirror.Topic{Name: t.Name, Partitions: b.opts.autoCreate})
		if err == nil {
			return b.describe(ctx, t)
		}
		out.ErrorCode = b.code(err)
	}
	return out
}

func (b *Broker) describe(ctx context.Context, t mirror.Topic) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.IsInternal = &t.Name, t.ID, internalTopic(t.Name)
	replicas := make([]int32, b.opts.nodes)
	for i := range replicas {
		replicas[i] = int32(i + 1)
	}
	for i := range t.Partitions {
		m := kmsg.NewMetadataResponseTopicPartition()
		m.Partition, m.Leader, m.Replicas = i, -1, replicas
		p, err := b.c.Partition(ctx, t.Name, i)
		if err != nil {
			b.log.Warn("partition not opened", "topic", t.Name, "partition", i, "err", err)
			m.ErrorCode = leaderNotAvailable
		} else {
			_, leo := p.Bounds()
			m.LeaderEpoch = p.LeaderEpoch()
			m.Leader, m.ISR, m.OfflineReplicas = b.cluster.view(place{t.Name, i}, leo)
			if m.Leader == 0 {
				m.Leader, m.ErrorCode = -1, leaderNotAvailable
			}
		}
		out.Partitions = append(out.Partitions, m)
	}
	return out
}

func (b *Broker) describeCluster(_ context.Context, c *call, req *kmsg.DescribeClusterRequest, resp *kmsg.DescribeClusterResponse) {
	if !b.allowed(c, "Describe", "Cluster:kafka-cluster") {
		resp.ErrorCode = clusterAuthorizationFailed
		return
	}
	const brokers = 1 // the kind of endpoint
	if req.Version >= 1 && req.EndpointType != brokers {
		resp.ErrorCode = invalidRequest
		return
	}
	resp.ClusterID, resp.EndpointType = b.host.ClusterID(), brokers
	living := b.cluster.living()
	if len(living) > 0 {
		resp.ControllerID = living[0]
	}
	for _, node := range living {
		if host, port, ok := b.endpoint(c, node); ok {
			m := kmsg.NewDescribeClusterResponseBroker()
			m.NodeID, m.Host, m.Port = node, host, port
			resp.Brokers = append(resp.Brokers, m)
		}
	}
}
