package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/wire"
	"github.com/clustermirror/mirror/memlog"
)

// Sources that are old, deny, lie or are broken in one point, at the level of a whole mirror.

// A side that has lost its topic, begins it anew from the one that took over, and is taken over before anything came: that is the later
// takeover, and what is written then is not the other's to cut.
func TestATakeoverOfATopicOfWhichNothingHasComeIsTheLaterOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, m := mirrored(t, 1)
		require.NoError(t, m.Remove(t.Context(), "orders"))
		require.NoError(t, a.host.DeleteTopic(t.Context(), "orders"))
		p := b.peer()
		alter(p, func(_ *kmsg.ListOffsetsRequest, resp *kmsg.ListOffsetsResponse) {
			resp.Topics[0].Partitions[0].ErrorCode = int16(kafka.LeaderNotAvailable)
		})
		alter(p, func(_ *kmsg.OffsetForLeaderEpochRequest, resp *kmsg.OffsetForLeaderEpochResponse) {
			resp.Topics[0].Partitions[0].ErrorCode = int16(kafka.LeaderNotAvailable)
		})
		back, err := a.c.Mirror("back", p.Source())
		require.NoError(t, err)
		require.NoError(t, back.Start(t.Context()))
		require.NoError(t, back.AddTopics(t.Context(), "orders"))
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
		require.Equal(t, &mirror.Position{Epoch: 1, Offset: 0}, state(t, back, "orders", 0).Position)
		a.write("orders", 0, 5)
		p.honest()
		require.ErrorIs(t, back.AddTopics(t.Context(), "orders"), mirror.ErrStopped)
		_, end := a.partition("orders", 0).Bounds()
		require.Equal(t, int64(6), end, "the reset, and what was written")
	})
}

// torn is a failback that is due: b took over from a at offset 10, both have gone on, a by [10, 13), and back asks b through p.
func torn(t *testing.T) (a, b *source, p *peer, back *mirror.Mirror) {
	t.Helper()
	a, b, m := mirrored(t, 1)
	require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
	a.write("orders", 0, 1, 1, 1)
	b.write("orders", 0, 4)
	p = b.peer()
	back, err := a.c.Mirror("back", p.Source())
	require.NoError(t, err)
	require.NoError(t, back.Start(t.Context()))
	return a, b, p, back
}

// untouched says that a failback was refused: a is as torn has left it.
func untouched(t *testing.T, a *source, back *mirror.Mirror) {
	t.Helper()
	require.Empty(t, back.Describe().Topics)
	require.NoError(t, a.c.CheckWrite("orders", 0))
	require.Len(t, records(t, a, 0), 13)
}

// cutAt10 says that a failback was done: exactly what was never mirrored is gone.
func cutAt10(t *testing.T, a, b *source, back *mirror.Mirror) {
	t.Helper()
	caughtUp(t, back)
	equal(t, a, b, "orders", 1)
	require.Equal(t, mirror.Totals{Cut: 3, Cuts: 1}, state(t, back, "orders", 0).Totals)
}

// A peer that knows the older question for positions only: without epochs its answers align nothing, not even what they would keep.
func TestOffsetsWithoutEpochsAlignNothing(t *testing.T) {
	onlyOffsets := map[int16]int16{wire.KeyDescribeMirrors: -1, wire.KeyLastMirroredOffsets: 0}
	t.Run("what they would cut is refused", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			p.speaks(onlyOffsets)
			err := back.AddTopics(t.Context(), "orders")
			require.ErrorIs(t, err, mirror.ErrNoProof)
			var re *mirror.RangeError
			require.ErrorAs(t, err, &re)
			require.Equal(t, []mirror.Range{{Partition: 0, From: 0, To: 13}}, re.Ranges)
			untouched(t, a, back)
			require.Positive(t, p.count(wire.KeyLastMirroredOffsets))

			p.speaks(map[int16]int16{wire.KeyDescribeMirrors: -1}) // a newer one: with epochs
			require.NoError(t, back.AddTopics(t.Context(), "orders"))
			cutAt10(t, a, b, back)
		})
	})
	t.Run("what is proven goes on without them", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, m := mirrored(t, 1)
			require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
			p := b.peer()
			p.speaks(onlyOffsets)
			alter(p, func(_ *wire.LastMirroredOffsetsRequest, resp *wire.LastMirroredOffsetsResponse) {
				resp.Topics[0].Partitions[0].Offset = 3
			})
			back, err := a.c.Mirror("back", p.Source())
			require.NoError(t, err)
			require.NoError(t, back.Start(t.Context()))
			addOrders(t, back)
			equal(t, a, b, "orders", 1)
			require.Zero(t, state(t, back, "orders", 0).Totals)
		})
	})
}

