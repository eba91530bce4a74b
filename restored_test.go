package mirror_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

// A state that was restored from a backup, and is older than the data.

// backup is where the state of a host ends now; restore puts it back to there.
func backup(t *testing.T, host *memlog.Host) (restore func()) {
	t.Helper()
	log, err := host.OpenLog(t.Context(), mirror.StateTopic, 0)
	require.NoError(t, err)
	_, end := log.Bounds()
	return func() { require.NoError(t, log.TruncateTo(t.Context(), end)) }
}

// backupAt takes it when such a call is first made.
func backupAt(t *testing.T, host *memlog.Host, when func(op memlog.Op, topic string, partition int32) bool) (restore func()) {
	t.Helper()
	var begun atomic.Bool
	var taken func()
	host.Fail(func(_ context.Context, op memlog.Op, topic string, partition int32) error {
		if when(op, topic, partition) && begun.CompareAndSwap(false, true) {
			taken = backup(t, host)
		}
		return nil
	})
	return func() {
		require.NotNil(t, taken, "no such call was made")
		taken()
	}
}

// The old state says that the partition has failed, and would be tried again by itself.
func TestAnOlderStateThatHasFailedIsNamedToo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10, broker.Nodes(2)), memlog.New()
		m := mirrorOrders(t, a, host)
		mend := failing(host, on(memlog.OpAppend, "orders"))
		a.write("orders", 0, 1)
		inState(t, m, 0, mirror.Failed)
		restore := backup(t, host)
		mend()
		inState(t, m, 0, mirror.Mirroring)
		olderThanData(t, a, host, m, restore)
	})
}

// The failure can't be written, or the log can't be looked at, when the state is loaded: nothing is cut all the same.
func TestAnOlderStateIsNamedThoughTheHostFails(t *testing.T) {
	var appends atomic.Int64 // the first one is the coordinator's fence
	for name, fails := range map[string]func(op memlog.Op, topic string) bool{
		"state": func(op memlog.Op, topic string) bool {
			return op == memlog.OpAppend && topic == mirror.StateTopic && appends.Add(1) > 1
		},
		"log":    func(op memlog.Op, topic string) bool { return op == memlog.OpOpenLog && topic == "orders" },
		"header": func(op memlog.Op, topic string) bool { return op == memlog.OpRead && topic == "orders" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, host := newOrders(t, 10, broker.Nodes(2)), memlog.New()
				m := mirrorOrders(t, a, host)
				olderThanData(t, a, host, m, backup(t, host), fails)
			})
		})
	}
}

// olderThanData lets the mirror go on, the state be restored and the source lose what the mirror holds: after a restart nothing is cut.
// The host fails for a while then.
func olderThanData(t *testing.T, a *source, host *memlog.Host, m *mirror.Mirror, restore func(), fails ...func(memlog.Op, string) bool) {
	t.Helper()
	require.NoError(t, a.broker.Elect("orders", 0, 1, false))
	_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 100)
	require.NoError(t, err)
	a.write("orders", 0, 5)
	caughtUp(t, m)
	end := state(t, m, "orders", 0).End
	require.NoError(t, m.Close())
	restore()
	require.NoError(t, a.broker.Lag("orders", 0, 2, 5))
	require.NoError(t, a.broker.Elect("orders", 0, 2, true))

	var failing atomic.Bool
	host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
		if failing.Load() && slices.ContainsFunc(fails, func(f func(memlog.Op, string) bool) bool { return f(op, topic) }) {
			return errDisk
		}
		return nil
	})
	failing.Store(true)
	time.AfterFunc(time.Minute, func() { failing.Store(false) })
	m = newMirror(t, a, host)
	pass(time.Hour)
	st := state(t, m, "orders", 0)
	require.Equal(t, mirror.Failed, st.State)
	require.Contains(t, st.Reason, "older than the data")
	require.True(t, st.NeedsDecision)
	require.Equal(t, end, st.End)
	require.NoError(t, m.Recover(t.Context(), "orders"))
	inState(t, m, 0, mirror.Mirroring)
	caughtUp(t, m)
	requireSame(t, a, m, "orders", 1)
}

// What stands in a log was visible: its epochs count, whatever the state knows.
func TestTheLeaderEpochIsNeverBelowTheLogs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		log, err := a.host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		raw := plain(3)
		batch.SetLeaderEpoch(raw, 7)
		require.NoError(t, log.Append(t.Context(), raw))
		p := a.partition("orders", 0)
		_, err = p.LastStableOffset(t.Context())
		require.NoError(t, err)
		require.Equal(t, int32(7), p.LeaderEpoch())
	})
}

