package disklog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

// sem is a mutex that may be held across disk calls: waiting for it can be given up.
type sem chan struct{}

func newSem() sem { return make(sem, 1) }

func (s sem) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s sem) unlock() { <-s }

// log is one partition, shared by all its handles.
//
// Readers take the view, a value that is replaced but never changed, and need no lock. What changes the log holds writer;
// what must not run beside a sync, because it takes files away or changes their length downwards, holds flushing too,
// taken second. Sync holds flushing alone, so appends go on beside it.
type log struct {
	host      *Host
	topic     string
	id        topicID
	partition int32

	writer   sem
	flushing sem
	view     atomic.Pointer[view]
	gone     atomic.Bool // the topic was deleted
	behind   atomic.Bool // something is owed

	// Guarded by writer.
	clean  *cleanLog // how a clean shutdown left the log, until it is loaded
	doubt  bool      // it does not fit what is there
	bounds bounds    // what the bounds file says, or should
	owed   owed      // what must be done on disk before the next change
	made   bool      // the partition's folder is there

	// Guarded by flushing.
	suspect bool // a sync failed: the system may have dropped bytes it should have written
}

// view is the log as readers see it.
type view struct {
	loaded     bool // false: of what follows only start and end are known
	start, end int64
	cuts       int64 // grows with each cut: what was read across one is void

	sealed []*segment // ascending; everything in them is durable
	active *segment   // nil: the next append makes one
	grow   growth     // of the active segment; grow.size bytes of it are visible
	index  run
	times  run

	synced int64 // bytes of the active segment known to be durable
	dirty  bool  // its bytes, its length or its name are not
	named  bool  // the name of its file is durable
	folder int64 // which making of a folder made this log's: see Host.syncRoot
	stale  bool  // its index files were written since their last sync
	unsure bool  // its index files may lack entries without a trace: see resume
}

// count is the number of segments.
func (v *view) count() int {
	if v.active != nil {
		return len(v.sealed) + 1
	}
	return len(v.sealed)
}

// segment is the i-th one and the number of its bytes that are visible.
func (v *view) segment(i int) (*segment, int64) {
	if i < len(v.sealed) {
		return v.sealed[i], v.sealed[i].size
	}
	return v.active, v.grow.size
}

// hideActive leaves the view without an active segment.
func (v *view) hideActive() {
	v.active, v.grow, v.index, v.times = nil, growth{}, run{}, run{}
	v.synced, v.dirty, v.named, v.stale, v.unsure = 0, false, false, false, false
}

// run is one of the indexes of the active segment.
func (v *view) run(kind int) *run {
	if kind == indexFile {
		return &v.index
	}
	return &v.times
}

// segment is one file of the log, with its two indexes. A segment that was cut or dropped is never used again: what gets
// the same name later is another segment.
type segment struct {
	base  int64
	size  int64 // once sealed
	files [3]slot
}

const (
	logFile = iota
	indexFile
	timeFile
)

var suffixes = [...]string{logFile: ".log", indexFile: ".index", timeFile: ".timeindex"}

func (l *log) name() string { return partitionName(l.topic, l.partition) }

func (l *log) dir() string { return filepath.Join(l.host.dir, l.name()) }

func (l *log) path(base int64, kind int) string {
	return filepath.Join(l.dir(), fmt.Sprintf("%020d%s", base, suffixes[kind]))
}

// update replaces the view. f may be called more than once.
func (l *log) update(f func(*view)) {
	for {
		old := l.view.Load()
		v := *old
		f(&v)
		if l.view.CompareAndSwap(old, &v) {
			return
		}
	}
}

// with uses one of the files of a segment. fs.ErrNotExist if it is missing, unless it is to be made then.
func (l *log) with(s *segment, kind int, make bool, use func(vfs.File) error) error {
	h := l.host
	return h.files.with(&s.files[kind], func() (vfs.File, error) {
		f, err := h.fs.Open(l.path(s.base, kind), !h.readOnly)
		if make && errors.Is(err, fs.ErrNotExist) {
			return h.fs.Create(l.path(s.base, kind))
		}
		return f, err
	}, use)
}

// forget closes the files of a segment that left the log.
func (l *log) forget(s *segment) {
	for i := range s.files {
		l.host.files.forget(&s.files[i])
	}
}

// fault says whose error it is.
func (l *log) fault(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("disklog: %s %s: %w", op, l.name(), err)
}

// usable is asked at the begin of each call, and again once it holds a lock.
func (l *log) usable() error {
	switch {
	case l.host.closed.Load():
		return mirror.ErrClosed
	case l.gone.Load():
		return fmt.Errorf("%w: the topic was deleted", mirror.ErrUnknownPartition)
	}
	return nil
}

