package mirror_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
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

// What KIP-1279 says of mirroring, epochs, truncation, stop, failback, transactions, metadata and states, a test for each sentence, by
// the sections of the design. "Row" in a comment is a row of DIVERGENCE.md: there the test says what happens here.
//
// Sentences that have their test elsewhere:
//
//	2    same name and topic id ................................. TestMirrorHasTheSourcesTopicIDs
//	2    a name taken by an ordinary topic is refused ........... TestWhatCannotBeAddedIsRefusedByName
//	2    segments are the source's, byte for byte ............... TestMirrorIsTheSourceByteForByte
//	3.1  allowed transitions; an illegal one does nothing ....... TestEveryTransition
//	3.3  a change of leadership fences ........................... TestANewerCoordinatorFencesTheOlder
//	3.4  a retry goes to the state before the first failure ..... TestRetryGoesToTheStateBeforeTheFailure
//	3.4  not retried until Recover ............................... TestFailOnDivergenceCutsNothingUntilRecover
//	3.5  a topic of another mirror; a result for each topic ..... TestWhatCannotBeAddedIsRefusedByName
//	3.5  pause twice, resume ..................................... TestPauseHoldsAndResumeGoesOn
//	3.5  local deletes refused while mirrored .................... TestMirrorTopicIsReadOnlyInEveryStateAndAfterARestart
//	3.6  source topic deleted .................................... TestSourceTopicDeleted
//	4.1  an epoch above the metadata is not appended ............ TestAnswersAreTakenUpToTheFirstBadBatch
//	4.1  log start follows the source ........................... TestLogStartFollowsTheSource
//	4.2  when, and how far, the leader epoch is raised .......... TestWorkedExamples/e3
//	4.3  loops and active reverse mirrors ....................... TestALoopOfThreeIsRefused, TestFailbackCutsTheOrphanedTailOnly
//	4.3  records without a position (row "No position") ......... TestRecordsHereAreAdoptedOnlyOnProof
//	4.3  restart in the same direction .......................... TestResumeNeverLosesWhatWasWrittenHere
//	4.4  truncation by epochs .................................... TestWhereTwoLogsPart, TestAlignmentEndsWithAPrefix
//	4.4  divergence while mirroring .............................. TestUncleanElectionAtTheSourceIsCutAndRefilled, TestWorkedExamples/e4
//	4.5  a crash after each step ................................. TestStopSurvivesACrashAtEveryCall
//	4.6  worked examples E1 to E6 ................................ TestWorkedExamples
//	4.7  retention beyond what is mirrored ...................... TestRetentionThatOvertakesAPausedMirrorIsReported
//	5    open transactions are aborted at stop .................. TestOpenTransactionsAreAbortedAtTakeover
//	5    aborted here, committed there (AS30) ................... TestWorkedExamples/e2
//	6.3  moved leaders; damaged batches; a poisoned partition ... TestLeaderMovesAreFollowed, TestDamagedBatchFailsItsPartitionOnly
//	6.3  source outage (row "Trouble with the source") .......... TestSilentSourceIsUnreachableAndRecovers
//	7.2  partition growth ........................................ TestPartitionsAddedAtTheSourceBeginAtTheirStart

// kip runs the test of one sentence in virtual time.
func kip(t *testing.T, sentence string, f func(t *testing.T)) {
	t.Run(sentence, func(t *testing.T) { synctest.Test(t, f) })
}

// mirrored is two sites: a topic of ten records in each partition on a, and a mirror of it on b that holds them.
func mirrored(t *testing.T, partitions int32, opts ...mirror.MirrorOption) (a, b *source, m *mirror.Mirror) {
	t.Helper()
	a, b = newSource(t, broker.Nodes(2)), newSource(t)
	a.create("orders", partitions)
	for num := range partitions {
		a.write("orders", num, 10)
	}
	m = linked(t, "dr", b, a, opts...)
	addOrders(t, m)
	return a, b, m
}

func inState(t *testing.T, m *mirror.Mirror, num int32, want mirror.State) mirror.PartitionStatus {
	t.Helper()
	eventually(t, want.String(), func() bool { return state(t, m, "orders", num).State == want })
	return state(t, m, "orders", num)
}

// stateRecord is one record of the state topic with a key of the documents' two types, the newest of its key last.
type stateRecord struct {
	typ   int16
	value []byte
}

func stateRecords(t *testing.T, host *memlog.Host) (list []stateRecord) {
	t.Helper()
	log, err := host.OpenLog(t.Context(), mirror.StateTopic, 0)
	require.NoError(t, err)
	buf := make([]byte, 16<<20)
	for at, end := log.Bounds(); at < end; {
		n, err := log.Read(t.Context(), at, buf)
		require.NoError(t, err)
		for b, err := range mirror.Batches(buf[:n]) {
			require.NoError(t, err)
			at = b.Next
			for r, err := range batch.Records(b.Bytes) {
				require.NoError(t, err)
				if typ := int16(binary.BigEndian.Uint16(r.Key)); typ == 1 || typ == 2 {
					list = append(list, stateRecord{typ, slices.Clone(r.Value)})
				}
			}
		}
	}
	return list
}

func TestKIP_2_Concepts(t *testing.T) {
	kip(t, "mirror names obey the rules of topic names", func(t *testing.T) {
		b := newSource(t)
		src := b.broker.Source()
		for _, name := range []string{"", ".", "..", "a/b", "a b", strings.Repeat("x", 250)} {
			_, err := b.c.Mirror(name, src)
			require.ErrorContains(t, err, "mirror name", "%q", name)
		}
		for _, name := range []string{"a", "A.b_c-9", strings.Repeat("x", 249)} {
			_, err := b.c.Mirror(name, src)
			require.NoError(t, err)
		}
		_, err := b.c.Mirror("a", src)
		require.ErrorContains(t, err, "attached already", "create the same mirror twice")
	})
	kip(t, "the leader epoch here is never below the source's", func(t *testing.T) {
		a, _, m := mirrored(t, 1)
		for range 30 {
			require.NoError(t, a.broker.Elect("orders", 0, 2, false))
			require.NoError(t, a.broker.Elect("orders", 0, 1, false))
			a.write("orders", 0, 1)
			caughtUp(t, m)
			st := state(t, m, "orders", 0)
			require.GreaterOrEqual(t, st.LeaderEpoch, a.partition("orders", 0).LeaderEpoch())
		}
	})
}

