package vfs

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
)

// syncing counts the syncs that are under way.
var syncing atomic.Int32

// threads bounds those that hold a thread each: with ten thousand the process would be ended. A channel from outside every bubble of
// testing/synctest: whoever waits for it is not idle.
var threads = make(chan struct{}, 4000)

// datasync leaves out what a reader of the file does not need (its times), so it often costs one write less than fsync. One that is
// alone waits for the disk by itself; of many at once the others are left to the kernel (aio_linux.go).
func datasync(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	alone := syncing.Add(1) == 1
	defer syncing.Add(-1)
	cerr := conn.Control(func(fd uintptr) { // held open until it ends
		taken := false
		if !alone {
			taken, err = requests().sync(fd)
		}
		if !taken {
			err = fdatasync(int(fd))
		}
	})
	if cerr != nil { // there is no other reason
		err = os.ErrClosed
	}
	if err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

func fdatasync(fd int) error {
	threads <- struct{}{}
	defer func() { <-threads }()
	for {
		if err := syscall.Fdatasync(fd); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
