package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/wire"
)

// What the source's metadata say: which topics and partitions there are, who leads them, and whether it is still the same cluster.

// run keeps the metadata fresh: at the refresh interval, whenever something points to old metadata, and after a growing pause
// while the source is unreachable.
func (m *Mirror) run(ctx context.Context) {
	for _, t := range m.mustAll() {
		for _, r := range t.partitions() {
			r.kick()
		}
	}
	pause := m.newBackoff()
	refresh := time.NewTimer(0)
	defer refresh.Stop()
	watch := time.NewTicker(max(m.opts.stallAfter/4, 10*time.Millisecond))
	defer watch.Stop()
	for last := (time.Time{}); ; {
		select {
		case <-ctx.Done():
			return
		case <-watch.C:
			m.watch(time.Now())
			continue
		case <-m.soon:
			if wait := m.opts.backoffMin - time.Since(last); wait > 0 { // many partitions may ask at once
				refresh.Reset(wait)
				continue
			}
		case <-refresh.C:
		}
		last = time.Now()
		if err := m.refresh(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			m.c.log.Warn("source metadata", "mirror", m.name, "err", err)
			refresh.Reset(pause.NextBackOff())
			continue
		}
		pause.Reset()
		refresh.Reset(m.opts.refresh)
	}
}

// refreshSoon asks for fresh metadata, without waiting.
func (m *Mirror) refreshSoon() {
	select {
	case m.soon <- struct{}{}:
	default:
	}
}

// nextLook asks for fresh metadata, and is the number of the first look that begins after the call.
func (m *Mirror) nextLook() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refreshSoon()
	return m.looks + 1
}

// unseen says that the partitions which the source has now may not be known yet.
func (t *mirrorTopic) unseen(look int) bool {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return t.looked < look
}

// refresh reads the metadata of the mirror's topics and tells the partitions.
func (m *Mirror) refresh(ctx context.Context) error {
	m.mu.Lock()
	m.looks++
	look := m.looks
	m.mu.Unlock()
	var active []*mirrorTopic
	var names []string
	for _, t := range m.mustAll() {
		if t.wishedNow() != Stopped {
			active, names = append(active, t), append(names, t.name)
		}
	}
	md, err := m.client.Metadata(ctx, names)
	if err == nil {
		err = m.sameCluster(ctx, md.ClusterID)
	}
	if err != nil {
		for _, t := range active {
			for _, r := range t.partitions() {
				if errors.Is(err, ErrWrongCluster) {
					r.failSoon(undecided(fmt.Errorf("%w; Recover once the right one answers", advised(err))))
				} else {
					m.troubled(r, err)
				}
			}
		}
		return err
	}
	if _, err := m.c.listTopics(ctx); err != nil { // what the host has deleted is found out, also if nothing comes
		m.c.log.Warn("topics of the host", "mirror", m.name, "err", err)
	}
	found := make(map[string]wire.TopicMeta, len(md.Topics))
	for _, t := range md.Topics {
		found[t.Name] = t
	}
	for _, t := range active {
		for _, r := range t.partitions() {
			r.letGo()
		}
		err := m.learn(ctx, t, found[t.name])
		if err == nil {
			m.mu.Lock()
			t.looked = look
			m.mu.Unlock()
		} else if ctx.Err() == nil {
			m.c.log.Warn("topic at the source", "mirror", m.name, "topic", t.name, "err", err)
			for _, r := range t.partitions() {
				m.troubled(r, err)
			}
		}
	}
	return m.refreshChains(ctx, md, active)
}

// accept refuses a source that is not the one this mirror began with, or is this host itself. It is asked before a broker that such a
// source names is connected to.
func (m *Mirror) accept(id string) error {
	want := cmp.Or(m.src.ClusterID, m.peerID())
	switch {
	case id != "" && id == m.c.host.ClusterID():
		return hint(fmt.Errorf("%w: it is this host itself (%s)", ErrWrongCluster, id), "correct Source.Addr")
	case want != "" && id != want:
		return hint(fmt.Errorf("%w: %s instead of %s", ErrWrongCluster, id, want),
			"correct Source.Addr, or mirror the other cluster on another host, or here by another mirror after Remove")
	}
	return nil
}

// sameCluster remembers the cluster that has answered first.
func (m *Mirror) sameCluster(ctx context.Context, id string) error {
	m.mu.Lock()
	peer := m.peer
	m.mu.Unlock()
	if peer == id {
		return nil
	}
	if err := m.c.put(ctx, record(statelog.Key{Type: typeMirror, Mirror: m.name}, mirrorRecord{Peer: id})); err != nil {
		return fmt.Errorf("remember the source's cluster id: %w", err)
	}
	m.mu.Lock()
	m.peer = id
	m.mu.Unlock()
	return nil
}