func TestKIP_3_1_States(t *testing.T) {
	kip(t, "have the documents' codes", func(t *testing.T) {
		for state, code := range map[mirror.State]int8{
			mirror.Unknown: -1, mirror.Preparing: 0, mirror.Mirroring: 3, mirror.Pausing: 4, mirror.Paused: 5,
			mirror.Stopping: 6, mirror.Stopped: 7, mirror.Failed: 8, // 1 and 2 are unused: row "States EPOCH_FENCING"
		} {
			require.Equal(t, code, int8(state), state.String())
		}
	})
	kip(t, "paused and failed are still read-only", func(t *testing.T) {
		a, b, m := mirrored(t, 2)
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Paused)
		require.Error(t, b.c.CheckWrite("orders", 0))
		require.NoError(t, m.Resume(t.Context(), "orders"))
		mend := failing(b.host, on(memlog.OpAppend, "orders"))
		a.write("orders", 0, 1)
		inState(t, m, 0, mirror.Failed)
		require.Error(t, b.c.CheckWrite("orders", 0))
		mend()
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
	})
}

func TestKIP_3_2_DesiredAndCurrentState(t *testing.T) {
	kip(t, "the wish is the topic's, the state is each partition's, and the command does not wait for it", func(t *testing.T) {
		_, b, m := mirrored(t, 2)
		release := make(chan struct{})
		b.host.Fail(func(ctx context.Context, op memlog.Op, topic string, partition int32) error {
			if op == memlog.OpSync && topic == "orders" && partition == 1 {
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
			return nil
		})
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Paused)
		inState(t, m, 1, mirror.Pausing)
		require.Equal(t, mirror.Paused, m.Describe().Topics[0].Desired)
		close(release)
		inState(t, m, 1, mirror.Paused)
	})
}

func TestKIP_3_3_Reconcile(t *testing.T) {
	kip(t, "a state that can't be written is not acted on", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		mend := failing(b.host, on(memlog.OpAppend, mirror.StateTopic))
		require.ErrorIs(t, m.Pause(t.Context(), "orders"), errDisk)
		require.ErrorIs(t, m.Remove(within(t, time.Minute), "orders"), errDisk)
		require.Error(t, b.c.CheckWrite("orders", 0))
		a.write("orders", 0, 5)
		caughtUp(t, m)
		require.Equal(t, mirror.Mirroring, state(t, m, "orders", 0).State)
		mend()
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	})
	kip(t, "nor is one that only the partition could not write", func(t *testing.T) {
		_, b, m := mirrored(t, 1)
		var writes atomic.Int32
		mend := failing(b.host, func(op memlog.Op, topic string, _ int32) bool {
			return op == memlog.OpAppend && topic == mirror.StateTopic && writes.Add(1) > 1 // the wish, and no more
		})
		require.NoError(t, m.Pause(t.Context(), "orders"))
		require.Equal(t, mirror.Mirroring, inState(t, m, 0, mirror.Failed).Before)
		pass(time.Hour)
		require.Equal(t, mirror.Failed, state(t, m, "orders", 0).State)
		mend()
		inState(t, m, 0, mirror.Paused)
	})
	kip(t, "what a state does is done after a crash, once more", func(t *testing.T) {
		a := newOrders(t, 10)
		host := memlog.New()
		c, err := mirror.Open(t.Context(), host)
		require.NoError(t, err)
		m, err := c.Mirror("dr", a.broker.Source())
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		addOrders(t, m)
		host.Fail(func(ctx context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpSync && topic == "orders" { // PAUSING is written, and what it does is not done
				<-ctx.Done()
			}
			return nil
		})
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Pausing)
		crashed := host.Crash(rng(1))
		_ = c.Close() // its host answers nothing any more

		syncs := 0
		crashed.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpSync && topic == "orders" {
				syncs++
			}
			return nil
		})
		again := newMirror(t, a, crashed)
		require.Equal(t, mirror.Pausing, state(t, again, "orders", 0).State)
		inState(t, again, 0, mirror.Paused)
		require.Equal(t, 1, syncs)
	})
	kip(t, "every write of a state has a higher state epoch", func(t *testing.T) {
		_, b, m := mirrored(t, 1)
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Paused)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		last := int32(-1)
		for _, r := range stateRecords(t, b.host) {
			if r.typ == 1 {
				epoch := int32(binary.BigEndian.Uint32(r.value[7:]))
				require.Greater(t, epoch, last)
				last = epoch
			}
		}
		require.Greater(t, last, int32(3))
	})
	kip(t, "a changed connection is taken up where the log ends", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Close())
		a.write("orders", 0, 5)
		again, err := b.c.Mirror("dr", mirror.Source{Addr: a.broker.Source().Addr, Transport: a.broker.Source().Transport, ClusterID: a.host.ClusterID()})
		require.NoError(t, err)
		require.NoError(t, again.Start(t.Context()))
		caughtUp(t, again)
		equal(t, a, b, "orders", 1)
		require.Less(t, state(t, again, "orders", 0).Bytes, int64(len(content(t, a.partition("orders", 0), 0))))
	})
}

