package disklog

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/clustermirror/mirror/internal/vfs"
)

// Option is an option of Open.
type Option struct{ set func(*options) }

type options struct {
	segmentBytes int64
	segmentAge   time.Duration
	syncBytes    int64
	maxOpenFiles int
	logger       *slog.Logger
	fs           vfs.FS
}

func defaults() options {
	return options{
		segmentBytes: 1 << 30,
		segmentAge:   7 * 24 * time.Hour,
		maxOpenFiles: 512,
		logger:       slog.Default(), //nolint:forbidigo // Logger names it as the default
		fs:           vfs.OS,
	}
}

// SegmentBytes sets the size at which a log goes on in a new file. Default 1 GiB; from 4096 to 2147483647. Kafka's
// segment.bytes. Disk space comes back a whole file at a time, so a retention much smaller than this keeps more than it
// asks for. A batch larger than this gets a file of its own.
func SegmentBytes(n int64) Option { return Option{func(o *options) { o.segmentBytes = n }} }

// SegmentAge sets the span of record timestamps after which a log goes on in a new file, so that retention by time finds
// something to drop in topics with little traffic. Default 7 days; at least one millisecond. Kafka's segment.ms. Files
// under 1 MiB are not closed by age, so wild timestamps can't shred a log into tiny files.
func SegmentAge(d time.Duration) Option { return Option{func(o *options) { o.segmentAge = d }} }

// SyncBytes sets how many bytes a log may take up before Append itself waits for the disk. Default 0: never.
//
// In plain words: what Append was given is in the operating system's memory; a crash of the program loses none of it, a
// power cut may. Sync makes it durable, and the library calls Sync wherever something is promised on the strength of
// it: before a position is stored, before a checkpoint, before a topic is handed over. What a power cut takes beyond
// that is fetched again from the source. Set SyncBytes to bound that amount, to smooth the disk's work, or where local
// writers need it, at the price of slower appends. Kafka's nearest setting is flush.messages, which is off by default
// too.
func SyncBytes(n int64) Option { return Option{func(o *options) { o.syncBytes = n }} }

// MaxOpenFiles sets how many files are kept open between calls, least recently used ones closed first. Default 512; at
// least 8. Calls that run at the same moment may each hold up to two more.
func MaxOpenFiles(n int) Option { return Option{func(o *options) { o.maxOpenFiles = n }} }

// Logger sets where torn tails that were cut and indexes that were rebuilt are told. Default slog.Default().
func Logger(l *slog.Logger) Option { return Option{func(o *options) { o.logger = l }} }

// onFS sets the file system.
func onFS(fs vfs.FS) Option { return Option{func(o *options) { o.fs = fs }} }

func (o *options) validate() error {
	var errs []error
	bad := func(ok bool, format string, v any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, v))
		}
	}
	bad(o.segmentBytes >= 4096 && o.segmentBytes <= math.MaxInt32, "SegmentBytes is %d, must be from 4096 to 2147483647", o.segmentBytes)
	bad(o.segmentAge >= time.Millisecond, "SegmentAge is %v, must be at least 1ms", o.segmentAge)
	bad(o.syncBytes >= 0, "SyncBytes is %d, must not be negative", o.syncBytes)
	bad(o.maxOpenFiles >= 8, "MaxOpenFiles is %d, must be at least 8", o.maxOpenFiles)
	bad(o.logger != nil, "Logger is %v", o.logger)
	return errors.Join(errs...)
}
