package judge

import (
	"bytes"
	"fmt"
	"iter"
)

// Stats are what a comparison went over, so that a test can say that it was not nothing.
type Stats struct {
	Batches int
	Bytes   int64
	End     int64 // offset after the last batch
}

// Identical compares two logs batch by batch and byte by byte. The error names the first offset at which they part.
func Identical(source, mirror iter.Seq2[Batch, error]) (Stats, error) {
	var s Stats
	next, stop := iter.Pull2(mirror)
	defer stop()
	for want, err := range source {
		if err != nil {
			return s, fmt.Errorf("source: %w", err)
		}
		got, err, ok := next()
		switch {
		case err != nil:
			return s, fmt.Errorf("mirror: %w", err)
		case !ok:
			return s, fmt.Errorf("the mirror ends at %d, the source goes on with batch %d-%d", s.End, want.Base, want.Next-1)
		case got.Base != want.Base || got.Next != want.Next:
			return s, fmt.Errorf("after %d the source has batch %d-%d, the mirror %d-%d", s.End, want.Base, want.Next-1, got.Base, got.Next-1)
		case !bytes.Equal(got.Bytes, want.Bytes):
			return s, differ(want, got)
		}
		s = Stats{Batches: s.Batches + 1, Bytes: s.Bytes + int64(len(want.Bytes)), End: want.Next}
	}
	if got, err, ok := next(); err != nil {
		return s, fmt.Errorf("mirror: %w", err)
	} else if ok {
		return s, fmt.Errorf("the source ends at %d, the mirror goes on with batch %d-%d", s.End, got.Base, got.Next-1)
	}
	return s, nil
}

func differ(want, got Batch) error {
	if len(want.Bytes) != len(got.Bytes) {
		return fmt.Errorf("batch %d-%d has %d bytes at the source, %d in the mirror", want.Base, want.Next-1, len(want.Bytes), len(got.Bytes))
	}
	i := 0
	for want.Bytes[i] == got.Bytes[i] {
		i++
	}
	return fmt.Errorf("batch %d-%d differs at its byte %d: %02x at the source, %02x in the mirror", want.Base, want.Next-1, i, want.Bytes[i], got.Bytes[i])
}
