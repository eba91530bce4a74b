package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// spoiled is a source whose connections go through wrap.
func (s *source) spoiled(wrap func(net.Conn) net.Conn) mirror.Source {
	src := s.broker.Source()
	dial := src.Transport.Dial
	src.Transport = &kafka.Transport{
		DialTimeout: src.Transport.DialTimeout,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return wrap(c), nil
		},
	}
	return src
}

// readConn changes what is read.
type readConn struct {
	net.Conn
	read func(n int, b []byte) (int, error)
}

func (c *readConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		return n, err
	}
	return c.read(n, b)
}

func mirrorOf(t *testing.T, src mirror.Source, host mirror.Host, opts ...mirror.Option) *mirror.Mirror {
	t.Helper()
	m, err := mirror.New(t.Context(), "dr", src, host, opts...)
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// Bits flip on the way, among the batches of an answer and what follows them: nothing wrong is ever appended, and when they stop the
// mirror is whole. (The numbers before the batches, such as the log's start, have no checksum in the protocol.)
func TestFlippedBitsNeverReachTheLog(t *testing.T) {
	for seed := range uint64(25) {
		synctest.Test(t, func(t *testing.T) {
			s := newSource(t)
			s.create("orders", 1)
			var spoil atomic.Bool
			r := rng(seed)
			m := mirrorOf(t, s.spoiled(func(c net.Conn) net.Conn {
				return &readConn{c, func(n int, b []byte) (int, error) {
					if n > 500 && spoil.Load() && r.IntN(2) == 0 {
						b[n/2+r.IntN(n-n/2)] ^= 1 << r.IntN(8)
					}
					return n, nil
				}}
			}), memlog.New(), mirror.RequestTimeout(time.Second))
			addOrders(t, m)
			spoil.Store(true)
			for i := range 40 {
				s.write("orders", 0, 20+i, 30)
				pass(200 * time.Millisecond)
			}
			spoil.Store(false)
			eventually(t, "mended by itself", func() bool { return state(t, m, "orders", 0).State == mirror.Mirroring })
			caughtUp(t, m)
			requireSame(t, s, m, "orders", 1)
			require.Zero(t, state(t, m, "orders", 0).Totals)
		})
	}
}

// A batch that is damaged at the source fails its partition by name and offset; what comes before it is kept, the others go on, and
// once it is mended there the mirror goes on too.
func TestDamagedBatchFailsItsPartitionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 50)
		m := newMirror(t, s, memlog.New())
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		for num := range int32(50) {
			s.write("orders", num, 3)
		}
		log, err := s.host.OpenLog(t.Context(), "orders", 7)
		require.NoError(t, err)
		bad := plain(5)
		batch.SetBase(bad, 3)
		bad[len(bad)-1] ^= 1
		require.NoError(t, log.Append(t.Context(), bad))
		for num := range int32(50) {
			if num != 7 {
				s.write("orders", num, 3)
			}
		}
		eventually(t, "failed", func() bool { return state(t, m, "orders", 7).State == mirror.Failed })
		st := state(t, m, "orders", 7)
		require.Contains(t, st.Reason, "orders-7 at offset 3")
		require.Contains(t, st.Reason, "CRC")
		require.Equal(t, int64(3), st.End)
		for num := range int32(50) {
			if num != 7 {
				require.Equal(t, int64(6), state(t, m, "orders", num).End)
			}
		}
		require.NoError(t, s.partition("orders", 7).Truncate(t.Context(), 3))
		s.write("orders", 7, 4)
		eventually(t, "mended", func() bool { return state(t, m, "orders", 7).End == 7 })
	})
}

// A peer that accepts connections and then says nothing is given up after the request time-out, and named.
func TestSilentSourceIsUnreachableAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newOrders(t, 3)
		var silent atomic.Bool
		m := mirrorOf(t, s.spoiled(func(c net.Conn) net.Conn {
			return &readConn{c, func(n int, b []byte) (int, error) {
				if silent.Load() {
					return 0, nil // swallowed
				}
				return n, nil
			}}
		}), memlog.New(), mirror.RequestTimeout(5*time.Second))
		addOrders(t, m)
		pass(time.Second) // no metadata are under way
		silent.Store(true)
		s.write("orders", 0, 3)
		pass(6 * time.Second) // one request time-out, and not another on a new connection
		require.Equal(t, mirror.Unreachable, state(t, m, "orders", 0).Health)
		require.Equal(t, mirror.Mirroring, state(t, m, "orders", 0).State)
		silent.Store(false)
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 1)
		require.Equal(t, mirror.OK, state(t, m, "orders", 0).Health)
	})
}

