package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

// stoppable mirrors from a source that answers nothing more once stop is called.
func stoppable(t *testing.T, s *source, opts ...mirror.Option) (m *mirror.Mirror, stop func()) {
	t.Helper()
	var silent atomic.Bool
	m = mirrorOf(t, s.spoiled(func(c net.Conn) net.Conn {
		return &readConn{c, func(n int, _ []byte) (int, error) {
			if silent.Load() {
				return 0, nil // swallowed
			}
			return n, nil
		}}
	}), memlog.New(), opts...)
	return m, func() { silent.Store(true) }
}

// Partitions that are stopped at the same time: the floor is the highest producer id of all of them.
func TestTheProducerIDFloorIsTheHighestOfAllPartitions(t *testing.T) {
	for range 20 {
		inBubble(t, func(t *testing.T) {
			s := newSource(t)
			s.create("orders", 8)
			for i := range int32(8) {
				appendTo(t, s.partition("orders", i), produced(2, int64(1000*(8-i)), false))
			}
			host := memlog.New()
			m := mirrorOrders(t, s, host)
			host.Fail(func(_ context.Context, op memlog.Op, _ string, _ int32) error {
				if op == memlog.OpSync {
					pass(5 * time.Millisecond) // as a disk
				}
				return nil
			})
			require.NoError(t, m.Remove(t.Context(), "orders"))
			host.Fail(nil)
			require.Equal(t, int64(8000), m.Coordinator().ProducerIDFloor())
		})
	}
}

// A cut that was carried out, and whose report could not be closed: a takeover long after does not carry it out once more.
func TestACutIsNotCarriedOutAgainAtTheTakeover(t *testing.T) {
	for name, hiccup := range map[string]bool{"paused and resumed": false, "retried after another failure": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newOrders(t, 10, broker.Nodes(2))
				require.NoError(t, s.broker.Elect("orders", 0, 1, false))
				var broken atomic.Bool
				host := memlog.New()
				m := newMirror(t, s, able{host, func(int64) error { return nil }, func(int64) error {
					if broken.Load() {
						return errDisk
					}
					return nil
				}})
				require.NoError(t, m.AddTopics(t.Context(), "orders"))
				s.write("orders", 0, 1, 1, 1)
				caughtUp(t, m)
				if hiccup { // a failure while MIRRORING, with nothing to fetch afterwards
					var once atomic.Bool
					host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
						if op == memlog.OpAdvanceStart && topic == "orders" && once.CompareAndSwap(false, true) {
							return errDisk
						}
						return nil
					})
					require.NoError(t, s.partition("orders", 0).AdvanceStart(t.Context(), 5))
					eventually(t, "a failure", once.Load)
					pass(time.Minute)
				}
				broken.Store(true)
				require.NoError(t, s.broker.Lag("orders", 0, 2, 11))
				require.NoError(t, s.broker.Elect("orders", 0, 2, true))
				s.write("orders", 0, 1, 1, 1, 1)
				inState(t, m, 0, mirror.Failed)
				if hiccup {
					broken.Store(false)
				} else {
					require.NoError(t, m.Pause(t.Context(), "orders"))
					inState(t, m, 0, mirror.Paused)
					broken.Store(false)
					require.NoError(t, m.Resume(t.Context(), "orders"))
				}
				for range 100 {
					s.write("orders", 0, 10)
				}
				inState(t, m, 0, mirror.Mirroring)
				caughtUp(t, m)
				p := open(t, m.Coordinator(), "orders", 0)
				_, end := p.Bounds()
				require.Equal(t, int64(1015), end)
				require.NoError(t, m.Remove(t.Context(), "orders"))
				_, after := p.Bounds()
				require.GreaterOrEqual(t, after, end, "what was mirrored is kept")
			})
		})
	}
}

// A log that can't be opened: the coordinator opens, and the other topics can be taken over.
func TestOneLogThatCannotBeOpenedHoldsBackItselfOnly(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.create("payments", 1)
		s.write("orders", 0, 10)
		s.write("payments", 0, 10)
		host := memlog.New()
		m := newMirror(t, s, host)
		require.NoError(t, m.AddTopics(t.Context(), "orders", "payments"))
		caughtUp(t, m)
		require.NoError(t, m.Close())
		defer failing(host, on(memlog.OpOpenLog, "payments"))()
		m = newMirror(t, s, host)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Coordinator().CheckWrite("orders", 0))
		require.Error(t, m.Coordinator().CheckWrite("payments", 0))
	})
}

