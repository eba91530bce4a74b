package mirror

import (
	"context"
	"iter"
	"time"

	"github.com/segmentio/kafka-go"
)

// AbortedTxn is one aborted transaction of a partition: what a read-committed reader needs to leave its records out.
type AbortedTxn struct {
	ProducerID  int64
	FirstOffset int64 // of its first batch here
	LastOffset  int64 // of its ABORT marker
}

// Partition is one partition of the host, mirrored or not. All its methods may be called concurrently.
type Partition struct{}

func (p *Partition) Topic() string              { panic("unwritten") }
func (p *Partition) ID() int32                  { panic("unwritten") }
func (p *Partition) Bounds() (start, end int64) { panic("unwritten") }

// LeaderEpoch is the partition's current leader epoch, at least every epoch in its log.
func (p *Partition) LeaderEpoch() int32 { panic("unwritten") }

// LastStableOffset is the first offset of the oldest open transaction, or the end.
func (p *Partition) LastStableOffset(ctx context.Context) (int64, error) { panic("unwritten") }

// EpochEnd answers OffsetForLeaderEpoch (KIP-101): the greatest epoch of the log at or below epoch, and where it ends. (-1, -1)
// if there is none. Asked for the current leader epoch it answers (last epoch of the log, end).
func (p *Partition) EpochEnd(ctx context.Context, epoch int32) (found int32, end int64, err error) {
	panic("unwritten")
}

// EpochAt is the leader epoch of the batch that holds offset (or the next one); -1 if unknown.
func (p *Partition) EpochAt(ctx context.Context, offset int64) (int32, error) { panic("unwritten") }

// Aborted are the aborted transactions that overlap [from, to), by first offset.
func (p *Partition) Aborted(ctx context.Context, from, to int64) ([]AbortedTxn, error) {
	panic("unwritten")
}

// Read is Log.Read.
func (p *Partition) Read(ctx context.Context, offset int64, buf []byte) (int, error) {
	panic("unwritten")
}

// Append adds one or more whole batches of a local writer: passes the gate, gives them the next offsets and the current leader
// epoch (both written into batches), and answers the first base offset. Visible on return, durable after the next Sync.
func (p *Partition) Append(ctx context.Context, batches []byte) (base int64, err error) {
	panic("unwritten")
}

// Sync makes durable what was appended before.
func (p *Partition) Sync(ctx context.Context) error { panic("unwritten") }

// Truncate drops each batch that reaches beyond end. Through the gate: never on a mirror topic.
func (p *Partition) Truncate(ctx context.Context, end int64) error { panic("unwritten") }

// AdvanceStart drops a prefix. Through the gate: never on a mirror topic.
func (p *Partition) AdvanceStart(ctx context.Context, start int64) error { panic("unwritten") }

// OffsetForTime is the first record whose timestamp is at or above t: its offset and timestamp; (-1, zero) if there is none.
func (p *Partition) OffsetForTime(ctx context.Context, t time.Time) (offset int64, at time.Time, err error) {
	panic("unwritten")
}

// Wait returns when the end lies beyond the offset, or was cut, or ctx or the partition ends.
func (p *Partition) Wait(ctx context.Context, beyond int64) error { panic("unwritten") }

// Notify sends on ch, without waiting, after each change of the partition's bounds, until stop is called.
func (p *Partition) Notify(ch chan<- struct{}) (stop func()) { panic("unwritten") }

// ReadOption changes what Records yields.
type ReadOption func(*readOptions)

type readOptions struct {
	uncommitted bool
	follow      bool
}

// ReadUncommitted yields records of open and aborted transactions too.
func ReadUncommitted() ReadOption { return func(o *readOptions) { o.uncommitted = true } }

// Follow goes on at the end and waits for more, until ctx ends.
func Follow() ReadOption { return func(o *readOptions) { o.follow = true } }

// Records yields the records from offset on, read-committed unless told otherwise, at the source's offsets. Control records
// are never yielded. It ends at the end (or the last stable offset) that it finds there, or follows. ErrOutOfRange, or a
// *CutError with the range if the log is cut below what was yielded, ends it.
func (p *Partition) Records(ctx context.Context, from int64, opts ...ReadOption) iter.Seq2[kafka.Message, error] {
	panic("unwritten")
}
