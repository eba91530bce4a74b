package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/statelog"
	"github.com/clustermirror/mirror/internal/summary"
	"github.com/clustermirror/mirror/internal/wire"
)

// Alignment: a partition's log is made a prefix of its source's. What must be cut is decided in truncate.go; here the source is
// asked, and cuts are carried out and reported.

// prepare aligns the log with the source. It may be run again after any step.
func (r *replica) prepare(ctx context.Context) error {
	p, err := r.partition(ctx)
	if errors.Is(err, ErrUnknownPartition) { // the host lost it, or never made it
		if err = r.m.c.host.EnsureTopic(ctx, Topic{Name: r.t.name, ID: r.t.id, Partitions: int32(len(r.t.partitions()))}); err == nil {
			p, err = r.partition(ctx)
		}
		if errors.Is(err, ErrTopicConflict) {
			err = undecided(fmt.Errorf("%s: %w; Remove the topic, or delete the other one and Recover", r, err))
		}
	}
	if err != nil {
		return err
	}
	if err := r.finishCut(ctx, p); err != nil {
		return err
	}
	if err := r.confirm(ctx); err != nil {
		return err
	}
	if err := r.byPosition(ctx, p); err != nil {
		return err
	}
	for {
		r.mu.Lock()
		leader, epoch, rd := r.leader, r.leaderEpoch, r.round
		r.mu.Unlock()
		if leader < 0 {
			r.m.refreshSoon()
			return errNoLeader
		}
		sourceStart, sourceEnd, err := r.sourceBounds(ctx, leader, epoch)
		if err != nil {
			return err
		}
		l, err := p.lineage(ctx)
		if err != nil {
			return err
		}
		if rd.Aligned || l.start < l.end { // now that the leader had to look at its log, of which its epoch may come
			if err := r.current(l, leader, epoch); err != nil {
				return err
			}
		}
		if l.start == l.end {
			aligned := rd.Aligned || rd.Known && rd.Offset == l.end
			return r.beginEmpty(ctx, p, l.end, aligned, leader, epoch, sourceStart, sourceEnd)
		}
		if sourceStart > l.end {
			if err := r.resetTo(ctx, p, l, sourceStart, "the source's log begins beyond what is mirrored"); err != nil {
				return err
			}
			continue
		}
		agreed, err := r.compare(ctx, p, l, leader, epoch, sourceStart, sourceEnd)
		if err != nil {
			return err
		}
		if agreed {
			r.mu.Lock()
			r.compared = epoch
			r.mu.Unlock()
			return nil
		}
	}
}

// current refuses a leader of a lower epoch than what was mirrored has: whatever it would answer, it doesn't answer for the source.
func (r *replica) current(l lineage, leader, epoch int32) error {
	held := l.latest()
	if epoch < 0 || held <= epoch {
		return nil
	}
	err := fmt.Errorf("%s: the source's leader epoch is %d, and what is here has %d: broker %d has not heard of an election yet, "+
		"or one of the two sides was restored from a backup; Recover compares them all the same", r, epoch, held, leader)
	if r.allows(err) {
		return nil
	}
	r.m.refreshSoon()
	return retried(err)
}

// agrees is an error unless the source's leader knows of nothing here that is to be cut. Fetching finds that out too, but its first answer
// may not be here yet.
func (r *replica) agrees(ctx context.Context, p *Partition, leader, epoch int32) error {
	l, err := p.lineage(ctx)
	if err != nil || l.start == l.end { // an empty log proves nothing
		return err
	}
	if err := r.current(l, leader, epoch); err != nil {
		return &sourceError{err}
	}
	probe := l.last()
	if probe.epoch < 0 {
		return nil // batches without leader epochs: their number is all there is to go by
	}
	a, err := r.epochEnd(ctx, leader, epoch, probe.epoch)
	if err != nil || a.epoch < 0 { // it knows nothing of our last epoch, which is no word against it
		return err
	}
	v, err := l.compare(probe, a)
	if err != nil {
		return &sourceError{fmt.Errorf("%s: %w", r, err)}
	}
	if v.kind != agree {
		return &sourceError{fmt.Errorf("%s: not all that is here is the source's", r)}
	}
	return nil
}

