package mirror_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

// What has gone wrong in other mirrors and clients, and must come out right here. Most such cases have their test beside the code that
// decides them; these are the ones that only a whole mirror shows.

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// compacted is a batch that compaction has taken records from: it reaches further than its last record.
func compacted(base int64, offsets, left int) []byte {
	raw := plain(left)
	batch.SetBase(raw, base)
	binary.BigEndian.PutUint32(raw[23:], uint32(offsets-1))
	binary.BigEndian.PutUint32(raw[17:], batch.Sum(raw))
	return raw
}

// The tail of a batch is compacted away, or all of it: the next fetch goes on behind the batch, not behind the last record.
func TestABatchWhoseTailWasCompactedAwayIsCopiedOnce(t *testing.T) {
	for name, left := range map[string]int{"tail": 7, "all but one": 1, "all": 0} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b := newSource(t), newSource(t)
				a.create("orders", 1)
				log, err := a.host.OpenLog(t.Context(), "orders", 0)
				require.NoError(t, err)
				require.NoError(t, log.Append(t.Context(), compacted(100, 10, left)))
				require.NoError(t, log.Append(t.Context(), compacted(110, 10, 10)))
				require.NoError(t, log.Append(t.Context(), compacted(120, 10, left)))
				m := linked(t, "dr", b, a)
				addOrders(t, m)
				pass(time.Hour)
				st := state(t, m, "orders", 0)
				require.Equal(t, int64(130), st.End)
				require.Equal(t, content(t, a.partition("orders", 0), 0), content(t, b.partition("orders", 0), 0))
				require.Equal(t, int64(len(content(t, b.partition("orders", 0), 0))), st.Bytes, "nothing was fetched twice")
			})
		})
	}
}

func TestAStartInsideABatchKeepsTheBatchAndHidesWhatIsBelow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10, 10, 10)
		m := linked(t, "dr", b, a, mirror.StartAtOffset(15))
		addOrders(t, m)
		st := state(t, m, "orders", 0)
		require.Equal(t, [2]int64{15, 30}, [2]int64{st.Start, st.End})
		require.Equal(t, content(t, a.partition("orders", 0), 15), content(t, b.partition("orders", 0), 15))
		offsets := records(t, b, 15)
		require.Equal(t, []int64{15, 16}, offsets[:2])
		require.Len(t, offsets, 15)
		_, err := b.partition("orders", 0).Read(t.Context(), 14, make([]byte, 100))
		require.ErrorIs(t, err, mirror.ErrOutOfRange)
	})
}

func TestTheSourcesStartMovesBeyondEverythingTheMirrorHolds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		log, err := a.host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		require.NoError(t, log.Reset(t.Context(), 500)) // and then it is idle
		eventually(t, "500", func() bool { return state(t, m, "orders", 0).End == 500 })
		caughtUp(t, m)
		st := state(t, m, "orders", 0)
		require.Equal(t, [2]int64{500, 500}, [2]int64{st.Start, st.End})
		require.Equal(t, int64(490), st.Totals.Lost)
		_, err = b.partition("orders", 0).Read(t.Context(), 10, make([]byte, 100))
		require.ErrorIs(t, err, mirror.ErrOutOfRange)
		a.write("orders", 0, 1)
		caughtUp(t, m)
		require.Equal(t, int64(501), state(t, m, "orders", 0).End)
	})
}

// A source that loses its last records in an unclean election, leaves a gap where they were and drops everything up to it: nobody can
// say any more that what the mirror holds came before what follows. So it goes before that comes.
func TestWhatTheSourceHasDroppedGoesBeforeNewRecordsCome(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Pause(t.Context(), "orders"))
		require.NoError(t, a.broker.Lag("orders", 0, 2, 9))
		require.NoError(t, a.broker.Elect("orders", 0, 2, true))
		log, err := a.host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		epoch, done, err := a.c.BeginWrite(t.Context(), "orders", 0)
		require.NoError(t, err)
		after := plain(5)
		batch.SetBase(after, 12)
		batch.SetLeaderEpoch(after, epoch)
		require.NoError(t, log.Append(t.Context(), after))
		done()
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 10))

		held := int64(-1)
		b.host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpAppend && topic == "orders" {
				start, end := b.partition("orders", 0).Bounds()
				held = end - start
			}
			return nil
		})
		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
		require.Zero(t, held)
		requireSame(t, a, m, "orders", 1)
	})
}

