package mirror_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

// The older text of the KIP: a stop cuts to the last stable offset. The position is where it cuts, so a failback is exact in this mode too.
func TestTruncateToStableCutsAtTheOpenTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 2)
		for num := range int32(2) {
			a.write("orders", num, 10)
		}
		p := a.partition("orders", 0)
		appendTo(t, p, produced(5, 7, true))
		a.write("orders", 0, 3)
		m := linked(t, "dr", b, a, mirror.TruncateToStable(8))
		addOrders(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		st := state(t, m, "orders", 0)
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, *st.Position)
		require.Equal(t, int64(11), st.End, "the reset alone")
		require.Equal(t, mirror.Totals{Cut: 8, Cuts: 1}, st.Totals)
		require.Equal(t, mirror.Totals{}, state(t, m, "orders", 1).Totals, "nothing was open there")
		lso, err := b.partition("orders", 0).LastStableOffset(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(11), lso)
		ceiling, ok, err := b.c.OffsetCeiling(t.Context(), "orders", 0)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, int64(10), ceiling)

		b.write("orders", 0, 2)
		appendTo(t, p, batch.AppendControl(nil, 0, 0, 7, 0, batch.Control{Type: batch.ControlCommit}, 0)) // committed there after all
		back := linked(t, "back", a, b)
		addOrders(t, back)
		equal(t, a, b, "orders", 2)
		require.Equal(t, int64(9), state(t, back, "orders", 0).Totals.Cut)
	})
}

func TestTruncateToStableBeyondItsLimitNeedsAWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1, mirror.TruncateToStable(7))
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		a.write("orders", 0, 3)
		caughtUp(t, m)
		err := m.Remove(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, mirror.ErrFailed)
		require.ErrorContains(t, err, "[10, 18)")
		require.True(t, state(t, m, "orders", 0).NeedsDecision)
		require.Equal(t, int64(18), state(t, m, "orders", 0).End)
		require.Error(t, b.c.CheckWrite("orders", 0))
		require.NoError(t, m.Recover(t.Context(), "orders"))
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, *inState(t, m, 0, mirror.Stopped).Position)
		require.NoError(t, b.c.CheckWrite("orders", 0))
	})
}

func TestATransactionThatNobodyEndsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, m := mirrored(t, 1)
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		caughtUp(t, m)
		require.NotContains(t, state(t, m, "orders", 0).Reason, "producer 7")
		for range 20 { // others go on
			pass(time.Minute)
			a.write("orders", 0, 1)
		}
		eventually(t, "named", func() bool { return state(t, m, "orders", 0).Reason != "" })
		st := state(t, m, "orders", 0)
		require.Contains(t, st.Reason, "the transaction of producer 7 is open since offset 10")
		require.Equal(t, mirror.Mirroring, st.State)
		appendTo(t, a.partition("orders", 0), batch.AppendControl(nil, 0, 0, 7, 0, batch.Control{Type: batch.ControlAbort}, 0))
		caughtUp(t, m)
		eventually(t, "over", func() bool { return state(t, m, "orders", 0).Reason == "" })
	})
}

// Each partition opens by itself: one whose log can't be synced doesn't keep the others closed.
func TestAPartitionThatCannotBeStoppedKeepsItselfClosedOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b, m := mirrored(t, 3)
		mend := failing(b.host, func(op memlog.Op, topic string, partition int32) bool {
			return op == memlog.OpSync && topic == "orders" && partition == 1
		})
		err := m.Remove(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, mirror.ErrFailed)
		require.ErrorContains(t, err, "partition 1")
		inState(t, m, 2, mirror.Stopped)
		require.NoError(t, b.c.CheckWrite("orders", 0))
		require.Error(t, b.c.CheckWrite("orders", 1))
		require.NoError(t, b.c.CheckWrite("orders", 2))
		mend()
		inState(t, m, 1, mirror.Stopped)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, b.c.CheckWrite("orders", 1))
	})
}

// A topic that was added and never got a record: nobody could say where the source's log begins before that was lost.
func TestATopicThatNeverGotARecordIsTakenOverEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t, broker.Nodes(2)), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		require.NoError(t, a.broker.Lag("orders", 0, 2, 0))
		require.NoError(t, a.broker.Kill(1)) // no leader is left
		m := linked(t, "dr", b, a)
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		pass(time.Minute)
		require.Equal(t, mirror.Preparing, state(t, m, "orders", 0).State)
		require.Equal(t, mirror.Unreachable, state(t, m, "orders", 0).Health)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		st := state(t, m, "orders", 0)
		require.True(t, st.TakenOver)
		require.Equal(t, mirror.Position{Epoch: -1, Offset: 0}, *st.Position)
		require.Equal(t, int64(1), st.End, "the reset")
		b.write("orders", 0, 1)
	})
}

func TestTakeoversOfManyTopicsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		var names []string
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			a.create(name, 4)
			a.write(name, 3, 2)
			names = append(names, name)
		}
		m := linked(t, "dr", b, a)
		require.NoError(t, m.AddTopics(t.Context(), names...))
		caughtUp(t, m)
		err := m.Remove(within(t, time.Minute), append(names, "z")...)
		require.ErrorIs(t, err, mirror.ErrUnknownTopic)
		for _, ts := range m.Describe().Topics {
			for _, p := range ts.Partitions {
				require.True(t, p.TakenOver, "%s-%d", ts.Name, p.Partition)
				require.NoError(t, b.c.CheckWrite(ts.Name, p.Partition))
			}
		}
	})
}

// The dry run says what the stop then does, and changes nothing.
func TestPlanRemoveSaysWhatRemoveWouldDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 2)
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		caughtUp(t, m)
		eventually(t, "well", func() bool { return state(t, m, "orders", 0).Health == mirror.OK })
		require.NoError(t, a.broker.Close())
		pass(time.Hour)
		plan, err := m.PlanRemove(t.Context(), "orders")
		require.NoError(t, err)
		require.Len(t, plan, 2)
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 15}, plan[0].Position)
		require.Len(t, plan[0].Open, 1)
		require.Equal(t, [2]int64{7, 10}, [2]int64{plan[0].Open[0].ProducerID, plan[0].Open[0].FirstOffset})
		require.Empty(t, plan[1].Open)
		require.Equal(t, int64(0), plan[0].Missing.To-plan[0].Missing.From)
		require.InDelta(t, time.Hour.Seconds(), plan[0].Age, 60)
		require.Contains(t, plan.String(), "epoch 0, offset 15")
		require.Error(t, b.c.CheckWrite("orders", 0))
		require.Equal(t, int64(15), state(t, m, "orders", 0).End)

		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		for num := range int32(2) {
			require.Equal(t, plan[num].Position, *state(t, m, "orders", num).Position)
		}
		again, err := m.PlanRemove(t.Context())
		require.NoError(t, err)
		require.Equal(t, plan[0].Position, again[0].Position)
	})
}

func TestPlanAddSaysWhatAFailbackWouldCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 2)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2, 1)
		b.write("orders", 1, 4)
		back := linked(t, "back", a, b)
		before := content(t, a.partition("orders", 0), 0)
		plan, err := back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Len(t, plan, 2)
		cuts := make(map[int32][]mirror.Range)
		for _, s := range plan {
			cuts[s.Partition] = s.Cut
			require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, s.Position)
		}
		require.Equal(t, map[int32][]mirror.Range{0: {{Partition: 0, From: 10, To: 13}}, 1: nil}, cuts)
		require.Contains(t, plan.String(), "[10, 13)")
		require.NoError(t, a.c.CheckWrite("orders", 0))
		require.Empty(t, back.Describe().Topics, "nothing was added")
		require.Equal(t, before, content(t, a.partition("orders", 0), 0))

		addOrders(t, back)
		require.Equal(t, int64(3), state(t, back, "orders", 0).Totals.Cut)
		require.Zero(t, state(t, back, "orders", 1).Totals)
	})
}

// With TruncateToStable the plan names the cut, and the position below it.
func TestPlanRemoveNamesWhatTruncateToStableCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1, mirror.TruncateToStable(100))
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		a.write("orders", 0, 3)
		caughtUp(t, m)
		plan, err := m.PlanRemove(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, plan[0].Position)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 10, To: 18}}, plan[0].Cut)
		require.Contains(t, plan.String(), "[10, 18)")
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.Equal(t, plan[0].Position, *state(t, m, "orders", 0).Position)
		require.Equal(t, int64(8), state(t, m, "orders", 0).Totals.Cut)

		appendTo(t, b.partition("orders", 0), produced(5, 8, true)) // of its own, after the takeover
		plan, err = m.PlanRemove(t.Context(), "orders")
		require.NoError(t, err)
		require.Empty(t, plan[0].Open, "Remove would do nothing")
		require.Empty(t, plan[0].Cut)
	})
}

// Of a log that retention has emptied the last epoch is known all the same.
func TestPlanRemoveOfAnEmptiedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, m := mirrored(t, 1)
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 10))
		eventually(t, "emptied", func() bool { return state(t, m, "orders", 0).Start == 10 })
		plan, err := m.PlanRemove(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, plan[0].Position)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.Equal(t, plan[0].Position, *state(t, m, "orders", 0).Position)
	})
}

