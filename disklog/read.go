package disklog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"sort"
	"time"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

// snapshot calls f with a view, and again if something came between that makes its answer void. A cut does: bytes at a
// position of a file are what the view says of them only until it comes, after which other batches may stand there. The
// loss of a prefix does not, as open files stay readable, unless a file was gone before it was opened.
func (l *log) snapshot(ctx context.Context, beyond int64, f func(*view) error) error {
	var tried *view
	var wait patience
	for {
		if err := errors.Join(ctx.Err(), l.usable()); err != nil {
			return err
		}
		v, err := l.current(ctx, beyond, tried)
		if err != nil {
			return err
		}
		err = f(v)
		now, berr := l.latestBounds()
		switch {
		case berr != nil:
			return berr
		case now.Cuts != v.cuts: // again
		case err == nil:
			return nil
		case l.gone.Load():
			return l.usable()
		case l.host.readOnly && wait.more(now): // the process that writes the folder may have changed it in any way
		case !l.host.readOnly && errors.Is(err, fs.ErrNotExist) && now.Start != v.start:
		default:
			return err
		}
		tried = v
	}
}

// patience is for errors in a folder that another process writes: they are put down to its changes as long as it makes any, and
// a few times more, since not every change shows in the bounds.
type patience struct {
	tries  int
	bounds bounds // at the last error
}

const rereads = 3

// more says whether to try again, after an error with these bounds.
func (p *patience) more(now bounds) bool {
	if now.Start != p.bounds.Start || now.Cuts != p.bounds.Cuts {
		*p = patience{bounds: now}
	}
	p.tries++
	return p.tries <= rereads
}

// current is the view to read. Of a folder that another process writes it is made anew if the one at hand does not reach
// beyond an offset, or was tried.
func (l *log) current(ctx context.Context, beyond int64, tried *view) (*view, error) {
	v := l.view.Load()
	if v.loaded && (!l.host.readOnly || v.end > beyond && v != tried) {
		return v, nil
	}
	if err := l.writer.lock(ctx); err != nil {
		return nil, err
	}
	defer l.writer.unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	if l.host.readOnly {
		return l.refresh(ctx)
	}
	err := l.load(ctx)
	return l.view.Load(), err
}

// latestBounds are those after a view was used: of a folder that another process writes, what is on disk.
func (l *log) latestBounds() (bounds, error) {
	if l.host.readOnly {
		return l.readBounds()
	}
	v := l.view.Load()
	return bounds{Start: v.start, Cuts: v.cuts}, nil
}

