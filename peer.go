package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror/internal/wire"
)

// What the source's brokers say of their own mirrors: the positions that they mirrored from here, what stands in the way of mirroring
// from them, and the clusters above them.

// peer is what the source's brokers say of their own mirrors of one topic.
type peer struct {
	positions map[int32]Position // last mirrored positions of what they mirrored from us
	active    string             // why the topic can't be mirrored from them now; "" if nothing is in the way
	upstreams []string           // clusters that they mirror the topic from, and so on up
}

// askPeer asks every broker of the source, since each knows the partitions that it leads. A broker without the requests for it has
// never mirrored anything; any other failure is no answer, and never means "no position".
func (m *Mirror) askPeer(ctx context.Context, t *mirrorTopic) (peer, error) {
	var p peer
	lookup := wire.TopicPartitions{ID: t.id}
	for _, r := range t.partitions() {
		lookup.Partitions = append(lookup.Partitions, r.num)
	}
	md, err := m.client.Metadata(ctx, []string{t.name})
	if err != nil {
		return p, fmt.Errorf("%w: %w", ErrSourceUnreachable, err)
	}
	for broker := range md.Brokers {
		if err := m.askBroker(ctx, broker, t, lookup, &p); err != nil {
			return p, fmt.Errorf("ask broker %d of the source: %w", broker, err)
		}
	}
	for _, topic := range md.Topics {
		for _, part := range topic.Partitions {
			v, ok := p.positions[part.ID]
			if own, mine := m.c.ownPosition(t.name, t.id, part.ID, m.peerID()); mine && !v.beats(own) {
				continue // it goes by ours, which may be all that theirs repeats
			}
			if ok && part.LeaderEpoch >= 0 && v.Epoch > part.LeaderEpoch {
				return p, unclear(fmt.Errorf("partition %d: the last mirrored position (epoch %d, offset %d) lies above the leader epoch %d, "+
					"which a takeover raises above all that was mirrored", part.ID, v.Epoch, v.Offset, part.LeaderEpoch))
			}
		}
	}
	slices.Sort(p.upstreams)
	p.upstreams = slices.Compact(p.upstreams)
	return p, nil
}

// askIdlePeer is askPeer, and refuses a peer that mirrors the topic from here.
func (m *Mirror) askIdlePeer(ctx context.Context, t *mirrorTopic) (peer, error) {
	p, err := m.askPeer(ctx, t)
	if err == nil && p.active != "" {
		err = hint(fmt.Errorf("%w: %s", ErrPeerActive, p.active), "Remove it there first, then add it again")
	}
	return p, err
}

func (m *Mirror) askBroker(ctx context.Context, broker int32, t *mirrorTopic, lookup wire.TopicPartitions, p *peer) error {
	resp, err := m.client.DescribeMirrors(ctx, broker, &wire.DescribeMirrorsRequest{Lookups: []wire.TopicPartitions{lookup}})
	switch {
	case errors.Is(err, wire.ErrVersion):
		return m.askOlderPeer(ctx, broker, lookup, p)
	case err != nil:
		return unanswered(err)
	case resp.ErrorCode != 0:
		return unclear(fmt.Errorf("%w: %s", wire.CodeError(resp.ErrorCode), resp.ErrorMessage))
	}
	for _, v := range resp.Mirrors {
		if err := p.hear(m.c.host.ClusterID(), t, v); err != nil {
			return err
		}
	}
	return nil
}

// askOlderPeer asks with the request that was replaced. Without epochs (version 0) its answers align nothing.
func (m *Mirror) askOlderPeer(ctx context.Context, broker int32, lookup wire.TopicPartitions, p *peer) error {
	req := wire.LastMirroredOffsetsRequest{ClusterID: m.c.host.ClusterID(), Topics: []wire.TopicPartitions{lookup}}
	resp, err := m.client.LastMirroredOffsets(ctx, broker, &req)
	switch {
	case errors.Is(err, wire.ErrVersion):
		return nil
	case err != nil:
		return unanswered(err)
	case resp.ErrorCode != 0:
		return unclear(wire.CodeError(resp.ErrorCode))
	}
	said := make(map[int32]Position)
	for _, topic := range resp.Topics {
		if topic.ID != lookup.ID {
			continue
		}
		for _, part := range topic.Partitions {
			err := wire.CodeError(part.ErrorCode)
			if err == nil && resp.Version >= 1 {
				err = p.position(said, part.Partition, Position{part.Epoch, part.Offset})
			}
			if err != nil {
				return unclear(fmt.Errorf("partition %d: %w", part.Partition, err))
			}
		}
	}
	return nil
}

