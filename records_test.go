package mirror_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

// partitionOf opens partition 0 of "orders" in a new in-memory host that holds the batches.
func partitionOf(t *testing.T, batches ...[]byte) (*mirror.Partition, mirror.Log) {
	t.Helper()
	ctx := t.Context()
	host := memlog.New()
	require.NoError(t, host.EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: 1}))
	log, err := host.OpenLog(ctx, "orders", 0)
	require.NoError(t, err)
	for _, b := range batches {
		require.NoError(t, log.Append(ctx, b))
	}
	c, err := mirror.Open(ctx, host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	p, err := c.Partition(ctx, "orders", 0)
	require.NoError(t, err)
	return p, log
}

// collect takes messages until the iteration ends, and its error.
func collect(ctx context.Context, p *mirror.Partition, from int64, opts ...mirror.ReadOption) (list []kafka.Message, err error) {
	for m, err := range p.Records(ctx, from, opts...) {
		if err != nil {
			return list, err
		}
		list = append(list, m)
	}
	return list, nil
}

func offsets(list []kafka.Message) (all []int64) {
	for _, m := range list {
		all = append(all, m.Offset)
	}
	return all
}

// values is a batch with a record for each value, by default of no producer.
func values(h batch.Header, list ...string) []byte {
	if h.ProducerID == 0 {
		h.ProducerID = -1
	}
	var records []batch.Record
	for _, v := range list {
		records = append(records, batch.Record{Value: []byte(v)})
	}
	return batch.Append(nil, h, records)
}

// txn is a transactional batch of n records.
func txn(base int64, pid int64, n int) []byte {
	return batch.Append(nil, batch.Header{Base: base, ProducerID: pid, Attributes: batch.Transactional}, make([]batch.Record, n))
}

func marker(base int64, pid int64, kind int16) []byte {
	return batch.AppendControl(nil, base, 0, pid, 0, batch.Control{Type: kind}, 0)
}

// encoded is what kafka-go's own encoder makes of the records, with a codec.
func encoded(t *testing.T, codec compress.Compression, base int64, records ...protocol.Record) []byte {
	t.Helper()
	var b bytes.Buffer
	set := protocol.RecordSet{Version: 2, Attributes: protocol.Attributes(codec), Records: protocol.NewRecordReader(records...)}
	_, err := set.WriteTo(&b)
	require.NoError(t, err)
	raw := b.Bytes()[4:]
	batch.SetBase(raw, base)
	return raw
}

func TestRecordsOfEachCodecComeAsTheyWereProduced(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	long := []byte(strings.Repeat("a long value that compresses well ", 10_000)) // one batch is larger than a chunk
	for codec := compress.None; codec <= compress.Zstd; codec++ {
		t.Run(codec.String(), func(t *testing.T) {
			first := encoded(t, codec, 100,
				protocol.Record{Time: at, Key: protocol.NewBytes([]byte("k")), Value: protocol.NewBytes([]byte("v"))},
				protocol.Record{Time: at.Add(time.Second), Value: protocol.NewBytes([]byte{})},
				protocol.Record{Time: at, Key: protocol.NewBytes([]byte("deleted"))},
				protocol.Record{Time: at, Value: protocol.NewBytes(long), Headers: []protocol.Header{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Key: "", Value: []byte{}}}},
			)
			second := encoded(t, codec, 110, protocol.Record{Time: at, Value: protocol.NewBytes([]byte("after a gap"))})
			p, _ := partitionOf(t, first, second)
			got, err := collect(t.Context(), p, 0)
			require.NoError(t, err)
			want := []kafka.Message{
				{Offset: 100, Key: []byte("k"), Value: []byte("v"), Time: at},
				{Offset: 101, Value: []byte{}, Time: at.Add(time.Second)},
				{Offset: 102, Key: []byte("deleted"), Time: at},
				{Offset: 103, Value: long, Time: at, Headers: []kafka.Header{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Key: "", Value: []byte{}}}},
				{Offset: 110, Value: []byte("after a gap"), Time: at},
			}
			for i := range want {
				want[i].Topic, want[i].HighWaterMark = "orders", 111
			}
			require.Equal(t, want, got)

			got, err = collect(t.Context(), p, 102)
			require.NoError(t, err)
			require.Equal(t, want[2:], got, "from inside a batch")
			got, err = collect(t.Context(), p, 105)
			require.NoError(t, err)
			require.Equal(t, want[4:], got, "from inside a gap")
			got, err = collect(t.Context(), p, 111)
			require.NoError(t, err)
			require.Empty(t, got)
		})
	}
}

