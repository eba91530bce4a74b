package mirror_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/statelog"
)

// stateModel is what a state log says, as far as it matters here.
type stateModel struct {
	rounds    map[string]roundSeen // by stateKey
	positions map[string]string
	states    map[string]mirror.State
	epochs    map[string]int32 // leader epochs
}

type roundSeen struct {
	Number    int64 `json:"number"`
	Existed   bool  `json:"existed"`
	Aligned   bool  `json:"aligned"`
	Stored    bool  `json:"stored"`
	TakenOver bool  `json:"taken_over"`
}

func newStateModel() *stateModel {
	return &stateModel{
		rounds: make(map[string]roundSeen), positions: make(map[string]string), states: make(map[string]mirror.State), epochs: make(map[string]int32),
	}
}

// The types of the library's own records.
const (
	typeLeaderEpoch = 1002
	typeRound       = 1003
)

// stateKey is what keys of the state begin with, after their type.
func stateKey(name string, id mirror.TopicID, partition int32) string {
	key := binary.BigEndian.AppendUint16(nil, uint16(len(name)))
	key = append(append(key, name...), id[:]...)
	return string(binary.BigEndian.AppendUint32(key, uint32(partition)))
}

// read takes in what was appended, and says what is wrong about it; "" if nothing is.
func (st *stateModel) read(batches []byte) (wrong string) {
	for b := batches; len(b) > 0; {
		_, raw, err := batch.Next(b)
		if err != nil {
			return err.Error()
		}
		b = b[len(raw):]
		rounds, positions := maps.Clone(st.rounds), maps.Clone(st.positions)
		for rec, err := range batch.Records(raw) {
			if err != nil || len(rec.Key) < 2 {
				continue
			}
			switch typ, key := int16(binary.BigEndian.Uint16(rec.Key)), rec.Key[2:]; typ {
			case statelog.TypePosition:
				positions[string(key)] = string(rec.Value)
			case statelog.TypePartitionState:
				delete(st.states, string(key))
				if v, err := statelog.ParsePartitionState(rec.Value); err == nil {
					st.states[string(key)] = mirror.State(v.State)
				}
			case typeLeaderEpoch:
				delete(st.epochs, string(key[:len(key)-10]))
				if len(rec.Value) == 4 {
					st.epochs[string(key[:len(key)-10])] = int32(binary.BigEndian.Uint32(rec.Value))
				}
			case typeRound:
				var r roundSeen
				_ = json.Unmarshal(rec.Value, &r) // nothing of one that is taken back
				rounds[string(key[:len(key)-10])] = r
			}
		}
		for id, r := range rounds {
			if was := st.rounds[id]; was.Stored && r.Stored && was.Number == r.Number && st.positions[id] != positions[id] {
				before, _ := statelog.ParsePosition([]byte(st.positions[id]))
				after, _ := statelog.ParsePosition([]byte(positions[id]))
				wrong = fmt.Sprintf("stores a second position %v in round %d, after %v", after, r.Number, before)
			} else if was.Number == r.Number && r.Stored && !was.Stored && was.Existed && !was.Aligned {
				wrong = fmt.Sprintf("stores a position in round %d, though nothing was mirrored in it", r.Number)
			}
		}
		st.rounds, st.positions = rounds, positions
	}
	return wrong
}

// leaderEpoch is the one that is recorded of a partition; -1 if none is.
func (st *stateModel) leaderEpoch(id mirror.TopicID, partition int32) int32 {
	if epoch, ok := st.epochs[stateKey("", id, partition)]; ok {
		return epoch
	}
	return -1
}

// mirrors is the link by which a partition is read-only at a site: it is mirrored, or was and is not taken over. nil if there is none.
func (st *stateModel) mirrors(s *site, id mirror.TopicID, partition int32) (by *link) {
	for _, l := range s.w.links {
		key := stateKey(l.name, id, partition)
		state, ok := st.states[key]
		switch {
		case l.dst != s || !ok:
		case state != mirror.Stopped:
			return l
		case !st.rounds[key].TakenOver:
			by = l
		}
	}
	return by
}