// One topic is paused and another stuck: who waits for both is told of the pause at once.
func TestWaitCaughtUpNamesAPauseAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.create("payments", 1)
		s.write("orders", 0, 10)
		s.write("payments", 0, 10)
		host := memlog.New()
		m := newMirror(t, s, host)
		host.Fail(func(ctx context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpAppend && topic == "payments" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		require.NoError(t, m.AddTopics(t.Context(), "orders", "payments"))
		require.NoError(t, m.Pause(t.Context(), "orders"))
		before := time.Now()
		err := m.WaitCaughtUp(within(t, time.Hour))
		require.ErrorIs(t, err, mirror.ErrPaused)
		require.ErrorContains(t, err, "Resume it")
		require.Less(t, time.Since(before), time.Minute)
	})
}

// What a wait that was given up says: how far it has come, what holds it back, and what to do.
func TestWaitCaughtUpOfAllTopicsLeavesOutStoppedOnes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		a.create("payments", 1)
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.AddTopics(t.Context(), "payments"))
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("payments", 0, 3)
		caughtUp(t, m)
		requireSame(t, a, m, "payments", 1)
		require.ErrorIs(t, m.WaitCaughtUp(within(t, time.Minute), "orders"), mirror.ErrStopped)
	})
}

// A source that is away: what is not known to be missing is not said to be there.
func TestPlanRemoveOfASourceThatIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m := mirrorOrders(t, a, host)
		plan, err := m.PlanRemove(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, mirror.OK, plan[0].Health)
		require.NotContains(t, plan.String(), "unknown")
		require.NoError(t, a.broker.Close())
		eventually(t, "unreachable", func() bool { return state(t, m, "orders", 0).Health == mirror.Unreachable })
		plan, err = m.PlanRemove(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, mirror.Unreachable, plan[0].Health)
		require.Contains(t, plan.String(), "unknown")
	})
}

func TestWaitCaughtUpSaysWhatItWaitsFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		m, err := b.c.Mirror("dr", a.broker.Source())
		require.NoError(t, err)
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		require.ErrorContains(t, m.WaitCaughtUp(within(t, time.Minute)), "not started; call Start")
		require.ErrorContains(t, m.Promote(within(t, time.Minute), "orders"), "not started; call Start")
		require.NoError(t, m.Start(t.Context()))
		caughtUp(t, m)
		release := holding(b.host, on(memlog.OpAppend, "orders"))
		a.write("orders", 0, 5)
		err = m.WaitCaughtUp(within(t, time.Second))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "at offset 10 of 15")
		release()
		caughtUp(t, m)

		require.NoError(t, a.broker.Close())
		err = m.WaitCaughtUp(within(t, time.Minute))
		require.ErrorContains(t, err, "at offset 15 of 15: "+state(t, m, "orders", 0).Reason)
		require.ErrorContains(t, err, "node-1:9092")
		err = m.Promote(within(t, time.Minute), "orders")
		require.ErrorContains(t, err, "; the source does not answer (")
		require.ErrorContains(t, err, "Remove")
		err = m.AddTopics(within(t, time.Second), "payments")
		require.ErrorContains(t, err, "ask it for the topics")
		require.ErrorContains(t, err, "nothing was changed")
	})
}

// The source's end is waited for, and an unclean election takes it back: the wait ends at the new one.
func TestWaitCaughtUpEndsThoughTheSourceGotShorter(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 5, broker.Nodes(2))
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		release := holding(host, on(memlog.OpAppend, "orders"))
		s.write("orders", 0, 5, 5)
		done := make(chan error, 1)
		go func() { done <- m.WaitCaughtUp(within(t, time.Hour)) }()
		pass(time.Second)
		require.NoError(t, s.broker.Lag("orders", 0, 2, 5))
		require.NoError(t, s.broker.Elect("orders", 0, 2, true))
		release()
		require.NoError(t, <-done, "%v", m.Describe())
	})
}