func TestMessagesBelongToTheCaller(t *testing.T) {
	p, _ := partitionOf(t, values(batch.Header{}, "one"), values(batch.Header{Base: 1}, "two"))
	got, err := collect(t.Context(), p, 0)
	require.NoError(t, err)
	clear(got[0].Value)
	again, err := collect(t.Context(), p, 0)
	require.NoError(t, err)
	require.Equal(t, "one", string(again[0].Value))
	require.Equal(t, "two", string(got[1].Value))
}

func TestTimeIsTheBatchsForLogAppendTime(t *testing.T) {
	records := []batch.Record{{TimestampDelta: 1}, {TimestampDelta: 2}}
	created := batch.Append(nil, batch.Header{ProducerID: -1, BaseTimestamp: 1000}, records)
	stamped := batch.Append(nil, batch.Header{Base: 2, ProducerID: -1, BaseTimestamp: 1000, MaxTimestamp: 5000, Attributes: batch.LogAppendTime}, records)
	none := batch.Append(nil, batch.Header{Base: 4, ProducerID: -1, BaseTimestamp: -1, MaxTimestamp: -1}, make([]batch.Record, 1))
	p, _ := partitionOf(t, created, stamped, none)
	got, err := collect(t.Context(), p, 0)
	require.NoError(t, err)
	var times []int64
	for _, m := range got[:4] {
		times = append(times, m.Time.UnixMilli())
	}
	require.Equal(t, []int64{1001, 1002, 5000, 5000}, times)
	require.True(t, got[4].Time.IsZero())
}

func TestReadCommittedLeavesOutWhatWasAbortedOrIsOpen(t *testing.T) {
	p, _ := partitionOf(t,
		txn(0, 1, 2),                        // aborted at 4
		values(batch.Header{Base: 2}, "a"),  // of no transaction
		txn(3, 2, 1),                        // committed at 7
		marker(4, 1, batch.ControlAbort),    // the first one
		txn(5, 1, 1),                        // of the same producer again, committed at 6
		marker(6, 1, batch.ControlCommit),   // it
		marker(7, 2, batch.ControlCommit),   // the one that began at 3
		txn(8, 2, 1),                        // aborted at 9
		marker(9, 2, batch.ControlAbort),    // it
		txn(10, 1, 1),                       // open
		values(batch.Header{Base: 11}, "b"), // behind the last stable offset
	)
	got, err := collect(t.Context(), p, 0)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3, 5}, offsets(got))
	got, err = collect(t.Context(), p, 0, mirror.ReadUncommitted())
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1, 2, 3, 5, 8, 10, 11}, offsets(got), "all but control records")
	got, err = collect(t.Context(), p, 4)
	require.NoError(t, err)
	require.Equal(t, []int64{5}, offsets(got))
}

func TestAnOpenTransactionBehindAGapIsNotRead(t *testing.T) {
	p, _ := partitionOf(t, values(batch.Header{}, "a"), txn(5, 1, 1))
	got, err := collect(t.Context(), p, 0)
	require.NoError(t, err)
	require.Equal(t, []int64{0}, offsets(got))
}

func TestBatchesThatCompactionEmptiedArePassed(t *testing.T) {
	p, _ := partitionOf(t,
		values(batch.Header{}, "a"),
		values(batch.Header{Base: 1, LastOffsetDelta: 9}),
		batch.Append(nil, batch.Header{Base: 11, ProducerID: -1, LastOffsetDelta: 9}, []batch.Record{{OffsetDelta: 3}, {OffsetDelta: 7}}),
		values(batch.Header{Base: 21, LastOffsetDelta: 4}),
	)
	got, err := collect(t.Context(), p, 0)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 14, 18}, offsets(got))
}

