// Package wire speaks the Kafka protocol to the brokers of a source: the few requests that a mirror needs, over connections
// that it owns.
//
// Dialling, TLS and SASL follow the exported fields of the host's kafka.Transport; the exchange on a connection is our own:
// kafka-go's stops at Fetch v11, hides the connection (a long poll could not be ended at once), decodes answers by the
// lengths they claim, and leaves a goroutine behind a peer that falls silent during SASL.
//
//	Client   knows the brokers; single requests over pooled connections
//	Session  one connection to one broker: an incremental fetch session (KIP-227)
//	conn     one connection: versions, frames, time-outs, throttling
//	buffer   pooled memory for the frames
//
// No goroutine runs here but those of the callers. A context that ends closes the connection that is waited on, so that a
// call returns at once whatever the broker does.
package wire

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	defaultRequestTimeout = 30 * time.Second
	defaultDialTimeout    = 5 * time.Second // kafka-go's
	defaultIdleTimeout    = 30 * time.Second
)

// Config says how to reach a source.
type Config struct {
	// Addr are the bootstrap brokers, as kafka.TCP gives them.
	Addr net.Addr
	// Transport carries Dial, DialTimeout, IdleTimeout, TLS, SASL, Resolver and ClientID; it is read, never changed. Nil means
	// plain TCP.
	Transport *kafka.Transport
	// ClientID, if set, is announced instead of the Transport's.
	ClientID string
	// RequestTimeout is how long a broker may take to answer (beyond the wait that a fetch asks for) and then to send each
	// further piece of the answer. The connection is closed when it has passed. Default 30 s.
	RequestTimeout time.Duration
	// Logger gets debug lines about connections. Nil means none.
	Logger *slog.Logger
	// Accept, if set, is asked with each cluster id that Metadata brings: on an error, which Metadata then returns, none of the
	// brokers that it names is ever connected to.
	Accept func(clusterID string) error
	// Reserve, if set, is asked for the bytes of each fetch answer before they are read, and may wait (the broker then waits
	// too). n never exceeds the MaxBytes of the request by more than its overhead: what a broker sends beyond (one batch
	// larger than the limit, KIP-74) is not counted. release is called once, when the last holder has released the Response.
	Reserve func(ctx context.Context, n int) (release func(), err error)
}

// Client sends requests to the brokers of one cluster. Its methods may be called concurrently.
type Client struct {
	cfg       Config
	dialer    dialer
	format    *kmsg.RequestFormatter
	bootstrap []address

	life context.Context // ends with Close, and every connection with it
	end  context.CancelCauseFunc
	busy sync.WaitGroup // calls and connections

	mu      sync.Mutex
	closed  bool
	good    address // answered last
	brokers map[int32]string
	idle    map[address][]*conn
}

// New makes a client. Nothing is dialled before the first call.
func New(cfg Config) *Client {
	if cfg.Transport == nil {
		cfg.Transport = new(kafka.Transport)
	}
	if cfg.ClientID == "" {
		cfg.ClientID = cfg.Transport.ClientID
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = defaultRequestTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		cfg:       cfg,
		dialer:    newDialer(cfg.Transport),
		format:    kmsg.NewRequestFormatter(kmsg.FormatterClientID(cfg.ClientID)),
		bootstrap: addresses(cfg.Addr),
		brokers:   make(map[int32]string),
		idle:      make(map[address][]*conn),
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Close cuts every connection at once, sessions included, and waits until the calls in progress have returned: ErrClosed is
// what they, and later ones, get. Closing twice is harmless.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end(ErrClosed)
	c.busy.Wait()
}

// begin opens a call: its context ends with the caller's or with life (that of the client, or of one of its sessions).
func (c *Client) begin(ctx, life context.Context) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || life.Err() != nil {
		return nil, nil, ErrClosed
	}
	c.busy.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil); c.busy.Done() }, nil
}

// address is one place to dial, as a net.Addr names it.
type address struct{ network, host string }

// addresses splits an address of kafka-go, which joins several by commas.
func addresses(a net.Addr) []address {
	if a == nil {
		return nil
	}
	hosts, networks := strings.Split(a.String(), ","), strings.Split(a.Network(), ",")
	list := make([]address, len(hosts))
	for i, host := range hosts {
		list[i] = address{networks[min(i, len(networks)-1)], host}
	}
	return list
}

