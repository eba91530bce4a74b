package logtest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/clustermirror/mirror"
)

// checks are all of them, in the order in which the contract speaks.
var checks = []check{
	// Host
	{
		name: "cluster id",
		says: "A host's cluster id is never empty, stays the same, and no two hosts share one.",
		run:  clusterID,
	},
	{
		name: "topics",
		says: "Topics lists everything that exists, and the answer belongs to the caller.",
		run:  topics,
	},
	{
		name: "ensure topic creates",
		says: "EnsureTopic creates a topic with the name, id, partitions and configs that it is given; for a zero id the host chooses one.",
		run:  ensureCreates,
	},
	{
		name: "ensure topic again",
		says: "EnsureTopic of what is there already changes nothing.",
		run:  ensureAgain,
	},
	{
		name: "ensure topic grows",
		says: "EnsureTopic raises the number of partitions, and what the topic holds stays.",
		run:  ensureGrows,
	},
	{
		name: "ensure topic never shrinks",
		says: "EnsureTopic never lowers the number of partitions.",
		run:  ensureNeverShrinks,
	},
	{
		name: "topic conflict",
		says: "EnsureTopic answers ErrTopicConflict, and changes nothing, if the name exists with another id.",
		run:  topicConflict,
	},
	{
		name: "unknown partition",
		says: "OpenLog opens what exists, and nothing else.",
		run:  unknownPartition,
	},
	{
		name: "two handles",
		says: "A log that is opened twice is one log: both handles see what either does.",
		run:  twoHandles,
	},
	{
		name: "logs are separate",
		says: "Each partition has a log of its own.",
		run:  separateLogs,
	},

	// Append
	{
		name: "new log",
		says: "Bounds of a log that never held anything are equal.",
		run:  newLog,
	},
	{
		name: "append verbatim",
		says: "Append stores whole batches verbatim, whatever their header says, and they are visible when it returns.",
		run:  appendVerbatim,
	},
	{
		name: "append big",
		says: "A batch may be of any size.",
		run:  appendBig,
	},
	{
		name: "append keeps no slice",
		says: "Append doesn't keep the slice: the caller may write over it.",
		run:  appendKeepsNoSlice,
	},
	{
		name: "gaps",
		says: "Gaps between batches stay.",
		run:  gaps,
	},
	{
		name: "end",
		says: "After Append the end is the last batch's last offset + 1, also if the batch has no records any more.",
		run:  endOfCompacted,
	},
	{
		name: "out of order",
		says: "Append refuses a first base below the end with ErrOutOfOrder and stores nothing.",
		run:  outOfOrder,
	},
	{
		name: "out of order across handles",
		says: "Append refuses a base below the end atomically, also against another handle of the same log.",
		run:  outOfOrderAcrossHandles,
	},
	{
		name: "append with a cancelled context",
		says: "If Append fails, Bounds says which whole batches stayed.",
		run:  appendCancelled,
	},
	{
		name:  "append half-way",
		says:  "If Append fails half-way, Bounds says which whole batches stayed, and the log goes on from there.",
		needs: toFill,
		run:   appendHalfWay,
	},

	// Read
	{
		name: "read at a batch",
		says: "Read fills buf from the batch that holds the offset and goes on with those that follow.",
		run:  readAtBatch,
	},
	{
		name: "read inside a batch",
		says: "Read of an offset inside a batch begins with that batch's first byte.",
		run:  readInside,
	},
	{
		name: "read in a gap",
		says: "Read of an offset in a gap begins with the next batch.",
		run:  readInGap,
	},
	{
		name: "read a header",
		says: "The last batch may be cut by the end of buf, so 61 bytes read one header.",
		run:  readHeader,
	},
	{
		name: "read at the end",
		says: "Read at the end answers 0 and no error.",
		run:  readAtEnd,
	},
	{
		name: "read out of range",
		says: "Read below the start or above the end answers ErrOutOfRange.",
		run:  readOutOfRange,
	},
	{
		name: "read across the start",
		says: "A batch may begin below the start: Read gives all of it.",
		run:  readAcrossStart,
	},

	// Cuts
	{
		name:  "truncate",
		says:  "TruncateTo drops each batch that reaches beyond the new end, so the end may come out lower.",
		needs: toCut,
		run:   truncate,
	},
	{
		name:  "truncate below the start",
		says:  "TruncateTo an end below the start means Reset to that end.",
		needs: toCut,
		run:   truncateBelowStart,
	},
	{
		name:  "truncate at or above the end",
		says:  "TruncateTo the log's own end, or above, changes nothing.",
		needs: toCut,
		run:   truncateAboveEnd,
	},
	{
		name:  "truncate unsupported",
		says:  "TruncateTo answers errors.ErrUnsupported whatever the end, and only if it has changed nothing.",
		needs: toNotCut,
		run:   truncateUnsupported,
	},
	{
		name: "advance start",
		says: "AdvanceStart drops a prefix; where it falls inside a batch the batch stays, and the offsets below are out of range.",
		run:  advanceStart,
	},
	{
		name: "advance start backwards",
		says: "AdvanceStart to the log's own start, or below, changes nothing.",
		run:  advanceBackwards,
	},
	{
		name: "advance start above the end",
		says: "AdvanceStart above the end means Reset to there.",
		run:  advanceAboveEnd,
	},
	{
		name: "reset",
		says: "Reset drops everything; the log goes on, empty, at the new start, wherever that lies.",
		run:  reset,
	},

	// Concurrency and end of life
	{
		name: "bounds never block",
		says: "Bounds never blocks, whatever else is under way.",
		run:  boundsNeverBlock,
	},
	{
		name: "read while appending",
		says: "Read may overlap Append: it gives whole batches in order, and all that Bounds had shown before.",
		run:  readWhileAppending,
	},
	{
		name: "read while advancing",
		says: "Read may overlap AdvanceStart: it gives whole batches in order, or ErrOutOfRange.",
		run:  readWhileAdvancing,
	},
	{
		name:  "read while cutting",
		says:  "Read may overlap TruncateTo, Reset and what is appended after them: it gives the log as it was at one moment.",
		needs: toCut,
		run:   readWhileCutting,
	},
	{
		name: "sync while appending",
		says: "Sync may overlap anything, and syncs of different logs may come at once.",
		run:  syncWhileAppending,
	},
	{
		name: "close",
		says: "Close twice is harmless; the other methods answer ErrClosed afterwards, and Bounds the last bounds.",
		run:  closed,
	},
	{
		name: "close keeps",
		says: "What was appended but not synced is visible to the next OpenLog after Close.",
		run:  closeKeeps,
	},
	{
		name: "offset for time",
		says: "OffsetForTime, if a log has it, answers the base of the first batch whose max timestamp is at or above the time, -1 if there is none.",
		run:  offsetForTime,
	},
	{
		name: "topic id",
		says: "TopicID, if a log has it, answers the id that Topics lists.",
		run:  topicIDOfLog,
	},

	// The whole
	{
		name: "any history",
		says: "After any sequence of calls the log is what the calls say, one by one.",
		run:  func(e *env) { anyHistory(e, 0) },
	},
	{
		name:  "any history, reopened",
		says:  "What was there when a host was closed in an orderly way is there when it is opened again: topics, ids, bounds, bytes.",
		needs: toReopen,
		run:   func(e *env) { anyHistory(e, toReopen); topicsReopened(e) },
	},

	// Durability
	{
		name:  "crash: topics",
		says:  "EnsureTopic is durable when it returns, and the cluster id is stable for the life of the data.",
		needs: toCrash,
		run:   crashTopics,
	},
	{
		name:  "crash: synced",
		says:  "What was appended before a Sync is durable after it.",
		needs: toCrash,
		run:   crashSynced,
	},
	{
		name:  "crash: not synced",
		says:  "Of what was appended after the last Sync a crash leaves whole batches, without a hole.",
		needs: toCrash,
		run:   crashUnsynced,
	},
	{
		name:  "crash: truncate",
		says:  "TruncateTo is durable when it returns.",
		needs: toCrash | toCut,
		run:   crashTruncate,
	},
	{
		name:  "crash: no resurrection",
		says:  "What was cut never comes back, also after other bytes took its offsets.",
		needs: toCrash | toCut,
		run:   crashNoResurrection,
	},
	{
		name:  "crash: reset",
		says:  "Reset is durable when it returns.",
		needs: toCrash,
		run:   crashReset,
	},
	{
		name:  "crash: advance start",
		says:  "After AdvanceStart and a crash the start is the old or the new one, or between them, and no record above is lost.",
		needs: toCrash,
		run:   crashAdvance,
	},
	{
		name:  "crash: under load",
		says:  "A crash in the middle of anything leaves what was synced, and whole batches without a hole.",
		needs: toCrash,
		run:   crashUnderLoad,
	},
	{
		name:  "crash: any history",
		says:  "After any sequence of calls and crashes the log is what the calls say, less what no Sync covered.",
		needs: toCrash,
		run:   func(e *env) { anyHistory(e, toCrash) },
	},
}

