package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// firstRead is as much of a request as is believed before its bytes have come.
const firstRead = 64 << 10

// readFrame reads one request without its length into buf, or into a larger slice. Memory grows with the bytes that come, not with
// the length that is claimed.
func readFrame(r io.Reader, buf []byte, limit func() int64) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	size := int64(int32(binary.BigEndian.Uint32(prefix[:])))
	if size < 0 || size > limit() {
		return nil, fmt.Errorf("request of %d bytes, at most %d are allowed", size, limit())
	}
	buf = buf[:0]
	for int64(len(buf)) < size {
		have := len(buf)
		if have == cap(buf) || cap(buf) == 0 {
			grown := make([]byte, have, min(size, max(firstRead, int64(2*have))))
			copy(grown, buf)
			buf = grown
		}
		buf = buf[:min(size, int64(cap(buf)))]
		if _, err := io.ReadFull(r, buf[have:]); err != nil {
			return nil, err
		}
	}
	return buf, nil
}

// header is what stands before every request.
type header struct {
	key, version int16
	correlation  int32
}

var errCutShort = errors.New("request is cut short")

// parseHeader takes the fixed part off the front of a request.
func parseHeader(b []byte) (h header, rest []byte, err error) {
	if len(b) < 8 {
		return h, nil, errCutShort
	}
	h = header{
		key:         int16(binary.BigEndian.Uint16(b)),
		version:     int16(binary.BigEndian.Uint16(b[2:])),
		correlation: int32(binary.BigEndian.Uint32(b[4:])),
	}
	return h, b[8:], nil
}

// parseBody takes the rest of the header, which depends on what is asked, and decodes the request into req, whose version is set.
func parseBody(b []byte, req kmsg.Request) error {
	if len(b) < 2 {
		return errCutShort
	}
	client := int(int16(binary.BigEndian.Uint16(b))) // its name, which nothing here needs
	b = b[2:]
	if client > len(b) {
		return errCutShort
	}
	b = b[max(client, 0):]
	if req.IsFlexible() {
		var err error
		if b, err = skipTags(b); err != nil {
			return err
		}
	}
	return req.ReadFrom(b)
}

// skipTags passes over tagged fields. Each takes at least two bytes, so a lying count ends with the bytes.
func skipTags(b []byte) ([]byte, error) {
	count, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, errCutShort
	}
	b = b[n:]
	for ; count > 0; count-- {
		_, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errCutShort
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, errCutShort
		}
		b = b[n+int(size):]
	}
	return b, nil
}

// writeAnswer writes one answer, length first. scratch is used if it is large enough; what is answered is the scratch of the next
// time.
func writeAnswer(w io.Writer, scratch []byte, correlation int32, resp kmsg.Response) ([]byte, error) {
	out := binary.BigEndian.AppendUint32(scratch[:0], 0) // the length, once it is known
	out = binary.BigEndian.AppendUint32(out, uint32(correlation))
	if _, versions := resp.(*kmsg.ApiVersionsResponse); resp.IsFlexible() && !versions {
		out = append(out, 0) // no tagged fields
	}
	fetch, ok := resp.(*kmsg.FetchResponse)
	if !ok {
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		_, err := w.Write(out)
		return out, err
	}
	// Record bytes go from where they were read to the connection, uncopied.
	out, holes := appendFetch(out, fetch)
	size, from := len(out)-4, 0
	parts := make(net.Buffers, 0, 2*len(holes)+1)
	for _, h := range holes {
		size += len(h.records)
		parts = append(parts, out[from:h.at], h.records)
		from = h.at
	}
	parts = append(parts, out[from:])
	binary.BigEndian.PutUint32(out, uint32(size))
	_, err := parts.WriteTo(w)
	return out, err
}

// hole is a place in an encoded answer where record bytes belong.
type hole struct {
	at      int
	records []byte
}