// confirm asks the peer again if a crash came between the first look and the second: nothing may be cut before it.
func (r *replica) confirm(ctx context.Context) error {
	r.mu.Lock()
	rd := r.round
	r.mu.Unlock()
	if rd.Confirmed || rd.Aligned {
		return nil
	}
	asking, done := r.question(ctx)
	p, err := r.m.askPeer(asking, r.t)
	done()
	if err != nil {
		return &sourceError{err}
	}
	if p.active != "" {
		return undecided(fmt.Errorf("%w: %s; Remove the topic on one side, then Recover", ErrPeerActive, p.active))
	}
	r.mu.Lock()
	r.round.Confirmed = true // persisted with the next write of the round, which comes before any cut
	r.mu.Unlock()
	return nil
}

// beginEmpty sets where an empty log begins: at the source's start, or where StartAt options say. One that was mirrored before, and
// that retention emptied, goes on where it ended, if the source still has that place.
func (r *replica) beginEmpty(ctx context.Context, p *Partition, at int64, aligned bool, leader, epoch int32, sourceStart, sourceEnd int64) error {
	want := sourceStart
	r.mu.Lock()
	rd := r.round
	r.mu.Unlock()
	switch {
	case aligned && at >= sourceStart && at <= sourceEnd:
		return nil
	case aligned && sourceStart > at:
		return r.resetTo(ctx, p, lineage{start: at, end: at}, sourceStart, "the source's log begins beyond what is mirrored")
	case aligned:
		return r.resetTo(ctx, p, lineage{start: at, end: at}, sourceStart, "the source's log ends below what was mirrored")
	case !rd.Late:
		var err error
		if want, err = r.startPoint(ctx, leader, epoch, sourceStart, sourceEnd); err != nil {
			return err
		}
		if rd.Known { // what has come since that position is not skipped
			want = min(want, max(rd.Offset, sourceStart))
		}
	}
	if want == at {
		return nil
	}
	if want < at { // retention took what was here: others' records come to stand where some of it was, from the last mirrored position on
		if err := p.clampOffsets(ctx, max(want, min(rd.Offset, at))); err != nil {
			return err
		}
	}
	return p.reset(ctx, want)
}

func (r *replica) startPoint(ctx context.Context, leader, epoch int32, low, high int64) (int64, error) {
	s := r.m.opts.start
	switch s.kind {
	case fromOffset:
		return min(max(s.at, low), high), nil
	case fromEnd:
		return high, nil
	case fromTime:
		a, err := r.offsets(ctx, leader, epoch, s.at)
		if err != nil {
			return 0, err
		}
		if a[0] < 0 { // nothing that late
			return high, nil
		}
		return min(max(a[0], low), high), nil
	}
	return low, nil
}

// compare asks the source where our epochs end, and does what the answers say.
func (r *replica) compare(ctx context.Context, p *Partition, l lineage, leader, epoch int32, sourceStart, sourceEnd int64) (agreed bool, err error) {
	v, err := r.ask(ctx, l, leader, epoch, sourceStart, sourceEnd)
	switch {
	case err != nil:
		return false, err
	case v.kind == agree:
		return true, nil
	case v.kind == unknown:
		return false, r.resetTo(ctx, p, l, v.to, v.why)
	default:
		return false, r.cutBack(ctx, p, l, v.to, v.why)
	}
}

// ask asks until the answers say what to do: the logs agree, or are to be cut to an offset, or to begin again, empty, at one.
func (r *replica) ask(ctx context.Context, l lineage, leader, epoch int32, sourceStart, sourceEnd int64) (verdict, error) {
	probe := l.last()
	if probe.epoch < 0 { // batches without leader epochs: their number is all there is to go by
		if sourceEnd >= l.end {
			return verdict{kind: agree}, nil
		}
		return verdict{kind: cutTo, to: sourceEnd, why: "the source's log is shorter and has no leader epochs"}, nil
	}
	for {
		a, err := r.epochEnd(ctx, leader, epoch, probe.epoch)
		if err != nil {
			return verdict{}, err
		}
		v, err := l.compare(probe, a)
		if err != nil {
			return verdict{}, undecided(fmt.Errorf("align %s: %w; check the source, then Recover", r, err))
		}
		switch v.kind {
		case askNext:
			probe = v.next
			continue
		case cutTo:
			v.why = fmt.Sprintf("asked for epoch %d, the source's epoch %d ends at offset %d", probe.epoch, a.epoch, a.end)
		case unknown:
			to, reset := l.strange(sourceStart, sourceEnd)
			v = verdict{kind: unknown, to: to, why: "no leader epoch of the log is known to the source"}
			if !reset {
				v = verdict{kind: cutTo, to: to, why: "the source's log is shorter and knows no leader epoch of ours"}
			}
		}
		return v, nil
	}
}

