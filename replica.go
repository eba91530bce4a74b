package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/clustermirror/mirror/internal/statelog"
)

// replica is one mirrored partition: it is driven from state to state towards what is wished for its topic. drive is the only one
// who takes it from state to state, one goroutine at a time, and there is none while nothing is to be done. (A round that is being
// tried is set and taken back by failback.go, while drive keeps still; Recover and the first append only clear failures.)
type replica struct {
	m   *Mirror
	t   *mirrorTopic
	num int32

	// appending is held for each append, so that whoever raises gen and takes it knows that no older append follows.
	appending lock

	raised bool // the leader epoch was, for a takeover, since the state was loaded; drive's own

	mu        sync.Mutex // guards what follows; never held across I/O
	part      *Partition // nil until it was first needed
	stored    stored
	round     round
	unchecked bool // what the state says was not held against the log yet
	told      bool // a command has come since the state was loaded
	totals    Totals

	busy, again bool     // drive is running; and must look again before it ends
	failing     error    // a failure that drive has not seen yet
	diverged    string   // why the fetcher thinks that the logs have parted; "" if it doesn't
	realigned   int      // in a row, with no cut and no record since
	allowed     []string // the failures that Recover was called for since it last went well: a cut that one names may be carried out
	gen         uint64   // what was fetched under an older one is dropped
	fetcher     *fetcher
	retry       *backoff.ExponentialBackOff
	timer       *time.Timer

	heeded context.Context // ends when another wish comes than the one that drive has read last
	unwish context.CancelFunc

	leader      int32 // at the source, -1 if unknown
	leaderEpoch int32
	compared    int32     // the leader epoch under which the epochs were last compared
	fell        time.Time // since when the metadata say a lower leader epoch; zero if they don't
	sourceStart int64     // -1 if unknown
	sourceEnd   int64
	sourceLSO   int64
	hung        string    // a transaction that doesn't end; "" if there is none
	bytes       int64     // appended since Start
	moved       time.Time // the last append, or the moment it fell behind
	whole       time.Time // when it last held all that the source had
	heard       time.Time // when the source last answered for it
	prodded     time.Time // when a new connection was last made because it is stalled
	health      Health
	trouble     error // why it doesn't get on
}

// stored is the state of a partition as persisted, with the documents' record.
type stored struct {
	state  State
	before State // what FAILED goes back to
	epoch  int32 // counts the writes
	text   string
	decide bool
	tries  int
}

// round is one span of mirroring in one direction.
type round struct {
	Number    int64  `json:"number"`
	Peer      string `json:"peer"`                 // the source's cluster id
	Aligned   bool   `json:"aligned,omitempty"`    // the log is a prefix of the source's
	Cut       bool   `json:"cut,omitempty"`        // something was cut or reset in this round, or is about to be
	Confirmed bool   `json:"confirmed,omitempty"`  // the peer was asked again after PREPARING was persisted
	Existed   bool   `json:"existed,omitempty"`    // the partition was here before the round
	Open      bool   `json:"open,omitempty"`       // the gate was open before the round
	Raised    bool   `json:"raised,omitempty"`     // the leader epoch was raised for this round's takeover
	TakenOver bool   `json:"taken_over,omitempty"` // the gate is open
	Known     bool   `json:"known,omitempty"`      // it begins with the position of an earlier round
	Empty     bool   `json:"empty,omitempty"`      // Overwrite allowed to drop all that was here
	Stored    bool   `json:"stored,omitempty"`     // this round's position is stored
	Older     bool   `json:"older,omitempty"`      // the state was found to be older than the log, and nobody has decided yet
	Late      bool   `json:"late,omitempty"`       // the source added the partition later: it begins at its start
	Epoch     int32  `json:"epoch"`                // last mirrored position: greatest source epoch, -1 of an empty log
	Offset    int64  `json:"offset"`               // and end offset; -1 unknown
	Local     int32  `json:"local,omitempty"`      // what was written here since the last takeover has at least this leader epoch; 0 unknown
}