func TestAnOffsetOutOfRangeNamesTheBounds(t *testing.T) {
	p, log := partitionOf(t, values(batch.Header{}, "a", "b", "c"))
	require.NoError(t, log.AdvanceStart(t.Context(), 1))
	for _, from := range []int64{-1, 0, 4} {
		got, err := collect(t.Context(), p, from)
		require.ErrorIs(t, err, mirror.ErrOutOfRange)
		require.EqualError(t, err, fmt.Sprintf("records of orders-0 from offset %d, log is [1, 3): offset out of range", from))
		require.Empty(t, got)
	}
	got, err := collect(t.Context(), p, 1)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2}, offsets(got), "a start inside a batch")
}

func TestTheLoopMayEndAnywhere(t *testing.T) {
	p, _ := partitionOf(t, values(batch.Header{}, "a", "b"), values(batch.Header{Base: 2}, "c"))
	for stop := range int64(3) {
		var last int64
		for m, err := range p.Records(t.Context(), 0) {
			require.NoError(t, err)
			if last = m.Offset; last == stop {
				break
			}
		}
		require.Equal(t, stop, last)
	}
}

// following runs Records with Follow in a goroutine; ended gives what ends it.
func following(ctx context.Context, p *mirror.Partition, from int64, opts ...mirror.ReadOption) (messages <-chan kafka.Message, ended <-chan error) {
	ch, end := make(chan kafka.Message, 1000), make(chan error, 1)
	go func() {
		for m, err := range p.Records(ctx, from, append(opts, mirror.Follow())...) {
			if err != nil {
				end <- err
				return
			}
			ch <- m
		}
		end <- nil
	}()
	return ch, end
}

// arrived takes the offsets that have arrived once everybody waits.
func arrived(ch <-chan kafka.Message) (all []int64) {
	synctest.Wait()
	for {
		select {
		case m := <-ch:
			all = append(all, m.Offset)
		default:
			return all
		}
	}
}

// add appends through the partition, as a local writer does.
func add(t *testing.T, p *mirror.Partition, b []byte) {
	t.Helper()
	_, err := p.Append(t.Context(), b)
	require.NoError(t, err)
}

func TestFollowWaitsForMoreUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := partitionOf(t, values(batch.Header{}, "a"))
		ctx, cancel := context.WithCancel(t.Context())
		got, ended := following(ctx, p, 0)
		require.Equal(t, []int64{0}, arrived(got))
		add(t, p, values(batch.Header{}, "b", "c"))
		require.Equal(t, []int64{1, 2}, arrived(got))
		require.Empty(t, arrived(got))
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestFollowYieldsATransactionWhenItIsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := partitionOf(t, values(batch.Header{}, "a"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got, _ := following(ctx, p, 0)
		add(t, p, txn(0, 1, 2))
		add(t, p, txn(0, 2, 1))
		add(t, p, values(batch.Header{}, "b"))
		require.Equal(t, []int64{0}, arrived(got))
		add(t, p, marker(0, 2, batch.ControlAbort))
		require.Empty(t, arrived(got))
		add(t, p, marker(0, 1, batch.ControlCommit))
		require.Equal(t, []int64{1, 2, 4}, arrived(got))
	})
}

func TestFollowersAreToldOfACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := partitionOf(t, values(batch.Header{}, "a", "b"), values(batch.Header{Base: 2}, "c", "d"), values(batch.Header{Base: 4}, "e"))
		got, ended := following(t.Context(), p, 1)
		require.Equal(t, []int64{1, 2, 3, 4}, arrived(got))
		require.NoError(t, p.Truncate(t.Context(), 3))
		var cut *mirror.CutError
		require.ErrorAs(t, <-ended, &cut)
		require.Equal(t, mirror.CutError{Topic: "orders", From: 2, To: 5}, *cut)
		require.EqualError(t, cut, "orders-0 was cut: the records read at offsets [2, 5) are gone; undo what they led to and read on from 2")
	})
}