func TestKIP_3_4_FailedAndRetry(t *testing.T) {
	// Row "At most 20 retries from FAILED": here they never end.
	kip(t, "a second failure keeps the state before the first, and only a good batch clears the count", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		mend := failing(b.host, on(memlog.OpAppend, "orders"))
		a.write("orders", 0, 5)
		inState(t, m, 0, mirror.Failed)
		pass(time.Hour)
		st := inState(t, m, 0, mirror.Failed)
		require.Equal(t, mirror.Mirroring, st.Before)
		require.Greater(t, st.Attempts, 20)
		require.False(t, st.NeedsDecision)
		require.Contains(t, st.Reason, errDisk.Error())
		mend()
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
		st = state(t, m, "orders", 0)
		require.Zero(t, st.Attempts)
		require.Empty(t, st.Reason)
	})
	kip(t, "text, count and state before survive a restart", func(t *testing.T) {
		a, _, m := mirrored(t, 1, mirror.FailOnDivergence())
		require.NoError(t, a.broker.Lag("orders", 0, 2, 0))
		require.NoError(t, a.broker.Elect("orders", 0, 2, true))
		before := inState(t, m, 0, mirror.Failed)
		require.NoError(t, m.Close())
		detached, err := m.Coordinator().Detached("dr")
		require.NoError(t, err)
		after := state(t, detached, "orders", 0)
		require.Equal(t, []any{before.State, before.Reason, before.Before, true}, []any{after.State, after.Reason, after.Before, after.NeedsDecision})
	})
}

func TestKIP_3_5_Preconditions(t *testing.T) {
	kip(t, "each verb names a topic that is not in the mirror", func(t *testing.T) {
		_, _, m := mirrored(t, 1)
		ctx := within(t, time.Minute)
		for verb, do := range map[string]func(context.Context, ...string) error{
			"Remove": m.Remove, "Promote": m.Promote, "Pause": m.Pause, "Resume": m.Resume, "Recover": m.Recover,
		} {
			require.ErrorIs(t, do(ctx, "payments"), mirror.ErrUnknownTopic, verb)
		}
		_, err := m.PlanRemove(ctx, "payments")
		require.ErrorIs(t, err, mirror.ErrUnknownTopic)
		require.ErrorIs(t, m.WaitCaughtUp(ctx, "payments"), mirror.ErrUnknownTopic)
	})
	kip(t, "resume of a mirrored topic and recover of a healthy one change nothing", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Resume(t.Context(), "orders"))
		require.NoError(t, m.Recover(t.Context(), "orders"))
		a.write("orders", 0, 5)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
	})
	kip(t, "a stopped topic can't be paused", func(t *testing.T) {
		_, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.ErrorIs(t, m.Pause(t.Context(), "orders"), mirror.ErrStopped)
		require.NoError(t, b.c.CheckWrite("orders", 0))
	})
	kip(t, "of a stop and a pause at once the stop wins", func(t *testing.T) {
		_, b, m := mirrored(t, 1)
		release := holding(b.host, nth(1, on(memlog.OpAppend, mirror.StateTopic)))
		stopped, paused := make(chan error, 1), make(chan error, 1)
		go func() { stopped <- m.Remove(within(t, time.Minute), "orders") }()
		synctest.Wait() // its wish is being written
		go func() { paused <- m.Pause(t.Context(), "orders") }()
		synctest.Wait()
		release()
		require.NoError(t, <-stopped)
		require.ErrorIs(t, <-paused, mirror.ErrStopped)
		require.Equal(t, mirror.Stopped, m.Describe().Topics[0].Desired)
		require.Equal(t, mirror.Stopped, state(t, m, "orders", 0).State)
	})
	// Row "Stop is refused on FAILED partitions": here it works from every state.
	kip(t, "stop works in each state that a mirror can rest in", func(t *testing.T) {
		for name, bring := range map[string]func(a, b *source, m *mirror.Mirror){
			"mirroring": func(_, _ *source, _ *mirror.Mirror) {},
			"paused": func(_, _ *source, m *mirror.Mirror) {
				require.NoError(t, m.Pause(t.Context(), "orders"))
				inState(t, m, 0, mirror.Paused)
			},
			"failed": func(a, _ *source, m *mirror.Mirror) {
				require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
				inState(t, m, 0, mirror.Failed)
			},
			"source dead": func(a, _ *source, m *mirror.Mirror) {
				require.NoError(t, a.broker.Close())
				eventually(t, "unreachable", func() bool { return state(t, m, "orders", 0).Health == mirror.Unreachable })
			},
		} {
			a, b, m := mirrored(t, 1)
			bring(a, b, m)
			require.NoError(t, m.Remove(within(t, time.Minute), "orders"), name)
			st := state(t, m, "orders", 0)
			require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, *st.Position, name)
			require.NoError(t, b.c.CheckWrite("orders", 0), name)
		}
	})
}

