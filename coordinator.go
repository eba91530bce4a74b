package mirror

import "context"

// Coordinator owns the state of a host's mirrors and the write gate of its topics.
type Coordinator struct{}

// Open loads the state: on return the gate is right. It fences every Coordinator that was opened on this host before.
func Open(ctx context.Context, h Host, opts ...Option) (*Coordinator, error) { panic("unwritten") }

func (c *Coordinator) Host() Host { panic("unwritten") }

// Partition opens one partition of the host, or answers the one that is open already. ErrUnknownPartition if there is none.
func (c *Coordinator) Partition(ctx context.Context, topic string, partition int32) (*Partition, error) {
	panic("unwritten")
}

// CheckWrite says whether a local writer may append now: nil, or a *ReadOnlyError that names the mirror. Lock-free.
func (c *Coordinator) CheckWrite(topic string, partition int32) error { panic("unwritten") }

// BeginWrite passes the gate for one append of a host that appends to its log itself: the leader epoch to stamp, and done,
// to be called when the append has ended. AddTopics waits for writers that have begun.
func (c *Coordinator) BeginWrite(ctx context.Context, topic string, partition int32) (epoch int32, done func(), err error) {
	panic("unwritten")
}

// RaiseLeaderEpoch raises a partition's leader epoch to atLeast, or by one if it is that already, and answers the new one. Durable
// on return.
func (c *Coordinator) RaiseLeaderEpoch(ctx context.Context, topic string, partition int32, atLeast int32) (int32, error) {
	panic("unwritten")
}

// ProducerIDFloor is the id above which a host may hand out producer ids: every id mirrored into a taken-over topic lies at or below it.
func (c *Coordinator) ProducerIDFloor() int64 { panic("unwritten") }

// Close ends every mirror and closes the gate.
func (c *Coordinator) Close() error { panic("unwritten") }