// The stop limits itself, and so does its plan.
func TestPlanRemoveIsRefusedWhereRemoveIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, m := mirrored(t, 1, mirror.TruncateToStable(3))
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		caughtUp(t, m)
		_, err := m.PlanRemove(t.Context(), "orders")
		require.ErrorContains(t, err, "more than its limit of 3")
		require.ErrorContains(t, m.Remove(within(t, time.Minute), "orders"), "more than its limit of 3")
	})
}

// The source has dropped what lies beyond our end: that is lost too.
func TestPlanAddNamesWhatTheSourceNoLongerHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 5, 5)
		require.NoError(t, b.partition("orders", 0).AdvanceStart(t.Context(), 16))
		a.write("orders", 0, 2) // never mirrored
		back := linked(t, "back", a, b)
		plan, err := back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 10, To: 12}, {Partition: 0, From: 10, To: 16}}, plan[0].Cut)
		require.Contains(t, plan.String(), "  [10, 16)  ")
		addOrders(t, back)
		require.Equal(t, mirror.Totals{Cut: 2, Lost: 6, Cuts: 2}, state(t, back, "orders", 0).Totals)
	})
}

// The source's log ended, and begins, inside a batch that is here: what a cut leaves nothing of is lost too.
func TestPlanAddNamesWhatACutInsideABatchCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newOrders(t, 10), newSource(t, broker.Nodes(2))
		a.write("orders", 0, 5) // one batch
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, b.partition("orders", 0).AdvanceStart(t.Context(), 12))
		require.NoError(t, b.broker.Lag("orders", 0, 2, 12))
		require.NoError(t, b.broker.Elect("orders", 0, 2, true))
		b.write("orders", 0, 3)
		start, end := b.partition("orders", 0).Bounds()
		require.Equal(t, [2]int64{12, 15}, [2]int64{start, end})

		back := linked(t, "back", a, b)
		plan, err := back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 12, To: 15}, {Partition: 0, From: 10, To: 12}}, plan[0].Cut)
		addOrders(t, back)
		require.Equal(t, mirror.Totals{Cut: 3, Lost: 2, Cuts: 2}, state(t, back, "orders", 0).Totals)
		require.Equal(t, content(t, b.partition("orders", 0), 12), content(t, a.partition("orders", 0), 12))
	})
}

// Of a cut that ends below the log's start only what was here is announced, reported and counted.
func TestACutBelowTheStartCountsWhatWasHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2, 2) // never mirrored
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 12))
		back := linked(t, "back", a, b)
		plan, err := back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, []mirror.Range{{Partition: 0, From: 12, To: 14}}, plan[0].Cut)
		addOrders(t, back)
		require.Equal(t, mirror.Totals{Lost: 2, Cuts: 1}, state(t, back, "orders", 0).Totals)
	})
}

// A log that retention has emptied has nothing to be cut.
func TestPlanAddOfAnEmptyLogCutsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2) // never mirrored
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 12))
		back := linked(t, "back", a, b)
		plan, err := back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Empty(t, plan[0].Cut)
		addOrders(t, back)
		require.Zero(t, state(t, back, "orders", 0).Totals)
		equal(t, a, b, "orders", 1)
		require.NoError(t, b.broker.Close())
		plan, err = back.PlanAdd(t.Context(), "orders")
		require.NoError(t, err, "it would be left as it is, also with the source down")
		require.Empty(t, plan)
	})
}

// Retention has emptied the log here, and has gone on at the source: what lies between is never got. It is a loss only where the log ends
// at the last mirrored position; one that ends beyond begins anew.
func TestPlanAddOfAnEmptyLogNamesWhatIsNeverGot(t *testing.T) {
	for _, x := range []struct {
		name    string
		written int // here, and deleted
		lost    []mirror.Range
	}{
		{"nothing was written here", 0, []mirror.Range{{Partition: 0, From: 10, To: 14}}},
		{"written here", 2, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, m := mirrored(t, 1)
				require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
				if x.written > 0 {
					a.write("orders", 0, x.written)
				}
				_, end := a.partition("orders", 0).Bounds()
				require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), end))
				b.write("orders", 0, 5)
				require.NoError(t, b.partition("orders", 0).AdvanceStart(t.Context(), 14))
				back := linked(t, "back", a, b)
				plan, err := back.PlanAdd(t.Context(), "orders")
				require.NoError(t, err)
				require.Equal(t, x.lost, plan[0].Cut)
				addOrders(t, back)
				var lost int64
				for _, r := range x.lost {
					lost += r.To - r.From
				}
				require.Equal(t, lost, state(t, back, "orders", 0).Totals.Lost)
			})
		})
	}
}

func TestPlanAddIsRefusedWhereAddTopicsIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		_, err := m.PlanAdd(t.Context(), "orders")
		require.ErrorIs(t, err, mirror.ErrStopped)
		_, err = m.PlanAdd(t.Context(), "missing")
		require.ErrorIs(t, err, mirror.ErrUnknownTopic)
		require.NoError(t, a.broker.Close())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = m.PlanAdd(ctx, "orders")
		require.ErrorIs(t, err, mirror.ErrSourceUnreachable)
	})
}

