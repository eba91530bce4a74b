package mirror_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/memlog"
)

func TestMirrorIsTheSourceByteForByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t, broker.Nodes(3))
		s.create("orders", 3)
		for num := range int32(3) {
			s.write("orders", num, 1, 2, 3, 50, 1)
		}
		m := mirrorOrders(t, s, memlog.New())
		requireSame(t, s, m, "orders", 3)

		s.write("orders", 1, 7, 7) // and what comes later
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 3)
		st := state(t, m, "orders", 1)
		require.Equal(t, mirror.Mirroring, st.State)
		require.Equal(t, mirror.OK, st.Health)
		require.Zero(t, st.Lag)
		require.GreaterOrEqual(t, st.LeaderEpoch, st.SourceEpoch)
	})
}

func TestMirrorHasTheSourcesTopicIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 2)
		host := memlog.New()
		m := newMirror(t, s, host)
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		theirs, err := s.host.Topics(t.Context())
		require.NoError(t, err)
		ours, err := host.Topics(t.Context())
		require.NoError(t, err)
		ids := func(list []mirror.Topic) map[string]mirror.TopicID {
			ids := make(map[string]mirror.TopicID)
			for _, x := range list {
				ids[x.Name] = x.ID
			}
			return ids
		}
		require.Equal(t, ids(theirs)["orders"], ids(ours)["orders"])
		require.NotZero(t, ids(ours)["orders"])
	})
}

func TestMirrorGoesOnAtTheLogEndAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.write("orders", 0, 5, 5)
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		require.NoError(t, m.Close())

		s.write("orders", 0, 3)
		m = newMirror(t, s, host)
		require.NoError(t, m.AddTopics(t.Context(), "orders"), "harmless to repeat at every boot")
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 1)
		require.Less(t, state(t, m, "orders", 0).Bytes, int64(len(content(t, s.partition("orders", 0), 0))), "only what was new was fetched")
	})
}

func TestMirrorSurvivesACrashWithALostTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.write("orders", 0, 5, 5, 5, 5)
		host := memlog.New()
		mirrorOrders(t, s, host)
		for seed := range uint64(20) {
			crashed := host.Crash(rng(seed))
			again := newMirror(t, s, crashed)
			caughtUp(t, again)
			requireSame(t, s, again, "orders", 1)
			require.NoError(t, again.Close())
		}
	})
}

func TestStartWorksWithTheSourceDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.create("payments", 1)
		s.write("orders", 0, 5)
		host := memlog.New()
		m := mirrorOrders(t, s, host)
		require.NoError(t, m.Close())

		down := mirror.Source{Addr: kafka.TCP("kafka-1:9092"), Transport: &kafka.Transport{
			Dial: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED },
		}}
		m, err := mirror.New(t.Context(), "dr", down, host)
		require.NoError(t, err)
		defer m.Close()
		require.NoError(t, m.Start(t.Context()))
		require.NoError(t, m.AddTopics(t.Context(), "orders"), "known topics need no source")
		err = m.AddTopics(t.Context(), "payments", "orders")
		require.ErrorIs(t, err, mirror.ErrSourceUnreachable)
		var te *mirror.TopicError
		require.ErrorAs(t, err, &te)
		require.Equal(t, "payments", te.Topic)
		require.Len(t, m.Describe().Topics, 1, "nothing of it is stored")
		eventually(t, "unreachable", func() bool { return state(t, m, "orders", 0).Health == mirror.Unreachable })
		require.Equal(t, mirror.Mirroring, state(t, m, "orders", 0).State, "health is not state")
		require.NotEmpty(t, state(t, m, "orders", 0).Reason)
	})
}

func TestWhatCannotBeAddedIsRefusedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.create("known", 2)
		s.write("known", 0, 3)
		host := memlog.New()
		require.NoError(t, host.EnsureTopic(t.Context(), mirror.Topic{Name: "known", Partitions: 2}))
		m := newMirror(t, s, host)

		err := m.AddTopics(t.Context(), "missing", "__consumer_offsets", "known", "orders")
		require.ErrorIs(t, err, mirror.ErrUnknownTopic)
		require.ErrorIs(t, err, mirror.ErrInternalTopic)
		require.ErrorIs(t, err, mirror.ErrTopicConflict)
		require.ErrorContains(t, err, "missing")
		caughtUp(t, m, "orders") // each topic has its own result
		require.NoError(t, m.Coordinator().CheckWrite("known", 0), "the gate of what was refused is open again")

		other, err := m.Coordinator().Mirror("second", s.broker.Source())
		require.NoError(t, err)
		require.ErrorIs(t, other.AddTopics(t.Context(), "orders"), mirror.ErrTopicOwned)
	})
}

func TestRecordsHereAreAdoptedOnlyOnProof(t *testing.T) {
	for _, c := range []struct {
		name    string
		ours    func(*source, *mirror.Partition)
		adopted bool
	}{
		{"a true copy", nil, true},
		{"a copy that is longer", func(s *source, p *mirror.Partition) { appendTo(s.t, p, plain(1)) }, false},
		{"other bytes in the last batch", func(s *source, p *mirror.Partition) {
			_, end := p.Bounds()
			require.NoError(s.t, p.Truncate(s.t.Context(), end-1))
			appendTo(s.t, p, produced(1, 77, false))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSource(t)
				s.create("orders", 1)
				s.write("orders", 0, 3, 4, 1)

				// The state is lost and the data are kept: the logs are there, no mirror knows them.
				host := memlog.New()
				topics, err := s.host.Topics(t.Context())
				require.NoError(t, err)
				for _, x := range topics {
					if x.Name == "orders" {
						require.NoError(t, host.EnsureTopic(t.Context(), x))
					}
				}
				c1, err := mirror.Open(t.Context(), host)
				require.NoError(t, err)
				p := open(t, c1, "orders", 0)
				appendTo(t, p, content(t, s.partition("orders", 0), 0))
				if c.ours != nil {
					c.ours(s, p)
				}
				start, end := p.Bounds()
				require.NoError(t, c1.Close())

				m := newMirror(t, s, host)
				err = m.AddTopics(t.Context(), "orders")
				if c.adopted {
					require.NoError(t, err)
					s.write("orders", 0, 2)
					caughtUp(t, m)
					requireSame(t, s, m, "orders", 1)
					return
				}
				require.ErrorIs(t, err, mirror.ErrNoProof)
				var re *mirror.RangeError
				require.ErrorAs(t, err, &re)
				require.Equal(t, []mirror.Range{{Partition: 0, From: start, To: end}}, re.Ranges)
				_, now := open(t, m.Coordinator(), "orders", 0).Bounds()
				require.Equal(t, end, now, "nothing was cut")
				require.NoError(t, m.Coordinator().CheckWrite("orders", 0), "the topic is as it was")
			})
		})
	}
}

func appendTo(t *testing.T, p *mirror.Partition, batches []byte) {
	t.Helper()
	_, err := p.Append(t.Context(), batches)
	require.NoError(t, err)
}

func TestMirrorTopicIsReadOnlyInEveryStateAndAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		host := memlog.New()
		m := newMirror(t, s, host)
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		closed := func() {
			t.Helper()
			var ro *mirror.ReadOnlyError
			require.ErrorAs(t, m.Coordinator().CheckWrite("orders", 0), &ro)
			require.Equal(t, "dr", ro.Mirror)
			_, err := open(t, m.Coordinator(), "orders", 0).Append(t.Context(), plain(1))
			require.ErrorAs(t, err, &ro)
			_, _, err = m.Coordinator().BeginWrite(t.Context(), "orders", 0)
			require.ErrorAs(t, err, &ro)
			require.ErrorAs(t, open(t, m.Coordinator(), "orders", 0).Truncate(t.Context(), 0), &ro)
			require.ErrorAs(t, open(t, m.Coordinator(), "orders", 0).AdvanceStart(t.Context(), 1), &ro)
		}
		closed()
		caughtUp(t, m)
		closed()
		require.NoError(t, m.Pause(t.Context(), "orders"))
		eventually(t, "paused", func() bool { return state(t, m, "orders", 0).State == mirror.Paused })
		closed()
		require.NoError(t, m.Close())

		c, err := mirror.Open(t.Context(), host) // with no source attached
		require.NoError(t, err)
		defer c.Close()
		require.Equal(t, []string{"dr"}, c.Mirrors())
		var ro *mirror.ReadOnlyError
		require.ErrorAs(t, c.CheckWrite("orders", 0), &ro)
	})
}

func TestPauseHoldsAndResumeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOrders(t, 5)
		m := mirrorOrders(t, s, memlog.New())
		require.NoError(t, m.Pause(t.Context(), "orders"))
		require.NoError(t, m.Pause(t.Context(), "orders"), "pausing a paused topic changes nothing")
		eventually(t, "paused", func() bool { return state(t, m, "orders", 0).State == mirror.Paused })
		require.ErrorIs(t, m.WaitCaughtUp(t.Context()), mirror.ErrPaused)
		s.write("orders", 0, 5)
		pass(time.Hour)
		require.Equal(t, int64(5), state(t, m, "orders", 0).End)

		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 1)
		require.ErrorIs(t, m.Pause(t.Context(), "nothing"), mirror.ErrUnknownTopic)
	})
}

func TestPartitionsAddedAtTheSourceBeginAtTheirStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOrders(t, 5)
		m := mirrorOrders(t, s, memlog.New(), mirror.StartAtEnd())
		require.Equal(t, int64(5), state(t, m, "orders", 0).Start, "StartAtEnd")

		s.create("orders", 3)
		s.write("orders", 2, 500)
		eventually(t, "three partitions", func() bool { return len(m.Describe().Topics[0].Partitions) == 3 })
		caughtUp(t, m)
		st := state(t, m, "orders", 2)
		require.Equal(t, int64(0), st.Start)
		require.Equal(t, int64(500), st.End)
	})
}

func TestLogStartFollowsTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.write("orders", 0, 10, 10, 10)
		m := mirrorOrders(t, s, memlog.New())
		require.NoError(t, s.partition("orders", 0).AdvanceStart(t.Context(), 15)) // inside a batch
		s.write("orders", 0, 1)
		eventually(t, "start 15", func() bool { return state(t, m, "orders", 0).Start == 15 })
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 1)
		require.Zero(t, state(t, m, "orders", 0).Totals, "the source dropped it too")

		require.NoError(t, s.partition("orders", 0).AdvanceStart(t.Context(), 31)) // all of it
		eventually(t, "start 31", func() bool { return state(t, m, "orders", 0).Start == 31 })
		s.write("orders", 0, 2)
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 1)
	})
}

func TestRetentionThatOvertakesAPausedMirrorIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOrders(t, 100)
		ev := new(events)
		m := mirrorOrders(t, s, memlog.New(), mirror.OnEvent(ev.add))
		require.NoError(t, m.Pause(t.Context(), "orders"))
		eventually(t, "paused", func() bool { return state(t, m, "orders", 0).State == mirror.Paused })
		s.write("orders", 0, 400, 10)
		require.NoError(t, s.partition("orders", 0).AdvanceStart(t.Context(), 500))
		require.NoError(t, m.Resume(t.Context(), "orders"))
		caughtUp(t, m)
		st := state(t, m, "orders", 0)
		require.Equal(t, int64(500), st.Start)
		require.Equal(t, int64(510), st.End)
		require.Equal(t, mirror.Totals{Lost: 400, Cuts: 1}, st.Totals)
		synctest.Wait()
		lost := ev.of(mirror.DataLoss)
		require.Len(t, lost, 1)
		require.Equal(t, [2]int64{100, 500}, [2]int64{lost[0].From, lost[0].To})
	})
}

// An unclean election loses a tail at the source, and others are written at the same offsets: nothing but epochs can tell.
func TestUncleanElectionAtTheSourceIsCutAndRefilled(t *testing.T) {
	for name, fetch := range map[string]int16{"newest": -1, "2.3": 11, "2.1": 10} { // the older ones don't say when fetching that logs have parted
		for _, when := range []string{"while mirroring", "while idle", "while paused", "while down"} {
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { uncleanElection(t, when, fetch) })
			})
		}
	}
}