func newReplica(t *mirrorTopic, num int32) *replica {
	return &replica{
		m: t.m, t: t, num: num, appending: newLock(),
		stored: stored{state: Unknown, before: Unknown},
		round:  round{Epoch: -1, Offset: -1},
		leader: -1, leaderEpoch: -1, compared: -1, sourceStart: -1, sourceEnd: -1, sourceLSO: -1, health: CatchingUp,
	}
}

func (r *replica) String() string { return fmt.Sprintf("%s-%d", r.t.name, r.num) }

func (r *replica) key(typ int16) statelog.Key {
	return statelog.Key{Type: typ, Mirror: r.m.name, Topic: r.t.id, Partition: r.num}
}

// stateRecord and roundRecord are what is persisted of it.
func (r *replica) stateRecord(s stored) statelog.Record {
	v := statelog.PartitionState{
		State: int8(s.state), LeaderEpoch: -1, StateEpoch: s.epoch, Error: s.text,
		RetryAttempt: int16(min(s.tries, 1<<15-1)), PreviousState: int8(s.before),
	}
	if s.decide {
		v.RetryAttempt = -1
	}
	return statelog.Record{Key: r.key(statelog.TypePartitionState), Value: v.Append(nil)}
}

func (r *replica) roundRecord(v round) statelog.Record { return record(r.key(typeRound), v) }

// load takes what was persisted.
func (r *replica) load(s *statelog.Store) error {
	r.unchecked = true
	if b, ok := s.Get(r.key(statelog.TypePartitionState)); ok {
		v, err := statelog.ParsePartitionState(b)
		if err != nil {
			return fmt.Errorf("state of %s: %w", r, err)
		}
		r.stored = stored{
			state: State(v.State), before: State(v.PreviousState), epoch: v.StateEpoch,
			text: v.Error, decide: v.RetryAttempt < 0, tries: int(max(v.RetryAttempt, 0)),
		}
	}
	v, ok, err := get[round](s, r.key(typeRound))
	if err != nil {
		return err
	}
	if ok {
		r.round = v
	}
	r.totals, _, err = get[Totals](s, r.key(typeTotals))
	return err
}

// partition opens its log when it is first needed, and again if the host has deleted the topic since. One that was made anew under its
// name is none of the mirror's.
func (r *replica) partition(ctx context.Context) (*Partition, error) {
	r.letGo()
	r.mu.Lock()
	p := r.part
	r.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := r.m.c.Partition(ctx, r.t.name, r.num)
	if err != nil {
		return nil, err
	}
	if p.id != r.t.id {
		return nil, undecided(fmt.Errorf("%s: %w: %s, mirrored was %s; Remove the topic, or delete that one and Recover", r, ErrTopicConflict, p.id, r.t.id))
	}
	r.mu.Lock()
	r.part = p
	r.mu.Unlock()
	return p, nil
}

// kick has the replica look at what is to be done.
func (r *replica) kick() {
	r.mu.Lock()
	if r.busy {
		r.again = true
		r.mu.Unlock()
		return
	}
	r.busy = true
	r.mu.Unlock()
	r.m.background(func(context.Context) {
		for {
			r.mu.Lock()
			r.again = false
			r.mu.Unlock()
			if err := r.drive(r.m.ctx); err != nil && r.m.ctx.Err() == nil {
				r.handle(r.m.ctx, err)
			}
			r.mu.Lock()
			if !r.again || r.m.ctx.Err() != nil {
				r.busy = false
				r.mu.Unlock()
				r.m.changed.broadcast() // for those who wait until it has come to rest
				return
			}
			r.mu.Unlock()
		}
	})
}

