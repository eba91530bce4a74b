package e2e

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/e2e/judge"
	"github.com/clustermirror/mirror/internal/e2e/load"
)

const partitions = 2

// All kinds of topics are mirrored while they are written to, with a restart of the mirror half-way.
func TestMirrorOfRealKafka(t *testing.T) {
	ctx := t.Context()
	broker := startKafka(t, 1).Brokers[0]
	l := load.New(broker.Addr)
	defer l.Close()
	each := func(ctx context.Context, f func(k load.Kind, partition int32) error) error {
		for _, k := range load.Kinds {
			for p := range int32(partitions) {
				if err := errors.Join(ctx.Err(), f(k, p)); err != nil {
					return err
				}
			}
		}
		return nil
	}

	var topics []string
	for _, k := range load.Kinds {
		topics = append(topics, k.Name)
		require.NoError(t, l.Create(ctx, k, partitions, 1))
	}
	require.NoError(t, each(ctx, func(k load.Kind, p int32) error { return l.Write(ctx, k, p, 0) }))
	for _, k := range load.Kinds {
		for p := range int32(partitions) {
			if k.Compacted {
				require.NoError(t, l.Compact(ctx, k, p, judge.HasGaps(judge.Files(broker.Dir(k.Name, p)))))
			}
		}
	}
	require.NoError(t, l.Rest(ctx, load.Find("compacted")))

	const rounds = 4
	half, written := make(chan struct{}), make(chan error, 1)
	go func() {
		for round := 1; round <= rounds; round++ {
			if err := each(ctx, func(k load.Kind, p int32) error { return l.Write(ctx, k, p, round) }); err != nil {
				written <- err
				return
			}
			if round == rounds/2 {
				close(half)
			}
		}
		written <- l.LeaveOpen(ctx, load.Find("transactional"), 0)
	}()

	dir := t.TempDir()
	s := openSite(t, dir, []string{broker.Addr})
	require.NoError(t, s.AddTopics(ctx, topics...))
	select {
	case <-half:
	case err := <-written:
		require.NoError(t, err)
	}
	s.close(t)
	s = openSite(t, dir, []string{broker.Addr})
	require.NoError(t, s.AddTopics(ctx, topics...)) // as programs do at every boot
	require.NoError(t, <-written)
	require.NoError(t, l.Rest(ctx, load.Find("compacting")))
	s.caughtUp(t)

	t.Run("bytes", func(t *testing.T) {
		for _, k := range load.Kinds {
			for p := range int32(partitions) {
				if k.Name != "compacting" {
					s.requireIdentical(t, broker, k.Name, p)
					continue
				}
				// The last compaction may still replace files.
				var err error
				require.Eventually(t, func() bool {
					err = judge.Surviving(judge.Files(broker.Dir(k.Name, p)), judge.Log(ctx, s.partition(t, k.Name, p)))
					return !errors.Is(err, fs.ErrNotExist)
				}, 10*time.Second, 100*time.Millisecond)
				require.NoError(t, err)
			}
		}
	})

	t.Run("dump", func(t *testing.T) {
		for _, topic := range []string{"plain", "transactional", "zstd", "compacted"} {
			require.NoError(t, judge.Dumped(ctx, broker.Dir(topic, 0), s.files(topic, 0)), topic)
		}
	})

	addr := serve(t, s.Coordinator())
	t.Run("mirror of the mirror", func(t *testing.T) {
		next := openSite(t, t.TempDir(), []string{addr})
		require.NoError(t, next.AddTopics(ctx, topics...))
		next.caughtUp(t)
		for _, k := range load.Kinds {
			for p := range int32(partitions) {
				if k.Name != "compacting" {
					next.requireIdentical(t, broker, k.Name, p)
				}
			}
		}
	})

	t.Run("clients", func(t *testing.T) {
		for _, k := range load.Kinds {
			if k.Name == "compacting" {
				continue // the source has fewer records
			}
			for _, committed := range slices.Compact([]bool{false, k.Transactional}) {
				for _, client := range []judge.Client{judge.Kcat, judge.FranzGo, judge.KafkaGo} {
					require.NoError(t, client.Same(ctx, broker.Addr, addr, k.Name, 0, committed), k.Name)
				}
			}
		}
		for _, topic := range []string{"plain", "gzip", "transactional", "compacted", "append-time"} {
			require.NoError(t, judge.SameTimes(ctx, broker.Addr, addr, topic, 0), topic)
		}
		for _, topic := range []string{"headers", "transactional", "zstd"} {
			require.NoError(t, judge.Java.Same(ctx, broker.Addr, addr, topic, 0, true), topic)
		}
	})
}