// readOnly says that all partitions are, and perhaps that they are being stopped.
func (st *stateModel) readOnly(s *site, id mirror.TopicID, stopping bool) bool {
	for num := range s.w.partitions {
		by := st.mirrors(s, id, num)
		if by == nil || stopping && st.states[stateKey(by.name, id, num)] != mirror.Stopping {
			return false
		}
	}
	return true
}

// watchState looks at what is persisted.
func (j *judge) watchState(s *site, batches []byte, change func() error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := change()
	if err == nil {
		if wrong := j.state(s).read(batches); wrong != "" {
			j.blame("%s %s", s.name, wrong)
		}
		j.ended(s)
	}
	return err
}

// ended finds out which mirrors of an older state have been stopped: someone must have asked for that; j.mu is held.
func (j *judge) ended(s *site) {
	for num := range j.w.partitions {
		m, id := j.log(s, num), j.topics[s]
		if m.older == nil || j.state(s).states[stateKey(m.older.name, id, num)] != mirror.Stopped {
			continue
		}
		if !j.asked(m.older) {
			j.blame("%s: partition %d is stopped, though its state is older and nobody has asked for it", m.older.name, num)
		}
		m.older = nil
	}
}

func (j *judge) state(s *site) *stateModel {
	if j.states[s] == nil {
		j.states[s] = newStateModel()
	}
	return j.states[s]
}

// age finds out whether a site's state is older than its data; j.mu is held. It may just have been put back, and the data be lost since.
func (j *judge) age(s *site, restored bool) {
	for k, m := range j.logs {
		if k.s != s || !restored && m.older == nil {
			continue
		}
		recorded := j.state(s).leaderEpoch(k.id, k.partition)
		if restored {
			m.cuts, m.cutSize, m.ceiling, m.totals, m.epoch = nil, 0, -1, make(map[*link]int64), recorded
		}
		if m.older = nil; len(m.nodes) > 0 && m.last.h.LeaderEpoch > recorded {
			m.older = j.state(s).mirrors(s, k.id, k.partition)
		}
	}
}

// restore crashes a site that mirrors, and puts back an older copy of its state, of a time when it mirrored too, perhaps of one when a
// stop was under way. Of the data nothing is lost. Nobody mirrors from there: leader epochs that only the state knew may fall, and such a source can't be followed.
func (w *world) restore(s *site, age int, stopping bool) {
	for num := range w.partitions {
		if !s.closed(num) {
			return
		}
	}
	for _, l := range w.links {
		if l.src == s && l.dst.mirrored(0) == l {
			return
		}
	}
	ctx, id := context.WithValue(w.t.Context(), unwatched{}, true), w.judge.topic(s)
	for num := range w.partitions {
		if l, err := s.host.OpenLog(ctx, simTopic, num); err == nil {
			_ = l.Sync(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crash()
	l, err := s.after.OpenLog(ctx, mirror.StateTopic, 0)
	if err != nil {
		return
	}
	var ends []int64 // of the states that it may be
	old := newStateModel()
	for b := readAll(ctx, l); len(b) > 0; {
		h, raw, err := batch.Next(b)
		if err != nil {
			return
		}
		old.read(raw)
		b = b[len(raw):]
		if old.readOnly(s, id, stopping) {
			ends = append(ends, h.Next())
		}
	}
	if len(ends) == 0 {
		return
	}
	_ = l.TruncateTo(ctx, ends[age*len(ends)/drawn])
	s.restored = true
}

// lose crashes a site, which loses the end of a log or all of it though it was synced.
func (w *world) lose(s *site, num int32, how, size int) {
	ctx := context.WithValue(w.t.Context(), unwatched{}, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crash()
	l, err := s.after.OpenLog(ctx, simTopic, num)
	if err != nil {
		return
	}
	if _, end := l.Bounds(); how%3 > 0 {
		_ = l.TruncateTo(ctx, max(end-int64(1+size%10), 0))
	} else {
		_ = l.Reset(ctx, 0)
	}
}