// An epoch without an offset: what lies above the epoch is cut, and questions find the rest.
func TestAnEpochWithoutAnOffsetCutsWhatIsAboveIt(t *testing.T) {
	withoutOffset := func(epoch int32) func(*wire.DescribeMirrorsRequest, *wire.DescribeMirrorsResponse) {
		return func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
			part := &resp.Mirrors[0].Topics[0].Partitions[0]
			part.LastMirrorEpoch, part.LastMirrorOffset = epoch, -1
		}
	}
	t.Run("in two steps", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			_, err := a.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 7)
			require.NoError(t, err)
			a.write("orders", 0, 2)
			alter(p, withoutOffset(0))
			addOrders(t, back)
			equal(t, a, b, "orders", 1)
			require.Equal(t, mirror.Totals{Cut: 5, Cuts: 2}, state(t, back, "orders", 0).Totals, "epoch 7 by the position, [10, 13) by the source's epochs")
		})
	})
	t.Run("it never wins against a position", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			_, b, p, back := torn(t)
			alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
				other := resp.Mirrors[0]
				other.Name = "other"
				part := other.Topics[0].Partitions[0]
				part.LastMirrorEpoch, part.LastMirrorOffset = b.partition("orders", 0).LeaderEpoch(), -1
				other.Topics = []wire.DescribedTopic{{Name: "orders", ID: topicID(t, b.host, "orders"), Partitions: []wire.DescribedPartition{part}}}
				resp.Mirrors = append(resp.Mirrors, other)
			})
			plan, err := back.PlanAdd(t.Context(), "orders")
			require.NoError(t, err)
			require.Equal(t, mirror.Position{Epoch: 0, Offset: 10}, plan[0].Position)
			require.Equal(t, []mirror.Range{{Partition: 0, From: 10, To: 13}}, plan[0].Cut)
		})
	})
	t.Run("nor does it undo a takeover", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			require.NoError(t, back.AddTopics(t.Context(), "orders"))
			cutAt10(t, a, b, back)
			require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
			alter(p, withoutOffset(b.partition("orders", 0).LeaderEpoch()))
			require.ErrorIs(t, back.AddTopics(t.Context(), "orders"), mirror.ErrStopped)
			require.NoError(t, a.c.CheckWrite("orders", 0))
		})
	})
}

// A position that one side repeats after the other, who has raised its epoch, is none that the other could not have.
func TestAPositionThatComesBackIsNotUnclear(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, dr := mirrored(t, 1)
		require.NoError(t, dr.Remove(within(t, time.Minute), "orders"))
		mend := failing(a.host, on(memlog.OpAppend, "orders"))
		back := linked(t, "back", a, b)
		require.NoError(t, back.AddTopics(t.Context(), "orders"))
		inState(t, back, 0, mirror.Failed)
		_ = back.Remove(within(t, time.Second), "orders") // nothing came
		mend()
		require.NoError(t, back.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, dr.AddTopics(t.Context(), "orders"))
		failing(b.host, func(memlog.Op, string, int32) bool { return true }) // b crashes before it has aligned
		require.NoError(t, b.broker.Close())
		require.NoError(t, b.c.Close())
		b.host.Fail(nil)
		b = sourceOn(t, b.host)
		m, err := b.c.Detached("dr") // without a
		require.NoError(t, err)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		b.write("orders", 0, 3)
		again := linked(t, "again", a, b)
		require.NoError(t, again.Overwrite(t.Context(), "orders"))
		caughtUp(t, again)
		equal(t, a, b, "orders", 1)
	})
}

// A position that a side has from its peer is below the epoch that it takes over with, also where its own log is empty.
func TestATakeoverGoesAboveThePositionOfItsRound(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b := newOrders(t, 10), newSource(t)
		dr, back := linked(t, "dr", b, a), linked(t, "back", a, b)
		for _, m := range []*mirror.Mirror{dr, back, dr} {
			addOrders(t, m)
			require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		}
		host := memlog.New(memlog.ClusterID(a.host.ClusterID())) // a is made anew
		a = sourceOn(t, host)
		require.NoError(t, linked(t, "back", a, b).AddTopics(t.Context(), "orders"))
		failing(host, func(memlog.Op, string, int32) bool { return true }) // and crashes
		require.NoError(t, a.broker.Close())
		require.NoError(t, a.c.Close())
		host.Fail(nil)
		a = sourceOn(t, host)
		m, err := a.c.Detached("back")
		require.NoError(t, err)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.Less(t, state(t, m, "orders", 0).Position.Epoch, a.partition("orders", 0).LeaderEpoch())
	})
}

