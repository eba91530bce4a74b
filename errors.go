package mirror

import "errors"

// ErrUnknownPartition is returned for a topic or partition that the host does not have.
var ErrUnknownPartition = errors.New("unknown topic or partition")

// ReadOnlyError is returned by the write gate for a topic that a mirror owns.
type ReadOnlyError struct {
	Topic  string
	Mirror string
}

func (e *ReadOnlyError) Error() string {
	return "topic " + e.Topic + " is read-only: mirror " + e.Mirror + " owns it; Remove it there to take it over"
}