// byPosition cuts to the last mirrored position that the round begins with: what lies above was written here.
func (r *replica) byPosition(ctx context.Context, p *Partition) error {
	r.mu.Lock()
	rd := r.round
	r.mu.Unlock()
	if rd.Aligned || !rd.Known && !rd.Empty {
		return nil
	}
	l, err := p.lineage(ctx)
	if err != nil || l.start == l.end {
		return err
	}
	if rd.Empty {
		return r.resetTo(ctx, p, l, l.end, "Overwrite of a log that was never mirrored")
	}
	to := l.byPosition(Position{rd.Epoch, rd.Offset})
	if to >= l.end {
		return nil
	}
	commits, err := p.commits(ctx, to)
	if err != nil {
		return err
	}
	what := ""
	if data, err := p.hasData(ctx, max(to, l.start)); err != nil {
		return err
	} else if !data { // as every takeover leaves them: nobody has lost anything
		what = "no records, only markers, "
	}
	e := l.cutting(to, fmt.Sprintf("%swritten here after the last mirrored position (epoch %d, offset %d)", what, rd.Epoch, rd.Offset))
	e.Commits = commits
	return r.carryOut(ctx, p, e)
}

// commits are the producers that committed a transaction from an offset on, and where their marker is. If one was open at a
// cut there, the other side has aborted it: its records below the cut are no longer visible, and that is a loss too.
func (p *Partition) commits(ctx context.Context, from int64) (map[int64]int64, error) {
	commits := make(map[int64]int64)
	buf := make([]byte, 4096)
	start, end := p.Bounds()
	for from = max(from, start); from < end; {
		n, err := p.Read(ctx, from, buf)
		if err != nil || n == 0 {
			return commits, err
		}
		h, err := batch.Parse(buf[:n])
		if err != nil {
			return nil, fmt.Errorf("read %s at offset %d: %w", p, from, err)
		}
		if h.Control() && h.Records > 0 {
			c, err := batch.ParseControl(buf[:n])
			if err != nil {
				return nil, fmt.Errorf("read %s at offset %d: %w", p, from, err)
			}
			if _, seen := commits[h.ProducerID]; c.Type == batch.ControlCommit && !seen {
				commits[h.ProducerID] = h.Base
			}
		}
		from = h.Next()
	}
	return commits, nil
}

// cutEntry is a cut that is not reported yet: persisted before it, closed after the report.
type cutEntry struct {
	From, To int64 // what is dropped, or was never got
	Target   int64 // the log's end afterwards
	Reset    bool  // emptied, and going on at Target
	Epoch    int32 // of the first batch that is dropped: another one there has come since
	Reason   string
	Commits  map[int64]int64 `json:",omitempty"` // by producer: COMMIT markers among what is dropped
	Time     time.Time
}

// cutting is the cut of a log to an offset, which may lie below its start.
func (l lineage) cutting(to int64, reason string) cutEntry {
	return cutEntry{From: max(to, l.start), To: l.end, Target: to, Reset: to < l.start, Reason: reason}
}

// restarting empties the log: it goes on at start. What was held is reported, or, if the source begins beyond it, what lies between: that
// was never got, and what is dropped here the source has dropped too.
func (l lineage) restarting(start int64, reason string) cutEntry {
	e := cutEntry{From: l.start, To: l.end, Target: start, Reset: true, Reason: reason}
	if start > l.end {
		e.From, e.To = l.end, start
	}
	return e
}

