package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

// maxTxnTimeout is Kafka's default of transaction.max.timeout.ms.
const maxTxnTimeout = 15 * time.Minute

// phase is how far a transaction is. It is stored before what it stands for begins.
type phase string

const (
	phaseEmpty     phase = ""
	phaseOpen      phase = "open"
	phaseCommit    phase = "commit" // markers are being written
	phaseAbort     phase = "abort"
	phaseCommitted phase = "committed"
	phaseAborted   phase = "aborted"
)

// txnState is what is stored of a transactional id.
type txnState struct {
	ProducerID int64         `json:"producerId"`
	Epoch      int16         `json:"epoch"`
	Timeout    time.Duration `json:"timeout"`
	Phase      phase         `json:"phase"`
	Parts      []txnPart     `json:"partitions,omitempty"`
}

type txnPart struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
}

// txn is one transactional id.
type txn struct {
	id string

	lock  lock // guards what follows; held across I/O, so that no record follows the marker of its transaction
	state txnState
	round int // counts transactions, for the timer of each
}

// txns is the transaction coordinator.
type txns struct {
	b *Broker

	mu   sync.Mutex // guards byID
	byID map[string]*txn
}

func newTxns(b *Broker) *txns { return &txns{b: b, byID: make(map[string]*txn)} }

// restore takes up a transactional id again: what was decided is carried out, what is open gets its time anew.
func (ts *txns) restore(id string, value []byte) error {
	t := &txn{id: id, lock: newLock()}
	if err := json.Unmarshal(value, &t.state); err != nil {
		return err
	}
	ts.byID[id] = t
	switch t.state.Phase {
	case phaseOpen:
		ts.expireLater(t)
	case phaseCommit, phaseAbort:
		ts.b.goUnlessClosed(func() {
			if t.lock.acquire(ts.b.ctx) == nil {
				defer t.lock.release()
				if _, err := ts.mark(ts.b.ctx, t); err != nil {
					ts.b.log.Warn("transaction not ended", "transactional id", t.id, "err", err)
				}
			}
		})
	}
	return nil
}

func (ts *txns) find(id string) *txn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.byID[id]
}

func (ts *txns) findOrMake(id string) *txn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.byID[id]
	if t == nil {
		t = &txn{id: id, lock: newLock(), state: txnState{ProducerID: -1, Epoch: -1}}
		ts.byID[id] = t
	}
	return t
}

// set stores a new state before it counts. The caller holds the lock.
func (ts *txns) set(ctx context.Context, t *txn, s txnState) error {
	if err := ts.b.store.put(ctx, entry{kindTxn + t.id, s}); err != nil {
		return err
	}
	t.state = s
	return nil
}

// check says whether a producer is the one that owns the transactional id now.
func (t *txn) check(producerID int64, epoch int16) error {
	switch {
	case t.state.ProducerID != producerID:
		return refuse(invalidProducerIDMapping, "transactional id %s belongs to another producer", t.id)
	case t.state.Epoch != epoch:
		return refuse(invalidProducerEpoch, "transactional id %s has epoch %d now, not %d", t.id, t.state.Epoch, epoch)
	}
	return nil
}

// owned locks a transactional id for a producer that owns it. The caller releases the lock.
func (ts *txns) owned(ctx context.Context, id string, producerID int64, epoch int16) (*txn, error) {
	t := ts.find(id)
	if t == nil {
		return nil, refuse(invalidProducerIDMapping, "transactional id %s is not known", id)
	}
	if err := t.lock.acquire(ctx); err != nil {
		return nil, err
	}
	if err := t.check(producerID, epoch); err != nil {
		t.lock.release()
		return nil, err
	}
	return t, nil
}

// init gives a transactional id a producer with a new epoch, so that earlier owners are fenced. What they left open is aborted.
func (ts *txns) init(ctx context.Context, req *kmsg.InitProducerIDRequest) (id int64, epoch int16, err error) {
	timeout := time.Duration(req.TransactionTimeoutMillis) * time.Millisecond
	if timeout <= 0 || timeout > maxTxnTimeout {
		return -1, -1, refuse(invalidTransactionTimeout, "transaction timeout of %v", timeout)
	}
	t := ts.findOrMake(*req.TransactionalID)
	if err := t.lock.acquire(ctx); err != nil {
		return -1, -1, err
	}
	defer t.lock.release()
	if req.ProducerID >= 0 && (req.ProducerID != t.state.ProducerID || req.ProducerEpoch != t.state.Epoch) {
		return -1, -1, refuse(producerFenced, "transactional id %s has another owner now", t.id)
	}
	if _, err := ts.mark(ctx, t); err != nil { // what was decided but not carried out
		return -1, -1, err
	}
	s := t.state
	switch {
	case s.Phase == phaseOpen:
		if err := ts.abort(ctx, t); err != nil {
			return -1, -1, err
		}
		s = t.state
	case s.ProducerID >= 0 && s.Epoch < math.MaxInt16-1:
		s.Epoch++
	default:
		if s.ProducerID, err = ts.b.ids.take(ctx); err != nil {
			return -1, -1, err
		}
		s.Epoch = 0
	}
	s.Phase, s.Parts, s.Timeout = phaseEmpty, nil, timeout
	if err := ts.set(ctx, t, s); err != nil {
		return -1, -1, err
	}
	return s.ProducerID, s.Epoch, nil
}