// Answers about positions that are denied, or can't be: they are named, and never taken for "no position". Whichever of the looks at
// the peer gets them, all is as it was, and the failback goes on once the answers are right.
func TestUnclearPositionsAreNamedAndCutNothing(t *testing.T) {
	const denied = int16(kafka.ClusterAuthorizationFailed)
	position := func(epoch int32, offset int64) func(*wire.DescribeMirrorsResponse) {
		return func(resp *wire.DescribeMirrorsResponse) {
			part := &resp.Mirrors[0].Topics[0].Partitions[0]
			part.LastMirrorEpoch, part.LastMirrorOffset = epoch, offset
		}
	}
	newer := map[string]func(*wire.DescribeMirrorsResponse){
		"negative epoch":   position(-2, 10),
		"negative offset":  position(0, -2),
		"above all epochs": position(1<<30, 12),
		"twice": func(resp *wire.DescribeMirrorsResponse) {
			topic := &resp.Mirrors[0].Topics[0]
			topic.Partitions = append(topic.Partitions, topic.Partitions[0])
			topic.Partitions[1].LastMirrorOffset--
		},
		"denied": func(resp *wire.DescribeMirrorsResponse) { resp.ErrorCode, resp.Mirrors = denied, nil },
		"denied one mirror": func(resp *wire.DescribeMirrorsResponse) {
			resp.Mirrors[0].ErrorCode, resp.Mirrors[0].Topics = denied, nil
		},
	}
	part := func(f func(*wire.LastMirroredPartition)) func(*wire.LastMirroredOffsetsResponse) {
		return func(resp *wire.LastMirroredOffsetsResponse) { f(&resp.Topics[0].Partitions[0]) }
	}
	older := map[string]func(*wire.LastMirroredOffsetsResponse){
		"older, negative epoch":   part(func(v *wire.LastMirroredPartition) { v.Epoch = -3 }),
		"older, above all epochs": part(func(v *wire.LastMirroredPartition) { v.Epoch, v.Offset = 1<<30, 1<<40 }),
		"older, negative offset":  part(func(v *wire.LastMirroredPartition) { v.Offset = -3 }),
		"older, denied one": part(func(v *wire.LastMirroredPartition) {
			*v = wire.LastMirroredPartition{ErrorCode: denied, Epoch: -1, Offset: -1}
		}),
		"older, twice": func(resp *wire.LastMirroredOffsetsResponse) {
			topic := &resp.Topics[0]
			topic.Partitions = append(topic.Partitions, wire.LastMirroredPartition{Epoch: 0, Offset: 3})
		},
		"older, denied": func(resp *wire.LastMirroredOffsetsResponse) { resp.ErrorCode, resp.Topics = denied, nil },
	}
	check := func(t *testing.T, name string, look int, spoil func(p *peer, when func() bool)) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			looks := 0
			spoil(p, func() bool { looks++; return looks == look })
			err := back.AddTopics(t.Context(), "orders")
			require.ErrorIs(t, err, mirror.ErrPeerUnclear)
			require.Equal(t, look, looks)
			var te *mirror.TopicError
			require.ErrorAs(t, err, &te)
			require.Equal(t, "orders", te.Topic)
			require.NotEmpty(t, te.Next)
			switch name {
			case "denied", "denied one mirror", "older, denied", "older, denied one":
				require.ErrorIs(t, err, kafka.ClusterAuthorizationFailed)
				require.Contains(t, te.Next, "Read on Cluster")
			default:
				require.ErrorContains(t, err, "partition 0")
			}
			untouched(t, a, back)
			p.honest()
			require.NoError(t, back.AddTopics(t.Context(), "orders"))
			cutAt10(t, a, b, back)
		})
	}
	for look := 1; look <= 3; look++ { // with the gate open, with the gate closed, after PREPARING
		for name, spoil := range newer {
			t.Run(fmt.Sprintf("%s, look %d", name, look), func(t *testing.T) {
				check(t, name, look, func(p *peer, when func() bool) {
					alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
						if when() {
							spoil(resp)
						}
					})
				})
			})
		}
		for name, spoil := range older {
			t.Run(fmt.Sprintf("%s, look %d", name, look), func(t *testing.T) {
				check(t, name, look, func(p *peer, when func() bool) {
					p.speaks(map[int16]int16{wire.KeyDescribeMirrors: -1})
					alter(p, func(_ *wire.LastMirroredOffsetsRequest, resp *wire.LastMirroredOffsetsResponse) {
						if when() {
							spoil(resp)
						}
					})
				})
			})
		}
	}
}

// What was not asked about is not heard: partitions beyond the topic's, other topics, topics of another id.
func TestPositionsOfOthersAreNotTaken(t *testing.T) {
	strange := wire.DescribedPartition{Partition: 0, State: mirror.Stopped.String(), LastMirrorEpoch: 1 << 20, LastMirrorOffset: 3}
	t.Run("newer", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
				topics := &resp.Mirrors[0].Topics
				beyond := strange
				beyond.Partition = 5
				(*topics)[0].Partitions = append((*topics)[0].Partitions, beyond)
				*topics = append(*topics, wire.DescribedTopic{Name: "payments", Partitions: []wire.DescribedPartition{strange}},
					wire.DescribedTopic{Name: "orders", ID: [16]byte{1}, Partitions: []wire.DescribedPartition{strange}})
			})
			require.NoError(t, back.AddTopics(t.Context(), "orders"))
			cutAt10(t, a, b, back)
		})
	})
	t.Run("older", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			p.speaks(map[int16]int16{wire.KeyDescribeMirrors: -1})
			alter(p, func(_ *wire.LastMirroredOffsetsRequest, resp *wire.LastMirroredOffsetsResponse) {
				resp.Topics = append(resp.Topics, wire.LastMirroredTopic{ID: [16]byte{1}, Partitions: []wire.LastMirroredPartition{{Epoch: 1 << 20, Offset: 3}}})
			})
			require.NoError(t, back.AddTopics(t.Context(), "orders"))
			cutAt10(t, a, b, back)
		})
	})
}

// through is mirrored, by way of a peer.
func through(t *testing.T, opts ...mirror.MirrorOption) (a, b *source, p *peer, m *mirror.Mirror) {
	t.Helper()
	a, b = newSource(t), newSource(t)
	a.create("orders", 1)
	a.write("orders", 0, 10)
	p = a.peer()
	m, err := b.c.Mirror("dr", p.Source(), opts...)
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context()))
	addOrders(t, m)
	return a, b, p, m
}

