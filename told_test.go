package mirror_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/memlog"
)

// What commands, plans and Describe tell people: it must be true, and lead on.

func TestACommandOnNoTopicSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSource(t)
		m := newMirror(t, a, memlog.New())
		ctx := t.Context()
		_, planned := m.PlanAdd(ctx)
		for what, err := range map[string]error{
			"AddTopics": m.AddTopics(ctx), "Remove": m.Remove(ctx), "Promote": m.Promote(ctx), "Pause": m.Pause(ctx),
			"Resume": m.Resume(ctx), "Overwrite": m.Overwrite(ctx), "Recover": m.Recover(ctx), "PlanAdd": planned,
		} {
			require.ErrorContains(t, err, "mirror dr: no topic is named", what)
		}
	})
}

// reopened is a host's coordinator after a restart, with all its mirrors detached.
func reopened(t *testing.T, s *source) *mirror.Coordinator {
	t.Helper()
	require.NoError(t, s.c.Close())
	c, err := mirror.Open(t.Context(), s.host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestADetachedMirrorSaysThatItIsToBeAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, dr := mirrored(t, 1)
		_, err := b.c.Detached("dr")
		require.ErrorIs(t, err, mirror.ErrUnknownMirror)
		require.ErrorContains(t, err, "it is attached, Close it first")
		require.NoError(t, dr.Remove(t.Context(), "orders"))
		require.NoError(t, dr.Close())
		a.close()

		m, err := b.c.Detached("dr")
		require.NoError(t, err)
		_, planned := m.PlanAdd(t.Context(), "orders")
		for what, err := range map[string]error{
			"Start": m.Start(t.Context()), "AddTopics": m.AddTopics(t.Context(), "new"), "Promote": m.Promote(t.Context(), "orders"),
			"Resume": m.Resume(t.Context(), "orders"), "Overwrite": m.Overwrite(t.Context(), "orders"), "PlanAdd": planned,
		} {
			require.ErrorIs(t, err, mirror.ErrDetached, what)
			require.ErrorContains(t, err, "; attach it with Coordinator.Mirror", what)
		}
	})
}

func TestAStoppedTopicHasItsBoundsAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b, dr := mirrored(t, 1)
		require.NoError(t, dr.Remove(t.Context(), "orders"))
		c := reopened(t, b)
		detached, err := c.Detached("dr")
		require.NoError(t, err)
		require.Equal(t, int64(11), state(t, detached, "orders", 0).End)
	})
}

// Another coordinator has fenced this one, whose gate is closed, also for what it took over.
func TestAFencedMirrorSaysSoOfStoppedTopicsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b, dr := mirrored(t, 1)
		require.NoError(t, dr.Remove(t.Context(), "orders"))
		c, err := mirror.Open(t.Context(), b.host)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		_, err = b.c.RaiseLeaderEpoch(t.Context(), "orders", 0, 0)
		require.ErrorIs(t, err, mirror.ErrFenced)
		require.ErrorIs(t, b.c.CheckWrite("orders", 0), mirror.ErrFenced)
		st := state(t, dr, "orders", 0)
		require.Equal(t, mirror.Stopped, st.State)
		require.Equal(t, mirror.Stalled, st.Health)
		require.Contains(t, st.Reason, mirror.ErrFenced.Error())
	})
}

// shyHost opens no log of a topic.
type shyHost struct {
	*memlog.Host
	topic string
}

func (h *shyHost) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	if topic == h.topic {
		return nil, errors.New("not now")
	}
	return h.Host.OpenLog(ctx, topic, partition)
}

func TestBoundsThatAreNotKnownAreNotShownAsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b, _ := mirrored(t, 1)
		require.NoError(t, b.c.Close())
		c, err := mirror.Open(t.Context(), &shyHost{b.host, "orders"})
		require.NoError(t, err)
		defer c.Close()
		detached, err := c.Detached("dr")
		require.NoError(t, err)
		st := state(t, detached, "orders", 0)
		require.Equal(t, int64(-1), st.Start)
		require.Equal(t, int64(-1), st.End)
		require.NotContains(t, detached.Describe().String(), "-1")
	})
}

func TestTakenOverIsWhatTheGateSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, dr := mirrored(t, 1)
		require.NoError(t, dr.Remove(t.Context(), "orders"))
		require.True(t, state(t, dr, "orders", 0).TakenOver)
		two := linked(t, "two", b, a)
		require.NoError(t, two.Overwrite(t.Context(), "orders"))
		require.False(t, state(t, dr, "orders", 0).TakenOver, "mirror two owns it")
		c := reopened(t, b)
		for _, s := range c.Describe() {
			require.False(t, s.Topics[0].Partitions[0].TakenOver, s.Mirror)
		}
	})
}