// A tail that the source has lost since is in the log when the wait looks, and reaches beyond what it waits for: it ends without it.
func TestWaitCaughtUpDoesNotEndWithATailThatTheSourceHasLost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 5, broker.Nodes(2))
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		release := holding(host, on(memlog.OpAppend, "orders"))
		s.write("orders", 0, 5, 5)
		pass(time.Second) // fetched
		require.NoError(t, s.broker.Lag("orders", 0, 2, 10))
		require.NoError(t, s.broker.Elect("orders", 0, 2, true))
		done := make(chan error, 1)
		go func() { done <- m.WaitCaughtUp(within(t, time.Hour)) }()
		pass(time.Second)
		release()
		require.NoError(t, <-done)
		requireSame(t, s, m, "orders", 1)
	})
}

// Records without proof are refused; once the topic is deleted here, as the error says, it can be added.
func TestATopicRefusedForItsRecordsCanBeDeletedAndAdded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.write("orders", 0, 3, 4, 1)
		host := memlog.New()
		require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: topicID(t, s.host, "orders"), Partitions: 1}))
		m := newMirror(t, s, host)
		appendTo(t, open(t, m.Coordinator(), "orders", 0), produced(3, 77, false))
		require.ErrorIs(t, m.AddTopics(t.Context(), "orders"), mirror.ErrNoProof)
		require.NoError(t, host.DeleteTopic(t.Context(), "orders"))
		addOrders(t, m)
		requireSame(t, s, m, "orders", 1)
	})
}

// The host loses a topic while it is mirrored: it is mirrored again or failed, and never called MIRRORING without its records.
func TestATopicDeletedHereWhileMirroredIsNotMissedSilently(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 3)
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		require.NoError(t, host.DeleteTopic(t.Context(), "orders"))
		s.write("orders", 0, 3)
		pass(10 * time.Minute)
		if st := state(t, m, "orders", 0); st.State != mirror.Failed {
			require.Equal(t, mirror.Mirroring, st.State, "%+v", st)
			requireSame(t, s, m, "orders", 1)
		}
	})
}

// What can't be stopped answers each Remove with an error, and soon.
func TestRemoveAnswersEachTimeThatStoppingFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 3)
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		defer failing(host, on(memlog.OpSync, "orders"))()
		for range 20 {
			before := time.Now()
			require.ErrorIs(t, m.Remove(t.Context(), "orders"), mirror.ErrFailed)
			require.Less(t, time.Since(before), 10*time.Minute)
		}
	})
}

// StartAtEnd counts once: a partition that is still empty goes on where it was stopped, and skips nothing.
func TestResumeOfAnEmptyPartitionGoesOnWhereItStopped(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 100)
		m := mirrorOrders(t, s, memlog.New(), mirror.StartAtEnd())
		require.NoError(t, m.Remove(t.Context(), "orders"))
		pass(time.Second)
		s.write("orders", 0, 50)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
		st := state(t, m, "orders", 0)
		require.Equal(t, [2]int64{100, 150}, [2]int64{st.Start, st.End})
	})
}

// Records that were adopted are newer than any state: after a restart they are not taken for those of a lost state.
func TestAnAdoptedTopicIsMirroredAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.write("orders", 0, 3, 4, 1)
		host := memlog.New()
		require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: topicID(t, s.host, "orders"), Partitions: 1}))
		l, err := host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		require.NoError(t, l.Append(t.Context(), content(t, s.partition("orders", 0), 0)))
		m := mirrorOrders(t, s, host)
		require.NoError(t, m.Close())
		m = newMirror(t, s, host)
		pass(time.Minute)
		require.Equal(t, mirror.Mirroring, state(t, m, "orders", 0).State, "%v", m.Describe())
	})
}

// Overwrite asks the source before it drops anything: nothing is cut while the source is dead.
func TestOverwriteWithTheSourceDeadCutsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 10)
		m, stop := stoppable(t, s)
		addOrders(t, m)
		require.NoError(t, m.Remove(t.Context(), "orders"))
		pass(time.Second)
		p := open(t, m.Coordinator(), "orders", 0)
		appendTo(t, p, plain(7))
		_, end := p.Bounds()
		stop()
		require.Error(t, m.Overwrite(t.Context(), "orders"))
		pass(time.Minute)
		_, after := p.Bounds()
		require.Equal(t, end, after)
	})
}

