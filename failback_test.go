package mirror_test

import (
	"context"
	"errors"
	"fmt"
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

// linked makes a mirror on one site from another, and starts it.
func linked(t *testing.T, name string, to, from *source, opts ...mirror.MirrorOption) *mirror.Mirror {
	t.Helper()
	m, err := to.c.Mirror(name, from.broker.Source(), opts...)
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context()))
	return m
}

// within bounds a command in virtual time.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// equal compares both sites byte for byte.
func equal(t *testing.T, a, b *source, topic string, partitions int32) {
	t.Helper()
	for num := range partitions {
		left, right := a.partition(topic, num), b.partition(topic, num)
		_, aEnd := left.Bounds()
		_, bEnd := right.Bounds()
		require.Equal(t, aEnd, bEnd, "%s-%d", topic, num)
		require.Equal(t, content(t, left, 0), content(t, right, 0), "%s-%d", topic, num)
	}
}

func TestTakeoverMakesTheTopicWritable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 2)
		a.write("orders", 0, 10, 5)
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		st := state(t, m, "orders", 0)
		require.Equal(t, mirror.Stopped, st.State)
		require.True(t, st.TakenOver)
		require.Equal(t, int64(15), st.Position.Offset)
		require.Equal(t, int64(16), st.End, "one control batch resets the producers")
		require.GreaterOrEqual(t, st.LeaderEpoch, int32(1<<18))
		require.NoError(t, b.c.CheckWrite("orders", 0))
		b.write("orders", 0, 3)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"), "removing a topic that is stopped changes nothing")
		require.Equal(t, int64(15), state(t, m, "orders", 0).Position.Offset)
		require.Equal(t, int64(19), state(t, m, "orders", 0).End)
		require.ErrorIs(t, m.AddTopics(t.Context(), "orders"), mirror.ErrStopped, "a boot never undoes a takeover")
		require.NoError(t, b.c.CheckWrite("orders", 0))
		require.Equal(t, int64(19), state(t, m, "orders", 0).End)
	})
}

func TestTakeoverWithTheSourceDeadAndAfterARestartWithoutIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newOrders(t, 10)
		host := memlog.New()
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.Close())

		c, err := mirror.Open(t.Context(), host)
		require.NoError(t, err)
		defer c.Close()
		detached, err := c.Detached("dr")
		require.NoError(t, err)
		require.NoError(t, detached.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, c.CheckWrite("orders", 0))
		appendTo(t, open(t, c, "orders", 0), plain(3))
	})
}

func TestOpenTransactionsAreAbortedAtTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		p := a.partition("orders", 0)
		appendTo(t, p, produced(10, 7, true))
		appendTo(t, p, plain(10))
		appendTo(t, p, produced(10, 9, true))
		appendTo(t, p, batch.AppendControl(nil, 0, 0, 9, 0, batch.Control{Type: batch.ControlCommit}, 0))
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		plan, err := m.PlanRemove(t.Context())
		require.NoError(t, err)
		require.Len(t, plan[0].Open, 1)
		require.Equal(t, int64(7), plan[0].Open[0].ProducerID)
		require.Equal(t, int64(31), plan[0].Position.Offset)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		q := b.partition("orders", 0)
		lso, err := q.LastStableOffset(t.Context())
		require.NoError(t, err)
		_, end := q.Bounds()
		require.Equal(t, int64(33), end, "an abort marker and the reset")
		require.Equal(t, end, lso)
		aborted, err := q.Aborted(t.Context(), 0, end)
		require.NoError(t, err)
		require.Equal(t, []mirror.AbortedTxn{{ProducerID: 7, FirstOffset: 0, LastOffset: 31}}, aborted)
		require.Equal(t, int64(9), b.c.ProducerIDFloor())
	})
}

