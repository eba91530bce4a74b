package disklog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

// cleanLog is what the file of a clean shutdown says of a log: its bounds are known without a look at its folder, and
// nothing in it needs checking.
type cleanLog struct {
	Start  int64 `json:"start"`
	End    int64 `json:"end"`
	Base   int64 `json:"base"` // of the last segment, -1: none
	Size   int64 `json:"size"` // of the last segment
	Unsure bool  `json:"unsure,omitempty"`
}

// load finds out what the partition's folder holds, shows it, and mends what a crash has left. It does so once. Writer
// is held.
func (l *log) load(ctx context.Context) error {
	old := l.view.Load()
	if old.loaded {
		return nil
	}
	if err := l.flushing.lock(ctx); err != nil {
		return err
	}
	defer l.flushing.unlock()
	d, err := l.list()
	if err != nil {
		return err
	}
	v, o, err := l.assemble(d, old)
	if err != nil {
		return err
	}
	l.view.Store(v)
	l.clean, l.bounds, l.owed, l.made = nil, d.bounds, o, d.exists
	l.suspect = v.dirty // the process before may have ended because a sync failed
	return l.settleNow()
}

// refresh is load for a folder that another process writes. Writer is held.
func (l *log) refresh(ctx context.Context) (*view, error) {
	for wait := (patience{}); ; {
		v, err := l.look()
		if err == nil || l.gone.Load() {
			return v, err
		}
		now, berr := l.readBounds()
		if err := errors.Join(ctx.Err(), berr); err != nil {
			return nil, err
		}
		if !wait.more(now) {
			return nil, err
		}
	}
}

// look makes a view of the folder as it is now, unless it changes too much meanwhile.
func (l *log) look() (*view, error) {
	var f topicFile
	err := load(l.host.fs, filepath.Join(l.host.dir, topicsDir), l.topic, &f)
	if errors.Is(err, fs.ErrNotExist) || err == nil && f.ID != l.id {
		l.gone.Store(true) // the folder, if there is one, is that of another topic of this name
		return nil, l.usable()
	}
	if err != nil {
		return nil, err
	}
	d, err := l.list()
	if err != nil {
		return nil, err
	}
	old := l.view.Load()
	v, _, err := l.assemble(d, old)
	if err != nil {
		return nil, err
	}
	b, err := l.readBounds()
	if err != nil {
		return nil, err
	}
	if b.Cuts != d.bounds.Cuts {
		return nil, errors.New("the log was cut while it was looked at")
	}
	l.view.Store(v)
	for i := range old.count() {
		s, _ := old.segment(i)
		if s != v.active && !slices.Contains(v.sealed, s) {
			l.forget(s)
		}
	}
	return v, nil
}

// readBounds reads the bounds file; without one the log was never cut.
func (l *log) readBounds() (b bounds, err error) {
	err = load(l.host.fs, l.dir(), boundsFile, &b)
	if errors.Is(err, fs.ErrNotExist) {
		return bounds{}, nil
	}
	return b, err
}

// folder is what a partition's folder holds.
type folder struct {
	exists bool
	bounds bounds
	bases  []int64 // of the segments, ascending
	stray  []int64 // of index files without a segment
}

func (l *log) list() (*folder, error) {
	names, err := l.host.fs.List(l.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return &folder{}, nil
	}
	if err != nil {
		return nil, err
	}
	d := &folder{exists: true}
	if d.bounds, err = l.readBounds(); err != nil {
		return nil, err
	}
	for _, name := range names {
		switch base, kind := parseName(name); kind {
		case logFile:
			d.bases = append(d.bases, base)
		case indexFile, timeFile:
			d.stray = append(d.stray, base)
		}
	}
	d.stray = slices.DeleteFunc(slices.Compact(d.stray), func(base int64) bool {
		_, ok := slices.BinarySearch(d.bases, base)
		return ok
	})
	return d, nil
}

// parseName takes the name of a segment's file apart; kind is -1 if it is none.
func parseName(name string) (base int64, kind int) {
	const digits = 20
	if len(name) < digits {
		return 0, -1
	}
	base, err := strconv.ParseInt(name[:digits], 10, 64)
	if err != nil || name[0] < '0' { // ParseInt takes a sign
		return 0, -1
	}
	return base, slices.Index(suffixes[:], name[digits:])
}

