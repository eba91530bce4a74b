package memlog_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/memlog"
)

// The contract itself is checked by the suite of package logtest, in that package's own tests. Here stands what memlog adds.

// one is a batch of one offset without records, all that a log looks at.
func one(base int64) []byte {
	b := make([]byte, 61)
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[8:], 61-12)
	b[16] = 2
	return b
}

func open(t *testing.T, h *memlog.Host, topic string) mirror.Log {
	t.Helper()
	require.NoError(t, h.EnsureTopic(t.Context(), mirror.Topic{Name: topic, Partitions: 1}))
	l, err := h.OpenLog(t.Context(), topic, 0)
	require.NoError(t, err)
	return l
}

func TestEverythingAnswersErrClosedAfterACrash(t *testing.T) {
	h := memlog.New()
	l := open(t, h, "orders")
	require.NoError(t, l.Append(t.Context(), one(0)))
	require.NoError(t, l.Sync(t.Context()))
	next := h.Crash(rand.New(rand.NewPCG(1, 1)))

	ctx := t.Context()
	_, err := l.Read(ctx, 0, make([]byte, 61))
	require.ErrorIs(t, err, mirror.ErrClosed)
	require.ErrorIs(t, l.Append(ctx, one(1)), mirror.ErrClosed)
	require.ErrorIs(t, l.Sync(ctx), mirror.ErrClosed)
	require.ErrorIs(t, l.TruncateTo(ctx, 0), mirror.ErrClosed)
	require.ErrorIs(t, l.AdvanceStart(ctx, 1), mirror.ErrClosed)
	require.ErrorIs(t, l.Reset(ctx, 0), mirror.ErrClosed)
	_, err = h.Topics(ctx)
	require.ErrorIs(t, err, mirror.ErrClosed)
	_, err = h.OpenLog(ctx, "orders", 0)
	require.ErrorIs(t, err, mirror.ErrClosed)
	require.ErrorIs(t, h.EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: 1}), mirror.ErrClosed)
	require.ErrorIs(t, h.DeleteTopic(ctx, "orders"), mirror.ErrClosed)

	require.Equal(t, h.ClusterID(), next.ClusterID())
	start, end := open(t, next, "orders").Bounds()
	require.Equal(t, [2]int64{0, 1}, [2]int64{start, end})
}

func TestRandMakesARunRepeatable(t *testing.T) {
	run := func() (out []string) {
		rng := rand.New(rand.NewPCG(7, 7))
		h := memlog.New(memlog.Rand(rng))
		for i := range 3 {
			l := open(t, h, fmt.Sprint("topic-", i))
			for base := range int64(20) {
				require.NoError(t, l.Append(t.Context(), one(base)))
			}
		}
		h = h.Crash(rng)
		list, err := h.Topics(t.Context())
		require.NoError(t, err)
		out = append(out, h.ClusterID())
		for _, topic := range list {
			_, end := open(t, h, topic.Name).Bounds()
			out = append(out, fmt.Sprint(topic, end))
		}
		return out
	}
	first := run()
	require.Equal(t, first, run())
}

func TestACrashLeavesAnyPrefixOfWhatWasNotSynced(t *testing.T) {
	seen := make(map[int64]bool)
	for seed := range uint64(100) {
		h := memlog.New()
		l := open(t, h, "orders")
		for base := range int64(5) {
			require.NoError(t, l.Append(t.Context(), one(base)))
			if base == 1 {
				require.NoError(t, l.Sync(t.Context()))
			}
		}
		_, end := open(t, h.Crash(rand.New(rand.NewPCG(seed, 0))), "orders").Bounds()
		seen[end] = true
	}
	require.Equal(t, map[int64]bool{2: true, 3: true, 4: true, 5: true}, seen)
}

func TestFailAnswersInPlaceOfACall(t *testing.T) {
	h := memlog.New(memlog.ClusterID("mine"))
	require.Equal(t, "mine", h.ClusterID())
	l := open(t, h, "orders")
	require.NoError(t, l.Append(t.Context(), append(one(0), one(1)...)))
	h.Fail(func(_ context.Context, op memlog.Op, topic string, partition int32) error {
		if op == memlog.OpTruncateTo && topic == "orders" && partition == 0 {
			return errors.ErrUnsupported
		}
		return nil
	})
	require.ErrorIs(t, l.TruncateTo(t.Context(), 1), errors.ErrUnsupported)
	_, end := l.Bounds()
	require.EqualValues(t, 2, end)
	require.NoError(t, l.Sync(t.Context()))
	h.Fail(nil)
	require.NoError(t, l.TruncateTo(t.Context(), 1))
	_, end = l.Bounds()
	require.EqualValues(t, 1, end)
}

func TestFailInTheMiddleOfAnAppendKeepsTheBatchesBefore(t *testing.T) {
	h := memlog.New()
	l := open(t, h, "orders")
	full := errors.New("disk full")
	calls := 0
	h.Fail(func(_ context.Context, op memlog.Op, _ string, _ int32) error {
		if calls++; op == memlog.OpAppend && calls > 2 {
			return full
		}
		return nil
	})
	err := l.Append(t.Context(), append(append(one(0), one(1)...), one(2)...))
	require.ErrorIs(t, err, full)
	_, end := l.Bounds()
	require.EqualValues(t, 2, end)
}

func TestFailMayHoldACallUntilItsContextEnds(t *testing.T) {
	h := memlog.New()
	l := open(t, h, "orders")
	held := make(chan struct{})
	h.Fail(func(ctx context.Context, op memlog.Op, _ string, _ int32) error {
		if op != memlog.OpSync {
			return nil
		}
		close(held)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Sync(ctx) }()
	<-held
	require.NoError(t, l.Append(t.Context(), one(0)), "others go on meanwhile")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestDeletedTopicsAreGone(t *testing.T) {
	h := memlog.New()
	l := open(t, h, "orders")
	require.NoError(t, l.Append(t.Context(), one(0)))
	require.NoError(t, h.DeleteTopic(t.Context(), "orders"))
	require.ErrorIs(t, l.Append(t.Context(), one(1)), mirror.ErrClosed)
	require.ErrorIs(t, h.DeleteTopic(t.Context(), "orders"), mirror.ErrUnknownPartition)
	_, end := open(t, h, "orders").Bounds()
	require.Zero(t, end, "a topic of the same name is another topic")
}

func TestBytesThatAreNotWholeBatchesAreRefused(t *testing.T) {
	l := open(t, memlog.New(), "orders")
	require.ErrorIs(t, l.Append(t.Context(), append(one(1), one(0)...)), mirror.ErrOutOfOrder)
	require.Error(t, l.Append(t.Context(), append(one(0), one(1)[:60]...)))
	require.Error(t, l.Append(t.Context(), make([]byte, 61)))
	_, end := l.Bounds()
	require.Zero(t, end)
}
