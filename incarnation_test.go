package mirror_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/disklog"
	"github.com/clustermirror/mirror/memlog"
)

// A topic that is deleted and made anew under its name is another topic, on either side: no log ever holds batches of both.

// recreate deletes a topic of a host and makes another one of that name.
func recreate(t *testing.T, s *source, records ...int) {
	t.Helper()
	require.NoError(t, s.host.DeleteTopic(t.Context(), "orders"))
	s.create("orders", 1)
	_, err := s.c.Topics(t.Context())
	require.NoError(t, err)
	s.write("orders", 0, records...)
}

func TestATopicMadeAnewIsWrittenReadAndMirrored(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, _, m := mirrored(t, 1)
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		a.create("orders", 1)
		old := a.partition("orders", 0)
		_, err := old.Append(t.Context(), plain(1))
		require.Error(t, err, "the log that it has is gone")
		a.write("orders", 0, 3)
		require.NotEqual(t, old.TopicID(), a.partition("orders", 0).TopicID())
		inState(t, m, 0, mirror.Failed)

		fresh := newMirror(t, a, memlog.New())
		require.NoError(t, fresh.AddTopics(t.Context(), "orders"))
		caughtUp(t, fresh)
		requireSame(t, a, fresh, "orders", 1)
		require.Equal(t, int64(10), state(t, m, "orders", 0).End)
	})
}

// A deleted topic whose clients only ask, and never read, is found out by whoever lists the topics.
func TestMetadataOfATopicMadeAnewAreItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		a.create("orders", 1)
		m := newMirror(t, a, memlog.New(), mirror.StartAtEnd()) // reads nothing that is not there
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		caughtUp(t, m)
		require.Equal(t, int64(0), state(t, m, "orders", 0).End)
	})
}

// A local disk says of a deleted topic's log that it is unknown, memory that it is closed.
func TestATopicDeletedHereIsMirroredAgain(t *testing.T) {
	a := newSource(t)
	a.create("orders", 1)
	a.write("orders", 0, 10)
	disk, err := disklog.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, disk.Close()) })
	m := newMirror(t, a, disk, mirror.Backoff(time.Millisecond, 10*time.Millisecond))
	require.NoError(t, m.AddTopics(t.Context(), "orders"))
	caughtUp(t, m)
	require.NoError(t, disk.DeleteTopic(t.Context(), "orders"))
	a.write("orders", 0, 5)
	require.Eventually(t, func() bool { st := state(t, m, "orders", 0); return st.State == mirror.Mirroring && st.End == 15 }, 10*time.Second, 10*time.Millisecond, "%v", m.Describe())
	requireSame(t, a, m, "orders", 1)
}

// Questions about offsets and epochs go by name: what another topic answers cuts nothing.
func TestARecreatedTopicsAnswersCutNothing(t *testing.T) {
	for name, records := range map[string][]int{"empty": nil, "shorter": {3}, "longer": {50}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b, m := mirrored(t, 1)
				require.NoError(t, m.Pause(t.Context(), "orders"))
				inState(t, m, 0, mirror.Paused)
				before := content(t, b.partition("orders", 0), 0)
				recreate(t, a, records...)
				require.NoError(t, m.Resume(t.Context(), "orders"))
				st := inState(t, m, 0, mirror.Failed)
				require.Contains(t, st.Reason, "recreated at the source")
				require.Equal(t, before, content(t, b.partition("orders", 0), 0))
				require.Zero(t, st.Totals)
			})
		})
	}
}

// Removed, deleted here and added anew, as the error says: by any verb that begins a round, and for good.
func TestARecreatedTopicIsStartedOver(t *testing.T) {
	type verb func(m *mirror.Mirror, ctx context.Context, topics ...string) error
	verbs := map[string]verb{"AddTopics": (*mirror.Mirror).AddTopics, "Resume": (*mirror.Mirror).Resume, "Overwrite": (*mirror.Mirror).Overwrite}
	for name, begin := range verbs {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a := newSource(t)
				a.create("orders", 1)
				a.write("orders", 0, 10)
				host := memlog.New()
				m := newMirror(t, a, host)
				require.NoError(t, m.AddTopics(t.Context(), "orders"))
				caughtUp(t, m)
				recreate(t, a, 3)
				inState(t, m, 0, mirror.Failed)
				require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
				for name, verb := range verbs {
					require.ErrorIs(t, verb(m, t.Context(), "orders"), mirror.ErrTopicConflict, name)
					require.NoError(t, m.Coordinator().CheckWrite("orders", 0), "it was taken over, and stays so")
					require.Equal(t, mirror.Stopped, state(t, m, "orders", 0).State)
				}
				_, err := m.PlanAdd(t.Context(), "orders")
				require.ErrorIs(t, err, mirror.ErrTopicConflict)
				require.NoError(t, host.DeleteTopic(t.Context(), "orders"))
				require.NoError(t, begin(m, t.Context(), "orders"))
				caughtUp(t, m)
				requireSame(t, a, m, "orders", 1)
				require.Equal(t, topicID(t, a.host, "orders"), m.Describe().Topics[0].ID)
				require.Len(t, m.Describe().Topics, 1)
				require.NoError(t, m.Close())

				m = newMirror(t, a, host)
				a.write("orders", 0, 4)
				caughtUp(t, m)
				requireSame(t, a, m, "orders", 1)
				require.Len(t, m.Describe().Topics, 1)
			})
		})
	}
}

// The side that comes back has another topic of that name by now: it is not what the peer's positions speak of.
func TestAFailbackOntoATopicMadeAnewIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		back := linked(t, "back", a, b)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 5)
		require.NoError(t, back.AddTopics(t.Context(), "orders"))
		caughtUp(t, back)
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		caughtUp(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		recreate(t, a, 30)
		before := content(t, a.partition("orders", 0), 0)
		for _, verb := range []func() error{
			func() error { return back.AddTopics(t.Context(), "orders") },
			func() error { return back.Resume(t.Context(), "orders") },
			func() error { return back.Overwrite(t.Context(), "orders") },
		} {
			require.ErrorIs(t, verb(), mirror.ErrTopicConflict)
			pass(time.Minute)
			require.Equal(t, before, content(t, a.partition("orders", 0), 0))
			require.NoError(t, a.c.CheckWrite("orders", 0))
		}
	})
}

// Someone makes the topic anew here while it is mirrored: it is not touched, and free again after Remove.
func TestATopicMadeAnewHereWhileMirroredIsNotTouched(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, b.host.DeleteTopic(t.Context(), "orders"))
		b.create("orders", 1)
		a.write("orders", 0, 5)
		eventually(t, "named", func() bool { return strings.Contains(state(t, m, "orders", 0).Reason, mirror.ErrTopicConflict.Error()) })
		require.True(t, state(t, m, "orders", 0).NeedsWord)
		pass(time.Hour)
		_, end := b.partition("orders", 0).Bounds()
		require.Zero(t, end)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 1)
		require.Equal(t, mirror.Stopped, state(t, m, "orders", 0).State)
	})
}

// Who waits at the end of a log is told when its topic is deleted.
func TestFollowersOfADeletedTopicAreTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 3)
		p := a.partition("orders", 0)
		ended := make(chan error, 2)
		go func() {
			for _, err := range p.Records(t.Context(), 0, mirror.Follow()) {
				if err != nil {
					ended <- err
				}
			}
		}()
		go func() { ended <- p.Wait(t.Context(), 3) }()
		pass(time.Second)
		recreate(t, a)
		for range 2 {
			require.ErrorIs(t, <-ended, mirror.ErrUnknownPartition)
		}
	})
}