// A failure that someone must decide on and that can't be written down needs the decision all the same.
func TestAFailureThatIsNotPersistedNeedsItsDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, host := newSource(t), memlog.New()
		s.create("orders", 1)
		m := mirrorOrders(t, s, host)
		mend := failing(host, on(memlog.OpAppend, mirror.StateTopic))
		require.NoError(t, s.host.DeleteTopic(t.Context(), "orders"))
		s.create("orders", 1)
		require.Contains(t, inState(t, m, 0, mirror.Failed).Reason, "recreated")
		mend()
		pass(time.Hour)
		require.True(t, state(t, m, "orders", 0).NeedsDecision)
	})
}

// Who leads is not known yet when a mirror starts: that is no trouble, and nobody is told of any.
func TestARestartRaisesNoAlarm(t *testing.T) {
	for _, started := range []bool{true, false} { // MIRRORING, PREPARING
		synctest.Test(t, func(t *testing.T) {
			s := newSource(t)
			s.create("orders", 3)
			host, ev := memlog.New(), new(events)
			m, err := mirror.New(t.Context(), "dr", s.broker.Source(), host)
			require.NoError(t, err)
			if started {
				require.NoError(t, m.Start(t.Context()))
			}
			require.NoError(t, m.AddTopics(t.Context(), "orders"))
			if started {
				caughtUp(t, m)
			}
			require.NoError(t, m.Close())
			m = newMirror(t, s, host, mirror.OnEvent(ev.add))
			caughtUp(t, m)
			require.NoError(t, m.Close())
			require.Empty(t, ev.of(mirror.HealthChanged))
		})
	}
}

// Nothing is asked of the source for a partition that is paused or stopped: what it was last told of ends with that.
func TestAPauseAndAStopEndBadHealth(t *testing.T) {
	for what, do := range map[mirror.State]func(*mirror.Mirror, context.Context, ...string) error{
		mirror.Paused: (*mirror.Mirror).Pause, mirror.Stopped: (*mirror.Mirror).Remove,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, ev := newSource(t), new(events)
			s.create("orders", 1)
			m := mirrorOrders(t, s, memlog.New(), mirror.OnEvent(ev.add))
			require.NoError(t, s.broker.Close())
			eventually(t, "unreachable", func() bool { return state(t, m, "orders", 0).Health == mirror.Unreachable })
			require.NoError(t, do(m, t.Context(), "orders"))
			inState(t, m, 0, what)
			pass(time.Hour)
			list := ev.of(mirror.HealthChanged)
			require.Len(t, list, 2, "%v", list)
			require.Equal(t, string(mirror.OK), list[1].After)
		})
	}
}

// One partition's log takes no bytes for hours: the others don't wait for it, it is named as stalled, and goes on later.
func TestBlockedPartitionHoldsBackItselfOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 4)
		host, ev := memlog.New(), new(events)
		release := make(chan struct{})
		host.Fail(func(ctx context.Context, op memlog.Op, topic string, partition int32) error {
			if op == memlog.OpAppend && topic == "orders" && partition == 1 {
				select {
				case <-release:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
		m := newMirror(t, s, host, mirror.OnEvent(ev.add), mirror.ByteBudget(1<<20))
		require.NoError(t, m.AddTopics(t.Context(), "orders"))
		for range 50 {
			for num := range int32(4) {
				s.write("orders", num, 100)
			}
			pass(time.Minute)
		}
		for num := range int32(4) {
			if num != 1 {
				require.Equal(t, int64(5000), state(t, m, "orders", num).End, "%d", num)
			}
		}
		st := state(t, m, "orders", 1)
		require.Equal(t, mirror.Stalled, st.Health)
		require.Contains(t, st.Reason, "no record for")
		require.NotEmpty(t, ev.of(mirror.HealthChanged))
		close(release)
		caughtUp(t, m)
		requireSame(t, s, m, "orders", 4)
		require.Equal(t, mirror.OK, state(t, m, "orders", 1).Health)
	})
}

// A batch above every limit is let through alone (KIP-74).
func TestBatchAboveAllLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t)
		s.create("orders", 2)
		s.write("orders", 0, 3, 300_000, 3)
		s.write("orders", 1, 3, 3, 3)
		m := mirrorOrders(t, s, memlog.New(), mirror.FetchBytes(64<<10), mirror.PartitionFetchBytes(4<<10), mirror.ByteBudget(1<<20))
		requireSame(t, s, m, "orders", 2)
	})
}

