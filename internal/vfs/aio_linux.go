package vfs

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Syncs that the kernel's own workers wait for, by io_submit(2) with IOCB_CMD_FDSYNC (Linux 4.18). A goroutine that waits in fdatasync
// holds one of the threads that run Go code, so of a thousand syncs only as many are under way as there are threads, and hardly any two
// share a commit of the file system's journal, or a flush of the disk. Left to the kernel many are, and a few commits serve them.

// maxRequests is how many the kernel may have at once: its workers serve all programs, and a disk that hangs must leave some to others.
// The next ones wait for an answer that makes room.
const maxRequests = 200

// patience is how long they do while no answer comes: the disk that hangs may be another one.
const patience = time.Second

// requests is the kernel's list of this process: made when it is first needed, and kept.
var requests = sync.OnceValue(func() *requestList {
	l := &requestList{open: make(map[uint64]*request)}
	if _, _, errno := syscall.Syscall(syscall.SYS_IO_SETUP, maxRequests, uintptr(unsafe.Pointer(&l.context)), 0); errno != 0 {
		l.broken = true // not allowed here, or the system has lent all it has
	}
	return l
})

type requestList struct {
	context uintptr // aio_context_t

	mu        sync.Mutex
	last      uint64
	open      map[uint64]*request // that the kernel has
	queue     []*request          // that it is to get, while it has maxRequests
	collector *request            // whose waiter takes the answers of all; nil if none is open
	stuck     bool                // no answer has come for a while
	broken    bool
}

// request is one sync.
type request struct {
	fd uintptr
	// turn comes when it is answered, or not taken, or is to collect. It is a Mutex, and no channel: who waits for the disk is not idle,
	// whatever bubble of testing/synctest it is in, and who answers may be in another.
	turn sync.Mutex
	done bool // this and the rest are guarded by the list's mu
	err  error
	own  bool // its waiter is to make it
}

// sync has the kernel make a sync, and waits for it. Not taken: the caller is to make it.
//
// Of all who wait one collects the answers, until it has its own; then the newest goes on, which has to wait longest.
func (l *requestList) sync(fd uintptr) (taken bool, err error) {
	r := &request{fd: fd}
	r.turn.Lock()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch full := len(l.open) >= maxRequests; {
	case l.broken, full && l.stuck:
		return false, nil
	case full:
		l.queue = append(l.queue, r)
	case !l.submit(r):
		return false, nil
	}
	l.mu.Unlock()
	r.turn.Lock()
	l.mu.Lock()
	for !r.done && !r.own {
		l.mu.Unlock()
		answers, err := l.collect()
		l.mu.Lock()
		l.answer(answers, err)
	}
	if l.collector == r {
		l.collector = nil
		if len(l.open) > 0 {
			l.appoint(l.open[slices.Max(slices.Collect(maps.Keys(l.open)))])
		}
	}
	return !r.own, r.err
}

// submit says whether the kernel takes a request; an older one does not, nor does any take a file that can't be synced. The caller
// holds mu, here and below.
func (l *requestList) submit(r *request) bool {
	l.last++
	cb := &iocb{data: l.last, opcode: cmdFDSync, fd: uint32(r.fd)}
	if _, _, errno := syscall.Syscall(syscall.SYS_IO_SUBMIT, l.context, 1, uintptr(unsafe.Pointer(&cb))); errno != 0 {
		return false
	}
	l.open[l.last] = r
	if l.collector == nil {
		l.appoint(r)
	}
	return true
}

func (l *requestList) appoint(r *request) {
	l.collector = r
	r.turn.Unlock()
}

// collect waits for answers; none comes if it takes too long. The caller does not hold mu.
func (l *requestList) collect() ([]ioEvent, error) {
	events, limit := make([]ioEvent, 64), syscall.NsecToTimespec(int64(patience))
	for range 100 { // a profiler interrupts that often while it waits
		n, _, errno := syscall.Syscall6(syscall.SYS_IO_GETEVENTS, l.context, 1, uintptr(len(events)),
			uintptr(unsafe.Pointer(&events[0])), uintptr(unsafe.Pointer(&limit)), 0)
		switch {
		case errno == 0:
			return events[:n], nil
		case !errors.Is(errno, syscall.EINTR):
			return nil, errno
		}
	}
	return nil, nil
}

// answer passes answers on, and has the kernel take more. If it fails there will be none: nobody knows what is on the disk.
func (l *requestList) answer(answers []ioEvent, failed error) {
	for _, e := range answers {
		var err error
		if e.result < 0 {
			err = syscall.Errno(-e.result)
		}
		l.tell(e.data, err)
	}
	if failed != nil {
		l.broken = true
		for id := range l.open {
			l.tell(id, failed)
		}
	}
	l.stuck = len(answers) == 0
	for len(l.queue) > 0 && (l.stuck || len(l.open) < maxRequests) {
		r := l.queue[0]
		l.queue = l.queue[1:]
		if l.stuck || !l.submit(r) {
			r.own = true
			r.turn.Unlock()
		}
	}
}

func (l *requestList) tell(id uint64, err error) {
	r := l.open[id]
	delete(l.open, id)
	r.done, r.err = true, err
	if r != l.collector {
		r.turn.Unlock()
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