// add makes partitions part of the transaction. The caller holds the lock.
func (ts *txns) add(ctx context.Context, t *txn, parts ...txnPart) error {
	s := t.state
	switch s.Phase {
	case phaseCommit, phaseAbort:
		return refuse(concurrentTransactions, "the transaction before is being ended")
	case phaseOpen:
	default:
		s.Phase, s.Parts = phaseOpen, nil
	}
	s.Parts = slices.Clone(s.Parts)
	for _, p := range parts {
		if !slices.Contains(s.Parts, p) {
			s.Parts = append(s.Parts, p)
		}
	}
	if t.state.Phase == phaseOpen && len(s.Parts) == len(t.state.Parts) {
		return nil
	}
	begins := t.state.Phase != phaseOpen
	if err := ts.set(ctx, t, s); err != nil {
		return err
	}
	if begins {
		t.round++
		ts.expireLater(t)
	}
	return nil
}

// enter lets a batch of a transaction in, if the partition belongs to it. The transaction cannot end before leave is called.
func (ts *txns) enter(ctx context.Context, req *kmsg.ProduceRequest, h *batch.Header, where place) (leave func(), err error) {
	if !h.Transactional() {
		return func() {}, nil
	}
	if req.TransactionID == nil {
		return nil, refuse(invalidRequest, "records of a transaction without a transactional id")
	}
	t, err := ts.owned(ctx, *req.TransactionID, h.ProducerID, h.ProducerEpoch)
	if err != nil {
		return nil, err
	}
	part := txnPart{where.topic, where.partition}
	const addsItself = 12 // from this version on producing is joining (KIP-890)
	if req.Version >= addsItself {
		err = ts.add(ctx, t, part)
	}
	if err == nil && (t.state.Phase != phaseOpen || !slices.Contains(t.state.Parts, part)) {
		err = refuse(invalidTxnState, "%s is no part of the transaction", where)
	}
	if err != nil {
		t.lock.release()
		return nil, err
	}
	return t.lock.release, nil
}

// end commits or aborts. Asked again for what is done already it agrees. What a mirror has taken meanwhile can't be committed: the
// transaction stays open, and can be aborted.
func (ts *txns) end(ctx context.Context, req *kmsg.EndTxnRequest) error {
	t, err := ts.owned(ctx, req.TransactionalID, req.ProducerID, req.ProducerEpoch)
	if err != nil {
		return err
	}
	defer t.lock.release()
	doing, done := phaseAbort, phaseAborted
	if req.Commit {
		doing, done = phaseCommit, phaseCommitted
	}
	switch s := t.state; s.Phase {
	case done:
		return nil
	case doing:
	case phaseOpen:
		if req.Commit {
			for _, part := range s.Parts {
				if err := ts.b.c.CheckWrite(part.Topic, part.Partition); err != nil {
					return err
				}
			}
		}
		s.Phase = doing
		if err := ts.set(ctx, t, s); err != nil {
			return err
		}
	default:
		return refuse(invalidTxnState, "the transaction is %q", s.Phase)
	}
	readOnly, err := ts.mark(ctx, t)
	if err == nil && req.Commit && readOnly != nil { // it has begun since
		return readOnly
	}
	return err
}

// abort ends an open transaction against its owner's will, who is fenced by it. The caller holds the lock.
func (ts *txns) abort(ctx context.Context, t *txn) error {
	s := t.state
	s.Phase = phaseAbort
	s.Epoch++
	if err := ts.set(ctx, t, s); err != nil {
		return err
	}
	_, err := ts.mark(ctx, t)
	return err
}

// mark writes the markers of what was decided, but where a mirror has taken the topic: readOnly says so. It can be done twice: a marker
// without an open transaction means nothing. The caller holds the lock.
func (ts *txns) mark(ctx context.Context, t *txn) (readOnly *mirror.ReadOnlyError, err error) {
	s := t.state
	control := batch.Control{Type: batch.ControlAbort}
	switch s.Phase {
	case phaseCommit:
		control.Type = batch.ControlCommit
		s.Phase = phaseCommitted
	case phaseAbort:
		s.Phase = phaseAborted
	default:
		return nil, nil
	}
	for _, part := range s.Parts {
		err := ts.markOne(ctx, part, batch.AppendControl(nil, 0, 0, s.ProducerID, s.Epoch, control, time.Now().UnixMilli()))
		if errors.Is(err, mirror.ErrUnknownPartition) || errors.As(err, &readOnly) {
			// The topic is gone, or a mirror has taken it: it follows its source, which ends what is open there.
			ts.b.log.Warn("transaction not ended", "transactional id", t.id, "topic", part.Topic, "partition", part.Partition, "err", err)
		} else if err != nil {
			return nil, err
		}
	}
	s.Parts = nil
	return readOnly, ts.set(ctx, t, s)
}

