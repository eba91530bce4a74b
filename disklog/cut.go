package disklog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/clustermirror/mirror/internal/vfs"
)

// bounds is the small file in a partition's folder that says what its segments can't: where the log starts, and which
// cut is under way. A log that was never cut has none.
//
// A cut is decided when bounds that name it are durable. Whatever happens then, the log is cut: what is left to do is done
// by the call itself, or else before the next change, or when the log is opened again.
type bounds struct {
	Start int64  `json:"start"`
	Cuts  int64  `json:"cuts"`          // made so far; tells a reader in another process that what it read may be void
	Cut   *int64 `json:"cut,omitempty"` // each batch that reaches beyond is to be dropped
}

const boundsFile = "bounds"

// owed is what must be done on disk before the log may change again.
type owed struct {
	drop   []*segment // their files are to be removed
	trim   bool       // the files of the active segment are to be cut to what the view shows
	bounds bool       // the bounds file is to be written
}

// settle does what is owed. Writer is held.
func (l *log) settle(ctx context.Context) error {
	if !l.behind.Load() {
		return nil
	}
	if err := l.flushing.lock(ctx); err != nil {
		return err
	}
	defer l.flushing.unlock()
	return l.settleNow()
}

// settleNow does what is owed. Each step may be done again, so an error leaves the rest owed. Writer and flushing are
// held.
func (l *log) settleNow() error {
	l.behind.Store(true)
	if l.owed.trim {
		if err := l.trimActive(); err != nil {
			return err
		}
		l.owed.trim = false
	}
	if len(l.owed.drop) > 0 {
		for _, s := range l.owed.drop {
			l.forget(s)
			for kind := range suffixes {
				if err := remove(l.host.fs, l.path(s.base, kind)); err != nil {
					return err
				}
			}
		}
		// Durable before anything is appended: a file that came back could hold half of what was never synced.
		if err := l.host.fs.SyncDir(l.dir()); err != nil {
			return err
		}
		l.owed.drop = nil
	}
	if l.bounds.Cut != nil {
		l.bounds.Cut, l.owed.bounds = nil, true
	}
	if l.owed.bounds {
		if err := l.storeBounds(l.bounds); err != nil {
			return err
		}
		l.owed.bounds = false
	}
	l.behind.Store(false)
	return nil
}

