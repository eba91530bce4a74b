// Package statelog keeps a coordinator's records in an ordinary partition log: a map that is durable, with one writer at a time.
//
// The log holds record batches of format 2, so Kafka's own tools can read it. A batch takes effect as a whole; later records
// replace earlier ones of the same key, a null value deletes. Three kinds of batches are written:
//
//	fence     one record, by Open: whoever opened the log before has from now on a wrong idea of where it ends, its next append is
//	          out of order, and it knows that it has been replaced
//	put       the records of one or more Puts
//	snapshot  several batches with every live record, the last record being a mark that names the offset of the first; once they
//	          are durable, the log's start is advanced to that offset
//
// A snapshot says again what the batches before it add up to. So a log may be replayed from any offset at or below the snapshot's
// first, and one that holds part of a snapshot, or that was not trimmed after it, is as good as any. A log that does not begin at
// 0 and holds no mark of a whole snapshot has lost its beginning, and Open refuses it.
package statelog

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"
)

var (
	// ErrFenced is returned by Put, for ever, once another Store was opened on the same log.
	ErrFenced = errors.New("another store was opened on the state log")
	// ErrClosed is returned by Put once Close was called. What was being written at that moment may be found by the next Open.
	ErrClosed = errors.New("state log is closed")
)

// DamagedError is returned by Open, and by Put for ever, when the log does not hold what a Store has written.
type DamagedError struct {
	Offset int64
	Err    error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("damaged at offset %d: %v", e.Offset, e.Err)
}

// Unwrap gives the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// Log is what a Store needs of a partition log. Append takes whole batches, refuses atomically a first base below the end, and on
// another error has kept those that Bounds says. What it appends is durable after the next Sync.
type Log interface {
	Bounds() (start, end int64)
	Append(ctx context.Context, batches []byte) error
	Read(ctx context.Context, offset int64, buf []byte) (n int, err error)
	Sync(ctx context.Context) error
	AdvanceStart(ctx context.Context, start int64) error
}

// Record is one entry of the state. A nil Value deletes the key, an empty one does not.
type Record struct {
	Key   Key
	Value []byte
}

// size is about what the record takes in a batch.
func (r Record) size() int64 {
	const layout, framing = 2 + 2 + 16 + 4 + 2 + 8, 16
	return int64(layout + framing + len(r.Key.Mirror) + len(r.Key.Name) + len(r.Value))
}

// Store is the state in memory and the log that makes it durable. All its methods may be called concurrently.
type Store struct {
	writer writer
	wake   chan struct{} // has room for one: the queue is not empty
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned

	mu    sync.RWMutex // guards what follows; never held across I/O
	state *state
	queue []*put
	err   error // why no Put is accepted any more
}

// put is one call of Put on its way.
type put struct {
	recs []Record
	size int64
	done chan struct{} // closed when err is set
	err  error
}

// Option is an option of Open.
type Option func(*writer)

// Logger sets where snapshots that fail are reported; without it they are not. No Put fails because of them.
func Logger(l *slog.Logger) Option { return func(w *writer) { w.logger = l } }

// SnapshotAfter sets how many bytes of superseded records the log must hold before a snapshot is written; the default is 1 MiB.
// They must also outweigh those that count.
func SnapshotAfter(bytes int64) Option { return func(w *writer) { w.snapshotAfter = bytes } }

// Open replays the log and fences every Store that was opened on it before, durably. outOfOrder is the error with which the log
// refuses an append below its end. ctx bounds the call; its values, not its end, go on to the calls of the log that Puts cause. A
// *DamagedError if the log holds anything but what a Store writes; nothing has been written then.
//
// The log stays the caller's, who closes it after the Store.
func Open(ctx context.Context, log Log, outOfOrder error, opts ...Option) (*Store, error) {
	s := &Store{
		writer: writer{
			log: log, outOfOrder: outOfOrder, logger: slog.New(slog.DiscardHandler), snapshotAfter: 1 << 20,
			doubt: make(map[Key]struct{}),
		},
		wake:  make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
	for _, opt := range opts {
		opt(&s.writer)
	}
	st, err := s.writer.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("open state log: %w", err)
	}
	s.state = st
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	go s.run(life)
	return s, nil
}

// Put makes records durable: all of them or, also after a crash, none. Get and All know them on return. Puts that come at once
// share one append and one sync. The values are copied.
//
// After an error memory has the values it had. Whether the log has them too is then not known to a later Open (the bytes may
// have stayed, or the machine may have crashed before the error) until the next Put that succeeds, which makes the log say what
// memory says. An error is for ever with ErrFenced, ErrClosed and *DamagedError; any other Put may be tried again. If ctx ends
// while the records are being written, Put returns at once and they take effect, or not, afterwards.
func (s *Store) Put(ctx context.Context, recs ...Record) error {
	if len(recs) == 0 {
		return nil
	}
	p := &put{done: make(chan struct{})}
	for _, r := range recs {
		if err := r.Key.check(); err != nil {
			return err
		}
		if r.Key.Type == typeFence || r.Key.Type == typeSnapshot {
			return fmt.Errorf("state key %v is the state log's own", r.Key)
		}
		p.size += r.size()
	}
	if p.size > maxPut {
		return fmt.Errorf("put of %d state records with %d bytes, more than the %d of one batch", len(recs), p.size, maxPut)
	}
	for _, r := range recs {
		if r.Value != nil {
			r.Value = append([]byte{}, r.Value...)
		}
		p.recs = append(p.recs, r)
	}
	if err := s.enqueue(ctx, p); err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		s.withdraw(p)
		return fmt.Errorf("put state: %w", ctx.Err())
	}
}

