package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// step is how much of an answer must arrive within each request time-out.
	step = 256 << 10
	// maxThrottle bounds how long one answer can silence us. Kafka's own quota windows allow some ten seconds.
	maxThrottle = time.Minute
	// smallFrame is taken at once for an answer of unknown size; a larger one grows as it arrives.
	smallFrame = 64 << 10
	// maxAnswer bounds every answer but those to Fetch: the metadata of a million partitions.
	maxAnswer = 64 << 20

	correlationSize = 4
)

// conn is one connection to a broker. One goroutine at a time uses it; close may come from anywhere.
type conn struct {
	client *Client
	addr   address
	raw    net.Conn        // what is closed: a tls.Conn would first wait to say goodbye
	rw     net.Conn        // what is read and written
	life   context.Context // ends the connection
	stop   func() bool     // takes it off life
	once   sync.Once

	phase       phase
	versions    map[int16][2]int16 // by request key: what the broker speaks, from and to
	correlation int32
	out         []byte
	notBefore   time.Time // throttled until then
	idleSince   time.Time
}

// adopt makes raw the connection, until life ends.
func (k *conn) adopt(raw net.Conn) {
	k.raw, k.rw = raw, raw
	k.client.busy.Add(1) // by a call that is counted itself, so never after the last one
	k.stop = context.AfterFunc(k.life, k.cut)
}

func (k *conn) close() {
	k.stop()
	k.cut()
}

func (k *conn) cut() {
	k.once.Do(func() {
		k.raw.Close()
		k.client.busy.Done()
	})
}

// fail makes an error of what happened on the connection. The end of the context comes before its consequences.
func (k *conn) fail(ctx context.Context, op string, err error) error {
	if k.life.Err() != nil {
		return ErrClosed
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	e := &Error{Addr: k.addr.host, Op: op, Err: err}
	e.Hint = hint(k.phase, err, k.client.dialer.tls != nil, k.client.dialer.sasl != nil)
	return e
}

// negotiate asks what versions of each request the broker speaks (KIP-35, KIP-511).
func (k *conn) negotiate(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "clustermirror-mirror", "0"
	resp := kmsg.NewPtrApiVersionsResponse()
	// A broker that does not know version 3 answers in the form of version 0, with an error.
	for _, version := range []int16{3, 0} {
		req.SetVersion(version)
		if err := k.send(ctx, req); err != nil {
			return err
		}
		err := k.receive(ctx, req, func(body []byte) error {
			resp.SetVersion(version)
			if len(body) >= 2 && kafka.Error(binary.BigEndian.Uint16(body)) == kafka.UnsupportedVersion {
				resp.SetVersion(0)
			}
			return resp.ReadFrom(body)
		})
		if err != nil {
			return err
		}
		if kafka.Error(resp.ErrorCode) != kafka.UnsupportedVersion {
			break
		}
	}
	if err := CodeError(resp.ErrorCode); err != nil {
		return k.fail(ctx, "negotiate with", err)
	}
	k.versions = make(map[int16][2]int16, len(resp.ApiKeys))
	for _, v := range resp.ApiKeys {
		k.versions[v.ApiKey] = [2]int16{v.MinVersion, v.MaxVersion}
	}
	return nil
}

// version is the greatest version of a request that both sides speak, if it is at least floor and at most most.
func (k *conn) version(key, floor, most int16) (int16, error) {
	has, ok := k.versions[key]
	if !ok {
		has = [2]int16{-1, -1}
	}
	v := min(has[1], most)
	if v < max(has[0], floor) {
		return 0, &VersionError{k.addr.host, keyName(key), has[0], has[1], floor, most}
	}
	return v, nil
}

// roundTrip sends a request in its best version and waits for the answer.
func (k *conn) roundTrip(ctx context.Context, req kmsg.Request, floor, most int16) (kmsg.Response, error) {
	version, err := k.version(req.Key(), floor, most)
	if err != nil {
		return nil, err
	}
	req.SetVersion(version)
	if err := k.send(ctx, req); err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	if err := k.receive(ctx, req, resp.ReadFrom); err != nil {
		return nil, err
	}
	if t, ok := resp.(kmsg.ThrottleResponse); ok {
		ms, _ := t.Throttle()
		k.throttle(ms)
	}
	return resp, nil
}

// throttle keeps the next request back, as the broker asks (KIP-219).
func (k *conn) throttle(ms int32) time.Duration {
	d := min(max(time.Duration(ms)*time.Millisecond, 0), maxThrottle)
	k.notBefore = time.Now().Add(d)
	return d
}

// send writes a request, after the time for which the broker has throttled us.
func (k *conn) send(ctx context.Context, req kmsg.Request) error {
	if d := time.Until(k.notBefore); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return k.fail(ctx, "throttled by", nil)
		case <-t.C:
		}
	}
	k.correlation++
	k.out = k.client.format.AppendRequest(k.out[:0], req, k.correlation)
	k.raw.SetWriteDeadline(time.Now().Add(k.client.cfg.RequestTimeout))
	return k.guard(ctx, req, func() error {
		_, err := k.rw.Write(k.out)
		return err
	})
}