func uncleanElection(t *testing.T, when string, fetch int16) {
	s := newOrders(t, 10, broker.Nodes(2))
	require.NoError(t, s.broker.Elect("orders", 0, 1, false))
	src := s.broker.Source()
	if fetch >= 0 {
		p := s.peer()
		p.speaks(map[int16]int16{kmsg.Fetch.Int16(): fetch, kmsg.OffsetForLeaderEpoch.Int16(): 2})
		src = p.Source()
	}
	host, ev := memlog.New(), new(events)
	m := mirrorOf(t, src, host, mirror.OnEvent(ev.add))
	require.NoError(t, m.AddTopics(t.Context(), "orders"))
	s.write("orders", 0, 1, 1, 1)
	caughtUp(t, m)
	switch when {
	case "while paused":
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Paused)
	case "while down":
		require.NoError(t, m.Close())
	}
	require.NoError(t, s.broker.Lag("orders", 0, 2, 11))
	require.NoError(t, s.broker.Elect("orders", 0, 2, true))
	if when != "while idle" {
		s.write("orders", 0, 1, 1, 1, 1) // the same offsets again, and beyond
	}
	switch when {
	case "while paused":
		require.NoError(t, m.Resume(t.Context(), "orders"))
	case "while down":
		m = mirrorOf(t, src, host, mirror.OnEvent(ev.add))
	}
	eventually(t, "cut", func() bool { return state(t, m, "orders", 0).Totals.Cuts > 0 })
	caughtUp(t, m)
	requireSame(t, s, m, "orders", 1)
	require.Equal(t, mirror.Totals{Cut: 2, Cuts: 1}, state(t, m, "orders", 0).Totals)
	synctest.Wait()
	cut := ev.of(mirror.Truncated)
	require.Len(t, cut, 1)
	require.Equal(t, [2]int64{11, 13}, [2]int64{cut[0].From, cut[0].To})
	require.NotEmpty(t, cut[0].Reason)
}

func TestFailOnDivergenceCutsNothingUntilRecover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t, broker.Nodes(2))
		s.create("orders", 1)
		s.write("orders", 0, 10, 1, 1)
		m := mirrorOrders(t, s, memlog.New(), mirror.FailOnDivergence())
		require.NoError(t, s.broker.Lag("orders", 0, 2, 10))
		require.NoError(t, s.broker.Elect("orders", 0, 2, true))
		s.write("orders", 0, 1)
		eventually(t, "failed", func() bool { return state(t, m, "orders", 0).State == mirror.Failed })
		st := state(t, m, "orders", 0)
		require.Equal(t, int64(12), st.End)
		require.True(t, st.NeedsDecision)
		require.Contains(t, st.Reason, "[10, 12)")
		pass(time.Hour)
		require.Equal(t, int64(12), state(t, m, "orders", 0).End, "nobody decided")
		require.ErrorIs(t, m.WaitCaughtUp(t.Context()), mirror.ErrFailed)

		require.NoError(t, m.Recover(t.Context(), "orders"))
		eventually(t, "mirroring", func() bool { return state(t, m, "orders", 0).State == mirror.Mirroring })
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 1)
	})
}

// Recover allows the cut that the failure names: not the next one, nor one that has become larger since.
func TestRecoverAllowsTheCutThatIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t, broker.Nodes(2))
		s.create("orders", 1)
		s.write("orders", 0, 10, 1, 1)
		m := mirrorOrders(t, s, memlog.New(), mirror.FailOnDivergence())
		lose := func(node int32, end int64) { // an unclean election, after which nothing is written
			require.NoError(t, s.broker.Lag("orders", 0, node, end))
			require.NoError(t, s.broker.Elect("orders", 0, node, true))
		}
		named := func(cut string) {
			t.Helper()
			eventually(t, cut, func() bool { return strings.Contains(state(t, m, "orders", 0).Reason, cut+" would be dropped") })
		}
		lose(2, 11)
		named("[11, 12)")
		lose(1, 10)
		require.NoError(t, m.Recover(t.Context(), "orders"))
		named("[10, 12)")
		require.Equal(t, int64(12), state(t, m, "orders", 0).End, "more would go than was named")
		require.NoError(t, m.Recover(t.Context(), "orders"))
		inState(t, m, 0, mirror.Mirroring)
		require.Equal(t, int64(10), state(t, m, "orders", 0).End)
		lose(2, 0)
		named("[0, 10)")
		pass(time.Hour)
		require.Equal(t, int64(10), state(t, m, "orders", 0).End, "that was another one")

		// Asked again after a restart, in whose words it stands still.
		require.NoError(t, m.Recover(t.Context(), "orders"))
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 1)
	})
}