func clusterID(e *env) {
	id := e.host.ClusterID()
	if id == "" {
		e.fail("ClusterID is empty")
	}
	if again := e.host.ClusterID(); again != id {
		e.fail("ClusterID was %q, now it is %q", id, again)
	}
	e.fresh()
	if other := e.host.ClusterID(); other == id {
		e.fail("two hosts have the cluster id %q", id)
	}
}

// find answers what Topics says of one.
func (e *env) find(name string) mirror.Topic {
	list, err := e.host.Topics(e.ctx)
	e.must(err, "Topics")
	var found []mirror.Topic
	for _, t := range list {
		if t.Name == name {
			found = append(found, t)
		}
	}
	if len(found) != 1 {
		e.fail("Topics lists %s %d times: %v", name, len(found), list)
	}
	return found[0]
}

// expect compares what Topics says of one topic; a zero id means any but zero.
func (e *env) expect(want mirror.Topic) {
	got := e.find(want.Name)
	if want.ID == (mirror.TopicID{}) && got.ID != want.ID {
		want.ID = got.ID
	}
	if got.ID != want.ID || got.Partitions != want.Partitions || !maps.Equal(got.Configs, want.Configs) {
		e.fail("Topics answers %+v, want %+v", got, want)
	}
}

var (
	idA = mirror.TopicID{0xa, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15}
	idB = mirror.TopicID{0xb, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15}
)

