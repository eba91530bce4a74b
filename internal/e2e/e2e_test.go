// Package e2e lets others judge the library: real Apache Kafka and its tools, kfake, franz-go, kafka-go, librdkafka.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/disklog"
	"github.com/clustermirror/mirror/internal/e2e/judge"
	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(copierEnv); name != "" {
		if err := runCopier(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if three != nil {
		three.Close()
	}
	os.Exit(code)
}

var three *kafkatest.Cluster

// threeBrokers is the cluster that the tests share, all brokers up. Each test has topics of its own there.
func threeBrokers(t testing.TB) *kafkatest.Cluster {
	if three == nil {
		c, err := kafkatest.Start(context.Background(), 3)
		require.NoError(t, err)
		three = c
	}
	for _, b := range three.Brokers {
		if !b.Running() {
			require.NoError(t, b.Start(t.Context()))
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(three.Logs())
		}
	})
	return three
}

// startKafka starts a cluster that ends with the test, and is quoted if the test fails.
func startKafka(t testing.TB, brokers int, settings ...string) *kafkatest.Cluster {
	c, err := kafkatest.Start(t.Context(), brokers, settings...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		require.NoError(t, c.Close())
	})
	return c
}

// site is a mirror in a folder.
type site struct {
	*mirror.Mirror
	dir  string
	host *disklog.Host
}

// openSite opens the folder's mirror of the cluster behind the addresses, and starts it.
func openSite(t testing.TB, dir string, source []string, opts ...mirror.Option) *site {
	// Small segments, so that there are several.
	host, err := disklog.Open(dir, disklog.SegmentBytes(1<<20))
	require.NoError(t, err)
	m, err := mirror.New(t.Context(), "dr", mirror.Source{Addr: kafka.TCP(source...)}, host, opts...)
	require.NoError(t, err)
	s := &site{Mirror: m, dir: dir, host: host}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Describe())
		}
		s.close(t)
	})
	require.NoError(t, m.Start(t.Context()))
	return s
}

// close may be called twice.
func (s *site) close(t testing.TB) {
	require.NoError(t, s.Mirror.Close())
	require.NoError(t, s.host.Close())
}

// files is the folder of the partition's segments.
func (s *site) files(topic string, partition int32) string {
	return filepath.Join(s.dir, fmt.Sprintf("%s-%d", topic, partition))
}

func (s *site) partition(t testing.TB, topic string, partition int32) *mirror.Partition {
	p, err := s.Coordinator().Partition(t.Context(), topic, partition)
	require.NoError(t, err)
	return p
}

func (s *site) caughtUp(t testing.TB) { caughtUp(t, s.Mirror) }

// caughtUp waits until the mirror has all that the source had when it was asked.
func caughtUp(t testing.TB, m *mirror.Mirror) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, m.WaitCaughtUp(ctx), m.Describe())
}

// requireIdentical compares the partition with the broker's own segment files, as its reader and as its files show it.
func (s *site) requireIdentical(t testing.TB, broker *kafkatest.Broker, topic string, partition int32) {
	source := judge.Files(broker.Dir(topic, partition))
	// A transaction's markers may still be on their way when its producer has been told.
	var stats judge.Stats
	require.Eventually(t, func() (done bool) {
		var err error
		if stats, err = judge.Identical(source, judge.Log(t.Context(), s.partition(t, topic, partition))); err != nil {
			t.Logf("not yet: %s-%d: %v", topic, partition, err)
		}
		return err == nil
	}, 10*time.Second, 200*time.Millisecond, "%s-%d is not the source's", topic, partition)
	require.NotZero(t, stats.Batches)
	_, err := judge.Identical(source, judge.Files(s.files(topic, partition)))
	require.NoError(t, err, "%s-%d in files", topic, partition)
	t.Logf("%s-%d: %d batches, %d bytes identical to the segment files of broker %d", topic, partition, stats.Batches, stats.Bytes, broker.ID)
}
