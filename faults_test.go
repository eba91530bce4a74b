package mirror_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fault is a mistake that is planted into the library: the simulation must find it.
type fault struct {
	name     string
	file     string
	old, new string // old stands in file once
}

var faults = []fault{
	{
		"a round's position is stored a second time", "failover.go",
		`if rd.Stored || !rd.Aligned && rd.Existed {`,
		`if !rd.Aligned && rd.Existed {`,
	},
	{
		"the gate opens before the reset", "failover.go",
		`	if err := p.settle(ctx, rd); err != nil {`,
		`	r.m.c.gate.setOpen(r.t.name, r.num, true)
	if err := p.settle(ctx, rd); err != nil {`,
	},
	{
		"an epoch is used again after a crash", "partition.go",
		`return epoch + 1, nil`,
		`return max(epoch, 0), nil`,
	},
	{
		"a stop before alignment stores a position", "failover.go",
		`if rd.Stored || !rd.Aligned && rd.Existed {`,
		`rd.Existed = rd.Existed && !rd.Cut
	if rd.Stored {`,
	},
	{
		"a stop before alignment opens after a cut without a new epoch", "failover.go",
		`return !rd.Aligned && !rd.Cut && rd.Existed`,
		`return !rd.Aligned && rd.Existed`,
	},
	{
		"a takeover goes up by one epoch only", "failover.go",
		`to = takeoverEpoch(seen, rand.Int32()) //nolint:gosec // apart, not secret`,
		`_ = rand.Int32`,
	},
	{
		"a leader epoch is used before it is durable", "partition.go",
		`p.c.put(ctx, append(more, leaderEpochRecord(p.id, p.num, epoch))...)`,
		`p.c.put(ctx, append(more, leaderEpochRecord(p.id, p.num, max(p.LeaderEpoch(), 0)))...)`,
	},
	{
		"a cut whose report a crash loses", "align.go",
		`r.putRound(ctx, rd, append(with, record(r.key(typeCut), e))...)`,
		`r.putRound(ctx, rd, with...)`,
	},
	{
		"a cut is not reported", "align.go",
		`	r.m.c.events.send(ev)
`,
		`	_ = ev
`,
	},
	{
		"AddTopics takes back a takeover", "failback.go",
		`		c.ours = true
`,
		``,
	},
	{
		"the smaller of two positions is taken", "failback.go",
		`case known && (!mine || theirs.beats(own)):`,
		`case known && (!mine || !theirs.beats(own)):`,
	},
	{
		"committed offsets are not clamped", "align.go",
		`if err := p.clampOffsets(ctx, min(e.From, e.Target, end)); err != nil {`,
		`_ = end
	if err != nil {`,
	},
	{
		"the source says that the logs have parted, and is not heard", "fetcher.go",
		`case a.Diverging != nil:`,
		`case a.Diverging != nil && c.bytes < 0:`,
	},
	{
		"an epoch that the source does not know passes for one that agrees", "truncate.go",
		`return verdict{kind: askNext, next: lower}, nil`,
		`return verdict{kind: agree}, nil`,
	},
	{
		"a cut on an unconfirmed answer", "align.go",
		`leader, epoch, rd := r.leader, r.leaderEpoch, r.round`,
		`leader, epoch, rd := r.leader, min(r.leaderEpoch, -1), r.round`,
	},
	{
		"a deposed leader is believed", "align.go",
		`if epoch < 0 || held <= epoch {`,
		`if epoch < 0 || held <= epoch || leader > 0 {`,
	},
	{
		"a round begins while local writers are at work", "failback.go",
		`err := t.drain(ctx)`,
		`var err error`,
	},
	{
		"the gate is open after a restart", "coordinator.go",
		`		c.gateOf(c.ownerOf(topic))
`,
		`		_ = topic
`,
	},
	{
		"the log start of the source is not followed", "fetcher.go",
		`if to := min(logStart, end); to > start {`,
		`if to := min(logStart, end); to > start && end < 0 {`,
	},
	{
		"transactions stay open at a takeover", "failover.go",
		`for _, o := range open {
			_, end := p.log.Bounds()`,
		`for _, o := range open[:0] {
			_, end := p.log.Bounds()`,
	},
	{
		"readers are not told of cuts", "records.go",
		`	e := &CutError{Topic: r.p.topic, Partition: r.p.num, From: r.start, To: r.pos}
`,
		`	e := &CutError{Topic: r.p.topic, Partition: r.p.num, From: r.start, To: r.pos}
	if r.follow {
		return nil
	}
`,
	},
	{
		"aborted records are read", "records.go",
		`a.ProducerID == h.ProducerID && a.FirstOffset < h.Next()`,
		`a.ProducerID == h.ProducerID && a.FirstOffset < h.Base`,
	},
	{
		"another topic of the name answers, and cuts", "align.go",
		`id != (TopicID{}) && id != r.t.id {`,
		`id != (TopicID{}) && id != r.t.id && leader < 0 {`,
	},
	{
		"another topic of the name is mirrored to", "replica.go",
		`if p.id != r.t.id {`,
		`if p.num < 0 {`,
	},
	{
		"FailOnDivergence asks about the first cut only", "align.go",
		`if r.m.opts.failOnDiverge && rd.Aligned && !rd.Stored {`,
		`if r.m.opts.failOnDiverge && rd.Aligned && !rd.Stored && !rd.Cut {`,
	},
	{
		"Recover allows more than the failure names", "align.go",
		`return slices.Contains(r.allowed, failure.Error())`,
		`return len(r.allowed) > 0 && slices.Contains(r.allowed, r.allowed[0])`,
	},
	{
		"a state older than the data is not noticed", "align.go",
		`case latest <= recorded && !(announced && cut.outgrown(end)):`,
		`case latest <= recorded && !(announced && cut.outgrown(end)) || end > 0:`,
	},
	{
		"a stop that an older state asks for goes on", "replica.go",
		`if held && s.state == Failed {`,
		`if held && s.state == Unknown {`,
	},
	{
		"a checkpoint beyond the sync", "partition.go",
		`	err := p.Sync(ctx)
	if err == nil {
		err = p.putPieces(ctx, pieces)
	}
`,
		`	err := p.putPieces(ctx, pieces)
`,
	},
	{
		"a plan conceals a cut", "plan.go",
		`if e.From < e.To {`,
		`if e.From < e.To && e.To < l.end {`,
	},
	{
		"a plan names another position than the stop stores", "plan.go",
		`if rd, _, err = r.position(ctx, p, rd, l.end, l.latest()); err != nil {`,
		`if rd, _, err = r.position(ctx, p, rd, l.start, l.latest()); err != nil {`,
	},
	{
		"a gap counts to the older epoch", "internal/summary/summary.go",
		`s.epochs.Assign(h.LeaderEpoch, max(s.last.next, s.start))`,
		`s.epochs.Assign(h.LeaderEpoch, max(h.Base, s.start))`,
	},
}

// partners are second mistakes, without which the first ones do no harm.
var partners = map[string]fault{
	"a stop before alignment opens after a cut without a new epoch": {
		"a cut leaves the epoch as it is", "align.go",
		`err = p.leaveEpoch(ctx)`,
		`_ = done`,
	},
	"a checkpoint beyond the sync": {
		"a checkpoint is not held against the log's last batch", "internal/summary/checkpoint.go",
		`if got := (lastBatch{h.Base, h.Next(), h.CRC}); got != s.last {`,
		`if got := (lastBatch{h.Base, h.Next(), h.CRC}); got != s.last && got.base < 0 {`,
	},
}

// Faults follow the lines that they are planted into: one that fits no more would be found by nobody.
func TestPlantedFaultsFitTheCode(t *testing.T) {
	for _, f := range faults {
		for _, f := range []fault{f, partners[f.name]} {
			if f.name == "" {
				continue
			}
			src, err := os.ReadFile(f.file)
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(src), f.old), "%s: %s in %s", f.name, f.old, f.file)
		}
	}
}