// drive takes steps until there is nothing to do but wait. Each step first persists the state it goes to. An error is what keeps it
// from going on.
func (r *replica) drive(ctx context.Context) error {
	for lost := false; ctx.Err() == nil; {
		r.mu.Lock()
		s, diverged, failing, unchecked, held := r.stored, r.diverged, r.failing, r.unchecked, r.round.Older && !r.told
		r.failing = nil
		r.mu.Unlock()
		r.heed()
		wished, running := r.t.wish()
		if failing != nil && wished != Stopped { // what is to be stopped is stopped, whatever ails it
			return failing
		}
		if !running {
			return nil // not started, or detached, and nothing that could be done without the source
		}
		if unchecked {
			if err := r.check(ctx); err != nil {
				return err
			}
			continue
		}
		if held && s.state == Failed {
			return nil // the wish may be as old as the state
		}
		if e := pursue(s.state, wished); e != "" {
			if err := r.begin(ctx, e); err != nil {
				return err
			}
			continue
		}
		var err error
		switch s.state {
		case Preparing:
			if err = r.prepare(ctx); err == nil {
				if err = r.to(ctx, evAligned, nil, nil); err == nil {
					r.recovered()
				}
			}
		case Mirroring:
			if diverged == "" {
				if err = r.startFetching(ctx); !errors.Is(err, ErrUnknownPartition) {
					return err
				}
				diverged = "the host has lost the partition"
			}
			r.m.c.log.Info("logs have parted", "mirror", r.m.name, "partition", r.String(), "reason", diverged)
			err = r.begin(ctx, evDiverge)
		case Pausing:
			r.stopFetching(ctx)
			if err = r.syncLog(ctx); err == nil {
				err = r.to(ctx, evSettle, nil, nil)
			}
		case Stopping:
			var done round
			if done, err = r.stop(ctx); err == nil {
				err = r.to(ctx, evSettle, nil, func(rd *round) { *rd = done })
			}
		case Failed:
			if !r.due() {
				return nil
			}
			err = r.to(ctx, evRetry, nil, nil)
		default: // Paused, Stopped: as wished
			return nil
		}
		if err != nil {
			if !r.letGo() || lost {
				return err
			}
			lost = true // the log that is there now is tried at once, the one after it after a pause
		}
	}
	return nil
}

// letGo gives up a log that the host has deleted, which may be there again by now, and empty.
func (r *replica) letGo() bool {
	r.mu.Lock()
	gone, f, gen := r.part != nil && r.part.Gone(), r.fetcher, r.gen
	if gone {
		r.part = nil
	}
	r.mu.Unlock()
	if gone && f != nil {
		r.handOver(gen, func() { r.diverged = "the host has lost the partition" })
		f.remove(r)
	}
	return gone
}

// begin goes to a state that was asked for: nothing is fetched any more when it is persisted.
func (r *replica) begin(ctx context.Context, e event) error {
	r.stopFetching(ctx)
	return r.to(ctx, e, nil, nil)
}