// A leader that was deposed and does not know it yet: a mirror that comes up, and finds it first, holds records of a later epoch than its.
// Nothing that it answers cuts them.
func TestADeposedLeadersAnswersCutNothing(t *testing.T) {
	for name, restored := range map[string]bool{"deposed": false, "the source was restored from a backup": true} {
		t.Run(name, func(t *testing.T) { inBubble(t, func(t *testing.T) { lowerEpoch(t, restored) }) })
	}
}

// parted is a source with a leader that was deposed and does not know it, and what is mirrored of it: 10 records of both, 5 of a later
// epoch. turn has the one or the other answer.
func parted(t *testing.T, opts ...mirror.Option) (s, deposed *source, src mirror.Source, host *memlog.Host, m *mirror.Mirror, turn func(*source)) {
	t.Helper()
	s = newSource(t, broker.Nodes(2))
	s.create("orders", 1)
	s.write("orders", 0, 10)
	require.NoError(t, s.broker.Elect("orders", 0, 1, false))
	then, err := copyOf(t.Context(), s.host)
	require.NoError(t, err)
	deposed = sourceOn(t, then, broker.Nodes(2))
	for _, node := range []int32{2, 1, 2} { // the deposed one may go on: it begins with one more
		require.NoError(t, s.broker.Elect("orders", 0, node, false))
	}
	host = memlog.New()
	src, move := movable(t, s)
	m = mirrorOf(t, src, host, opts...)
	require.NoError(t, m.AddTopics(t.Context(), "orders"))
	s.write("orders", 0, 5)
	caughtUp(t, m)
	return s, deposed, src, host, m, func(to *source) {
		if to == s {
			move(s)
			return
		}
		again, err := broker.New(s.c, broker.Nodes(2)) // the one that is moved away from is closed
		require.NoError(t, err)
		move(to)
		s.broker = again
	}
}

func lowerEpoch(t *testing.T, restored bool) {
	s, deposed, src, host, m, turn := parted(t)
	require.NoError(t, m.Close())
	turn(deposed)
	m = mirrorOf(t, src, host)
	pass(time.Hour)
	st := state(t, m, "orders", 0)
	require.Equal(t, int64(15), st.End)
	require.Equal(t, mirror.Failed, st.State)
	require.False(t, st.NeedsDecision, "it is tried again by itself")
	require.Contains(t, st.Reason, "the source's leader epoch is 1, and what is here has 4")
	if restored {
		require.NoError(t, m.Recover(t.Context(), "orders"))
		inState(t, m, 0, mirror.Mirroring)
		require.Equal(t, mirror.Totals{Cut: 5, Cuts: 1}, state(t, m, "orders", 0).Totals)
		return
	}
	turn(s)
	inState(t, m, 0, mirror.Mirroring)
	caughtUp(t, m)
	requireSame(t, s, m, "orders", 1)
	require.Zero(t, state(t, m, "orders", 0).Totals)
}