func (l *log) read(ctx context.Context, offset int64, buf []byte) (n int, err error) {
	err = l.snapshot(ctx, offset, func(v *view) error {
		n = 0
		switch {
		case offset < v.start || offset > v.end:
			return fmt.Errorf("%w: offset %d, log from %d to %d", mirror.ErrOutOfRange, offset, v.start, v.end)
		case offset == v.end || len(buf) == 0:
			return nil
		}
		for i := v.holding(offset); i < v.count() && n < len(buf); i++ {
			s, size := v.segment(i)
			pos := int64(0)
			if n == 0 {
				if pos, err = l.position(ctx, v, i, offset); err != nil {
					return err
				}
			}
			if pos == size {
				continue // offset lies in the gap behind the segment
			}
			err := l.with(s, logFile, false, func(f vfs.File) error {
				k, err := f.ReadAt(buf[n:min(int64(len(buf)), int64(n)+size-pos)], pos)
				n += k
				if errors.Is(err, io.EOF) {
					err = nil
					if pos+int64(k) < size && n < len(buf) {
						err = &CorruptError{File: l.path(s.base, logFile), Position: pos + int64(k), Err: io.ErrUnexpectedEOF}
					}
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		n = 0
	}
	return n, err
}

// holding is the segment in which to look for an offset first.
func (v *view) holding(offset int64) int {
	n := sort.Search(v.count(), func(i int) bool {
		s, _ := v.segment(i)
		return s.base > offset
	})
	return max(0, n-1)
}

// position is where in the i-th segment the first batch begins that reaches beyond an offset; its size if none does. An
// index that turns out to be damaged is mended on the way.
func (l *log) position(ctx context.Context, v *view, i int, offset int64) (int64, error) {
	pos, damaged, err := l.find(v, i, offset)
	if err == nil && damaged && v.cuts == l.view.Load().cuts { // else a cut may have changed it while we looked
		s, _ := v.segment(i)
		l.repair(ctx, s)
	}
	return pos, err
}

// find is position, without the mending.
func (l *log) find(v *view, i int, offset int64) (pos int64, damaged bool, err error) {
	s, size := v.segment(i)
	err = l.with(s, logFile, false, func(f vfs.File) error {
		sc := newScanner(f, size)
		defer sc.close()
		pos, damaged, err = l.indexed(v, i, sc, offset)
		for err == nil && pos < size {
			h, err := sc.header(pos)
			if err != nil {
				return l.damage(s, pos, err)
			}
			if h.Next() > offset {
				break
			}
			pos += int64(h.Size())
		}
		return err
	})
	return pos, damaged, err
}

// indexed is where to begin the search for an offset: the batch of the last index entry at or below it.
func (l *log) indexed(v *view, i int, sc *scanner, offset int64) (pos int64, damaged bool, err error) {
	s, _ := v.segment(i)
	err = l.entries(s, indexFile, v.ifActive(i), func(e *entries) error {
		n, err := e.first(func(last, _ int64) bool { return last > offset-s.base })
		if err != nil || n == 0 {
			return err
		}
		last, at, err := e.at(n - 1)
		if err != nil {
			return err
		}
		h, err := sc.header(at)
		if err != nil && !isDamage(err) {
			return err
		}
		if damaged = err != nil || h.Next()-1-s.base != last; !damaged {
			pos = at
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, true, nil
	}
	return pos, damaged, err
}

// ifActive is v if its i-th segment is the active one: then v knows how far its indexes go.
func (v *view) ifActive(i int) *view {
	if i == len(v.sealed) {
		return v
	}
	return nil
}

// offsetForTime is the base of the first batch whose max timestamp is at or above t, -1 if there is none.
func (l *log) offsetForTime(ctx context.Context, t time.Time) (base int64, err error) {
	ms := t.UnixMilli()
	if time.UnixMilli(ms).Before(t) {
		ms++
	}
	err = l.snapshot(ctx, math.MaxInt64, func(v *view) error {
		base = -1
		for i := 0; i < v.count() && base < 0; i++ {
			youngest, err := l.lastTime(v, i)
			if err != nil {
				return err
			}
			if youngest == unknownTime && i < len(v.sealed) {
				l.repair(ctx, v.sealed[i]) // so that the next look-up is quick
			}
			if youngest < ms {
				continue
			}
			if base, err = l.findTime(ctx, v, i, ms, youngest != unknownTime); err != nil {
				return err
			}
		}
		return nil
	})
	return base, err
}

const unknownTime = math.MaxInt64

// lastTime is the greatest timestamp in the i-th segment, -1 if its records have none, unknownTime if the time index
// does not say, or says what is not so.
func (l *log) lastTime(v *view, i int) (ts int64, err error) {
	if i == len(v.sealed) {
		if v.unsure {
			return unknownTime, nil
		}
		return v.grow.max, nil
	}
	s, at := v.sealed[i], int64(-1)
	err = l.entries(s, timeFile, nil, func(e *entries) error {
		if ts = -1; e.n() > 0 {
			ts, at, err = e.at(e.n() - 1)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return unknownTime, nil
	}
	if err != nil || at == -1 {
		return ts, err
	}
	pos, _, err := l.find(v, i, s.base+at)
	if err != nil {
		return 0, err
	}
	err = l.walk(s, pos, s.size, func(h *batch.Header) bool {
		if h.MaxTimestamp != ts || h.Next()-1-s.base != at {
			ts = unknownTime
		}
		return false
	})
	if pos == s.size {
		ts = unknownTime
	}
	return ts, err
}

// findTime is the base of the first batch in the i-th segment whose max timestamp is at or above ms; -1 if there is none.
func (l *log) findTime(ctx context.Context, v *view, i int, ms int64, indexed bool) (int64, error) {
	s, size := v.segment(i)
	from := v.start
	if indexed {
		err := l.entries(s, timeFile, v.ifActive(i), func(e *entries) error {
			n, err := e.first(func(ts, _ int64) bool { return ts >= ms })
			if err != nil || n == 0 {
				return err
			}
			_, at, err := e.at(n - 1) // no batch up to this one is young enough
			from = max(from, s.base+at+1)
			return err
		})
		if err != nil {
			return -1, err
		}
	}
	pos, err := l.position(ctx, v, i, from)
	if err != nil {
		return -1, err
	}
	base := int64(-1)
	err = l.walk(s, pos, size, func(h *batch.Header) bool {
		if h.MaxTimestamp >= ms {
			base = h.Base
		}
		return base < 0
	})
	return base, err
}

// walk shows each batch of a segment from a position on, until f says no.
func (l *log) walk(s *segment, pos, size int64, f func(*batch.Header) bool) error {
	return l.with(s, logFile, false, func(file vfs.File) error {
		sc := newScanner(file, size)
		defer sc.close()
		for pos < size {
			h, err := sc.header(pos)
			if err != nil {
				return l.damage(s, pos, err)
			}
			if !f(&h) {
				return nil
			}
			pos += int64(h.Size())
		}
		return nil
	})
}
