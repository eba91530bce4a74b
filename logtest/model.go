package logtest

import "github.com/clustermirror/mirror"

// model is what a log should be: the contract in its plainest form.
type model struct {
	start, end int64
	batches    []batch // since the last reset; what AdvanceStart dropped is still here, as a crash may bring it back

	durable int   // so many of batches survive a crash
	floor   int64 // the start may fall back to here in a crash
}

func (m *model) append(list ...batch) {
	m.batches = append(m.batches, list...)
	m.end = list[len(list)-1].next
}

func (m *model) sync() { m.durable = len(m.batches) }

func (m *model) truncate(end int64) {
	switch {
	case end < m.start:
		m.reset(end)
	case end < m.end:
		n := len(m.batches)
		for n > 0 && m.batches[n-1].next > end {
			n--
		}
		m.batches, m.durable = m.batches[:n:n], min(m.durable, n)
		m.end = m.start
		if n > 0 {
			m.end = max(m.start, m.batches[n-1].next)
		}
	}
}

func (m *model) advance(start int64) {
	if start > m.end {
		m.reset(start)
	}
	m.start = max(m.start, start)
}

func (m *model) reset(start int64) { *m = model{start: start, end: start, floor: start} }

// held are the batches that reach beyond the start.
func (m *model) held() []batch { return m.from(m.start) }

// from is what a read at offset gives.
func (m *model) from(offset int64) []batch {
	for i, b := range m.batches {
		if b.next > offset {
			return m.batches[i:]
		}
	}
	return nil
}

// same compares a log with the model: bounds, content, and reads at each offset with room for a byte, a header, and
// everything.
func (e *env) same(l mirror.Log, m *model) {
	e.bounds(l, m.start, m.end)
	e.holds(l, m.held()...)
	for offset := m.start; offset <= m.end; offset++ {
		for _, room := range []int{1, 61, 150} {
			e.reads(l, offset, room, m.from(offset)...)
		}
	}
	e.outOfRange(l, m.start-1)
	e.outOfRange(l, m.end+1)
}

func (e *env) sameAfter(doing string, l mirror.Log, m *model) {
	defer e.explain(func() string { return "after " + doing })
	e.same(l, m)
}

// afterCrash checks that a log holds what a crash may leave of m, and makes m that.
func (e *env) afterCrash(l mirror.Log, m *model) {
	start, end := l.Bounds()
	if start < m.floor || start > m.start {
		e.fail("start %d after the crash: it was %d before, and never below %d since the last reset", start, m.start, m.floor)
	}
	n := 0
	for n < len(m.batches) && m.batches[n].next <= end {
		n++
	}
	if n < m.durable {
		e.fail("[%d, %d) after the crash: of %d batches that were synced %d are left", start, end, m.durable, n)
	}
	left := &model{start: start, end: start, floor: start, batches: m.batches[:n:n], durable: n}
	if n > 0 {
		left.end = max(start, m.batches[n-1].next)
	}
	e.bounds(l, left.start, left.end)
	e.holds(l, left.held()...)
	*m = *left
}
