package vfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Syncs that are left to the kernel answer as those that are made alone.
func TestSyncsAtOnceAnswerAsOneAlone(t *testing.T) {
	for _, others := range []int32{0, 1} {
		t.Run(fmt.Sprint(others, " others"), func(t *testing.T) {
			syncing.Add(others)
			defer syncing.Add(-others)

			f := write(t, OS, filepath.Join(t.TempDir(), "a"), "hello")
			require.NoError(t, f.Sync())
			require.NoError(t, f.Close())
			require.ErrorIs(t, f.Sync(), os.ErrClosed)

			r, w, err := os.Pipe()
			require.NoError(t, err)
			defer r.Close()
			defer w.Close()
			err = datasync(w)
			require.ErrorIs(t, err, syscall.EINVAL)
			require.ErrorContains(t, err, "fdatasync |1: ")
		})
	}
}

// Ten at once for each of more files than the kernel takes requests.
func TestMoreSyncsAtOnceThanTheKernelTakes(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range maxRequests + 50 {
		f := write(t, OS, filepath.Join(dir, fmt.Sprint(i)), "hello")
		defer f.Close()
		for range 10 {
			all.Go(func() {
				_, err := f.WriteAt([]byte("HELLO"), 0)
				if err == nil {
					err = f.Sync()
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	require.Zero(t, syncing.Load())
	require.Empty(t, requests().open)
	require.Nil(t, requests().collector)
}

// Syncs in a bubble and outside of it at once: whoever collects may be in another one than who waits.
func TestSyncsInsideAndOutsideOfABubble(t *testing.T) {
	var over atomic.Bool
	var others sync.WaitGroup
	dir := t.TempDir()
	for i := range 20 {
		f := write(t, OS, filepath.Join(dir, fmt.Sprint(i)), "hello")
		others.Go(func() {
			defer f.Close()
			for !over.Load() {
				if err := errors.Join(sub(f), f.Sync()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		for i := range 10 {
			f := write(t, OS, filepath.Join(dir, fmt.Sprint("bubble ", i)), "hello")
			require.NoError(t, f.Sync())
			require.NoError(t, f.Close())
			<-time.After(time.Hour)
		}
	})
	over.Store(true)
	others.Wait()
}

func sub(f File) error {
	_, err := f.WriteAt([]byte("HELLO"), 0)
	return err
}

// listed is a list without a kernel behind it, which has requests 1 to n; the first one collects.
func listed(n uint64) *requestList {
	l := &requestList{open: make(map[uint64]*request)}
	for id := range n {
		r := new(request)
		r.turn.Lock()
		l.open[id+1] = r
	}
	l.appoint(l.open[1])
	return l
}

func TestAnswersReachWhoAsked(t *testing.T) {
	l := listed(3)
	first, second, third := l.open[1], l.open[2], l.open[3]
	eio := syscall.EIO
	l.answer([]ioEvent{{data: 2, result: -int64(eio)}, {data: 1}}, nil)
	second.turn.Lock()
	require.Equal(t, syscall.EIO, second.err)
	require.True(t, first.done)
	require.NoError(t, first.err)
	require.False(t, third.done)
	require.Len(t, l.open, 1)
}

// The kernel gives no answers any more: those that it has fail, as nobody knows what is on the disk, and it gets no more.
func TestWithoutAnswersSyncsFailOnce(t *testing.T) {
	l := listed(2)
	queued := new(request)
	queued.turn.Lock()
	l.queue = append(l.queue, queued)
	second := l.open[2]
	l.answer(nil, syscall.EPERM)
	second.turn.Lock()
	require.Equal(t, syscall.EPERM, second.err)
	queued.turn.Lock()
	require.True(t, queued.own)
	taken, err := l.sync(0)
	require.NoError(t, err)
	require.False(t, taken)
}

// All that the kernel has hang: the others are made without it, at once, until an answer comes.
func TestADiskThatHangsHoldsUpItselfOnly(t *testing.T) {
	l := listed(maxRequests)
	queued := new(request)
	queued.turn.Lock()
	l.queue = append(l.queue, queued)
	l.answer(nil, nil)
	queued.turn.Lock()
	require.True(t, queued.own)
	taken, err := l.sync(0)
	require.NoError(t, err)
	require.False(t, taken)
	l.answer([]ioEvent{{data: 7}}, nil)
	require.False(t, l.stuck)
}
