package vfs

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

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

func TestMoreSyncsAtOnceThanTheKernelTakes(t *testing.T) {
	const files = maxRequests / 4
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range files {
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
}

func TestAnswersReachWhoAsked(t *testing.T) {
	l := &requestList{open: make(map[uint64]*request)}
	for id := range uint64(3) {
		l.open[id] = new(request)
		l.open[id].answered.Lock()
	}
	first, second, third := l.open[0], l.open[1], l.open[2]
	eio := syscall.EIO
	require.Equal(t, 1, l.answer([]ioEvent{{data: 1, result: -int64(eio)}, {data: 0}}))
	require.NoError(t, first.wait())
	require.ErrorIs(t, second.wait(), syscall.EIO)
	l.fail(syscall.EBADF)
	require.ErrorIs(t, third.wait(), syscall.EBADF)
	require.Zero(t, l.answer([]ioEvent{{data: 2}}), "it comes after all, and too late")
}
