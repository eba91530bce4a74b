package logtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/memlog"
)

// broken is memlog with one sentence of the contract broken: each field that is set takes the place of a method.
type broken struct {
	*memlog.Host
	faults faults

	mu     sync.Mutex
	synced map[string]int64  // end at the last Sync, by topic
	cut    map[string][]byte // what TruncateTo or Reset dropped last, by topic
}

type faults struct {
	clusterID func(h *broken) string
	topics    func(h *broken, ctx context.Context) ([]mirror.Topic, error)
	ensure    func(h *broken, ctx context.Context, t mirror.Topic) error
	openLog   func(h *broken, ctx context.Context, topic string, partition int32) (mirror.Log, error)
	crashed   func(h, next *broken) // changes what a crash left
	reopened  func(h *broken)       // changes what an orderly end left

	bounds   func(l *brokenLog) (start, end int64)
	append   func(l *brokenLog, ctx context.Context, b []byte) error
	read     func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error)
	sync     func(l *brokenLog, ctx context.Context) error
	truncate func(l *brokenLog, ctx context.Context, end int64) error
	advance  func(l *brokenLog, ctx context.Context, start int64) error
	reset    func(l *brokenLog, ctx context.Context, start int64) error
	close    func(l *brokenLog) error
}

func (h *broken) ClusterID() string {
	if h.faults.clusterID != nil {
		return h.faults.clusterID(h)
	}
	return h.Host.ClusterID()
}

func (h *broken) Topics(ctx context.Context) ([]mirror.Topic, error) {
	if h.faults.topics != nil {
		return h.faults.topics(h, ctx)
	}
	return h.Host.Topics(ctx)
}

func (h *broken) EnsureTopic(ctx context.Context, t mirror.Topic) error {
	if h.faults.ensure != nil {
		return h.faults.ensure(h, ctx, t)
	}
	return h.Host.EnsureTopic(ctx, t)
}

func (h *broken) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	if h.faults.openLog != nil {
		return h.faults.openLog(h, ctx, topic, partition)
	}
	l, err := h.Host.OpenLog(ctx, topic, partition)
	if err != nil {
		return nil, err
	}
	return &brokenLog{Log: l, host: h, topic: topic}, nil
}

type brokenLog struct {
	mirror.Log
	host  *broken
	topic string

	// What some of the faults remember.
	end    atomic.Int64
	number atomic.Int64
	kept   []byte
}

func (l *brokenLog) Bounds() (start, end int64) {
	if f := l.host.faults.bounds; f != nil {
		return f(l)
	}
	return l.Log.Bounds()
}

func (l *brokenLog) Append(ctx context.Context, b []byte) error {
	if f := l.host.faults.append; f != nil {
		return f(l, ctx, b)
	}
	return l.Log.Append(ctx, b)
}

func (l *brokenLog) Read(ctx context.Context, offset int64, buf []byte) (int, error) {
	if f := l.host.faults.read; f != nil {
		return f(l, ctx, offset, buf)
	}
	return l.Log.Read(ctx, offset, buf)
}

func (l *brokenLog) Sync(ctx context.Context) error {
	if f := l.host.faults.sync; f != nil {
		return f(l, ctx)
	}
	_, end := l.Log.Bounds()
	l.host.mu.Lock()
	l.host.synced[l.topic] = end
	l.host.mu.Unlock()
	return l.Log.Sync(ctx)
}

func (l *brokenLog) TruncateTo(ctx context.Context, end int64) error {
	if f := l.host.faults.truncate; f != nil {
		return f(l, ctx, end)
	}
	return l.Log.TruncateTo(ctx, end)
}

func (l *brokenLog) AdvanceStart(ctx context.Context, start int64) error {
	if f := l.host.faults.advance; f != nil {
		return f(l, ctx, start)
	}
	return l.Log.AdvanceStart(ctx, start)
}

func (l *brokenLog) Reset(ctx context.Context, start int64) error {
	if f := l.host.faults.reset; f != nil {
		return f(l, ctx, start)
	}
	return l.Log.Reset(ctx, start)
}

func (l *brokenLog) Close() error {
	if f := l.host.faults.close; f != nil {
		return f(l)
	}
	return l.Log.Close()
}

