package mirror

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Option is an option of Open and New.
type Option interface{ apply(*options) }

type optionFunc func(*options)

func (f optionFunc) apply(o *options) { f(o) }

// MirrorOption is an option of Coordinator.Mirror; each is an Option too, and then holds for the mirror that New makes.
type MirrorOption interface {
	Option
	applyMirror(*mirrorOptions)
}

type mirrorOptionFunc func(*mirrorOptions)

func (f mirrorOptionFunc) applyMirror(o *mirrorOptions) { f(o) }
func (f mirrorOptionFunc) apply(o *options)             { f(&o.mirror) }

// options are those of a Coordinator. Nothing can fail after validate.
type options struct {
	logger     *slog.Logger
	onEvent    func(Event)
	byteBudget int64
	mirror     mirrorOptions
}

// mirrorOptions are those of one Mirror.
type mirrorOptions struct {
	clientID       string
	fetchBytes     int64
	partitionBytes int64
	fetchWait      time.Duration
	requestTimeout time.Duration
	refresh        time.Duration
	stallAfter     time.Duration
	backoffMin     time.Duration
	backoffMax     time.Duration
	failOnDiverge  bool
	stopOnDelete   bool
	stable         int64 // TruncateToStable's limit, -1: off
	start          start
}

func defaultOptions() options {
	return options{
		logger:     slog.New(slog.DiscardHandler),
		onEvent:    func(Event) {},
		byteBudget: 128 << 20,
		mirror: mirrorOptions{
			clientID:       "mirror",
			fetchBytes:     10 << 20,
			partitionBytes: 1 << 20,
			fetchWait:      500 * time.Millisecond,
			requestTimeout: 30 * time.Second,
			refresh:        time.Minute,
			stallAfter:     time.Minute,
			backoffMin:     100 * time.Millisecond,
			backoffMax:     30 * time.Second,
			stable:         -1,
		},
	}
}

// Logger sets where the library logs. Default: nowhere. Records carry mirror, topic and partition, never secrets or data.
func Logger(l *slog.Logger) Option {
	return optionFunc(func(o *options) {
		if l != nil {
			o.logger = l
		}
	})
}

// OnEvent sets what is called for each Event: one call at a time, in order, from a goroutine of its own. A slow callee holds back
// no mirroring: beyond 1,024 waiting events the oldest are dropped, and the next one delivered says how many.
//
// Close of the coordinator, and of a mirror made with New, delivers what is still waiting and waits for it: f must not call it, but
// have another goroutine do so.
func OnEvent(f func(Event)) Option {
	return optionFunc(func(o *options) {
		if f != nil {
			o.onEvent = f
		}
	})
}

// ByteBudget sets how many bytes of fetched data may wait to be appended, all mirrors of the coordinator together, what hangs in the
// host's Append included. Default 128 MiB, at least 1 MiB. Beyond it fetching waits. A single batch that is larger is let through alone.
func ByteBudget(bytes int64) Option { return optionFunc(func(o *options) { o.byteBudget = bytes }) }

// ClientID sets what the mirror calls itself at the source (Kafka's client.id), for quotas and logs there. Default "mirror". The
// ClientID of the Source's Transport goes before it.
func ClientID(id string) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.clientID = id })
}

// FetchBytes sets the most that one fetch asks of a source broker (fetch.max.bytes). Default 10 MiB, 64 KiB to 1 GiB. A larger
// batch still comes: Kafka exceeds the limit by one batch (KIP-74).
func FetchBytes(bytes int64) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.fetchBytes = bytes })
}

// PartitionFetchBytes sets the most that one fetch asks of one partition (max.partition.fetch.bytes). Default 1 MiB, 4 KiB to
// 1 GiB.
func PartitionFetchBytes(bytes int64) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.partitionBytes = bytes })
}

// FetchWait sets how long a source broker holds a fetch that finds nothing (fetch.max.wait.ms). Default 500 ms, 1 ms to 30 s. It
// is also how late a partition joins or leaves the fetch of an idle broker.
func FetchWait(d time.Duration) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.fetchWait = d })
}

// RequestTimeout sets when a request to the source without an answer is given up and its connection closed (request.timeout.ms),
// in addition to FetchWait. Default 30 s, at least 100 ms.
func RequestTimeout(d time.Duration) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.requestTimeout = d })
}

