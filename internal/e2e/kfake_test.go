package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/e2e/judge"
	"github.com/clustermirror/mirror/internal/e2e/load"
)

func startFake(t testing.TB) *kfake.Cluster {
	c, err := kfake.NewCluster(kfake.NumBrokers(3))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func (s *site) requireFetched(t testing.TB, c *kfake.Cluster, topic string, partition int32) judge.Stats {
	source := judge.Fetched(t.Context(), c.ListenAddrs(), topic, partition)
	stats, err := judge.Identical(source, judge.Log(t.Context(), s.partition(t, topic, partition)))
	require.NoError(t, err, "%s-%d", topic, partition)
	require.NotZero(t, stats.Batches)
	return stats
}

// Leaders move to and fro while every kind of topic is written to.
func TestLeadersOfKfakeMove(t *testing.T) {
	ctx := t.Context()
	c := startFake(t)
	l := load.New(c.ListenAddrs()...)
	defer l.Close()
	var topics []string
	for _, k := range load.Kinds {
		if k.Name != "large" { // kfake has a limit of its own
			topics = append(topics, k.Name)
			require.NoError(t, l.Create(ctx, k, 2, 3))
		}
	}
	s := openSite(t, t.TempDir(), c.ListenAddrs())
	require.NoError(t, s.AddTopics(ctx, topics...))
	for round := range 6 {
		for _, topic := range topics {
			require.NoError(t, l.Write(ctx, load.Find(topic), int32(round%2), round))
			require.NoError(t, c.MoveTopicPartition(topic, int32(round%2), int32(round%3)))
		}
	}
	s.caughtUp(t)
	for _, topic := range topics {
		for p := range int32(2) {
			s.requireFetched(t, c, topic, p)
		}
	}
}

// A compacted topic is mirrored with its gaps; what is compacted later stays in the mirror as it was.
func TestKfakeCompacts(t *testing.T) {
	ctx := t.Context()
	c := startFake(t)
	l := load.New(c.ListenAddrs()...)
	defer l.Close()
	k := load.Find("compacted")
	require.NoError(t, l.Create(ctx, k, 1, 3))
	source := judge.Fetched(ctx, c.ListenAddrs(), k.Name, 0)
	require.NoError(t, l.Compact(ctx, k, 0, func() (bool, error) {
		c.Compact()
		return judge.HasGaps(source)()
	}))
	s := openSite(t, t.TempDir(), c.ListenAddrs())
	require.NoError(t, s.AddTopics(ctx, k.Name))
	s.caughtUp(t)
	s.requireFetched(t, c, k.Name, 0)

	require.NoError(t, l.Write(ctx, k, 0, 100))
	s.caughtUp(t)
	c.Compact()
	require.NoError(t, judge.Surviving(source, judge.Log(ctx, s.partition(t, k.Name, 0))))
}

// What the source drops while the mirror is paused is missing in the mirror, and is reported as lost.
func TestKfakeDropsRecordsThatWereNotMirrored(t *testing.T) {
	ctx := t.Context()
	c := startFake(t)
	l := load.New(c.ListenAddrs()...)
	defer l.Close()
	k := load.Find("plain")
	require.NoError(t, l.Create(ctx, k, 1, 3))
	require.NoError(t, l.Write(ctx, k, 0, 0))
	lost := make(chan mirror.Event, 10)
	s := openSite(t, t.TempDir(), c.ListenAddrs(), mirror.OnEvent(func(e mirror.Event) {
		if e.Kind == mirror.DataLoss {
			lost <- e
		}
	}))
	require.NoError(t, s.AddTopics(ctx, k.Name))
	s.caughtUp(t)
	_, held := s.partition(t, k.Name, 0).Bounds()

	require.NoError(t, s.Pause(ctx, k.Name))
	require.NoError(t, l.Write(ctx, k, 0, 1))
	require.NoError(t, l.Write(ctx, k, 0, 2))
	start := held + 425 // inside a batch
	require.NoError(t, c.DeleteRecords(k.Name, 0, start))
	require.NoError(t, s.Resume(ctx, k.Name))
	s.caughtUp(t)
	s.requireFetched(t, c, k.Name, 0)
	require.Eventually(t, func() bool { // the start follows when the batch that it lies in is here
		begins, _ := s.partition(t, k.Name, 0).Bounds()
		return begins == start
	}, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, start-held, s.Describe().Topics[0].Partitions[0].Totals.Lost)
	e := <-lost
	require.Equal(t, []any{k.Name, held, start}, []any{e.Topic, e.From, e.To})
}

// A topic that is deleted and created again is another topic: the mirror keeps what it has, says why it stands still, and takes
// nothing of the new one.
func TestKfakeRecreatesATopic(t *testing.T) {
	ctx := t.Context()
	c := startFake(t)
	l := load.New(c.ListenAddrs()...)
	defer l.Close()
	k := load.Find("plain")
	require.NoError(t, l.Create(ctx, k, 1, 3))
	require.NoError(t, l.Write(ctx, k, 0, 0))
	s := openSite(t, t.TempDir(), c.ListenAddrs(), mirror.RefreshInterval(100*time.Millisecond))
	require.NoError(t, s.AddTopics(ctx, k.Name))
	s.caughtUp(t)
	kept := filepath.Join(t.TempDir(), "kept")
	require.NoError(t, os.CopyFS(kept, os.DirFS(s.files(k.Name, 0))))

	require.NoError(t, c.DeleteTopic(k.Name))
	require.NoError(t, l.Create(ctx, k, 1, 3))
	require.NoError(t, l.Write(ctx, k, 0, 1))
	require.NoError(t, l.Write(ctx, k, 0, 2))
	require.Eventually(t, func() bool {
		return s.Describe().Topics[0].Partitions[0].State == mirror.Failed
	}, 30*time.Second, 10*time.Millisecond)
	require.NotEmpty(t, s.Describe().Topics[0].Partitions[0].Reason)
	_, err := judge.Identical(judge.Files(kept), judge.Log(ctx, s.partition(t, k.Name, 0)))
	require.NoError(t, err)
}