// everyEpochEnd changes what a source says of the ends of its epochs.
func everyEpochEnd(p *peer, f func(*kmsg.OffsetForLeaderEpochResponseTopicPartition)) {
	alter(p, func(_ *kmsg.OffsetForLeaderEpochRequest, resp *kmsg.OffsetForLeaderEpochResponse) {
		for i := range resp.Topics {
			for j := range resp.Topics[i].Partitions {
				f(&resp.Topics[i].Partitions[j])
			}
		}
	})
}

// everyOffset changes what a source says of offsets by time, among them those of its log's ends.
func everyOffset(p *peer, f func(*kmsg.ListOffsetsResponseTopicPartition)) {
	alter(p, func(_ *kmsg.ListOffsetsRequest, resp *kmsg.ListOffsetsResponse) {
		for i := range resp.Topics {
			for j := range resp.Topics[i].Partitions {
				f(&resp.Topics[i].Partitions[j])
			}
		}
	})
}

// everyFetch changes what a source says of the partitions that are fetched.
func everyFetch(p *peer, f func(*kmsg.FetchResponseTopicPartition)) {
	alter(p, func(_ *kmsg.FetchRequest, resp *kmsg.FetchResponse) {
		for i := range resp.Topics {
			for j := range resp.Topics[i].Partitions {
				f(&resp.Topics[i].Partitions[j])
			}
		}
	})
}

// A source that does not say where its log begins and ends: it is asked again, and nothing is begun or believed meanwhile.
func TestASourceWithoutBoundsIsWaitedFor(t *testing.T) {
	nothing := func(v *kmsg.ListOffsetsResponseTopicPartition) { v.Offset = -1 }
	t.Run("new topic", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b := newSource(t), newSource(t)
			a.create("orders", 1)
			a.write("orders", 0, 10)
			p := a.peer()
			everyOffset(p, nothing)
			m, err := b.c.Mirror("dr", p.Source())
			require.NoError(t, err)
			require.NoError(t, m.Start(t.Context()))
			require.NoError(t, m.AddTopics(t.Context(), "orders"))
			pass(time.Hour)
			st := state(t, m, "orders", 0)
			require.Equal(t, mirror.Preparing, st.State)
			require.Equal(t, mirror.Unreachable, st.Health)
			require.Contains(t, st.Reason, "orders-0")
			require.Contains(t, st.Reason, "[-1, -1)")
			p.honest()
			caughtUp(t, m)
			equal(t, a, b, "orders", 1)
		})
	})
	t.Run("while it is waited for the end", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, m := through(t)
			everyOffset(p, nothing)
			require.ErrorIs(t, m.WaitCaughtUp(within(t, time.Hour)), context.DeadlineExceeded)
			require.Less(t, p.count(2), 10_000)
			p.honest()
			caughtUp(t, m)
			equal(t, a, b, "orders", 1)
		})
	})
}

// A high watermark that falls, as that of a new leader may for a moment: it proves nothing, and nothing is cut.
func TestAHighWatermarkThatFallsCutsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, b, p, m := through(t)
		everyFetch(p, func(v *kmsg.FetchResponseTopicPartition) { v.HighWatermark = min(v.HighWatermark, 4) })
		everyOffset(p, func(v *kmsg.ListOffsetsResponseTopicPartition) { v.Offset = min(v.Offset, 4) })
		pass(time.Hour)
		require.NoError(t, m.Pause(t.Context(), "orders"))
		inState(t, m, 0, mirror.Paused)
		require.NoError(t, m.Resume(t.Context(), "orders")) // its log is compared
		st := inState(t, m, 0, mirror.Mirroring)
		require.Equal(t, int64(10), st.End)
		require.Zero(t, st.Totals)
		a.write("orders", 0, 5) // delivered beyond what it calls its end
		eventually(t, "15", func() bool { return state(t, m, "orders", 0).End == 15 })
		pass(time.Hour)
		st = state(t, m, "orders", 0)
		require.GreaterOrEqual(t, st.Lag, int64(0))
		require.GreaterOrEqual(t, st.SourceEnd, st.End)
		require.Equal(t, mirror.Mirroring, st.State)
		p.honest()
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
		require.Zero(t, state(t, m, "orders", 0).Totals)
	})
}