// to persists the state after an event, with what else changes at the same moment, and takes it on. An illegal event is logged
// and does nothing.
func (r *replica) to(ctx context.Context, e event, cause error, change func(*round)) error {
	r.mu.Lock()
	old := r.stored
	rd := r.round
	r.mu.Unlock()
	state, ok := next(old.state, old.before, e)
	if !ok {
		r.m.c.log.Warn("no such transition", "mirror", r.m.name, "partition", r.String(), "state", old.state.String(), "event", string(e))
		return nil
	}
	s := old
	s.state, s.epoch = state, old.epoch+1
	switch state {
	case Failed:
		s.text, s.tries, s.decide = cause.Error(), old.tries+1, mustDecide(cause)
		if old.state != Failed {
			s.before = old.state
		}
	case Paused, Stopped:
		s.text, s.decide, s.tries, s.before = "", false, 0, Unknown
	case Preparing, Stopping, Pausing:
		s.decide = false
	}
	before := rd
	if change != nil {
		change(&rd)
	}
	if state == Mirroring {
		rd.Aligned = true
	}
	if state != Failed {
		rd.Older = false
	}
	recs := []statelog.Record{r.stateRecord(s)}
	if rd != before {
		recs = append(recs, r.roundRecord(rd))
	}
	if err := r.m.c.put(ctx, recs...); err != nil {
		return fmt.Errorf("persist %s -> %s of %s: %w", old.state, state, r, err)
	}
	if state == Stopped {
		r.mu.Lock()
		r.round = rd // before the gate: whoever sets it to what the rounds say, at this moment, must not shut it again
		r.mu.Unlock()
		r.m.c.gate.setOpen(r.t.name, r.num, rd.TakenOver) // before anyone can see STOPPED and begin the next round
	}
	r.mu.Lock()
	r.stored, r.round = s, rd
	if state == Preparing || state == Mirroring {
		r.diverged = ""
	}
	r.mu.Unlock()
	if state == Paused || state == Stopped {
		r.feel(OK, nil)
	}
	if old.state != state {
		r.m.c.log.Debug("state", "mirror", r.m.name, "partition", r.String(), "from", old.state.String(), "to", state.String(), "cause", cause)
		r.m.c.events.send(Event{
			Kind: StateChanged, Mirror: r.m.name, Topic: r.t.name, Partition: r.num,
			Before: old.state.String(), After: state.String(), Err: cause,
		})
	}
	r.m.changed.broadcast()
	return nil
}

// handle decides what an error means: trouble with the source is waited out, everything else is a state.
func (r *replica) handle(ctx context.Context, err error) {
	var f *failure
	switch {
	case errors.Is(err, ErrFenced):
		return
	case errors.Is(err, errNoLeader): // or not known yet: metadata that name none tell of it
		r.later()
	case isSourceTrouble(err):
		r.m.troubled(r, err)
		r.later()
	case errors.As(err, &f):
		r.fail(ctx, f)
	default: // the host's
		r.fail(ctx, retried(err))
	}
}

// fail ends fetching and goes to FAILED; unless someone must decide, it will look again.
func (r *replica) fail(ctx context.Context, cause error) {
	r.stopFetching(ctx)
	r.mu.Lock()
	was := r.stored
	r.mu.Unlock()
	decide := mustDecide(cause)
	if err := r.to(ctx, evFail, cause, nil); err != nil {
		// The state can't be written (a full disk, say): it holds in memory, and the write is tried again with the next failure.
		r.m.c.log.Error("failure not persisted", "mirror", r.m.name, "partition", r.String(), "cause", cause, "err", err)
		r.mu.Lock()
		if was.state != Failed {
			r.stored.before = was.state
		}
		r.stored.state, r.stored.text, r.stored.decide, r.stored.tries = Failed, cause.Error(), decide, was.tries+1
		r.mu.Unlock()
		r.m.changed.broadcast()
	}
	if !decide {
		r.later()
	}
}

// failSoon is fail for those who must not wait, or don't drive the replica.
func (r *replica) failSoon(cause error) {
	r.mu.Lock()
	same := r.stored.state == Failed && r.stored.text == cause.Error() || r.stored.state == Stopped
	if !same {
		r.failing = cause
	}
	r.mu.Unlock()
	if !same {
		r.kick()
	}
}

// failFetch is failSoon for a fetch loop: it holds only if nobody has moved the partition since.
func (r *replica) failFetch(gen uint64, cause error) {
	r.handOver(gen, func() { r.failing = cause })
}

// later has it look again after the next, longer pause.
func (r *replica) later() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retry == nil {
		r.retry = r.m.newBackoff()
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer = time.AfterFunc(r.retry.NextBackOff(), func() {
		r.mu.Lock()
		r.timer = nil
		r.mu.Unlock()
		r.kick()
	})
}

// due says that a FAILED partition may be tried again: nobody has to decide, and its pause is over.
func (r *replica) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.stored.decide && r.timer == nil
}

