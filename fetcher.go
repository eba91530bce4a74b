package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/semaphore"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/wire"
)

// fetcher is the loop that fetches from one source broker: fetch, check, send the next request, append. Only its own goroutine
// touches its cursors; others leave it notes.
type fetcher struct {
	m      *Mirror
	broker int32

	mu    sync.Mutex
	notes []func(*fetcher) // what others want done, in order
	live  *wire.Session    // session, for reconnect
	asked atomic.Bool      // reconnect has closed the session
	wake  chan struct{}

	cursors map[*replica]*cursor // those it fetches
	placed  int                  // how many of them are in the session
	away    int                  // how many have left the loop for an append that takes long
	since   time.Time            // when the first of them was
	blind   bool                 // the broker can't compare epochs when it answers a fetch: we ask before we fetch
	session *wire.Session        // nil while there is no connection
	served  time.Time            // when the connection first brought an answer
}

// cursor is where fetching of one partition goes on.
type cursor struct {
	r     *replica
	part  *Partition
	gen   uint64
	next  int64 // after the last validated batch
	epoch int32 // of the last validated batch, -1 if unknown
	bytes int32 // the most to ask for; grows if a batch is larger
	slow  bool  // its last append took long: the bytes of the next one are copied out of the answer
	out   bool  // not in the session: held back, or an append is not done
	gap   int64 // where the last answer's last batch began after a gap that is not proven yet, -1
	bad   int   // answers in a row that could not be used
	pause *backoff.ExponentialBackOff
}

const (
	slowAppend   = 50 * time.Millisecond
	maxRealigned = 10      // so many alignments in a row that changed nothing are enough
	badAnswers   = 5       // after so many a partition is FAILED, and retried from there
	maxBatch     = 1 << 30 // a claimed length beyond it is nonsense

	fetchKey       = 1
	comparingFetch = 12 // the first Fetch that carries the last fetched epoch (KIP-595)
)

var errNoLeader = errors.New("partition has no leader at the source")

func newFetcher(m *Mirror, broker int32) *fetcher {
	return &fetcher{m: m, broker: broker, wake: make(chan struct{}, 1), cursors: make(map[*replica]*cursor)}
}

// add, remove and refresh may be called by anyone; they don't wait.
func (f *fetcher) add(r *replica, p *Partition, gen uint64, next int64, epoch int32) {
	f.note(func(f *fetcher) {
		r.mu.Lock()
		current := r.gen == gen
		r.mu.Unlock()
		if !current { // it was moved on before this note was read
			return
		}
		f.drop(r)
		f.cursors[r] = &cursor{r: r, part: p, gen: gen, next: next, epoch: epoch, bytes: int32(f.m.opts.partitionBytes), gap: -1, out: true}
		f.place(f.cursors[r])
	})
}

func (f *fetcher) remove(r *replica) { f.note(func(f *fetcher) { f.drop(r) }) }

// refresh tells the broker the partition's new leader epoch.
func (f *fetcher) refresh(r *replica) {
	f.note(func(f *fetcher) {
		if c := f.cursors[r]; c != nil && !c.out {
			f.place(c)
		}
	})
}

func (f *fetcher) note(n func(*fetcher)) {
	f.mu.Lock()
	f.notes = append(f.notes, n)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fetcher) readNotes() {
	f.mu.Lock()
	notes := f.notes
	f.notes = nil
	f.mu.Unlock()
	for _, n := range notes {
		n(f)
	}
}

// place puts a cursor's position into the session.
func (f *fetcher) place(c *cursor) {
	if c.out {
		c.out = false
		f.placed++
	}
	if f.session == nil {
		return // done for all when there is one
	}
	c.r.mu.Lock()
	epoch, compared := c.r.leaderEpoch, c.r.compared
	c.r.mu.Unlock()
	start, end := c.part.Bounds()
	last := c.epoch
	if start == end && c.next == end {
		last = -1 // an empty log proves nothing, and has nothing to lose
	}
	if f.blind && last >= 0 && compared != epoch {
		f.realign(c, "a new leader that can't compare epochs by itself")
		return
	}
	f.session.Set(wire.FetchPartition{
		Topic: c.r.t.name, ID: c.r.t.id, Partition: c.r.num, CurrentLeaderEpoch: epoch,
		Offset: c.next, LastFetchedEpoch: last, MaxBytes: c.bytes, Tag: c,
	})
}