// appendFetch encodes a Fetch answer of version 4 to 18 as kmsg does, except that it leaves the record bytes out and says where
// they belong.
func appendFetch(dst []byte, r *kmsg.FetchResponse) ([]byte, []hole) {
	var holes []hole
	e := encoder{b: dst, flexible: r.IsFlexible()}
	v := r.Version
	e.int32(r.ThrottleMillis)
	if v >= 7 {
		e.int16(r.ErrorCode)
		e.int32(r.SessionID)
	}
	e.length(len(r.Topics))
	for i := range r.Topics {
		t := &r.Topics[i]
		if v >= 13 {
			e.b = append(e.b, t.TopicID[:]...)
		} else {
			e.string(t.Topic)
		}
		e.length(len(t.Partitions))
		for j := range t.Partitions {
			p := &t.Partitions[j]
			e.int32(p.Partition)
			e.int16(p.ErrorCode)
			e.int64(p.HighWatermark)
			e.int64(p.LastStableOffset)
			if v >= 5 {
				e.int64(p.LogStartOffset)
			}
			if p.AbortedTransactions == nil {
				e.length(-1)
			} else {
				e.length(len(p.AbortedTransactions))
			}
			for _, a := range p.AbortedTransactions {
				e.int64(a.ProducerID)
				e.int64(a.FirstOffset)
				e.tags(0)
			}
			if v >= 11 {
				e.int32(p.PreferredReadReplica)
			}
			if p.RecordBatches == nil {
				e.length(-1)
			} else {
				e.length(len(p.RecordBatches))
			}
			if len(p.RecordBatches) > 0 {
				holes = append(holes, hole{len(e.b), p.RecordBatches})
			}
			diverging := p.DivergingEpoch.Epoch != -1 || p.DivergingEpoch.EndOffset != -1
			leader := p.CurrentLeader.LeaderID != -1 || p.CurrentLeader.LeaderEpoch != -1
			e.tags(count(diverging, leader))
			if diverging && e.flexible {
				e.tag(0, 4+8+1)
				e.int32(p.DivergingEpoch.Epoch)
				e.int64(p.DivergingEpoch.EndOffset)
				e.tags(0)
			}
			if leader && e.flexible {
				e.tag(1, 4+4+1)
				e.int32(p.CurrentLeader.LeaderID)
				e.int32(p.CurrentLeader.LeaderEpoch)
				e.tags(0)
			}
		}
		e.tags(0)
	}
	if len(r.Brokers) == 0 || !e.flexible {
		e.tags(0)
		return e.b, holes
	}
	nodes := encoder{flexible: true}
	nodes.length(len(r.Brokers))
	for _, n := range r.Brokers {
		nodes.int32(n.NodeID)
		nodes.string(n.Host)
		nodes.int32(n.Port)
		nodes.length(-1) // rack
		nodes.tags(0)
	}
	e.tags(1)
	e.tag(0, len(nodes.b))
	e.b = append(e.b, nodes.b...)
	return e.b, holes
}

func count(flags ...bool) (n int) {
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}

// encoder appends Kafka's primitive types.
type encoder struct {
	b        []byte
	flexible bool
}

func (e *encoder) int16(v int16) { e.b = binary.BigEndian.AppendUint16(e.b, uint16(v)) }
func (e *encoder) int32(v int32) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
func (e *encoder) int64(v int64) { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }

// length is that of an array or of bytes, and in flexible versions of a string; -1 is null.
func (e *encoder) length(n int) {
	if e.flexible {
		e.b = binary.AppendUvarint(e.b, uint64(n+1))
	} else {
		e.int32(int32(n))
	}
}

func (e *encoder) string(s string) {
	if e.flexible {
		e.length(len(s))
	} else {
		e.int16(int16(len(s)))
	}
	e.b = append(e.b, s...)
}

// tags begins a section of n tagged fields.
func (e *encoder) tags(n int) {
	if e.flexible {
		e.b = binary.AppendUvarint(e.b, uint64(n))
	}
}

func (e *encoder) tag(number, size int) {
	e.b = binary.AppendUvarint(e.b, uint64(number))
	e.b = binary.AppendUvarint(e.b, uint64(size))
}
