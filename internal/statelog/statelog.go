// Package statelog keeps a coordinator's records in an ordinary partition log.
package statelog

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// Key types with a meaning of their own. A caller's own types begin at TypeOwn.
const (
	TypePartitionState int16 = 1 // value: PartitionState
	TypePosition       int16 = 2 // value: Position
	TypeOwn            int16 = 1010
)

var (
	// ErrFenced is returned by Put, for ever, once another Store was opened on the same log.
	ErrFenced = errors.New("fenced")
	// ErrClosed is returned by Put after Close.
	ErrClosed = errors.New("closed")
)

// Log is the part of a partition log that is needed here.
type Log interface {
	Bounds() (start, end int64)
	Append(ctx context.Context, batches []byte) error
	Read(ctx context.Context, offset int64, buf []byte) (n int, err error)
	Sync(ctx context.Context) error
	AdvanceStart(ctx context.Context, start int64) error
}

// Key names a record. The two types of Kafka use Mirror, Topic and Partition.
type Key struct {
	Type      int16
	Mirror    string
	Topic     [16]byte
	Partition int32
	Name      string
	N         int64
}

// Record is one entry of the state: a nil Value deletes the key.
type Record struct {
	Key   Key
	Value []byte
}

// PartitionState is the value of a TypePartitionState key.
type PartitionState struct {
	State         int8
	LeaderEpoch   int32
	StateEpoch    int32
	Error         *string
	RetryAttempt  int16
	PreviousState int8
}

// Position is the value of a TypePosition key.
type Position struct {
	Epoch  int32
	Offset int64
}

// DamagedError says that the log does not hold what a Store writes.
type DamagedError struct {
	Offset int64
	Err    error
}

func (e *DamagedError) Error() string { return fmt.Sprintf("state log damaged at offset %d: %v", e.Offset, e.Err) }

// Unwrap gives the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// Option is an option of Open.
type Option func(*Store)

// Store is the state in memory, and the log that makes it durable.
type Store struct{}

// Open replays the log, fences whoever opened it before, and is the only writer from then on.
func Open(ctx context.Context, log Log, outOfOrder error, opts ...Option) (*Store, error) {
	panic("unwritten")
}

// Put makes records durable, all or none of them.
func (s *Store) Put(ctx context.Context, recs ...Record) error { panic("unwritten") }

// Get is the value of a key. It must not be changed.
func (s *Store) Get(k Key) ([]byte, bool) { panic("unwritten") }

// All are the records of one type, sorted by key.
func (s *Store) All(typ int16) iter.Seq2[Key, []byte] { panic("unwritten") }

// Close ends the Store; the log stays open.
func (s *Store) Close() error { panic("unwritten") }

// Append adds the value's bytes to dst.
func (v PartitionState) Append(dst []byte) []byte { panic("unwritten") }

// ParsePartitionState is the reverse of PartitionState.Append.
func ParsePartitionState(b []byte) (PartitionState, error) { panic("unwritten") }

// Append adds the value's bytes to dst.
func (v Position) Append(dst []byte) []byte { panic("unwritten") }

// ParsePosition is the reverse of Position.Append.
func ParsePosition(b []byte) (Position, error) { panic("unwritten") }