// The source is put back to an older state while the mirror runs: it is asked under the leader epoch that it has now, as after a restart.
func TestASourceThatIsPutBackIsFollowedWithoutARestart(t *testing.T) {
	t.Run("with records that it has lost", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			_, deposed, _, _, m, turn := parted(t)
			turn(deposed)
			require.Contains(t, inState(t, m, 0, mirror.Failed).Reason, "Recover compares them all the same")
			require.NoError(t, m.Recover(t.Context(), "orders"))
			inState(t, m, 0, mirror.Mirroring)
			require.Equal(t, mirror.Totals{Cut: 5, Cuts: 1}, state(t, m, "orders", 0).Totals)
			deposed.write("orders", 0, 1)
			caughtUp(t, m)
			requireSame(t, deposed, m, "orders", 1)
		})
	})
	t.Run("with nothing lost", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			s, host := newOrders(t, 10), memlog.New()
			then, err := copyOf(t.Context(), s.host)
			require.NoError(t, err)
			restored := sourceOn(t, then)
			_, err = s.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 1000)
			require.NoError(t, err)
			src, move := movable(t, s)
			m := mirrorOf(t, src, host)
			addOrders(t, m)
			move(restored)
			restored.write("orders", 0, 5)
			caughtUp(t, m)
			requireSame(t, restored, m, "orders", 1)
			require.Zero(t, state(t, m, "orders", 0).Totals)
		})
	})
}

// A peer that adds its topics asks for one after the other: what that costs must not grow with all the others.
func TestDescribeOfChosenTopics(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s, host := newSource(t), memlog.New()
		names := []string{"a", "b", "c"}
		for _, name := range names {
			s.create(name, 2)
		}
		m := newMirror(t, s, host)
		require.NoError(t, m.AddTopics(t.Context(), names...))
		named := func(list []mirror.Status) (names []string) {
			require.Len(t, list, 1)
			for _, x := range list[0].Topics {
				require.Len(t, x.Partitions, 2)
				names = append(names, x.Name)
			}
			return names
		}
		require.Equal(t, names, named(m.Coordinator().Describe()))
		require.Equal(t, []string{"a", "c"}, named(m.Coordinator().Describe(topicID(t, s.host, "c"), topicID(t, s.host, "a"))))
		require.Empty(t, named(m.Coordinator().Describe(mirror.TopicID{1})))
	})
}

// What is tried again by itself is not FAILED for a moment, time and again: Recover counts then too.
func TestRecoverCountsWhileTheFailureIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, deposed, src, host, m, turn := parted(t)
		require.NoError(t, m.Close())
		turn(deposed)
		m = mirrorOf(t, src, host)
		inState(t, m, 0, mirror.Failed)
		var once sync.Once
		called := make(chan error, 1)
		host.Fail(func(_ context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpSync && topic == mirror.StateTopic && state(t, m, "orders", 0).State == mirror.Preparing {
				once.Do(func() { called <- m.Recover(t.Context(), "orders") })
			}
			return nil
		})
		require.NoError(t, <-called)
		inState(t, m, 0, mirror.Mirroring)
	})
}

// The logs have parted and end at the same offset, and the fetch that would tell takes long after a restart: that is not all that the
// source has, and least of all may it be taken over as that.
func TestALogThatHasPartedIsNotAllThatTheSourceHas(t *testing.T) {
	for name, ends := range map[string]func(context.Context, *mirror.Mirror) error{
		"WaitCaughtUp": func(ctx context.Context, m *mirror.Mirror) error { return m.WaitCaughtUp(ctx) },
		"Promote":      func(ctx context.Context, m *mirror.Mirror) error { return m.Promote(ctx, "orders") },
	} {
		t.Run(name+", deposed leader", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				_, deposed, src, host, m, turn := parted(t)
				deposed.write("orders", 0, 5)
				require.NoError(t, m.Close())
				turn(deposed)
				m = mirrorOf(t, slowFetches(src), host)
				require.Error(t, ends(within(t, time.Hour), m))
				require.Error(t, m.Coordinator().CheckWrite("orders", 0))
			})
		})
		t.Run(name+", unclean election", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s, _, src, host, m, _ := parted(t)
				require.NoError(t, m.Close())
				require.NoError(t, s.broker.Lag("orders", 0, 1, 10))
				require.NoError(t, s.broker.Elect("orders", 0, 1, true))
				s.write("orders", 0, 5)
				m = mirrorOf(t, slowFetches(src), host)
				require.NoError(t, ends(within(t, time.Hour), m))
				require.Equal(t, int64(5), state(t, m, "orders", 0).Totals.Cut)
				all := content(t, s.partition("orders", 0), 0)
				require.Equal(t, all, content(t, open(t, m.Coordinator(), "orders", 0), 0)[:len(all)])
			})
		})
	}
}