// A control batch without a key is refused, and the partition takes the next batch.
func TestABadControlBatchDoesNotSpoilThePartition(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		p := s.partition("orders", 0)
		appendTo(t, p, plain(1))
		h := batch.Header{Attributes: 0x20, ProducerID: 5, BaseSequence: -1}
		_, err := p.Append(t.Context(), batch.Append(nil, h, []batch.Record{{Value: []byte("x")}}))
		require.Error(t, err)
		appendTo(t, p, plain(1))
		_, end := p.Bounds()
		require.Equal(t, int64(2), end)
	})
}

// A source that says no more while a partition is being prepared: a takeover does not wait for it.
func TestRemoveDoesNotWaitForASilentSource(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		p := a.peer()
		silent := make(chan struct{})
		defer close(silent)
		alter(p, func(*kmsg.ListOffsetsRequest, *kmsg.ListOffsetsResponse) { <-silent })
		m, err := b.c.Mirror("dr", p.Source())
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		pass(time.Second)
		require.Equal(t, mirror.Preparing, state(t, m, "orders", 0).State)
		require.Equal(t, 1, p.count(kmsg.ListOffsets.Int16()), "the question that has no answer")
		before := time.Now()
		require.NoError(t, m.Remove(t.Context(), "orders"))
		require.Less(t, time.Since(before), 5*time.Second)
		require.NoError(t, b.c.CheckWrite("orders", 0))
	})
}

// Commands after Close change nothing, also if the coordinator goes on.
func TestCommandsOfAClosedMirrorAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		m := linked(t, "dr", b, a)
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		require.NoError(t, m.Close())
		require.ErrorIs(t, m.Pause(t.Context(), "orders"), mirror.ErrClosed)
	})
}

// A partition that is added here after a takeover is writable, as the others are.
func TestAPartitionAddedAfterATakeoverIsWritable(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 3)
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		require.NoError(t, m.Remove(t.Context(), "orders"))
		pass(time.Second)
		require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", Partitions: 2}))
		require.NoError(t, m.Coordinator().CheckWrite("orders", 0))
		require.NoError(t, m.Coordinator().CheckWrite("orders", 1))
	})
}

// A topic that another mirror took over from here is the other's: neither Resume nor Overwrite gets it back.
func TestATopicHasOneMirrorAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		first, second, here := newSource(t), newSource(t), newSource(t)
		first.create("orders", 1)
		first.write("orders", 0, 3)
		topic := mirror.Topic{Name: "orders", ID: topicID(t, first.host, "orders"), Partitions: 1}
		require.NoError(t, second.host.EnsureTopic(t.Context(), topic))
		second.write("orders", 0, 5)
		a, b := linked(t, "a", here, first), linked(t, "b", here, second)
		addOrders(t, a)
		require.NoError(t, a.Remove(t.Context(), "orders"))
		pass(time.Second)
		require.NoError(t, b.Overwrite(t.Context(), "orders"))
		caughtUp(t, b)
		require.ErrorIs(t, a.Resume(t.Context(), "orders"), mirror.ErrTopicOwned)
		require.ErrorIs(t, a.Overwrite(t.Context(), "orders"), mirror.ErrTopicOwned)
		pass(time.Minute)
		requireSame(t, second, b, "orders", 1)
	})
}

// AddTopics is called at every boot: with the source silent it never closes the gate of a topic that was taken over.
func TestAddTopicsLeavesATakenOverTopicWritable(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 10)
		m, stop := stoppable(t, s)
		addOrders(t, m)
		stop()
		require.NoError(t, m.Remove(t.Context(), "orders"))
		pass(time.Second)
		added := make(chan error, 1)
		go func() { added <- m.AddTopics(t.Context(), "orders") }()
		for range 1000 {
			pass(100 * time.Millisecond)
			require.NoError(t, m.Coordinator().CheckWrite("orders", 0))
		}
		require.Error(t, <-added)
	})
}

// When Remove has returned, the gate is open and Resume is possible, in whatever order goroutines run.
func TestAfterRemoveTheGateIsOpenAndResumeWorks(t *testing.T) {
	for range 100 {
		inBubble(t, func(t *testing.T) {
			s := newSource(t)
			s.create("orders", 1)
			m := mirrorOrders(t, s, memlog.New())
			require.NoError(t, m.Remove(t.Context(), "orders"))
			require.NoError(t, m.Coordinator().CheckWrite("orders", 0))
			require.NoError(t, m.Resume(t.Context(), "orders"))
		})
	}
}