func TestARestartIsNoFloorForTheLogStart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		for range 34 {
			a.write("orders", 0, 100)
		}
		host := memlog.New()
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.Close())
		m = newMirror(t, a, host)
		caughtUp(t, m)
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 1000))
		a.write("orders", 0, 1)
		eventually(t, "start 1000", func() bool { return state(t, m, "orders", 0).Start == 1000 })
		requireSame(t, a, m, "orders", 1)
	})
}

func TestRetentionThatOvertakesAMirrorThatMustNotCutFailsIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, _, m := mirrored(t, 1, mirror.FailOnDivergence())
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Paused)
		a.write("orders", 0, 90, 10)
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 100))
		require.NoError(t, m.Resume(t.Context(), "orders"))
		st := inState(t, m, 0, mirror.Failed)
		require.Contains(t, st.Reason, "[10, 100)")
		require.Equal(t, [2]int64{0, 10}, [2]int64{st.Start, st.End})
		require.NoError(t, m.Recover(t.Context(), "orders"))
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		require.Equal(t, mirror.Totals{Lost: 90, Cuts: 1}, state(t, m, "orders", 0).Totals)
	})
}

// movable is a source whose address can come to stand for another cluster.
func movable(t *testing.T, first *source) (src mirror.Source, move func(*source)) {
	t.Helper()
	var at atomic.Pointer[source]
	at.Store(first)
	src = first.broker.Source()
	src.Transport = &kafka.Transport{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return at.Load().broker.Dial(ctx, network, addr)
	}}
	return src, func(s *source) {
		old := at.Swap(s)
		require.NoError(t, old.broker.Close()) // cuts the connections
	}
}

func topicID(t *testing.T, host mirror.Host, name string) mirror.TopicID {
	t.Helper()
	list, err := host.Topics(t.Context())
	require.NoError(t, err)
	for _, x := range list {
		if x.Name == name {
			return x.ID
		}
	}
	t.Fatalf("no topic %s", name)
	return mirror.TopicID{}
}

func TestADeletedTopicThatComesBackWithItsIDGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		src, move := movable(t, a)
		m, err := b.c.Mirror("dr", src)
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		addOrders(t, m)
		id, all := topicID(t, a.host, "orders"), content(t, a.partition("orders", 0), 0)
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		require.True(t, inState(t, m, 0, mirror.Failed).NeedsDecision)

		restored := sourceOn(t, memlog.New(memlog.ClusterID(a.host.ClusterID()))) // from a backup
		require.NoError(t, restored.host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: id, Partitions: 1}))
		log, err := restored.host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		require.NoError(t, log.Append(t.Context(), all))
		restored.write("orders", 0, 5)
		move(restored)
		require.NoError(t, m.Recover(t.Context(), "orders"))
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		equal(t, restored, b, "orders", 1)
		require.Zero(t, state(t, m, "orders", 0).Totals)
	})
}

func TestPartitionsAreNeverTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 2)
		a.write("orders", 0, 10)
		a.write("orders", 1, 10)
		src, move := movable(t, a)
		m, err := b.c.Mirror("dr", src)
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		addOrders(t, m)
		smaller := sourceOn(t, memlog.New(memlog.ClusterID(a.host.ClusterID())))
		require.NoError(t, smaller.host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: topicID(t, a.host, "orders"), Partitions: 1}))
		appendTo(t, smaller.partition("orders", 0), content(t, a.partition("orders", 0), 0))
		move(smaller)
		eventually(t, "named", func() bool { return state(t, m, "orders", 1).Health == mirror.Unreachable })
		pass(time.Hour)
		require.Contains(t, state(t, m, "orders", 1).Reason, "the source has 1 partitions, here there are 2")
		require.Equal(t, int64(10), state(t, m, "orders", 1).End)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	})
}