func TestKIP_3_6_SourceTopicDeleted(t *testing.T) {
	kip(t, "a topic that may no longer be described is not taken for deleted", func(t *testing.T) {
		var hidden atomic.Bool
		a, b := newSource(t, broker.Authorize(func(_, _, resource string) bool { return resource != "Topic:orders" || !hidden.Load() })), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		hidden.Store(true)
		pass(time.Hour)
		st := state(t, m, "orders", 0)
		require.Equal(t, mirror.Mirroring, st.State)
		require.Equal(t, mirror.Unreachable, st.Health)
		hidden.Store(false)
		a.write("orders", 0, 1)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
	})
	kip(t, "a topic that is missed once is not taken for deleted", func(t *testing.T) {
		a, ev := newSource(t), new(events)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		src, move := movable(t, a)
		m := mirrorOf(t, src, memlog.New(), mirror.OnEvent(ev.add), mirror.Backoff(10*time.Second, time.Minute))
		addOrders(t, m)
		pass(70 * time.Second)
		move(sourceOn(t, memlog.New(memlog.ClusterID(a.host.ClusterID())))) // a broker that has not heard of it yet
		pass(5 * time.Second)
		require.Contains(t, state(t, m, "orders", 0).Reason, "does not exist at the source")
		again, err := broker.New(a.c)
		require.NoError(t, err)
		a.broker = again
		move(a)
		a.write("orders", 0, 1)
		caughtUp(t, m)
		requireSame(t, a, m, "orders", 1)
		for _, e := range ev.of(mirror.StateChanged) {
			require.NotEqual(t, mirror.Failed.String(), e.After)
		}
	})
	// Row "Source topic deleted": the older text's way is an option.
	kip(t, "stop on delete makes it writable", func(t *testing.T) {
		a, b, m := mirrored(t, 1, mirror.StopOnSourceDelete())
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, *inState(t, m, 0, mirror.Stopped).Position)
		require.NoError(t, b.c.CheckWrite("orders", 0))
	})
	for name, records := range map[string]int{"longer": 50, "shorter": 3} {
		kip(t, "a recreated topic is never appended onto the old log, be it "+name, func(t *testing.T) {
			a, _, m := mirrored(t, 1)
			require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
			a.create("orders", 1)
			log, err := a.host.OpenLog(t.Context(), "orders", 0)
			require.NoError(t, err)
			require.NoError(t, log.Append(t.Context(), plain(records)))
			st := inState(t, m, 0, mirror.Failed)
			require.Contains(t, st.Reason, "recreated at the source")
			require.True(t, st.NeedsDecision)
			pass(time.Hour)
			require.Equal(t, int64(10), state(t, m, "orders", 0).End)
			require.NoError(t, m.Recover(t.Context(), "orders"))
			pass(time.Hour)
			require.Equal(t, mirror.Failed, state(t, m, "orders", 0).State, "not even with someone's word")
			require.Equal(t, int64(10), state(t, m, "orders", 0).End)
		})
	}
}

func TestKIP_4_1_AppendPath(t *testing.T) {
	kip(t, "keeps offsets epochs producers timestamps and CRC of every kind of batch", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		p := a.partition("orders", 0)
		for attributes := range int16(16) { // codecs and LogAppendTime, of which no bit is looked at here
			raw := plain(3)
			binary.BigEndian.PutUint16(raw[21:], uint16(attributes))
			binary.BigEndian.PutUint32(raw[17:], batch.Sum(raw))
			appendTo(t, p, raw)
		}
		appendTo(t, p, produced(4, 1<<40, true))
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
	})
	kip(t, "a batch is not appended before the epoch that it needs is durable", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 50)
		require.NoError(t, err)
		mend := failing(b.host, on(memlog.OpAppend, mirror.StateTopic))
		a.write("orders", 0, 5)
		inState(t, m, 0, mirror.Failed)
		pass(time.Hour)
		require.Equal(t, int64(10), state(t, m, "orders", 0).End)
		mend()
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
		require.GreaterOrEqual(t, state(t, m, "orders", 0).LeaderEpoch, int32(50))
	})
	kip(t, "no epoch of its own enters the epoch table, whoever opens it", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Close())
		require.NoError(t, b.broker.Close())
		require.NoError(t, b.c.Close())
		c := sourceOn(t, b.host)
		m = linked(t, "dr", c, a)
		caughtUp(t, m)
		a.write("orders", 0, 5)
		caughtUp(t, m)
		p := c.partition("orders", 0)
		require.Positive(t, p.LeaderEpoch())
		epoch, end, err := p.EpochEnd(t.Context(), p.LeaderEpoch())
		require.NoError(t, err)
		require.Equal(t, [2]int64{0, 15}, [2]int64{int64(epoch), end}, "the last epoch of the table and the log's end")
		at, err := p.EpochAt(t.Context(), 14)
		require.NoError(t, err)
		require.Equal(t, int32(0), at)
	})
	kip(t, "reads to the source's high watermark and no further", func(t *testing.T) {
		a, _, m := mirrored(t, 1)
		require.NoError(t, a.broker.Lag("orders", 0, 2, 12))
		a.write("orders", 0, 2, 3)
		pass(time.Minute)
		require.Equal(t, int64(12), state(t, m, "orders", 0).End)
		require.NoError(t, a.broker.Lag("orders", 0, 2, -1))
		eventually(t, "the rest", func() bool { return state(t, m, "orders", 0).End == 15 })
	})
}

func TestKIP_4_2_EpochInvariant(t *testing.T) {
	kip(t, "elections without a write raise it too", func(t *testing.T) {
		a, _, m := mirrored(t, 1, mirror.RefreshInterval(time.Second))
		_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 77)
		require.NoError(t, err)
		eventually(t, "raised", func() bool {
			st := state(t, m, "orders", 0)
			return st.SourceEpoch == 77 && st.LeaderEpoch >= 77
		})
	})
	kip(t, "an epoch near the greatest number does not overflow", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, math.MaxInt32-5)
		require.NoError(t, err)
		a.write("orders", 0, 1)
		caughtUp(t, m)
		st := state(t, m, "orders", 0)
		require.GreaterOrEqual(t, st.LeaderEpoch, int32(math.MaxInt32-5))
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.Greater(t, state(t, m, "orders", 0).LeaderEpoch, int32(math.MaxInt32-5))
		b.write("orders", 0, 1)
	})
	// Row "Leader epoch at takeover": far above, and random, so that two lineages never share a number.
	kip(t, "what is written after a stop has an epoch of no other lineage", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		other := newSource(t)
		sibling := linked(t, "dr", other, a)
		addOrders(t, sibling)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, sibling.Remove(within(t, time.Minute), "orders"))
		for range 20 {
			require.NoError(t, a.broker.Elect("orders", 0, 1, false))
		}
		for _, s := range []*source{a, b, other} {
			s.write("orders", 0, 1)
		}
		epochs := make(map[int32]bool)
		for _, s := range []*source{a, b, other} {
			epochs[s.partition("orders", 0).LeaderEpoch()] = true
		}
		require.Len(t, epochs, 3)
	})
}

