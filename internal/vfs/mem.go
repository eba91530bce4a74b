package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

const sector = 512 // what a disk writes whole or not at all

// Mem is a file system in memory, for tests. It remembers beside each file and folder what of it is durable, so that
// Crash can tell what a power cut would leave. Folders are never durable before SyncDir of their parent, and Rename works
// within one folder only.
type Mem struct {
	mu    sync.Mutex
	root  *node
	locks map[string]bool
	hook  func(Call) error
	room  int64 // bytes that may still be written, if limited
	tight bool
}

// Call is one call of Mem, as a Hook sees it.
type Call struct {
	Op   string // create, open, mkdir, rename, remove, list, syncdir, lock, read, write, size, truncate, sync
	Name string
	Off  int64 // read and write: where; truncate: the new size
	Len  int   // read and write: how much
}

func (c Call) String() string {
	switch c.Op {
	case "read", "write":
		return fmt.Sprintf("%s %s %d+%d", c.Op, c.Name, c.Off, c.Len)
	case "truncate":
		return fmt.Sprintf("%s %s %d", c.Op, c.Name, c.Off)
	}
	return c.Op + " " + c.Name
}

// Changes says whether the call may change what is on disk.
func (c Call) Changes() bool {
	switch c.Op {
	case "open", "list", "read", "size", "lock":
		return false
	}
	return true
}

// Short is an error for a Hook to give back for a write: N bytes are written, then Err is returned.
type Short struct {
	N   int
	Err error
}

func (s *Short) Error() string { return fmt.Sprintf("%d bytes written: %v", s.N, s.Err) }
func (s *Short) Unwrap() error { return s.Err }

// node is a file or a folder.
type node struct {
	dir bool

	data    []byte // a file's bytes now
	durable []byte // and as of its last sync
	writes  []fileOp

	names        map[string]*node // a folder's names now
	durableNames map[string]*node // and as of its last sync
	moves        []dirOp
}

// fileOp is a write, or with nil data a cut to off.
type fileOp struct {
	off  int64
	data []byte
}

// dirOp gives names to nodes, or takes them away (nil), all at once.
type dirOp map[string]*node

func newDir() *node {
	return &node{dir: true, names: map[string]*node{}, durableNames: map[string]*node{}}
}

// NewMem is an empty file system.
func NewMem() *Mem { return &Mem{root: newDir(), locks: map[string]bool{}} }

// Hook has f called before each call; an error it returns fails the call, which then has no effect (but see Short). f may
// be called concurrently and may use Crash.
func (m *Mem) Hook(f func(Call) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = f
}

// Limit leaves room for n more bytes: a write beyond writes what fits and fails with ENOSPC. Removing and cutting files
// gives their bytes back. A negative n lifts the limit.
func (m *Mem) Limit(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room, m.tight = n, n >= 0
}

// Crash is a copy of the file system as a power cut now might leave it: all that is durable, and of the rest a part that r
// chooses: writes whole, in parts of a sector each, with zeros where a part is missing, or not at all, whatever their
// order; names likewise. Nothing is locked in the copy, and everything is durable.
func (m *Mem) Crash(r *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem()
	c.root = m.root.crash(r, map[*node]*node{})
	return c
}

// Clone is a copy with everything in it, durable: what a process that was killed leaves.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem()
	c.root = m.root.clone()
	return c
}

func (n *node) clone() *node {
	if !n.dir {
		return &node{data: slices.Clone(n.data), durable: slices.Clone(n.data)}
	}
	c := newDir()
	for name, child := range n.names {
		c.names[name] = child.clone()
	}
	c.durableNames = maps.Clone(c.names)
	return c
}

