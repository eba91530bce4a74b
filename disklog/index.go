package disklog

import (
	"encoding/binary"
	"io"
	"math"
	"slices"
	"sort"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

// The two index files of a segment have Kafka's format, entries in ascending order:
//
//	.index      last offset of a batch - base  int32 | where that batch begins in the segment  int32
//	.timeindex  greatest timestamp so far  int64     | last offset of its batch - base         int32
//
// A batch gets an entry when more than indexInterval bytes lie between it and the batch that got the last one; the time
// index gets one with it if the greatest timestamp has grown since its last.
const (
	indexInterval = 4096
	offsetEntry   = 8
	timeEntry     = 12
)

var widths = [...]int64{indexFile: offsetEntry, timeFile: timeEntry}

// growth is what the index entries of the next batch of a segment depend on.
type growth struct {
	base    int64 // of the segment
	size    int64 // bytes so far
	since   int64 // bytes since the batch of the last index entry, that one included
	first   int64 // max timestamp of the first batch
	max     int64 // greatest timestamp so far, -1: none
	maxAt   int64 // last offset of its batch
	indexed int64 // timestamp of the last time index entry, -1: none
}

func newGrowth(base int64) growth { return growth{base: base, max: -1, indexed: -1} }

// add counts one more batch and appends its index entries, if it gets any.
func (g *growth) add(h *batch.Header, index, times []byte) ([]byte, []byte) {
	last := h.Next() - 1
	if g.size == 0 {
		g.first = h.MaxTimestamp
	}
	if h.MaxTimestamp > g.max {
		g.max, g.maxAt = h.MaxTimestamp, last
	}
	if g.since > indexInterval {
		index = binary.BigEndian.AppendUint32(index, uint32(last-g.base))
		index = binary.BigEndian.AppendUint32(index, uint32(g.size))
		times = g.addTime(times)
		g.since = 0
	}
	g.size += int64(h.Size())
	g.since += int64(h.Size())
	return index, times
}

// addTime appends an entry for the greatest timestamp, if the last entry is not that one already.
func (g *growth) addTime(times []byte) []byte {
	if g.max > g.indexed {
		times = binary.BigEndian.AppendUint64(times, uint64(g.max))
		times = binary.BigEndian.AppendUint32(times, uint32(g.maxAt-g.base))
		g.indexed = g.max
	}
	return times
}

// fits says whether a batch may still go into the segment.
func (g *growth) fits(h *batch.Header, o *options) bool {
	const tooYoung = 1 << 20 // see SegmentAge
	switch {
	case g.size == 0:
		return true
	case g.size+int64(h.Size()) > o.segmentBytes:
		return false
	case h.Next()-1-g.base > math.MaxInt32: // the index could not name it
		return false
	case g.size >= tooYoung && g.first >= 0 && h.MaxTimestamp > g.first:
		return h.MaxTimestamp-g.first <= o.segmentAge.Milliseconds()
	}
	return true
}

// run is one index of the active segment: the bytes in its file, and those of later entries, which go there once the
// batches they name are durable.
type run struct {
	stored  int64
	pending []byte
}

func (r run) len() int64 { return r.stored + int64(len(r.pending)) }

// keep is the run without what lies beyond its first n bytes. Later entries do not overwrite what readers of r see.
func (r run) keep(n int64) run {
	if n <= r.stored {
		return run{stored: n}
	}
	return run{stored: r.stored, pending: slices.Clone(r.pending[:n-r.stored])}
}

// entries are those of an index, some in its file and some in memory.
type entries struct {
	file  io.ReaderAt // may be nil if nothing is stored
	size  int64       // of the file
	run   run
	width int64
}

// entries opens an index of a segment: as far as v knows it, if that is the view whose active segment it is; all that
// is in the file, if v is nil. fs.ErrNotExist if the file is missing.
func (l *log) entries(s *segment, kind int, v *view, use func(*entries) error) error {
	e := entries{width: widths[kind]}
	if v != nil {
		if e.run = *v.run(kind); e.run.stored == 0 {
			return use(&e)
		}
	}
	return l.with(s, kind, false, func(f vfs.File) (err error) {
		e.file = f
		if e.size, err = f.Size(); err != nil {
			return err
		}
		if v == nil {
			e.run.stored = e.size - e.size%e.width
		}
		return use(&e)
	})
}

func (e *entries) n() int { return int(e.run.len() / e.width) }

// at is the i-th entry, as its leading and its trailing number.
func (e *entries) at(i int) (a, b int64, err error) {
	var buf [timeEntry]byte
	p := buf[:e.width]
	if off := int64(i) * e.width; off >= e.run.stored {
		copy(p, e.run.pending[off-e.run.stored:])
	} else if _, err := e.file.ReadAt(p, off); err != nil && err != io.EOF { // at the end of a file that lost bytes: zeros
		return 0, 0, err
	}
	a, b = parseEntry(p)
	return a, b, nil
}

func parseEntry(p []byte) (a, b int64) {
	if len(p) == timeEntry {
		return int64(binary.BigEndian.Uint64(p)), int64(int32(binary.BigEndian.Uint32(p[8:])))
	}
	return int64(int32(binary.BigEndian.Uint32(p))), int64(int32(binary.BigEndian.Uint32(p[4:])))
}

// first is the number of entries before the first one for which beyond holds. In a damaged index it may be any number of
// them.
func (e *entries) first(beyond func(a, b int64) bool) (int, error) {
	var failed error
	n := sort.Search(e.n(), func(i int) bool {
		a, b, err := e.at(i)
		if err != nil {
			failed = err
		}
		return err != nil || beyond(a, b)
	})
	return n, failed
}

// ascending is the number of entries, at most limit, from the first one of the file on, both of whose numbers grow, the
// second one staying below bound: what is left of an index that a crash has torn.
func (e *entries) ascending(limit int, bound int64) (int, error) {
	if e.file == nil {
		return 0, nil
	}
	b := make([]byte, min(e.run.stored, int64(limit)*e.width))
	n, err := e.file.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return 0, err
	}
	return ascending(b[:n], int(e.width), bound), nil
}

func ascending(b []byte, width int, bound int64) int {
	lastA, lastB := int64(-1), int64(-1)
	for i := 0; i+width <= len(b); i += width {
		a, c := parseEntry(b[i : i+width])
		if a <= lastA || c <= lastB || c >= bound {
			return i / width
		}
		lastA, lastB = a, c
	}
	return len(b) / width
}

// keep is the run of the first n entries, and whether the file holds more.
func (e *entries) keep(n int) (run, bool) {
	r := e.run.keep(int64(n) * e.width)
	return r, e.size > r.stored
}