// cutBack drops what is not the source's.
func (r *replica) cutBack(ctx context.Context, p *Partition, l lineage, to int64, reason string) error {
	if err := r.sameTopic(ctx); err != nil {
		return err
	}
	return r.carryOut(ctx, p, l.cutting(to, reason))
}

// resetTo empties the log.
func (r *replica) resetTo(ctx context.Context, p *Partition, l lineage, start int64, reason string) error {
	if err := r.sameTopic(ctx); err != nil {
		return err
	}
	return r.carryOut(ctx, p, l.restarting(start, reason))
}

// sameTopic makes sure that what the source has said of offsets and epochs was said of our topic, and not of another one that was made
// under its name: those questions go by name. The partition's leader is asked, whose metadata are no older than its answers.
func (r *replica) sameTopic(ctx context.Context) error {
	r.mu.Lock()
	leader := r.leader
	r.mu.Unlock()
	ctx, done := r.question(ctx)
	defer done()
	meta, err := r.m.client.TopicAt(ctx, leader, r.t.name)
	if err == nil {
		err = meta.Err
	}
	if id := TopicID(meta.ID); err == nil && id != (TopicID{}) && id != r.t.id {
		err = fmt.Errorf("it has another one by now, %s", id)
	}
	if err != nil {
		return r.asked("the topic", leader, err)
	}
	return nil
}

// carryOut drops what is not the source's, if that is allowed.
func (r *replica) carryOut(ctx context.Context, p *Partition, e cutEntry) error {
	r.mu.Lock()
	rd := r.round
	r.mu.Unlock()
	if r.m.opts.failOnDiverge && rd.Aligned && !rd.Stored {
		if err := r.mustAllow(fmt.Errorf("%s: offsets [%d, %d) would be dropped: %s; Recover allows it", r, e.From, e.To, e.Reason)); err != nil {
			return err
		}
	}
	return r.drop(ctx, p, e, rd)
}

// drop persists what is going to be dropped, with what the round becomes and what else belongs to it, drops it, and reports it.
func (r *replica) drop(ctx context.Context, p *Partition, e cutEntry, rd round, with ...statelog.Record) error {
	start, _ := p.Bounds()
	epoch, err := p.EpochAt(ctx, e.first(start))
	if err != nil {
		return err
	}
	e.Epoch, e.Time = epoch, time.Now()
	rd.Cut = true
	if err := r.putRound(ctx, rd, append(with, record(r.key(typeCut), e))...); err != nil {
		return fmt.Errorf("announce cut of %s: %w", r, err)
	}
	return r.finish(ctx, p, e)
}

// first is the first offset that is dropped of a log that begins at start.
func (e cutEntry) first(start int64) int64 {
	if e.Reset {
		return start
	}
	return e.From
}

// outgrown says that more has come since the cut was carried out, whatever its epoch: before, nothing does.
func (e cutEntry) outgrown(end int64) bool { return end > e.To }

// carriedOut says that an announced cut has been carried out, however the log has grown since: after a crash, or when the state is older
// than the log.
func (e cutEntry) carriedOut(ctx context.Context, p *Partition) (bool, error) {
	start, end := p.Bounds()
	switch {
	case e.outgrown(end):
		return true, nil
	case e.Reset && start == end:
		return start == e.Target, nil
	case !e.Reset && end <= e.Target:
		return true, nil
	}
	epoch, err := p.EpochAt(ctx, e.first(start))
	return epoch != e.Epoch, err
}

// mustAllow is nil if Recover has allowed just this, and otherwise asks for it.
func (r *replica) mustAllow(loss error) error {
	if r.allows(loss) {
		return nil
	}
	return undecided(loss)
}

// allows says that Recover was called for just this failure.
func (r *replica) allows(failure error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.allowed, failure.Error())
}

// leaveEpoch raises the leader epoch if the log has batches of it, which are about to go: whoever remembers one of them must be
// fenced and look again.
func (p *Partition) leaveEpoch(ctx context.Context) error {
	return p.change(ctx, func(ctx context.Context) error {
		p.mu.Lock()
		epoch, latest := p.epoch, p.sum.Epochs().Latest()
		p.mu.Unlock()
		if latest < 0 || latest < epoch || latest == math.MaxInt32 {
			return nil
		}
		return p.setEpoch(ctx, latest+1)
	})
}