func TestATakeoversOwnMarkersAreNamed(t *testing.T) {
	for _, x := range []struct {
		name   string
		write  int
		reason string
	}{
		{"markers", 0, "no records, only markers, written here after the last mirrored position (epoch 0, offset 10)"},
		{"records", 3, "written here after the last mirrored position (epoch 0, offset 10)"},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told []string
				a, host := newOrders(t, 10), memlog.New()
				m := newMirror(t, a, host, mirror.OnEvent(func(e mirror.Event) {
					if e.Kind == mirror.Truncated {
						told = append(told, e.Reason)
					}
				}))
				addOrders(t, m)
				require.NoError(t, m.Remove(t.Context(), "orders"))
				if x.write > 0 {
					appendTo(t, open(t, m.Coordinator(), "orders", 0), plain(x.write))
				}
				require.NoError(t, m.Overwrite(t.Context(), "orders"))
				caughtUp(t, m)
				synctest.Wait()
				require.Equal(t, []string{x.reason}, told)
				require.Equal(t, mirror.Totals{Cut: int64(1 + x.write), Cuts: 1}, state(t, m, "orders", 0).Totals)
			})
		})
	}
}

// One mirror has a topic, another one of the same source wants it: each next step that an error names works.
func TestNextStepsOfTwoMirrorsLeadOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, dr := mirrored(t, 1)
		two := linked(t, "two", b, a)
		next := func(err, is error) string {
			t.Helper()
			require.ErrorIs(t, err, is)
			var topic *mirror.TopicError
			require.ErrorAs(t, err, &topic)
			return topic.Next
		}
		elsewhere := "it is in mirror dr, not in this one"
		for what, command := range map[string]func(context.Context, ...string) error{
			"Remove": two.Remove, "Promote": two.Promote, "Pause": two.Pause, "Resume": two.Resume, "Recover": two.Recover, "WaitCaughtUp": two.WaitCaughtUp,
		} {
			require.Equal(t, elsewhere, next(command(t.Context(), "orders"), mirror.ErrUnknownTopic), what)
			require.Equal(t, "it is not in this mirror: AddTopics first", next(command(t.Context(), "new"), mirror.ErrUnknownTopic), what)
		}
		require.Equal(t, "Remove it there first, then Overwrite takes it into this mirror", next(two.AddTopics(t.Context(), "orders"), mirror.ErrTopicOwned))

		require.NoError(t, dr.Remove(t.Context(), "orders"))
		steps := "mirror dr has stopped it here: Resume it there; or Overwrite takes it into this mirror, and drops what was written here since"
		require.Equal(t, steps, next(two.AddTopics(t.Context(), "orders"), mirror.ErrStopped))
		_, err := two.PlanAdd(t.Context(), "orders")
		require.Equal(t, steps, next(err, mirror.ErrStopped))
		require.Equal(t, "it stays writable and need not be added; Resume mirrors it again, and drops nothing that was written here", next(dr.AddTopics(t.Context(), "orders"), mirror.ErrStopped))
		require.NoError(t, dr.Resume(t.Context(), "orders"))
		require.NoError(t, dr.Remove(t.Context(), "orders"))
		require.NoError(t, two.Overwrite(t.Context(), "orders"))

		require.Equal(t, "Remove it there first", next(dr.Resume(t.Context(), "orders"), mirror.ErrTopicOwned))
		require.NoError(t, two.Remove(t.Context(), "orders"))
		require.NoError(t, dr.Resume(t.Context(), "orders"))
		caughtUp(t, dr)
	})
}

func TestPreviousIsTheStateBeforeFAILED(t *testing.T) {
	for state, previous := range map[mirror.State]string{mirror.Preparing: `"previous":"PREPARING"`, mirror.Unknown: ""} {
		b, err := json.Marshal(mirror.PartitionStatus{State: mirror.Failed, Before: state})
		require.NoError(t, err)
		require.Contains(t, string(b), previous)
		require.Equal(t, previous != "", strings.Contains(string(b), "previous"), "%s", b)
	}
}

// nameless is a host that does not say which cluster it is.
type nameless struct{ *memlog.Host }

func (nameless) ClusterID() string { return "" }