// Promote believes only the real end of the leader's log, and one that rests.
func TestPromoteEndsOnlyWhereTheSourceRests(t *testing.T) {
	refused := func(t *testing.T, b *source, m *mirror.Mirror, text string) {
		t.Helper()
		err := m.Promote(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "partition 0")
		require.ErrorContains(t, err, text)
		require.Equal(t, mirror.Mirroring, m.Describe().Topics[0].Desired, "nothing has changed")
		require.Equal(t, mirror.Mirroring, state(t, m, "orders", 0).State)
		require.Error(t, b.c.CheckWrite("orders", 0))
		require.Zero(t, state(t, m, "orders", 0).Totals)
	}
	t.Run("it does not know its end", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			_, b, p, m := through(t)
			everyEpochEnd(p, func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.LeaderEpoch, v.EndOffset = -1, -1 })
			refused(t, b, m, "does not say where its leader epoch")
			p.honest()
			require.NoError(t, m.Promote(within(t, time.Minute), "orders"))
		})
	})
	t.Run("its end falls", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			_, b, p, m := through(t)
			everyEpochEnd(p, func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.EndOffset = 7 })
			refused(t, b, m, "the source ends at offset 7, here it is 10")
			p.honest()
			require.NoError(t, m.Promote(within(t, time.Minute), "orders"))
		})
	})
	t.Run("producers go on", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, _, m := through(t)
			var producers sync.WaitGroup
			on, stop := context.WithCancel(t.Context())
			producers.Go(func() {
				for {
					select {
					case <-time.After(20 * time.Millisecond): // mirrored long before the next look
						a.write("orders", 0, 1)
					case <-on.Done():
						return
					}
				}
			})
			refused(t, b, m, "the source has gone on from offset")
			stop()
			producers.Wait()
			require.NoError(t, m.Promote(within(t, time.Minute), "orders"))
			_, end := a.partition("orders", 0).Bounds()
			require.Equal(t, end, state(t, m, "orders", 0).Position.Offset)
		})
	})
}

// A source that claims to have more, and delivers nothing: seen from outside all is well, so it must be told, and kept told.
func TestASourceThatDeliversNothingIsAStall(t *testing.T) {
	for name, late := range map[string]time.Duration{"answers at once": 0, "answers late": 400 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, ev := newSource(t), new(events)
				a.create("orders", 2) // the other one is well all the time
				a.write("orders", 0, 10)
				p := a.peer()
				m := mirrorOf(t, p.Source(), memlog.New(), mirror.OnEvent(ev.add), mirror.RefreshInterval(24*time.Hour))
				addOrders(t, m)
				eventually(t, "well", func() bool { return state(t, m, "orders", 0).Health == mirror.OK })

				var sessions atomic.Int64
				alter(p, func(req *kmsg.FetchRequest, resp *kmsg.FetchResponse) {
					if req.SessionEpoch == 0 {
						sessions.Add(1)
					}
					for i := range resp.Topics {
						for j := range resp.Topics[i].Partitions {
							if v := &resp.Topics[i].Partitions[j]; v.Partition == 0 {
								pass(late)
								v.RecordBatches = nil
							}
						}
					}
				})
				a.write("orders", 0, 5)
				pass(30 * time.Second)
				require.Equal(t, mirror.CatchingUp, state(t, m, "orders", 0).Health)
				metadata := p.count(3)
				eventually(t, "stalled", func() bool { return state(t, m, "orders", 0).Health == mirror.Stalled })
				for range 1000 { // whatever empty answers come
					pass(3 * time.Second)
					st := state(t, m, "orders", 0)
					require.Equal(t, mirror.Stalled, st.Health)
					require.Equal(t, mirror.Mirroring, st.State)
					require.Equal(t, int64(5), st.Lag)
					require.Contains(t, st.Reason, "source end 15, mirrored to 10, and no record for")
				}
				told := ev.of(mirror.HealthChanged)
				require.Len(t, told, 1)
				require.Equal(t, string(mirror.Stalled), told[0].After)
				require.ErrorContains(t, told[0].Err, "source end 15")
				require.InDelta(t, metadata+40, p.count(3), 15, "fresh metadata were asked for, again and again")
				require.InDelta(t, 40, sessions.Load(), 15, "and connections made anew")
				require.Less(t, p.count(1), 10_000)

				everyFetch(p, func(v *kmsg.FetchResponseTopicPartition) { v.HighWatermark += 100 })
				eventually(t, "progress", func() bool { return state(t, m, "orders", 0).End == 15 })
				require.Equal(t, mirror.CatchingUp, state(t, m, "orders", 0).Health)
				p.honest()
				a.write("orders", 0, 1)
				a.write("orders", 1, 1)
				caughtUp(t, m)
				requireSame(t, a, m, "orders", 2)
				eventually(t, "well again", func() bool { return state(t, m, "orders", 0).Health == mirror.OK })
				require.Len(t, ev.of(mirror.HealthChanged), 2)
				require.Empty(t, ev.of(mirror.DataLoss))
			})
		})
	}
}

// A partition that is behind while its source is away: it has its time from when the source is back, before it counts as stalled.
func TestASourceThatWasAwayIsNoStallAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newOrders(t, 10)
		p := a.peer()
		src := p.Source()
		var away atomic.Bool
		src.Transport.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if away.Load() {
				return nil, errors.New("no route")
			}
			return p.dial(ctx, network, addr)
		}
		m := mirrorOf(t, src, memlog.New(), mirror.StallAfter(time.Minute), mirror.Backoff(time.Millisecond, time.Second))
		addOrders(t, m)
		everyFetch(p, func(v *kmsg.FetchResponseTopicPartition) { v.RecordBatches = nil })
		a.write("orders", 0, 5)
		eventually(t, "behind", func() bool { return state(t, m, "orders", 0).Lag == 5 })
		away.Store(true)
		p.hangUp()
		pass(10 * time.Minute)
		require.Equal(t, mirror.Unreachable, state(t, m, "orders", 0).Health)
		away.Store(false)
		eventually(t, "back", func() bool { return state(t, m, "orders", 0).Health == mirror.CatchingUp })
		pass(50 * time.Second)
		require.Equal(t, mirror.CatchingUp, state(t, m, "orders", 0).Health)
		pass(time.Minute)
		require.Equal(t, mirror.Stalled, state(t, m, "orders", 0).Health)
	})
}

