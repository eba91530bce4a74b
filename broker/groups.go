package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxOffsetMetadata is Kafka's default of offset.metadata.max.bytes.
const maxOffsetMetadata = 4096

// groups keeps the committed offsets of consumers that choose their partitions themselves. Groups with members are not coordinated
// here.
type groups struct {
	b *Broker

	mu      sync.Mutex // guards offsets
	offsets map[string]map[place]committed
}

// committed is one committed offset.
type committed struct {
	Group     string  `json:"group"`
	Topic     string  `json:"topic"`
	ID        string  `json:"id"` // the topic's: another one may be made under its name
	Partition int32   `json:"partition"`
	Offset    int64   `json:"offset"`
	Epoch     int32   `json:"epoch"` // leader epoch that the client gave
	Metadata  *string `json:"metadata,omitempty"`

	// What tells, when the offset is asked for, that the log was cut below it, whatever it holds there now: the offset is lowered
	// to the cut then. Lineage is the leader epoch of the record before Offset; the epoch table says where the log parted from
	// it. Ceiling is Coordinator.OffsetCeiling, -1 if there was none: a log that was emptied may have got the same epochs again.
	Lineage int32 `json:"lineage"`
	Ceiling int64 `json:"ceiling"`
}

func newGroups(b *Broker) *groups {
	return &groups{b: b, offsets: make(map[string]map[place]committed)}
}

func (g *groups) restore(_ string, value []byte) error {
	var o committed
	if err := json.Unmarshal(value, &o); err != nil {
		return err
	}
	g.keep(o)
	return nil
}

func (g *groups) keep(o committed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.offsets[o.Group] == nil {
		g.offsets[o.Group] = make(map[place]committed)
	}
	g.offsets[o.Group][place{o.Topic, o.Partition}] = o
}

func (g *groups) find(group string, p place) (committed, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.offsets[group][p]
	return o, ok
}

// of are all partitions for which the group has an offset, by topic.
func (g *groups) of(group string) map[string][]int32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make(map[string][]int32)
	for p := range g.offsets[group] {
		list[p.topic] = append(list[p.topic], p.partition)
	}
	return list
}

// commit makes offsets durable.
func (g *groups) commit(ctx context.Context, list []committed) error {
	changes := make([]entry, len(list))
	for i, o := range list {
		changes[i] = entry{fmt.Sprintf("%s%d/%s/%s/%d", kindOffsets, len(o.Group), o.Group, o.Topic, o.Partition), o}
	}
	if len(list) == 0 {
		return nil
	}
	if err := g.b.store.put(ctx, changes...); err != nil {
		return err
	}
	for _, o := range list {
		g.keep(o)
	}
	return nil
}

func (b *Broker) offsetCommit(ctx context.Context, c *call, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse) {
	all := noError
	switch {
	case !b.allowed(c, "Read", "Group:"+req.Group):
		all = groupAuthorizationFailed
	case req.MemberID != "":
		all = unknownMemberID
	case req.Generation >= 0:
		all = illegalGeneration
	}
	var list []committed
	for _, t := range req.Topics {
		out := kmsg.NewOffsetCommitResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			r := kmsg.NewOffsetCommitResponseTopicPartition()
			r.Partition, r.ErrorCode = p.Partition, all
			if all == noError {
				var o committed
				if o, r.ErrorCode = b.committing(ctx, c, t.Topic, &p); r.ErrorCode == noError {
					o.Group = req.Group
					list = append(list, o)
				}
			}
			out.Partitions = append(out.Partitions, r)
		}
		resp.Topics = append(resp.Topics, out)
	}
	err := b.groups.commit(ctx, list)
	if err == nil {
		return
	}
	b.log.Warn("offsets not committed", "group", req.Group, "err", err)
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			if r := &resp.Topics[i].Partitions[j]; r.ErrorCode == noError {
				r.ErrorCode = coordinatorNotAvailable
			}
		}
	}
}

// committing checks one offset that a client wants to commit.
func (b *Broker) committing(ctx context.Context, c *call, topic string, p *kmsg.OffsetCommitRequestTopicPartition) (o committed, code int16) {
	switch {
	case !b.allowed(c, "Read", "Topic:"+topic):
		return o, topicAuthorizationFailed
	case p.Metadata != nil && len(*p.Metadata) > maxOffsetMetadata:
		return o, offsetMetadataTooLarge
	case p.Offset < 0:
		return o, offsetOutOfRange
	}
	part, err := b.c.Partition(ctx, topic, p.Partition)
	if err != nil {
		return o, b.code(err)
	}
	o = committed{
		Topic: topic, ID: part.TopicID().String(), Partition: p.Partition,
		Offset: p.Offset, Epoch: p.LeaderEpoch, Lineage: p.LeaderEpoch, Metadata: p.Metadata,
	}
	_, end := part.Bounds()
	beyond := o.Offset > end // carried over from a source that had more than was mirrored: only the client knows of what epoch
	if beyond && o.Epoch < 0 && b.c.CheckWrite(topic, p.Partition) == nil {
		o.Offset = end // what will be written there are other records
	}
	if !beyond || o.Epoch < 0 {
		if o.Lineage, err = part.EpochAt(ctx, o.Offset-1); err != nil {
			return o, b.code(err)
		}
	}
	if o.Ceiling, err = b.groups.ceiling(ctx, topic, p.Partition); err != nil {
		return o, b.code(err)
	}
	return o, noError
}

func (g *groups) ceiling(ctx context.Context, topic string, partition int32) (int64, error) {
	end, ok, err := g.b.c.OffsetCeiling(ctx, topic, partition)
	if !ok {
		end = -1
	}
	return end, err
}