// learn takes what the source says of one topic.
func (m *Mirror) learn(ctx context.Context, t *mirrorTopic, meta wire.TopicMeta) error {
	switch {
	case meta.Name == "" || errors.Is(meta.Err, kafka.UnknownTopicOrPartition):
		return m.missed(ctx, t)
	case meta.Err != nil:
		return fmt.Errorf("topic %s: %w", t.name, meta.Err)
	}
	m.mu.Lock()
	t.missing = 0
	t.confirmed = TopicID(meta.ID) == t.id
	m.mu.Unlock()
	if id := TopicID(meta.ID); id != (TopicID{}) && id != t.id {
		err := fmt.Errorf("topic %s was recreated at the source: its id is %s, here it is %s; nothing is appended onto the old log. Remove it here, delete it, and add it anew", t.name, id, t.id)
		for _, r := range t.partitions() {
			r.failSoon(undecided(err))
		}
		return nil
	}
	if n := int32(len(meta.Partitions)); n > int32(len(t.partitions())) {
		if err := m.grow(ctx, t, n); err != nil {
			return err
		}
	}
	replicas := t.partitions()
	known := make([]bool, len(replicas))
	for _, p := range meta.Partitions {
		if p.ID < 0 || int(p.ID) >= len(replicas) {
			continue
		}
		known[p.ID] = true
		if p.Leader < 0 {
			m.troubled(replicas[p.ID], fmt.Errorf("%s: %w", replicas[p.ID], errNoLeader))
			continue
		}
		replicas[p.ID].lead(p.Leader, p.LeaderEpoch)
	}
	for i, ok := range known {
		if !ok {
			m.troubled(replicas[i], fmt.Errorf("%s: the source has %d partitions, here there are %d", replicas[i], len(meta.Partitions), len(replicas)))
		}
	}
	return nil
}

// missed believes that a topic is gone only after two refreshes and another kind of look-up: metadata may lag behind, and the right
// to see the topic may have been taken away.
func (m *Mirror) missed(ctx context.Context, t *mirrorTopic) error {
	m.mu.Lock()
	t.missing++
	missing := t.missing
	m.mu.Unlock()
	gone := fmt.Errorf("topic %s does not exist at the source", t.name)
	if missing < 2 {
		m.refreshSoon()
		return gone
	}
	list, err := m.client.ListTopics(ctx)
	if err != nil {
		return err
	}
	for _, meta := range list {
		if meta.Name == t.name {
			return gone
		}
	}
	if m.opts.stopOnDelete {
		m.c.log.Warn("topic was deleted at the source: stopping it", "mirror", m.name, "topic", t.name)
		_, err := m.want(ctx, t.name, Stopped)
		return err
	}
	err = fmt.Errorf("topic %s was deleted at the source; it stays readable and read-only here. Remove it, or Recover it once it is back with the same id", t.name)
	for _, r := range t.partitions() {
		r.failSoon(undecided(err))
	}
	return nil
}

// grow adds the partitions that the source has added. They begin at their start, wherever the others did.
func (m *Mirror) grow(ctx context.Context, t *mirrorTopic, n int32) error {
	if err := t.command.acquire(ctx); err != nil {
		return err
	}
	defer t.command.release()
	if m.topic(t.name) != t {
		return nil
	}
	old := int32(len(t.partitions()))
	if err := m.c.host.EnsureTopic(ctx, Topic{Name: t.name, ID: t.id, Partitions: n}); err != nil {
		return fmt.Errorf("grow topic %s from %d to %d partitions: %w", t.name, old, n, err)
	}
	var fresh []*replica
	recs := []statelog.Record{t.record(t.wishedNow(), n)}
	for i := old; i < n; i++ {
		r := newReplica(t, i)
		r.round = round{Number: 1, Peer: m.peerID(), Late: true, Confirmed: true, Epoch: -1, Offset: -1}
		fresh = append(fresh, r)
		recs = append(recs, r.roundRecord(r.round))
	}
	if err := m.c.put(ctx, recs...); err != nil {
		return fmt.Errorf("grow topic %s from %d to %d partitions: %w", t.name, old, n, err)
	}
	m.c.gate.grow(t.name, m.name, n)
	m.mu.Lock()
	t.replicas = append(t.replicas, fresh...)
	m.mu.Unlock()
	m.c.log.Info("partitions added at the source", "mirror", m.name, "topic", t.name, "from", old, "to", n)
	return nil
}

func (m *Mirror) peerID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peer
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