// lingers gives way to others until something has happened, as a slow disk does, but not for ever: longer than a busy machine keeps
// one of them from running.
func (l *brokenLog) lingers(until func() bool) {
	for tries := 0; tries < 100_000 && !until(); tries++ {
		runtime.Gosched()
	}
}

// held is everything in the log from offset on.
func (l *brokenLog) held(offset int64) []byte {
	start, _ := l.Log.Bounds()
	buf := make([]byte, 1<<20)
	n, _ := l.Log.Read(context.Background(), max(start, offset), buf)
	return buf[:n]
}

// drops remembers in the host what a cut at end drops.
func (l *brokenLog) drops(end int64) {
	var gone []byte
	for b := range mirror.Batches(l.held(end)) {
		if b.Next > end {
			gone = append(gone, b.Bytes...)
		}
	}
	l.host.mu.Lock()
	l.host.cut[l.topic] = gone
	l.host.mu.Unlock()
}

func (f faults) harness() Harness {
	wrap := func(h *memlog.Host) *broken {
		return &broken{Host: h, faults: f, synced: make(map[string]int64), cut: make(map[string][]byte)}
	}
	good := inMemory()
	return Harness{
		Fresh: func(context.Context) (mirror.Host, error) { return wrap(memlog.New()), nil },
		Reopen: func(_ context.Context, h mirror.Host) (mirror.Host, error) {
			if f.reopened != nil {
				f.reopened(h.(*broken))
			}
			return h, nil
		},
		Crash: func(_ context.Context, h mirror.Host, rng *rand.Rand) (mirror.Host, error) {
			next := wrap(h.(*broken).Crash(rng))
			if f.crashed != nil {
				f.crashed(h.(*broken), next)
			}
			return next, nil
		},
		Full: func(h mirror.Host, full bool) { good.Full(h.(*broken).Host, full) },
	}
}

// resurrect appends to the logs of next what was cut before the crash, where it fits.
func resurrect(h, next *broken) {
	for topic, gone := range h.cut {
		l, err := next.Host.OpenLog(context.Background(), topic, 0)
		if err != nil {
			continue
		}
		for b := range mirror.Batches(gone) {
			_ = l.Append(context.Background(), b.Bytes) // refused where it does not fit
		}
		_ = l.Sync(context.Background())
	}
}

func background() context.Context { return context.Background() }