// finishCut carries out and reports what an earlier run announced.
func (r *replica) finishCut(ctx context.Context, p *Partition) error {
	e, ok, err := get[cutEntry](r.m.c.store, r.key(typeCut))
	if !ok || err != nil {
		return err
	}
	return r.finish(ctx, p, e)
}

func (r *replica) finish(ctx context.Context, p *Partition, e cutEntry) error {
	done, err := e.carriedOut(ctx, p)
	if err == nil && !done {
		err = p.leaveEpoch(ctx)
	}
	if err != nil {
		return err
	}
	_, end := p.Bounds()
	switch {
	case done:
	case e.Reset:
		e.From = min(e.From, end) // a crash since the announcement may have taken more
		err = p.reset(ctx, e.Target)
	default:
		err = p.cut(ctx, e.Target)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		// Nothing has changed and nothing will: the announcement is withdrawn, or a stop would try it for ever.
		if err := r.m.c.put(ctx, statelog.Record{Key: r.key(typeCut)}); err != nil {
			return err
		}
		return undecided(fmt.Errorf("%s: offsets [%d, %d) are not the source's and this host can't cut them: %w; Remove the topic, or empty it and Recover", r, e.From, e.To, err))
	}
	if err != nil {
		return err
	}
	_, end = p.Bounds() // a cut inside a batch came out lower
	if err := p.clampOffsets(ctx, min(e.From, e.Target, end)); err != nil {
		return err
	}
	r.mu.Lock()
	totals := r.totals
	r.mu.Unlock()
	kind := Truncated
	if e.Reset {
		kind = DataLoss
		totals.Lost += e.To - e.From
	} else {
		totals.Cut += e.To - e.From
	}
	totals.Cuts++
	ev := Event{Kind: kind, Mirror: r.m.name, Topic: r.t.name, Partition: r.num, From: e.From, To: e.To, Reason: e.Reason}
	r.m.c.log.Warn("records dropped", "mirror", r.m.name, "partition", r.String(), "from", e.From, "to", e.To, "end", e.Target, "reason", e.Reason)
	r.m.c.events.send(ev)
	if len(e.Commits) > 0 {
		open, err := p.openTxns(ctx)
		if err != nil {
			return err
		}
		for _, o := range open {
			if at, ok := e.Commits[o.ProducerID]; ok {
				r.m.c.events.send(Event{
					Kind: DataLoss, Mirror: r.m.name, Topic: r.t.name, Partition: r.num, From: o.FirstOffset, To: o.Next,
					Reason: fmt.Sprintf("the transaction of producer %d was committed here at offset %d, and was still open when the other side took over", o.ProducerID, at),
				})
				totals.Lost += o.Next - o.FirstOffset
			}
		}
	}
	if err := r.m.c.put(ctx, record(r.key(typeTotals), totals), statelog.Record{Key: r.key(typeCut)}); err != nil {
		return fmt.Errorf("close report of a cut of %s: %w", r, err)
	}
	r.mu.Lock()
	r.totals, r.realigned = totals, 0
	r.mu.Unlock()
	return nil
}

// check is done for every partition when the state is loaded, or as soon as the host lets it be done: the log is opened, so that its
// bounds are known, and a state older than the data is found out, and nothing is cut.
func (r *replica) check(ctx context.Context) error {
	r.mu.Lock()
	free := r.stored.state == Stopped && r.round.TakenOver // it may be another topic's by now
	r.mu.Unlock()
	p, err := r.partition(ctx)
	if err == nil && !free {
		err = p.olderState(ctx, r)
	}
	if err != nil && !free && !errors.Is(err, ErrUnknownPartition) && !errors.Is(err, ErrTopicConflict) { // it is not here
		return err
	}
	r.mu.Lock()
	r.unchecked = false
	r.mu.Unlock()
	return nil
}