func topics(e *env) {
	if list, err := e.host.Topics(e.ctx); err != nil || len(list) != 0 {
		e.fail("Topics of a fresh host answers %v, %v", list, err)
	}
	want := []mirror.Topic{
		{Name: "orders", ID: idA, Partitions: 3, Configs: map[string]string{"retention.ms": "1000"}},
		{Name: "payments", Partitions: 1},
		{Name: mirror.StateTopic, Partitions: 1},
	}
	for _, t := range want {
		e.ensure(t)
	}
	list, err := e.host.Topics(e.ctx)
	e.must(err, "Topics")
	if len(list) != len(want) {
		e.fail("Topics lists %v, want %v", list, want)
	}
	for i := range list { // it is ours
		if list[i].Configs != nil {
			list[i].Configs["retention.ms"] = "scribbled"
		}
		list[i] = mirror.Topic{}
	}
	for _, t := range want {
		e.expect(t)
	}
}

func ensureCreates(e *env) {
	configs := map[string]string{"cleanup.policy": "compact"}
	e.ensure(mirror.Topic{Name: "with.id", ID: idA, Partitions: 4, Configs: configs})
	clear(configs) // the map is ours
	e.expect(mirror.Topic{Name: "with.id", ID: idA, Partitions: 4, Configs: map[string]string{"cleanup.policy": "compact"}})
	for _, name := range []string{"without_id", "without-id"} {
		e.ensure(mirror.Topic{Name: name, Partitions: 2})
		e.expect(mirror.Topic{Name: name, Partitions: 2})
	}
	if e.find("without_id").ID == e.find("without-id").ID {
		e.fail("two topics were given the same id")
	}
	for p := range int32(4) {
		e.bounds(e.open("with.id", p), 0, 0)
	}
}