// assemble makes a view of what a folder holds, and says what has to be mended. Nothing on disk is changed. Segments of an
// older view are taken over where they are the same.
func (l *log) assemble(d *folder, old *view) (*view, owed, error) {
	v := &view{loaded: true, start: d.bounds.Start, end: d.bounds.Start, cuts: d.bounds.Cuts, folder: old.folder}
	var o owed
	for _, base := range d.stray {
		o.drop = append(o.drop, &segment{base: base})
	}
	bases := d.bases
	for len(bases) > 1 && bases[1] <= v.start { // a crash came before their removal
		o.drop = append(o.drop, &segment{base: bases[0]})
		bases = bases[1:]
	}
	known := map[int64]*segment{}
	if old.loaded && old.cuts == v.cuts {
		for i := range old.count() {
			s, _ := old.segment(i)
			known[s.base] = s
		}
	}
	if l.clean != nil && (l.clean.Base == -1) != (len(bases) == 0) {
		return nil, o, l.tampered()
	}

	// Only the last segment can have been written when the power went: a segment is synced before the next one is made.
	for torn := l.clean == nil; len(bases) > 0 && v.active == nil; torn = false {
		base := bases[len(bases)-1]
		bases = bases[:len(bases)-1]
		seg := &segment{base: base}
		var was *view
		if s := known[base]; s != nil && s == old.active {
			seg, was = s, old
		}
		size, err := l.size(seg)
		if err != nil {
			return nil, o, err
		}
		if l.clean != nil && (l.clean.Base != base || l.clean.Size != size) {
			return nil, o, l.tampered()
		}
		t, err := l.resume(seg, size, was, torn)
		if err != nil {
			return nil, o, err
		}
		if cut := size - t.grow.size; cut > 0 && !l.host.readOnly {
			l.host.opts.logger.Warn("disklog: a crash left a torn tail, which is cut", "topic", l.topic, "partition", l.partition,
				"end", max(v.start, t.end), "bytes", cut, "reason", t.stop)
		}
		if t.grow.size == 0 {
			o.drop = append(o.drop, seg)
			continue
		}
		v.show(seg, &t)
		v.synced, v.named = size, true
		if torn {
			v.synced, v.named, v.dirty = t.from, false, true
		}
		if l.clean != nil {
			v.unsure = v.unsure || l.clean.Unsure
		}
		o.trim = t.grow.size < size || t.excess
	}
	for _, base := range bases {
		seg := known[base]
		if seg == nil || seg == old.active {
			if seg == nil {
				seg = &segment{base: base}
			}
			size, err := l.size(seg)
			if err != nil {
				return nil, o, err
			}
			seg.size = size
		}
		v.sealed = append(v.sealed, seg)
	}
	v.end = max(v.start, v.end)
	if d.bounds.Cut == nil {
		return v, o, nil
	}
	v, drop, err := l.withoutTail(v, d.bounds)
	if err != nil {
		return nil, o, err
	}
	o.drop, o.trim = append(o.drop, drop...), v.active != nil
	return v, o, nil
}

func (l *log) tampered() error {
	l.doubt = true
	return fmt.Errorf("folder %s was changed after a clean shutdown: close the host and open it again, which checks it", l.dir())
}

func (l *log) size(s *segment) (size int64, err error) {
	err = l.with(s, logFile, false, func(f vfs.File) error {
		size, err = f.Size()
		return err
	})
	return size, err
}

// tail is what resume finds out about a segment that is to be appended to.
type tail struct {
	grow   growth
	index  run
	times  run
	end    int64 // of the log, if this is its last segment
	from   int64 // where the walk began: what lies before was durable
	stop   error // why the walk ended before the segment did
	unsure bool  // times may lack entries
	excess bool  // the index files hold more than index and times say
}

// show makes a segment the active one.
func (v *view) show(s *segment, t *tail) {
	v.active, v.grow, v.index, v.times, v.unsure, v.end = s, t.grow, t.index, t.times, t.unsure, t.end
}