// tokens is a SASL mechanism with a new token for each connection, from a place that may be away.
type tokens struct {
	failed atomic.Int64

	mu    sync.Mutex
	asked int
	away  bool
	once  bool // and back for the next one
}

func (k *tokens) Name() string { return "OAUTHBEARER" }

func (k *tokens) Start(context.Context) (sasl.StateMachine, []byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if k.away {
		k.away = !k.once
		k.failed.Add(1)
		return nil, nil, errors.New("token endpoint: 503")
	}
	return k, fmt.Appendf(nil, "secret-%d", k.asked), nil
}

func (k *tokens) Next(context.Context, []byte) (bool, []byte, error) { return true, nil, nil }

func (k *tokens) set(away, once bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.away, k.once = away, once
}

// Sessions that the source ends, each login with a new token, and a renewal that fails: the connection is made again after a pause, and
// the copy goes on without gap or repetition.
func TestSASLSessionsEndAndARenewalFails(t *testing.T) {
	for name, away := range map[string]time.Duration{"once": 0, "for five minutes": 5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, ev, k := newSource(t), new(events), new(tokens)
				a.create("orders", 2)
				p := a.peer()
				alter(p, func(_ *kmsg.SASLHandshakeRequest, resp *kmsg.SASLHandshakeResponse) { resp.ErrorCode = 0 })
				var logins sync.Map
				alter(p, func(req *kmsg.SASLAuthenticateRequest, resp *kmsg.SASLAuthenticateResponse) {
					resp.ErrorCode = 0
					if _, again := logins.LoadOrStore(string(req.SASLAuthBytes), true); again {
						resp.ErrorCode = int16(kafka.SASLAuthenticationFailed) // a token holds for one session
					}
				})
				src := p.Source()
				src.Transport.SASL = k
				src.Transport.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := p.dial(ctx, network, addr)
					if err == nil {
						time.AfterFunc(3*time.Second, func() { c.Close() }) // connections.max.reauth.ms
					}
					return c, err
				}
				m := mirrorOf(t, src, memlog.New(), mirror.OnEvent(ev.add))
				require.NoError(t, m.AddTopics(t.Context(), "orders"))
				write := func(d time.Duration) {
					for end := time.Now().Add(d); time.Now().Before(end); pass(100 * time.Millisecond) {
						a.write("orders", 0, 3)
						a.write("orders", 1, 1, 2)
					}
				}
				write(10 * time.Second)
				require.Empty(t, ev.of(mirror.HealthChanged), "an ordinary end of a session is no event")
				k.set(true, away == 0)
				write(5*time.Second + away)
				if away > 0 {
					for num := range int32(2) {
						st := state(t, m, "orders", num)
						require.Equal(t, mirror.Unreachable, st.Health)
						require.Equal(t, mirror.Mirroring, st.State)
						require.Contains(t, st.Reason, "token endpoint: 503")
					}
					require.Less(t, k.failed.Load(), int64(100), "with growing pauses")
				}
				k.set(false, false)
				require.Positive(t, k.failed.Load())
				write(time.Minute) // many sessions more
				caughtUp(t, m)
				requireSame(t, a, m, "orders", 2)
				for num := range int32(2) {
					st := state(t, m, "orders", num)
					require.Equal(t, mirror.Mirroring, st.State)
					require.NotEqual(t, mirror.Unreachable, st.Health)
					require.Zero(t, st.Totals)
					require.Equal(t, int64(len(content(t, a.partition("orders", num), 0))), st.Bytes, "nothing was fetched twice")
				}
				told := ev.of(mirror.HealthChanged)
				require.Len(t, told, 4, "away and back, for each partition")
				for _, e := range told[:2] {
					require.Equal(t, string(mirror.Unreachable), e.After)
					require.ErrorContains(t, e.Err, "token endpoint: 503")
				}
				require.NotContains(t, fmt.Sprint(told, m.Describe()), "secret-")
			})
		})
	}
}

// A source that hangs up again as soon as it has answered is no source that ends a session: it is told, and not asked at once.
func TestConnectionsThatHardlyServeAreTrouble(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, ev := newSource(t), new(events)
		a.create("orders", 1)
		a.write("orders", 0, 10)
		p := a.peer()
		var short atomic.Bool
		src := p.Source()
		src.Transport.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := p.dial(ctx, network, addr)
			if err == nil && short.Load() {
				time.AfterFunc(20*time.Millisecond, func() { c.Close() })
			}
			return c, err
		}
		m := mirrorOf(t, src, memlog.New(), mirror.OnEvent(ev.add), mirror.FetchWait(time.Millisecond))
		addOrders(t, m)
		short.Store(true)
		p.hangUp()
		before := p.count(18)
		pass(time.Hour)
		require.Less(t, p.count(18)-before, 1000)
		require.NotEmpty(t, ev.of(mirror.HealthChanged))
		short.Store(false)
		a.write("orders", 0, 5)
		caughtUp(t, m)
		requireSame(t, a, m, "orders", 1)
	})
}

