package disklog

import (
	"context"
	"slices"
)

// repair writes the indexes of a segment anew, from its batches. It is tried by the reader that finds them missing or
// damaged; if it can't be done, look-ups in that segment stay slow, but right.
func (l *log) repair(ctx context.Context, s *segment) {
	if l.host.readOnly {
		return
	}
	err := l.change(ctx, func() error {
		if err := l.flushing.lock(ctx); err != nil {
			return err
		}
		defer l.flushing.unlock()
		v := l.view.Load()
		switch {
		case v.active == s:
			return l.rebuildActive()
		case slices.Contains(v.sealed, s): // else it was dropped meanwhile
			return l.rebuild(s)
		}
		return nil
	})
	l.host.opts.logger.Warn("disklog: an index was missing or damaged and is written anew",
		"file", l.path(s.base, indexFile), "error", err)
}

// rebuild writes the indexes of a sealed segment. Writer and flushing are held.
func (l *log) rebuild(s *segment) error {
	t, err := l.fromBatches(s, s.size)
	if err != nil {
		return err
	}
	for kind, b := range map[int][]byte{indexFile: t.index.pending, timeFile: t.grow.addTime(t.times.pending)} {
		// Nobody checks the indexes of a sealed segment after a crash, so they are never half there.
		if err := replace(l.host.fs, l.path(s.base, kind), b); err != nil {
			return err
		}
		l.host.files.forget(&s.files[kind])
	}
	return nil
}

// makeSure has the time index of the active segment written anew if a crash may have torn it. Writer and flushing are
// held.
func (l *log) makeSure() error {
	if !l.view.Load().unsure {
		return nil
	}
	return l.rebuildActive()
}

// rebuildActive writes the indexes of the active segment. Writer and flushing are held.
func (l *log) rebuildActive() error {
	v := l.view.Load()
	t, err := l.fromBatches(v.active, v.grow.size)
	if err != nil {
		return err
	}
	l.update(func(v *view) { v.grow, v.index, v.times, v.unsure = t.grow, t.index, t.times, false })
	if err := l.trimActive(); err != nil { // the files go empty, and the segment durable
		l.owed.trim = true
		l.behind.Store(true)
		return err
	}
	return l.flushIndexes(l.view.Load(), false)
}

// fromBatches is resume without regard to the indexes.
func (l *log) fromBatches(s *segment, size int64) (tail, error) {
	return l.resume(s, size, &view{active: s, grow: newGrowth(s.base), end: s.base}, false)
}