// resume finds out what must be known of a segment, of which the first size bytes count, to append to it: it takes what
// the indexes say up to their last good entry and walks the batches from there. If the segment is the active one of a
// view, its indexes are that view's, else what is in their files.
//
// If torn is set, a crash may have left anything behind the last entry of the index: CRCs are checked, and the walk
// ends where the batches do. The index file itself was not synced either, but shows it: its entries no longer ascend,
// or its last one does not name a batch. Of the time index the last entries, or the file, may be missing without a
// trace; then it is not believed (unsure), and written anew before the segment is sealed.
func (l *log) resume(s *segment, size int64, v *view, torn bool) (tail, error) {
	t := tail{grow: newGrowth(s.base), end: s.base}
	err := l.with(s, logFile, false, func(f vfs.File) error {
		sc := newScanner(f, size)
		defer sc.close()
		if torn && v != nil { // a reader beside a running writer looks again: go on where it stopped
			t.grow, t.index, t.times, t.unsure, t.end = v.grow, v.index, v.times, v.unsure, v.end
		} else if err := l.resumeIndexes(&t, s, sc, v, torn); err != nil {
			return err
		}
		t.from = t.grow.size
		for t.grow.size < size {
			pos := t.grow.size
			h, err := sc.header(pos)
			if err == nil && h.Base < t.end {
				err = fmt.Errorf("%w: base offset %d, after a batch that ends at %d", batch.ErrCorrupt, h.Base, t.end)
			}
			if err == nil && torn {
				err = sc.check(pos, h)
			}
			if err != nil {
				if torn && isDamage(err) {
					t.stop = err
					return nil
				}
				return l.damage(s, pos, err)
			}
			t.index.pending, t.times.pending = t.grow.add(&h, t.index.pending, t.times.pending)
			t.end = h.Next()
		}
		return nil
	})
	return t, err
}

// resumeIndexes sets t to what the indexes say of the batches before sc.end.
func (l *log) resumeIndexes(t *tail, s *segment, sc *scanner, v *view, torn bool) error {
	n, last, pos := 0, int64(-1), int64(0)
	err := l.entries(s, indexFile, v, func(e *entries) (err error) {
		if torn {
			n, err = e.ascending(int(sc.end/indexInterval)+1, sc.end)
		} else {
			n, err = e.first(func(_, pos int64) bool { return pos >= sc.end })
		}
		if err != nil || n == 0 {
			return err
		}
		if last, pos, err = e.at(n - 1); err != nil {
			return err
		}
		h, err := sc.header(pos)
		switch {
		case err != nil && !isDamage(err):
			return err
		case err != nil || h.Next()-1-s.base != last:
			n, last = 0, -1 // what it names is not there: believe none of it
		}
		t.index, t.excess = e.keep(n)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = l.entries(s, timeFile, v, func(e *entries) (err error) {
		var m int
		if torn {
			m, err = e.ascending(n+1, last+1)
		} else {
			m, err = e.first(func(_, at int64) bool { return at > last })
		}
		if err != nil {
			return err
		}
		if m > 0 {
			ts, at, err := e.at(m - 1)
			if err != nil {
				return err
			}
			t.grow.max, t.grow.maxAt, t.grow.indexed = ts, s.base+at, ts
		}
		var excess bool
		t.times, excess = e.keep(m)
		t.excess = t.excess || excess
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if n == 0 {
		return nil
	}
	t.unsure = torn || err != nil
	h, err := sc.header(0)
	if err != nil {
		return l.damage(s, 0, err)
	}
	t.grow.first, t.grow.size = h.MaxTimestamp, pos
	return nil
}

// finish makes the log durable, for good, and says how it is left; nil if the next opening must check it.
func (l *log) finish() (*cleanLog, error) {
	ctx := context.Background()
	if err := l.writer.lock(ctx); err != nil {
		return nil, err
	}
	defer l.writer.unlock()
	if err := l.flushing.lock(ctx); err != nil {
		return nil, err
	}
	defer l.flushing.unlock()
	v := l.view.Load()
	switch {
	case l.gone.Load() || l.doubt:
		return nil, nil
	case !v.loaded:
		return l.clean, nil
	}
	if err := l.settleNow(); err != nil {
		return nil, err
	}
	v, err := l.flush()
	if err != nil {
		return nil, err
	}
	if v.stale || len(v.index.pending)+len(v.times.pending) > 0 {
		if err := l.flushIndexes(v, true); err != nil {
			return nil, err
		}
	}
	c := &cleanLog{Start: v.start, End: v.end, Base: -1, Unsure: v.unsure}
	if v.active != nil {
		c.Base, c.Size = v.active.base, v.grow.size
	} else if n := len(v.sealed); n > 0 {
		c.Base, c.Size = v.sealed[n-1].base, v.sealed[n-1].size
	}
	return c, nil
}

// retire waits for what is under way and makes the log unusable, as its topic was deleted.
func (l *log) retire() {
	l.gone.Store(true)
	ctx := context.Background()
	_, _ = l.writer.lock(ctx), l.flushing.lock(ctx) // can't fail
	v := l.view.Load()
	for i := range v.count() {
		s, _ := v.segment(i)
		l.forget(s)
	}
	l.flushing.unlock()
	l.writer.unlock()
}
