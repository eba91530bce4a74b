package broker

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// conn is one connection. Requests are answered one after the other, as Kafka does; the next one is read meanwhile, so that a
// client that goes away ends its long poll.
type conn struct {
	b      *Broker
	nc     net.Conn
	node   int32
	memory bool
	login  login
	limit  atomic.Int64 // of a request's size; it grows with the login
	out    []byte       // scratch for answers
}

// loginRequest bounds the requests of clients that have not logged in. Kafka: sasl.server.max.receive.size.
const loginRequest = 512 << 10

func newConn(b *Broker, nc net.Conn, node int32, memory bool) *conn {
	c := &conn{b: b, nc: nc, node: node, memory: memory}
	switch {
	case memory:
		c.login = login{done: true, principal: "User:local"}
	case b.opts.tls != nil:
		c.nc = tls.Server(nc, b.opts.tls)
	}
	if b.opts.plain == nil && !memory {
		c.login = login{done: true, principal: anonymous}
	}
	c.setLimit()
	return c
}

func (c *conn) setLimit() {
	limit := c.b.opts.maxRequest
	if !c.login.done {
		limit = min(limit, loginRequest)
	}
	c.limit.Store(int64(limit))
}

// requests are the buffers of requests, which live until their answer is on its way.
var requests = sync.Pool{New: func() any { return new([]byte) }}

// keptRequest is the size up to which a buffer is used again.
const keptRequest = 4 << 20

// serve returns when the connection is closed, by either side.
func (c *conn) serve() {
	ctx, cancel := context.WithCancel(c.b.ctx)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer c.nc.Close()
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.nc.Close() })()

	next := make(chan *[]byte)
	reader.Go(func() {
		defer cancel()
		in := bufio.NewReaderSize(c.nc, 16<<10)
		for {
			buf := requests.Get().(*[]byte)
			var err error
			if *buf, err = readFrame(in, *buf, c.limit.Load); err != nil {
				c.note(ctx, err)
				return
			}
			select {
			case next <- buf:
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		select {
		case buf := <-next:
			if err := c.answer(ctx, *buf); err != nil {
				c.note(ctx, err)
				return
			}
			if cap(*buf) <= keptRequest {
				requests.Put(buf)
			}
		case <-ctx.Done():
			return
		}
	}
}

// note logs why a connection ends, unless it is the ordinary end.
func (c *conn) note(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.b.log.Debug("connection ends", "node", c.node, "err", err)
	}
}

// answer handles one request. An error ends the connection.
func (c *conn) answer(ctx context.Context, frame []byte) error {
	h, body, err := parseHeader(frame)
	if err != nil {
		return err
	}
	a, known := apis[h.key]
	if !known || !a.has(h.version) {
		if h.key == keyApiVersions {
			// A client from the future learns in the oldest form what it may ask.
			resp := kmsg.NewPtrApiVersionsResponse()
			resp.ErrorCode, resp.ApiKeys = unsupportedVersion, Keys()
			return c.write(h, resp)
		}
		return fmt.Errorf("request with key %d has version %d: unsupported", h.key, h.version)
	}
	req, _ := NewRequest(h.key, h.version)
	if err := parseBody(body, req); err != nil {
		return fmt.Errorf("request with key %d, version %d: %w", h.key, h.version, err)
	}
	resp, err := c.login.handle(c.b.opts.plain, req)
	if err != nil {
		return err
	}
	if resp != nil {
		c.setLimit()
		return c.write(h, resp)
	}
	if h.key != keyFetch {
		// A client that goes away ends its wait for data, but not what it asked to be done.
		ctx = c.b.ctx
	}
	cl := call{Client: Client{Node: c.node, Principal: c.login.principal}, memory: c.memory, local: c.nc.LocalAddr()}
	defer cl.room.release()
	resp = a.handle(c.b, ctx, &cl, req)
	if cl.silent || cl.failed != nil {
		return cl.failed
	}
	return c.write(h, resp)
}

func (c *conn) write(h header, resp kmsg.Response) error {
	var err error
	c.out, err = writeAnswer(c.nc, c.out, h.correlation, resp)
	if cap(c.out) > keptRequest {
		c.out = nil
	}
	return err
}

// pause waits; false if the broker was closed meanwhile.
func (b *Broker) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-b.ctx.Done():
		return false
	}
}
