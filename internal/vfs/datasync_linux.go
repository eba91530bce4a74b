package vfs

import (
	"errors"
	"os"
	"syscall"
)

// datasync leaves out what a reader of the file does not need (its times), so it often costs one write less than fsync.
func datasync(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) {
		for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
			err = syscall.Fdatasync(int(fd))
		}
	})
	switch {
	case cerr != nil:
		return cerr
	case err != nil:
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}