// Taken over, handed back and mirrored again, and then the state of the takeover comes back: the topic is writable, and what is written
// has an epoch that the other side can't have used.
func TestALocalWriteAfterAnOlderStateKeepsApart(t *testing.T) {
	for name, first := range map[string]func(*testing.T, *mirror.Coordinator, *mirror.Partition){
		"write": func(t *testing.T, _ *mirror.Coordinator, p *mirror.Partition) { appendTo(t, p, plain(1)) },
		"election": func(t *testing.T, c *mirror.Coordinator, _ *mirror.Partition) {
			_, err := c.RaiseLeaderEpoch(t.Context(), "orders", 0, 0)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) { keptApart(t, first) })
	}
}

func keptApart(t *testing.T, first func(*testing.T, *mirror.Coordinator, *mirror.Partition)) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		restore := backup(t, host)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		a.write("orders", 0, 1)
		_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 500_000)
		require.NoError(t, err)
		a.write("orders", 0, 1)
		caughtUp(t, m)
		require.NoError(t, m.Close())
		restore()

		c, err := mirror.Open(t.Context(), host)
		require.NoError(t, err)
		defer c.Close()
		p := open(t, c, "orders", 0)
		first(t, c, p)
		require.GreaterOrEqual(t, p.LeaderEpoch(), int32(2*262_144))
	})
}

// The old state has announced a cut that was carried out long ago, and the log has grown since: it is not carried out again, least of all
// by a takeover.
func TestAnAnnouncedCutOfAnOlderStateIsNotCarriedOutAgain(t *testing.T) {
	for name, kept := range map[string]int64{"cut": 10, "reset": 0} {
		t.Run(name, func(t *testing.T) { inBubble(t, func(t *testing.T) { cutOnce(t, kept) }) })
	}
	t.Run("overwrite", func(t *testing.T) { inBubble(t, overwrittenOnce) })
	t.Run("overtaken", func(t *testing.T) { inBubble(t, overtakenOnce) })
}

// The source's retention overtook a mirror that was paused, and what came since has the epoch of what was dropped.
func overtakenOnce(t *testing.T) {
	a, host := newOrders(t, 10), memlog.New()
	m := mirrorOrders(t, a, host)
	require.NoError(t, m.Pause(t.Context(), "orders"))
	inState(t, m, 0, mirror.Paused)
	a.write("orders", 0, 10)
	require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 20))
	restore := backupAt(t, host, on(memlog.OpReset, "orders"))
	require.NoError(t, m.Resume(t.Context(), "orders"))
	a.write("orders", 0, 20)
	caughtUp(t, m)
	lost := state(t, m, "orders", 0).Totals
	require.NoError(t, m.Close())
	restore()
	require.NoError(t, a.broker.Close())
	m = newMirror(t, a, host)
	require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	require.Equal(t, int64(40), state(t, m, "orders", 0).Position.Offset, "what was mirrored is kept")
	require.Equal(t, lost, state(t, m, "orders", 0).Totals, "it is reported, for the old state knows of no report")
}

// The state is from the beginning of a round, and the round has gone on since: no leader epoch and no announced cut tells, but what lies
// above the position is of an older epoch than anything that can have been written here. The source has nothing of it any more.
func TestAStateFromTheBeginningOfARoundIsNamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 5)
		restore := backupAt(t, host, nth(2, on(memlog.OpAppend, mirror.StateTopic))) // PREPARING is written, and nothing is announced
		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
		require.NoError(t, m.Close())
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		restore()
		ev := new(events)
		m = newMirror(t, a, host, mirror.OnEvent(ev.add))
		pass(time.Minute)
		require.ErrorContains(t, ev.of(mirror.StateChanged)[0].Err, "holds [0, 15) of leader epoch 0, the state says that all from offset 10 on was written here")
		st := state(t, m, "orders", 0)
		require.Equal(t, mirror.Failed, st.State)
		require.Equal(t, int64(15), st.End)
		require.Zero(t, st.Totals)
	})
}