func TestKIP_4_3_Alignment(t *testing.T) {
	kip(t, "the greatest position of all mirrors counts, whatever their names", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		second := linked(t, "another", b, a)
		require.ErrorIs(t, second.AddTopics(t.Context(), "orders"), mirror.ErrStopped, "the guard goes by topic and clusters")
		require.NoError(t, second.Overwrite(t.Context(), "orders"))
		a.write("orders", 0, 5)
		caughtUp(t, second)
		require.NoError(t, second.Remove(within(t, time.Minute), "orders"))
		for _, x := range []*mirror.Mirror{m, second} {
			require.ErrorContains(t, x.AddTopics(t.Context(), "orders"), "offset 15")
		}
		b.write("orders", 0, 2)

		back := linked(t, "third", a, b)
		addOrders(t, back)
		st := state(t, back, "orders", 0)
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 15}, *st.Position)
		require.Zero(t, st.Totals, "nothing that was mirrored is cut")
		equal(t, a, b, "orders", 1)
	})
	kip(t, "a denied question is never no position", func(t *testing.T) {
		var denied atomic.Bool
		a, b := newSource(t), newSource(t, broker.Authorize(func(_, operation, resource string) bool {
			return operation != "Read" || !strings.HasPrefix(resource, "Cluster:") || !denied.Load()
		}))
		a.create("orders", 1)
		a.write("orders", 0, 10)
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 3)
		denied.Store(true)
		back := linked(t, "back", a, b)
		require.Error(t, back.AddTopics(t.Context(), "orders"))
		require.Error(t, back.Overwrite(t.Context(), "orders"), "not even then")
		require.NoError(t, a.c.CheckWrite("orders", 0))
		_, end := a.partition("orders", 0).Bounds()
		require.Equal(t, int64(13), end)
		denied.Store(false)
		addOrders(t, back)
		equal(t, a, b, "orders", 1)
	})
	kip(t, "a partition that only one side has begins at its start", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.create("orders", 3) // grown on the new side
		b.write("orders", 2, 7)
		back := linked(t, "back", a, b)
		addOrders(t, back)
		equal(t, a, b, "orders", 3)
	})
	// Row "No position": with records there it is refused, where the KIP wipes.
	kip(t, "a partition that only the returning side has is refused", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.create("orders", 2)
		a.write("orders", 1, 4)
		back := linked(t, "back", a, b)
		require.Error(t, back.AddTopics(t.Context(), "orders"))
		require.NoError(t, a.c.CheckWrite("orders", 0))
		_, end := a.partition("orders", 1).Bounds()
		require.Equal(t, int64(4), end)
	})
	kip(t, "a position beyond the source's log is followed by its epochs", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		a.write("orders", 0, 1, 1, 1)
		caughtUp(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, b.partition("orders", 0).Truncate(t.Context(), 11)) // b lost a part of what it had mirrored, and its reset
		b.write("orders", 0, 1, 1)
		back := linked(t, "back", a, b)
		addOrders(t, back)
		equal(t, a, b, "orders", 1)
		require.Equal(t, mirror.Totals{Cut: 2, Cuts: 1}, state(t, back, "orders", 0).Totals)
	})
	kip(t, "a source trimmed beyond the position restarts the log there, reported", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 4, 4)
		require.NoError(t, b.partition("orders", 0).AdvanceStart(t.Context(), 15))
		back := linked(t, "back", a, b)
		addOrders(t, back)
		st := state(t, back, "orders", 0)
		require.Equal(t, [2]int64{15, 19}, [2]int64{st.Start, st.End})
		require.Equal(t, int64(5), st.Totals.Lost)
		require.Equal(t, content(t, b.partition("orders", 0), 15), content(t, a.partition("orders", 0), 15))
	})
	kip(t, "a crash between the two looks at the peer cuts nothing", func(t *testing.T) {
		// Both sides begin at once. A has looked, and is about to write PREPARING while B begins and takes its second look; A writes,
		// and crashes before its own.
		var second, waiting atomic.Bool
		a := newSource(t)
		b := newSource(t, broker.Authorize(func(_, operation, resource string) bool {
			return !second.Load() || operation != "Read" || resource != "Cluster:kafka-cluster" || !waiting.CompareAndSwap(false, true)
		}))
		a.create("orders", 1)
		a.write("orders", 0, 10)
		src, move := movable(t, a)
		dr, err := b.c.Mirror("dr", src)
		require.NoError(t, err)
		require.NoError(t, dr.Start(t.Context()))
		addOrders(t, dr)
		require.NoError(t, dr.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2)
		b.write("orders", 0, 4)
		require.NoError(t, a.partition("orders", 0).Sync(t.Context()))
		kept := content(t, a.partition("orders", 0), 0)

		back := linked(t, "back", a, b)
		pass(time.Second)
		looked, go1, go2 := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var writes atomic.Int32
		a.host.Fail(func(ctx context.Context, op memlog.Op, topic string, _ int32) error {
			if topic != mirror.StateTopic || op != memlog.OpAppend {
				return nil
			}
			switch writes.Add(1) {
			case 1: // PREPARING
				close(looked)
				<-go1
			case 2: // it is taken back, which the crash prevents
				<-go2
				return mirror.ErrClosed
			}
			return nil
		})
		done := make(chan error, 1)
		go func() { done <- back.AddTopics(t.Context(), "orders") }()
		<-looked
		require.NoError(t, dr.Overwrite(t.Context(), "orders"), "it can't know")
		second.Store(true) // A's second look gets no answer
		close(go1)
		synctest.Wait()
		require.Equal(t, int32(2), writes.Load())
		crashed := a.host.Crash(rng(1))
		close(go2)
		require.Error(t, <-done)
		require.NoError(t, a.broker.Close())
		_ = a.c.Close() // its host answers nothing any more

		again := sourceOn(t, crashed)
		move(again)
		a.host, a.c, a.broker = again.host, again.c, again.broker
		second.Store(false)
		back = linked(t, "back", again, b)
		pass(time.Hour)
		st := state(t, back, "orders", 0)
		require.Equal(t, mirror.Failed, st.State)
		require.Contains(t, st.Reason, mirror.ErrPeerActive.Error())
		require.Equal(t, kept, content(t, again.partition("orders", 0), 0))
		require.Zero(t, st.Totals)
	})
}