// The old side comes back with a tail that was never mirrored: exactly that is cut and reported, and only what is new is fetched.
func TestFailbackCutsTheOrphanedTailOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10, 5)
		dr := linked(t, "dr", b, a)
		addOrders(t, dr)
		require.NoError(t, dr.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2, 1) // an unaware producer
		b.write("orders", 0, 4, 4)

		back := linked(t, "back", a, b)
		plan, err := back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Len(t, plan, 1)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 15, To: 18}}, plan[0].Cut)
		require.Equal(t, int64(15), plan[0].Position.Offset)
		require.Contains(t, plan.String(), "[15, 18)")
		require.NoError(t, a.c.CheckWrite("orders", 0), "a plan changes nothing")
		require.NoError(t, back.AddTopics(t.Context(), "orders"))
		require.Error(t, a.c.CheckWrite("orders", 0))
		caughtUp(t, back)
		equal(t, a, b, "orders", 1)
		st := state(t, back, "orders", 0)
		require.Equal(t, mirror.Totals{Cut: 3, Cuts: 1}, st.Totals)
		require.Less(t, st.Bytes, int64(len(content(t, b.partition("orders", 0), 0))), "only the difference was fetched")

		require.ErrorIs(t, dr.AddTopics(t.Context(), "orders"), mirror.ErrPeerActive, "the reverse mirror is active")
		require.NoError(t, b.c.CheckWrite("orders", 0), "and nothing has changed")
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, dr.AddTopics(t.Context(), "orders"), "the other side's position is the greater one now: a failback")
		caughtUp(t, dr)
		equal(t, a, b, "orders", 1)
	})
}

// A start point is for what is new. A topic that was mirrored before goes on where that ended, also if retention has emptied it since.
func TestAResumedTopicSkipsNothingForItsStartPoint(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m := mirrorOrders(t, a, host, mirror.StartAtEnd())
		a.write("orders", 0, 10)
		caughtUp(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		p := open(t, m.Coordinator(), "orders", 0)
		appendTo(t, p, plain(5))
		_, end := p.Bounds()
		require.NoError(t, p.AdvanceStart(t.Context(), end))
		a.write("orders", 0, 10)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
		start, end := p.Bounds()
		require.Equal(t, [2]int64{20, 30}, [2]int64{start, end})
		require.Equal(t, content(t, a.partition("orders", 0), 20), content(t, p, 20))
	})
}

// What was never mirrored has been read here, and retention has taken all of it, so nothing is left to cut: its offsets come to name other
// records all the same.
func TestAFailbackOntoAnEmptiedLogClampsCommittedOffsets(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 30)
		a.write("orders", 0, 10)
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 20))
		addOrders(t, linked(t, "back", a, b))
		equal(t, a, b, "orders", 1)
		end, ok, err := a.c.OffsetCeiling(t.Context(), "orders", 0)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, int64(10), end, "where the logs parted")
	})
}

// With writes on both sides, some of which are never mirrored, and partitions that are added on either side between rounds and within.
func TestTwentyRoundsBackAndForthStayExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t, broker.Nodes(2)), newSource(t, broker.Nodes(2))
		a.create("orders", 1)
		here, there := a, b
		mirrors := map[*source]*mirror.Mirror{b: linked(t, "dr", b, a), a: linked(t, "back", a, b)}
		r := rng(1)
		partitions := int32(1)
		for round := range 20 {
			m := mirrors[there]
			require.NoError(t, m.AddTopics(t.Context(), "orders"), "round %d", round)
			if round%3 == 1 {
				partitions++
				here.create("orders", partitions)
			}
			for num := range partitions {
				here.write("orders", num, 1+r.IntN(4), 1+r.IntN(4))
			}
			eventually(t, "all partitions", func() bool { return len(m.Describe().Topics[0].Partitions) == int(partitions) })
			caughtUp(t, m)
			equal(t, a, b, "orders", partitions)
			if round%2 == 0 {
				require.NoError(t, m.Promote(within(t, time.Hour), "orders"))
			} else {
				require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
				for num := range partitions {
					here.write("orders", num, 1+r.IntN(3)) // never mirrored
				}
			}
			if round%3 == 0 {
				partitions++
				there.create("orders", partitions)
			}
			there.write("orders", int32(r.IntN(int(partitions))), 1+r.IntN(3))
			here, there = there, here
		}
		for _, m := range mirrors {
			for _, p := range m.Describe().Topics[0].Partitions {
				require.Zero(t, p.Totals.Lost)
			}
		}
	})
}