// Resume while a Remove is being written: whichever wins, the wish that is shown is pursued.
func TestResumeDuringARemoveIsRefusedOrPursued(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newOrders(t, 3)
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		require.NoError(t, m.Pause(t.Context(), "orders"))
		pass(time.Minute)
		release := holding(host, nth(1, on(memlog.OpSync, mirror.StateTopic)))
		defer host.Fail(nil)
		removed, resumed := make(chan error, 1), make(chan error, 1)
		go func() { removed <- m.Remove(t.Context(), "orders") }()
		synctest.Wait()
		go func() { resumed <- m.Resume(t.Context(), "orders") }()
		synctest.Wait()
		release()
		<-removed // either may be refused
		<-resumed
		pass(10 * time.Minute)
		topic := m.Describe().Topics[0]
		require.Equal(t, topic.Desired, topic.Partitions[0].State)
	})
}

// Appends that are slow, and end: the partition is behind, not stalled.
func TestSlowAppendsAreNoStall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.write("orders", 0, 1000, 1000, 1000, 1000, 1000)
		ev, host := new(events), memlog.New()
		m := newMirror(t, s, host, mirror.OnEvent(ev.add), mirror.StallAfter(time.Minute), mirror.PartitionFetchBytes(4<<10))
		host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpAppend && topic == "orders" {
				pass(20 * time.Second)
			}
			return nil
		})
		defer host.Fail(nil)
		before := time.Now()
		addOrders(t, m)
		synctest.Wait()
		require.Greater(t, time.Since(before), time.Minute)
		require.Empty(t, ev.of(mirror.HealthChanged))
	})
}

// Of mirrors of one name that are made at once one is attached, and Describe may be called meanwhile.
func TestOneOfManyMirrorsOfANameIsAttached(t *testing.T) {
	s := newSource(t)
	for range 20 {
		host := memlog.New()
		c, err := mirror.Open(t.Context(), host)
		require.NoError(t, err)
		host.Fail(func(_ context.Context, op memlog.Op, _ string, _ int32) error {
			if op == memlog.OpSync {
				pass(time.Millisecond) // so that the others come meanwhile
			}
			return nil
		})
		var g sync.WaitGroup
		var attached atomic.Int64
		for range 4 {
			g.Go(func() {
				if _, err := c.Mirror("dr", s.broker.Source()); err == nil {
					attached.Add(1)
				}
			})
			g.Go(func() { c.Describe() })
		}
		g.Wait()
		require.Equal(t, int64(1), attached.Load())
		require.NoError(t, c.Close())
	}
}

// Partitions are opened, in vain, while the coordinator is closed: each caller gets the host's error or ErrClosed.
func TestCloseWhilePartitionsAreOpened(t *testing.T) {
	for range 50 {
		host := memlog.New()
		c, err := mirror.Open(t.Context(), host)
		require.NoError(t, err)
		require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", Partitions: 64}))
		host.Fail(func(_ context.Context, op memlog.Op, _ string, _ int32) error {
			if op == memlog.OpOpenLog {
				pass(time.Millisecond) // so that some are being opened
				return errDisk
			}
			return nil
		})
		var g sync.WaitGroup
		var errs [64]error
		for num := range int32(64) {
			g.Go(func() { _, errs[num] = c.Partition(t.Context(), "orders", num) })
		}
		closed := c.Close()
		g.Wait()
		require.NoError(t, closed)
		for _, err := range errs {
			require.True(t, errors.Is(err, errDisk) || errors.Is(err, mirror.ErrClosed), "%v", err)
		}
	}
}

// hanging is a host that holds the second append of each partition until it is let go, and counts what it holds.
type hanging struct {
	mirror.Host
	letGo    chan struct{}
	held     atomic.Int64
	greatest atomic.Int64
}

type hangingLog struct {
	mirror.Log
	host  *hanging
	calls int
}

func (h *hanging) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	l, err := h.Host.OpenLog(ctx, topic, partition)
	if topic != "orders" || err != nil {
		return l, err
	}
	return &hangingLog{Log: l, host: h}, nil
}

