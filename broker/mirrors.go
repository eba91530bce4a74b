package broker

import (
	"context"
	"math"
	"slices"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/wire"
)

// mayReadMirrors: whoever asks for mirrors and positions needs the right to read the cluster. A denied question is an error, never
// an answer that leaves something out: it would look as if there was no position.
func (b *Broker) mayReadMirrors(c *call) int16 {
	if !b.allowed(c, "Read", "Cluster:kafka-cluster") {
		return clusterAuthorizationFailed
	}
	return noError
}

// describeMirrors tells of this host's mirrors (KIP-1279), on every node of all partitions.
func (b *Broker) describeMirrors(_ context.Context, c *call, req *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
	if resp.ErrorCode = b.mayReadMirrors(c); resp.ErrorCode != noError {
		resp.ErrorMessage = c.Principal + " may not read the cluster's mirrors"
		return
	}
	wanted := lookups(req.Lookups)
	var ids []mirror.TopicID // one of many, when a peer adds its topics
	for _, t := range req.Lookups {
		ids = append(ids, t.ID)
	}
	for _, s := range b.c.Describe(ids...) {
		if req.Mirrors != nil && !slices.Contains(req.Mirrors, s.Mirror) || req.ClusterID != "" && req.ClusterID != s.ClusterID {
			continue
		}
		resp.Mirrors = append(resp.Mirrors, describedMirrors(s, wanted)...)
	}
	for _, name := range req.Mirrors {
		if !slices.Contains(b.c.Mirrors(), name) {
			resp.Mirrors = append(resp.Mirrors, wire.DescribedMirror{
				ErrorCode: int16(wire.UnknownMirror), Name: name, AuthorizedOperations: math.MinInt32,
			})
		}
	}
}

// lookup says whether a partition was asked for.
type lookup func(topic mirror.TopicID, partition int32) bool

func lookups(list []wire.TopicPartitions) lookup {
	if list == nil {
		return func(mirror.TopicID, int32) bool { return true }
	}
	type part struct {
		id        mirror.TopicID
		partition int32
	}
	asked := make(map[part]bool)
	for _, t := range list {
		for _, n := range t.Partitions {
			asked[part{t.ID, n}] = true
		}
	}
	return func(id mirror.TopicID, n int32) bool { return asked[part{id, n}] }
}

// describedMirrors is one mirror in the KIP's terms. It has an entry for each set of upstream clusters among its topics, as the
// message has room for one set per entry.
func describedMirrors(s mirror.Status, wanted lookup) []wire.DescribedMirror {
	entry := func(upstreams []string) wire.DescribedMirror {
		return wire.DescribedMirror{
			Name: s.Mirror, SourceBootstrap: s.Source, SourceClusterID: s.ClusterID, AuthorizedOperations: math.MinInt32, Upstreams: upstreams,
		}
	}
	var list []wire.DescribedMirror
	for _, t := range s.Topics {
		topic := wire.DescribedTopic{Name: t.Name, ID: t.ID}
		for _, p := range t.Partitions {
			if wanted(t.ID, p.Partition) {
				topic.Partitions = append(topic.Partitions, describedPartition(p))
			}
		}
		if len(topic.Partitions) == 0 {
			continue
		}
		i := slices.IndexFunc(list, func(m wire.DescribedMirror) bool { return slices.Equal(m.Upstreams, t.Upstreams) })
		if i < 0 {
			i, list = len(list), append(list, entry(t.Upstreams))
		}
		list[i].Topics = append(list[i].Topics, topic)
	}
	if len(list) == 0 {
		list = append(list, entry(nil))
	}
	return list
}

func describedPartition(p mirror.PartitionStatus) wire.DescribedPartition {
	d := wire.DescribedPartition{
		Partition: p.Partition, State: p.State.String(), ErrorMessage: p.Reason, RetryAttempt: int16(min(p.Attempts, math.MaxInt16)),
		SourceOffset: p.SourceEnd, DestinationOffset: p.End, LastMirrorEpoch: -1, LastMirrorOffset: -1,
	}
	if p.Position != nil {
		d.LastMirrorEpoch, d.LastMirrorOffset = p.Position.Epoch, p.Position.Offset
	}
	return d
}

// lastMirroredOffsets answers the older question for positions: where mirroring from the cluster that asks was stopped.
func (b *Broker) lastMirroredOffsets(_ context.Context, c *call, req *wire.LastMirroredOffsetsRequest, resp *wire.LastMirroredOffsetsResponse) {
	if resp.ErrorCode = b.mayReadMirrors(c); resp.ErrorCode != noError {
		return
	}
	all := b.c.Describe()
	for _, t := range req.Topics {
		out := wire.LastMirroredTopic{ID: t.ID}
		for _, n := range t.Partitions {
			at := lastMirrored(all, req.ClusterID, t.ID, n)
			out.Partitions = append(out.Partitions, wire.LastMirroredPartition{Partition: n, Epoch: at.Epoch, Offset: at.Offset})
		}
		resp.Topics = append(resp.Topics, out)
	}
}

// lastMirrored is the greatest position at which a mirror of that cluster was stopped; (-1, -1) if none was.
func lastMirrored(all []mirror.Status, cluster string, id mirror.TopicID, partition int32) mirror.Position {
	best := mirror.Position{Epoch: -1, Offset: -1}
	for _, s := range all {
		if s.ClusterID != cluster {
			continue
		}
		for _, t := range s.Topics {
			for _, p := range t.Partitions {
				if t.ID != id || p.Partition != partition || p.State != mirror.Stopped || p.Position == nil {
					continue
				}
				if at := *p.Position; at.Epoch > best.Epoch || at.Epoch == best.Epoch && at.Offset > best.Offset {
					best = at
				}
			}
		}
	}
	return best
}