func TestBothSidesAddingAtOnceCutNothing(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			a, b := newSource(t), newSource(t)
			a.create("orders", 1)
			a.write("orders", 0, 10)
			dr := linked(t, "dr", b, a)
			addOrders(t, dr)
			require.NoError(t, dr.Remove(within(t, time.Minute), "orders"))
			a.write("orders", 0, 2)
			b.write("orders", 0, 4)
			back := linked(t, "back", a, b)
			before := fmt.Sprint(content(t, a.partition("orders", 0), 0), content(t, b.partition("orders", 0), 0))
			errs := make(chan error, 2)
			r := rng(seed)
			delay := time.Duration(r.IntN(3)) * time.Microsecond
			go func() { errs <- back.AddTopics(t.Context(), "orders") }()
			go func() { pass(delay); errs <- dr.Overwrite(t.Context(), "orders") }()
			one, two := <-errs, <-errs
			if one != nil && two != nil {
				require.ErrorIs(t, errors.Join(one, two), mirror.ErrPeerActive)
				require.Equal(t, before, fmt.Sprint(content(t, a.partition("orders", 0), 0), content(t, b.partition("orders", 0), 0)))
				require.NoError(t, a.c.CheckWrite("orders", 0))
				require.NoError(t, b.c.CheckWrite("orders", 0))
				return
			}
			require.False(t, one == nil && two == nil, "both sides mirror each other")
		})
	}
}

func TestALoopOfThreeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newSource(t), newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 3)
		ab, bc := linked(t, "ab", b, a), linked(t, "bc", c, b)
		addOrders(t, ab)
		addOrders(t, bc)
		equal(t, a, c, "orders", 1)
		ca := linked(t, "ca", a, c)
		err := ca.AddTopics(t.Context(), "orders")
		require.ErrorIs(t, err, mirror.ErrPeerActive)
		require.NoError(t, a.c.CheckWrite("orders", 0))
		a.write("orders", 0, 3)
		caughtUp(t, ab)
		caughtUp(t, bc)
		equal(t, a, c, "orders", 1)
	})
}

// What the first link of a chain cuts, the next one does too.
func TestAnUncleanElectionIsSeenThroughAChain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		c := newSource(t)
		next := linked(t, "next", c, b)
		addOrders(t, next)
		a.write("orders", 0, 1, 1, 1)
		caughtUp(t, m)
		caughtUp(t, next)
		require.NoError(t, a.broker.Lag("orders", 0, 2, 11))
		require.NoError(t, a.broker.Elect("orders", 0, 2, true))
		a.write("orders", 0, 1, 1, 1, 1)
		for _, m := range []*mirror.Mirror{m, next} {
			eventually(t, "cut", func() bool { return state(t, m, "orders", 0).Totals.Cuts > 0 })
			caughtUp(t, m)
			require.Equal(t, mirror.Totals{Cut: 2, Cuts: 1}, state(t, m, "orders", 0).Totals)
		}
		equal(t, a, b, "orders", 1)
		equal(t, b, c, "orders", 1)
	})
}

// The last link of a chain has taken over, and the first one is to follow it, past the one between: nothing of what the two have in common is
// known, so nothing is cut, in either direction.
func TestASkippedLinkIsRefusedWithoutProof(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		c := newSource(t)
		next := linked(t, "next", c, b)
		addOrders(t, next)
		require.NoError(t, next.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2)
		c.write("orders", 0, 3)
		for _, skip := range []*mirror.Mirror{linked(t, "skip", a, c), linked(t, "skip", c, a)} {
			err := skip.AddTopics(t.Context(), "orders")
			require.ErrorIs(t, err, mirror.ErrNoProof)
			var ranges *mirror.RangeError
			require.ErrorAs(t, err, &ranges)
			require.Empty(t, skip.Describe().Topics)
		}
		for _, s := range []*source{a, c} {
			require.NoError(t, s.c.CheckWrite("orders", 0))
			start, _ := s.partition("orders", 0).Bounds()
			require.Zero(t, start)
		}
		require.Len(t, records(t, a, 0), 12)
		require.Len(t, records(t, c, 0), 13)
	})
}