// Failback against a source that lies about its epochs: whatever it says, nothing goes unreported, nothing foreign comes in, and once it
// says what is true the logs are the same.
func TestFailbackAgainstASourceThatLiesAboutEpochs(t *testing.T) {
	position := func(p *peer, offset int64) {
		alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
			resp.Mirrors[0].Topics[0].Partitions[0].LastMirrorOffset = offset
		})
	}
	for name, lie := range map[string]func(*kmsg.OffsetForLeaderEpochResponseTopicPartition){
		"an epoch above the one it was asked for": func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.LeaderEpoch = 1 << 20 },
		"an epoch without an end":                 func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.EndOffset = -1 },
		"an end without an epoch":                 func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.LeaderEpoch = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b, p, back := torn(t)
				everyEpochEnd(p, lie)
				require.NoError(t, back.AddTopics(t.Context(), "orders"))
				pass(time.Hour)
				st := state(t, back, "orders", 0)
				require.Equal(t, []any{mirror.Preparing, mirror.Unreachable}, []any{st.State, st.Health})
				require.Contains(t, st.Reason, "end of epoch 0 of orders-0")
				require.Equal(t, int64(10), st.End, "cut by the position alone")
				require.Error(t, a.c.CheckWrite("orders", 0))
				p.honest()
				cutAt10(t, a, b, back)
			})
		})
	}
	t.Run("an end that keeps what is not its own", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			position(p, 13)
			everyEpochEnd(p, func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.EndOffset = 13 })
			require.NoError(t, back.AddTopics(t.Context(), "orders"))
			st := inState(t, back, 0, mirror.Failed) // its fetch answers say otherwise, time and again
			require.True(t, st.NeedsDecision)
			require.Contains(t, st.Reason, "orders-0")
			require.Contains(t, st.Reason, "Recover")
			require.Equal(t, int64(13), st.End)
			require.Zero(t, st.Totals)
			require.Error(t, a.c.CheckWrite("orders", 0))
			p.honest()
			require.NoError(t, back.Recover(t.Context(), "orders"))
			inState(t, back, 0, mirror.Mirroring)
			cutAt10(t, a, b, back)
		})
	})
	t.Run("an end that drops what was mirrored", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b, p, back := torn(t)
			everyEpochEnd(p, func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.EndOffset = 0 })
			require.NoError(t, back.AddTopics(t.Context(), "orders"))
			err := back.WaitCaughtUp(within(t, time.Minute))
			require.ErrorContains(t, err, "not all that is here is the source's")
			p.honest()
			caughtUp(t, back)
			equal(t, a, b, "orders", 1)
			require.Equal(t, mirror.Totals{Cut: 13, Cuts: 2}, state(t, back, "orders", 0).Totals, "all was fetched again, and told")
		})
	})
	t.Run("an end that would adopt", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, _, p, back := torn(t)
			p.speaks(map[int16]int16{wire.KeyDescribeMirrors: -1, wire.KeyLastMirroredOffsets: -1})
			everyEpochEnd(p, func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.EndOffset = 13 })
			require.ErrorIs(t, back.AddTopics(t.Context(), "orders"), mirror.ErrNoProof, "the bytes count")
			untouched(t, a, back)
		})
	})
}

// Failback to a source that keeps no positions of this host: refused with the ranges, and Overwrite says what it costs.
func TestFailbackToASourceWithoutPositions(t *testing.T) {
	for name, silence := range map[string]func(*peer){
		"it knows no mirrors": func(p *peer) {
			p.speaks(map[int16]int16{wire.KeyDescribeMirrors: -1, wire.KeyLastMirroredOffsets: -1})
		},
		"it has forgotten its mirrors": func(p *peer) {
			alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) { resp.Mirrors = nil })
		},
		"it does not say where it mirrored from": func(p *peer) {
			alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
				resp.Mirrors[0].SourceClusterID = ""
			})
		},
		"it mirrored from another cluster": func(p *peer) {
			alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
				resp.Mirrors[0].SourceClusterID = "x"
			})
		},
		"its position is unknown": func(p *peer) {
			alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
				part := &resp.Mirrors[0].Topics[0].Partitions[0]
				part.LastMirrorEpoch, part.LastMirrorOffset = -1, -1
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b, p, back := torn(t)
				silence(p)
				err := back.AddTopics(t.Context(), "orders")
				require.ErrorIs(t, err, mirror.ErrNoProof)
				var re *mirror.RangeError
				require.ErrorAs(t, err, &re)
				require.Equal(t, []mirror.Range{{Partition: 0, From: 0, To: 13}}, re.Ranges)
				var te *mirror.TopicError
				require.ErrorAs(t, err, &te)
				require.Contains(t, te.Next, "Overwrite")
				untouched(t, a, back)
				require.NoError(t, back.Overwrite(t.Context(), "orders"))
				caughtUp(t, back)
				equal(t, a, b, "orders", 1)
				require.Equal(t, mirror.Totals{Lost: 13, Cuts: 1}, state(t, back, "orders", 0).Totals)
			})
		})
	}
}

