package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
)

// StateTopic is the name of the topic, of one partition, in which a broker keeps what it must remember across restarts. It comes to
// be when there is something to remember. Clients do not see it.
const StateTopic = "__broker_state"

// compactAfter is the number of records, beyond twice those that count, after which the log is written anew.
const compactAfter = 10_000

// snapshotBatch is the number of records in a batch of the rewritten log.
const snapshotBatch = 1000

// store is a durable map in an ordinary log: each record replaces the ones before it with the same key, a null value deletes. Keys
// are <kind>/<name>, values are JSON.
type store struct {
	b *Broker

	lock    lock // guards what follows; held across I/O
	part    *mirror.Partition
	live    map[string][]byte
	records int // in the log
}

// kinds of keys.
const (
	kindProducerID = "producer-id/"
	kindTxn        = "transaction/"
	kindOffsets    = "offsets/"
)

// entry is a change of the map. A nil value deletes.
type entry struct {
	key   string
	value any
}

func newStore(b *Broker) *store {
	return &store{b: b, lock: newLock(), live: make(map[string][]byte)}
}

// load reads the log, if there is one, and hands out what it says.
func (s *store) load(ctx context.Context) error {
	topics, err := s.b.host.Topics(ctx)
	if err != nil {
		return fmt.Errorf("list the host's topics: %w", err)
	}
	if !slices.ContainsFunc(topics, func(t mirror.Topic) bool { return t.Name == StateTopic }) {
		return nil
	}
	if s.part, err = s.b.c.Partition(ctx, StateTopic, 0); err != nil {
		return err
	}
	start, end := s.part.Bounds()
	var room room
	defer room.release()
	for start < end {
		room.rewind()
		records, next, err := read(ctx, s.part, &room, start, end, blockSize, true)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return fmt.Errorf("%s: %w: no batch at offset %d", s.part, batch.ErrCorrupt, start)
		}
		if err := s.replay(records); err != nil {
			return err
		}
		start = next
	}
	for _, key := range slices.Sorted(maps.Keys(s.live)) {
		if err := s.hand(key, s.live[key]); err != nil {
			return fmt.Errorf("record %q: %w", key, err)
		}
	}
	return nil
}

func (s *store) replay(batches []byte) error {
	for b := batches; len(b) > 0; {
		_, raw, err := batch.Next(b)
		if err == nil {
			err = batch.Check(raw)
		}
		if err != nil {
			return err
		}
		for r, err := range batch.Records(raw) {
			if err != nil {
				return err
			}
			s.records++
			if r.Value == nil {
				delete(s.live, string(r.Key))
			} else {
				s.live[string(r.Key)] = slices.Clone(r.Value)
			}
		}
		b = b[len(raw):]
	}
	return nil
}

// hand gives a record to whom it belongs. Kinds that are not known are kept.
func (s *store) hand(key string, value []byte) error {
	if _, ok := strings.CutPrefix(key, kindProducerID); ok {
		return s.b.ids.restore(value)
	}
	if name, ok := strings.CutPrefix(key, kindTxn); ok {
		return s.b.txns.restore(name, value)
	}
	if name, ok := strings.CutPrefix(key, kindOffsets); ok {
		return s.b.groups.restore(name, value)
	}
	return nil
}

// put makes changes durable, all of them or none.
func (s *store) put(ctx context.Context, changes ...entry) error {
	records := make([]batch.Record, len(changes))
	for i, e := range changes {
		records[i].Key = []byte(e.key)
		if e.value == nil {
			continue
		}
		value, err := json.Marshal(e.value)
		if err != nil {
			return fmt.Errorf("record %q: %w", e.key, err)
		}
		records[i].Value = value
	}
	if err := s.lock.acquire(ctx); err != nil {
		return err
	}
	defer s.lock.release()
	if err := s.write(ctx, records); err != nil {
		return fmt.Errorf("write %s: %w", StateTopic, err)
	}
	for _, r := range records {
		if r.Value == nil {
			delete(s.live, string(r.Key))
		} else {
			s.live[string(r.Key)] = r.Value
		}
	}
	if s.records > 2*len(s.live)+compactAfter {
		if err := s.compact(ctx); err != nil {
			s.b.log.Warn("state not compacted", "topic", StateTopic, "err", err)
		}
	}
	return nil
}

// write appends records durably. The caller holds lock.
func (s *store) write(ctx context.Context, records []batch.Record) error {
	if s.part == nil {
		err := s.b.host.EnsureTopic(ctx, mirror.Topic{Name: StateTopic, Partitions: 1, Configs: map[string]string{"cleanup.policy": "compact"}})
		if err != nil {
			return err
		}
		if s.part, err = s.b.c.Partition(ctx, StateTopic, 0); err != nil {
			return err
		}
	}
	if _, err := s.part.Append(ctx, plainBatch(records)); err != nil {
		return err
	}
	s.records += len(records)
	return s.part.Sync(ctx)
}

// compact writes what counts behind what the log holds, and drops the latter once that is durable.
func (s *store) compact(ctx context.Context) error {
	_, from := s.part.Bounds()
	s.records = 0
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(s.live)), snapshotBatch) {
		records := make([]batch.Record, len(keys))
		for i, key := range keys {
			records[i] = batch.Record{Key: []byte(key), Value: s.live[key]}
		}
		if err := s.write(ctx, records); err != nil {
			return err
		}
	}
	return s.part.AdvanceStart(ctx, from)
}

// plainBatch is a batch without a producer; base and epoch are the log's to set.
func plainBatch(records []batch.Record) []byte {
	now := time.Now().UnixMilli()
	return batch.Append(nil, batch.Header{BaseTimestamp: now, MaxTimestamp: now, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}, records)
}

// producerIDs hands out producer ids, each once.
type producerIDs struct {
	b *Broker

	lock     lock // guards what follows; held across I/O
	looked   bool // at the ids in the host's logs
	next     int64
	reserved int64 // ids below it are not handed out after a restart
}

// reserve is how many ids one durable record covers.
const reserve = 1000

func newProducerIDs(b *Broker) *producerIDs { return &producerIDs{b: b, lock: newLock()} }

func (p *producerIDs) restore(value []byte) error {
	err := json.Unmarshal(value, &p.reserved)
	p.next = p.reserved
	return err
}

// take is the next id. It lies above every id that a topic brought with it when it was taken over, and above those in the logs.
func (p *producerIDs) take(ctx context.Context) (int64, error) {
	if err := p.lock.acquire(ctx); err != nil {
		return 0, err
	}
	defer p.lock.release()
	if !p.looked {
		greatest, err := p.greatest(ctx)
		if err != nil {
			return 0, err
		}
		p.next, p.looked = max(p.next, greatest+1), true
	}
	p.next = max(p.next, p.b.c.ProducerIDFloor()+1)
	if p.next >= p.reserved {
		upTo := p.next + reserve
		if err := p.b.store.put(ctx, entry{kindProducerID, upTo}); err != nil {
			return 0, err
		}
		p.reserved = upTo
	}
	p.next++
	return p.next - 1, nil
}

// greatest is the greatest producer id in the host's logs.
func (p *producerIDs) greatest(ctx context.Context) (int64, error) {
	topics, err := p.b.topics.load(ctx)
	if err != nil {
		return 0, err
	}
	found := int64(-1)
	var errs []error
	for _, t := range topics {
		for i := range t.Partitions {
			part, err := p.b.c.Partition(ctx, t.Name, i)
			if err == nil {
				var id int64
				id, err = part.MaxProducerID(ctx)
				found = max(found, id)
			}
			errs = append(errs, err)
		}
	}
	return found, errors.Join(errs...)
}