func ensureAgain(e *env) {
	t := mirror.Topic{Name: "orders", ID: idA, Partitions: 2, Configs: map[string]string{"a": "b"}}
	e.ensure(t)
	l := e.open("orders", 1)
	e.append(l, plain(0, 3))
	e.ensure(t)
	e.expect(t)
	e.ensure(mirror.Topic{Name: "orders", Partitions: 2, Configs: t.Configs})
	e.expect(t)
	e.holds(l, plain(0, 3))
	e.holds(e.open("orders", 1), plain(0, 3))

	e.ensure(mirror.Topic{Name: "any", Partitions: 1})
	chosen := e.find("any")
	e.ensure(mirror.Topic{Name: "any", Partitions: 1})
	e.ensure(mirror.Topic{Name: "any", ID: chosen.ID, Partitions: 1})
	e.expect(chosen)

	// Several at once: one of them creates it, the others find it.
	errs := make(chan error)
	for range 8 {
		go func() { errs <- e.host.EnsureTopic(e.ctx, mirror.Topic{Name: "race", Partitions: 3}) }()
	}
	for range 8 {
		e.must(e.await(errs), "EnsureTopic by several at once")
	}
	e.expect(mirror.Topic{Name: "race", Partitions: 3})
}

// await takes a value that a goroutine of the check sends.
func (e *env) await(errs <-chan error) error {
	select {
	case err := <-errs:
		return err
	case <-e.ctx.Done():
		e.fail("a call did not come back: %w", e.ctx.Err())
		return nil
	}
}

func ensureGrows(e *env) {
	e.ensure(mirror.Topic{Name: "orders", ID: idA, Partitions: 1})
	old := e.open("orders", 0)
	e.append(old, plain(0, 3))
	e.ensure(mirror.Topic{Name: "orders", ID: idA, Partitions: 3})
	e.expect(mirror.Topic{Name: "orders", ID: idA, Partitions: 3})
	e.bounds(e.open("orders", 2), 0, 0)
	e.holds(e.open("orders", 0), plain(0, 3))
	e.append(old, plain(3, 1))
	e.holds(e.open("orders", 0), plain(0, 3), plain(3, 1))
}

func ensureNeverShrinks(e *env) {
	e.ensure(mirror.Topic{Name: "orders", ID: idA, Partitions: 3})
	l := e.open("orders", 2)
	e.append(l, plain(0, 3))
	e.ensure(mirror.Topic{Name: "orders", ID: idA, Partitions: 1})
	e.expect(mirror.Topic{Name: "orders", ID: idA, Partitions: 3})
	e.holds(e.open("orders", 2), plain(0, 3))
}

func topicConflict(e *env) {
	e.ensure(mirror.Topic{Name: "orders", ID: idA, Partitions: 1})
	err := e.host.EnsureTopic(e.ctx, mirror.Topic{Name: "orders", ID: idB, Partitions: 5})
	e.is(err, mirror.ErrTopicConflict, "EnsureTopic with another id")
	e.expect(mirror.Topic{Name: "orders", ID: idA, Partitions: 1})
}

func unknownPartition(e *env) {
	name := e.topic()
	for _, c := range []struct {
		topic     string
		partition int32
	}{{"nowhere", 0}, {name, 1}, {name, -1}} {
		if l, err := e.host.OpenLog(e.ctx, c.topic, c.partition); err == nil {
			l.Close()
			e.fail("OpenLog opened %s %d, which does not exist", c.topic, c.partition)
		}
	}
	if list, err := e.host.Topics(e.ctx); err != nil || len(list) != 1 {
		e.fail("Topics answers %v, %v after OpenLog of what does not exist", list, err)
	}
}

func twoHandles(e *env) {
	name := e.topic()
	a, b := e.open(name, 0), e.open(name, 0)
	m := &model{}
	do := func(f func(mirror.Log) error, doing string) {
		e.must(f(a), doing)
		e.same(b, m)
		e.same(a, m)
		a, b = b, a
	}
	for i := range int64(4) {
		m.append(plain(3*i, 3))
		do(func(l mirror.Log) error { return l.Append(e.ctx, plain(3*i, 3).bytes) }, "Append")
	}
	m.advance(4)
	do(func(l mirror.Log) error { return l.AdvanceStart(e.ctx, 4) }, "AdvanceStart")
	m.reset(20)
	do(func(l mirror.Log) error { return l.Reset(e.ctx, 20) }, "Reset")
	m.append(plain(20, 2))
	do(func(l mirror.Log) error { return l.Append(e.ctx, plain(20, 2).bytes) }, "Append")
	e.must(a.Close(), "Close")
	e.same(b, m)
	m.append(plain(22, 2))
	e.append(b, plain(22, 2))
	e.same(e.open(name, 0), m)
}