// trimActive cuts the files of the active segment. The indexes come first: an index must never name what is not there.
func (l *log) trimActive() error {
	v := l.view.Load()
	for _, kind := range [...]int{indexFile, timeFile} {
		err := l.with(v.active, kind, false, func(f vfs.File) error {
			if err := f.Truncate(v.run(kind).stored); err != nil {
				return err
			}
			return f.Sync()
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	err := l.with(v.active, logFile, false, func(f vfs.File) error { return f.Truncate(v.grow.size) })
	if err != nil {
		return err
	}
	l.update(func(v *view) { v.dirty = true })
	_, err = l.flush()
	return err
}

// storeBounds writes the bounds file. Durable on return. Writer is held.
func (l *log) storeBounds(b bounds) error {
	if err := l.makeFolder(); err != nil {
		return err
	}
	if err := store(l.host.fs, l.dir(), boundsFile, b); err != nil {
		return err
	}
	return l.host.syncRoot(l.view.Load().folder)
}

// decide stores bounds; if it can't, whether they are on disk is unknown, so the old ones are to be written before
// anything else happens.
func (l *log) decide(b bounds) error {
	if err := l.storeBounds(b); err != nil {
		l.owed.bounds = true
		l.behind.Store(true)
		return err
	}
	l.bounds = b
	return nil
}

func (l *log) truncateTo(ctx context.Context, end int64) error {
	if end < 0 {
		return fmt.Errorf("offset %d is negative", end)
	}
	return l.change(ctx, func() error {
		//            start             end
		//   ...........[================)
		switch v := l.view.Load(); {
		//                              ^ or beyond: nothing to drop
		case end >= v.end:
			return nil
		//              ^--------------^
		case end >= v.start:
			return l.cut(ctx, v.start, end)
		//   ^--------^
		default:
			return l.cut(ctx, end, 0)
		}
	})
}

func (l *log) reset(ctx context.Context, start int64) error {
	if start < 0 {
		return fmt.Errorf("offset %d is negative", start)
	}
	return l.change(ctx, func() error {
		if v := l.view.Load(); v.count() == 0 && v.start == start {
			return nil
		}
		return l.cut(ctx, start, 0)
	})
}

func (l *log) advanceStart(ctx context.Context, start int64) error {
	return l.change(ctx, func() error { return l.advance(ctx, start) })
}

// advance is advanceStart with writer held.
func (l *log) advance(ctx context.Context, start int64) error {
	//            start             end
	//   ...........[================)
	switch v := l.view.Load(); {
	//   ^----------^
	case start <= v.start:
		return nil
	//                              ^ beyond
	case start > v.end:
		return l.cut(ctx, start, 0)
	//               ^-------------^
	default:
		return l.dropPrefix(ctx, start)
	}
}

// cut drops each batch that reaches beyond limit and has the log start at start. Writer is held.
func (l *log) cut(ctx context.Context, start, limit int64) error {
	if err := l.flushing.lock(ctx); err != nil {
		return err
	}
	defer l.flushing.unlock()
	b := bounds{Start: start, Cuts: l.bounds.Cuts + 1, Cut: &limit}
	v, drop, err := l.withoutTail(l.view.Load(), b)
	if err != nil {
		return err
	}
	if err := l.decide(b); err != nil {
		return err
	}
	// The view comes before the files: a reader that finds it unchanged after reading has read what was there before.
	v.folder = l.view.Load().folder
	l.view.Store(v)
	l.owed.drop, l.owed.trim = drop, v.active != nil
	return l.settleNow()
}

// withoutTail is the view after a cut, and the segments that it no longer shows. A segment that was sealed and is
// appended to again is another segment of the same name. Writer and flushing are held.
func (l *log) withoutTail(old *view, b bounds) (*view, []*segment, error) {
	v := *old
	v.start, v.cuts, v.end = b.Start, b.Cuts, b.Start
	v.hideActive()
	var drop []*segment
	for i := old.count() - 1; i >= 0; i-- {
		seg, _ := old.segment(i)
		pos, err := l.cutAt(old, i, *b.Cut)
		if err != nil {
			return nil, nil, err
		}
		if pos == 0 {
			drop = append(drop, seg)
			v.sealed = v.sealed[:min(i, len(v.sealed))]
			continue
		}
		known := old
		if i < len(old.sealed) {
			v.sealed = v.sealed[:i]
			seg, known = &segment{base: seg.base}, nil
			v.synced, v.named = pos, true
		} else {
			v.synced, v.named, v.stale = min(old.synced, pos), old.named, old.stale
		}
		t, err := l.resume(seg, pos, known, false)
		if err != nil {
			return nil, nil, err
		}
		v.show(seg, &t)
		v.dirty, v.unsure = true, v.unsure || seg == old.active && old.unsure
		break
	}
	v.sealed = slices.Clip(v.sealed) // what is sealed next must not overwrite what readers of the old view see
	v.end = max(v.start, v.end)
	return &v, drop, nil
}

// cutAt is where in the i-th segment the first batch begins that reaches beyond limit. Damaged bytes count as one: nothing
// behind them can be told apart, and a cut is the way to get rid of them.
func (l *log) cutAt(v *view, i int, limit int64) (int64, error) {
	if s, _ := v.segment(i); s.base >= limit {
		return 0, nil
	}
	pos, _, err := l.find(v, i, limit)
	if damaged := (*CorruptError)(nil); errors.As(err, &damaged) {
		l.host.opts.logger.Warn("disklog: a cut finds damaged bytes and drops what follows them", "limit", limit, "error", err)
		return damaged.Position, nil
	}
	return pos, err
}

// dropPrefix has the log start at start, which lies within it, and removes the files that it no longer needs. Writer is
// held.
func (l *log) dropPrefix(ctx context.Context, start int64) error {
	if err := l.flushing.lock(ctx); err != nil {
		return err
	}
	defer l.flushing.unlock()
	v := *l.view.Load()
	v.start = start
	n := 0 // segments that lie below start
	for n+1 < v.count() {
		if next, _ := v.segment(n + 1); next.base > start {
			break
		}
		n++
	}
	drop := slices.Clone(v.sealed[:n])
	v.sealed = slices.Clone(v.sealed[n:])
	all := start == v.end
	if last := v.count() - 1; all && last >= 0 { // not even the last one holds anything
		s, _ := v.segment(last)
		drop = append(drop, s)
		v.sealed = nil
		v.hideActive()
	}
	b := bounds{Start: start, Cuts: l.bounds.Cuts}
	if err := l.decide(b); err != nil {
		if !errors.Is(err, syscall.ENOSPC) || all || len(drop) == 0 {
			return err
		}
		// The disk is full, and this may be what makes room: so the files go first. A crash now leaves the old start
		// before a gap.
		l.bounds = b
	}
	v.folder = l.view.Load().folder
	l.view.Store(&v)
	l.owed.drop = drop
	return l.settleNow()
}