func (p *Partition) olderState(ctx context.Context, r *replica) error {
	start, end := p.Bounds()
	if start == end {
		return nil
	}
	r.mu.Lock()
	rd := r.round
	r.mu.Unlock()
	l, err := p.lineage(ctx)
	if err != nil {
		return err
	}
	latest, recorded := l.latest(), p.c.leaderEpoch(p.id, p.num)
	cut, announced, err := get[cutEntry](r.m.c.store, r.key(typeCut))
	if err != nil {
		return err
	}
	var how string
	switch {
	case latest <= recorded && rd.mirroredOn(l):
		how = fmt.Sprintf("holds [%d, %d) of leader epoch %d, the state says that all from offset %d on was written here", start, end, latest, rd.Offset)
	case latest <= recorded && !(announced && cut.outgrown(end)):
		return nil
	case latest <= recorded:
		how = fmt.Sprintf("goes on to offset %d, the state has yet to cut [%d, %d) of it", end, cut.From, cut.To)
	default:
		how = fmt.Sprintf("holds leader epoch %d, the state knows none above %d", latest, recorded)
		if announced { // carried out and reported before anything of that epoch came
			if err := r.m.c.put(ctx, statelog.Record{Key: r.key(typeCut)}); err != nil {
				return err
			}
		}
	}
	return r.to(ctx, evFail, undecided(fmt.Errorf("%s %s: the state is older than the data (restored from a backup?); nothing was cut. "+
		"Recover goes on after comparing with the source", r, how)), func(rd *round) { rd.Older = true })
}

// mirroredOn says that what lies above the position was not written here, as it should be, so the source has come on since: a round that
// begins with a position is aligned before anything comes, and one that ends with it has raised the epoch before anything is written.
func (rd round) mirroredOn(l lineage) bool {
	begins, ends := rd.Known && !rd.Aligned && !rd.Raised, rd.Stored && rd.Raised
	if !begins && !ends || rd.Offset < 0 || rd.Offset >= l.end {
		return false
	}
	return l.latest() >= 0 && l.latest() < rd.Local
}

// prove says whether what is here is the source's (the topic ids are the same): our epochs end where the source's do, and it holds our last
// batch byte for byte.
func (r *replica) prove(ctx context.Context) (bool, error) {
	r.mu.Lock()
	p, leader, epoch := r.part, r.leader, r.leaderEpoch
	r.mu.Unlock()
	r.m.mu.Lock()
	confirmed := r.t.confirmed
	r.m.mu.Unlock()
	if !confirmed {
		return false, nil // a source without topic ids, or not asked yet
	}
	if leader < 0 {
		return false, errNoLeader
	}
	l, err := p.lineage(ctx)
	if err != nil {
		return false, err
	}
	if l.start == l.end {
		return false, nil // it says nothing about what was there
	}
	low, _, err := r.sourceBounds(ctx, leader, epoch)
	if err != nil {
		return false, err
	}
	for ask := l.last(); ask.epoch >= 0 && ask.end > low; ask = l.below(ask.epoch) {
		a, err := r.epochEnd(ctx, leader, epoch, ask.epoch)
		if err != nil {
			return false, err
		}
		last := ask.end == l.end
		if a.epoch != ask.epoch || a.end < ask.end || !last && a.end != ask.end {
			return false, nil
		}
	}
	ours, err := p.lastBatch(ctx)
	if err != nil {
		return false, err
	}
	h, err := batch.Parse(ours)
	if err != nil {
		return false, err
	}
	theirs, err := r.m.client.Read(ctx, leader, wire.FetchPartition{
		Topic: r.t.name, ID: r.t.id, Partition: r.num, CurrentLeaderEpoch: epoch, Offset: h.Base, LastFetchedEpoch: -1, MaxBytes: int32(len(ours)),
	}, int32(max(len(ours), 1<<16)))
	if err != nil {
		return false, err
	}
	if theirs.Err != nil {
		return false, nil //nolint:nilerr // the source doesn't have it: that is the answer
	}
	return len(theirs.Records) >= len(ours) && bytes.Equal(theirs.Records[:len(ours)], ours), nil
}

// lastBatch reads the log's last batch.
func (p *Partition) lastBatch(ctx context.Context) ([]byte, error) {
	var base int64
	err := p.know(ctx, func(s *summary.Summary) { base, _, _ = s.LastBatch() })
	if err != nil {
		return nil, err
	}
	return p.readBatch(ctx, base)
}

