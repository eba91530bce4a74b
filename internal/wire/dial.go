package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// dialer is what a kafka.Transport says of connections. The fields are copied: the Transport holds a lock, and is the
// host's.
type dialer struct {
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
	timeout     time.Duration // for a whole connect, TLS and SASL included
	idleTimeout time.Duration
	tls         *tls.Config
	sasl        sasl.Mechanism
	resolver    kafka.BrokerResolver
}

func newDialer(t *kafka.Transport) dialer {
	d := dialer{t.Dial, t.DialTimeout, t.IdleTimeout, t.TLS, t.SASL, t.Resolver}
	if d.dial == nil {
		d.dial = new(net.Dialer).DialContext
	}
	if d.timeout <= 0 {
		d.timeout = defaultDialTimeout
	}
	if d.idleTimeout <= 0 {
		d.idleTimeout = defaultIdleTimeout
	}
	return d
}

// connect makes a connection that is ready for requests: dialled, encrypted, negotiated, authenticated. It lives until it is
// closed or life ends.
func (c *Client) connect(ctx, life context.Context, to address) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.dialer.timeout, errDialTimeout)
	defer cancel()
	k := &conn{client: c, addr: to, life: life}
	raw, err := c.dialer.open(ctx, to)
	if err != nil {
		return nil, k.fail(ctx, "connect to", err)
	}
	k.adopt(raw)
	if err := k.prepare(ctx); err != nil {
		k.close()
		return nil, err
	}
	c.cfg.Logger.Debug("connected", "broker", to.host, "tls", c.dialer.tls != nil, "sasl", c.dialer.sasl != nil)
	return k, nil
}

// errDialTimeout tells the end of our own patience from that of the caller.
var errDialTimeout error = dialTimeout{}

type dialTimeout struct{}

func (dialTimeout) Error() string   { return "not ready in time" }
func (dialTimeout) Timeout() bool   { return true }
func (dialTimeout) Temporary() bool { return true }

// open dials, by way of the resolver if there is one.
func (d *dialer) open(ctx context.Context, to address) (net.Conn, error) {
	if d.resolver == nil {
		return d.dial(ctx, to.network, to.host)
	}
	host, port, err := splitHostPort(to.host)
	if err != nil {
		return nil, err
	}
	ips, err := d.resolver.LookupBrokerIPAddr(ctx, kafka.Broker{Host: host, Port: port, ID: -1})
	if err != nil {
		return nil, err
	}
	err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	for _, ip := range ips {
		var c net.Conn
		if c, err = d.dial(ctx, to.network, net.JoinHostPort(ip.String(), strconv.Itoa(port))); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func splitHostPort(addr string) (host string, port int, err error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(service)
	return host, port, err
}

// prepare brings a fresh connection to where requests can be sent.
func (k *conn) prepare(ctx context.Context) error {
	d := &k.client.dialer
	if d.tls != nil {
		k.phase = handshaking
		if err := k.encrypt(ctx, d.tls); err != nil {
			return k.fail(ctx, "TLS handshake with", err)
		}
	}
	k.phase = negotiating
	if err := k.negotiate(ctx); err != nil {
		return err
	}
	if d.sasl != nil {
		k.phase = authenticating
		if err := k.authenticate(ctx, d.sasl); err != nil {
			return err
		}
	}
	k.phase = first
	return nil
}

func (k *conn) encrypt(ctx context.Context, cfg *tls.Config) error {
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		if cfg.ServerName, _, _ = net.SplitHostPort(k.addr.host); cfg.ServerName == "" {
			cfg.ServerName = k.addr.host
		}
	}
	t := tls.Client(k.raw, cfg)
	k.rw = t
	return t.HandshakeContext(ctx)
}

// maxSASLSteps ends a dialogue that a hostile broker could draw out.
const maxSASLSteps = 16

func (k *conn) authenticate(ctx context.Context, mechanism sasl.Mechanism) error {
	refused := func(err error) error { return k.fail(ctx, "SASL "+mechanism.Name()+" with", err) }

	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.Mechanism = mechanism.Name()
	resp, err := k.roundTrip(ctx, hello, 1, 1)
	if errors.Is(err, ErrVersion) {
		return refused(fmt.Errorf("%w: %w", kafka.IllegalSASLState, err))
	} else if err != nil {
		return err
	}
	offer := resp.(*kmsg.SASLHandshakeResponse)
	if err := CodeError(offer.ErrorCode); errors.Is(err, kafka.UnsupportedSASLMechanism) {
		return refused(fmt.Errorf("%w: it offers %.200q", err, strings.Join(offer.SupportedMechanisms, ", ")))
	} else if err != nil {
		return refused(err)
	}

	// Credentials are asked for anew on each connection: that is how tokens are renewed.
	host, port, _ := splitHostPort(k.addr.host)
	session, state, err := mechanism.Start(sasl.WithMetadata(ctx, &sasl.Metadata{Host: host, Port: port}))
	if err != nil {
		return refused(err)
	}
	for range maxSASLSteps {
		step := kmsg.NewPtrSASLAuthenticateRequest()
		step.SASLAuthBytes = state
		resp, err := k.roundTrip(ctx, step, 0, step.MaxVersion())
		if err != nil {
			return err
		}
		challenge := resp.(*kmsg.SASLAuthenticateResponse)
		// The broker's own text is left out: it may echo what was sent.
		if err := CodeError(challenge.ErrorCode); err != nil {
			return refused(err)
		}
		var done bool
		if done, state, err = session.Next(ctx, challenge.SASLAuthBytes); err != nil {
			return refused(err)
		} else if done {
			return nil
		}
	}
	return refused(protocolError("the dialogue does not end"))
}