func TestKIP_4_4_Divergence(t *testing.T) {
	kip(t, "several lost epochs are found in turn, also while the mirror was down", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		for range 5 {
			require.NoError(t, a.broker.Elect("orders", 0, 1, false))
			a.write("orders", 0, 1, 1)
		}
		caughtUp(t, m)
		require.NoError(t, m.Close())
		for _, keep := range []int64{17, 13} { // twice, each time into an older epoch
			require.NoError(t, a.broker.Lag("orders", 0, 2, keep))
			require.NoError(t, a.broker.Elect("orders", 0, 2, true))
			a.write("orders", 0, 1, 1, 1, 1, 1)
			require.NoError(t, a.broker.Elect("orders", 0, 1, false))
		}
		m, err := b.c.Mirror("dr", a.broker.Source())
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		eventually(t, "cut", func() bool { return state(t, m, "orders", 0).Totals.Cuts > 0 })
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
		require.Equal(t, int64(7), state(t, m, "orders", 0).Totals.Cut, "from 13 to 20")
	})
	kip(t, "committed offsets above the cut are clamped", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, a.broker.Lag("orders", 0, 2, 0))
		require.NoError(t, a.broker.Elect("orders", 0, 2, true))
		eventually(t, "cut", func() bool { return state(t, m, "orders", 0).Totals.Cuts > 0 })
		end, ok, err := b.c.OffsetCeiling(t.Context(), "orders", 0)
		require.NoError(t, err)
		require.True(t, ok)
		require.Zero(t, end)
	})
}

func TestKIP_4_5_Stopping(t *testing.T) {
	kip(t, "goes in order, with the gate closed to its end", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		appendTo(t, a.partition("orders", 0), produced(5, 7, true))
		caughtUp(t, m)
		var mu sync.Mutex
		var calls []string
		b.host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if op != memlog.OpAppend && op != memlog.OpSync {
				return nil
			}
			what := fmt.Sprintf("%s %s", op, topic)
			if b.c.CheckWrite("orders", 0) == nil {
				what += ", gate open"
			}
			mu.Lock()
			defer mu.Unlock()
			if n := len(calls); n == 0 || calls[n-1] != what {
				calls = append(calls, what)
			}
			return nil
		})
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.host.Fail(nil)
		var kept []string // syncs of the state follow its appends
		for _, c := range calls {
			if c != "sync "+mirror.StateTopic {
				kept = append(kept, c)
			}
		}
		require.Equal(t, []string{
			"append " + mirror.StateTopic, // the wish, and STOPPING
			"sync orders",
			"append " + mirror.StateTopic, // the position, then the leader epoch
			"append orders",               // ABORT and reset
			"sync orders",
			"append " + mirror.StateTopic, // producer ids, then STOPPED and taken over
		}, slices.Compact(kept))
	})
	kip(t, "adds an abort for each open transaction and one reset for each partition", func(t *testing.T) {
		a, b, m := mirrored(t, 3)
		p := a.partition("orders", 0)
		commit := func(pid int64, kind int16) {
			appendTo(t, p, batch.AppendControl(nil, 0, 0, pid, 0, batch.Control{Type: kind}, 0))
		}
		appendTo(t, p, produced(4, 1, true)) // committed
		commit(1, batch.ControlCommit)
		require.NoError(t, a.broker.Elect("orders", 0, 1, false))
		appendTo(t, p, produced(4, 2, true)) // aborted, among plain ones and two that stay open
		appendTo(t, p, produced(4, 3, true))
		appendTo(t, p, plain(4))
		commit(2, batch.ControlAbort)
		appendTo(t, p, produced(4, 4, true))
		caughtUp(t, m)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		added := int64(0)
		for num := range int32(3) { // some with, some without open transactions
			_, here := b.partition("orders", num).Bounds()
			_, there := a.partition("orders", num).Bounds()
			added += here - there
			lso, err := b.partition("orders", num).LastStableOffset(t.Context())
			require.NoError(t, err)
			require.Equal(t, here, lso)
		}
		require.Equal(t, int64(2+3), added)
		require.Equal(t, []int{10 + 4 + 4, 10, 10}, []int{committed(t, b, 0), committed(t, b, 1), committed(t, b, 2)})
		q := b.partition("orders", 0)
		appendTo(t, q, produced(2, 3, true)) // the same producer again
		appendTo(t, q, batch.AppendControl(nil, 0, 0, 3, 0, batch.Control{Type: batch.ControlCommit}, 0))
		require.Equal(t, 10+4+4+2, committed(t, b, 0))
	})
	for name, when := range map[string]func(op memlog.Op, topic string, synced bool) bool{
		"a reset that can't be synced keeps the topic read-only": func(op memlog.Op, topic string, synced bool) bool {
			return op == memlog.OpSync && topic == "orders" && synced
		},
		"a position that can't be stored keeps the topic read-only": func(op memlog.Op, topic string, synced bool) bool {
			return op == memlog.OpAppend && topic == mirror.StateTopic && synced
		},
		"a marker that can't be appended keeps the topic read-only": func(op memlog.Op, topic string, _ bool) bool {
			return op == memlog.OpAppend && topic == "orders"
		},
	} {
		kip(t, name, func(t *testing.T) {
			a, b, m := mirrored(t, 1)
			appendTo(t, a.partition("orders", 0), produced(5, 7, true))
			caughtUp(t, m)
			var synced atomic.Bool // the log's sync comes before the position
			mend := failing(b.host, func(op memlog.Op, topic string, _ int32) bool {
				before := synced.Load()
				if op == memlog.OpSync && topic == "orders" {
					synced.Store(true)
				}
				return when(op, topic, before)
			})
			require.ErrorIs(t, m.Remove(within(t, time.Minute), "orders"), mirror.ErrFailed)
			st := state(t, m, "orders", 0)
			require.Equal(t, mirror.Failed, st.State)
			require.Contains(t, st.Reason, errDisk.Error())
			require.Error(t, b.c.CheckWrite("orders", 0))
			pass(time.Hour)
			require.Error(t, b.c.CheckWrite("orders", 0))
			mend()
			// Row "A retry may store a second, higher last mirrored position": here the first one stays.
			st = inState(t, m, 0, mirror.Stopped)
			require.Equal(t, mirror.Position{Epoch: 0, Offset: 15}, *st.Position)
			require.Equal(t, int64(17), st.End)
			require.NoError(t, b.c.CheckWrite("orders", 0))
		})
	}
	kip(t, "before anything was aligned or cut leaves all as it was", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2)
		back := linked(t, "back", a, b)
		pass(time.Second) // the peer's cluster id is stored
		var writes atomic.Int32
		mend := failing(a.host, func(op memlog.Op, topic string, _ int32) bool {
			return op == memlog.OpAppend && topic == mirror.StateTopic && writes.Add(1) > 1 // PREPARING, and no more
		})
		require.NoError(t, back.AddTopics(t.Context(), "orders"))
		inState(t, back, 0, mirror.Failed)
		require.Error(t, a.c.CheckWrite("orders", 0))
		mend()
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
		st := state(t, back, "orders", 0)
		require.Equal(t, int64(12), st.End, "no control batch")
		require.Zero(t, st.LeaderEpoch)
		require.Zero(t, st.Totals)
		require.NoError(t, a.c.CheckWrite("orders", 0), "its gate was open before")
	})
	kip(t, "before anything was aligned but after a cut settles what is left", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 2)
		back := linked(t, "back", a, b)
		mend := failing(a.host, on(memlog.OpTruncateTo, "orders"))
		require.NoError(t, back.AddTopics(t.Context(), "orders"))
		inState(t, back, 0, mirror.Failed) // the cut is announced
		mend()
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
		st := state(t, back, "orders", 0)
		require.Equal(t, int64(11), st.End, "cut to the position, and reset")
		require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, *st.Position, "as it was")
		require.GreaterOrEqual(t, st.LeaderEpoch, int32(1<<18))
		require.Equal(t, mirror.Totals{Cut: 2, Cuts: 1}, st.Totals)
		require.NoError(t, a.c.CheckWrite("orders", 0), "its gate was open before")
	})
}