// Retention has emptied a log of which nothing proves where its records came from: the refusal names what its offsets stood for.
func TestAnEmptiedLogWithoutProofIsNamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newOrders(t, 10), newSource(t)
		require.NoError(t, b.host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: topicID(t, a.host, "orders"), Partitions: 1}))
		b.write("orders", 0, 5)
		require.NoError(t, b.partition("orders", 0).AdvanceStart(t.Context(), 5))
		err := linked(t, "dr", b, a).AddTopics(t.Context(), "orders")
		require.ErrorIs(t, err, mirror.ErrNoProof)
		require.ErrorContains(t, err, "partition 0 [0, 5)")
	})
}

func TestAChainWorksThroughATakeoverOfItsMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newSource(t), newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 3)
		ab, bc := linked(t, "ab", b, a), linked(t, "bc", c, b)
		addOrders(t, ab)
		addOrders(t, bc)
		require.NoError(t, ab.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 5)
		caughtUp(t, bc)
		equal(t, b, c, "orders", 1)
	})
}

func TestResumeNeverLosesWhatWasWrittenHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Resume(t.Context(), "orders"), "only control batches were added")
		a.write("orders", 0, 1)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)

		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 4)
		err := m.Resume(t.Context(), "orders")
		require.ErrorIs(t, err, mirror.ErrWritten)
		var re *mirror.RangeError
		require.ErrorAs(t, err, &re)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 11, To: 16}}, re.Ranges)
		require.NoError(t, b.c.CheckWrite("orders", 0))
		require.NoError(t, m.Overwrite(t.Context(), "orders"))
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
	})
}

// Acknowledged records above the high watermark, and a commit whose marker has not arrived: promote waits for both.
func TestPromoteWaitsForAllThatWasAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t, broker.Nodes(2)), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		require.NoError(t, a.broker.Lag("orders", 0, 2, 10))
		a.write("orders", 0, 5) // acknowledged by the leader alone
		err := m.Promote(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the source ends at offset 15, here it is 10")
		require.Equal(t, mirror.Mirroring, state(t, m, "orders", 0).State, "nothing has changed")

		require.NoError(t, a.broker.Lag("orders", 0, 2, -1))
		appendTo(t, a.partition("orders", 0), produced(1, 3, true))
		err = m.Promote(within(t, time.Minute), "orders")
		require.ErrorContains(t, err, "a transaction is open since offset 15")
		appendTo(t, a.partition("orders", 0), batch.AppendControl(nil, 0, 0, 3, 0, batch.Control{Type: batch.ControlCommit}, 0))
		require.NoError(t, m.Promote(within(t, time.Minute), "orders"))
		require.Equal(t, int64(17), state(t, m, "orders", 0).Position.Offset)
	})
}

// Nothing was ever written there: the source's end is known all the same, also that of a source which mirrors it itself.
// The source has added a partition, and is slow to say so: what was acknowledged there is waited for too.
func TestPromoteWaitsForAPartitionThatWasAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		p := a.peer()
		m, err := b.c.Mirror("dr", p.Source(), mirror.RefreshInterval(time.Hour))
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		addOrders(t, m)
		alter(p, func(*kmsg.MetadataRequest, *kmsg.MetadataResponse) { pass(10 * time.Second) })
		a.create("orders", 2)
		a.write("orders", 1, 3)
		require.NoError(t, m.Promote(within(t, time.Minute), "orders"))
		require.Len(t, m.Describe().Topics[0].Partitions, 2)
		require.Equal(t, &mirror.Position{Epoch: 0, Offset: 3}, state(t, m, "orders", 1).Position)
		require.NoError(t, b.c.CheckWrite("orders", 1))
	})
}

func TestPromoteOfATopicThatNeverGotARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newSource(t, broker.Nodes(2)), newSource(t), newSource(t)
		a.create("orders", 2)
		require.NoError(t, a.broker.Elect("orders", 1, 2, false))
		require.Equal(t, int32(0), a.partition("orders", 0).LeaderEpoch(), "as Kafka's new partitions")
		require.Equal(t, int32(1), a.partition("orders", 1).LeaderEpoch())
		m, next := linked(t, "dr", b, a), linked(t, "next", c, b)
		for _, m := range []*mirror.Mirror{m, next} {
			addOrders(t, m)
		}
		require.NoError(t, next.Promote(within(t, time.Minute), "orders"))
		require.NoError(t, m.Promote(within(t, time.Minute), "orders"))
		require.Equal(t, mirror.Position{Epoch: -1, Offset: 0}, *state(t, m, "orders", 0).Position)
	})
}

// A stop that crashes, or whose host fails, at any call, and goes on without its source and its options: it ends all the same, with one
// position, shows nothing twice, and what a failback cuts is what lies above the position.
func TestStopSurvivesACrashAtEveryCall(t *testing.T) {
	t.Run("abort", func(t *testing.T) { crashStops(t, 10) })
	t.Run("truncate", func(t *testing.T) { crashStops(t, 5, mirror.TruncateToStable(100)) })
}

// crashStops ends with the position that a stop without a crash stores.
func crashStops(t *testing.T, position int64, opts ...mirror.MirrorOption) {
	crash := errors.New("crash")
	for i := int64(1); ; i++ {
		var calls atomic.Int64
		done := false
		synctest.Test(t, func(t *testing.T) {
			a := newSource(t)
			a.create("orders", 1)
			p := a.partition("orders", 0)
			appendTo(t, p, plain(5))
			appendTo(t, p, produced(5, 7, true))
			host := memlog.New()
			c, err := mirror.Open(t.Context(), host)
			require.NoError(t, err)
			m, err := c.Mirror("dr", a.broker.Source(), opts...)
			require.NoError(t, err)
			require.NoError(t, m.Start(t.Context()))
			addOrders(t, m)
			require.NoError(t, open(t, c, "orders", 0).Sync(t.Context())) // what is lost unsynced is another test's matter
			host.Fail(func(context.Context, memlog.Op, string, int32) error {
				if calls.Add(1) >= i {
					return crash
				}
				return nil
			})
			err = m.Remove(within(t, time.Second), "orders")
			if done = calls.Load() < i; done {
				require.NoError(t, err)
			}
			crashed := host.Crash(rng(uint64(i)))
			_ = c.Close() // the host answers nothing any more

			again, err := mirror.Open(t.Context(), crashed)
			require.NoError(t, err)
			defer func() { require.NoError(t, again.Close()) }()
			m, err = again.Detached("dr")
			require.NoError(t, err)
			require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
			st := state(t, m, "orders", 0)
			require.True(t, st.TakenOver)
			if st.Position.Offset != 10 || done { // before the cut is announced nothing is left of the option
				require.Equal(t, position, st.Position.Offset, "call %d", i)
			}
			q := open(t, again, "orders", 0)
			resets, aborts := 0, 0
			for b, err := range mirror.Batches(content(t, q, st.Position.Offset)) {
				require.NoError(t, err)
				ctl, err := batch.ParseControl(b.Bytes)
				require.NoError(t, err)
				if ctl.PIDReset() {
					resets++
				} else {
					aborts++
				}
				require.Greater(t, b.Epoch, st.Position.Epoch)
			}
			require.Equal(t, int(st.Position.Offset/10), aborts, "call %d", i)
			require.Equal(t, 1, resets, "call %d", i)
			require.NoError(t, again.CheckWrite("orders", 0))

			served, err := broker.New(again)
			require.NoError(t, err)
			defer served.Close()
			back, err := a.c.Mirror("back", served.Source())
			require.NoError(t, err)
			require.NoError(t, back.Start(t.Context()))
			addOrders(t, back)
			require.Equal(t, 10-st.Position.Offset, state(t, back, "orders", 0).Totals.Cut, "call %d", i)
			require.Equal(t, content(t, q, 0), content(t, p, 0))
		})
		if done {
			require.Greater(t, i, int64(8))
			return
		}
	}
}