// Partitions are added where the topic is writable, and the other side follows: in each round, whichever side it was.
// The side that comes back has a partition that the other side never had: the other one is grown first.
func TestAPartitionMoreThanTheSourceIsRefusedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.create("orders", 2)
		b.write("orders", 0, 3)
		back := linked(t, "back", a, b)
		err := back.AddTopics(t.Context(), "orders")
		require.ErrorContains(t, err, "2 partitions here, 1 at the source")
		require.NoError(t, a.c.CheckWrite("orders", 1))
		b.create("orders", 2)
		addOrders(t, back)
		equal(t, a, b, "orders", 2)
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))

		b.create("orders", 4) // and on the side whose mirror knows the topic
		a.write("orders", 1, 2)
		b.write("orders", 3, 9)
		require.Error(t, m.AddTopics(t.Context(), "orders"))
		require.NoError(t, b.c.CheckWrite("orders", 3))
		a.create("orders", 4)
		_, planned := m.PlanAdd(t.Context(), "orders")
		err = m.AddTopics(t.Context(), "orders")
		require.ErrorIs(t, err, mirror.ErrNoProof, "nine records that the source never had")
		require.Equal(t, err.Error(), planned.Error())
		var re *mirror.RangeError
		require.ErrorAs(t, err, &re)
		require.Equal(t, []mirror.Range{{Partition: 3, From: 0, To: 9}}, re.Ranges)
		require.NoError(t, m.Overwrite(t.Context(), "orders"))
		caughtUp(t, m)
		equal(t, a, b, "orders", 4)
	})
}

// Where a stop that Promote has decided fails, or is over, the next step that is named doesn't undo it.
func TestPromoteThatFailsNamesRemove(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, b, m := mirrored(t, 1)
		mend := failing(b.host, on(memlog.OpSync, "orders"))
		next := func(err, what error) {
			var te *mirror.TopicError
			require.ErrorAs(t, err, &te)
			require.ErrorIs(t, err, what)
			require.Contains(t, te.Next, "Remove")
			require.NotContains(t, te.Next, "Resume")
		}
		next(m.Promote(within(t, time.Minute), "orders"), mirror.ErrFailed)
		next(m.Promote(within(t, time.Minute), "orders"), mirror.ErrStopped)
		mend()
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		next(m.Promote(within(t, time.Minute), "orders"), mirror.ErrStopped)
		require.NoError(t, b.c.CheckWrite("orders", 0))
	})
}

// Offsets that were clamped are held against the next cut only, however close it comes.
func TestACutWhileOffsetsAreClampedIsNotForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newOrders(t, 10, broker.Nodes(2)), newSource(t)
		require.NoError(t, a.broker.Elect("orders", 0, 1, false))
		a.write("orders", 0, 1, 1, 1, 1, 1)
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		cut := func(node int32, to int64) {
			require.NoError(t, a.broker.Lag("orders", 0, node, to))
			require.NoError(t, a.broker.Elect("orders", 0, node, true))
			a.write("orders", 0, 1, 1, 1, 1, 1, 1)
		}
		ceiling := func() (int64, bool) {
			end, ok, err := b.c.OffsetCeiling(t.Context(), "orders", 0)
			require.NoError(t, err)
			return end, ok
		}
		cut(2, 13)
		eventually(t, "cut", func() bool { return state(t, m, "orders", 0).Totals.Cuts == 1 })
		caughtUp(t, m)
		end, _ := ceiling()
		require.Equal(t, int64(13), end)
		require.NoError(t, b.c.OffsetsClamped(t.Context(), "orders", 0, 14))
		_, ok := ceiling()
		require.True(t, ok, "it is lower")

		var dropped atomic.Bool
		first := nth(1, on(memlog.OpAppend, mirror.StateTopic))
		release := holding(b.host, func(op memlog.Op, topic string, partition int32) bool {
			if op == memlog.OpTruncateTo && topic == "orders" {
				dropped.Store(true)
			}
			return dropped.Load() && first(op, topic, partition)
		})
		cut(1, 11)
		eventually(t, "dropped", dropped.Load)
		done := make(chan error, 1)
		go func() { done <- b.c.OffsetsClamped(t.Context(), "orders", 0, 13) }()
		synctest.Wait()
		release()
		require.NoError(t, <-done)
		caughtUp(t, m)
		end, ok = ceiling()
		require.True(t, ok)
		require.Equal(t, int64(11), end)
		require.NoError(t, b.c.OffsetsClamped(t.Context(), "orders", 0, 11))
		_, ok = ceiling()
		require.False(t, ok)
	})
}
