package mirror

import (
	"context"
	"encoding/base64"
	"errors"
	"iter"
	"time"

	"github.com/clustermirror/mirror/internal/batch"
)

// StateTopic is the name of the topic in which the library keeps its state, one partition, in the host's own logs.
const StateTopic = "__mirror_state"

// TopicID is a topic's UUID (KIP-516). The zero value means that the id is not known.
type TopicID [16]byte

// String is the form in which Kafka prints ids: URL-safe base64 without padding.
func (id TopicID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// Topic is what a host and a source say of a topic.
type Topic struct {
	Name       string
	ID         TopicID
	Partitions int32
	Configs    map[string]string // overrides only; may be nil
}

// Errors that a host returns, and that the library tells apart with errors.Is.
var (
	// ErrOutOfRange is returned by Log.Read for an offset below the start or above the end.
	ErrOutOfRange = errors.New("offset out of range")
	// ErrOutOfOrder is returned by Log.Append for a batch whose base offset lies below the end of the log.
	ErrOutOfOrder = errors.New("batch begins below the end of the log")
	// ErrTopicConflict is returned by Host.EnsureTopic for a name that exists with another id, and by AddTopics for such a topic.
	ErrTopicConflict = errors.New("topic exists with another id")
	// ErrClosed is returned by everything that is used after its Close.
	ErrClosed = errors.New("closed")
)

// Host is the program that owns the destination logs. All its methods may be called concurrently; none is called with a
// lock of the library held.
type Host interface {
	// ClusterID is what the host's brokers announce: stable for the life of the data, never empty. It tells two hosts
	// apart, so two hosts must never share one.
	ClusterID() string

	// Topics lists what exists, mirrored or not, the state topic included. The caller owns the answer.
	Topics(ctx context.Context) ([]Topic, error)

	// EnsureTopic creates the topic, or grows it to t.Partitions; the number is never lowered. A zero id means any: the
	// host chooses one if it creates the topic. ErrTopicConflict if the name exists with another id. Durable on return;
	// doing it again changes nothing.
	EnsureTopic(ctx context.Context, t Topic) error

	// OpenLog opens one partition of a topic that exists. Only a Coordinator calls it. A newer Coordinator may open the
	// same log again while an older one still holds it: both then speak to the same log, and Append decides. ErrUnknownPartition
	// if there is none.
	OpenLog(ctx context.Context, topic string, partition int32) (Log, error)
}

// Log is one partition: whole record batches, in order, gaps allowed. Append, TruncateTo, AdvanceStart and Reset never
// overlap each other; Read, Bounds and Sync may overlap anything. Package logtest checks what is said here. Once the topic was deleted
// they answer ErrUnknownPartition or ErrClosed: the library then forgets the log, and asks for the one that is there now. A host with
// replicas returns from TruncateTo and Reset when they have converged: what is fetched next must not meet one that still holds what was
// cut.
type Log interface {
	// Bounds are the first offset held and the offset after the last one; equal when nothing is held. Never blocks.
	Bounds() (start, end int64)

	// Append adds one or more whole batches verbatim. They are visible on return and durable after the next Sync. The
	// slice is not kept. The end becomes the last batch's last offset + 1, so gaps between batches stay. A first base
	// below the end is refused with ErrOutOfOrder, atomically, also against another handle of the same log: nothing is
	// stored. On another error Bounds says which whole batches stayed.
	Append(ctx context.Context, batches []byte) error

	// Read fills buf from the batch that holds offset, or the next one if offset lies in a gap, and goes on with the
	// batches that follow. The last one may be cut by the end of buf, so 61 bytes read one header. The batch may begin
	// below offset, and below the start. 0 at the end; ErrOutOfRange outside [start, end].
	Read(ctx context.Context, offset int64, buf []byte) (n int, err error)

	// Sync makes durable what was appended before the call. Syncs of different logs may come at once; a host with one
	// journal coalesces them.
	Sync(ctx context.Context) error

	// TruncateTo drops each batch that reaches beyond end, so the end may come out lower; an end below the start means
	// Reset(end); an end at or above the log's own changes nothing. Durable on return. errors.ErrUnsupported, whatever the
	// end, if the host can't drop a suffix: what needs a cut then ends in FAILED with the ranges.
	TruncateTo(ctx context.Context, end int64) error

	// AdvanceStart drops a prefix. It may fall inside a batch: the batch stays, the offsets below are out of range. A
	// start at or below the log's own changes nothing; one above the end means Reset(start).
	AdvanceStart(ctx context.Context, start int64) error

	// Reset drops everything; the log goes on, empty, at start. Durable on return.
	Reset(ctx context.Context, start int64) error

	// Close releases the handle. What was appended but not synced stays visible to the next OpenLog. Close twice is
	// harmless; the other methods answer ErrClosed afterwards, Bounds the last bounds.
	Close() error
}

// Optional abilities of a Host, looked for once in Open and logged when absent.
type (
	// ProducerIDRaiser hands out producer ids: after the call it gives none at or below above. Called before the gate of
	// a topic that was taken over opens; an error keeps the gate closed.
	ProducerIDRaiser interface {
		RaiseProducerID(ctx context.Context, above int64) error
	}
	// OffsetClamper keeps group offsets: after the call no group's committed offset for the partition lies above end.
	OffsetClamper interface {
		ClampOffsets(ctx context.Context, topic string, partition int32, end int64) error
	}
)

// OffsetForTimer is an optional ability of a Log: the first batch whose max timestamp is at or above t, by its base offset
// (-1 if there is none). Without it the library walks the headers.
type OffsetForTimer interface {
	OffsetForTime(ctx context.Context, t time.Time) (base int64, err error)
}

// TopicIDer is an optional ability of a Log: the id of its topic, also once that was deleted. A host whose topics can be deleted while
// it runs needs it: names don't tell one from another that was made anew. Without it what Topics said last is believed.
type TopicIDer interface {
	TopicID() TopicID
}

// Batch is what a host needs to know of a record batch.
type Batch struct {
	Base    int64     // first offset
	Next    int64     // offset after the last
	Epoch   int32     // leader epoch, -1 if the producer of the bytes set none
	MaxTime time.Time // greatest timestamp of its records; zero if it has none
	Bytes   []byte    // the whole batch, a part of the slice that is walked
}

// Batches walks the whole batches in b, in order. It ends without error at the end of b or where b cuts a batch short, and
// with an error that names the offset where the bytes are not a batch. CRCs are not checked.
func Batches(b []byte) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for len(b) > 0 {
			h, raw, err := batch.Next(b)
			if errors.Is(err, batch.ErrShort) {
				return
			}
			if err != nil {
				yield(Batch{}, err)
				return
			}
			v := Batch{Base: h.Base, Next: h.Next(), Epoch: h.LeaderEpoch, Bytes: raw}
			if h.MaxTimestamp >= 0 {
				v.MaxTime = time.UnixMilli(h.MaxTimestamp)
			}
			if !yield(v, nil) {
				return
			}
			b = b[len(raw):]
		}
	}
}