// The host fails at its i-th call, for every i: each time the mirror ends up whole, by itself, once the host works again.
func TestHostFailsAtAnyCall(t *testing.T) {
	boom := errors.New("the disk is gone for a moment")
	for i := int64(1); ; i++ {
		var calls atomic.Int64
		synctest.Test(t, func(t *testing.T) {
			s := newSource(t)
			s.create("orders", 1)
			s.write("orders", 0, 3, 3)
			host := memlog.New()
			m, err := mirror.New(t.Context(), "dr", s.broker.Source(), host)
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close()) }()
			host.Fail(func(context.Context, memlog.Op, string, int32) error {
				if calls.Add(1) == i {
					return boom
				}
				return nil
			})
			require.NoError(t, m.Start(t.Context()))
			eventually(t, "added", func() bool {
				err := m.AddTopics(t.Context(), "orders")
				require.True(t, err == nil || errors.Is(err, boom), "%v", err)
				return err == nil
			})
			s.write("orders", 0, 3)
			eventually(t, "whole", func() bool { return state(t, m, "orders", 0).End == 9 })
			if err := m.Pause(t.Context(), "orders"); err != nil {
				require.ErrorIs(t, err, boom)
				require.NoError(t, m.Pause(t.Context(), "orders"))
			}
			eventually(t, "paused", func() bool { return state(t, m, "orders", 0).State == mirror.Paused })
			s.write("orders", 0, 3)
			if err := m.Resume(t.Context(), "orders"); err != nil {
				require.ErrorIs(t, err, boom)
				require.NoError(t, m.Resume(t.Context(), "orders"))
			}
			eventually(t, "whole", func() bool { return state(t, m, "orders", 0).End == 12 })
			caughtUp(t, m)
			host.Fail(nil)
			requireSame(t, s, m, "orders", 1)
		})
		if calls.Load() < i {
			require.Greater(t, i, int64(20), "no call was made to fail")
			return
		}
	}
}

// The same while topics change hands: a command that answers an error can be given again, and then does what it says.
func TestHostFailsAtAnyCallOfACommand(t *testing.T) {
	takenOver := func(t *testing.T, a, b *source, m *mirror.Mirror) {
		inState(t, m, 0, mirror.Stopped)
		require.NoError(t, b.c.CheckWrite("orders", 0))
		b.write("orders", 0, 2)
		addOrders(t, linked(t, "back", a, b))
		equal(t, a, b, "orders", 1)
	}
	mirrored := func(t *testing.T, a, b *source, m *mirror.Mirror) {
		inState(t, m, 0, mirror.Mirroring)
		caughtUp(t, m)
		equal(t, a, b, "orders", 1)
	}
	for _, x := range []struct {
		name  string
		begin func(t *testing.T, a, b *source, m *mirror.Mirror)
		do    func(*mirror.Mirror, context.Context, ...string) error
		end   func(t *testing.T, a, b *source, m *mirror.Mirror)
		opts  []mirror.MirrorOption
	}{
		{name: "Remove", begin: openTxn, do: (*mirror.Mirror).Remove, end: takenOver},
		{name: "Remove, TruncateToStable", begin: openTxn, do: (*mirror.Mirror).Remove, end: takenOver, opts: []mirror.MirrorOption{mirror.TruncateToStable(100)}},
		{name: "Promote", do: (*mirror.Mirror).Promote, end: takenOver},
		{name: "Resume", begin: removed(0), do: (*mirror.Mirror).Resume, end: mirrored},
		{name: "Overwrite", begin: removed(2), do: (*mirror.Mirror).Overwrite, end: mirrored},
	} {
		t.Run(x.name, func(t *testing.T) {
			for i := int64(1); ; i++ {
				var calls atomic.Int64
				inBubble(t, func(t *testing.T) {
					a, b := newOrders(t, 10), newSource(t)
					m := linked(t, "dr", b, a, x.opts...)
					addOrders(t, m)
					if x.begin != nil {
						x.begin(t, a, b, m)
					}
					mend := failing(b.host, func(memlog.Op, string, int32) bool { return calls.Add(1) == i })
					if err := x.do(m, within(t, time.Minute), "orders"); err != nil {
						require.ErrorContains(t, err, errDisk.Error())
						if err := x.do(m, within(t, time.Minute), "orders"); err != nil { // Promote has decided: the stop goes on by itself
							require.ErrorIs(t, err, mirror.ErrStopped)
						}
					}
					pass(time.Minute)
					mend()
					x.end(t, a, b, m)
				})
				if calls.Load() < i {
					require.Greater(t, i, int64(8))
					return
				}
			}
		})
	}
}