func overwrittenOnce(t *testing.T) {
	a, host := newOrders(t, 30), memlog.New()
	require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: topicID(t, a.host, "orders"), Partitions: 1}))
	m := newMirror(t, a, host)
	p := open(t, m.Coordinator(), "orders", 0)
	_, err := m.Coordinator().RaiseLeaderEpoch(t.Context(), "orders", 0, 1000)
	require.NoError(t, err)
	appendTo(t, p, plain(10)) // never mirrored
	restore := backupAt(t, host, on(memlog.OpReset, "orders"))
	require.NoError(t, m.Overwrite(t.Context(), "orders"))
	caughtUp(t, m)
	require.NoError(t, m.Close())
	restore()
	require.NoError(t, a.broker.Close())
	m = newMirror(t, a, host)
	require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	_, end := open(t, m.Coordinator(), "orders", 0).Bounds()
	require.GreaterOrEqual(t, end, int64(30), "what was mirrored is kept")
}

func cutOnce(t *testing.T, kept int64) {
	a, host := newOrders(t, 10, broker.Nodes(2)), memlog.New()
	m := mirrorOrders(t, a, host)
	require.NoError(t, a.broker.Elect("orders", 0, 1, false))
	a.write("orders", 0, 3)
	caughtUp(t, m)
	restore := backupAt(t, host, func(op memlog.Op, topic string, _ int32) bool {
		return (op == memlog.OpTruncateTo || op == memlog.OpReset) && topic == "orders"
	})
	require.NoError(t, a.broker.Lag("orders", 0, 2, kept))
	require.NoError(t, a.broker.Elect("orders", 0, 2, true))
	eventually(t, "cut", func() bool { return state(t, m, "orders", 0).Totals.Cuts == 1 })
	lost := state(t, m, "orders", 0).Totals
	a.write("orders", 0, 20)
	caughtUp(t, m)
	require.NoError(t, m.Close())
	restore()
	require.NoError(t, a.broker.Close())
	m = newMirror(t, a, host)
	require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	require.Equal(t, kept+20, state(t, m, "orders", 0).Position.Offset)
	require.Equal(t, lost, state(t, m, "orders", 0).Totals, "it is reported, for the old state knows of no report")
}

// The old state says that a stop is under way, which is over long ago: records that were written since are not cut before someone has asked
// for it again.
func TestAStopOfAnOlderStateIsNotResumedByItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		m := mirrorOrders(t, a, host, mirror.TruncateToStable(100))
		restore := backupAt(t, host, nth(2, on(memlog.OpTruncateTo, "orders"))) // the first one asks whether it can
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		p := open(t, m.Coordinator(), "orders", 0)
		appendTo(t, p, plain(20))
		_, end := p.Bounds()
		require.NoError(t, m.Close())
		restore()

		m = newMirror(t, a, host, mirror.TruncateToStable(100))
		pass(time.Hour)
		st := state(t, m, "orders", 0)
		require.Equal(t, mirror.Failed, st.State)
		require.Contains(t, st.Reason, "older than the data")
		require.Equal(t, end, st.End)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"), "it works from every state")
		require.NoError(t, m.Coordinator().CheckWrite("orders", 0))
	})
}

// The same, and then the topic was mirrored again: what was cut has come back, with the same epoch, and more. That the log goes on beyond
// what was to be cut tells that the state is older.
func TestACutThatTheLogHasOutgrownNamesAnOlderState(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		m := mirrorOrders(t, a, host, mirror.TruncateToStable(100))
		restore := backupAt(t, host, nth(2, on(memlog.OpTruncateTo, "orders"))) // the first one asks whether it can
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Resume(t.Context(), "orders"))
		a.write("orders", 0, 20)
		caughtUp(t, m)
		require.NoError(t, m.Close())
		restore()

		ev := new(events)
		m = newMirror(t, a, host, mirror.TruncateToStable(100), mirror.OnEvent(ev.add))
		pass(time.Hour)
		st := inState(t, m, 0, mirror.Failed)
		require.Contains(t, st.Reason, "older than the data")
		require.True(t, st.NeedsDecision)
		require.Equal(t, int64(35), st.End)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		pass(time.Second)
		told := ev.of(mirror.Truncated)
		require.Equal(t, [2]int64{10, 15}, [2]int64{told[len(told)-1].From, told[len(told)-1].To}, "once carried out, it is reported and no more")
		require.Equal(t, int64(37), state(t, m, "orders", 0).End, "ABORT and reset: what has come since stays")
	})
}