func separateLogs(e *env) {
	e.ensure(mirror.Topic{Name: "a", Partitions: 2})
	e.ensure(mirror.Topic{Name: "b", Partitions: 1})
	e.ensure(mirror.Topic{Name: "a-1", Partitions: 1}) // its partition 0 must not be mistaken for something of a
	logs := []mirror.Log{e.open("a", 0), e.open("a", 1), e.open("b", 0), e.open("a-1", 0)}
	for i, l := range logs {
		e.append(l, plain(int64(10*i), 2))
	}
	e.must(logs[0].Reset(e.ctx, 5), "Reset")
	e.bounds(logs[0], 5, 5)
	for i, l := range logs[1:] {
		e.reads(l, int64(10*(i+1)), 1000, plain(int64(10*(i+1)), 2))
	}
}

func newLog(e *env) {
	l := e.log()
	e.bounds(l, 0, 0)
	e.sync(l)
	e.same(l, &model{})
}

func appendVerbatim(e *env) {
	l := e.log()
	list := []batch{
		made(0, 3, 3, 20, 0),
		made(3, 1, 1, 0, 7),   // empty value
		made(4, 5, 2, 100, 3), // a lower epoch than before; compacted, the last three offsets gone
		made(9, 4, 0, 0, 7),   // no records left
		control(13),
		made(14, 1, 1, 5, 1<<31-1),  // greatest epoch
		made(15, 1, 1, 5, -1),       // none
		made(16, 500, 500, 1000, 0), // half a megabyte
		plain(516, 1),
	}
	m := &model{}
	for _, b := range list[:4] {
		e.append(l, b)
		m.append(b)
		e.same(l, m)
	}
	e.append(l, list[4:]...)
	m.append(list[4:]...)
	e.bounds(l, 0, 517)
	e.holds(l, list...)
}

func appendBig(e *env) {
	l := e.log()
	big := made(1, 8, 8, 1<<20, 0)
	list := []batch{plain(0, 1), big, plain(9, 1)}
	e.append(l, list...)
	e.bounds(l, 0, 10)
	e.holds(l, list...)
	e.reads(l, 5, 100, big)
	e.reads(l, 5, len(big.bytes), big)
	e.reads(l, 9, 1000, list[2])
}

func appendKeepsNoSlice(e *env) {
	l := e.log()
	b := join([]batch{plain(0, 3), plain(3, 3)})
	e.must(l.Append(e.ctx, b), "Append")
	clear(b)
	copy(b, plain(6, 3).bytes)
	e.holds(l, plain(0, 3), plain(3, 3))
	e.must(l.Append(e.ctx, b[:len(plain(6, 3).bytes)]), "Append")
	clear(b)
	e.holds(l, plain(0, 3), plain(3, 3), plain(6, 3))
}

func gaps(e *env) {
	l := e.log()
	m := &model{}
	e.append(l, plain(5, 2), plain(10, 3)) // also before the first batch, and inside one Append
	m.append(plain(5, 2), plain(10, 3))
	e.same(l, m)
	e.append(l, plain(1<<40, 1))
	m.append(plain(1<<40, 1))
	e.bounds(l, 0, 1<<40+1)
	e.holds(l, m.held()...)
	e.reads(l, 1<<39, 1000, plain(1<<40, 1))
}

func endOfCompacted(e *env) {
	l := e.log()
	e.append(l, made(0, 10, 4, 10, 0))
	e.bounds(l, 0, 10)
	e.append(l, made(10, 1000, 0, 0, 0))
	e.bounds(l, 0, 1010)
	e.is(l.Append(e.ctx, plain(1009, 1).bytes), mirror.ErrOutOfOrder, "Append inside an empty batch")
	e.append(l, plain(1010, 1))
	e.bounds(l, 0, 1011)
}

func outOfOrder(e *env) {
	l := e.log()
	m := &model{}
	m.append(plain(0, 5), plain(7, 3))
	e.append(l, m.batches...)
	for base := range int64(10) {
		e.is(l.Append(e.ctx, made(base, 1, 1, 9, 9).bytes), mirror.ErrOutOfOrder, fmt.Sprintf("Append at offset %d to a log that ends at 10", base))
	}
	e.is(l.Append(e.ctx, join([]batch{made(9, 1, 1, 9, 9), plain(10, 1), plain(11, 1)})), mirror.ErrOutOfOrder, "Append of several batches, the first below the end")
	e.same(l, m)
	e.must(l.Reset(e.ctx, 100), "Reset")
	e.is(l.Append(e.ctx, plain(99, 1).bytes), mirror.ErrOutOfOrder, "Append below the start of an empty log")
	e.bounds(l, 100, 100)
	e.append(l, plain(100, 1))
}