// The state says that it was mirrored to offset 10, and the log is gone: the log counts.
func TestALostLogIsFetchedAgainWhateverTheStateSays(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *memlog.Host){
		"emptied": func(t *testing.T, host *memlog.Host) {
			log, err := host.OpenLog(t.Context(), "orders", 0)
			require.NoError(t, err)
			require.NoError(t, log.Reset(t.Context(), 0))
		},
		"topic gone": func(t *testing.T, host *memlog.Host) { require.NoError(t, host.DeleteTopic(t.Context(), "orders")) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a := newOrders(t, 10)
				host := memlog.New()
				m := mirrorOrders(t, a, host)
				require.NoError(t, m.Close())
				lose(t, host)
				m = newMirror(t, a, host)
				eventually(t, "whole again", func() bool { return state(t, m, "orders", 0).End == 10 })
				caughtUp(t, m)
				requireSame(t, a, m, "orders", 1)
			})
		})
	}
}

// The state was restored from a backup, and is older than the data: that is found out before anything is cut.
func TestAStateOlderThanTheDataIsNamedAndCutsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newOrders(t, 10)
		host := memlog.New()
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.Close())
		log, err := host.OpenLog(t.Context(), mirror.StateTopic, 0)
		require.NoError(t, err)
		_, backup := log.Bounds()

		m = newMirror(t, a, host)
		_, err = a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 100)
		require.NoError(t, err)
		a.write("orders", 0, 5)
		caughtUp(t, m)
		require.NoError(t, m.Close())
		require.NoError(t, log.TruncateTo(t.Context(), backup))

		m = newMirror(t, a, host)
		st := inState(t, m, 0, mirror.Failed)
		require.Contains(t, st.Reason, "older than the data")
		require.True(t, st.NeedsDecision)
		require.Equal(t, int64(15), st.End)
		require.Error(t, m.Coordinator().CheckWrite("orders", 0))
		require.NoError(t, m.Recover(t.Context(), "orders"))
		inState(t, m, 0, mirror.Mirroring)
		a.write("orders", 0, 1)
		caughtUp(t, m)
		requireSame(t, a, m, "orders", 1)
		require.GreaterOrEqual(t, state(t, m, "orders", 0).LeaderEpoch, int32(100))
	})
}

// A long aborted tail with its marker: lag is counted in offsets, so it comes to 0, and whoever waits is told.
func TestAnAbortedTailLeavesNoLag(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		p := a.partition("orders", 0)
		for range 100 {
			appendTo(t, p, produced(100, 5, true))
		}
		appendTo(t, p, batch.AppendControl(nil, 0, 0, 5, 0, batch.Control{Type: batch.ControlAbort}, 0))
		caughtUp(t, m)
		eventually(t, "well", func() bool { return state(t, m, "orders", 0).Health == mirror.OK })
		st := state(t, m, "orders", 0)
		require.Zero(t, st.Lag)
		require.Zero(t, st.LagTime)
		require.Equal(t, int64(10_011), st.End)
		require.Equal(t, 10, committed(t, b, 0))
	})
}

func TestLookupByTimeAnswersAsTheSourceDoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		at := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
		stamped := func(year int, attributes int16) []byte {
			h := batch.Header{BaseTimestamp: at(year).UnixMilli(), ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, Attributes: attributes}
			return batch.Append(nil, h, []batch.Record{{Value: []byte("v")}})
		}
		for _, raw := range [][]byte{stamped(2019, 0), stamped(2099, 0), stamped(2031, 8), stamped(2032, 8)} { // the topic went over to LogAppendTime
			appendTo(t, a.partition("orders", 0), raw)
		}
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
		for _, year := range []int{1999, 2019, 2020, 2031, 2032, 2098, 2099, 2100} {
			want, wantTime, err := a.partition("orders", 0).OffsetForTime(t.Context(), at(year))
			require.NoError(t, err)
			got, gotTime, err := b.partition("orders", 0).OffsetForTime(t.Context(), at(year))
			require.NoError(t, err)
			require.Equal(t, want, got, "%d", year)
			require.True(t, wantTime.Equal(gotTime))
		}
	})
}

