package statelog

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/clustermirror/mirror/internal/batch"
)

// state is what the records of a log add up to. It does no I/O.
type state struct {
	records  map[int16]map[Key][]byte
	start    int64 // where the log began
	next     int64 // the offset after the last batch
	snapshot int64 // where the newest whole snapshot begins, -1: none
	live     int64 // bytes of the records that count, about
	size     int64 // bytes of the batches since the snapshot, or all of them
}

func newState(start int64) *state {
	return &state{records: make(map[int16]map[Key][]byte), start: start, next: start, snapshot: -1}
}

func (st *state) get(k Key) ([]byte, bool) {
	v, ok := st.records[k.Type][k]
	return v, ok
}

// apply takes in one record; a nil value deletes. The value is kept.
func (st *state) apply(k Key, value []byte) {
	byKey := st.records[k.Type]
	if old, ok := byKey[k]; ok {
		st.live -= Record{k, old}.size()
		delete(byKey, k)
	}
	if value == nil {
		return
	}
	if byKey == nil {
		byKey = make(map[Key][]byte)
		st.records[k.Type] = byKey
	}
	byKey[k] = value
	st.live += Record{k, value}.size()
}

// replay takes in the whole batches at the front of b, which begin at st.next, and says how many bytes they have. It keeps
// nothing of b.
func (st *state) replay(b []byte) (n int, err error) {
	for {
		h, raw, err := batch.Next(b[n:])
		if errors.Is(err, batch.ErrShort) {
			return n, nil
		}
		if err == nil {
			err = st.replayBatch(&h, raw)
		}
		if err != nil {
			return n, &DamagedError{Offset: st.next, Err: err}
		}
		n += len(raw)
	}
}

func (st *state) replayBatch(h *batch.Header, raw []byte) error {
	if err := batch.Check(raw); err != nil {
		return err
	}
	// Each batch begins where the one before it ended, since nothing here makes gaps. Only the first may begin below the start
	// of the log, if somebody else has advanced that.
	if h.Base > st.next || h.Base < st.next && (st.next > st.start || h.Next() <= st.next) {
		return fmt.Errorf("the next batch has offsets [%d, %d)", h.Base, h.Next())
	}
	if !h.Control() { // no Store writes these; they carry no state
		for r, err := range batch.Records(raw) {
			if err == nil {
				err = st.replayRecord(r.Key, r.Value)
			}
			if err != nil {
				return err
			}
		}
	}
	st.size += int64(len(raw))
	st.next = h.Next()
	return nil
}

func (st *state) replayRecord(key, value []byte) error {
	k, err := parseKey(key)
	if err != nil {
		return err
	}
	switch k.Type {
	case typeFence:
	case typeSnapshot:
		// The store that wrote this mark had written all of its snapshot before, and nobody else anything in between: it would
		// have been fenced. A mark whose snapshot began below the start of the log proves nothing.
		if k.N >= st.start && k.N <= st.next {
			st.snapshot = k.N
			st.size = st.live
		}
	default:
		if value != nil {
			value = append([]byte{}, value...)
		}
		st.apply(k, value)
	}
	return nil
}

// check says whether the log that was replayed held everything: its beginning, or a whole snapshot.
func (st *state) check() error {
	if st.start == 0 || st.snapshot >= 0 {
		return nil
	}
	return &DamagedError{Offset: st.start, Err: errors.New("the log begins here and without a whole snapshot: what came before is lost")}
}

// sorted are the records of one type, by key.
func (st *state) sorted(typ int16) []Record {
	byKey := st.records[typ]
	recs := make([]Record, 0, len(byKey))
	for k, v := range byKey {
		recs = append(recs, Record{k, v})
	}
	slices.SortFunc(recs, func(a, b Record) int { return a.Key.compare(b.Key) })
	return recs
}

// all are the records of every type, by key.
func (st *state) all() []Record {
	var recs []Record
	for _, typ := range slices.Sorted(maps.Keys(st.records)) {
		recs = append(recs, st.sorted(typ)...)
	}
	return recs
}