// A host that can't cut is taken over all the same: what TruncateToStable would have cut is aborted.
func TestTruncateToStableOnAHostThatCannotCutAborts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1, mirror.TruncateToStable(100))
		b.host.Fail(cannotCut)
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		a.write("orders", 0, 3)
		caughtUp(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, b.c.CheckWrite("orders", 0))
		st := state(t, m, "orders", 0)
		require.Equal(t, int64(18), st.Position.Offset)
		require.Equal(t, int64(20), st.End, "ABORT and reset")
		require.Zero(t, st.Totals)
		b.write("orders", 0, 2)
		addOrders(t, linked(t, "back", a, b))
		equal(t, a, b, "orders", 1)
	})
}

// The same, where a round has announced a cut that can't be made: its stop leaves the log as it was, also when it crashes on the way.
func TestAStopOnAHostThatCannotCutIsResumed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newOrders(t, 10), newSource(t)
		dr := linked(t, "dr", b, a)
		addOrders(t, dr)
		require.NoError(t, dr.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 3)
		var dead atomic.Bool
		b.host.Fail(func(ctx context.Context, op memlog.Op, topic string, partition int32) error {
			if topic == "orders" && op == memlog.OpAppend { // the first one is the stop's
				dead.Store(true)
			}
			if dead.Load() {
				return errDisk
			}
			return cannotCut(ctx, op, topic, partition)
		})
		require.NoError(t, dr.Overwrite(t.Context(), "orders"))
		require.Contains(t, inState(t, dr, 0, mirror.Failed).Reason, "this host can't cut them")
		require.Error(t, dr.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, b.c.Close())
		b.host.Fail(cannotCut)
		again, err := mirror.Open(t.Context(), b.host)
		require.NoError(t, err)
		defer again.Close()
		m, err := again.Detached("dr")
		require.NoError(t, err)
		pass(time.Minute)
		require.NotEqual(t, mirror.Failed, state(t, m, "orders", 0).State, "the state is not older than the data")
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, again.CheckWrite("orders", 0))
		require.Equal(t, int64(15), state(t, m, "orders", 0).End, "ten mirrored, three and two resets of this side")
	})
}

func cannotCut(_ context.Context, op memlog.Op, topic string, _ int32) error {
	if topic == "orders" && (op == memlog.OpTruncateTo || op == memlog.OpReset) {
		return errors.ErrUnsupported
	}
	return nil
}

// The source commits a transaction that the other side has aborted at its takeover: after failback the abort stands on both sides, and
// the records that were committed here are reported.
func TestCommitAfterTheTakeoverIsReportedAtFailback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ev := new(events)
		host := memlog.New()
		c, err := mirror.Open(t.Context(), host, mirror.OnEvent(ev.add))
		require.NoError(t, err)
		br, err := broker.New(c)
		require.NoError(t, err)
		a, b := &source{t: t, host: host, c: c, broker: br}, newSource(t)
		t.Cleanup(a.close)
		a.create("orders", 1)
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		appendTo(t, a.partition("orders", 0), batch.AppendControl(nil, 0, 0, 7, 0, batch.Control{Type: batch.ControlCommit}, 0))

		back := linked(t, "back", a, b)
		plan, err := back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 5, To: 6}}, plan[0].Cut)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 0, To: 5}}, plan[0].Aborted)
		addOrders(t, back)
		equal(t, a, b, "orders", 1)
		aborted, err := a.partition("orders", 0).Aborted(t.Context(), 0, 100)
		require.NoError(t, err)
		require.Len(t, aborted, 1)
		synctest.Wait()
		lost := ev.of(mirror.DataLoss)
		require.Len(t, lost, 1)
		require.Equal(t, [2]int64{0, 5}, [2]int64{lost[0].From, lost[0].To})
		require.Contains(t, lost[0].Reason, "committed here at offset 5")
	})
}