// Someone has decided: a later failure is tried again by itself, also after a restart.
func TestAnOlderStateIsForgottenOnceSomeoneHasDecided(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10, broker.Nodes(2)), memlog.New()
		m := mirrorOrders(t, a, host)
		olderThanData(t, a, host, m, backup(t, host))
		m = newMirror(t, a, host)
		mend := failing(host, on(memlog.OpAppend, "orders"))
		a.write("orders", 0, 1)
		inState(t, m, 0, mirror.Failed)
		require.NoError(t, m.Close())
		mend()
		m = newMirror(t, a, host)
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		requireSame(t, a, m, "orders", 1)
	})
}

// A failure that waits for someone's word does so too if it can't be written down.
func TestAFailureThatCannotBeWrittenWaitsForAWordToo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newSource(t), memlog.New()
		a.create("orders", 1)
		m := mirrorOrders(t, a, host)
		mend := failing(host, on(memlog.OpAppend, mirror.StateTopic))
		defer mend()
		recreate(t, a, 3)
		require.True(t, inState(t, m, 0, mirror.Failed).NeedsDecision)
	})
}

// stopped is a mirror that was stopped, and the state of the middle of that: the position is stored and the leader epoch raised, and nothing
// is appended yet.
func stopped(t *testing.T, a *source, host *memlog.Host) (m *mirror.Mirror, restore func()) {
	t.Helper()
	m = mirrorOrders(t, a, host)
	restore = backupAt(t, host, on(memlog.OpAppend, "orders"))
	require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	return m, restore
}

// The old state says that a stop is under way. Since then the other side has taken over, and was mirrored: the epoch that the stop goes to
// when it is asked for again is none that the other side may use next.
func TestAStopOfAnOlderStateKeepsApart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m, restore := stopped(t, a, host)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 1_000_000)
		require.NoError(t, err)
		a.write("orders", 0, 1)
		caughtUp(t, m)
		require.NoError(t, m.Close())
		restore()

		m = newMirror(t, a, host)
		inState(t, m, 0, mirror.Failed)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.Greater(t, open(t, m.Coordinator(), "orders", 0).LeaderEpoch(), int32(1_000_010))
	})
}

// The same, and the source has come on with the epoch that it had: what lies above the position of the stop is older than its leader epoch.
func TestAStateOfAStopThatTheMirrorWentOnFromIsNamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m, restore := stopped(t, a, host)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		a.write("orders", 0, 5)
		caughtUp(t, m)
		require.NoError(t, m.Close())
		restore()
		m = newMirror(t, a, host)
		pass(time.Hour)
		st := state(t, m, "orders", 0)
		require.Equal(t, mirror.Failed, st.State)
		require.Contains(t, st.Reason, "holds [0, 15) of leader epoch 0, the state says that all from offset 10 on was written here")
		require.Equal(t, int64(15), st.End)
		require.Error(t, m.Coordinator().CheckWrite("orders", 0))
	})
}

// Nothing came since, so nothing tells: the stop goes on, to an epoch that was not in use between.
func TestAStopThatIsResumedAfterARestartKeepsApart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m, restore := stopped(t, a, host)
		c := m.Coordinator()
		for range 100 {
			_, err := c.RaiseLeaderEpoch(t.Context(), "orders", 0, 0)
			require.NoError(t, err)
		}
		used := open(t, c, "orders", 0).LeaderEpoch()
		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
		require.NoError(t, m.Close())
		restore()
		m = newMirror(t, a, host)
		inState(t, m, 0, mirror.Stopped)
		require.Greater(t, open(t, m.Coordinator(), "orders", 0).LeaderEpoch(), used)
	})
}

// The source is a host of this library whose state is older than its data, and nobody writes there: its leader epoch is that of the state
// until something has it look at its log.
func TestASourceWithAnOlderStateIsMirroredOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		restore := backup(t, a.host)
		_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 100)
		require.NoError(t, err)
		a.write("orders", 0, 5)
		src, move := movable(t, a)
		m := mirrorOf(t, src, host)
		addOrders(t, m)
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Paused)
		require.NoError(t, m.Close())
		require.NoError(t, a.c.Close())
		restore()
		again := sourceOn(t, a.host)
		move(again)
		m = mirrorOf(t, src, host)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		requireSame(t, again, m, "orders", 1)
		require.Zero(t, state(t, m, "orders", 0).Totals)
	})
}