// A cut may be over and other records may stand there before the reader looks again: the epochs tell.
func TestReadersAreToldOfACutThatWasRefilled(t *testing.T) {
	at := func(base int64, epoch int32, list ...string) []byte {
		return values(batch.Header{Base: base, LeaderEpoch: epoch}, list...)
	}
	for _, c := range []struct {
		name   string
		before [][]byte
		cut    int64
		refill [][]byte
		want   *mirror.CutError // nil: the reader goes on
	}{
		{"with a higher epoch", [][]byte{at(0, 3, "a", "b"), at(2, 3, "c")}, 2, [][]byte{at(2, 5, "x", "y", "z")},
			&mirror.CutError{Topic: "orders", From: 2, To: 3}},
		{"with a lower epoch than what was cut", [][]byte{at(0, 3, "a", "b"), at(2, 5, "c")}, 2, [][]byte{at(2, 3, "x", "y", "z")},
			&mirror.CutError{Topic: "orders", From: 2, To: 3}},
		{"below several epochs", [][]byte{at(0, 1, "a", "b"), at(2, 2, "c"), at(3, 3, "d")}, 0, [][]byte{at(0, 4, "w", "x", "y", "z", "!")},
			&mirror.CutError{Topic: "orders", From: 0, To: 4}},
		{"with what was there before", [][]byte{at(0, 3, "a", "b"), at(2, 3, "c")}, 2, [][]byte{at(2, 3, "c"), at(3, 5, "z")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, log := partitionOf(t, c.before...)
			next, stop := iter.Pull2(p.Records(t.Context(), 0, mirror.Follow()))
			defer stop()
			_, end := p.Bounds()
			for want := range end {
				m, err, _ := next()
				require.NoError(t, err)
				require.Equal(t, want, m.Offset)
			}
			require.NoError(t, p.Truncate(t.Context(), c.cut))
			for _, b := range c.refill {
				require.NoError(t, log.Append(t.Context(), b))
			}
			m, err, _ := next()
			if c.want == nil {
				require.NoError(t, err)
				require.Equal(t, end, m.Offset)
				return
			}
			var cut *mirror.CutError
			require.ErrorAs(t, err, &cut)
			require.Equal(t, c.want, cut)
		})
	}
}

// A cut that begins below where this iteration did: it is told from where it begins, as somebody may have read what lies there.
func TestACutIsToldFromWhereItBegins(t *testing.T) {
	at := func(base int64, epoch int32, list ...string) []byte {
		return values(batch.Header{Base: base, LeaderEpoch: epoch}, list...)
	}
	before := [][]byte{at(0, 1, "a"), at(1, 1, "b"), at(2, 3, "c"), at(3, 3, "d"), at(4, 5, "e"), at(5, 5, "f"), at(6, 5, "g")}
	for name, c := range map[string]struct {
		from, start, cut, want int64
		refill                 int32 // leader epoch, 9 if not given
		empty                  bool  // not refilled
	}{
		"in the epoch that is read":           {from: 6, cut: 5, want: 5},
		"where it began":                      {from: 4, cut: 4, want: 4},
		"in the epoch below":                  {from: 5, cut: 3, want: 3},
		"where an epoch begins":               {from: 5, cut: 2, want: 2},
		"in the first epoch":                  {from: 6, cut: 1, want: 1},
		"with nothing read yet":               {from: 7, cut: 3, want: 3},
		"all of it":                           {from: 6, cut: 0, want: 0},
		"all of a log that begins later":      {from: 6, start: 3, cut: 3, want: 3},
		"in the epoch where the log begins":   {from: 6, start: 3, cut: 4, want: 4},
		"below the log's start, and refilled": {from: 6, start: 3, cut: 1, want: 1},
		"below the log's start":               {from: 6, start: 3, cut: 1, empty: true, want: 1},
		"an epoch goes on that had ended":     {from: 6, cut: 4, refill: 3, want: 4},
		"all of it, for lower epochs":         {from: 6, cut: 0, refill: -1, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, log := partitionOf(t, before...)
				require.NoError(t, p.AdvanceStart(t.Context(), c.start))
				got, ended := following(t.Context(), p, c.from)
				require.Len(t, arrived(got), int(7-c.from))
				require.NoError(t, p.Truncate(t.Context(), c.cut))
				for offset := c.cut; offset < 9 && !c.empty; offset++ {
					require.NoError(t, log.Append(t.Context(), at(offset, cmp.Or(c.refill, 9), "x")))
				}
				var cut *mirror.CutError
				require.ErrorAs(t, <-ended, &cut)
				require.Equal(t, mirror.CutError{Topic: "orders", From: c.want, To: 7}, *cut)
				for _, err := range p.Records(t.Context(), cut.From) { // as the error says
					require.NoError(t, err)
				}
			})
		})
	}
}