// Connections that end every few seconds, as at the end of a SASL session: no gap, nothing twice, nothing to be told.
func TestConnectionsThatEndAgainAndAgainCostNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, ev := newSource(t), new(events)
		a.create("orders", 2)
		m := mirrorOf(t, a.spoiled(func(c net.Conn) net.Conn {
			time.AfterFunc(3*time.Second, func() { c.Close() })
			return c
		}), memlog.New(), mirror.OnEvent(ev.add))
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		for range 200 {
			a.write("orders", 0, 3)
			a.write("orders", 1, 1, 2)
			pass(100 * time.Millisecond)
		}
		caughtUp(t, m)
		requireSame(t, a, m, "orders", 2)
		for num := range int32(2) {
			st := state(t, m, "orders", num)
			require.Equal(t, mirror.Mirroring, st.State)
			require.Zero(t, st.Totals)
			require.Equal(t, int64(len(content(t, a.partition("orders", num), 0))), st.Bytes)
		}
		for _, kind := range []mirror.EventKind{mirror.DataLoss, mirror.Truncated, mirror.HealthChanged} {
			require.Empty(t, ev.of(kind))
		}
	})
}

func TestPromoteIsRefusedByNameWhereItCantEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		mend := failing(b.host, on(memlog.OpAppend, "orders"))
		a.write("orders", 0, 1)
		inState(t, m, 0, mirror.Failed)
		err := m.Promote(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, mirror.ErrFailed)
		require.ErrorContains(t, err, "partition 0")
		mend()
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		require.NoError(t, a.broker.Close())
		err = m.Promote(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var te *mirror.TopicError
		require.ErrorAs(t, err, &te)
		require.Contains(t, te.Next, "Remove")
		require.Equal(t, mirror.Mirroring, m.Describe().Topics[0].Desired, "nothing has changed")
		require.Error(t, b.c.CheckWrite("orders", 0))
	})
}

// A host that can't drop a suffix names what would have to go, and can still be taken over.
func TestAHostThatCannotCutFailsWithTheRangeAndCanBeStopped(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		b.host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if topic == "orders" && (op == memlog.OpTruncateTo || op == memlog.OpReset) {
				return errors.ErrUnsupported
			}
			return nil
		})
		a.write("orders", 0, 1, 1)
		caughtUp(t, m)
		require.NoError(t, a.broker.Lag("orders", 0, 2, 11))
		require.NoError(t, a.broker.Elect("orders", 0, 2, true))
		st := inState(t, m, 0, mirror.Failed)
		require.True(t, st.NeedsDecision)
		require.Contains(t, st.Reason, "[11, 12)")
		require.Equal(t, int64(12), st.End)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, b.c.CheckWrite("orders", 0))
		b.write("orders", 0, 1)
	})
}

// What was visible here before it was durable may be lost in a crash: its leader epoch is not used again.
func TestAnEpochIsNotUsedAgainAfterACrash(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newOrders(t, 10)
		host := memlog.New()
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Close())
		seen := make(map[int32]bool)
		for seed := range uint64(10) {
			c, err := mirror.Open(t.Context(), host)
			require.NoError(t, err)
			p := open(t, c, "orders", 0)
			base, err := p.Append(t.Context(), plain(1)) // read by somebody, never synced
			require.NoError(t, err)
			epoch, err := p.EpochAt(t.Context(), base)
			require.NoError(t, err)
			require.False(t, seen[epoch], "epoch %d at offset %d", epoch, base)
			seen[epoch] = true
			host = host.Crash(rng(seed))
			_ = c.Close() // its host answers nothing any more
		}
	})
}