func TestHostsThatCannotDoAreRefused(t *testing.T) {
	_, err := mirror.Open(t.Context(), nil)
	require.ErrorContains(t, err, "the Host is nil")
	_, err = mirror.New(t.Context(), "dr", mirror.Source{}, nil)
	require.ErrorContains(t, err, "the Host is nil")
	host := nameless{memlog.New()}
	_, err = mirror.Open(t.Context(), host)
	require.ErrorContains(t, err, "ClusterID is empty")
	topics, err := host.Topics(t.Context())
	require.NoError(t, err)
	require.Empty(t, topics, "refused before anything is made")
}

func TestEventsThatWaitAtCloseAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSource(t)
		a.create("orders", 4)
		hold := make(chan struct{})
		var told int
		m := mirrorOrders(t, a, memlog.New(), mirror.OnEvent(func(mirror.Event) { <-hold; told++ }))
		time.AfterFunc(time.Second, func() { close(hold) })
		require.NoError(t, m.Close())
		require.GreaterOrEqual(t, told, 4)
	})
}

func TestTheWrongClusterIsNamedWithANextStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, dr := mirrored(t, 1)
		said := func(m *mirror.Mirror, text string) {
			t.Helper()
			added := m.AddTopics(t.Context(), "new")
			require.EqualError(t, added, "mirror "+m.Name()+", topic new: "+text)
			_, planned := m.PlanAdd(t.Context(), "new")
			require.EqualError(t, planned, added.Error())
			require.ErrorIs(t, added, mirror.ErrWrongCluster)
		}
		said(linked(t, "self", b, b), "wrong cluster at the source's address: it is this host itself ("+b.host.ClusterID()+"); correct Source.Addr")

		require.NoError(t, dr.Close())
		other := newSource(t)
		text := "wrong cluster at the source's address: " + other.host.ClusterID() + " instead of " + a.host.ClusterID() +
			"; correct Source.Addr, or mirror the other cluster on another host, or here by another mirror after Remove"
		dr = linked(t, "dr", b, other)
		said(dr, text)
		require.Equal(t, text+"; Recover once the right one answers", inState(t, dr, 0, mirror.Failed).Reason)
	})
}

func TestTablesSayWhatWasCutAndTakenOver(t *testing.T) {
	s := mirror.Status{Mirror: "dr", Topics: []mirror.TopicStatus{{Name: "orders", Partitions: []mirror.PartitionStatus{
		{Partition: 0, State: mirror.Mirroring, Totals: mirror.Totals{Cut: 4, Cuts: 1}, Reason: "slow"},
		{Partition: 1, State: mirror.Stopped, TakenOver: true, Position: &mirror.Position{Epoch: 5, Offset: 87}},
		{Partition: 2, State: mirror.Stopped, TakenOver: true},
		{Partition: 3, State: mirror.Mirroring},
	}}}}
	_, below, _ := strings.Cut(s.String(), "SECONDS\n")
	lines := strings.Split(below, "\n")
	require.Equal(t, []string{
		"orders-0: slow", "orders-0: 4 offsets cut, 0 lost", "orders-1: taken over at epoch 5, offset 87", "orders-2: taken over", "",
	}, lines[4:])
}

func TestPlansOfNothingAndOfNewTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, dr := mirrored(t, 1)
		plan, err := dr.PlanAdd(t.Context(), "orders")
		require.NoError(t, err)
		require.Equal(t, "nothing to do\n", plan.String())
		require.Equal(t, "nothing to do\n", mirror.RemovePlan{}.String())

		a.create("new", 1)
		a.write("new", 0, 7)
		plan, err = dr.PlanAdd(t.Context(), "new")
		require.NoError(t, err)
		require.Equal(t, mirror.AddPlan{{Topic: "new", Position: mirror.Position{Epoch: -1, Offset: -1}, SourceEnd: 7}}, plan)
	})
}

func TestRangesAreListedPlainly(t *testing.T) {
	err := &mirror.RangeError{Ranges: []mirror.Range{{Partition: 0, From: 87, To: 89}, {Partition: 1, From: 87, To: 90}}, Err: mirror.ErrWritten}
	require.EqualError(t, err, mirror.ErrWritten.Error()+": partition 0 [87, 89), partition 1 [87, 90)")
}

func TestAPlanIsInOrderAndHoldsWhatWasNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSource(t)
		m := newMirror(t, a, memlog.New())
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("topic-%02d", 19-i))
			a.create(names[i], 2)
		}
		plan, err := m.PlanAdd(t.Context(), append(names, "missing")...)
		require.ErrorIs(t, err, mirror.ErrUnknownTopic)
		require.Len(t, plan, 40)
		for i, s := range plan {
			require.Equal(t, fmt.Sprintf("topic-%02d/%d", i/2, i%2), fmt.Sprintf("%s/%d", s.Topic, s.Partition))
		}
	})
}
