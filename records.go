package mirror

import (
	"context"
	"iter"

	"github.com/segmentio/kafka-go"
)

// ReadOption changes what Records yields.
type ReadOption func(*readOptions)

type readOptions struct{ uncommitted, follow bool }

// Records is being written.
func (p *Partition) Records(ctx context.Context, from int64, opts ...ReadOption) iter.Seq2[kafka.Message, error] {
	panic("unwritten")
}