// maxPut bounds one batch: more than any log takes, and what its length on the wire can say.
const maxPut int64 = 256 << 20

func (s *Store) enqueue(ctx context.Context, p *put) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put state: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.queue = append(s.queue, p)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// withdraw takes a put out of the queue if it is still there: then it is never written.
func (s *Store) withdraw(p *put) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, q := range s.queue {
		if q == p {
			s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
			return
		}
	}
}

// Get is the value of a key, not to be changed.
func (s *Store) Get(k Key) ([]byte, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.get(k)
}

// All are the records of one type as they are at the call's first step, sorted by key. Values are not to be changed.
func (s *Store) All(typ int16) iter.Seq2[Key, []byte] {
	return func(yield func(Key, []byte) bool) {
		s.mu.RLock()
		recs := s.state.sorted(typ)
		s.mu.RUnlock()
		for _, r := range recs {
			if !yield(r.Key, r.Value) {
				return
			}
		}
	}
}

// Close ends the Store and returns when nothing uses the log any more. Puts under way answer ErrClosed. Close twice is harmless.
func (s *Store) Close() error {
	s.fail(ErrClosed)
	s.cancel()
	<-s.ended
	return nil
}

// fail makes every later Put return err. The first cause stays.
func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// run is the one goroutine that writes.
func (s *Store) run(ctx context.Context) {
	defer close(s.ended)
	for company := false; ; {
		s.gather(ctx, company)
		puts, err := s.take()
		switch {
		case err != nil:
			answer(puts, err)
			return
		case len(puts) > 0:
			company = len(puts) > 1
			err := s.commit(ctx, puts)
			answer(puts, err)
			if err == nil {
				s.trim(ctx)
			}
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
}

// What a put may wait for others. With 1,000 partitions on their way through a few states the puts come one by one, and as many
// syncs of this log would take longer than all else that the partitions do.
const (
	gatherPause = time.Millisecond
	gatherMost  = 50 * time.Millisecond
)

// gather waits as long as more puts come, and not at all for one that is alone and follows one that was.
func (s *Store) gather(ctx context.Context, company bool) {
	began := time.Now()
	for before := 0; ; {
		s.mu.RLock()
		n, ended := len(s.queue), s.err != nil
		s.mu.RUnlock()
		if n == before || n == 1 && !company || ended || time.Since(began) >= gatherMost {
			return
		}
		before = n
		select {
		case <-time.After(gatherPause):
		case <-ctx.Done():
			return
		}
	}
}

func answer(puts []*put, err error) {
	for _, p := range puts {
		p.err = err
		close(p.done)
	}
}

// take takes puts from the queue, as many as fit one batch; all of them once no Put is accepted any more.
func (s *Store) take() (puts []*put, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, int64(0)
	for n < len(s.queue) && (n == 0 || s.err != nil || size+s.queue[n].size <= batchBytes) {
		size += s.queue[n].size
		n++
	}
	puts, s.queue = s.queue[:n:n], s.queue[n:]
	if len(s.queue) == 0 {
		s.queue = nil // what was taken is not kept alive by the array
	}
	return puts, s.err
}

// commit writes puts as one batch and then lets memory know.
func (s *Store) commit(ctx context.Context, puts []*put) error {
	var recs []Record
	for _, p := range puts {
		recs = append(recs, p.recs...)
	}
	if err := s.writer.commit(ctx, recs, s.Get); err != nil {
		return s.cause(ctx, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range recs {
		s.state.apply(r.Key, r.Value)
	}
	return nil
}

// trim writes a snapshot when most of the log is superseded. No Put fails because it does: it is tried again when the log has
// grown by as much again.
func (s *Store) trim(ctx context.Context) {
	s.mu.RLock()
	live := s.state.live
	if s.err != nil || s.writer.size-live <= max(live, s.writer.snapshotAfter) {
		s.mu.RUnlock()
		return
	}
	recs := s.state.all()
	s.mu.RUnlock()
	if err := s.cause(ctx, s.writer.snapshot(ctx, recs)); err != nil && !errors.Is(err, ErrClosed) {
		s.writer.logger.Warn("snapshot of the state log", "err", err)
	}
	s.writer.size = live
}

// cause tells errors that are for ever from those that may pass.
func (s *Store) cause(ctx context.Context, err error) error {
	var damaged *DamagedError
	switch {
	case errors.Is(err, ErrFenced), errors.As(err, &damaged):
		s.fail(err)
	case ctx.Err() != nil:
		return ErrClosed
	}
	return err
}
