package mirror

import (
	"context"
	"iter"
	"net"

	"github.com/segmentio/kafka-go"
)

// Source is the cluster to mirror from. It may hold secrets and is never stored.
type Source struct {
	// Addr are the bootstrap brokers, as kafka.TCP("kafka-1:9092", "kafka-2:9092") gives them.
	Addr net.Addr
	// Transport carries TLS, SASL, client id and dial function; nil means plain TCP. It is not changed; its exported fields are copied.
	Transport *kafka.Transport
	// ClusterID, if set, is the only cluster that may answer behind Addr.
	ClusterID string
}

// Mirror is one named link from one source.
type Mirror struct{}

// Mirror creates a mirror, or attaches the source to one found in the state.
func (c *Coordinator) Mirror(name string, src Source, opts ...MirrorOption) (*Mirror, error) {
	panic("unwritten")
}

// New is Open and Coordinator.Mirror in one; Close of the mirror then closes both.
func New(ctx context.Context, name string, src Source, h Host, opts ...Option) (*Mirror, error) {
	panic("unwritten")
}

func (m *Mirror) Start(ctx context.Context) error                          { panic("unwritten") }
func (m *Mirror) Close() error                                             { panic("unwritten") }
func (m *Mirror) AddTopics(ctx context.Context, topics ...string) error    { panic("unwritten") }
func (m *Mirror) Remove(ctx context.Context, topics ...string) error       { panic("unwritten") }
func (m *Mirror) Pause(ctx context.Context, topics ...string) error        { panic("unwritten") }
func (m *Mirror) Resume(ctx context.Context, topics ...string) error       { panic("unwritten") }
func (m *Mirror) WaitCaughtUp(ctx context.Context, topics ...string) error { panic("unwritten") }
func (m *Mirror) Coordinator() *Coordinator                                { panic("unwritten") }

// Describe is a copy of the mirror's status: a table when printed, and JSON.
func (m *Mirror) Describe() Status { panic("unwritten") }

// Status is what Describe answers.
type Status struct{}

// Records is Partition.Records of one mirrored partition.
func (m *Mirror) Records(ctx context.Context, topic string, partition int32, from int64, opts ...ReadOption) iter.Seq2[kafka.Message, error] {
	panic("unwritten")
}

// Option is an option of Open and New; MirrorOption one of Coordinator.Mirror.
type (
	Option        interface{ apply(*options) }
	MirrorOption  interface{ applyMirror(*mirrorOptions) }
	options       struct{}
	mirrorOptions struct{}
)