// Each of these breaks one sentence, and the check that carries it must say so.
var brokenLogs = []struct {
	name   string
	check  string // that must fail
	faults faults
}{
	{"one cluster id for all", "cluster id", faults{
		clusterID: func(*broken) string { return "the-cluster" },
	}},
	{"topics kept by the host", "topics", faults{
		topics: func() func(*broken, context.Context) ([]mirror.Topic, error) {
			cache := make(map[*broken][]mirror.Topic)
			return func(h *broken, ctx context.Context) ([]mirror.Topic, error) {
				list, err := h.Host.Topics(ctx)
				if len(cache[h]) != len(list) {
					cache[h] = list
				}
				return cache[h], err
			}
		}(),
	}},
	{"id not taken over", "ensure topic creates", faults{
		ensure: func(h *broken, ctx context.Context, t mirror.Topic) error {
			if list, _ := h.Host.Topics(ctx); !slices.ContainsFunc(list, func(o mirror.Topic) bool { return o.Name == t.Name }) {
				t.ID = mirror.TopicID{}
			}
			return h.Host.EnsureTopic(ctx, t)
		},
	}},
	{"topic made anew", "ensure topic again", faults{
		ensure: func(h *broken, ctx context.Context, t mirror.Topic) error {
			list, _ := h.Host.Topics(ctx)
			for _, o := range list {
				if o.Name == t.Name && o.Partitions == t.Partitions && o.ID == t.ID {
					_ = h.DeleteTopic(ctx, t.Name)
				}
			}
			return h.Host.EnsureTopic(ctx, t)
		},
	}},
	{"never grown", "ensure topic grows", faults{
		ensure: func(h *broken, ctx context.Context, t mirror.Topic) error {
			list, _ := h.Host.Topics(ctx)
			for _, o := range list {
				if o.Name == t.Name {
					t.Partitions = o.Partitions
				}
			}
			return h.Host.EnsureTopic(ctx, t)
		},
	}},
	{"shrunk", "ensure topic never shrinks", faults{
		topics: func(h *broken, ctx context.Context) ([]mirror.Topic, error) {
			list, err := h.Host.Topics(ctx)
			for i := range list {
				if list[i].Name == "orders" {
					h.mu.Lock()
					list[i].Partitions = int32(h.synced["partitions"])
					h.mu.Unlock()
				}
			}
			return list, err
		},
		ensure: func(h *broken, ctx context.Context, t mirror.Topic) error {
			err := h.Host.EnsureTopic(ctx, t)
			if err == nil && t.Name == "orders" {
				h.mu.Lock()
				h.synced["partitions"] = int64(t.Partitions)
				h.mu.Unlock()
			}
			return err
		},
	}},
	{"conflict overlooked", "topic conflict", faults{
		ensure: func(h *broken, ctx context.Context, t mirror.Topic) error {
			if err := h.Host.EnsureTopic(ctx, t); !errors.Is(err, mirror.ErrTopicConflict) {
				return err
			}
			return nil
		},
	}},
	{"topics made by opening", "unknown partition", faults{
		openLog: func(h *broken, ctx context.Context, topic string, partition int32) (mirror.Log, error) {
			_ = h.Host.EnsureTopic(ctx, mirror.Topic{Name: topic, Partitions: partition + 1})
			return h.Host.OpenLog(ctx, topic, partition)
		},
	}},
	{"handle with bounds of its own", "two handles", faults{
		bounds: func(l *brokenLog) (int64, int64) {
			start, end := l.Log.Bounds()
			if seen := l.end.Load(); seen > 0 && seen < end {
				return start, seen
			}
			return start, end
		},
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			err := l.Log.Append(ctx, b)
			_, end := l.Log.Bounds()
			l.end.Store(end)
			return err
		},
	}},
	{"one log for all partitions", "logs are separate", faults{
		openLog: func(h *broken, ctx context.Context, topic string, _ int32) (mirror.Log, error) {
			return h.Host.OpenLog(ctx, topic, 0)
		},
	}},
	{"empty log without bounds", "new log", faults{
		bounds: func(l *brokenLog) (int64, int64) {
			start, end := l.Log.Bounds()
			if end == 0 {
				return -1, -1
			}
			return start, end
		},
	}},
	{"size limit", "append big", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			if len(b) > 1<<20 {
				return errors.New("message too large")
			}
			return l.Log.Append(ctx, b)
		},
	}},
	{"no gaps", "gaps", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			if _, end := l.Log.Bounds(); int64(binary.BigEndian.Uint64(b)) > end {
				return mirror.ErrOutOfOrder
			}
			return l.Log.Append(ctx, b)
		},
	}},
	{"cancelled append counted", "append with a cancelled context", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			for one := range mirror.Batches(b) {
				if ctx.Err() != nil {
					l.end.Store(one.Next)
				}
			}
			return l.Log.Append(ctx, b)
		},
		bounds: func(l *brokenLog) (int64, int64) {
			start, end := l.Log.Bounds()
			return start, max(end, l.end.Load())
		},
	}},
	{"epochs rewritten", "append verbatim", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			b = bytes.Clone(b)
			for one := range mirror.Batches(b) {
				if one.Epoch == -1 {
					binary.BigEndian.PutUint32(one.Bytes[12:], 0)
				}
			}
			return l.Log.Append(ctx, b)
		},
	}},
	{"slice kept", "append keeps no slice", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			l.kept = b
			return l.Log.Append(ctx, b)
		},
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			if b, end := l.kept, l.end.Load(); b != nil && end == 0 {
				l.end.Store(1)
				if start, _ := l.Log.Bounds(); offset == start { // as if its first read came from the slice
					return copy(buf, b), nil
				}
			}
			return l.Log.Read(ctx, offset, buf)
		},
	}},
	{"end by the number of records", "end", faults{
		bounds: func(l *brokenLog) (int64, int64) {
			start, end := l.Log.Bounds()
			return start, max(start, end-l.number.Load())
		},
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			err := l.Log.Append(ctx, b)
			for one := range mirror.Batches(b) {
				l.number.Store(one.Next - one.Base - int64(binary.BigEndian.Uint32(one.Bytes[57:])))
			}
			return err
		},
	}},
	{"old batches swallowed", "out of order", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			if err := l.Log.Append(ctx, b); !errors.Is(err, mirror.ErrOutOfOrder) {
				return err
			}
			return nil
		},
	}},
	{"order checked by each handle", "out of order across handles", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			err := l.Log.Append(ctx, b)
			base := int64(binary.BigEndian.Uint64(b))
			if errors.Is(err, mirror.ErrOutOfOrder) && base >= l.end.Load() {
				if start, _ := l.Log.Bounds(); base >= start {
					return nil
				}
			}
			if err == nil {
				_, end := l.Log.Bounds()
				l.end.Store(end)
			}
			return err
		},
	}},
	{"failed append counted", "append half-way", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			_, before := l.Log.Bounds()
			err := l.Log.Append(ctx, b)
			_, end := l.Log.Bounds()
			if err != nil && end > before {
				for one := range mirror.Batches(b) {
					l.end.Store(one.Next)
				}
			}
			return err
		},
		bounds: func(l *brokenLog) (int64, int64) {
			start, end := l.Log.Bounds()
			return start, max(end, l.end.Load())
		},
	}},
	{"one batch at a time", "read at a batch", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			n, err := l.Log.Read(ctx, offset, buf)
			for b := range mirror.Batches(buf[:n]) {
				return len(b.Bytes), err
			}
			return n, err
		},
	}},
	{"next batch for an offset inside one", "read inside a batch", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			n, err := l.Log.Read(ctx, offset, buf)
			for b := range mirror.Batches(buf[:n]) {
				if b.Base < offset {
					return copy(buf, buf[len(b.Bytes):n]), err
				}
				break
			}
			return n, err
		},
	}},
	{"gaps out of range", "read in a gap", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			n, err := l.Log.Read(ctx, offset, buf)
			if n >= 8 && int64(binary.BigEndian.Uint64(buf)) > offset {
				return 0, mirror.ErrOutOfRange
			}
			return n, err
		},
	}},
	{"whole batches only", "read a header", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			n, err := l.Log.Read(ctx, offset, buf)
			whole := 0
			for b := range mirror.Batches(buf[:n]) {
				whole += len(b.Bytes)
			}
			return whole, err
		},
	}},
	{"end out of range", "read at the end", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			n, err := l.Log.Read(ctx, offset, buf)
			if n == 0 && err == nil {
				return 0, mirror.ErrOutOfRange
			}
			return n, err
		},
	}},
	{"nothing above the end", "read out of range", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			if _, end := l.Log.Bounds(); offset > end {
				return 0, nil
			}
			return l.Log.Read(ctx, offset, buf)
		},
	}},
	{"batch across the start skipped", "read across the start", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			n, err := l.Log.Read(ctx, offset, buf)
			start, _ := l.Log.Bounds()
			for b := range mirror.Batches(buf[:n]) {
				if b.Base < start {
					return copy(buf, buf[len(b.Bytes):n]), err
				}
				break
			}
			return n, err
		},
	}},
	{"cut after the batch", "truncate", faults{
		truncate: func(l *brokenLog, ctx context.Context, end int64) error {
			for b := range mirror.Batches(l.held(end)) {
				if b.Base < end {
					end = b.Next
				}
				break
			}
			return l.Log.TruncateTo(ctx, end)
		},
	}},
	{"cut below the start empties at the start", "truncate below the start", faults{
		truncate: func(l *brokenLog, ctx context.Context, end int64) error {
			start, _ := l.Log.Bounds()
			return l.Log.TruncateTo(ctx, max(start, end))
		},
	}},
	{"cut above the end is an error", "truncate at or above the end", faults{
		truncate: func(l *brokenLog, ctx context.Context, end int64) error {
			if _, e := l.Log.Bounds(); end > e {
				return mirror.ErrOutOfRange
			}
			return l.Log.TruncateTo(ctx, end)
		},
	}},
	{"cut, and unsupported", "truncate unsupported", faults{
		truncate: func(l *brokenLog, ctx context.Context, end int64) error {
			return errors.Join(l.Log.TruncateTo(ctx, end), errors.ErrUnsupported)
		},
	}},
	{"unsupported, but not where nothing is cut", "truncate unsupported", faults{
		truncate: func(l *brokenLog, _ context.Context, end int64) error {
			if _, last := l.Log.Bounds(); end >= last {
				return nil
			}
			return errors.ErrUnsupported
		},
	}},
	{"start at the beginning of a batch", "advance start", faults{
		advance: func(l *brokenLog, ctx context.Context, start int64) error {
			for b := range mirror.Batches(l.held(start)) {
				if b.Base < start {
					start = b.Base
				}
				break
			}
			return l.Log.AdvanceStart(ctx, start)
		},
	}},
	{"start moves back", "advance start backwards", faults{
		advance: func(l *brokenLog, ctx context.Context, start int64) error {
			if s, _ := l.Log.Bounds(); start < s {
				return l.Log.Reset(ctx, start)
			}
			return l.Log.AdvanceStart(ctx, start)
		},
	}},
	{"start kept within the end", "advance start above the end", faults{
		advance: func(l *brokenLog, ctx context.Context, start int64) error {
			_, end := l.Log.Bounds()
			return l.Log.AdvanceStart(ctx, min(start, end))
		},
	}},
	{"never reset backwards", "reset", faults{
		reset: func(l *brokenLog, ctx context.Context, start int64) error {
			s, _ := l.Log.Bounds()
			return l.Log.Reset(ctx, max(start, s))
		},
	}},
	{"bounds wait for syncs", "bounds never block", faults{
		sync: func(l *brokenLog, ctx context.Context) error {
			l.number.Add(1)
			defer l.number.Add(-1)
			time.Sleep(time.Second) // a slow disk; virtual
			return l.Log.Sync(ctx)
		},
		bounds: func(l *brokenLog) (int64, int64) {
			if l.number.Load() > 0 {
				time.Sleep(6 * time.Second) // longer than slowBounds
			}
			return l.Log.Bounds()
		},
	}},
	{"read in two parts", "read while cutting", faults{
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			n, err := l.Log.Read(ctx, offset, buf)
			if err != nil {
				return n, err
			}
			_, end := l.Log.Bounds()
			cuts := 0
			l.lingers(func() bool {
				_, now := l.Log.Bounds()
				if now < end {
					cuts++
				}
				end = now
				return cuts == 10
			})
			again := make([]byte, n)
			if m, err := l.Log.Read(ctx, offset, again); err == nil && m == n {
				copy(buf[n/2:n], again[n/2:])
			}
			return n, nil
		},
	}},
	{"start lost while it moves", "read while advancing", faults{
		advance: func(l *brokenLog, ctx context.Context, start int64) error {
			l.number.Add(1)
			defer l.number.Add(-1)
			l.lingers(func() bool { return l.end.Load() > 0 })
			return l.Log.AdvanceStart(ctx, start)
		},
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			if l.number.Load() > 0 {
				l.end.Store(1)
				return 0, mirror.ErrOutOfRange
			}
			return l.Log.Read(ctx, offset, buf)
		},
	}},
	{"nothing while an append is under way", "read while appending", faults{
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			l.number.Add(1)
			defer l.number.Add(-1)
			l.lingers(func() bool { return l.end.Load() > 0 })
			return l.Log.Append(ctx, b)
		},
		read: func(l *brokenLog, ctx context.Context, offset int64, buf []byte) (int, error) {
			if l.number.Load() > 0 {
				l.end.Store(1)
				return 0, nil
			}
			return l.Log.Read(ctx, offset, buf)
		},
	}},
	{"one sync at a time", "sync while appending", faults{
		sync: func(l *brokenLog, ctx context.Context) error {
			defer l.number.Add(-1)
			if l.number.Add(1) > 1 {
				return errors.New("busy")
			}
			l.lingers(func() bool { return l.number.Load() > 1 })
			return l.Log.Sync(ctx)
		},
	}},
	{"never closed", "close", faults{
		close: func(*brokenLog) error { return nil },
	}},
	{"close drops what was not synced", "close keeps", faults{
		close: func(l *brokenLog) error {
			l.host.mu.Lock()
			end, ok := l.host.synced[l.topic]
			l.host.mu.Unlock()
			if ok {
				_ = l.Log.TruncateTo(background(), end)
			}
			return l.Log.Close()
		},
	}},
	{"second move of the start ignored", "any history", faults{
		advance: func(l *brokenLog, ctx context.Context, start int64) error {
			if l.number.Add(1) > 1 {
				return nil
			}
			return l.Log.AdvanceStart(ctx, start)
		},
	}},
	{"tail lost in an orderly end", "any history, reopened", faults{
		reopened: func(h *broken) {
			for topic, end := range h.synced {
				if l, err := h.Host.OpenLog(background(), topic, 0); err == nil {
					_ = l.TruncateTo(background(), end)
				}
			}
		},
	}},
	{"cluster id made anew", "crash: topics", faults{
		crashed: func(h, next *broken) { next.faults.clusterID = func(*broken) string { return "another" } },
	}},
	{"sync does nothing", "crash: synced", faults{
		sync: func(*brokenLog, context.Context) error { return nil },
	}},
	{"sync covers the first batch only", "crash: under load", faults{
		sync: func(l *brokenLog, ctx context.Context) error {
			if l.number.Add(1) > 1 {
				return nil
			}
			return l.Log.Sync(ctx)
		},
	}},
	{"sync forgotten after a cut", "crash: any history", faults{
		truncate: func(l *brokenLog, ctx context.Context, end int64) error {
			l.number.Store(1)
			return l.Log.TruncateTo(ctx, end)
		},
		sync: func(l *brokenLog, ctx context.Context) error {
			if l.number.Load() == 1 {
				return nil
			}
			return l.Log.Sync(ctx)
		},
	}},
	{"hole in what was not synced", "crash: not synced", faults{
		crashed: func(h, next *broken) {
			for topic, synced := range h.synced {
				log, err := next.OpenLog(background(), topic, 0)
				if err != nil {
					continue
				}
				l := log.(*brokenLog)
				tail := bytes.Clone(l.held(synced))
				_ = l.Log.TruncateTo(background(), synced)
				n := 0
				for b := range mirror.Batches(tail) {
					if n++; n != 2 {
						_ = l.Log.Append(background(), b.Bytes)
					}
				}
			}
		},
	}},
	{"cut undone", "crash: truncate", faults{
		truncate: func(l *brokenLog, ctx context.Context, end int64) error {
			l.drops(end)
			return l.Log.TruncateTo(ctx, end)
		},
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			l.host.mu.Lock()
			delete(l.host.cut, l.topic)
			l.host.mu.Unlock()
			return l.Log.Append(ctx, b)
		},
		crashed: resurrect,
	}},
	{"old tail behind new bytes", "crash: no resurrection", faults{
		truncate: func(l *brokenLog, ctx context.Context, end int64) error {
			l.drops(end)
			return l.Log.TruncateTo(ctx, end)
		},
		append: func(l *brokenLog, ctx context.Context, b []byte) error {
			l.host.mu.Lock()
			if gone, ok := l.host.cut[l.topic]; ok {
				l.host.cut["\x00"+l.topic] = gone
				delete(l.host.cut, l.topic)
			}
			l.host.mu.Unlock()
			return l.Log.Append(ctx, b)
		},
		crashed: func(h, next *broken) {
			appended := make(map[string][]byte)
			for topic, gone := range h.cut {
				if topic[0] == 0 {
					appended[topic[1:]] = gone
				}
			}
			resurrect(&broken{cut: appended}, next)
		},
	}},
	{"reset undone", "crash: reset", faults{
		reset: func(l *brokenLog, ctx context.Context, start int64) error {
			l.drops(start)
			return l.Log.Reset(ctx, start)
		},
		crashed: resurrect,
	}},
	{"start beyond where it was moved", "crash: advance start", faults{
		advance: func(l *brokenLog, ctx context.Context, start int64) error {
			l.host.mu.Lock()
			l.host.cut[l.topic] = nil
			l.host.mu.Unlock()
			return l.Log.AdvanceStart(ctx, start)
		},
		crashed: func(h, next *broken) {
			for topic := range h.cut {
				if l, err := next.Host.OpenLog(background(), topic, 0); err == nil {
					start, _ := l.Bounds()
					_ = l.AdvanceStart(background(), start+1)
				}
			}
		},
	}},
}