// recovered forgets failures, after the first validated batch or a completed alignment with nothing to fetch.
func (r *replica) recovered() {
	r.mu.Lock()
	r.retry, r.allowed = nil, nil
	r.stored.tries, r.stored.text, r.stored.before = 0, "", Unknown
	r.trouble = nil
	r.mu.Unlock()
}

// startFetching hands it to the fetch loop of the broker that leads it.
func (r *replica) startFetching(ctx context.Context) error {
	p, err := r.partition(ctx)
	if err == nil {
		err = r.finishCut(ctx, p) // an earlier run may have cut, and not got to the report
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	sourceEpoch := r.leaderEpoch
	r.mu.Unlock()
	if err := p.keepAbove(ctx, sourceEpoch); err != nil { // here, many at a time, rather than one by one in the fetch loop
		return err
	}
	r.mu.Lock()
	leader := r.leader
	if leader < 0 {
		r.mu.Unlock()
		r.m.refreshSoon()
		return errNoLeader
	}
	f, old := r.m.fetcherOf(leader), r.fetcher
	if old == f {
		r.mu.Unlock()
		return nil
	}
	r.gen++
	r.fetcher, r.moved = f, time.Now()
	gen := r.gen
	r.mu.Unlock()
	if old != nil {
		old.remove(r)
	}
	if err := r.quiet(ctx); err != nil {
		return err
	}
	end, epoch, err := p.tip(ctx)
	if err != nil {
		return err
	}
	f.add(r, p, gen, end, epoch)
	return nil
}

// quiet waits until nothing that was fetched before is being appended.
func (r *replica) quiet(ctx context.Context) error {
	if err := r.appending.acquire(ctx); err != nil {
		return err
	}
	r.appending.release()
	return nil
}

// stopFetching ends it: on return nothing is appended any more.
func (r *replica) stopFetching(ctx context.Context) {
	r.mu.Lock()
	f := r.fetcher
	r.fetcher = nil
	r.gen++
	r.mu.Unlock()
	if f != nil {
		f.remove(r)
	}
	_ = r.quiet(context.WithoutCancel(ctx)) // fails only with its context
}

// handOver is stopFetching for the fetch loop itself: it must not wait for its own append.
func (r *replica) handOver(gen uint64, why func()) {
	r.mu.Lock()
	if r.gen != gen {
		r.mu.Unlock()
		return
	}
	r.gen++
	r.fetcher = nil
	why()
	r.mu.Unlock()
	r.kick()
}

func (r *replica) syncLog(ctx context.Context) error {
	p, err := r.partition(ctx)
	if errors.Is(err, ErrUnknownPartition) {
		return nil // never created here
	}
	if err != nil {
		return err
	}
	return p.Sync(ctx)
}

// lead says which broker leads the partition at the source; a move takes it to another fetch loop. A lower leader epoch is of metadata
// that are behind; if they go on so while nothing is served, the source was put back to an older state, and is believed what it would be
// after a restart of the mirror.
func (r *replica) lead(leader, epoch int32) {
	r.mu.Lock()
	switch {
	case epoch >= r.leaderEpoch || r.health != Unreachable:
		r.fell = time.Time{}
	case r.fell.IsZero():
		r.fell = time.Now()
	}
	behind := epoch < r.leaderEpoch && (r.fell.IsZero() || time.Since(r.fell) < r.m.opts.stallAfter)
	if behind || leader == r.leader && epoch == r.leaderEpoch {
		r.mu.Unlock()
		return
	}
	r.leader, r.leaderEpoch, r.fell = leader, epoch, time.Time{}
	f := r.fetcher
	r.mu.Unlock()
	if f != nil && f.broker != leader {
		f.remove(r)
		r.mu.Lock()
		if r.fetcher == f {
			r.fetcher = nil
			r.gen++
		}
		r.mu.Unlock()
	} else if f != nil {
		f.refresh(r)
	}
	r.kick()
}