// openTxn leaves a transaction open in what is mirrored.
func openTxn(t *testing.T, a, _ *source, m *mirror.Mirror) {
	appendTo(t, a.partition("orders", 0), produced(5, 7, true))
	a.write("orders", 0, 3)
	caughtUp(t, m)
}

// removed stops the mirror, and writes on both sides.
func removed(here int) func(t *testing.T, a, b *source, m *mirror.Mirror) {
	return func(t *testing.T, a, b *source, m *mirror.Mirror) {
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		a.write("orders", 0, 4)
		if here > 0 {
			b.write("orders", 0, here)
		}
	}
}

// onlyClosed are the errors of calls that Close has cut, or that came later.
func onlyClosed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, mirror.ErrClosed)
		require.NotErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, mirror.ErrSourceUnreachable)
	}
}

// What Close cuts while it waits for the source answers ErrClosed, as everything does later, and nobody blames the source.
func TestCloseIsNoTroubleOfTheSource(t *testing.T) {
	calls := map[string]func(*mirror.Mirror, context.Context) error{
		"start":     func(m *mirror.Mirror, ctx context.Context) error { return m.Start(ctx) },
		"add":       func(m *mirror.Mirror, ctx context.Context) error { return m.AddTopics(ctx, "payments") },
		"overwrite": func(m *mirror.Mirror, ctx context.Context) error { return m.Overwrite(ctx, "payments") },
		"plan add":  func(m *mirror.Mirror, ctx context.Context) error { _, err := m.PlanAdd(ctx, "payments"); return err },
		"plan":      func(m *mirror.Mirror, ctx context.Context) error { _, err := m.PlanRemove(ctx); return err },
		"wait":      func(m *mirror.Mirror, ctx context.Context) error { return m.WaitCaughtUp(ctx) },
		"promote":   func(m *mirror.Mirror, ctx context.Context) error { return m.Promote(ctx, "orders") },
		"remove":    func(m *mirror.Mirror, ctx context.Context) error { return m.Remove(ctx, "orders") },
	}
	for _, dead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSource(t)
			s.create("orders", 2)
			var silent atomic.Bool
			m := mirrorOf(t, s.spoiled(func(c net.Conn) net.Conn {
				return &readConn{c, func(n int, _ []byte) (int, error) {
					if silent.Load() {
						return 0, nil // swallowed
					}
					return n, nil
				}}
			}), memlog.New())
			addOrders(t, m)
			pass(time.Second)
			silent.Store(true)
			if dead {
				require.NoError(t, s.broker.Close())
			}
			var g sync.WaitGroup
			for what, call := range calls {
				switch {
				case what == "plan" || what == "start" || what == "remove", dead && what != "wait" && what != "promote":
					continue // ends by itself
				}
				g.Go(func() { assert.ErrorIs(t, call(m, t.Context()), mirror.ErrClosed, what) })
			}
			pass(time.Second)
			before := state(t, m, "orders", 0)
			require.NoError(t, m.Close())
			g.Wait()
			require.Equal(t, before.Reason, state(t, m, "orders", 0).Reason)
			for what, call := range calls {
				err := call(m, t.Context())
				require.ErrorIs(t, err, mirror.ErrClosed, what)
				onlyClosed(t, err)
			}
		})
	}
}

