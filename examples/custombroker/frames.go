package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror/broker"
)

const maxFrame = 100 << 20

var errShort = errors.New("request is cut short")

// frame is one request as it comes over a connection.
type frame struct {
	key, version int16
	correlation  int32
	rest         []byte
}

func readFrame(r io.Reader) (f frame, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 8 || size > maxFrame {
		return f, fmt.Errorf("request of %d bytes", size)
	}
	var b bytes.Buffer // grows as bytes come, whatever length was claimed
	if _, err := io.CopyN(&b, r, int64(size)); err != nil {
		return f, err
	}
	fixed := b.Next(8)
	return frame{
		key:         int16(binary.BigEndian.Uint16(fixed)),
		version:     int16(binary.BigEndian.Uint16(fixed[2:])),
		correlation: int32(binary.BigEndian.Uint32(fixed[4:])),
		rest:        b.Bytes(),
	}, nil
}

// request decodes what a frame carries: the rest of the header, and the message.
func (f frame) request() (kmsg.Request, error) {
	req, ok := broker.NewRequest(f.key, f.version) // knows KIP-1279's too
	if !ok {
		return nil, fmt.Errorf("request with key %d, version %d: not served", f.key, f.version)
	}
	r := reader{b: f.rest}
	if size := r.Span(2); len(size) == 2 {
		r.Span(max(int(int16(binary.BigEndian.Uint16(size))), 0)) // the client's name; -1: it has none
	}
	if req.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	if r.short {
		return nil, errShort
	}
	return req, req.ReadFrom(r.b)
}

// reader is what kmsg skips tagged fields with.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) Ok() bool { return !r.short }

func (r *reader) Span(n int) (span []byte) {
	if r.short = r.short || n < 0 || n > len(r.b); r.short {
		return nil
	}
	span, r.b = r.b[:n], r.b[n:]
	return span
}

func (r *reader) Uvarint() uint32 {
	v, n := binary.Uvarint(r.b)
	if r.short = r.short || n <= 0 || v > maxFrame; r.short {
		return 0
	}
	r.b = r.b[n:]
	return uint32(v)
}

func writeAnswer(w io.Writer, correlation int32, resp kmsg.Response) error {
	out := binary.BigEndian.AppendUint32(nil, 0) // the length, once it is known
	out = binary.BigEndian.AppendUint32(out, uint32(correlation))
	if _, versions := resp.(*kmsg.ApiVersionsResponse); resp.IsFlexible() && !versions {
		out = append(out, 0) // no tagged fields
	}
	out = resp.AppendTo(out)
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	_, err := w.Write(out)
	return err
}