// While a reader undoes what a cut took, the source may lose more: the loop is told of that too.
func TestALoopThatGoesOnAfterACutIsToldOfTheNext(t *testing.T) {
	at := func(base int64, epoch int32, list ...string) []byte {
		return values(batch.Header{Base: base, LeaderEpoch: epoch}, list...)
	}
	for _, c := range []struct{ second, start, want int64 }{{second: 2, want: 2}, {second: 0, want: 0}, {second: 3, want: -1}, {second: 4, want: -1}, {second: 2, start: 1, want: 2}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			p, log := partitionOf(t, at(0, 1, "a"), at(1, 1, "b"), at(2, 2, "c"), at(3, 2, "d"), at(4, 3, "e"))
			require.NoError(t, p.AdvanceStart(t.Context(), c.start))
			next, stop := iter.Pull2(p.Records(t.Context(), c.start, mirror.Follow()))
			defer stop()
			read := func(values ...string) {
				t.Helper()
				for _, v := range values {
					m, err, _ := next()
					require.NoError(t, err)
					require.Equal(t, v, string(m.Value))
				}
			}
			told := func(from, to int64) {
				t.Helper()
				_, err, _ := next()
				var cut *mirror.CutError
				require.ErrorAs(t, err, &cut)
				require.Equal(t, mirror.CutError{Topic: "orders", From: from, To: to}, *cut)
			}
			read([]string{"a", "b", "c", "d", "e"}[c.start:]...)
			require.NoError(t, p.Truncate(t.Context(), 3))
			require.NoError(t, log.Append(t.Context(), slices.Concat(at(3, 4, "x"), at(4, 4, "y"))))
			told(3, 5)
			require.NoError(t, p.Truncate(t.Context(), c.second))
			for offset := c.second; offset < 5; offset++ {
				require.NoError(t, log.Append(t.Context(), at(offset, 5, fmt.Sprint(offset))))
			}
			if c.want >= 0 {
				told(c.want, 3)
			}
			if c.second == 4 {
				read("x")
			}
			for offset := c.second; offset < 5; offset++ {
				read(fmt.Sprint(offset))
			}
		})
	}
}

func TestRetentionThatOvertakesAReaderIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, log := partitionOf(t, values(batch.Header{}, "a"))
		got, ended := following(t.Context(), p, 0)
		require.Equal(t, []int64{0}, arrived(got))
		require.NoError(t, log.Append(t.Context(), values(batch.Header{Base: 1}, "b", "c")))
		require.NoError(t, log.AdvanceStart(t.Context(), 2))
		add(t, p, values(batch.Header{}, "d"))
		err := <-ended
		require.ErrorIs(t, err, mirror.ErrOutOfRange)
		require.EqualError(t, err, "read orders-0 at offset 1, log is [2, 4): offset out of range")
	})
}

func TestDamagedBatchesAreNamed(t *testing.T) {
	good := values(batch.Header{}, "a")
	value := protocol.NewBytes([]byte(strings.Repeat("v", 1000)))
	damage := func(codec compress.Compression, at int, seal bool) []byte {
		b := encoded(t, codec, 1, protocol.Record{Value: value})
		b[at] ^= 0xff
		if seal {
			binary.BigEndian.PutUint32(b[17:], batch.Sum(b))
		}
		return b
	}
	for _, c := range []struct {
		name  string
		bytes []byte
	}{
		{"flipped bits", damage(compress.None, 70, false)},
		{"length of a record", damage(compress.None, batch.HeaderSize, true)},
		{"fewer records than promised", damage(compress.None, 60, true)},
		{"gzip", damage(compress.Gzip, 75, true)},
		{"snappy", damage(compress.Snappy, 82, true)},
		{"lz4", damage(compress.Lz4, 70, true)},
		{"zstd", damage(compress.Zstd, 70, true)},
		{"unknown codec", func() []byte {
			b := values(batch.Header{Base: 1}, "x")
			b[22] |= 7
			binary.BigEndian.PutUint32(b[17:], batch.Sum(b))
			return b
		}()},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := partitionOf(t, good, c.bytes)
			got, err := collect(t.Context(), p, 0)
			require.ErrorContains(t, err, "records of orders-0 at offset 1: ")
			require.ErrorIs(t, err, batch.ErrCorrupt)
			require.EqualValues(t, 0, got[0].Offset, "what comes before is yielded")
		})
	}
}