// committed counts the records that a consumer of committed ones gets.
func committed(t *testing.T, s *source, num int32) (n int) {
	t.Helper()
	for _, err := range s.partition("orders", num).Records(t.Context(), 0) {
		require.NoError(t, err)
		n++
	}
	return n
}

func TestKIP_4_7_OutOfRange(t *testing.T) {
	kip(t, "an offset beyond the source's end is divergence, not a reset to its end", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		a.write("orders", 0, 1, 1, 1)
		caughtUp(t, m)
		require.NoError(t, a.partition("orders", 0).Truncate(t.Context(), 11)) // lost without an election
		eventually(t, "cut", func() bool { return state(t, m, "orders", 0).Totals.Cuts > 0 })
		caughtUp(t, m)
		require.Equal(t, mirror.Totals{Cut: 2, Cuts: 1}, state(t, m, "orders", 0).Totals)
		a.write("orders", 0, 1, 1)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
	})
	kip(t, "the first batch may begin before the wanted offset", func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 1)
		a.write("orders", 0, 10, 10)
		require.NoError(t, a.partition("orders", 0).AdvanceStart(t.Context(), 13))
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		st := state(t, m, "orders", 0)
		require.Equal(t, [2]int64{13, 20}, [2]int64{st.Start, st.End})
		require.Len(t, records(t, b, 13), 7)
		require.Equal(t, content(t, a.partition("orders", 0), 13), content(t, b.partition("orders", 0), 13), "the whole batch is kept")
	})
	kip(t, "gaps of a compacted source stay gaps", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		log, err := a.host.OpenLog(t.Context(), "orders", 0)
		require.NoError(t, err)
		for _, base := range []int64{15, 100, 103, 500} {
			raw := plain(3)
			batch.SetBase(raw, base)
			require.NoError(t, log.Append(t.Context(), raw))
		}
		a.write("orders", 0, 1)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
		require.Equal(t, int64(504), state(t, m, "orders", 0).End)
	})
	kip(t, "an empty partition is mirrored, and begins where the source's does", func(t *testing.T) {
		a, b := newSource(t), newSource(t)
		a.create("orders", 2)
		a.write("orders", 1, 10)
		require.NoError(t, a.partition("orders", 1).AdvanceStart(t.Context(), 10)) // all of it
		m := linked(t, "dr", b, a)
		addOrders(t, m)
		for num, at := range []int64{0, 10} {
			st := state(t, m, "orders", int32(num))
			require.Equal(t, [2]int64{at, at}, [2]int64{st.Start, st.End})
			eventually(t, "well", func() bool { return state(t, m, "orders", int32(num)).Health == mirror.OK })
		}
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.Equal(t, mirror.Position{Epoch: -1, Offset: 0}, *state(t, m, "orders", 0).Position)
	})
}

