package judge_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/clustermirror/mirror/internal/e2e/judge"
	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
	"github.com/clustermirror/mirror/internal/e2e/load"
)

// memory is a log without a library behind it.
type memory []judge.Batch

func (m memory) Bounds() (int64, int64) { return m[0].Base, m[len(m)-1].Next }

func (m memory) Read(_ context.Context, offset int64, buf []byte) (n int, err error) {
	for _, b := range m {
		if b.Next > offset {
			n += copy(buf[n:], b.Bytes)
		}
	}
	return n, nil
}

// changed is a copy with one byte of one batch flipped.
func (m memory) changed(batch, byte int) memory {
	m = slices.Clone(m)
	m[batch].Bytes = slices.Clone(m[batch].Bytes)
	m[batch].Bytes[byte] ^= 1
	return m
}

func TestJudgesFindWhatDiffers(t *testing.T) {
	ctx := t.Context()
	c, err := kafkatest.Start(ctx, 1)
	require.NoError(t, err)
	defer c.Close()
	b := c.Brokers[0]
	l := load.New(b.Addr)
	defer l.Close()

	write := func(name string) (dir string, held memory) {
		k := load.Find(name)
		require.NoError(t, l.Create(ctx, k, 1, 1))
		require.NoError(t, l.Write(ctx, k, 0, 0))
		dir = b.Dir(name, 0)
		if k.Compacted {
			require.NoError(t, l.Compact(ctx, k, 0, judge.HasGaps(judge.Files(dir))))
			require.NoError(t, l.Rest(ctx, k))
		}
		for b, err := range judge.Files(dir) {
			require.NoError(t, err)
			held = append(held, b)
		}
		return dir, held
	}

	t.Run("bytes", func(t *testing.T) {
		dir, held := write("plain")
		same := func(m memory) error {
			_, err := judge.Identical(judge.Files(dir), judge.Log(ctx, m))
			return err
		}
		require.NoError(t, same(held))
		require.Len(t, held, 6)
		for i := range held[2].Bytes {
			if i < 8 || i >= 12 && i < 16 || i >= 61 { // other header fields move the end of the batch
				require.Error(t, same(held.changed(2, i)), "byte %d", i)
			}
		}
		require.ErrorContains(t, same(held.changed(2, 70)), "differs at its byte 70")
		require.ErrorContains(t, same(held[1:]), "the source has batch 0-")
		require.ErrorContains(t, same(slices.Delete(slices.Clone(held), 2, 3)), "the source has batch 100-")
		require.ErrorContains(t, same(held[:5]), "the mirror ends at 250")
		_, err := judge.Identical(judge.Log(ctx, held[:5]), judge.Files(dir))
		require.ErrorContains(t, err, "the mirror goes on")
	})

	t.Run("records", func(t *testing.T) {
		dir, held := write("compacted")
		files := judge.Files(dir)
		require.NoError(t, judge.Surviving(files, judge.Log(ctx, held)))
		require.ErrorContains(t, judge.Surviving(files, judge.Log(ctx, held[1:])), "the mirror lacks the record")
		require.ErrorContains(t, judge.Surviving(files, judge.Log(ctx, held[:len(held)-1])), "the mirror lacks the record")
		require.ErrorContains(t, judge.Surviving(judge.Log(ctx, held[:len(held)-1]), files), "the source lacks the record")
	})

	t.Run("dump", func(t *testing.T) {
		dir, held := write("lz4")
		require.NoError(t, judge.Dumped(ctx, dir, dir))
		damaged := t.TempDir()
		for _, m := range []memory{held[:5], held.changed(2, 100)} {
			var file []byte
			for _, b := range m {
				file = append(file, b.Bytes...)
			}
			require.NoError(t, os.WriteFile(filepath.Join(damaged, "00000000000000000000.log"), file, 0o644))
			require.Error(t, judge.Dumped(ctx, dir, damaged))
		}
	})

	t.Run("clients", func(t *testing.T) {
		write("headers")
		// Another cluster holds other records of that name.
		other, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "headers"))
		require.NoError(t, err)
		defer other.Close()
		addr := other.ListenAddrs()[0]
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DisableIdempotentWrite())
		require.NoError(t, err)
		defer cl.Close()
		records, err := judge.Consume(ctx, b.Addr, "headers", 0, false)
		require.NoError(t, err)
		for _, r := range records {
			copied := &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
			if r.Offset == 250 {
				copied.Value = []byte("changed")
			}
			cl.Produce(ctx, copied, nil)
		}
		require.NoError(t, cl.Flush(ctx))
		for _, client := range []judge.Client{judge.Kcat, judge.FranzGo, judge.KafkaGo, judge.Java} {
			require.NoError(t, client.Same(ctx, b.Addr, b.Addr, "headers", 0, false), client.Name)
			err := client.Same(ctx, b.Addr, addr, "headers", 0, false)
			require.ErrorContains(t, err, "line ", client.Name)
			require.ErrorContains(t, err, "changed", client.Name)
		}
	})
}
