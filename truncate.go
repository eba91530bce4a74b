package mirror

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/clustermirror/mirror/internal/epochs"
)

// Where do two logs part, and what must be cut? Everything here is pure; in align.go, ask puts the questions to
// the source and carryOut does what the answers say.
//
// The source is asked with OffsetForLeaderEpoch (KIP-101, KIP-279): "where does your epoch e end?", beginning with the last
// epoch of our log, until nothing is left to cut. An epoch starts where the batch before it ended, so a gap belongs to the newer
// epoch: what is cut too much is fetched again, what is cut too little is never seen.

// lineage is an epoch table with the bounds of the log it describes.
type lineage struct {
	start, end int64
	epochs     []epochs.Entry // by epoch
}

// probe is a question: we hold epoch up to end, where does it end at the source? Epoch -1 means that there is nothing to ask.
type probe struct {
	epoch int32
	end   int64
}

// answer is the source's: the greatest epoch at or below the one asked for, and where it ends; (-1, -1) if it knows none.
type answer struct {
	epoch int32
	end   int64
}

type verdictKind int

const (
	agree   verdictKind = iota // our log is a prefix of the source's
	cutTo                      // cut to offset to, then ask again from the new last epoch
	askNext                    // ask the next probe
	unknown                    // no epoch is common: see strange
)

type verdict struct {
	kind verdictKind
	to   int64
	next probe
	why  string
}

// last is the first question: about our last epoch.
func (l lineage) last() probe {
	if l.start == l.end || len(l.epochs) == 0 {
		return probe{epoch: -1, end: l.end}
	}
	return probe{epoch: l.epochs[len(l.epochs)-1].Epoch, end: l.end}
}

// latest is the last epoch, also of a log that retention has emptied; -1 if none is known.
func (l lineage) latest() int32 {
	if len(l.epochs) == 0 {
		return -1
	}
	return l.epochs[len(l.epochs)-1].Epoch
}

// below is the question about our greatest epoch below another.
func (l lineage) below(epoch int32) probe {
	end := l.end
	for _, e := range slices.Backward(l.epochs) {
		if e.Epoch < epoch {
			return probe{epoch: e.Epoch, end: end}
		}
		end = e.Start
	}
	return probe{epoch: -1, end: l.start}
}

// endOf is where our greatest epoch at or below epoch ends; not ok if all of ours are greater.
func (l lineage) endOf(epoch int32) (int64, bool) {
	p := l.below(epoch + 1)
	return p.end, p.epoch >= 0
}

// byPosition is where a log is cut whose last mirrored position is known: what lies above was written here. An epoch without an
// offset leaves the rest to the questions.
func (l lineage) byPosition(p Position) int64 {
	to := l.start // no epoch at or below the position's: nothing here came from the source
	if end, ok := l.endOf(p.Epoch); ok {
		to = end
	}
	if p.Offset >= 0 {
		to = min(to, p.Offset)
	}
	return to
}

// cut is the lineage of the log after a cut.
func (l lineage) cut(end int64) lineage {
	l.end = end
	i, _ := slices.BinarySearchFunc(l.epochs, end, func(e epochs.Entry, end int64) int { return cmp.Compare(e.Start, end) })
	l.epochs = l.epochs[:i]
	return l
}

// after is the lineage of the log after what was announced.
func (l lineage) after(e cutEntry) lineage {
	if e.Reset {
		return lineage{start: e.Target, end: e.Target}
	}
	return l.cut(min(e.Target, l.end))
}

// compare says what the answer to a question means for our log.
func (l lineage) compare(p probe, a answer) (verdict, error) {
	switch {
	case a.epoch > p.epoch || a.epoch >= 0 && a.end < 0:
		return verdict{}, fmt.Errorf("asked where epoch %d ends, the source answered epoch %d, offset %d", p.epoch, a.epoch, a.end)

	case a.epoch < 0:
		// ours    |--1--|--3--|--7--|      The source knows nothing at or below 7, or it has not come as far as 7:
		// source  ?                        what about 3?
		if lower := l.below(p.epoch); lower.epoch >= 0 {
			return verdict{kind: askNext, next: lower}, nil
		}
		return verdict{kind: unknown}, nil

	case a.epoch == p.epoch:
		// ours    |--1--|-----3-----|      The source has less of 3, or, if 3 is not our last epoch, our epochs after it are
		// source  |--1--|--3--|--4--|      not its own: cut to where 3 ends on both sides.
		//                     ^
		if end := min(a.end, p.end); end < l.end {
			return verdict{kind: cutTo, to: end}, nil
		}
		// ours    |--1--|--3--|
		// source  |--1--|----3----|--4--|
		return verdict{kind: agree}, nil

	default:
		// ours    |--1--|--2--|--3--|      The source has no 3 and ends 1 earlier or later than we do: everything of ours
		// source  |----1----|--4--|        after 1 is not its own.
		//               ^
		end, ok := l.endOf(a.epoch)
		if !ok {
			// ours          |--3--|        Not even our first epoch is the source's.
			// source  |--1--|--4--|
			return verdict{kind: unknown}, nil
		}
		return verdict{kind: cutTo, to: min(a.end, end)}, nil
	}
}

// strange says what to do when no epoch is common, by the source's start and end read under one leader epoch: cut to an offset,
// or begin again, empty, at one.
//
//	ours    |------------|        no epoch known, source shorter: what it lost, we cut
//	source  |------|
//
//	ours    |------------|        anything else: nothing proves that a byte of ours is the source's
//	source      |------------|
func (l lineage) strange(sourceStart, sourceEnd int64) (to int64, reset bool) {
	if len(l.epochs) == 0 && sourceEnd < l.end && sourceEnd >= l.start {
		return sourceEnd, false
	}
	return sourceStart, true
}
