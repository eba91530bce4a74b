package disklog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/clustermirror/mirror/internal/batch"
)

// scanner reads the batches of one segment file, of which the first end bytes count, through a window: small batches
// share one disk read, and no memory is taken on the word of a length field.
type scanner struct {
	r   io.ReaderAt
	end int64

	window []byte // the file's bytes from at on
	at     int64
	buf    *[]byte
}

const windowSize = 16 << 10

var windows = sync.Pool{New: func() any { b := make([]byte, windowSize); return &b }}

func newScanner(r io.ReaderAt, end int64) *scanner {
	return &scanner{r: r, end: end, buf: windows.Get().(*[]byte)}
}

func (s *scanner) close() { windows.Put(s.buf) }

// bytes are those from pos on: n of them, fewer at the end of the segment or of the window. They are good until the
// next call.
func (s *scanner) bytes(pos int64, n int) ([]byte, error) {
	n = int(min(int64(n), s.end-pos, windowSize))
	if off := pos - s.at; off >= 0 && off+int64(n) <= int64(len(s.window)) {
		return s.window[off : off+int64(n)], nil
	}
	want := (*s.buf)[:min(windowSize, s.end-pos)]
	k, err := s.r.ReadAt(want, pos)
	if err != nil && err != io.EOF {
		return nil, err
	}
	s.window, s.at = want[:k], pos
	return s.window[:min(n, k)], nil
}

// header reads the header of the batch at pos and sees that the whole batch lies before the end: batch.ErrShort if not.
func (s *scanner) header(pos int64) (batch.Header, error) {
	if pos < 0 || pos >= s.end {
		return batch.Header{}, batch.ErrShort
	}
	b, err := s.bytes(pos, batch.HeaderSize)
	if err != nil {
		return batch.Header{}, err
	}
	h, err := batch.Parse(b)
	if err == nil && int64(h.Size()) > s.end-pos {
		err = batch.ErrShort
	}
	return h, err
}

// check compares the CRC of the batch at pos, whose header is h, with its bytes.
func (s *scanner) check(pos int64, h batch.Header) error {
	const crcFrom = 21 // what comes before is not covered
	sum := uint32(0)
	for from, to := pos+crcFrom, pos+int64(h.Size()); from < to; {
		b, err := s.bytes(from, int(min(to-from, windowSize)))
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return batch.ErrShort // the file is shorter than it was
		}
		sum = crc32.Update(sum, castagnoli, b)
		from += int64(len(b))
	}
	if sum != h.CRC {
		return fmt.Errorf("%w: offset %d: CRC %08x, its bytes give %08x", batch.ErrCorrupt, h.Base, h.CRC, sum)
	}
	return nil
}

// isDamage tells bytes that are wrong from bytes that could not be read.
func isDamage(err error) bool {
	return errors.Is(err, batch.ErrShort) || errors.Is(err, batch.ErrCorrupt) || errors.Is(err, batch.ErrOldFormat)
}