// lying answers the log's first batch for any offset.
type lying struct {
	*memlog.Host
	now bool
}

type lyingLog struct {
	mirror.Log
	host *lying
}

func (h *lying) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	l, err := h.Host.OpenLog(ctx, topic, partition)
	return &lyingLog{l, h}, err
}

func (l *lyingLog) Read(ctx context.Context, offset int64, buf []byte) (int, error) {
	if l.host.now {
		offset = 0
	}
	return l.Log.Read(ctx, offset, buf)
}

func TestAHostThatAnswersOtherBatchesIsNamed(t *testing.T) {
	ctx := t.Context()
	host := &lying{Host: memlog.New()}
	require.NoError(t, host.EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: 1}))
	c, err := mirror.Open(ctx, host)
	require.NoError(t, err)
	defer c.Close()
	p, err := c.Partition(ctx, "orders", 0)
	require.NoError(t, err)
	for range 3 {
		add(t, p, values(batch.Header{}, "a"))
	}
	host.now = true
	got, err := collect(ctx, p, 1)
	require.EqualError(t, err, "records of orders-0 at offset 1: record batch is corrupt: the host answered batch [0, 1)")
	require.Empty(t, got)
	_, _, err = p.OffsetForTime(ctx, time.UnixMilli(1))
	require.ErrorIs(t, err, batch.ErrCorrupt)
}

// recoded gives a batch the body and the codec.
func recoded(header []byte, codec compress.Compression, records int, body []byte) []byte {
	b := append(bytes.Clone(header[:batch.HeaderSize]), body...)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-batch.LengthSize))
	b[22] = b[22]&^7 | byte(codec)
	binary.BigEndian.PutUint32(b[57:], uint32(records))
	binary.BigEndian.PutUint32(b[23:], uint32(records-1))
	binary.BigEndian.PutUint32(b[17:], batch.Sum(b))
	return b
}

func TestDecompressionTakesMemoryForOneRecordAtATime(t *testing.T) {
	var body bytes.Buffer
	z := compress.Zstd.Codec().NewWriter(&body)
	const records, size = 64, 1 << 20 // 64 MB of zeros in a few KB
	value := make([]byte, size)
	for i := range records {
		one := []byte{0, 0}
		one = binary.AppendVarint(one, int64(i))
		one = binary.AppendVarint(one, -1)
		one = binary.AppendVarint(one, size)
		one = append(one, value...)
		one = append(one, 0)
		_, err := z.Write(append(binary.AppendVarint(nil, int64(len(one))), one...))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	p, _ := partitionOf(t, recoded(values(batch.Header{}), compress.Zstd, records, body.Bytes()))
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before, most, n := heap(), uint64(0), 0
	for m, err := range p.Records(t.Context(), 0) {
		require.NoError(t, err)
		require.Len(t, m.Value, size)
		if n++; n%16 == 0 {
			most = max(most, heap())
		}
	}
	require.Equal(t, records, n)
	require.Less(t, most, before+24<<20)
}

func TestClaimsAreNotBelieved(t *testing.T) {
	header := values(batch.Header{})
	claim := append(binary.AppendVarint(nil, 1<<31), 0, 0, 0)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(claim)
	_ = z.Close()
	xerial := append([]byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"), 0xff, 0xff, 0xff, 0xf0, 1, 2, 3)
	block := binary.AppendUvarint(nil, 1<<32-1)
	framed := binary.BigEndian.AppendUint32([]byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"), uint32(len(block)))
	framed = append(framed, block...)
	for name, b := range map[string][]byte{
		"record of 2 GiB":           recoded(header, compress.None, 1, claim),
		"record of 2 GiB, zipped":   recoded(header, compress.Gzip, 1, zipped.Bytes()),
		"2^31 records":              recoded(header, compress.None, 1<<31-1, nil),
		"snappy frame of 4 GiB":     recoded(header, compress.Snappy, 1, xerial),
		"snappy block of 4 GiB":     recoded(header, compress.Snappy, 1, block),
		"snappy block of 4 GiB too": recoded(header, compress.Snappy, 1, framed),
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := partitionOf(t, b)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := collect(t.Context(), p, 0)
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, batch.ErrCorrupt)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
		})
	}
}