// hear takes what a broker says of one mirror.
func (p *peer) hear(us string, t *mirrorTopic, v wire.DescribedMirror) error {
	if v.ErrorCode != 0 {
		return unclear(fmt.Errorf("its mirror %s: %w: %s", v.Name, wire.CodeError(v.ErrorCode), v.ErrorMessage))
	}
	said := make(map[int32]Position)
	for _, topic := range v.Topics {
		if topic.Name != t.name || topic.ID != [16]byte{} && TopicID(topic.ID) != t.id {
			continue
		}
		for _, part := range topic.Partitions {
			if part.State != Stopped.String() {
				chain := append([]string{v.SourceClusterID}, v.Upstreams...)
				p.upstreams = append(p.upstreams, chain...)
				if i := slices.Index(chain, us); i >= 0 {
					p.active = fmt.Sprintf("the source's mirror %s is %s in partition %d and mirrors from here (%s)",
						v.Name, part.State, part.Partition, strings.Join(chain[:i+1], " <- "))
				}
				continue
			}
			if v.SourceClusterID == us {
				if err := p.position(said, part.Partition, Position{part.LastMirrorEpoch, part.LastMirrorOffset}); err != nil {
					return unclear(fmt.Errorf("its mirror %s, partition %d: %w", v.Name, part.Partition, err))
				}
			}
		}
	}
	return nil
}

// position takes one of an answer, in which said were the ones before it. Of several answers the greatest counts.
func (p *peer) position(said map[int32]Position, partition int32, v Position) error {
	old, twice := said[partition]
	switch {
	case v.Epoch < -1 || v.Offset < -1:
		return fmt.Errorf("epoch %d, offset %d is no last mirrored position", v.Epoch, v.Offset)
	case twice && old != v:
		return fmt.Errorf("two last mirrored positions, epoch %d, offset %d and epoch %d, offset %d", old.Epoch, old.Offset, v.Epoch, v.Offset)
	}
	said[partition] = v
	if !v.known() {
		return nil
	}
	if old, ok := p.positions[partition]; !ok || v.beats(old) {
		if p.positions == nil {
			p.positions = make(map[int32]Position)
		}
		p.positions[partition] = v
	}
	return nil
}

// unanswered tells a source that can't be reached from one that answers nonsense.
func unanswered(err error) error {
	if errors.Is(err, wire.ErrProtocol) {
		return unclear(err)
	}
	return fmt.Errorf("%w: %w", ErrSourceUnreachable, err)
}

func unclear(err error) error {
	next := "check the mirrors of the source (its own Describe), then call it again; nothing was changed"
	if errors.Is(err, kafka.ClusterAuthorizationFailed) || errors.Is(err, wire.MirrorAuthorizationFailed) {
		next = "let the mirror's user read the cluster there (Read on Cluster), then call it again; nothing was changed"
	}
	return hint(fmt.Errorf("%w: %w", ErrPeerUnclear, err), next)
}

// refreshChains finds out where the source has what we mirror from: a mirror may have begun there, or further up, since the round
// began. A chain that comes back to this host is a loop, of which no link can go on.
func (m *Mirror) refreshChains(ctx context.Context, md *wire.Metadata, active []*mirrorTopic) error {
	heard := make(map[*mirrorTopic]*peer)
	var lookups []wire.TopicPartitions
	for _, t := range active {
		heard[t] = new(peer)
		lookup := wire.TopicPartitions{ID: t.id}
		for _, r := range t.partitions() {
			lookup.Partitions = append(lookup.Partitions, r.num)
		}
		lookups = append(lookups, lookup)
	}
	if len(active) == 0 {
		return nil
	}
	for broker := range md.Brokers {
		resp, err := m.client.DescribeMirrors(ctx, broker, &wire.DescribeMirrorsRequest{Lookups: lookups})
		if errors.Is(err, wire.ErrVersion) {
			return nil // it has no mirrors
		}
		if err != nil || resp.ErrorCode != 0 {
			return nil //nolint:nilerr // a look for something rare: the next refresh tries again
		}
		for _, v := range resp.Mirrors {
			said := make(map[string][]wire.DescribedTopic) // so that not each topic looks through all of them
			for _, topic := range v.Topics {
				said[topic.Name] = append(said[topic.Name], topic)
			}
			for t, p := range heard {
				v.Topics = said[t.name]
				if err := p.hear(m.c.host.ClusterID(), t, v); err != nil {
					m.c.log.Debug("mirrors of the source", "mirror", m.name, "err", err)
					p.upstreams = append(p.upstreams, t.chain()...) // what it won't say now may still be so
				}
			}
		}
	}
	for t, p := range heard {
		if !t.command.tryAcquire() {
			continue // a command is at work: the next refresh tries again
		}
		err := m.takeChain(ctx, t, p)
		t.command.release()
		if err != nil {
			return err
		}
	}
	return nil
}

// takeChain takes what was heard of one topic. The caller holds its command.
func (m *Mirror) takeChain(ctx context.Context, t *mirrorTopic, p *peer) error {
	if p.active != "" {
		for _, r := range t.partitions() {
			r.failSoon(undecided(fmt.Errorf("%w: %s; Remove the topic on one side", ErrPeerActive, p.active)))
		}
	}
	slices.Sort(p.upstreams)
	p.upstreams = slices.Compact(p.upstreams)
	m.mu.Lock()
	changed := !slices.Equal(t.upstreams, p.upstreams)
	t.upstreams = p.upstreams
	m.mu.Unlock()
	if !changed {
		return nil
	}
	return m.c.put(ctx, t.record(t.wishedNow(), int32(len(t.partitions()))))
}