// slowFetches has each fetch take a while, and nothing else.
func slowFetches(src mirror.Source) mirror.Source {
	dial := src.Transport.Dial
	src.Transport = &kafka.Transport{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return slowFetch{c}, err
	}}
	return src
}

type slowFetch struct{ net.Conn }

func (c slowFetch) Write(b []byte) (int, error) {
	if len(b) > 6 && b[4] == 0 && b[5] == 1 { // Fetch
		pass(5 * time.Second)
	}
	return c.Conn.Write(b)
}

// Two words are needed, one for the leader and one for the cut: the second does not take the first back.
func TestRecoverOfOneFailureKeepsWhatItAllowedBefore(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, deposed, src, host, m, turn := parted(t, mirror.FailOnDivergence())
		require.NoError(t, m.Close())
		turn(deposed)
		m = mirrorOf(t, src, host, mirror.FailOnDivergence())
		for _, reason := range []string{"Recover compares them all the same", "[10, 15) would be dropped"} {
			pass(5 * time.Minute)
			require.Contains(t, inState(t, m, 0, mirror.Failed).Reason, reason)
			require.NoError(t, m.Recover(t.Context(), "orders"))
		}
		inState(t, m, 0, mirror.Mirroring)
		require.Equal(t, mirror.Totals{Cut: 5, Cuts: 1}, state(t, m, "orders", 0).Totals)
	})
}

func TestLeaderMovesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t, broker.Nodes(3))
		s.create("orders", 3)
		m := newMirror(t, s, memlog.New())
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		for i := range 12 {
			for num := range int32(3) {
				s.write("orders", num, 3)
			}
			require.NoError(t, s.broker.Elect("orders", int32(i%3), int32(1+(i/2)%3), false))
		}
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 3)
	})
}

func TestFullDiskFailsOnePartitionAndMendsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 2)
		host := memlog.New()
		full := errors.New("no space left on device")
		var mu sync.Mutex
		broken := true
		host.Fail(func(_ context.Context, op memlog.Op, topic string, partition int32) error {
			mu.Lock()
			defer mu.Unlock()
			if broken && op == memlog.OpAppend && topic == "orders" && partition == 1 {
				return full
			}
			return nil
		})
		m := newMirror(t, s, host)
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		s.write("orders", 0, 5)
		s.write("orders", 1, 5)
		eventually(t, "failed", func() bool { return state(t, m, "orders", 1).State == mirror.Failed })
		require.Contains(t, state(t, m, "orders", 1).Reason, full.Error())
		require.Contains(t, state(t, m, "orders", 1).Reason, "orders-1")
		require.False(t, state(t, m, "orders", 1).NeedsDecision)
		eventually(t, "the other goes on", func() bool { return state(t, m, "orders", 0).End == 5 })
		mu.Lock()
		broken = false
		mu.Unlock()
		eventually(t, "mended", func() bool { return state(t, m, "orders", 1).State == mirror.Mirroring })
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 2)
	})
}

// Partitions that the source has added are waited for, and moved, though no refresh is due for long.
func TestAddedPartitionsAreWaitedFor(t *testing.T) {
	for what, do := range map[string]func(*mirror.Mirror, context.Context, ...string) error{
		"wait": (*mirror.Mirror).WaitCaughtUp, "promote": (*mirror.Mirror).Promote,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSource(t)
			s.create("orders", 1)
			m := mirrorOrders(t, s, memlog.New(), mirror.RefreshInterval(time.Hour))
			pass(time.Minute)
			s.create("orders", 3)
			s.write("orders", 2, 5)
			require.NoError(t, do(m, within(t, time.Minute), "orders"), what)
			require.GreaterOrEqual(t, state(t, m, "orders", 2).End, int64(5), what)
		})
	}
}

func TestSourceTopicDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.create("payments", 1)
		s.write("orders", 0, 5)
		m := newMirror(t, s, memlog.New())
		require.NoError(t, m.AddTopics(t.Context(), "orders", "payments"))
		caughtUp(t, m)
		require.NoError(t, s.host.DeleteTopic(t.Context(), "orders"))
		eventually(t, "failed", func() bool { return state(t, m, "orders", 0).State == mirror.Failed })
		require.Contains(t, state(t, m, "orders", 0).Reason, "deleted at the source")
		require.Error(t, m.Coordinator().CheckWrite("orders", 0), "still read-only")
		require.Equal(t, int64(5), state(t, m, "orders", 0).End, "still readable")
		require.Equal(t, mirror.Mirroring, state(t, m, "payments", 0).State)
		require.NoError(t, m.Remove(t.Context(), "orders"), "and can be removed")
	})
}

func TestCloseCutsALongPollAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		m := mirrorOrders(t, s, memlog.New(), mirror.FetchWait(30*time.Second))
		pass(100 * time.Second)
		before := time.Now()
		require.NoError(t, m.Close())
		require.Less(t, time.Since(before), time.Second)
		require.NoError(t, m.Close(), "twice is harmless")
	})
}

func TestANewerCoordinatorFencesTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		s.create("payments", 1)
		host := memlog.New()
		ev := new(events)
		old := mirrorOrders(t, s, host, mirror.OnEvent(ev.add))
		p, waiting := open(t, old.Coordinator(), "orders", 0), make(chan error, 1)
		go func() { waiting <- p.Wait(t.Context(), 0) }()
		next := newMirror(t, s, host)
		require.ErrorIs(t, old.AddTopics(t.Context(), "payments"), mirror.ErrFenced)
		require.ErrorIs(t, old.Coordinator().CheckWrite("anything", 0), mirror.ErrFenced)
		_, plan := old.PlanRemove(t.Context())
		for _, err := range []error{
			<-waiting, plan, old.Start(t.Context()), old.AddTopics(t.Context(), "orders"), old.WaitCaughtUp(t.Context()),
		} {
			require.ErrorIs(t, err, mirror.ErrFenced)
			require.ErrorContains(t, err, "close this one")
		}
		pass(time.Hour)
		require.Equal(t, mirror.Stalled, state(t, old, "orders", 0).Health)
		require.Contains(t, state(t, old, "orders", 0).Reason, mirror.ErrFenced.Error())
		require.Len(t, ev.of(mirror.HealthChanged), 1, "%v", ev.of(mirror.HealthChanged))
		require.ErrorIs(t, ev.of(mirror.HealthChanged)[0].Err, mirror.ErrFenced)
		s.write("orders", 0, 5)
		caughtUp(t, next, "orders")
		requireSame(t, s, next, "orders", 1)
	})
}

// Until it writes to the state the older one does not know that it was replaced, and appends to the same logs.
func TestTwoCoordinatorsOnOneHostMakeOneCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 1)
		host := memlog.New()
		mirrorOrders(t, s, host)
		next := newMirror(t, s, host)
		for range 50 {
			s.write("orders", 0, 1, 2, 3)
			pass(time.Millisecond)
		}
		eventually(t, "the same", func() bool { st := state(t, next, "orders", 0); return st.End == 300 && st.State == mirror.Mirroring })
		requireSame(t, s, next, "orders", 1)
		require.Zero(t, state(t, next, "orders", 0).Totals)
	})
}

func TestOptionsNameEveryMistakeAtOnce(t *testing.T) {
	_, err := mirror.Open(context.Background(), memlog.New(), mirror.ByteBudget(1), mirror.FetchWait(0), mirror.StallAfter(-1))
	require.ErrorContains(t, err, "ByteBudget")
	require.ErrorContains(t, err, "FetchWait")
	require.ErrorContains(t, err, "StallAfter")
	c, err := mirror.Open(context.Background(), memlog.New())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Mirror("no good/", mirror.Source{}, mirror.FetchBytes(1))
	require.ErrorContains(t, err, "mirror name")
	require.ErrorContains(t, err, "Addr")
	require.ErrorContains(t, err, "FetchBytes")
}

// events keeps what OnEvent gets.
type events struct {
	mu   sync.Mutex
	list []mirror.Event
}

func (e *events) add(x mirror.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, x)
}

func (e *events) of(kind mirror.EventKind) (list []mirror.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.list {
		if x.Kind == kind {
			list = append(list, x)
		}
	}
	return list
}
