package mirror_test

import (
	"context"
	"time"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/memlog"
)

// ghost is a node of a site as it was before it lost the lead of a partition, of which it has not heard: who still reaches it is answered
// from the log of then, under the leader epoch of then.
type ghost struct {
	node   string
	host   *memlog.Host
	c      *mirror.Coordinator
	broker *broker.Broker
}

// haunt has the link reach a ghost in the place of the node that leads a partition of its source, which loses the lead at that moment.
// It may come to lead again, with more records: the ghost doesn't.
func (w *world) haunt(l *link, num int32, again bool) {
	s := l.src
	node := num%simNodes + 1 // that a broker begins with as the leader: the ghost knows it no better
	s.mu.Lock()
	alive := s.c != nil && s.after == nil
	s.mu.Unlock()
	if !alive || s.closed(num) {
		return
	}
	p, err := s.c.Partition(w.t.Context(), simTopic, num)
	if err != nil || p.TopicID() != w.judge.topic(s) || s.broker.Elect(simTopic, num, node, false) != nil {
		return // or it has not heard yet that its topic was deleted
	}
	g, err := newGhost(context.WithValue(w.t.Context(), unwatched{}, true), s.host, node)
	if err != nil {
		return
	}
	w.ghosts = append(w.ghosts, g)
	if s.broker.Elect(simTopic, num, node%simNodes+1, false) != nil {
		return // it leads still, under the epoch that the ghost has
	}
	l.cable.haunt(g)
	if again {
		w.append(s, num, w.records(s, 2, -1, false), false, true)
		pass(time.Second) // the mirror follows to the other node
		_ = s.broker.Elect(simTopic, num, node, false)
		pass(time.Second)
	}
}

func newGhost(ctx context.Context, host *memlog.Host, node int32) (*ghost, error) {
	then, err := copyOf(ctx, host)
	if err != nil {
		return nil, err
	}
	c, err := mirror.Open(ctx, then)
	if err != nil {
		return nil, err
	}
	b, err := broker.New(c, broker.Nodes(simNodes))
	if err != nil {
		return nil, err
	}
	return &ghost{nodeName(node), then, c, b}, nil
}

func (g *ghost) close() {
	_ = g.broker.Close()
	_ = g.c.Close()
}
