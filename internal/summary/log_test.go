package summary

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/epochs"
	"github.com/clustermirror/mirror/internal/txn"
)

var errOutOfRange = errors.New("offset out of range")

// fakeLog is a host's log in a few lines.
type fakeLog struct {
	start, end int64
	batches    [][]byte

	keepsGaps bool         // a cut inside a gap ends there, not at the batch below
	reads     int          // so far
	onRead    func() error // called first in each Read
}

func base(b []byte) int64 { h, _ := batch.Parse(b); return h.Base }
func next(b []byte) int64 { h, _ := batch.Parse(b); return h.Next() }

func (l *fakeLog) Bounds() (start, end int64) { return l.start, l.end }

func (l *fakeLog) Read(ctx context.Context, offset int64, buf []byte) (n int, err error) {
	l.reads++
	if l.onRead != nil {
		if err := l.onRead(); err != nil {
			return 0, err
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if offset < l.start || offset > l.end {
		return 0, errOutOfRange
	}
	for _, b := range l.batches {
		if next(b) > offset {
			n += copy(buf[n:], b)
		}
	}
	return n, nil
}

func (l *fakeLog) append(b []byte) {
	if base(b) < l.end {
		panic(fmt.Sprintf("base %d below end %d", base(b), l.end))
	}
	l.batches, l.end = append(l.batches, b), next(b)
}

func (l *fakeLog) truncateTo(end int64) {
	if end < l.start {
		l.reset(end)
		return
	}
	if end >= l.end {
		return
	}
	l.batches = slices.DeleteFunc(slices.Clone(l.batches), func(b []byte) bool { return next(b) > end })
	if l.end = end; !l.keepsGaps {
		l.end = l.start
		if n := len(l.batches); n > 0 {
			l.end = next(l.batches[n-1])
		}
	}
}

func (l *fakeLog) advanceStart(start int64) {
	if start > l.end {
		l.reset(start)
		return
	}
	l.start = max(l.start, start)
	l.batches = slices.DeleteFunc(slices.Clone(l.batches), func(b []byte) bool { return next(b) <= l.start })
}

func (l *fakeLog) reset(start int64) { l.start, l.end, l.batches = start, start, nil }

// answers is all that a Summary says of a log.
type answers struct {
	end, lastStable, greatest int64
	lastBase                  int64
	lastCRC                   uint32
	lastOK                    bool
	epochs                    []epochs.Entry
	open                      []txn.Open
	aborted                   []txn.Aborted
}

// walk finds the answers in the log's bytes, the plainest way.
func (l *fakeLog) walk() answers {
	a := answers{end: l.end, lastStable: l.end, greatest: -1}
	latest, before := int32(-1), l.start
	open := map[int64]txn.Open{}
	for _, b := range l.batches {
		h, _, err := batch.Next(b)
		if err != nil {
			panic(err)
		}
		if h.LeaderEpoch > latest {
			latest = h.LeaderEpoch
			a.epochs = append(a.epochs, epochs.Entry{Epoch: latest, Start: before})
		}
		before = h.Next()
		a.lastBase, a.lastCRC, a.lastOK = h.Base, h.CRC, true
		a.greatest = max(a.greatest, h.ProducerID)
		o, isOpen := open[h.ProducerID]
		switch {
		case h.Records == 0:
		case h.Control():
			c, err := batch.ParseControl(b)
			if err != nil {
				panic(err)
			}
			if c.Type > batch.ControlCommit {
				continue
			}
			delete(open, h.ProducerID)
			if isOpen && c.Type == batch.ControlAbort {
				a.aborted = append(a.aborted, txn.Aborted{ProducerID: o.ProducerID, FirstOffset: o.FirstOffset, LastOffset: h.Base})
			}
		case h.Transactional():
			if !isOpen {
				o = txn.Open{ProducerID: h.ProducerID, FirstOffset: max(h.Base, l.start), Timestamp: h.MaxTimestamp}
			}
			o.Next = h.Next()
			open[h.ProducerID] = o
		}
	}
	for _, o := range open {
		a.open = append(a.open, o)
		a.lastStable = min(a.lastStable, o.FirstOffset)
	}
	slices.SortFunc(a.open, func(x, y txn.Open) int { return int(x.FirstOffset - y.FirstOffset) })
	slices.SortFunc(a.aborted, func(x, y txn.Aborted) int { return int(x.FirstOffset - y.FirstOffset) })
	return a
}

// check compares what the Summary says with the walk's answers, up to the exceptions that Summary documents.
func check(s *Summary, l *fakeLog) error {
	want := l.walk()
	differ := func(what string, got, want any) error {
		return fmt.Errorf("%s: %v, a walk finds %v", what, got, want)
	}

	if s.Start() != l.start || s.End() != want.end {
		return differ("bounds", []int64{s.Start(), s.End()}, []int64{l.start, want.end})
	}
	if base, crc, ok := s.LastBatch(); base != want.lastBase || crc != want.lastCRC || ok != want.lastOK {
		return differ("last batch", []any{base, crc, ok}, []any{want.lastBase, want.lastCRC, want.lastOK})
	}
	if got := s.Txn().GreatestProducerID(); got < want.greatest {
		return differ("greatest producer id", got, want.greatest)
	}

	// Epochs. What a log had last before retention emptied it is no byte's.
	got := s.Epochs().Entries()
	if emptied := len(l.batches) == 0 && len(got) == 1 && got[0].Start == l.start; !emptied && !slices.Equal(got, want.epochs) {
		return differ("epochs", got, want.epochs)
	}
	for i, e := range want.epochs {
		end := want.end
		if i+1 < len(want.epochs) {
			end = want.epochs[i+1].Start
		}
		if found, got := s.Epochs().EndOf(e.Epoch, s.End()); found != e.Epoch || got != end {
			return differ(fmt.Sprint("end of epoch ", e.Epoch), []int64{int64(found), got}, []int64{int64(e.Epoch), end})
		}
		if at, last := s.Epochs().At(e.Start), s.Epochs().At(end-1); at != e.Epoch || last != e.Epoch {
			return differ(fmt.Sprintf("epoch in [%d, %d)", e.Start, end), []int32{at, last}, e.Epoch)
		}
	}

	// Transactions. One that began below the start begins at the start.
	open := s.Txn().Open()
	for i := range open {
		if open[i].FirstOffset != l.start {
			continue
		}
		for _, w := range want.open {
			if w.ProducerID == open[i].ProducerID {
				open[i].FirstOffset, open[i].Timestamp = w.FirstOffset, w.Timestamp
			}
		}
	}
	slices.SortStableFunc(open, func(x, y txn.Open) int { return int(x.FirstOffset - y.FirstOffset) })
	if !slices.Equal(open, want.open) {
		return differ("open", open, want.open)
	}
	lastStable := s.End()
	for _, o := range s.Txn().Open() {
		lastStable = min(lastStable, o.FirstOffset)
	}
	if s.LastStable() != lastStable {
		return differ("last stable offset", s.LastStable(), lastStable)
	}
	span := l.end - l.start + 1
	for _, r := range [][2]int64{{l.start, l.end}, {l.start + span/3, l.start + span/2}, {l.start + span/2, l.end}, {l.start, l.start + span/3}} {
		got, rest := s.Txn().Aborted(r[0], r[1]), slices.Clone(want.aborted)
		rest = slices.DeleteFunc(rest, func(a txn.Aborted) bool { return a.FirstOffset >= r[1] || a.LastOffset < r[0] })
		if !slices.IsSortedFunc(got, func(x, y txn.Aborted) int { return int(x.FirstOffset - y.FirstOffset) }) {
			return differ("aborted, not by first offset", got, rest)
		}
		for _, g := range got {
			i := slices.IndexFunc(want.aborted, func(w txn.Aborted) bool {
				return w.ProducerID == g.ProducerID && w.LastOffset == g.LastOffset && (w.FirstOffset == g.FirstOffset || g.FirstOffset == l.start)
			})
			if i < 0 && g.FirstOffset != l.start {
				return differ(fmt.Sprintf("aborted in [%d, %d)", r[0], r[1]), got, rest)
			}
			if i >= 0 {
				rest = slices.DeleteFunc(rest, func(w txn.Aborted) bool { return w == want.aborted[i] })
			}
		}
		if len(rest) > 0 {
			return differ(fmt.Sprintf("aborted in [%d, %d): missing", r[0], r[1]), got, rest)
		}
	}
	return nil
}
