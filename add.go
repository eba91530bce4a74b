package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror/internal/wire"
)

// What AddTopics does with a name before its round begins: is there such a topic, may it be mirrored, and as which one.

// add takes a new topic into the mirror.
func (m *Mirror) add(ctx context.Context, name string, meta wire.TopicMeta, h how) error {
	release, err := m.c.claim(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	if t := m.topic(name); t != nil { // another call was faster
		return m.again(ctx, t)
	}
	t, err := m.candidate(ctx, name, meta)
	if err != nil {
		return err
	}
	return m.begin(ctx, t, meta, h)
}

// begin creates a candidate that is new to the mirror, and begins its first round. The caller holds the claim. What will be refused is
// not created: a source that mirrors it from here would take the empty topic for its own source.
func (m *Mirror) begin(ctx context.Context, t *mirrorTopic, meta wire.TopicMeta, h how) error {
	if _, err := m.askIdlePeer(ctx, t); err != nil {
		return err
	}
	if err := m.c.host.EnsureTopic(ctx, Topic{Name: t.name, ID: TopicID(meta.ID), Partitions: int32(len(meta.Partitions))}); err != nil {
		return fmt.Errorf("create the topic here: %w", err)
	}
	first, err := m.c.freshTopic(ctx, t.name)
	if err != nil {
		return err
	}
	t.id, t.confirmed = first.ID, TopicID(meta.ID) == first.ID
	if err := t.command.acquire(ctx); err != nil { // others can see it before it is certain
		return err
	}
	defer t.command.release()
	return m.beginRound(ctx, t, meta, h)
}

// candidate is a topic of the source that may be mirrored, as far as names, ids, numbers of partitions and other mirrors tell. One that
// is in the mirror already is answered only if it is stopped; if another topic has its name by now, on both sides, that one is new.
func (m *Mirror) candidate(ctx context.Context, name string, meta wire.TopicMeta) (*mirrorTopic, error) {
	switch {
	case internalTopic(name) || meta.Internal:
		return nil, hint(ErrInternalTopic, "internal topics, and all whose names begin with __, are not mirrored")
	case meta.Name == "" || errors.Is(meta.Err, kafka.UnknownTopicOrPartition):
		return nil, hint(fmt.Errorf("%w at the source", ErrUnknownTopic), "create it there first, or check the name and the right to describe it")
	case meta.Err != nil:
		return nil, meta.Err
	case len(meta.Partitions) == 0:
		return nil, hint(errors.New("the source reports no partitions"), "add it again when they have been created")
	}
	stopped := m.topic(name)
	if stopped != nil && stopped.wishedNow() != Stopped {
		return nil, nil
	}
	if owner := m.c.ownerOf(name); owner != nil && owner.m != m && !owner.over() {
		return nil, hint(fmt.Errorf("%w: %s", ErrTopicOwned, owner.m.name), "Remove it there first, then Overwrite takes it into this mirror")
	}
	n := int32(len(meta.Partitions))
	here, err := m.c.listTopics(ctx)
	if err != nil {
		return nil, err
	}
	local, exists := here[name]
	id := TopicID(meta.ID)
	if id == (TopicID{}) && stopped != nil { // the source knows no ids
		id = stopped.id
	}
	switch {
	case exists && id != (TopicID{}) && local.ID != id:
		return nil, hint(fmt.Errorf("%w: %s here, %s at the source", ErrTopicConflict, local.ID, id), "delete or rename the topic here, then add it again")
	case exists && local.Partitions > n:
		return nil, fewerPartitions(local.Partitions, n)
	case exists:
		id = local.ID
	}
	if stopped != nil && stopped.id == id {
		m.mu.Lock()
		stopped.confirmed = TopicID(meta.ID) == id
		m.mu.Unlock()
		stopped.led(meta)
		return stopped, nil
	}
	t := m.newTopic(name, id, Mirroring, n)
	t.confirmed = TopicID(meta.ID) == id
	t.led(meta)
	for _, r := range t.replicas {
		r.round.Existed, r.round.Open = exists && r.num < local.Partitions, exists && r.num < local.Partitions
	}
	return t, nil
}

// look asks the source for topics that are to be mirrored.
func (m *Mirror) look(ctx context.Context, names []string) (map[string]wire.TopicMeta, error) {
	if len(names) == 0 {
		return nil, nil
	}
	if m.client == nil {
		return nil, errDetached
	}
	md, err := m.client.Metadata(ctx, names)
	if errors.Is(err, ErrWrongCluster) {
		return nil, err
	}
	if err != nil {
		return nil, hint(fmt.Errorf("%w: ask it for the topics: %w", ErrSourceUnreachable, err), "check the address and the network, then try again; nothing was changed")
	}
	if err := m.sameCluster(ctx, md.ClusterID); err != nil {
		return nil, err
	}
	for id := range md.Brokers { // any: what can't be reached now will be told when it is needed
		if _, err := m.client.Versions(ctx, id); errors.Is(err, wire.ErrVersion) {
			return nil, hint(fmt.Errorf("%w: %w", ErrSourceTooOld, err), "upgrade it, or copy the topics to a newer one; nothing was changed")
		}
		break
	}
	found := make(map[string]wire.TopicMeta, len(md.Topics))
	for _, t := range md.Topics {
		found[t.Name] = t
	}
	return found, nil
}

func fewerPartitions(here, source int32) error {
	return hint(fmt.Errorf("topic has %d partitions here, %d at the source: partitions are never removed", here, source), "grow it at the source first")
}

// freshTopic lists again, since the topic may just have been made.
func (c *Coordinator) freshTopic(ctx context.Context, name string) (Topic, error) {
	list, err := c.listTopics(ctx)
	if err != nil {
		return Topic{}, err
	}
	t, ok := list[name]
	if !ok {
		return Topic{}, fmt.Errorf("topic %s: the host has created it and does not list it: %w", name, ErrUnknownPartition)
	}
	return t, nil
}
