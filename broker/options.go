package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"
)

// Option changes what New makes.
type Option func(*options)

type options struct {
	nodes      int32
	remote     bool
	advertised []hostPort
	tls        *tls.Config
	plain      func(user, password string) bool
	authorize  func(principal, operation, resource string) bool
	autoCreate int32
	noSync     bool
	maxRequest int
	log        *slog.Logger
	bad        []error
}

type hostPort struct {
	host string
	port int32
}

func defaults() options {
	return options{
		nodes:      1,
		maxRequest: 100 << 20, // Kafka's socket.request.max.bytes
		log:        slog.New(slog.DiscardHandler),
	}
}

const (
	maxNodes    = 100
	acceptPause = 100 * time.Millisecond
)

// Nodes plays a cluster of n brokers, 1 to 100, with ids from 1. They share the logs; partition p is led by node p mod n + 1 until
// an election. Default 1.
func Nodes(n int) Option { return func(o *options) { o.nodes = int32(min(max(n, -1), maxNodes+1)) } }

// AllowRemote lets Listen open ports that other machines can reach. Think of TLS, SASLPlain and Authorize too.
func AllowRemote() Option { return func(o *options) { o.remote = true } }

// Advertise sets the addresses (host:port) that clients are told, of node 1, node 2 and so on, where those of the listeners are
// not what clients reach. Kafka: advertised.listeners.
func Advertise(addrs ...string) Option {
	return func(o *options) {
		for _, a := range addrs {
			host, port, err := net.SplitHostPort(a)
			n, perr := strconv.ParseUint(port, 10, 16)
			if err = errors.Join(err, perr); err != nil {
				o.bad = append(o.bad, fmt.Errorf("advertise %q: %w", a, err))
				continue
			}
			o.advertised = append(o.advertised, hostPort{host, int32(n)})
		}
	}
}

// TLS makes every listener speak TLS. Connections in memory stay plain.
func TLS(c *tls.Config) Option { return func(o *options) { o.tls = c } }

// SASLPlain makes every connection over a listener log in with SASL PLAIN, and asks ok for each. The principal is User:<user>.
// ok is called concurrently. PLAIN sends the password as it is: use it with TLS.
func SASLPlain(ok func(user, password string) bool) Option {
	return func(o *options) { o.plain = ok }
}

// Authorize asks ok before each operation; default: everything is allowed. The principal is User:<name>, User:ANONYMOUS without
// SASL and User:local in memory; the operation is one of Kafka's (Read, Write, Create, Delete, Alter, Describe,
// DescribeConfigs, IdempotentWrite); the resource is Topic:<name>, Group:<name>, TransactionalId:<id> or Cluster:kafka-cluster.
// ok is called concurrently and often: it should answer from memory.
func Authorize(ok func(principal, operation, resource string) bool) Option {
	return func(o *options) { o.authorize = ok }
}

// AutoCreate creates topics with that many partitions when a client that allows it asks for their metadata. Default: never.
// Kafka: auto.create.topics.enable, num.partitions.
func AutoCreate(partitions int) Option {
	return func(o *options) {
		if partitions < 1 || partitions > maxPartitions {
			o.bad = append(o.bad, fmt.Errorf("auto create with %d partitions: want 1 to %d", partitions, maxPartitions))
		}
		o.autoCreate = int32(partitions)
	}
}

// NoSync answers producers that wait for all replicas (acks=all) before their records are durable, as Kafka does. Default: such
// an answer comes after Log.Sync. What the broker itself must remember is synced either way.
func NoSync() Option { return func(o *options) { o.noSync = true } }

// MaxRequestBytes bounds the size of a request, from 1,000 bytes to 1 GiB. Default 100 MiB. Kafka: socket.request.max.bytes.
func MaxRequestBytes(n int) Option {
	return func(o *options) {
		if n < 1000 || n > 1<<30 {
			o.bad = append(o.bad, fmt.Errorf("request limit of %d bytes: want 1,000 to 1 GiB", n))
		}
		o.maxRequest = n
	}
}

// Logger gets what an operator should see. Default: nothing is logged.
func Logger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// check names every mistake at once.
func (o *options) check() error {
	if o.nodes < 1 || o.nodes > maxNodes {
		o.bad = append(o.bad, fmt.Errorf("number of nodes: want 1 to %d", maxNodes))
	}
	if o.log == nil {
		o.bad = append(o.bad, errors.New("logger is nil"))
	}
	if len(o.bad) > 0 {
		return fmt.Errorf("broker options: %w", errors.Join(o.bad...))
	}
	return nil
}
