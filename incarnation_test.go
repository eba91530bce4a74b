package mirror_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/disklog"
	"github.com/clustermirror/mirror/internal/batch"
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

		fresh := mirrorOrders(t, a, memlog.New())
		requireSame(t, a, fresh, "orders", 1)
		require.Equal(t, int64(10), state(t, m, "orders", 0).End)
	})
}

// Listed, deleted, made anew, and only then opened: what the list said of it is no longer so.
func TestAPartitionIsNotTakenForOneOfATopicThatWasListed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		_, err := a.c.Topics(t.Context())
		require.NoError(t, err)
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		a.create("orders", 1)
		require.Equal(t, topicID(t, a.host, "orders"), a.partition("orders", 0).TopicID())
	})
}

// A deleted topic whose clients only ask, and never read, is found out by whoever lists the topics.
func TestMetadataOfATopicMadeAnewAreItsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newOrders(t, 10)
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		a.create("orders", 1)
		m := newMirror(t, a, memlog.New(), mirror.StartAtEnd()) // reads nothing that is not there
		addOrders(t, m)
		require.Equal(t, int64(0), state(t, m, "orders", 0).End)
	})
}

// A local disk says of a deleted topic's log that it is unknown, memory that it is closed.
func TestATopicDeletedHereIsMirroredAgain(t *testing.T) {
	a := newOrders(t, 10)
	disk, err := disklog.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, disk.Close()) })
	m := mirrorOrders(t, a, disk, mirror.Backoff(time.Millisecond, 10*time.Millisecond))
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
				a := newOrders(t, 10)
				host := memlog.New()
				m := mirrorOrders(t, a, host)
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
		addOrders(t, back)
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
		addOrders(t, m)
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
	for name, restart := range map[string]bool{"running": false, "down": true} {
		t.Run(name, func(t *testing.T) { inBubble(t, func(t *testing.T) { madeAnewHere(t, restart) }) })
	}
}

func madeAnewHere(t *testing.T, restart bool) {
	a, host := newSource(t), memlog.New()
	a.create("orders", 2)
	a.write("orders", 0, 10)
	m := mirrorOrders(t, a, host)
	if restart {
		require.NoError(t, m.Close())
	}
	require.NoError(t, host.DeleteTopic(t.Context(), "orders"))
	require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", Partitions: 1}))
	if restart {
		m = newMirror(t, a, host)
	}
	for num := range int32(2) { // the other one has no partition 1
		eventually(t, "named", func() bool {
			return strings.Contains(state(t, m, "orders", num).Reason, mirror.ErrTopicConflict.Error())
		})
		require.True(t, state(t, m, "orders", num).NeedsDecision)
	}
	pass(time.Hour)
	_, end := open(t, m.Coordinator(), "orders", 0).Bounds()
	require.Zero(t, end)
	plan, err := m.PlanRemove(t.Context(), "orders")
	require.NoError(t, err)
	require.Equal(t, mirror.Position{Epoch: -1, Offset: -1}, plan[0].Position, "there is nothing that it could be of")
	require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	require.Nil(t, state(t, m, "orders", 0).Position)
	appendTo(t, open(t, m.Coordinator(), "orders", 0), plain(1))
	require.Equal(t, mirror.Stopped, state(t, m, "orders", 0).State)
}

// Made anew so fast that nobody has missed it: who asks by id gets nothing of the other one.
func TestATopicMadeAnewIsNotFetchedForTheOldOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		b := mirrorOrders(t, a, memlog.New())
		pass(time.Second) // a fetch waits for news
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		a.create("orders", 1)
		require.Error(t, a.partition("orders", 0).Sync(t.Context()), "the log that it has is gone")
		log, err := a.host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		require.NoError(t, log.Append(t.Context(), plain(5)))
		eventually(t, "named", func() bool { return strings.Contains(state(t, b, "orders", 0).Reason, "recreated at the source") })
		require.Zero(t, state(t, b, "orders", 0).End)
	})
}

// Restored so fast, under the same id, that nobody has missed it: who fetches goes on with what is there now.
func TestATopicRestoredUnderItsIDIsFetchedFrom(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		pass(time.Second) // a fetch waits for news
		id, all := topicID(t, a.host, "orders"), content(t, a.partition("orders", 0), 0)
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		require.NoError(t, a.host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: id, Partitions: 1}))
		log, err := a.host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		more := plain(5)
		batch.SetBase(more, 10)
		require.NoError(t, log.Append(t.Context(), append(all, more...)))
		require.Error(t, a.partition("orders", 0).Sync(t.Context()), "the log that it has is gone")
		eventually(t, "all of it", func() bool { return state(t, m, "orders", 0).End == 15 })
		equal(t, a, b, "orders", 1)
	})
}

// Who waits at the end of a log is told when its topic is deleted.
func TestFollowersOfADeletedTopicAreTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newOrders(t, 3)
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

// The topic is deleted here just after AddTopics has created it: it was not here before, and Remove leaves it to whoever makes it again.
func TestATopicDeletedHereWhileAddedIsFreeAfterRemove(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m := newMirror(t, a, host, mirror.StartAtEnd())
		var deleted atomic.Bool
		host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			switch {
			case topic == "orders" && op == memlog.OpOpenLog && deleted.CompareAndSwap(false, true):
				return host.DeleteTopic(t.Context(), topic)
			case topic == "orders" && op == memlog.OpReset:
				return errDisk // it never gets as far as to be aligned
			}
			return nil
		})
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		require.Error(t, m.Coordinator().CheckWrite("orders", 0))
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Coordinator().CheckWrite("orders", 0))
	})
}

// The source has lost its topic and asks the mirror to have it back, which is refused while that mirrors: no empty topic is left behind
// at the source, which would take what the mirror holds with it.
func TestARefusedAdditionCreatesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		back := linked(t, "back", a, b)
		before := content(t, b.partition("orders", 0), 0)
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		require.ErrorIs(t, back.AddTopics(t.Context(), "orders"), mirror.ErrPeerActive)
		topics, err := a.c.Topics(t.Context())
		require.NoError(t, err)
		require.Len(t, topics, 1, "the state's only")
		inState(t, m, 0, mirror.Failed)
		require.Equal(t, before, content(t, b.partition("orders", 0), 0))
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		addOrders(t, back)
		equal(t, a, b, "orders", 1)
	})
}

// A checkpoint never lies: also that of a log which was deleted and made anew with the same id goes before a cut.
func TestACutWithdrawsTheCheckpointOfALogThatWasDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		host := memlog.New()
		s := sourceOn(t, host)
		s.create("orders", 1)
		id := topicID(t, host, "orders")
		s.write("orders", 0, 10, 10)
		require.NoError(t, s.c.Close()) // leaves a checkpoint
		c, err := mirror.Open(t.Context(), host)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		p := open(t, c, "orders", 0)
		appendTo(t, p, plain(1))
		require.True(t, p.Checkpointed())
		require.NoError(t, host.DeleteTopic(t.Context(), "orders"))
		_, err = c.Topics(t.Context())
		require.NoError(t, err)
		require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: id, Partitions: 1}))
		p = open(t, c, "orders", 0)
		appendTo(t, p, plain(10))
		appendTo(t, p, plain(10))
		require.NoError(t, p.Truncate(t.Context(), 10))
		require.False(t, p.Checkpointed())
	})
}