// A cut that was carried out is reported, also if the program ended before it could say so.
func TestACutIsReportedAfterACrash(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t, broker.Nodes(2))
		a.create("orders", 1)
		a.write("orders", 0, 1, 1, 1, 1)
		host, ev := memlog.New(), new(events)
		c, err := mirror.Open(t.Context(), host)
		require.NoError(t, err)
		m, err := c.Mirror("dr", a.broker.Source())
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		addOrders(t, m)
		var cut atomic.Bool
		host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if topic == "orders" && op == memlog.OpTruncateTo {
				cut.Store(true)
				return nil
			}
			if cut.Load() {
				return errDisk
			}
			return nil
		})
		require.NoError(t, a.broker.Lag("orders", 0, 2, 2))
		require.NoError(t, a.broker.Elect("orders", 0, 2, true))
		eventually(t, "cut", cut.Load)
		synctest.Wait()
		crashed := host.Crash(rng(1))
		_ = c.Close() // its host answers nothing any more

		again := newMirror(t, a, crashed, mirror.OnEvent(ev.add))
		eventually(t, "told", func() bool { return len(ev.of(mirror.Truncated)) > 0 })
		caughtUp(t, again)
		pass(time.Hour)
		told := ev.of(mirror.Truncated)
		require.Len(t, told, 1)
		require.Equal(t, [2]int64{2, 4}, [2]int64{told[0].From, told[0].To})
		require.Equal(t, mirror.Totals{Cut: 2, Cuts: 1}, state(t, again, "orders", 0).Totals)
	})
}

// able is a host with both optional abilities.
type able struct {
	*memlog.Host
	raise func(above int64) error
	clamp func(end int64) error
}

func (h able) RaiseProducerID(_ context.Context, above int64) error { return h.raise(above) }
func (h able) ClampOffsets(_ context.Context, _ string, _ int32, end int64) error {
	return h.clamp(end)
}

func TestTheGateOpensOnlyAboveAllMirroredProducerIDs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		appendTo(t, a.partition("orders", 0), produced(5, 4711, false))
		var broken atomic.Bool
		broken.Store(true)
		var raised atomic.Int64
		m := newMirror(t, a, able{memlog.New(), func(above int64) error {
			if broken.Load() {
				return errDisk
			}
			raised.Store(above)
			return nil
		}, func(int64) error { return nil }})
		addOrders(t, m)
		err := m.Remove(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, mirror.ErrFailed)
		require.ErrorContains(t, err, "raise the host's producer ids above 4711")
		require.Error(t, m.Coordinator().CheckWrite("orders", 0))
		broken.Store(false)
		inState(t, m, 0, mirror.Stopped)
		require.Equal(t, int64(4711), raised.Load())
		require.NoError(t, m.Coordinator().CheckWrite("orders", 0))
		require.Equal(t, int64(6), state(t, m, "orders", 0).End, "one reset")
	})
}

func TestOffsetsAreClampedBeforeACutIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t, broker.Nodes(2))
		a.create("orders", 1)
		a.write("orders", 0, 1, 1, 1, 1)
		var broken atomic.Bool
		broken.Store(true)
		var clamped atomic.Int64
		clamped.Store(-1)
		m := newMirror(t, a, able{memlog.New(), func(int64) error { return nil }, func(end int64) error {
			if broken.Load() {
				return errDisk
			}
			clamped.Store(end)
			return nil
		}})
		addOrders(t, m)
		require.NoError(t, a.broker.Lag("orders", 0, 2, 2))
		require.NoError(t, a.broker.Elect("orders", 0, 2, true))
		st := inState(t, m, 0, mirror.Failed)
		require.Contains(t, st.Reason, errDisk.Error())
		require.Zero(t, st.Totals.Cuts)
		broken.Store(false)
		inState(t, m, 0, mirror.Mirroring)
		require.Equal(t, int64(2), clamped.Load())
		require.Equal(t, mirror.Totals{Cut: 2, Cuts: 1}, state(t, m, "orders", 0).Totals)
	})
}