func outOfOrderAcrossHandles(e *env) {
	name := e.topic()
	a, b := e.open(name, 0), e.open(name, 0)
	e.append(a, plain(0, 1))
	e.is(b.Append(e.ctx, made(0, 1, 1, 9, 9).bytes), mirror.ErrOutOfOrder, "Append through a handle that did not see the other's Append")
	e.append(b, plain(1, 1))
	e.is(a.Append(e.ctx, made(1, 1, 1, 9, 9).bytes), mirror.ErrOutOfOrder, "Append through a handle that did not see the other's Append")
	e.holds(a, plain(0, 1), plain(1, 1))

	// For each base both try; one of them must win. What they write tells them apart.
	const rounds = 200
	handles := []mirror.Log{a, b}
	won := make([][]bool, 2)
	errs := make(chan error)
	var ready [2]chan struct{}
	for i := range handles {
		won[i] = make([]bool, rounds)
		ready[i] = make(chan struct{}, 1)
	}
	for i, l := range handles {
		go func() {
			for r := range rounds {
				ready[i] <- struct{}{}
				select { // meet the other one
				case <-ready[1-i]:
				case <-e.ctx.Done():
					errs <- e.ctx.Err()
					return
				}
				won[i][r] = l.Append(e.ctx, made(int64(2+r), 1, 1, 9, int32(i)).bytes) == nil
			}
			errs <- nil
		}()
	}
	e.must(e.await(errs), "two handles append")
	e.must(e.await(errs), "two handles append")
	want := []batch{plain(0, 1), plain(1, 1)}
	for r := range rounds {
		if won[0][r] == won[1][r] {
			e.fail("two handles appended at offset %d at once: both succeeded is %v", 2+r, won[0][r])
		}
		winner := int32(0)
		if won[1][r] {
			winner = 1
		}
		want = append(want, made(int64(2+r), 1, 1, 9, winner))
	}
	e.holds(a, want...)
	e.holds(b, want...)
}

// stayed checks that after a failed Append of list the log holds before and a whole-batch prefix of list, and answers how
// many of them.
func (e *env) stayed(l mirror.Log, before, list []batch) int {
	_, end := l.Bounds()
	kept := append([]batch(nil), before...)
	n := 0
	for n < len(list) && list[n].next <= end {
		kept = append(kept, list[n])
		n++
	}
	start := int64(0)
	if len(kept) > 0 {
		e.bounds(l, start, kept[len(kept)-1].next)
	}
	e.holds(l, kept...)
	return n
}

func appendCancelled(e *env) {
	l := e.log()
	e.append(l, plain(0, 2))
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	list := []batch{plain(2, 2), plain(4, 2), plain(6, 2)}
	n := len(list)
	if err := l.Append(ctx, join(list)); err != nil {
		n = e.stayed(l, []batch{plain(0, 2)}, list)
	}
	e.append(l, append(slices.Clone(list[n:]), plain(8, 2))...)
	e.holds(l, plain(0, 2), plain(2, 2), plain(4, 2), plain(6, 2), plain(8, 2))
}

func appendHalfWay(e *env) {
	l := e.log()
	e.append(l, plain(0, 2))
	e.harness.Full(e.host, true)
	list := []batch{plain(2, 2), plain(5, 2), made(7, 50, 50, 1000, 0), plain(60, 2)}
	if l.Append(e.ctx, join(list)) == nil {
		e.fail("Append succeeded on a host that is full")
	}
	n := e.stayed(l, []batch{plain(0, 2)}, list)
	if n == len(list) {
		e.fail("Append failed, but everything stayed")
	}
	e.harness.Full(e.host, false)
	e.append(l, list[n:]...)
	e.sync(l)
	e.holds(l, append([]batch{plain(0, 2)}, list...)...)
}

// sampled is a log with gaps, with batches that cover more offsets than they have records.
func sampled() *model {
	m := &model{}
	m.reset(10)
	m.append(plain(12, 3), plain(15, 1), made(20, 6, 2, 30, 1), plain(26, 2), made(30, 3, 0, 0, 1), plain(33, 4))
	return m
}