// guard runs one exchange of bytes; the end of the context cuts the connection and with it the exchange.
func (k *conn) guard(ctx context.Context, req kmsg.Request, exchange func() error) error {
	stop := context.AfterFunc(ctx, k.cut)
	err := exchange()
	if !stop() && err == nil {
		err = context.Cause(ctx) // done, but the connection is gone
	}
	if err != nil {
		return k.fail(ctx, keyName(req.Key())+" to", err)
	}
	return nil
}

// receive reads the answer to the request sent last and hands its body to parse. The memory does not go back to its pool: byte
// fields of the answer are parts of it.
func (k *conn) receive(ctx context.Context, req kmsg.Request, parse func(body []byte) error) error {
	return k.guard(ctx, req, func() error {
		limit := maxAnswer
		if req.Key() == int16(kmsg.Fetch) {
			limit = maxFrame
		}
		n, err := k.readHead(0, limit)
		if err != nil {
			return err
		}
		buf, err := k.readBody(n, smallFrame)
		if err != nil {
			return err
		}
		body, err := responseBody(buf.b[:n], req)
		if err != nil {
			return err
		}
		if err := parse(body); err != nil {
			return protocolError("%v", err)
		}
		return nil
	})
}

// readHead reads the length and the correlation id of an answer, which may come as late as wait beyond the request time-out,
// and gives the length of the rest.
func (k *conn) readHead(wait time.Duration, limit int) (int, error) {
	var head [4 + correlationSize]byte
	k.raw.SetReadDeadline(time.Now().Add(wait + k.client.cfg.RequestTimeout))
	if n, err := io.ReadFull(k.rw, head[:]); err != nil {
		if n > 0 && k.phase == negotiating && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, protocolError("%d bytes, then the end: %s", n, greeting(head[:n]))
		}
		return 0, err
	}
	n := int64(int32(binary.BigEndian.Uint32(head[:])))
	if n < correlationSize || n > int64(limit) {
		if k.phase == negotiating {
			return 0, protocolError("%s", greeting(head[:]))
		}
		return 0, protocolError("length %d, at most %d can be right", n, limit)
	}
	if id := int32(binary.BigEndian.Uint32(head[4:])); id != k.correlation {
		return 0, protocolError("correlation id %d, expected %d", id, k.correlation)
	}
	if k.phase == first {
		k.phase = later
	}
	return int(n) - correlationSize, nil
}

// readBody reads n bytes into a buffer that is large enough for expect of them at first and beyond grows only as they
// arrive: a claim costs the peer as much as us.
func (k *conn) readBody(n, expect int) (*buffer, error) {
	buf := newBuffer(min(n, expect))
	for have := 0; have < n; {
		if have == len(buf.b) {
			wider := newBuffer(min(n, 2*have))
			copy(wider.b, buf.b)
			buf.release()
			buf = wider
		}
		k.raw.SetReadDeadline(time.Now().Add(k.client.cfg.RequestTimeout))
		upto := min(n, len(buf.b), have+step)
		if _, err := io.ReadFull(k.rw, buf.b[have:upto]); err != nil {
			buf.release()
			return nil, err
		}
		have = upto
	}
	return buf, nil
}

// responseBody leaves out the tags of the response header, which flexible versions have (but never ApiVersions, KIP-511).
func responseBody(frame []byte, req kmsg.Request) ([]byte, error) {
	if !req.IsFlexible() || req.Key() == int16(kmsg.ApiVersions) {
		return frame, nil
	}
	return skipTags(frame)
}

func skipTags(b []byte) ([]byte, error) {
	short := protocolError("header is cut short")
	uvarint := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	count, ok := uvarint()
	for ; ok && count > 0; count-- {
		var size uint64
		if _, ok = uvarint(); !ok {
			break
		}
		if size, ok = uvarint(); !ok || size > uint64(len(b)) {
			return nil, short
		}
		b = b[size:]
	}
	if !ok {
		return nil, short
	}
	return b, nil
}