func TestSnappyBlocksOfAnyDensityAreRead(t *testing.T) {
	for _, size := range []int{0, 1, 100, 1 << 20} {
		one := batch.Append(nil, batch.Header{ProducerID: -1}, []batch.Record{{Value: make([]byte, size)}})
		block := snappy.Encode(nil, one[batch.HeaderSize:]) // one block without framing
		p, _ := partitionOf(t, recoded(one, compress.Snappy, 1, block))
		got, err := collect(t.Context(), p, 0)
		require.NoError(t, err)
		require.Len(t, got[0].Value, size)
	}
}

func TestOffsetForTime(t *testing.T) {
	records := func(deltas ...int64) (list []batch.Record) {
		for _, d := range deltas {
			list = append(list, batch.Record{TimestampDelta: d})
		}
		return list
	}
	p, log := partitionOf(t,
		batch.Append(nil, batch.Header{ProducerID: -1, BaseTimestamp: 1000}, records(0, 500, 100)), // 0..2
		batch.Append(nil, batch.Header{Base: 5, ProducerID: -1, BaseTimestamp: 800}, records(0)),   // earlier than the one before
		batch.Append(nil, batch.Header{Base: 6, ProducerID: -1, BaseTimestamp: 1, MaxTimestamp: 2000, Attributes: batch.LogAppendTime}, records(0, 1)),
		batch.Append(nil, batch.Header{Base: 8, ProducerID: -1, MaxTimestamp: 9000, LastOffsetDelta: 3}, nil), // no record left
	)
	for _, c := range []struct{ ms, offset, at int64 }{
		{-5, 0, 1000}, {0, 0, 1000}, {1000, 0, 1000}, {1001, 1, 1500}, {1500, 1, 1500}, {1501, 6, 2000}, {2000, 6, 2000}, {2001, -1, 0},
	} {
		offset, at, err := p.OffsetForTime(t.Context(), time.UnixMilli(c.ms))
		require.NoError(t, err)
		require.Equal(t, c.offset, offset, "time %d", c.ms)
		if c.offset >= 0 {
			require.Equal(t, c.at, at.UnixMilli())
		} else {
			require.True(t, at.IsZero())
		}
	}
	offset, _, err := p.OffsetForTime(t.Context(), time.UnixMilli(1500).Add(1))
	require.NoError(t, err)
	require.EqualValues(t, 6, offset, "a nanosecond later")

	require.NoError(t, log.AdvanceStart(t.Context(), 2)) // past the only record of the batch that is late enough
	offset, _, err = p.OffsetForTime(t.Context(), time.UnixMilli(1200))
	require.NoError(t, err)
	require.EqualValues(t, 6, offset)
}

// indexed has the optional look-up by time, which goes by whole batches.
type indexed struct{ *memlog.Host }

type indexedLog struct{ mirror.Log }

func (h indexed) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	l, err := h.Host.OpenLog(ctx, topic, partition)
	return indexedLog{l}, err
}

func (l indexedLog) OffsetForTime(ctx context.Context, t time.Time) (int64, error) {
	start, _ := l.Bounds()
	buf := make([]byte, 1<<10)
	n, err := l.Read(ctx, start, buf)
	for b := range mirror.Batches(buf[:n]) {
		if !b.MaxTime.Before(t) {
			return b.Base, err
		}
	}
	return -1, err
}