func (ts *txns) markOne(ctx context.Context, part txnPart, marker []byte) error {
	p, err := ts.b.c.Partition(ctx, part.Topic, part.Partition)
	if err != nil {
		return err
	}
	if _, err := p.Append(ctx, marker); err != nil {
		return err
	}
	if ts.b.opts.noSync {
		return nil
	}
	return p.Sync(ctx)
}

// expireLater aborts the transaction that is open now if it still is when its time is over.
func (ts *txns) expireLater(t *txn) {
	round := t.round
	time.AfterFunc(t.state.Timeout, func() {
		ts.b.goUnlessClosed(func() {
			if t.lock.acquire(ts.b.ctx) != nil {
				return
			}
			defer t.lock.release()
			if t.state.Phase != phaseOpen || t.round != round {
				return
			}
			if err := ts.abort(ts.b.ctx, t); err != nil {
				ts.b.log.Warn("transaction not aborted after its timeout", "transactional id", t.id, "err", err)
			}
		})
	})
}

// goUnlessClosed runs f in a goroutine that Close waits for.
func (b *Broker) goUnlessClosed(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.work.Go(f)
	}
}

func (b *Broker) initProducerID(ctx context.Context, c *call, req *kmsg.InitProducerIDRequest, resp *kmsg.InitProducerIDResponse) {
	var err error
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	switch {
	case req.TransactionalID == nil && !b.allowed(c, "IdempotentWrite", "Cluster:kafka-cluster"):
		resp.ErrorCode = clusterAuthorizationFailed
	case req.TransactionalID == nil:
		if resp.ProducerID, err = b.ids.take(ctx); err == nil {
			resp.ProducerEpoch = 0
		}
	case *req.TransactionalID == "":
		resp.ErrorCode = invalidRequest
	case !b.allowed(c, "Write", "TransactionalId:"+*req.TransactionalID):
		resp.ErrorCode = txnIDAuthorizationFailed
	default:
		resp.ProducerID, resp.ProducerEpoch, err = b.txns.init(ctx, req)
	}
	if err != nil {
		resp.ErrorCode = b.code(err)
	}
}

func (b *Broker) addPartitionsToTxn(ctx context.Context, c *call, req *kmsg.AddPartitionsToTxnRequest, resp *kmsg.AddPartitionsToTxnResponse) {
	// All or nothing: the codes say of each partition what is wrong with it, or that it was not tried.
	const notAttempted int16 = 55
	codes := make(map[txnPart]int16)
	var parts []txnPart
	failed := false
	for _, t := range req.Topics {
		for _, n := range t.Partitions {
			part := txnPart{t.Topic, n}
			_, err := b.c.Partition(ctx, t.Topic, n)
			code := b.code(err)
			switch {
			case !b.allowed(c, "Write", "TransactionalId:"+req.TransactionalID):
				code = txnIDAuthorizationFailed
			case !b.allowed(c, "Write", "Topic:"+t.Topic):
				code = topicAuthorizationFailed
			case internalTopic(t.Topic):
				code = invalidTopic
			case code == noError:
				code = b.code(b.c.CheckWrite(t.Topic, n))
			}
			codes[part], failed = code, failed || code != noError
			parts = append(parts, part)
		}
	}
	all := notAttempted
	if !failed {
		t, err := b.txns.owned(ctx, req.TransactionalID, req.ProducerID, req.ProducerEpoch)
		if err == nil {
			err = b.txns.add(ctx, t, parts...)
			t.lock.release()
		}
		all = b.code(err)
	}
	for _, t := range req.Topics {
		out := kmsg.NewAddPartitionsToTxnResponseTopic()
		out.Topic = t.Topic
		for _, n := range t.Partitions {
			p := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			p.Partition, p.ErrorCode = n, codes[txnPart{t.Topic, n}]
			if p.ErrorCode == noError {
				p.ErrorCode = all
			}
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
}

func (b *Broker) endTxn(ctx context.Context, c *call, req *kmsg.EndTxnRequest, resp *kmsg.EndTxnResponse) {
	if !b.allowed(c, "Write", "TransactionalId:"+req.TransactionalID) {
		resp.ErrorCode = txnIDAuthorizationFailed
		return
	}
	if err := b.txns.end(ctx, req); err != nil {
		resp.ErrorCode = b.code(fmt.Errorf("end transaction of %s: %w", req.TransactionalID, err))
	}
}
