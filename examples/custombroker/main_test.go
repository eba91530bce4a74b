package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/logtest"
	"github.com/clustermirror/mirror/memlog"
)

func TestTheLogKeepsTheContract(t *testing.T) {
	logtest.Run(t, logtest.Harness{
		Fresh: func(context.Context) (mirror.Host, error) { return NewLog(), nil },
	})
}

const (
	orders = "orders"

	readOnlyTopic              = "[134]" // as kafka-go prints a code that it does not know; provisional, like all of KIP-1279's
	clusterAuthorizationFailed = "Cluster Authorization Failed"
)

func TestATopicGoesIntoTheBrokerAndBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	// The other cluster, and something in it.
	host := memlog.New()
	origin, err := mirror.Open(ctx, host)
	require.NoError(t, err)
	defer origin.Close()
	cluster, err := broker.New(origin)
	require.NoError(t, err)
	defer cluster.Close()
	require.NoError(t, host.EnsureTopic(ctx, mirror.Topic{Name: orders, Partitions: 2}))
	there := cluster.Source()
	require.NoError(t, write(t, there, "one", "two", "three"))

	b, err := NewBroker(ctx, NewLog(), rules)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	public, peers := listen(t, b, anyone), listen(t, b, peer)

	// A mirror in it: what came is there, byte for byte, and nobody may write.
	dr, err := b.coordinator.Mirror("dr", there)
	require.NoError(t, err)
	require.NoError(t, dr.Start(ctx))
	require.NoError(t, dr.AddTopics(ctx, orders))
	require.NoError(t, dr.WaitCaughtUp(ctx))
	same(t, origin, b.coordinator)
	require.ErrorContains(t, write(t, public, "refused"), readOnlyTopic)
	same(t, origin, b.coordinator)

	// Taken over: the broker's own way into its log is open. The other cluster gets a record that is not mirrored any more.
	require.NoError(t, dr.Remove(ctx, orders))
	require.NoError(t, write(t, there, "never mirrored"))
	require.NoError(t, write(t, public, "four", "five"))
	require.Equal(t, []string{"five", "four", "one", "three", "two"}, read(t, b.coordinator))
	for _, p := range dr.Describe().Topics[0].Partitions {
		var last mirror.Batch
		for last, err = range mirror.Batches(content(t, b.coordinator, p.Partition)) {
			require.NoError(t, err)
		}
		require.Equal(t, p.LeaderEpoch, last.Epoch, "the epoch that BeginWrite gave")
	}

	// Failback: who may not read positions is not told that there are none.
	stranger, err := origin.Mirror("stranger", public)
	require.NoError(t, err)
	require.NoError(t, stranger.Start(ctx))
	require.ErrorContains(t, stranger.AddTopics(ctx, orders), clusterAuthorizationFailed)
	require.NoError(t, stranger.Close())
	require.NoError(t, origin.CheckWrite(orders, 0), "nothing has changed")

	back, err := origin.Mirror("back", peers)
	require.NoError(t, err)
	require.NoError(t, back.Start(ctx))
	require.NoError(t, back.AddTopics(ctx, orders))
	require.NoError(t, back.WaitCaughtUp(ctx))
	same(t, origin, b.coordinator)
	require.NoError(t, write(t, public, "six"))
	require.NoError(t, back.WaitCaughtUp(ctx))
	same(t, origin, b.coordinator)
	require.Equal(t, []string{"five", "four", "one", "six", "three", "two"}, read(t, origin))
}

func listen(t *testing.T, b *Broker, principal string) mirror.Source {
	addr, err := b.Listen("127.0.0.1:0", principal)
	require.NoError(t, err)
	return mirror.Source{Addr: addr, Transport: &kafka.Transport{}}
}

// write writes to a cluster as an ordinary producer does.
func write(t *testing.T, to mirror.Source, values ...string) error {
	w := &kafka.Writer{
		Addr: to.Addr, Transport: to.Transport, Topic: orders, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond,
		Balancer: &kafka.RoundRobin{}, MaxAttempts: 1,
	}
	defer to.Transport.CloseIdleConnections()
	defer w.Close()
	for _, v := range values {
		if err := w.WriteMessages(t.Context(), kafka.Message{Value: []byte(v)}); err != nil {
			return err
		}
	}
	return nil
}

// read gives the values of all records, in alphabetical order.
func read(t *testing.T, c *mirror.Coordinator) (values []string) {
	for num := range int32(2) {
		p, err := c.Partition(t.Context(), orders, num)
		require.NoError(t, err)
		for m, err := range p.Records(t.Context(), 0) {
			require.NoError(t, err)
			values = append(values, string(m.Value))
		}
	}
	slices.Sort(values)
	return values
}

// same compares the topic's bytes.
func same(t *testing.T, a, b *mirror.Coordinator) {
	t.Helper()
	for num := range int32(2) {
		require.Equal(t, content(t, a, num), content(t, b, num), "partition %d", num)
	}
}

func content(t *testing.T, c *mirror.Coordinator, num int32) []byte {
	p, err := c.Partition(t.Context(), orders, num)
	require.NoError(t, err)
	all := make([]byte, 1<<20)
	n, err := p.Read(t.Context(), 0, all)
	require.NoError(t, err)
	require.Less(t, n, len(all), "the whole log")
	require.Positive(t, n)
	return all[:n]
}
