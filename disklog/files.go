package disklog

import (
	"container/list"
	"errors"
	"sync"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/vfs"
)

// files keeps at most max files open between uses. A slot is the place of one file; the file behind it is opened when it
// is used and closed when others need the room. That is safe without a sync: a later Sync through another opening of the
// same file covers what was written before.
type files struct {
	max int

	mu     sync.Mutex
	closed bool
	idle   list.List // of *openFile, most recently used first
	open   int
}

type slot struct{ file *openFile } // guarded by files.mu

type openFile struct {
	vfs.File
	slot  *slot // nil: forgotten, to be closed when the last user leaves
	users int
	elem  *list.Element // in idle, while users is 0
}

// with calls use with the slot's file, opening it if need be.
func (c *files) with(s *slot, open func() (vfs.File, error), use func(vfs.File) error) error {
	f, err := c.acquire(s, open)
	if err != nil {
		return err
	}
	defer c.release(f)
	return use(f.File)
}

func (c *files) acquire(s *slot, open func() (vfs.File, error)) (*openFile, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, mirror.ErrClosed
	}
	if f := s.file; f != nil {
		c.use(f)
		c.mu.Unlock()
		return f, nil
	}
	c.open++ // counted before it is opened, so that many at once make room for each other
	victims := c.surplus()
	c.mu.Unlock()
	closeAll(victims)

	raw, err := open()

	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.open--
		return nil, err
	}
	if f := s.file; f != nil { // another user opened it meanwhile
		c.open--
		c.use(f)
		return f, errors.Join(raw.Close())
	}
	f := &openFile{File: raw, slot: s, users: 1}
	s.file = f
	return f, nil
}

// use is called with c.mu held.
func (c *files) use(f *openFile) {
	if f.users++; f.elem != nil {
		c.idle.Remove(f.elem)
		f.elem = nil
	}
}

// surplus takes out the files to close. It is called with c.mu held.
func (c *files) surplus() (victims []*openFile) {
	for c.open > c.max && c.idle.Len() > 0 {
		f := c.idle.Remove(c.idle.Back()).(*openFile)
		f.elem = nil
		c.drop(f)
		victims = append(victims, f)
	}
	return victims
}

// drop is called with c.mu held.
func (c *files) drop(f *openFile) {
	c.open--
	if f.slot != nil {
		f.slot.file = nil
	}
	f.slot = nil
}

func (c *files) release(f *openFile) {
	var victims []*openFile
	c.mu.Lock()
	if f.users--; f.users == 0 {
		switch {
		case f.slot == nil:
			victims = []*openFile{f}
		case c.closed:
			c.drop(f)
			victims = []*openFile{f}
		default:
			f.elem = c.idle.PushFront(f)
			victims = c.surplus()
		}
	}
	c.mu.Unlock()
	closeAll(victims)
}

// forget closes the slot's file as soon as nobody uses it. The slot must not be used again, except to open anew what has
// the same name.
func (c *files) forget(s *slot) {
	var victims []*openFile
	c.mu.Lock()
	if f := s.file; f != nil {
		c.drop(f)
		if f.elem != nil {
			c.idle.Remove(f.elem)
			f.elem = nil
			victims = []*openFile{f}
		}
	}
	c.mu.Unlock()
	closeAll(victims)
}

// close closes what is idle, and the rest when its users leave.
func (c *files) close() {
	c.mu.Lock()
	c.closed, c.max = true, -1
	victims := c.surplus()
	c.mu.Unlock()
	closeAll(victims)
}

// closeAll ignores errors: what must not be lost was synced, and a file that was only read has nothing to lose.
func closeAll(fs []*openFile) {
	for _, f := range fs {
		_ = f.Close()
	}
}