// TestBrokenLogsFail shows that a check fails where its sentence is broken, and says so. In virtual time, as some are slow.
func TestBrokenLogsFail(t *testing.T) {
	for _, c := range brokenLogs {
		t.Run(c.name, func(t *testing.T) {
			i := slices.IndexFunc(checks, func(known check) bool { return known.name == c.check })
			if i < 0 {
				t.Fatalf("there is no check %q", c.check)
			}
			synctest.Test(t, func(t *testing.T) {
				err := checks[i].against(t.Context(), c.faults.harness())
				var f *Failure
				if !errors.As(err, &f) || f.Check != c.check || f.Says == "" {
					t.Fatalf("%q answers %v", c.check, err)
				}
				t.Log(f)
			})
		})
	}
}

func TestEachCheckHasItsBrokenLog(t *testing.T) {
	seen := map[string]bool{"offset for time": true, "topic id": true} // which have tests of their own
	for _, c := range brokenLogs {
		seen[c.check] = true
	}
	for _, c := range checks {
		if !seen[c.name] {
			t.Errorf("nothing shows that %q can fail", c.name)
		}
	}
}

// TestFailuresAreJoined shows what someone sees who calls Check: all that failed, by name.
func TestFailuresAreJoined(t *testing.T) {
	err := Check(t.Context(), faults{clusterID: func(*broken) string { return "the-cluster" }}.harness())
	var f *Failure
	if !errors.As(err, &f) || f.Check != "cluster id" {
		t.Fatalf("Check answers %v", err)
	}
	want := "cluster id: two hosts have the cluster id \"the-cluster\"\n\tthe contract: A host's cluster id is never empty, stays the same, and no two hosts share one."
	if err.Error() != want {
		t.Fatalf("Check answers\n%v\nwant\n%s", err, want)
	}
}

