package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/e2e/judge"
	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
	"github.com/clustermirror/mirror/internal/e2e/load"
)

// All brokers die at once, under load, with a transaction open and its records mirrored. The topics are taken over: readers see what
// was committed and no more, and Java's idempotent producer writes on though the ids that it is given were in use at the
// source.
func TestTakeoverOfADeadCluster(t *testing.T) {
	ctx := t.Context()
	c := threeBrokers(t)
	l := load.New(c.Addrs()...)
	defer l.Close()
	topics := []string{"transactional", "idempotent"}
	for _, topic := range topics {
		require.NoError(t, l.Create(ctx, load.Find(topic), 1, 3))
		require.NoError(t, l.Write(ctx, load.Find(topic), 0, 0))
	}
	require.NoError(t, l.LeaveOpen(ctx, load.Find("transactional"), 0))
	const busy = "busy"
	createOn(t, c, busy, [][]int32{{1, 2, 3}}, nil)
	s := openSite(t, t.TempDir(), c.Addrs())
	require.NoError(t, s.AddTopics(ctx, append(topics, busy)...))
	s.caughtUp(t)

	clients := []judge.Client{judge.Kcat, judge.FranzGo, judge.Java}
	before := map[string]string{}
	for _, topic := range topics {
		leader, err := c.Leader(ctx, topic, 0)
		require.NoError(t, err)
		s.requireIdentical(t, leader, topic, 0)
		for _, client := range clients {
			text, err := client.Read(ctx, leader.Addr, topic, 0, true)
			require.NoError(t, err, client.Name)
			before[topic+client.Name] = text
		}
	}
	leader, err := c.Leader(ctx, busy, 0)
	require.NoError(t, err)
	w := startWriter(t, c, busy, 1)
	w.more(t, 3000)
	for _, b := range c.Brokers {
		b.Kill()
	}
	w.abandon()
	require.NoError(t, s.Remove(ctx, append(topics, busy)...))

	position := positionOf(t, s.Describe(), busy)
	require.Positive(t, position.Offset)
	stats, err := judge.Identical(judge.Until(judge.Files(leader.Dir(busy, 0)), position.Offset),
		judge.Until(judge.Log(ctx, s.partition(t, busy, 0)), position.Offset))
	require.NoError(t, err)
	require.Equal(t, position.Offset, stats.End)

	addr := serve(t, s.Coordinator())
	for _, topic := range topics {
		p := s.partition(t, topic, 0)
		_, end := p.Bounds()
		stable, err := p.LastStableOffset(ctx)
		require.NoError(t, err)
		require.Equal(t, end, stable, "the open transaction of %s is settled", topic)
		_, err = kafkatest.Tool(ctx, "ProducerPerformance", "--topic", topic, "--num-records", "500", "--record-size", "100",
			"--throughput", "-1", "--bootstrap-server", addr, "--command-property", "acks=all", "linger.ms=0", "request.timeout.ms=5000",
			"delivery.timeout.ms=20000")
		require.NoError(t, err)
		_, after := p.Bounds()
		require.Equal(t, end+500, after, "%s: each record once", topic)
		for _, client := range clients {
			text, err := client.Read(ctx, addr, topic, 0, true)
			require.NoError(t, err, client.Name)
			added, ok := strings.CutPrefix(text, before[topic+client.Name])
			require.True(t, ok, "%s reads other records of %s than at the source", client.Name, topic)
			require.Equal(t, 500, strings.Count(added, "\n"), "%s of %s", client.Name, topic)
		}
	}
}

func positionOf(t testing.TB, s mirror.Status, topic string) mirror.Position {
	for _, ts := range s.Topics {
		if ts.Name == topic {
			require.NotNil(t, ts.Partitions[0].Position, s)
			return *ts.Partitions[0].Position
		}
	}
	require.Fail(t, fmt.Sprintf("no topic %s in %s", topic, s))
	return mirror.Position{}
}