// Failback to what is not the other side: refused at whichever look it shows, with everything as it was.
func TestFailbackToAnotherCluster(t *testing.T) {
	t.Run("not the one that is meant", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, _, p, back := torn(t)
			require.NoError(t, back.Close())
			src := p.Source()
			src.ClusterID = "the other side"
			back, err := a.c.Mirror("meant", src)
			require.NoError(t, err)
			require.ErrorIs(t, back.AddTopics(t.Context(), "orders"), mirror.ErrWrongCluster)
			untouched(t, a, back)
		})
	})
	for look := 1; look <= 5; look++ { // what Start has found is remembered
		t.Run(fmt.Sprintf("another one from question %d on", look), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, b, p, back := torn(t)
				pass(time.Second) // whatever Start asks
				var looks atomic.Int64
				alter(p, func(_ *kmsg.MetadataRequest, resp *kmsg.MetadataResponse) {
					if looks.Add(1) >= int64(look) {
						resp.ClusterID = new("another")
					}
				})
				require.ErrorIs(t, back.AddTopics(t.Context(), "orders"), mirror.ErrWrongCluster)
				untouched(t, a, back)
				p.honest()
				require.NoError(t, back.AddTopics(t.Context(), "orders"))
				cutAt10(t, a, b, back)
			})
		})
	}
	t.Run("one with a copy of the topic", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, _, _, _ := torn(t)
			stranger := newSource(t)
			require.NoError(t, stranger.host.EnsureTopic(t.Context(), mirror.Topic{Name: "orders", ID: topicID(t, a.host, "orders"), Partitions: 1}))
			stranger.write("orders", 0, 20)
			other := linked(t, "other", a, stranger)
			require.ErrorIs(t, other.AddTopics(t.Context(), "orders"), mirror.ErrNoProof)
			untouched(t, a, other)
		})
	})
}

// Where the source has a topic from is not forgotten because it once refuses to say so: the other end could begin a ring.
func TestAChainIsNotForgottenWhenTheSourceWillNotTell(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		first, middle, _ := mirrored(t, 1)
		last := newSource(t)
		p := middle.peer()
		c, err := last.c.Mirror("chain", p.Source())
		require.NoError(t, err)
		require.NoError(t, c.Start(t.Context()))
		addOrders(t, c)
		alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
			for i := range resp.Mirrors {
				resp.Mirrors[i] = wire.DescribedMirror{Name: resp.Mirrors[i].Name, ErrorCode: 29, ErrorMessage: "denied"}
			}
		})
		pass(10 * time.Minute)
		ring, err := first.c.Mirror("ring", last.broker.Source())
		require.NoError(t, err)
		require.ErrorIs(t, ring.AddTopics(t.Context(), "orders"), mirror.ErrPeerActive)
	})
}

// A new topic is refused in the second look at the peer, and a command that waited for that finds no topic.
func TestACommandDoesNotBeginWhatWasTakenBack(t *testing.T) {
	for name, verb := range map[string]func(*mirror.Mirror, context.Context, ...string) error{
		"Overwrite": (*mirror.Mirror).Overwrite, "Resume": (*mirror.Mirror).Resume, "Pause": (*mirror.Mirror).Pause, "Remove": (*mirror.Mirror).Remove,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a, host := newOrders(t, 10), memlog.New()
				p := a.peer()
				alter(p, func(_ *wire.DescribeMirrorsRequest, resp *wire.DescribeMirrorsResponse) {
					if p.count(wire.KeyDescribeMirrors) < 3 { // twice it is asked before the round begins
						return
					}
					pass(2 * time.Second)
					resp.Mirrors = append(resp.Mirrors, wire.DescribedMirror{
						Name: "there", SourceClusterID: host.ClusterID(), Topics: []wire.DescribedTopic{{
							Name: "orders", ID: topicID(t, a.host, "orders"), Partitions: []wire.DescribedPartition{{State: mirror.Mirroring.String()}},
						}},
					})
				})
				m := mirrorOf(t, p.Source(), host)
				adding := make(chan error, 1)
				go func() { adding <- m.AddTopics(t.Context(), "orders") }()
				pass(time.Second) // it is in its second look
				require.Len(t, m.Describe().Topics, 1)
				require.Error(t, verb(m, within(t, time.Minute), "orders"))
				require.ErrorIs(t, <-adding, mirror.ErrPeerActive)
				p.honest()
				pass(time.Minute)
				local := open(t, m.Coordinator(), "orders", 0)
				appendTo(t, local, plain(5))
				pass(time.Minute)
				_, end := local.Bounds()
				require.Equal(t, int64(5), end, "nothing is mirrored")
				require.Empty(t, m.Describe().Topics)
			})
		})
	}
}

// Some sources know nothing of an epoch that was written under once a later one has begun: that is no word against what is here.
func TestASourceThatKnowsNothingOfTheLastEpochIsCaughtUpWith(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a := newOrders(t, 10)
		p := a.peer()
		everyEpochEnd(p, func(v *kmsg.OffsetForLeaderEpochResponseTopicPartition) { v.LeaderEpoch, v.EndOffset = -1, -1 })
		m := mirrorOf(t, p.Source(), memlog.New())
		addOrders(t, m)
		requireSame(t, a, m, "orders", 1)
	})
}
