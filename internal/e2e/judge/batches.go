// Package judge says whether a mirror holds what its source holds. It shares no code with what it judges: batches come from
// segment files or the Read method of a log and are told apart by their length alone, records are decoded by other
// people's clients.
package judge

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
)

// The bytes before those that a batch's length field counts, and the bytes of a batch's header.
const (
	lengthEnd  = 12
	headerSize = 61
	// No topic of the suite allows a larger batch: a greater length is damage.
	maxBatch = 64 << 20
)

// Batch is one record batch as it lies in a log.
type Batch struct {
	Base, Next int64
	Records    int32
	Bytes      []byte
}

// Files walks the batches of a partition's segment files, Kafka's or disklog's, in order of offset. The partition must not
// be written, compacted or trimmed meanwhile.
func Files(dir string) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		segments, err := Segments(dir)
		if err != nil {
			yield(Batch{}, err)
			return
		}
		for _, name := range segments {
			if !file(name, yield) {
				return
			}
		}
	}
}

// Segments are the names of a partition's segment files in order of offset.
func Segments(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err == nil && names == nil {
		err = fmt.Errorf("no segment file in %s", dir)
	}
	slices.Sort(names) // the base offset has leading zeros
	return names, err
}

func file(name string, yield func(Batch, error) bool) bool {
	f, err := os.Open(name)
	if err != nil {
		return yield(Batch{}, err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		b, err := next(r)
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			return yield(Batch{}, fmt.Errorf("%s: %w", name, err))
		}
		if !yield(b, nil) {
			return false
		}
	}
}

// next answers io.EOF only between batches.
func next(r io.Reader) (Batch, error) {
	head := make([]byte, lengthEnd)
	if _, err := io.ReadFull(r, head); err != nil {
		return Batch{}, err
	}
	size, err := size(head)
	if err != nil {
		return Batch{}, err
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b[copy(b, head):]); err != nil {
		return Batch{}, fmt.Errorf("batch at offset %d is cut: %w", binary.BigEndian.Uint64(head), io.ErrUnexpectedEOF)
	}
	return parse(b), nil
}

func size(head []byte) (int, error) {
	size := lengthEnd + int(int32(binary.BigEndian.Uint32(head[8:])))
	if size < headerSize || size > maxBatch {
		return 0, fmt.Errorf("batch at offset %d says it has %d bytes", binary.BigEndian.Uint64(head), size)
	}
	return size, nil
}

func parse(b []byte) Batch {
	base := int64(binary.BigEndian.Uint64(b))
	return Batch{
		Base:    base,
		Next:    base + int64(int32(binary.BigEndian.Uint32(b[23:]))) + 1,
		Records: int32(binary.BigEndian.Uint32(b[57:])),
		Bytes:   b,
	}
}

// Split walks the batches that lie in b one after the other.
func Split(b []byte) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for len(b) > 0 {
			if len(b) < lengthEnd {
				yield(Batch{}, io.ErrUnexpectedEOF)
				return
			}
			size, err := size(b)
			if err == nil && size > len(b) {
				err = fmt.Errorf("batch at offset %d is cut: %w", binary.BigEndian.Uint64(b), io.ErrUnexpectedEOF)
			}
			if err != nil {
				yield(Batch{}, err)
				return
			}
			if !yield(parse(b[:size:size]), nil) {
				return
			}
			b = b[size:]
		}
	}
}

// Reader is what a log offers its readers: mirror.Log and mirror.Partition do.
type Reader interface {
	Bounds() (start, end int64)
	Read(ctx context.Context, offset int64, buf []byte) (int, error)
}

// Log walks the batches of a log from its start to the end that it has when the walk begins.
func Log(ctx context.Context, log Reader) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		buf := make([]byte, 1<<20)
		for at, end := log.Bounds(); at < end; {
			n, err := log.Read(ctx, at, buf)
			switch {
			case err != nil:
				yield(Batch{}, fmt.Errorf("read at %d: %w", at, err))
				return
			case n < headerSize:
				yield(Batch{}, fmt.Errorf("read at %d of a log that ends at %d: %d bytes", at, end, n))
				return
			}
			whole, err := size(buf)
			if err != nil {
				yield(Batch{}, err)
				return
			}
			if whole > len(buf) {
				buf = make([]byte, whole)
				continue
			}
			for b := buf[:n]; len(b) >= headerSize; b = b[whole:] {
				if whole, err = size(b); err != nil {
					yield(Batch{}, err)
					return
				}
				if whole > len(b) {
					break // cut by the end of buf
				}
				batch := parse(slices.Clone(b[:whole]))
				if batch.Next <= at {
					yield(Batch{}, fmt.Errorf("read at %d: batch %d-%d lies below", at, batch.Base, batch.Next-1))
					return
				}
				if at = batch.Next; !yield(batch, nil) {
					return
				}
			}
		}
	}
}

// Until leaves out what begins at end or above.
func Until(batches iter.Seq2[Batch, error], end int64) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for b, err := range batches {
			if err == nil && b.Base >= end || !yield(b, err) {
				return
			}
		}
	}
}

// HasGaps answers a function that says whether there are offsets without a record.
func HasGaps(batches iter.Seq2[Batch, error]) func() (bool, error) {
	return func() (bool, error) {
		n, err := gaps(batches)
		if errors.Is(err, fs.ErrNotExist) { // just compacted: a file was replaced
			return false, nil
		}
		return n > 0, err
	}
}

// gaps counts the offsets between the first batch and the end that no record has: what compaction leaves behind.
func gaps(batches iter.Seq2[Batch, error]) (int64, error) {
	first, end, records := int64(-1), int64(-1), int64(0)
	for b, err := range batches {
		if err != nil {
			return 0, err
		}
		if first < 0 {
			first = b.Base
		}
		end = b.Next
		records += int64(b.Records)
	}
	return end - first - records, nil
}