// change runs f with writer held, on a log that is loaded and owes the disk nothing.
func (l *log) change(ctx context.Context, f func() error) error {
	if l.host.readOnly {
		return ErrReadOnly
	}
	if err := l.writer.lock(ctx); err != nil {
		return err
	}
	defer l.writer.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if err := l.load(ctx); err != nil {
		return err
	}
	if err := l.settle(ctx); err != nil {
		return err
	}
	return f()
}

// piece is what an append writes in one go: whole batches that go into the same segment.
type piece struct {
	data         []byte
	index, times []byte // entries it adds
	grow         growth // of the segment, after it
	end          int64  // of the log, after it
	opens        bool   // it is the first of its segment
}

// plan divides an append into pieces, or refuses it as a whole.
func plan(active bool, g growth, end int64, b []byte, o *options) ([]piece, error) {
	var ps []piece
	for len(b) > 0 {
		h, raw, err := batch.Next(b)
		if err != nil {
			return nil, err
		}
		if h.Base < end {
			return nil, fmt.Errorf("%w: base offset %d, end %d", mirror.ErrOutOfOrder, h.Base, end)
		}
		end = h.Next()
		opens := !active || !g.fits(&h, o)
		if opens {
			g, active = newGrowth(h.Base), true
		}
		if opens || len(ps) == 0 {
			ps = append(ps, piece{data: b[:0], opens: opens})
		}
		p := &ps[len(ps)-1]
		p.index, p.times = g.add(&h, p.index, p.times)
		p.data, p.grow, p.end = p.data[:len(p.data)+len(raw)], g, end
		b = b[len(raw):]
	}
	return ps, nil
}

func (l *log) append(ctx context.Context, batches []byte) error {
	return l.change(ctx, func() error {
		v := l.view.Load()
		ps, err := plan(v.active != nil, v.grow, v.end, batches, &l.host.opts)
		if err != nil {
			return err
		}
		for i := range ps {
			if err := l.write(ctx, &ps[i]); err != nil {
				return err
			}
		}
		v = l.view.Load()
		if every := l.host.opts.syncBytes; every > 0 && v.dirty && v.grow.size-v.synced >= every {
			return l.sync(ctx)
		}
		return nil
	})
}

// write appends one piece: one disk call, unless a new segment begins. Writer is held.
func (l *log) write(ctx context.Context, p *piece) error {
	if p.opens {
		if err := l.seal(ctx); err != nil {
			return err
		}
	}
	seg, at := l.view.Load().active, p.grow.size-int64(len(p.data))
	if p.opens {
		seg = &segment{base: p.grow.base}
		if err := l.makeFolder(); err != nil {
			return err
		}
	}
	err := l.with(seg, logFile, p.opens, func(f vfs.File) error {
		_, err := f.WriteAt(p.data, at)
		return err
	})
	if err != nil {
		// What did get written must not be there when the next append is: were that one shorter, and were the power cut
		// then, a batch of this one could stand behind it and look good. No context: a cut that was given up is a cut
		// that is owed.
		if p.opens {
			l.owed.drop = append(l.owed.drop, seg)
		} else {
			l.owed.trim = true
		}
		l.behind.Store(true)
		return errors.Join(err, l.settle(context.WithoutCancel(ctx)))
	}
	l.update(func(v *view) {
		if p.opens {
			v.active, v.index, v.times = seg, run{}, run{}
			v.synced, v.named, v.unsure = 0, false, false
		}
		v.grow, v.end, v.dirty = p.grow, p.end, true
		v.index.pending = append(v.index.pending, p.index...)
		v.times.pending = append(v.times.pending, p.times...)
	})
	return nil
}

// makeFolder makes the partition's folder. Writer is held.
func (l *log) makeFolder() error {
	if l.made {
		return nil
	}
	if err := l.host.fs.Mkdir(l.dir()); err != nil {
		return err
	}
	n := l.host.folders.Add(1)
	l.update(func(v *view) { v.folder = n })
	l.made = true
	return nil
}

// seal closes the active segment, if there is one: everything in it becomes durable, its indexes too. Writer is held.
func (l *log) seal(ctx context.Context) error {
	if l.view.Load().active == nil {
		return nil
	}
	if err := l.flushing.lock(ctx); err != nil {
		return err
	}
	defer l.flushing.unlock()
	if err := l.makeSure(); err != nil {
		return err
	}
	l.update(func(v *view) { v.times.pending = v.grow.addTime(v.times.pending) })
	v, err := l.flush()
	if err != nil {
		return err
	}
	if err := l.flushIndexes(v, true); err != nil {
		return err
	}
	v.active.size = v.grow.size // nobody reads it before the view below says that it is sealed
	l.update(func(now *view) {
		now.sealed = append(slices.Clip(now.sealed), now.active)
		now.hideActive()
	})
	return nil
}