// RefreshInterval sets how often topics, partitions and leaders are read from the source (mirror.metadata.refresh.interval.ms).
// Default 1 minute, at least 100 ms. Errors that point to old metadata refresh at once.
func RefreshInterval(d time.Duration) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.refresh = d })
}

// StallAfter sets after how long without progress a partition that is behind counts as STALLED. Default 1 minute, at least 100 ms.
func StallAfter(d time.Duration) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.stallAfter = d })
}

// Backoff sets the pause after a first failure and its cap; it grows exponentially with jitter in between, and begins anew after
// a validated batch. Default 100 ms and 30 s, 1 ms to 1 hour.
func Backoff(first, cap time.Duration) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.backoffMin, o.backoffMax = first, cap })
}

// FailOnDivergence makes a partition FAILED, with the range, where the source's log has diverged from what was mirrored (an
// unclean election there), instead of cutting what the source no longer has. Recover then cuts it.
func FailOnDivergence() MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.failOnDiverge = true })
}

// StopOnSourceDelete stops a topic that was deleted at the source, as Remove would, instead of leaving it FAILED and read-only.
// WARNING: whoever deletes a topic at the source then makes it writable here.
func StopOnSourceDelete() MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.stopOnDelete = true })
}

// TruncateToStable has Remove cut a partition to its last stable offset when transactions are open, as earlier drafts of KIP-1279 do,
// instead of aborting them where they are. WARNING: committed records behind the first open transaction are lost; the cut is reported.
// A stop that would cut more than limit offsets is FAILED instead, with the range, until Recover allows it. Where the host can't cut they
// are aborted after all.
func TruncateToStable(limit int64) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.stable = limit })
}

// start is where an empty log begins.
type start struct {
	kind startKind
	at   int64 // an offset, or ms since 1970
}

type startKind int

const (
	fromStart startKind = iota
	fromOffset
	fromTime
	fromEnd
)

// StartAtOffset begins the partitions of newly added topics at the offset, moved into the source's range. If it lies inside a
// batch the whole batch is kept and the log start set to it. Without it they begin at the source's log start. Partitions that
// the source adds later always begin at their start.
func StartAtOffset(offset int64) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.start = start{fromOffset, offset} })
}

// StartAtTime is StartAtOffset with the first record at or after t of each partition.
func StartAtTime(t time.Time) MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.start = start{fromTime, t.UnixMilli()} })
}

// StartAtEnd is StartAtOffset with the end that each partition has when it is prepared.
func StartAtEnd() MirrorOption {
	return mirrorOptionFunc(func(o *mirrorOptions) { o.start = start{fromEnd, 0} })
}

func (o *options) validate() error {
	var errs []error
	if o.byteBudget < 1<<20 {
		errs = append(errs, fmt.Errorf("ByteBudget is %d, must be at least 1 MiB", o.byteBudget))
	}
	return errors.Join(append(errs, o.mirror.validate())...)
}

func (o *mirrorOptions) validate() error {
	var errs []error
	bound := func(name string, v, low, high any, ok bool) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v, must be from %v to %v", name, v, low, high))
		}
	}
	size := func(name string, v, low, high int64) { bound(name, v, low, high, v >= low && v <= high) }
	span := func(name string, v, low, high time.Duration) { bound(name, v, low, high, v >= low && v <= high) }
	size("FetchBytes", o.fetchBytes, 64<<10, 1<<30)
	size("PartitionFetchBytes", o.partitionBytes, 4<<10, 1<<30)
	span("FetchWait", o.fetchWait, time.Millisecond, 30*time.Second)
	span("RequestTimeout", o.requestTimeout, 100*time.Millisecond, time.Hour)
	span("RefreshInterval", o.refresh, 100*time.Millisecond, 24*time.Hour)
	span("StallAfter", o.stallAfter, 100*time.Millisecond, 24*time.Hour)
	span("Backoff's first pause", o.backoffMin, time.Millisecond, time.Hour)
	span("Backoff's cap", o.backoffMax, o.backoffMin, time.Hour)
	if o.stable < -1 {
		errs = append(errs, fmt.Errorf("TruncateToStable is %d, must not be negative", o.stable))
	}
	if o.start.kind == fromOffset && o.start.at < 0 {
		errs = append(errs, fmt.Errorf("StartAtOffset is %d, must not be negative", o.start.at))
	}
	return errors.Join(errs...)
}
