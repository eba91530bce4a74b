package mirror

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGate(t *testing.T) {
	var g gate
	require.NoError(t, g.check("orders", 0), "a topic in no mirror is open")

	g.closeTopic("orders", "dr", 2)
	var ro *ReadOnlyError
	require.ErrorAs(t, g.check("orders", 1), &ro)
	require.Equal(t, ReadOnlyError{Topic: "orders", Mirror: "dr"}, *ro)
	require.NoError(t, g.check("payments", 0))
	require.Error(t, g.check("orders", 7), "a partition that the gate does not know yet is closed")
	require.Error(t, g.check("orders", -1))

	g.setOpen("orders", 1, true)
	require.NoError(t, g.check("orders", 1))
	require.Error(t, g.check("orders", 0))

	g.grow("orders", "dr", 3)
	require.NoError(t, g.check("orders", 1), "what was open stays open")
	require.Error(t, g.check("orders", 2), "what is new is closed")

	require.Error(t, g.check("orders", 3))
	g.setOpen("orders", 0, true)
	g.setOpen("orders", 1, true)
	require.Error(t, g.check("orders", 3), "one is still mirrored")
	g.setOpen("orders", 2, true)
	require.NoError(t, g.check("orders", 3), "the topic was taken over, and the host has added a partition")
	g.setOpen("orders", 0, false)
	require.Error(t, g.check("orders", 3))

	g.forbid("__state", ErrClosed)
	require.ErrorIs(t, g.check("__state", 0), ErrClosed)

	g.release("orders")
	require.NoError(t, g.check("orders", 0))

	g.close(ErrFenced)
	require.ErrorIs(t, g.check("orders", 0), ErrFenced)
	g.close(ErrClosed)
	require.ErrorIs(t, g.check("payments", 0), ErrFenced, "the first reason stays")
}

func TestGateDoesNotAllocate(t *testing.T) {
	g := busyGate()
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = g.check("topic-500", 3) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = g.check("elsewhere", 3) }))
}

func busyGate() *gate {
	var g gate
	for i := range 1000 {
		g.closeTopic("topic-"+string(rune('0'+i/100))+string(rune('0'+i/10%10))+string(rune('0'+i%10)), "dr", 8)
	}
	return &g
}

func BenchmarkCheckWrite(b *testing.B) {
	g := busyGate()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_ = g.check("topic-500", 3)
		}
	})
}