func (l *hangingLog) Append(ctx context.Context, b []byte) error {
	held := l.host.held.Add(int64(len(b)))
	defer l.host.held.Add(-int64(len(b)))
	for before := l.host.greatest.Load(); held > before && !l.host.greatest.CompareAndSwap(before, held); before = l.host.greatest.Load() {
		continue
	}
	if l.calls++; l.calls == 1 {
		pass(time.Second) // so it is known to be slow
	} else {
		<-l.host.letGo
	}
	return l.Log.Append(ctx, b)
}

// What hangs in the host's appends is in the budget, however many partitions it is of.
func TestWhatHangsStaysWithinTheBudget(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const partitions, budget = 20, 1 << 20
		s := newSource(t)
		s.create("orders", partitions)
		for num := range int32(partitions) {
			for range 3 {
				appendTo(t, s.partition("orders", num), batch.Append(nil, batch.Header{ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1},
					[]batch.Record{{Value: make([]byte, 200<<10)}}))
			}
		}
		host := &hanging{Host: memlog.New(), letGo: make(chan struct{})}
		m := newMirror(t, s, host, mirror.ByteBudget(budget), mirror.PartitionFetchBytes(256<<10))
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		pass(time.Hour)
		require.LessOrEqual(t, host.greatest.Load(), int64(budget))
		close(host.letGo)
		caughtUp(t, m)
		requireSame(t, s, m, "orders", partitions)
	})
}

// A wait over thousands of changes leaves no channel behind with each of them.
func TestAWaitLeavesNoWaitersBehind(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		for range 2000 {
			s.write("orders", 0, 100)
		}
		host := memlog.New()
		m := newMirror(t, s, host, mirror.PartitionFetchBytes(4<<10))
		host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpAppend && topic == "orders" {
				pass(time.Millisecond)
			}
			return nil
		})
		defer host.Fail(nil)
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		p := open(t, m.Coordinator(), "orders", 0)
		require.ErrorIs(t, m.WaitCaughtUp(within(t, 300*time.Millisecond)), context.DeadlineExceeded)
		require.Zero(t, p.Waiters(), "after a wait that was given up")
		done := make(chan error, 1)
		go func() { done <- m.WaitCaughtUp(within(t, time.Hour)) }()
		for range 1000 {
			pass(time.Millisecond)
			require.LessOrEqual(t, p.Waiters(), 2)
		}
		require.NoError(t, <-done)
		require.Zero(t, p.Waiters(), "after a wait that has ended")
	})
}

// Wishes that change while the source's metadata are refreshed, again and again: all are taken, and the last one counts.
func TestWishesChangeWhileMetadataAreRefreshed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newSource(t, broker.Nodes(1))
		s.create("orders", 1)
		m := newMirror(t, s, memlog.New(), mirror.RefreshInterval(100*time.Millisecond))
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		for range 200 {
			require.NoError(t, m.Pause(t.Context(), "orders"))
			require.NoError(t, m.Resume(t.Context(), "orders"))
			pass(10 * time.Millisecond)
		}
		inState(t, m, 0, mirror.Mirroring)
	})
}

// A host that grows a topic between two looks of a command is told so, and nothing has changed.
func TestATopicThatGrowsHereWhileItIsResumedIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(t.Context(), "orders"))
		looks := 0
		b.host.Fail(func(_ context.Context, op memlog.Op, _ string, _ int32) error {
			if op == memlog.OpTopics {
				if looks++; looks == 2 {
					b.create("orders", 2)
				}
			}
			return nil
		})
		require.ErrorContains(t, m.Resume(t.Context(), "orders"), "2 partitions here, 1 at the source")
		inState(t, m, 0, mirror.Stopped)
		require.NoError(t, b.c.CheckWrite("orders", 0))
		require.NoError(t, b.c.CheckWrite("orders", 1))
		a.create("orders", 2)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
	})
}