func (n *node) crash(r *rand.Rand, seen map[*node]*node) *node {
	if c, ok := seen[n]; ok { // under two names, where of a rename only one half survived an earlier crash
		return c
	}
	// The extremes are the likeliest cuts, and mixtures the meanest.
	chance := func() func() bool {
		p := [...]float64{0, 1, 0.5, 0.9}[r.IntN(4)]
		return func() bool { return r.Float64() < p }
	}
	keep, keepSector := chance(), chance()
	if !n.dir {
		c := &node{data: slices.Clone(n.durable)}
		seen[n] = c
		for _, op := range n.writes {
			switch {
			case op.data == nil && keep():
				c.data = resize(c.data, op.off)
			case op.data != nil && keep():
				c.tear(op, keepSector)
			}
		}
		c.durable = slices.Clone(c.data)
		return c
	}
	c := newDir()
	seen[n] = c
	names := maps.Clone(n.durableNames)
	for _, op := range n.moves {
		if keep() {
			op.apply(names)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) { // sorted: r must give the same crash again
		c.names[name] = names[name].crash(r, seen)
	}
	c.durableNames = maps.Clone(c.names)
	return c
}

// tear writes those sectors of a write that are kept. The length may be kept although bytes are not.
func (n *node) tear(op fileOp, keep func() bool) {
	if end := op.off + int64(len(op.data)); keep() && end > int64(len(n.data)) {
		n.data = resize(n.data, end)
	}
	for data, off := op.data, op.off; len(data) > 0; {
		k := min(sector-int(off%sector), len(data))
		if keep() {
			n.put(off, data[:k])
		}
		data, off = data[k:], off+int64(k)
	}
}

func (n *node) put(off int64, p []byte) {
	if end := off + int64(len(p)); end > int64(len(n.data)) {
		n.data = resize(n.data, end)
	}
	copy(n.data[off:], p)
}

func resize(b []byte, size int64) []byte {
	if size <= int64(len(b)) {
		return b[:size:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

func (op dirOp) apply(names map[string]*node) {
	for name, n := range op {
		if n == nil {
			delete(names, name)
		} else {
			names[name] = n
		}
	}
}

func (n *node) move(op dirOp) {
	op.apply(n.names)
	n.moves = append(n.moves, op)
}

// call asks the hook.
func (m *Mem) call(c Call) error {
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(c)
}

func pathError(op, name string, err error) error { return &os.PathError{Op: op, Path: name, Err: err} }

// find walks to a name. Callers hold m.mu.
func (m *Mem) find(name string) (*node, error) {
	n := m.root
	for part := range strings.SplitSeq(filepath.Clean(name), string(filepath.Separator)) {
		if part == "" || part == "." {
			continue
		}
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.names[part]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

// parent is the folder a name is in, and its last part. Callers hold m.mu.
func (m *Mem) parent(name string) (*node, string, error) {
	dir, err := m.find(filepath.Dir(name))
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	return dir, filepath.Base(name), err
}

// in does f under the lock, after the hook, for a call that names a path.
func (m *Mem) in(op, name string, f func() error) error {
	if err := m.call(Call{Op: op, Name: name}); err != nil {
		return pathError(op, name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := f(); err != nil {
		return pathError(op, name, err)
	}
	return nil
}

func (m *Mem) Create(name string) (File, error) {
	var f *memFile
	err := m.in("create", name, func() error {
		dir, base, err := m.parent(name)
		if err != nil {
			return err
		}
		n := dir.names[base]
		switch {
		case n == nil:
			n = &node{}
			dir.move(dirOp{base: n})
		case n.dir:
			return syscall.EISDIR
		default:
			m.truncate(n, 0)
		}
		f = &memFile{fs: m, name: name, node: n, write: true}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (m *Mem) Open(name string, write bool) (File, error) {
	var f *memFile
	err := m.in("open", name, func() error {
		n, err := m.find(name)
		if err != nil {
			return err
		}
		if n.dir {
			return syscall.EISDIR
		}
		f = &memFile{fs: m, name: name, node: n, write: write}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (m *Mem) Mkdir(name string) error {
	return m.in("mkdir", name, func() error {
		dir, base, err := m.parent(name)
		if err != nil {
			return err
		}
		switch n := dir.names[base]; {
		case n == nil:
			dir.move(dirOp{base: newDir()})
		case !n.dir:
			return fs.ErrExist
		}
		return nil
	})
}

func (m *Mem) Rename(from, to string) error {
	return m.in("rename", to, func() error {
		dir, base, err := m.parent(from)
		if err != nil {
			return err
		}
		if filepath.Dir(from) != filepath.Dir(to) {
			return syscall.EXDEV
		}
		n := dir.names[base]
		if n == nil {
			return fs.ErrNotExist
		}
		dir.move(dirOp{base: nil, filepath.Base(to): n})
		return nil
	})
}

func (m *Mem) Remove(name string) error {
	return m.in("remove", name, func() error {
		dir, base, err := m.parent(name)
		if err != nil {
			return err
		}
		n := dir.names[base]
		switch {
		case n == nil:
			return fs.ErrNotExist
		case n.dir && len(n.names) > 0:
			return syscall.ENOTEMPTY
		}
		m.room += int64(len(n.data))
		dir.move(dirOp{base: nil})
		return nil
	})
}

func (m *Mem) List(name string) (names []string, err error) {
	err = m.in("list", name, func() error {
		n, err := m.find(name)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		names = slices.Sorted(maps.Keys(n.names))
		return nil
	})
	return names, err
}

func (m *Mem) SyncDir(name string) error {
	return m.in("syncdir", name, func() error {
		n, err := m.find(name)
		if err != nil {
			return err
		}
		if !n.dir {
			return syscall.ENOTDIR
		}
		for _, op := range n.moves {
			op.apply(n.durableNames)
		}
		n.moves = nil
		return nil
	})
}

func (m *Mem) Lock(name string) (io.Closer, error) {
	if err := m.call(Call{Op: "lock", Name: name}); err != nil {
		return nil, pathError("lock", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("lock", name, err)
	}
	if m.locks[name] {
		return nil, ErrLocked
	}
	m.locks[name] = true
	if dir.names[base] == nil {
		dir.move(dirOp{base: &node{}})
	}
	return &memLock{m, name}, nil
}

type memLock struct {
	fs   *Mem
	name string
}

func (l *memLock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locks, l.name)
	return nil
}

// truncate is called with m.mu held.
func (m *Mem) truncate(n *node, size int64) {
	m.room += int64(len(n.data)) - size
	n.data = resize(n.data, size)
	n.writes = append(n.writes, fileOp{off: size})
}

// memFile is an open file.
type memFile struct {
	fs    *Mem
	name  string
	node  *node
	write bool

	closed bool // under fs.mu
}

func (f *memFile) do(c Call, change func() error) error {
	c.Name = f.name
	if err := f.fs.call(c); err != nil {
		return pathError(c.Op, f.name, err)
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	switch {
	case f.closed:
		return pathError(c.Op, f.name, fs.ErrClosed)
	case !f.write && (c.Op == "write" || c.Op == "truncate"):
		return pathError(c.Op, f.name, syscall.EBADF)
	}
	err := change()
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return pathError(c.Op, f.name, err)
}

func (f *memFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.do(Call{Op: "read", Off: off, Len: len(p)}, func() error {
		if off < int64(len(f.node.data)) {
			n = copy(p, f.node.data[off:])
		}
		if n < len(p) {
			return io.EOF
		}
		return nil
	})
	return n, err
}

func (f *memFile) WriteAt(p []byte, off int64) (n int, err error) {
	put := func(p []byte) {
		if len(p) == 0 {
			return
		}
		f.node.put(off, p)
		f.node.writes = append(f.node.writes, fileOp{off, slices.Clone(p)})
		n = len(p)
	}
	err = f.do(Call{Op: "write", Off: off, Len: len(p)}, func() error {
		grow := max(0, off+int64(len(p))-int64(len(f.node.data)))
		if f.fs.tight && grow > f.fs.room {
			short := int64(len(p)) - (grow - max(0, f.fs.room))
			if short > 0 {
				f.fs.room = 0
				put(p[:short])
			}
			return syscall.ENOSPC
		}
		f.fs.room -= grow
		put(p)
		return nil
	})
	if short := (*Short)(nil); errors.As(err, &short) && short.N < len(p) {
		f.fs.mu.Lock()
		defer f.fs.mu.Unlock()
		put(p[:short.N])
	}
	return n, err
}

func (f *memFile) Size() (size int64, err error) {
	err = f.do(Call{Op: "size"}, func() error {
		size = int64(len(f.node.data))
		return nil
	})
	return size, err
}

func (f *memFile) Truncate(size int64) error {
	return f.do(Call{Op: "truncate", Off: size}, func() error {
		f.fs.truncate(f.node, size)
		return nil
	})
}

// Sync makes durable what was written since the last one. One that the hook fails loses just that: a later Sync takes
// for written what readers still see, as Linux does.
func (f *memFile) Sync() error {
	lost := true
	err := f.do(Call{Op: "sync"}, func() error {
		n := node{data: f.node.durable}
		for _, op := range f.node.writes {
			if op.data == nil {
				n.data = resize(n.data, op.off)
			} else {
				n.put(op.off, op.data)
			}
		}
		f.node.durable, f.node.writes, lost = n.data, nil, false
		return nil
	})
	if lost {
		f.fs.mu.Lock()
		defer f.fs.mu.Unlock()
		f.node.writes = nil
	}
	return err
}

func (f *memFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	return nil
}