// learn remembers where brokers listen.
func (c *Client) learn(brokers map[int32]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(c.brokers, brokers)
}

func (c *Client) broker(id int32) (address, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	host, ok := c.brokers[id]
	if !ok {
		return address{}, &UnknownBrokerError{Broker: id}
	}
	return address{"tcp", host}, nil
}

// anywhere lists every address that may answer for the cluster: what answered last, then the bootstrap brokers, then those
// that metadata named (the bootstrap ones may be long gone).
func (c *Client) anywhere() []address {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []address
	add := func(a address) {
		if a != (address{}) && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	add(c.good)
	for _, a := range c.bootstrap {
		add(a)
	}
	for _, id := range slices.Sorted(maps.Keys(c.brokers)) {
		add(address{"tcp", c.brokers[id]})
	}
	return list
}

// ask sends one request to one address and waits for the answer.
func (c *Client) ask(ctx context.Context, to address, req kmsg.Request, floor, most int16) (kmsg.Response, error) {
	for {
		k, reused, err := c.take(ctx, to)
		if err != nil {
			return nil, err
		}
		resp, err := k.roundTrip(ctx, req, floor, most)
		if err == nil || errors.Is(err, ErrVersion) {
			c.give(k)
			return resp, err
		}
		k.close()
		// Brokers close idle connections. That a used one is gone says nothing about the broker: ask again, and as each
		// turn takes one from the pool, the last try is a new one.
		if reused && Lost(err) && ctx.Err() == nil {
			continue
		}
		return nil, err
	}
}

// askBroker is ask for a broker that metadata has named.
func (c *Client) askBroker(ctx context.Context, id int32, req kmsg.Request, floor, most int16) (kmsg.Response, error) {
	to, err := c.broker(id)
	if err != nil {
		return nil, err
	}
	return c.ask(ctx, to, req, floor, most)
}

// askAny is ask for whichever broker answers first in line.
func (c *Client) askAny(ctx context.Context, req kmsg.Request, floor, most int16) (kmsg.Response, error) {
	var failed []error
	for _, to := range c.anywhere() {
		resp, err := c.ask(ctx, to, req, floor, most)
		if err == nil {
			c.mu.Lock()
			c.good = to
			c.mu.Unlock()
			return resp, nil
		}
		failed = append(failed, err)
		// Refused credentials are refused everywhere, and asking on may lock the account.
		if ctx.Err() != nil || errors.Is(err, ErrClosed) || errors.Is(err, kafka.SASLAuthenticationFailed) {
			return nil, err
		}
	}
	if failed == nil {
		return nil, errors.New("no bootstrap broker is given")
	}
	return nil, errors.Join(failed...)
}

// take gives a connection that nobody else uses: an idle one, or a new one.
func (c *Client) take(ctx context.Context, to address) (k *conn, reused bool, err error) {
	c.mu.Lock()
	stale := c.expire(time.Now())
	if free := c.idle[to]; len(free) > 0 {
		k = free[len(free)-1]
		c.idle[to] = free[:len(free)-1]
	}
	c.mu.Unlock()
	for _, old := range stale {
		old.close()
	}
	if k != nil {
		return k, true, nil
	}
	k, err = c.connect(ctx, c.life, to)
	return k, false, err
}

// give puts a connection back for the next call.
func (c *Client) give(k *conn) {
	k.idleSince = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle[k.addr] = append(c.idle[k.addr], k)
}

// expire takes out the idle connections that have been so for too long; the lock is held.
func (c *Client) expire(now time.Time) (stale []*conn) {
	for to, free := range c.idle {
		fresh := free[:0]
		for _, k := range free {
			if now.Sub(k.idleSince) < c.dialer.idleTimeout {
				fresh = append(fresh, k)
			} else {
				stale = append(stale, k)
			}
		}
		clear(free[len(fresh):])
		if c.idle[to] = fresh; len(fresh) == 0 {
			delete(c.idle, to)
		}
	}
	return stale
}