// readBatch reads the whole batch that holds offset.
func (p *Partition) readBatch(ctx context.Context, offset int64) ([]byte, error) {
	var head [batch.HeaderSize]byte
	if _, err := p.Read(ctx, offset, head[:]); err != nil {
		return nil, err
	}
	h, err := batch.Parse(head[:])
	if err != nil {
		return nil, fmt.Errorf("read %s at offset %d: %w", p, offset, err)
	}
	raw := make([]byte, h.Size())
	if _, err := p.Read(ctx, offset, raw); err != nil {
		return nil, err
	}
	return raw, nil
}

// The two timestamps that stand for the ends of a log in ListOffsets.
const (
	latest   = -1
	earliest = -2
)

// sourceBounds are the source's log start and end, read under the leader epoch that is believed current.
func (r *replica) sourceBounds(ctx context.Context, leader, epoch int32) (start, end int64, err error) {
	a, err := r.offsets(ctx, leader, epoch, earliest, latest)
	if err != nil {
		return 0, 0, err
	}
	if a[0] < 0 || a[1] < a[0] {
		return 0, 0, r.asked("offsets", leader, fmt.Errorf("%w: its log is [%d, %d)", wire.ErrProtocol, a[0], a[1]))
	}
	r.mu.Lock()
	r.sourceStart, r.sourceEnd, r.heard = a[0], a[1], time.Now()
	r.mu.Unlock()
	return a[0], a[1], nil
}

func (r *replica) offsets(ctx context.Context, leader, epoch int32, times ...int64) ([]int64, error) {
	answers := make([]int64, len(times))
	ctx, done := r.question(ctx)
	defer done()
	if err := r.m.asking.Acquire(ctx, 1); err != nil {
		return nil, r.asked("offsets", leader, err)
	}
	defer r.m.asking.Release(1)
	for i, at := range times { // one at a time: a partition may stand in a request only once
		list, err := r.m.client.Offsets(ctx, leader, []wire.OffsetQuery{{Topic: r.t.name, Partition: r.num, CurrentLeaderEpoch: epoch, Timestamp: at}})
		if err == nil {
			err = list[0].Err
		}
		if err != nil {
			return nil, r.asked("offsets", leader, err)
		}
		answers[i] = list[0].Offset
	}
	return answers, nil
}

func (r *replica) epochEnd(ctx context.Context, leader, epoch, ask int32) (answer, error) {
	ctx, done := r.question(ctx)
	defer done()
	if err := r.m.asking.Acquire(ctx, 1); err != nil {
		return answer{}, r.asked("an epoch's end", leader, err)
	}
	defer r.m.asking.Release(1)
	list, err := r.m.client.EpochEnds(ctx, leader, []wire.EpochQuery{{Topic: r.t.name, Partition: r.num, CurrentLeaderEpoch: epoch, Epoch: ask}})
	if err == nil {
		err = list[0].Err
	}
	if err != nil {
		return answer{}, r.asked(fmt.Sprintf("end of epoch %d", ask), leader, err)
	}
	return answer{list[0].Epoch, list[0].End}, nil
}

// question bounds a question to the source by the wish that it serves: who wants to stop does not wait for a silent source.
func (r *replica) question(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	heeded := r.heeded
	r.mu.Unlock()
	if heeded == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(heeded, cancel)
	return ctx, func() { stop(); cancel() }
}

// heed is called before the wish is read: questions asked after it end when another wish comes.
func (r *replica) heed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unwish == nil {
		r.heeded, r.unwish = context.WithCancel(context.Background())
	}
}

// wishChanged ends the questions that are being asked.
func (r *replica) wishChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unwish != nil {
		r.unwish()
		r.unwish = nil
	}
}

// asked makes an error of a failed request; one that points to a moved leader makes the metadata fresh.
func (r *replica) asked(what string, leader int32, err error) error {
	r.m.refreshSoon()
	return &sourceError{fmt.Errorf("ask broker %d for %s of %s: %w", leader, what, r, err)}
}

// sourceError marks trouble with the source: it is waited out, with growing pauses, for ever.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

func isSourceTrouble(err error) bool {
	var s *sourceError
	return errors.As(err, &s) || errors.Is(err, errNoLeader) || errors.Is(err, ErrSourceUnreachable)
}