// A mirror that is closed or attached anew says of each of its topics who may write: what was taken over stays open meanwhile.
func TestWritersOfATakenOverTopicAreNeverRefused(t *testing.T) {
	const partitions = 500
	a := newSource(t)
	a.create("orders", partitions)
	c, err := mirror.Open(t.Context(), memlog.New())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	m, err := c.Mirror("dr", a.broker.Source())
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context()))
	require.NoError(t, m.AddTopics(t.Context(), "orders"))
	require.NoError(t, m.WaitCaughtUp(t.Context()))
	require.NoError(t, m.Remove(t.Context(), "orders"))

	var done atomic.Bool
	refused := make(chan error, 1)
	go func() {
		var err error
		for err == nil && !done.Load() {
			err = c.CheckWrite("orders", partitions-1)
		}
		refused <- err
	}()
	for range 10 {
		require.NoError(t, m.Close())
		m, err = c.Mirror("dr", a.broker.Source())
		require.NoError(t, err)
	}
	done.Store(true)
	require.NoError(t, <-refused)
}

// A disk that is full for a moment: what a Resume has begun can't be taken back in the state, so the topic is shut until it can be.
func TestARoundThatCannotBeTakenBackIsTakenBackByRemove(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(t.Context(), "orders"))
		mend := failing(b.host, on(memlog.OpAppend, mirror.StateTopic))
		err := m.Resume(t.Context(), "orders")
		require.ErrorIs(t, err, errDisk)
		require.ErrorContains(t, err, "; call it again, or Remove it, once the state can be written")
		require.Error(t, b.c.CheckWrite("orders", 0), "after a crash it might be mirrored")
		require.ErrorIs(t, m.Remove(t.Context(), "orders"), errDisk)
		mend()
		require.NoError(t, m.Remove(t.Context(), "orders"))
		b.write("orders", 0, 1)
		require.Equal(t, mirror.Stopped, state(t, m, "orders", 0).State)
	})
}

// A new topic of which nobody knows whether it is in the state: nothing is done about it until it is added again.
func TestANewTopicThatMayOrMayNotBeInTheStateIsLeftAsItIs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 3)
		require.NoError(t, b.host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: topicID(t, a.host, "orders"), Partitions: 1}))
		b.write("orders", 0, 5)
		m := linked(t, "dr", b, a)
		require.ErrorIs(t, m.AddTopics(t.Context(), "orders"), mirror.ErrNoProof)
		full := errors.New("no space left on device")
		b.host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpAppend && topic == mirror.StateTopic {
				return full
			}
			return nil
		})
		err := m.Overwrite(t.Context(), "orders")
		require.ErrorIs(t, err, full)
		require.ErrorContains(t, err, "; add it again once the state can be written")
		b.host.Fail(nil)
		pass(time.Minute)
		require.Empty(t, m.Describe().Topics)
		_, end := b.partition("orders", 0).Bounds()
		require.Equal(t, int64(5), end)
		require.Error(t, b.c.CheckWrite("orders", 0), "after a crash it might be mirrored")
		require.NoError(t, m.Overwrite(t.Context(), "orders"))
		caughtUp(t, m)
		requireSame(t, a, m, "orders", 1)
	})
}

// A host that opens a log and then says that it has none: it is asked again after a pause.
func TestAHostThatOpensLogsThatAreGoneIsNotAskedWithoutAPause(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 5, 5)
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 5))
		host := memlog.New()
		m := newMirror(t, a, host)
		var opened atomic.Int64
		host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			switch {
			case topic != "orders":
			case op == memlog.OpOpenLog:
				if opened.Add(1) > 1000 {
					return errors.New("enough") // without it the test would not end
				}
			case op == memlog.OpReset:
				return mirror.ErrClosed
			}
			return nil
		})
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		pass(time.Minute)
		require.Less(t, opened.Load(), int64(100))
		host.Fail(nil)
		eventually(t, "mended", func() bool { return state(t, m, "orders", 0).End == 10 })
	})
}

// Many topics that are added at once don't each ask for all topics of the host.
func TestTopicsThatAreAddedAtOnceShareTheListOfTheHostsTopics(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const topics = 100
		a := newSource(t)
		names := make([]string, topics)
		for i := range names {
			names[i] = fmt.Sprint("topic-", i)
			a.create(names[i], 1)
		}
		host := memlog.New()
		m := newMirror(t, a, host)
		var asked atomic.Int64
		host.Fail(func(_ context.Context, op memlog.Op, _ string, _ int32) error {
			if op == memlog.OpTopics {
				asked.Add(1)
				pass(10 * time.Millisecond)
			}
			return nil
		})
		require.NoError(t, m.AddTopics(t.Context(), names...))
		require.Less(t, asked.Load(), int64(topics))
		caughtUp(t, m)
	})
}