// sync makes durable what was appended before the call.
func (l *log) sync(ctx context.Context) error {
	if l.behind.Load() { // else a cut that failed might come to pass after a crash, and take what is synced now
		if err := l.change(ctx, func() error { return nil }); err != nil {
			return err
		}
	}
	if err := l.usable(); err != nil || l.host.readOnly || !l.view.Load().dirty {
		return err
	}
	if err := l.flushing.lock(ctx); err != nil {
		return err
	}
	defer l.flushing.unlock()
	if err := l.usable(); err != nil {
		return err
	}
	v, err := l.flush()
	if err != nil {
		return err
	}
	// The batches are durable: that is all Sync promises. Entries that could not be written stay in memory for the next
	// time; at the latest the sealing of the segment insists on them.
	_ = l.flushIndexes(v, false)
	return nil
}

// flush makes the active segment durable as it is now, and answers the view that is. Flushing is held.
func (l *log) flush() (*view, error) {
	v := l.view.Load()
	if v.active == nil || !v.dirty {
		return v, nil
	}
	err := l.with(v.active, logFile, false, func(f vfs.File) error {
		if l.suspect {
			if err := l.rewrite(f, v); err != nil {
				return err
			}
		}
		return f.Sync()
	})
	if l.suspect = err != nil; l.suspect {
		return nil, err
	}
	if !v.named {
		if err := l.host.fs.SyncDir(l.dir()); err != nil {
			return nil, err
		}
		if err := l.host.syncRoot(v.folder); err != nil {
			return nil, err
		}
	}
	l.update(func(now *view) {
		now.synced, now.named = v.grow.size, true
		now.dirty = now.grow.size != v.grow.size // an append may have come in between
	})
	return v, nil
}

// rewrite writes once more what is not known to be durable. After a failed sync the system may take its copy of the bytes
// for written though they are not, and a second sync would then succeed without having written anything. It may also have
// dropped its copy: so the bytes are checked first.
func (l *log) rewrite(f vfs.File, v *view) error {
	s := newScanner(f, v.grow.size)
	defer s.close()
	for pos := v.synced; pos < v.grow.size; {
		h, err := s.header(pos)
		if err == nil {
			err = s.check(pos, h)
		}
		if err != nil {
			return l.damage(v.active, pos, err)
		}
		for next := pos + int64(h.Size()); pos < next; {
			b, err := s.bytes(pos, int(min(next-pos, windowSize)))
			if err != nil {
				return err
			}
			if _, err := f.WriteAt(b, pos); err != nil {
				return err
			}
			pos += int64(len(b))
		}
	}
	return nil
}

// damage makes a CorruptError of an error that means one.
func (l *log) damage(s *segment, pos int64, err error) error {
	if isDamage(err) {
		return &CorruptError{File: l.path(s.base, logFile), Position: pos, Err: err}
	}
	return err
}

// flushIndexes writes the index entries of a view whose batches are durable. No others: so what the last entry in the
// index file names was durable, and after a crash only what follows it needs checking. Flushing is held.
func (l *log) flushIndexes(v *view, sync bool) error {
	if v.active == nil {
		return nil
	}
	for _, kind := range [...]int{indexFile, timeFile} {
		r := *v.run(kind)
		if len(r.pending) == 0 && !sync {
			continue
		}
		err := l.with(v.active, kind, true, func(f vfs.File) error {
			if len(r.pending) > 0 {
				if _, err := f.WriteAt(r.pending, r.stored); err != nil {
					return err
				}
			}
			if !sync {
				return nil
			}
			err := f.Sync()
			if err != nil { // what was written before may be lost too, see rewrite
				l.update(func(now *view) { now.unsure = true })
			}
			return err
		})
		if err != nil {
			return err
		}
		l.update(func(now *view) {
			now.run(kind).advance(len(r.pending))
			now.stale = true
		})
	}
	if sync {
		l.update(func(now *view) { now.stale = false })
	}
	return nil
}

// advance says that n bytes of the pending entries are in the file.
func (r *run) advance(n int) {
	r.stored += int64(n)
	if r.pending = r.pending[n:]; len(r.pending) == 0 {
		r.pending = nil
	}
}