// setAside takes a cursor out of the session, but keeps it.
func (f *fetcher) setAside(c *cursor) {
	if c.out {
		return
	}
	c.out = true
	f.placed--
	if f.session != nil {
		f.session.Forget(c.r.t.name, c.r.num)
	}
}

func (f *fetcher) drop(r *replica) {
	if c := f.cursors[r]; c != nil {
		f.setAside(c)
		delete(f.cursors, r)
	}
}

// hold takes a cursor out for a while.
func (f *fetcher) hold(c *cursor) {
	f.setAside(c)
	f.after(c, func(f *fetcher) { f.place(c) })
}

// after does something with a cursor after its next, longer pause, if it is still there.
func (f *fetcher) after(c *cursor, do func(*fetcher)) {
	if c.pause == nil {
		c.pause = f.m.newBackoff()
	}
	wait := c.pause.NextBackOff()
	c.r.mu.Lock()
	for range c.r.realigned - 2 { // its cursor, and with it the pause, is new each time
		wait = min(2*wait, f.m.opts.backoffMax)
	}
	c.r.mu.Unlock()
	time.AfterFunc(wait, func() {
		f.note(func(f *fetcher) {
			if f.cursors[c.r] == c {
				do(f)
			}
		})
	})
}

// rewind puts a cursor back to the log's end, after an append that failed or was slow.
func (f *fetcher) rewind(ctx context.Context, c *cursor) {
	c.r.mu.Lock()
	current := c.r.gen == c.gen
	c.r.mu.Unlock()
	if f.cursors[c.r] != c || !current {
		return
	}
	next, epoch, err := c.part.tip(ctx)
	if err != nil {
		f.drop(c.r)
		c.r.handOver(c.gen, func() {})
		return
	}
	c.next, c.epoch, c.gap = next, epoch, -1
	f.place(c)
}

// idle says that no partition is in the session.
func (f *fetcher) idle() bool { return f.placed == 0 }