func (e *env) sample() (mirror.Log, *model) {
	l, m := e.log(), sampled()
	e.must(l.Reset(e.ctx, m.start), "Reset")
	e.append(l, m.batches...)
	return l, m
}

func readAtBatch(e *env) {
	l, m := e.sample()
	for i, b := range m.batches {
		rest := m.batches[i:]
		for _, room := range []int{len(b.bytes), len(b.bytes) + 1, len(b.bytes) + 61, size(rest) - 1, size(rest), size(rest) + 1, 1 << 20} {
			e.reads(l, b.base, room, rest...)
		}
	}
}

func readInside(e *env) {
	l, m := e.sample()
	for i, b := range m.batches {
		for offset := b.base + 1; offset < b.next; offset++ {
			e.reads(l, offset, 1<<20, m.batches[i:]...)
		}
	}
}

func readInGap(e *env) {
	l, m := e.sample()
	before := m.start
	for i, b := range m.batches {
		for offset := before; offset < b.base; offset++ {
			e.reads(l, offset, 1<<20, m.batches[i:]...)
			e.reads(l, offset, 61, m.batches[i:]...)
		}
		before = b.next
	}
}

func readHeader(e *env) {
	l, m := e.sample()
	for offset := m.start; offset < m.end; offset++ {
		e.reads(l, offset, 61, m.from(offset)...)
		e.reads(l, offset, 1, m.from(offset)...)
	}
}

func readAtEnd(e *env) {
	l, m := e.sample()
	e.reads(l, m.end, 100)
	e.must(l.AdvanceStart(e.ctx, m.end), "AdvanceStart")
	e.reads(l, m.end, 100)
	e.must(l.Reset(e.ctx, 7), "Reset")
	e.reads(l, 7, 100)
}

func readOutOfRange(e *env) {
	l, m := e.sample()
	for _, offset := range []int64{-1 << 63, -1, 0, m.start - 1, m.end + 1, m.end + 1000, 1<<63 - 1} {
		e.outOfRange(l, offset)
	}
	e.must(l.AdvanceStart(e.ctx, 22), "AdvanceStart") // inside a batch
	e.outOfRange(l, 21)
	e.outOfRange(l, 20)
}

func readAcrossStart(e *env) {
	l, m := e.sample()
	e.must(l.AdvanceStart(e.ctx, 22), "AdvanceStart")
	for offset := int64(22); offset < 26; offset++ {
		e.reads(l, offset, 1<<20, m.batches[2:]...)
		e.reads(l, offset, 61, m.batches[2:]...)
	}
}

// cuts does something to samples, at each offset that applies to them: the log must be what the model says, and go on from
// there.
func cuts(e *env, name string, do func(mirror.Log, int64) error, say func(*model, int64), applies func(m *model, at int64) bool) {
	for _, start := range []int64{10, 13, 22, 28, 37} { // of the sample: in the gap before, inside batches, in a gap, at the end
		for at := range int64(42) {
			m := sampled()
			m.advance(start)
			if !applies(m, at) {
				continue
			}
			l, _ := e.sample()
			e.must(l.AdvanceStart(e.ctx, start), "AdvanceStart")
			doing := fmt.Sprintf("%s(%d) on [%d, %d)", name, at, m.start, m.end)
			e.must(do(l, at), doing)
			say(m, at)
			e.sameAfter(doing, l, m)
			more := made(m.end+1, 2, 2, 25, 5)
			e.append(l, more)
			m.append(more)
			e.sameAfter(doing+" and Append", l, m)
			e.must(l.Close(), "Close")
		}
	}
}

func truncate(e *env) {
	cuts(e, "TruncateTo", e.truncateTo, (*model).truncate, func(m *model, at int64) bool { return m.start <= at && at < m.end })
}

func truncateBelowStart(e *env) {
	cuts(e, "TruncateTo", e.truncateTo, (*model).truncate, func(m *model, at int64) bool { return at < m.start })
}

func truncateAboveEnd(e *env) {
	cuts(e, "TruncateTo", e.truncateTo, (*model).truncate, func(m *model, at int64) bool { return at >= m.end })
	l, m := e.sample()
	e.must(l.TruncateTo(e.ctx, math.MaxInt64), "TruncateTo the greatest offset") // whoever wants to know whether it can
	e.same(l, m)
}