// answer is the offset from which the group goes on, none in a topic that was made anew. It never lies above the log, nor behind a cut.
// Its epoch is never above the leader epoch: that would make the client take the metadata for stale, and ask for others for ever.
func (g *groups) answer(ctx context.Context, o committed) (committed, error) {
	p, err := g.b.c.Partition(ctx, o.Topic, o.Partition)
	if err != nil {
		return o, err
	}
	if o.ID != p.TopicID().String() {
		return committed{Offset: -1, Epoch: -1}, nil
	}
	_, limit := p.Bounds()
	if o.Lineage >= 0 {
		if _, end, err := p.EpochEnd(ctx, o.Lineage); err != nil {
			return o, err
		} else if end >= 0 {
			limit = end
		}
	}
	ceiling, err := g.ceiling(ctx, o.Topic, o.Partition)
	if err != nil {
		return o, err
	}
	if ceiling >= 0 && ceiling != o.Ceiling {
		limit = min(limit, ceiling)
	}
	if o.Offset > limit || o.Epoch > p.LeaderEpoch() {
		o.Offset = min(o.Offset, limit)
		o.Epoch, err = p.EpochAt(ctx, o.Offset-1)
	}
	return o, err
}

// fetched is what OffsetFetch tells of one partition, in all its versions.
type fetched struct {
	offset   int64
	epoch    int32
	metadata *string
	code     int16
}

func (b *Broker) fetchOffset(ctx context.Context, c *call, group, topic string, partition int32) fetched {
	empty := ""
	f := fetched{offset: -1, epoch: -1, metadata: &empty}
	if !b.allowed(c, "Describe", "Topic:"+topic) {
		f.code = topicAuthorizationFailed
		return f
	}
	o, ok := b.groups.find(group, place{topic, partition})
	if !ok {
		return f
	}
	o, err := b.groups.answer(ctx, o)
	if err != nil {
		f.code = b.code(err)
		return f
	}
	f.offset, f.epoch = o.Offset, o.Epoch
	if o.Metadata != nil {
		f.metadata = o.Metadata
	}
	return f
}

func (b *Broker) offsetFetch(ctx context.Context, c *call, req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse) {
	if req.Version >= 8 {
		for i := range req.Groups {
			resp.Groups = append(resp.Groups, b.groupOffsets(ctx, c, &req.Groups[i]))
		}
		return
	}
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = req.Group
	if req.Topics != nil { // else all that it has committed
		group.Topics = []kmsg.OffsetFetchRequestGroupTopic{}
	}
	for _, t := range req.Topics {
		asked := kmsg.NewOffsetFetchRequestGroupTopic()
		asked.Topic, asked.Partitions = t.Topic, t.Partitions
		group.Topics = append(group.Topics, asked)
	}
	found := b.groupOffsets(ctx, c, &group)
	resp.ErrorCode = found.ErrorCode
	for _, t := range found.Topics {
		out := kmsg.NewOffsetFetchResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			out.Partitions = append(out.Partitions, kmsg.OffsetFetchResponseTopicPartition(p))
		}
		resp.Topics = append(resp.Topics, out)
	}
}

func (b *Broker) groupOffsets(ctx context.Context, c *call, req *kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	g := kmsg.NewOffsetFetchResponseGroup()
	g.Group = req.Group
	if !b.allowed(c, "Describe", "Group:"+req.Group) {
		g.ErrorCode = groupAuthorizationFailed
		return g
	}
	asked := make(map[string][]int32)
	for _, t := range req.Topics {
		asked[t.Topic] = append(asked[t.Topic], t.Partitions...)
	}
	if req.Topics == nil {
		asked = b.groups.of(req.Group)
	}
	for topic, partitions := range asked {
		out := kmsg.NewOffsetFetchResponseGroupTopic()
		out.Topic = topic
		for _, n := range partitions {
			f := b.fetchOffset(ctx, c, req.Group, topic, n)
			p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = n, f.offset, f.epoch, f.metadata, f.code
			out.Partitions = append(out.Partitions, p)
		}
		g.Topics = append(g.Topics, out)
	}
	return g
}

// findCoordinator: every node knows all groups and transactions; the first living one is named.
func (b *Broker) findCoordinator(_ context.Context, c *call, req *kmsg.FindCoordinatorRequest, resp *kmsg.FindCoordinatorResponse) {
	find := func(key string) kmsg.FindCoordinatorResponseCoordinator {
		out := kmsg.NewFindCoordinatorResponseCoordinator()
		out.Key, out.NodeID, out.Port, out.ErrorCode = key, -1, -1, coordinatorNotAvailable
		const groupKey, txnKey = 0, 1
		switch {
		case req.CoordinatorType != groupKey && req.CoordinatorType != txnKey:
			out.ErrorCode = invalidRequest
			return out
		case req.CoordinatorType == groupKey && !b.allowed(c, "Describe", "Group:"+key):
			out.ErrorCode = groupAuthorizationFailed
			return out
		case req.CoordinatorType == txnKey && !b.allowed(c, "Describe", "TransactionalId:"+key):
			out.ErrorCode = txnIDAuthorizationFailed
			return out
		}
		for _, node := range b.cluster.living() {
			if host, port, ok := b.endpoint(c, node); ok {
				out.NodeID, out.Host, out.Port, out.ErrorCode = node, host, port, noError
				break
			}
		}
		return out
	}
	if req.Version >= 4 {
		for _, key := range req.CoordinatorKeys {
			resp.Coordinators = append(resp.Coordinators, find(key))
		}
		return
	}
	one := find(req.CoordinatorKey)
	resp.NodeID, resp.Host, resp.Port, resp.ErrorCode = one.NodeID, one.Host, one.Port, one.ErrorCode
}