// timed has the optional look-up by time, off by skew.
type timed struct {
	mirror.Log
	skew int64
}

func (l timed) OffsetForTime(ctx context.Context, t time.Time) (int64, error) {
	start, _ := l.Bounds()
	buf := make([]byte, 1<<20)
	n, err := l.Read(ctx, start, buf)
	for b := range mirror.Batches(buf[:n]) {
		if !b.MaxTime.IsZero() && !b.MaxTime.Before(t) {
			return b.Base + l.skew, err
		}
	}
	return -1, err
}

func TestOffsetForTimeIsCheckedWhereALogHasIt(t *testing.T) {
	i := slices.IndexFunc(checks, func(known check) bool { return known.name == "offset for time" })
	for skew, want := range []bool{true, false} {
		h := faults{openLog: func(h *broken, ctx context.Context, topic string, partition int32) (mirror.Log, error) {
			l, err := h.Host.OpenLog(ctx, topic, partition)
			return timed{l, int64(skew)}, err
		}}.harness()
		if err := checks[i].against(t.Context(), h); (err == nil) != want {
			t.Errorf("look-up off by %d: %v", skew, err)
		}
	}
}

// named has the optional id of its topic, a wrong one.
type named struct{ mirror.Log }

func (named) TopicID() mirror.TopicID { return mirror.TopicID{1} }

func TestTopicIDIsCheckedWhereALogHasIt(t *testing.T) {
	i := slices.IndexFunc(checks, func(known check) bool { return known.name == "topic id" })
	h := faults{openLog: func(h *broken, ctx context.Context, topic string, partition int32) (mirror.Log, error) {
		l, err := h.Host.OpenLog(ctx, topic, partition)
		return named{l}, err
	}}.harness()
	if err := checks[i].against(t.Context(), h); err == nil {
		t.Error("a wrong id passes")
	}
}

func TestWhatIsLeftOutIsSaid(t *testing.T) {
	for can, want := range map[need][]string{
		toCut | toReopen | toCrash | toFill:    nil,
		toNotCut | toReopen | toCrash | toFill: {"NOT TESTED, as TruncateTo answers errors.ErrUnsupported: truncate; truncate below the start; truncate at or above the end; read while cutting; crash: truncate; crash: no resurrection"},
		toCut | toCrash:                        {"NOT TESTED, as Harness.Reopen is nil: any history, reopened", "NOT TESTED, as Harness.Full is nil: append half-way"},
	} {
		if got := can.leftOut(); !slices.Equal(got, want) {
			t.Errorf("%b: left out are said to be %q, want %q", can, got, want)
		}
	}
}