// records are those that a consumer gets from an offset on.
func records(t *testing.T, s *source, from int64) (offsets []int64) {
	t.Helper()
	for msg, err := range s.partition("orders", 0).Records(t.Context(), from) {
		require.NoError(t, err)
		offsets = append(offsets, msg.Offset)
	}
	return offsets
}

func TestKIP_5_ProducersAndTransactions(t *testing.T) {
	kip(t, "a chain carries the reset of its first link, and consumers never see it", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		c := newSource(t)
		next := linked(t, "next", c, b)
		addOrders(t, next)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 2)
		caughtUp(t, next)
		equal(t, b, c, "orders", 1)
		_, end := a.partition("orders", 0).Bounds()
		require.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, end + 1, end + 2}, records(t, c, 0))
		require.NoError(t, next.Remove(within(t, time.Minute), "orders"))
		require.Equal(t, 12, committed(t, c, 0))
	})
	kip(t, "an aborted transaction that was mirrored whole is left out by the index that was built here", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		p := a.partition("orders", 0)
		for _, pid := range []int64{5, 6, 7} { // interleaved
			appendTo(t, p, produced(2, pid, true))
		}
		for pid, kind := range map[int64]int16{5: batch.ControlAbort, 6: batch.ControlCommit, 7: batch.ControlAbort} {
			appendTo(t, p, batch.AppendControl(nil, 0, 0, pid, 0, batch.Control{Type: kind}, 0))
		}
		caughtUp(t, m)
		require.Equal(t, 12, committed(t, b, 0))
		want, err := p.Aborted(t.Context(), 0, 19)
		require.NoError(t, err)
		got, err := b.partition("orders", 0).Aborted(t.Context(), 0, 19)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Len(t, got, 2)
	})
	kip(t, "readers of committed records are bounded by what is stable here", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		appendTo(t, a.partition("orders", 0), produced(2, 5, true))
		a.write("orders", 0, 3)
		caughtUp(t, m)
		lso, err := b.partition("orders", 0).LastStableOffset(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(10), lso)
		require.Equal(t, 10, committed(t, b, 0))
	})
}

func TestKIP_7_1_SourceReplaced(t *testing.T) {
	kip(t, "another cluster behind the address fails all partitions, and what is here stays", func(t *testing.T) {
		a, b, m := mirrored(t, 2)
		require.NoError(t, m.Close())
		stranger := newSource(t)
		stranger.create("orders", 2)
		stranger.write("orders", 0, 50)
		m, err := b.c.Mirror("dr", stranger.broker.Source())
		require.NoError(t, err)
		require.NoError(t, m.Start(t.Context()))
		for num := range int32(2) {
			st := inState(t, m, num, mirror.Failed)
			require.True(t, st.NeedsDecision)
			require.Contains(t, st.Reason, mirror.ErrWrongCluster.Error())
			require.Equal(t, int64(10), st.End)
		}
		require.ErrorIs(t, m.AddTopics(t.Context(), "payments"), mirror.ErrWrongCluster)
		require.NoError(t, m.Close())
		_, err = b.c.Mirror("dr", mirror.Source{Addr: a.broker.Source().Addr, ClusterID: stranger.host.ClusterID()})
		require.ErrorIs(t, err, mirror.ErrWrongCluster)

		m = linked(t, "dr", b, a) // the right one again
		require.NoError(t, m.Recover(t.Context(), "orders"))
		a.write("orders", 0, 1)
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		equal(t, a, b, "orders", 2)
	})
	kip(t, "a host never mirrors itself", func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 1)
		require.ErrorIs(t, linked(t, "self", a, a).AddTopics(t.Context(), "orders"), mirror.ErrWrongCluster)
		require.NoError(t, a.c.CheckWrite("orders", 0))
	})
}

func TestKIP_9_StateTopic(t *testing.T) {
	// Rows "__mirror_state has 50 partitions" and "Record types": one partition; the documents' two types among our own.
	kip(t, "holds the documents' two records", func(t *testing.T) {
		_, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		topics, err := b.host.Topics(t.Context())
		require.NoError(t, err)
		i := slices.IndexFunc(topics, func(x mirror.Topic) bool { return x.Name == "__mirror_state" })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, int32(1), topics[i].Partitions)
		var states []int8
		var position []byte
		for _, r := range stateRecords(t, b.host) {
			if r.typ == 2 {
				position = r.value[2:]
			} else if s := int8(r.value[2]); len(states) == 0 || states[len(states)-1] != s {
				states = append(states, s)
			}
		}
		require.Equal(t, []int8{0, 3, 6, 7}, states)
		require.Len(t, position, 12)
		require.Equal(t, int32(0), int32(binary.BigEndian.Uint32(position)))
		require.Equal(t, int64(10), int64(binary.BigEndian.Uint64(position[4:])))
	})
	kip(t, "the position outlives the round", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Close())
		require.NoError(t, b.broker.Close())
		require.NoError(t, b.c.Close())
		c := sourceOn(t, b.host)
		c.write("orders", 0, 2)
		back := linked(t, "back", a, c)
		addOrders(t, back)
		equal(t, a, c, "orders", 1)
		require.Zero(t, state(t, back, "orders", 0).Totals)
	})
}

func TestKIP_10_5_Lag(t *testing.T) {
	kip(t, "is unknown, never 0, before the source has answered", func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Close())
		require.NoError(t, a.broker.Close())
		detached, err := b.c.Detached("dr")
		require.NoError(t, err)
		st := state(t, detached, "orders", 0)
		require.Equal(t, int64(-1), st.Lag)
		require.Negative(t, st.LagTime)
		require.Regexp(t, `orders +0 +MIRRORING +\w+ +0 +\d+ +- +- +-`, detached.Describe().String())
	})
}