// Close at any moment ends everything, and the next run goes on.
func TestCloseDuringAnything(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rng(seed)
			s := newSource(t)
			s.create("orders", 3)
			s.create("payments", 1)
			host := memlog.New()
			for range 5 {
				m, err := mirror.New(t.Context(), "dr", s.broker.Source(), host)
				require.NoError(t, err)
				done := make(chan []error, 1)
				go func() {
					done <- []error{
						m.Start(t.Context()),
						m.AddTopics(t.Context(), "orders", "payments"),
						m.Pause(t.Context(), "payments"),
						m.Resume(t.Context(), "payments"),
						m.WaitCaughtUp(t.Context()),
					}
				}()
				for num := range int32(3) {
					s.write("orders", num, 1+r.IntN(20))
				}
				pass(time.Duration(r.IntN(2000)) * time.Microsecond * time.Duration(1+r.IntN(500)))
				require.NoError(t, m.Close())
				for _, err := range <-done {
					onlyClosed(t, err)
				}
				if r.IntN(2) == 0 {
					host = host.Crash(r)
				}
			}
			m := newMirror(t, s, host)
			require.NoError(t, m.AddTopics(t.Context(), "orders", "payments"))
			require.NoError(t, m.Resume(t.Context(), "orders", "payments"))
			caughtUp(t, m)
			requireSame(t, s, m, "orders", 3)
		})
	}
}

// flipped is a host whose state has a flipped bit.
type flipped struct {
	*memlog.Host
	at int
}

type flippedLog struct {
	mirror.Log
	at int
}

func (h flipped) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	l, err := h.Host.OpenLog(ctx, topic, partition)
	if topic != mirror.StateTopic || err != nil {
		return l, err
	}
	return flippedLog{l, h.at}, nil
}

func (l flippedLog) Read(ctx context.Context, offset int64, buf []byte) (int, error) {
	n, err := l.Log.Read(ctx, offset, buf)
	at := l.at
	if all := readAll(ctx, l.Log); offset > 0 { // where the read begins
		for b, err := range mirror.Batches(all) {
			if err != nil || b.Base >= offset {
				break
			}
			at -= len(b.Bytes)
		}
	}
	if at >= 0 && n > at {
		buf[at] ^= 4
	}
	return n, err
}

// A state that is damaged is refused by name, with what its loss would mean, and nothing is changed: with the right bytes all goes on.
func TestADamagedStateIsRefusedAndLeftAsItIs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m := mirrorOrders(t, a, host)
		require.NoError(t, m.Remove(within(t, time.Minute), "orders"))
		require.NoError(t, m.Close())
		log, err := host.OpenLog(t.Context(), mirror.StateTopic, 0)
		require.NoError(t, err)
		before := readAll(t.Context(), log)
		at := 0
		for b, err := range mirror.Batches(before) {
			require.NoError(t, err)
			_, err := mirror.Open(t.Context(), flipped{host, at + len(b.Bytes) - 1})
			require.ErrorIs(t, err, mirror.ErrStateDamaged)
			require.ErrorContains(t, err, fmt.Sprintf("%s: open state log: damaged at offset %d: ", mirror.StateTopic, b.Base))
			require.ErrorContains(t, err, "all topics are writable")
			require.Equal(t, before, readAll(t.Context(), log))
			at += len(b.Bytes)
		}
		require.Greater(t, at, 1000)
		m = newMirror(t, a, host)
		require.Equal(t, int64(10), state(t, m, "orders", 0).Position.Offset)
	})
}

// The state loses its end while a mirror runs: commands name that, and mirroring goes on.
func TestAStateThatLosesItsEndIsNamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		a, host := newOrders(t, 10), memlog.New()
		m := mirrorOrders(t, a, host)
		log, err := host.OpenLog(t.Context(), mirror.StateTopic, 0)
		require.NoError(t, err)
		_, end := log.Bounds()
		mend := failing(host, on(memlog.OpAppend, mirror.StateTopic)) // so that it is looked at
		require.Error(t, m.Pause(within(t, time.Minute), "orders"))
		mend()
		require.NoError(t, log.TruncateTo(t.Context(), end-1))
		err = m.Remove(within(t, time.Minute), "orders")
		require.ErrorIs(t, err, mirror.ErrStateDamaged)
		var te *mirror.TopicError
		require.ErrorAs(t, err, &te)
		require.Contains(t, te.Next, "put the topic back from a copy, and Open again")
		a.write("orders", 0, 5)
		eventually(t, "mirrored on", func() bool { return state(t, m, "orders", 0).End == 15 })
		require.Error(t, m.Coordinator().CheckWrite("orders", 0))
	})
}