// run fetches until ctx ends. A broken connection is made anew after a pause that grows until a batch was validated.
func (f *fetcher) run(ctx context.Context) {
	pause := f.m.newBackoff()
	for ctx.Err() == nil {
		f.readNotes()
		if f.idle() {
			select {
			case <-f.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := f.fetch(ctx, func() { pause.Reset() })
		if ctx.Err() != nil {
			return
		}
		if err == nil || f.asked.CompareAndSwap(true, false) {
			continue
		}
		// Brokers end connections, with SASL sessions for instance: of one that served until now, the next will tell if it is trouble.
		if wire.Lost(err) && !f.served.IsZero() && time.Since(f.served) > f.m.opts.backoffMin {
			continue
		}
		for r := range f.cursors {
			f.m.troubled(r, err)
		}
		f.m.refreshSoon()
		t := time.NewTimer(pause.NextBackOff())
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// fetch runs one connection: the next request is on its way while the last answer is appended. It ends with an error of the
// connection, or nil when nothing is left to fetch.
func (f *fetcher) fetch(ctx context.Context, progress func()) error {
	f.served = time.Time{}
	speaks, err := f.m.client.Versions(ctx, f.broker)
	if err != nil {
		return err
	}
	f.blind = speaks[fetchKey] < comparingFetch
	f.open(f.m.client.Session(f.broker))
	defer f.open(nil)
	for _, c := range f.sorted() {
		if !c.out {
			f.rewind(ctx, c)
		}
	}
	var last answered
	defer func() { f.append(ctx, last) }()
	for {
		f.readNotes()
		if f.idle() {
			return nil
		}
		err := f.session.Send(ctx, wire.Limits{MinBytes: 1, MaxBytes: int32(min(f.m.opts.fetchBytes, f.m.c.budget.size)), MaxWait: f.wait()})
		f.append(ctx, last)
		last = answered{}
		if err != nil {
			return err
		}
		resp, err := f.session.Receive(ctx) // waits for the byte budget before it reads; this loop holds nothing of it now
		if err != nil {
			return err
		}
		if f.served.IsZero() {
			f.served = time.Now()
			for r := range f.cursors { // an answer names only partitions with news: all others are served too
				f.m.reached(r)
			}
		}
		last = answered{resp, f.check(resp, progress)}
	}
}

// open takes a new session and closes the old one.
func (f *fetcher) open(s *wire.Session) {
	if f.session != nil {
		f.session.Close()
	}
	f.session = s
	f.mu.Lock()
	f.live = s
	f.mu.Unlock()
}

// wait is how long the broker may hold the next fetch. A partition whose append takes long comes back when it is done: until then the
// wait is about as long as the append has taken, so that neither of them waits much for the other.
func (f *fetcher) wait() time.Duration {
	if f.away == 0 {
		return f.m.opts.fetchWait
	}
	return min(f.m.opts.fetchWait, max(5*time.Millisecond, time.Since(f.since)))
}

// answered is an answer whose positions are validated and whose bytes are still to be appended.
type answered struct {
	resp *wire.Response
	work []fetched
}

// sorted gives the cursors in one order, so that runs can be repeated.
func (f *fetcher) sorted() []*cursor {
	list := make([]*cursor, 0, len(f.cursors))
	for _, c := range f.cursors {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *cursor) int {
		if a.r.t.name != b.r.t.name {
			return strings.Compare(a.r.t.name, b.r.t.name)
		}
		return int(a.r.num - b.r.num)
	})
	return list
}

// fetched is a validated part of an answer, to be appended.
type fetched struct {
	c         *cursor
	bytes     []byte
	base      int64 // of its first batch
	epoch     int32 // its greatest leader epoch
	sourceEnd int64
	logStart  int64
}

// check goes through an answer: positions advance past what is valid.
func (f *fetcher) check(resp *wire.Response, progress func()) (work []fetched) {
	full := 0
	for i := range resp.Partitions {
		if len(resp.Partitions[i].Records) > 0 {
			full++
		}
	}
	alone := full == 1
	for i := range resp.Partitions {
		a := &resp.Partitions[i]
		c, _ := a.Tag.(*cursor)
		if c == nil || f.cursors[c.r] != c || c.out {
			continue
		}
		r := c.r
		r.mu.Lock()
		current, leaderEpoch, compared := r.gen == c.gen, r.leaderEpoch, r.compared
		r.mu.Unlock()
		switch {
		case !current:
			f.drop(r)
			continue
		case a.Err != nil:
			f.refused(c, a)
			continue
		case a.Diverging != nil:
			f.realign(c, fmt.Sprintf("the source's epoch %d ends at offset %d", a.Diverging.Epoch, a.Diverging.End))
			continue
		}
		if f.empty(c) {
			c.epoch = -1 // what it had before retention emptied it need not be of the source's lineage
		}
		v, err := validate(a.Records, expected{c.next, c.epoch, leaderEpoch, a.HighWatermark, f.empty(c), c.gap})
		c.gap = v.gap
		if f.blind && c.epoch >= 0 && v.epoch > max(c.epoch, compared) {
			f.realign(c, fmt.Sprintf("epoch %d begins, and the source can't compare epochs by itself", v.epoch))
			continue
		}
		w := fetched{c: c, bytes: v.bytes, base: v.base, epoch: v.epoch, sourceEnd: max(a.HighWatermark, v.next), logStart: a.LogStart}
		start, end := c.part.Bounds()
		r.seen(w.logStart, w.sourceEnd, end) // before the append, which may hang
		r.mu.Lock()
		r.sourceLSO = a.LastStable
		r.mu.Unlock()
		if len(v.bytes) > 0 || w.logStart > start {
			work = append(work, w)
		}
		if len(v.bytes) > 0 {
			c.next, c.epoch = v.next, max(c.epoch, v.epoch)
			c.bad, c.pause = 0, nil
			progress()
		}
		switch {
		case err == nil && full == 0 && a.HighWatermark > c.next:
			f.hold(c) // it claims to have more and sends nothing: asked again at once, it might go on so for ever
		case err == nil:
			if len(v.bytes) > 0 || v.gap >= 0 {
				f.place(c)
			}
		case v.need > int64(c.bytes):
			c.bytes = int32(min(v.need, maxBatch))
			f.place(c)
		case v.need > 0 && !alone: // the answer was full before this partition's turn: it will be the first one some time
			f.place(c)
		default:
			f.unusable(c, err)
		}
	}
	return work
}

func (f *fetcher) empty(c *cursor) bool {
	start, end := c.part.Bounds()
	return start == end && c.next == end
}

// expected is what an answer's records are held against.
type expected struct {
	next        int64 // first offset that is wanted
	epoch       int32 // of the batch before it, -1 if unknown
	leaderEpoch int32 // of the source's metadata, -1 if unknown
	end         int64 // the source's high watermark
	empty       bool  // nothing is held yet: the first batch may begin below next (a start inside a batch)
	gap         int64 // where the last answer began after a gap, -1 if it didn't
}

// valid is the usable beginning of an answer's records.
type valid struct {
	bytes []byte
	base  int64 // of its first batch
	next  int64
	epoch int32
	need  int64 // bytes to ask for, if not even the first batch was whole
	gap   int64 // where a batch begins after a gap that one answer alone doesn't prove; -1 if there is none
}

var (
	errStaleLeaderEpoch = errors.New("batch has a leader epoch above the source's metadata")
	errDisorder         = errors.New("batch out of order")
)

// validate takes the batches that are whole, in order, undamaged and of an epoch that can be: what comes before a bad one is kept. A
// last batch cut short is left for the next fetch.
//
// No checksum covers a batch's base offset, and gaps are legal: a flipped bit there looks like one, and the records after it would
// never be asked for. So a batch after a gap counts once another one follows it in order, or it ends where the source does, or
// a second answer puts it at the same place.
func validate(records []byte, x expected) (valid, error) {
	v := valid{next: x.next, epoch: x.epoch, gap: -1}
	sure := v // without a last batch that nothing proves yet
	doubt := false
	for rest := records; len(rest) > 0; {
		h, raw, err := batch.Next(rest)
		if errors.Is(err, batch.ErrShort) {
			if len(v.bytes) > 0 {
				break
			}
			v.need = maxBatch
			if h.Length > 0 {
				v.need = int64(h.Size())
			}
			return v, fmt.Errorf("offset %d: the source sent %d of %d bytes: %w", v.next, len(rest), v.need, err)
		}
		if err == nil {
			err = x.admits(&h, raw, &v)
		}
		if err != nil {
			if doubt {
				v = sure
			}
			return v, err
		}
		if doubt = h.Base > v.next && h.Base != x.gap; doubt {
			sure = v
			sure.gap = h.Base
		}
		if len(v.bytes) == 0 {
			v.base = h.Base
		}
		v.next, v.epoch = h.Next(), max(v.epoch, h.LeaderEpoch)
		rest = rest[len(raw):]
		v.bytes = records[:len(records)-len(rest)]
	}
	if doubt && v.next != x.end {
		v = sure
	}
	return v, nil
}

// admits checks one whole batch that comes after those in v.
func (x expected) admits(h *batch.Header, raw []byte, v *valid) error {
	if err := batch.Check(raw); err != nil {
		return err
	}
	first := len(v.bytes) == 0 && x.empty && h.Next() > v.next
	switch {
	case h.Base < v.next && !first:
		return fmt.Errorf("%w: it begins at offset %d, expected %d or later", errDisorder, h.Base, v.next)
	case h.LeaderEpoch >= 0 && h.LeaderEpoch < v.epoch:
		return fmt.Errorf("%w: offset %d has leader epoch %d after %d", errDisorder, h.Base, h.LeaderEpoch, v.epoch)
	case x.leaderEpoch >= 0 && h.LeaderEpoch > x.leaderEpoch:
		return fmt.Errorf("offset %d: epoch %d, metadata says %d: %w", h.Base, h.LeaderEpoch, x.leaderEpoch, errStaleLeaderEpoch)
	}
	if h.Control() && h.Records > 0 { // it must be understood before it is in the log
		_, err := batch.ParseControl(raw)
		return err
	}
	return nil
}

// unusable holds a partition back after records that could not be used, and lets it fail after several.
func (f *fetcher) unusable(c *cursor, err error) {
	err = fmt.Errorf("fetch %s at offset %d: %w", c.r, c.next, err)
	c.bad++
	switch {
	case errors.Is(err, errStaleLeaderEpoch):
		f.m.refreshSoon()
		f.m.troubled(c.r, err)
		f.hold(c)
	case c.bad < badAnswers: // also an old format: a flipped bit of the magic byte looks the same
		f.m.troubled(c.r, err)
		f.hold(c)
	case errors.Is(err, batch.ErrOldFormat):
		f.drop(c.r)
		err = fmt.Errorf("%w, which cannot be mirrored exactly; rewrite the topic in format 2 at the source (it is not rewritten by itself), then Recover", err)
		c.r.failFetch(c.gen, undecided(err))
	default:
		f.drop(c.r)
		c.r.failFetch(c.gen, retried(err))
	}
}

// realign hands a partition over to alignment. If alignment finds nothing to cut and the same comes again, it does so after a growing
// pause, and in the end someone must look.
func (f *fetcher) realign(c *cursor, why string) {
	r := c.r
	r.mu.Lock()
	r.realigned++
	n := r.realigned
	r.mu.Unlock()
	switch {
	case n > maxRealigned:
		f.drop(r)
		r.failFetch(c.gen, undecided(fmt.Errorf("%s at offset %d: %s, %d times in a row, and where its epochs end the source agrees with us; check the source, then Recover", r, c.next, why, n)))
	case n > 1:
		f.m.troubled(r, fmt.Errorf("%s at offset %d: %s, though its epochs agree with ours", r, c.next, why))
		f.setAside(c)
		f.after(c, func(f *fetcher) { f.realignNow(c, why) })
	default:
		f.realignNow(c, why)
	}
}

func (f *fetcher) realignNow(c *cursor, why string) {
	f.drop(c.r)
	c.r.handOver(c.gen, func() { c.r.diverged = why })
}

// refused reacts to a partition's error code.
func (f *fetcher) refused(c *cursor, a *wire.Fetched) {
	r := c.r
	err := fmt.Errorf("fetch %s at offset %d from broker %d: %w", r, c.next, f.broker, a.Err)
	switch {
	case errors.Is(a.Err, kafka.OffsetOutOfRange):
		f.realign(c, "the source answers that the offset is out of range")
	case errors.Is(a.Err, kafka.NotLeaderForPartition), errors.Is(a.Err, kafka.FencedLeaderEpoch):
		// With a hint it goes straight to the new leader, otherwise after the next look at the metadata.
		r.mu.Lock()
		newer := a.Leader.ID >= 0 && a.Leader.Epoch > r.leaderEpoch
		r.mu.Unlock()
		if newer {
			f.drop(r)
			r.handOver(c.gen, func() { r.leader, r.leaderEpoch = a.Leader.ID, a.Leader.Epoch })
			return
		}
		fallthrough
	default:
		f.m.troubled(r, err)
		f.m.refreshSoon()
		f.hold(c)
	}
}

// append stores what was validated. A partition whose append is slow leaves the loop until it is done.
func (f *fetcher) append(ctx context.Context, a answered) {
	if a.resp == nil {
		return
	}
	defer a.resp.Release()
	timer := time.NewTimer(slowAppend)
	defer timer.Stop()
	for _, w := range a.work {
		release, copied := a.resp.Release, false
		if w.c.slow && len(w.bytes) > 0 { // it may take long again, and would pin the whole answer
			if free, ok := f.m.c.budget.try(len(w.bytes)); ok {
				w.bytes, release, copied = slices.Clone(w.bytes), free, true
			}
		}
		if !copied {
			a.resp.Retain()
		}
		done, began := make(chan error, 1), time.Now()
		f.m.tasks.Go(func() {
			done <- w.c.r.absorb(ctx, w)
			release()
		})
		if copied {
			f.leave(ctx, w, done, began)
			continue
		}
		timer.Reset(slowAppend)
		select {
		case err := <-done:
			if err != nil {
				f.finish(ctx, w, err)
			}
		case <-timer.C:
			w.c.slow = true
			f.leave(ctx, w, done, began)
		}
	}
}

// leave lets a partition leave the loop until its append is done.
func (f *fetcher) leave(ctx context.Context, w fetched, done <-chan error, began time.Time) {
	f.setAside(w.c)
	if f.away == 0 {
		f.since = began
	}
	f.away++
	f.m.tasks.Go(func() {
		err := <-done
		took := time.Since(began)
		f.note(func(f *fetcher) {
			f.away--
			w.c.slow = took > slowAppend
			f.finish(ctx, w, err)
		})
	})
}

// finish brings a partition back after a slow append, and lets it fail after one that went wrong.
func (f *fetcher) finish(ctx context.Context, w fetched, err error) {
	switch {
	case f.cursors[w.c.r] != w.c: // it was moved on meanwhile
	case err == nil:
		f.rewind(ctx, w.c)
	default:
		f.drop(w.c.r)
	}
	if err != nil {
		w.c.r.failFetch(w.c.gen, err)
	}
}

// absorb appends what was fetched, unless it was fetched for a position that holds no more.
func (r *replica) absorb(ctx context.Context, w fetched) error {
	if err := r.appending.acquire(ctx); err != nil {
		return nil // the loop is ending: the next one fetches it again
	}
	defer r.appending.release()
	r.mu.Lock()
	p, current := w.c.part, r.gen == w.c.gen
	r.mu.Unlock()
	if !current || r.m.ctx.Err() != nil { // once fenced, the log is another's
		return nil
	}
	if err := p.follow(ctx, w.logStart); err != nil {
		return err
	}
	if len(w.bytes) > 0 {
		if err := p.mirror(ctx, w); err != nil {
			return err
		}
		r.progressed(len(w.bytes))
	}
	if err := p.follow(ctx, w.logStart); err != nil {
		return err
	}
	_, end := p.Bounds()
	r.seen(w.logStart, w.sourceEnd, end)
	return nil
}

// follow drops what the source has dropped: before an append, since of records that the source's log does not begin with any more nobody
// can say whether the new ones came after them; and after it, for a start among the new ones.
func (p *Partition) follow(ctx context.Context, logStart int64) error {
	start, end := p.Bounds()
	if to := min(logStart, end); to > start {
		return p.advance(ctx, to)
	}
	return nil
}

// budget bounds the bytes that wait to be appended.
type budget struct {
	sem  *semaphore.Weighted
	size int64
}

func newBudget(size int64) *budget { return &budget{sem: semaphore.NewWeighted(size), size: size} }

// reserve waits for n bytes, or for all of the budget if they are more: a batch larger than it is let through alone.
func (b *budget) reserve(ctx context.Context, n int) (release func(), err error) {
	size := min(int64(n), b.size)
	if err := b.sem.Acquire(ctx, size); err != nil {
		return nil, err
	}
	return func() { b.sem.Release(size) }, nil
}

// try is reserve without waiting.
func (b *budget) try(n int) (release func(), ok bool) {
	size := min(int64(n), b.size)
	return func() { b.sem.Release(size) }, b.sem.TryAcquire(size)
}

func (m *Mirror) fetcherOf(broker int32) *fetcher {
	m.mu.Lock()
	f := m.fetchers[broker]
	fresh := f == nil
	if fresh {
		f = newFetcher(m, broker)
		m.fetchers[broker] = f
	}
	m.mu.Unlock()
	if fresh {
		m.background(f.run)
	}
	return f
}