// Two mirrors of one source, of which one is taken over: the other may go on from it, if what it holds is proven to be the same.
func TestASiblingIsAdoptedOnProofOnly(t *testing.T) {
	for name, ahead := range map[string]int{"as far": 0, "ahead": 3} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b, c := newSource(t), newSource(t), newSource(t)
				a.create("orders", 1)
				a.write("orders", 0, 10)
				ab, ac := linked(t, "dr", b, a), linked(t, "dr", c, a)
				for _, m := range []*mirror.Mirror{ab, ac} {
					addOrders(t, m)
				}
				require.NoError(t, ab.Remove(within(t, time.Minute), "orders"))
				if ahead > 0 {
					a.write("orders", 0, ahead)
					caughtUp(t, ac)
				}
				b.write("orders", 0, 5)
				require.NoError(t, ac.Pause(t.Context(), "orders"))
				cb := linked(t, "from-b", c, b)
				require.ErrorIs(t, cb.AddTopics(t.Context(), "orders"), mirror.ErrTopicOwned)
				require.NoError(t, ac.Remove(within(t, time.Minute), "orders"))
				err := cb.AddTopics(t.Context(), "orders")
				require.ErrorIs(t, err, mirror.ErrNoProof, "the takeover's own batch is not the other's")
				var re *mirror.RangeError
				require.ErrorAs(t, err, &re)
				require.Equal(t, []mirror.Range{{Partition: 0, From: 0, To: int64(10 + ahead + 1)}}, re.Ranges)
				require.NoError(t, c.c.CheckWrite("orders", 0), "as it was")
				require.NoError(t, cb.Overwrite(t.Context(), "orders"))
				caughtUp(t, cb)
				equal(t, b, c, "orders", 1)
				require.Equal(t, int64(10+ahead+1), state(t, cb, "orders", 0).Totals.Lost)
			})
		})
	}
}

// What retention and a cut have left of a log is nothing, and its last epoch was of another lineage: older epochs of the source's own
// follow, here and in whoever mirrors from here.
func TestAnEmptiedLogTakesOlderEpochsOfTheSource(t *testing.T) {
	for start, cut := range map[int64]mirror.Totals{8: {Cut: 1, Cuts: 1}, 9: {}} {
		t.Run(fmt.Sprint("from ", start), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b, c := newSource(t, broker.Nodes(2)), newSource(t), newSource(t)
				a.create("orders", 1)
				for range 10 {
					a.write("orders", 0, 1)
				}
				dr := linked(t, "dr", b, a)
				addOrders(t, dr)
				require.NoError(t, dr.Remove(within(t, time.Minute), "orders"))
				require.NoError(t, a.broker.Lag("orders", 0, 2, 6))
				require.NoError(t, a.broker.Elect("orders", 0, 2, true)) // loses what b has
				a.write("orders", 0, 1, 1, 1)
				next := linked(t, "next", c, a)
				addOrders(t, next)
				for _, s := range []*source{a, b} {
					require.NoError(t, s.partition("orders", 0).AdvanceStart(t.Context(), start))
				}
				eventually(t, "start", func() bool { return state(t, next, "orders", 0).Start == start })

				back := linked(t, "back", a, b)
				addOrders(t, back)
				require.Equal(t, cut, state(t, back, "orders", 0).Totals)
				caughtUp(t, next)
				want := b.partition("orders", 0)
				for _, s := range []*source{a, c} {
					got := s.partition("orders", 0)
					require.Equal(t, content(t, want, start), content(t, got, start))
					for epoch := range int32(4) {
						wantEpoch, wantEnd, err := want.EpochEnd(t.Context(), epoch)
						require.NoError(t, err)
						gotEpoch, gotEnd, err := got.EpochEnd(t.Context(), epoch)
						require.NoError(t, err)
						require.Equal(t, []any{wantEpoch, wantEnd}, []any{gotEpoch, gotEnd}, "epoch %d", epoch)
					}
				}
			})
		})
	}
}