func TestOffsetForTimeGoesOnFromWhatTheHostFinds(t *testing.T) {
	ctx := t.Context()
	host := indexed{memlog.New()}
	require.NoError(t, host.EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: 1}))
	log, err := host.OpenLog(ctx, "orders", 0)
	require.NoError(t, err)
	for base := int64(0); base < 9; base += 3 {
		require.NoError(t, log.Append(ctx, batch.Append(nil, batch.Header{Base: base, ProducerID: -1, BaseTimestamp: 1000 + base},
			[]batch.Record{{}, {TimestampDelta: 1}, {TimestampDelta: 2}})))
	}
	require.NoError(t, log.AdvanceStart(ctx, 1))
	c, err := mirror.Open(ctx, host)
	require.NoError(t, err)
	defer c.Close()
	p, err := c.Partition(ctx, "orders", 0)
	require.NoError(t, err)
	for ms, want := range map[int64]int64{0: 1, 1000: 1, 1002: 2, 1003: 3, 1007: 7, 1009: -1} {
		offset, _, err := p.OffsetForTime(ctx, time.UnixMilli(ms))
		require.NoError(t, err)
		require.Equal(t, want, offset, "time %d", ms)
	}
}

// Chunks begin and end anywhere in a log: whatever its batches' sizes, all of its records come, in order.
func TestRecordsOfAnyLog(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var batches [][]byte
		var want []int64
		base := int64(0)
		for range 60 {
			base += rng.Int64N(3)
			n := 1 + rng.IntN(5)
			list := make([]protocol.Record, n)
			for i := range list {
				list[i].Value = protocol.NewBytes(bytes.Repeat([]byte{byte(rng.Uint32())}, rng.IntN(40_000)))
				want = append(want, base+int64(i))
			}
			b := encoded(t, compress.Compression(rng.IntN(5)), base, list...)
			batch.SetLeaderEpoch(b, rng.Int32N(6)-1) // older logs have epochs that fall
			batches = append(batches, b)
			base += int64(n)
		}
		p, _ := partitionOf(t, batches...)
		got, err := collect(t.Context(), p, 0)
		require.NoError(t, err)
		require.Equal(t, want, offsets(got), "seed %d", seed)
		from := rng.IntN(len(want))
		got, err = collect(t.Context(), p, want[from])
		require.NoError(t, err)
		require.Equal(t, want[from:], offsets(got), "seed %d", seed)
	}
}

func BenchmarkRecords(b *testing.B) {
	for codec := compress.None; codec <= compress.Zstd; codec++ {
		b.Run(codec.String(), func(b *testing.B) {
			host := memlog.New()
			ctx := b.Context()
			require.NoError(b, host.EnsureTopic(ctx, mirror.Topic{Name: "orders", Partitions: 1}))
			log, err := host.OpenLog(ctx, "orders", 0)
			require.NoError(b, err)
			rng := rand.New(rand.NewPCG(0, 0))
			const n = 1 << 10
			for base := int64(0); base < n; base += 16 {
				var list []protocol.Record
				for range 16 {
					value := make([]byte, 1000)
					for i := range value {
						value[i] = 'a' + byte(rng.Uint32()%16)
					}
					list = append(list, protocol.Record{Value: protocol.NewBytes(value)})
				}
				var buf bytes.Buffer
				set := protocol.RecordSet{Version: 2, Attributes: protocol.Attributes(codec), Records: protocol.NewRecordReader(list...)}
				_, err := set.WriteTo(&buf)
				require.NoError(b, err)
				raw := buf.Bytes()[4:]
				batch.SetBase(raw, base)
				require.NoError(b, log.Append(ctx, raw))
			}
			c, err := mirror.Open(ctx, host)
			require.NoError(b, err)
			defer c.Close()
			p, err := c.Partition(ctx, "orders", 0)
			require.NoError(b, err)
			b.SetBytes(n * 1000)
			b.ReportAllocs()
			for b.Loop() {
				for m, err := range p.Records(ctx, 0) {
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Discard.Write(m.Value)
				}
			}
		})
	}
}
