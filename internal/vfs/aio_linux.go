package vfs

import (
	"errors"
	"sync"
	"syscall"
	"unsafe"
)

// Syncs that the kernel's own workers wait for, by io_submit(2) with IOCB_CMD_FDSYNC (Linux 4.18). A goroutine that waits in fdatasync
// holds one of the threads that run Go code, so of a thousand syncs only as many are under way as there are threads, and hardly any two
// share a commit of the file system's journal, or a flush of the disk. Left to the kernel they all are, and a few commits serve them.

// maxRequests is how many may be under way; those beyond it are made one per thread, as without the kernel's help. The system lends
// 65,536 to all programs together (fs.aio-max-nr).
const maxRequests = 1024

// requests is the kernel's list of this process: made when it is first needed, and kept.
var requests = sync.OnceValue(func() *requestList {
	l := &requestList{open: make(map[uint64]*request)}
	if _, _, errno := syscall.Syscall(syscall.SYS_IO_SETUP, maxRequests, uintptr(unsafe.Pointer(&l.context)), 0); errno != 0 {
		return nil // not allowed here, or the system has lent all it has
	}
	return l
})

type requestList struct {
	context uintptr // aio_context_t

	mu   sync.Mutex
	last uint64
	open map[uint64]*request // that the kernel has not answered
}

// request is one that the kernel has. It is a Mutex that is waited for, and no channel: who waits for the disk is not idle, whatever
// bubble of testing/synctest it is in, and the one who answers may be in another.
type request struct {
	answered sync.Mutex
	err      error
}

func (r *request) wait() error {
	r.answered.Lock()
	return r.err
}

// submitSync leaves a sync to the kernel, which holds the file open from then on. nil: it does not take it.
func submitSync(fd uintptr) *request {
	l := requests()
	if l == nil {
		return nil
	}
	r := new(request)
	r.answered.Lock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	cb := &iocb{data: l.last, opcode: cmdFDSync, fd: uint32(fd)}
	if _, _, errno := syscall.Syscall(syscall.SYS_IO_SUBMIT, l.context, 1, uintptr(unsafe.Pointer(&cb))); errno != 0 {
		return nil // an older kernel, too many at once, or a file that can't be synced
	}
	l.open[l.last] = r
	if len(l.open) == 1 {
		go l.collect()
	}
	return r
}

// collect waits for answers until none is missing.
func (l *requestList) collect() {
	var events [64]ioEvent
	for {
		n, _, errno := syscall.Syscall6(syscall.SYS_IO_GETEVENTS, l.context, 1, uintptr(len(events)), uintptr(unsafe.Pointer(&events)), 0, 0)
		var left int
		switch {
		case errno == 0:
			left = l.answer(events[:n])
		case errors.Is(errno, syscall.EINTR):
			continue
		default:
			l.fail(errno)
		}
		if left == 0 {
			return
		}
	}
}

// answer passes answers on, and says how many are left to come.
func (l *requestList) answer(events []ioEvent) (left int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		var err error
		if e.result < 0 {
			err = syscall.Errno(-e.result)
		}
		l.tell(e.data, err)
	}
	return len(l.open)
}

// fail tells all who wait that there will be no answer: nobody knows what is on the disk.
func (l *requestList) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.open {
		l.tell(id, err)
	}
}

func (l *requestList) tell(id uint64, err error) {
	if r := l.open[id]; r != nil { // otherwise it has failed before
		delete(l.open, id)
		r.err = err
		r.answered.Unlock()
	}
}

// cmdFDSync, iocb and ioEvent are those of linux/aio_abi.h.
const cmdFDSync = 3

type iocb struct {
	data   uint64
	_      [2]uint32
	opcode uint16
	_      int16
	fd     uint32
	_      [5]uint64
}

type ioEvent struct {
	data   uint64
	_      uint64
	result int64
	_      int64
}