func truncateUnsupported(e *env) {
	l, m := e.sample()
	check := func(at int64) {
		if err := l.TruncateTo(e.ctx, at); err == nil {
			e.fail("TruncateTo(%d) succeeded, though it answered errors.ErrUnsupported elsewhere", at)
		}
		e.same(l, m)
	}
	for at := m.start - 1; at <= m.end; at++ {
		check(at)
	}
	check(math.MaxInt64)
}

func advanceStart(e *env) {
	cuts(e, "AdvanceStart", e.advanceStart, (*model).advance, func(m *model, at int64) bool { return m.start < at && at <= m.end })
}

func advanceBackwards(e *env) {
	cuts(e, "AdvanceStart", e.advanceStart, (*model).advance, func(m *model, at int64) bool { return at <= m.start })
}

func advanceAboveEnd(e *env) {
	cuts(e, "AdvanceStart", e.advanceStart, (*model).advance, func(m *model, at int64) bool { return at > m.end })
}

func reset(e *env) {
	cuts(e, "Reset", e.reset, (*model).reset, func(*model, int64) bool { return true })
}

func (e *env) truncateTo(l mirror.Log, end int64) error     { return l.TruncateTo(e.ctx, end) }
func (e *env) advanceStart(l mirror.Log, start int64) error { return l.AdvanceStart(e.ctx, start) }
func (e *env) reset(l mirror.Log, start int64) error        { return l.Reset(e.ctx, start) }

func closed(e *env) {
	l, m := e.sample()
	e.must(l.Close(), "Close")
	e.must(l.Close(), "Close again")
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"Append", func() error { return l.Append(e.ctx, plain(m.end, 1).bytes) }},
		{"Read", func() error { _, err := l.Read(e.ctx, m.start, make([]byte, 100)); return err }},
		{"Sync", func() error { return l.Sync(e.ctx) }},
		{"TruncateTo", func() error { return l.TruncateTo(e.ctx, m.start) }},
		{"AdvanceStart", func() error { return l.AdvanceStart(e.ctx, m.start+1) }},
		{"Reset", func() error { return l.Reset(e.ctx, 0) }},
	} {
		e.is(c.do(), mirror.ErrClosed, c.name+" after Close")
	}
	e.bounds(l, m.start, m.end)
}

func closeKeeps(e *env) {
	name := e.topic()
	l := e.open(name, 0)
	e.append(l, plain(0, 2))
	e.sync(l)
	e.append(l, plain(2, 2), plain(6, 1))
	e.must(l.AdvanceStart(e.ctx, 1), "AdvanceStart")
	e.must(l.Close(), "Close")
	l = e.open(name, 0)
	e.bounds(l, 1, 7)
	e.holds(l, plain(0, 2), plain(2, 2), plain(6, 1))
}

func topicIDOfLog(e *env) {
	name := e.topic()
	of, ok := e.open(name, 0).(mirror.TopicIDer)
	if !ok {
		return // an optional ability
	}
	if got, want := of.TopicID(), e.find(name).ID; got != want {
		e.fail("TopicID of a log of a topic with id %s answered %s", want, got)
	}
}

func offsetForTime(e *env) {
	l, m := e.sample()
	by, ok := l.(mirror.OffsetForTimer)
	if !ok {
		return // an optional ability
	}
	first := func(t time.Time) int64 {
		for b, err := range mirror.Batches(join(m.held())) {
			e.must(err, "Batches of what was appended")
			if !b.MaxTime.IsZero() && !b.MaxTime.Before(t) {
				return b.Base
			}
		}
		return -1
	}
	for range 2 {
		for b, err := range mirror.Batches(join(m.batches)) {
			e.must(err, "Batches of what was appended")
			for _, d := range []time.Duration{-time.Millisecond, 0, time.Millisecond} {
				t := b.MaxTime.Add(d)
				base, err := by.OffsetForTime(e.ctx, t)
				e.must(err, "OffsetForTime")
				if want := first(t); base != want {
					e.fail("OffsetForTime(%v) on [%d, %d) answered %d, want %d", t.UnixMilli(), m.start, m.end, base, want)
				}
			}
		}
		e.must(l.AdvanceStart(e.ctx, 26), "AdvanceStart")
		m.advance(26)
	}
}
