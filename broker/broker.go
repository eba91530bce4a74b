// Package broker is a small server that speaks the Kafka protocol over a mirror.Coordinator: ordinary Kafka clients read a
// mirror through it, and one Go program can be the source of another. It is a starter, an edge replica and a test source, not a
// replacement for Kafka: no consumer groups with members, no quotas, no ACL store, no replication between machines.
//
//	c, err := mirror.Open(ctx, host)
//	defer c.Close()
//	b, err := broker.New(c)
//	defer b.Close()
//	err = b.Listen("127.0.0.1:9092") // returns at once; clients of the same process use b.Source or b.Dial and need no port
//
// Topics are made by Host.EnsureTopic, by a client's CreateTopics, or with the option AutoCreate. Over memlog each run is a new
// cluster: a mirror that outlives the process needs a source on disklog.
//
// Writes pass the coordinator's gate: a topic that a mirror owns is read-only here, whoever asks. What the broker must remember
// across restarts (producer ids handed out, transactions, committed group offsets) it keeps in a topic of the host,
// StateTopic, which comes to be with the first such thing.
//
// Consumers that choose their partitions themselves commit offsets here. Those of a mirror's source are not mirrored: whoever moves a
// group commits here what it had committed there, with the leader epochs, and it goes on where the logs part, if they do. WARNING: to
// go from a mirror here back to its source, while the source still leads, Java's consumer must be started anew: the leader epoch here
// is above the source's, and it would fetch for ever.
//
// With Nodes the broker plays a cluster of several brokers over the same logs, so that elections, lost tails and dead brokers
// can be scripted: see Elect, Lag, Kill and Restart. What they do is not remembered across restarts.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/segmentio/kafka-go"

	"github.com/clustermirror/mirror"
)

// Broker serves one Coordinator. All its methods may be called concurrently.
type Broker struct {
	c    *mirror.Coordinator
	host mirror.Host
	opts options
	log  *slog.Logger

	topics    *catalog
	cluster   *cluster
	sessions  *sessions
	store     *store
	ids       *producerIDs
	producers *producers
	txns      *txns
	groups    *groups

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // every goroutine of the broker

	mu        sync.Mutex // guards what follows; never held across I/O
	closed    bool
	listeners []net.Listener // of node i+1; nil where there is none
	conns     map[*conn]struct{}
}

// New makes a broker over c and reads back what an earlier one on the same host remembered. It listens nowhere until it is told
// to. Close ends it; the Coordinator stays open.
func New(c *mirror.Coordinator, opts ...Option) (*Broker, error) {
	o := defaults()
	for _, opt := range opts {
		opt(&o)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	b := &Broker{
		c: c, host: c.Host(), opts: o, log: o.log,
		cluster:   newCluster(o.nodes),
		sessions:  newSessions(),
		producers: newProducers(),
		listeners: make([]net.Listener, o.nodes),
		conns:     make(map[*conn]struct{}),
	}
	b.topics = newCatalog(c)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.store = newStore(b)
	b.ids = newProducerIDs(b)
	b.txns = newTxns(b)
	b.groups = newGroups(b)
	if err := b.store.load(b.ctx); err != nil {
		b.cancel()
		return nil, fmt.Errorf("read %s: %w", StateTopic, err)
	}
	return b, nil
}

// Listen opens a TCP port for each node and serves it; it returns once they are open. With several nodes the second one gets the
// port after the first one's, and so on; port 0 means any free ports. Addresses that other machines can reach are refused
// without the option AllowRemote.
func (b *Broker) Listen(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("listen on %s: port must be a number", addr)
	}
	if !b.opts.remote && !loopback(host) {
		return fmt.Errorf("listen on %s: other machines could reach it; use the option AllowRemote if they shall, or listen on 127.0.0.1", addr)
	}
	var open []net.Listener
	for i := range b.opts.nodes {
		port := first
		if first != 0 {
			port += int(i)
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			for _, l := range open {
				l.Close()
			}
			return err
		}
		open = append(open, l)
	}
	for i, l := range open {
		if err := b.claim(l); err != nil {
			for _, l := range open[i:] {
				l.Close()
			}
			return err
		}
		b.work.Go(func() {
			if err := b.accept(l); !errors.Is(err, mirror.ErrClosed) {
				b.log.Error("listener ends", "addr", l.Addr().String(), "err", err)
			}
		})
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Serve accepts connections of the first node that has no listener yet, until the broker or l is closed. It takes l over and
// always returns an error: mirror.ErrClosed after Close. What l listens on is not checked; it does TLS only if the option TLS
// is set.
func (b *Broker) Serve(l net.Listener) error {
	if err := b.claim(l); err != nil {
		l.Close()
		return err
	}
	return b.accept(l)
}

// Addr is where the first node listens; nil before Listen or Serve.
func (b *Broker) Addr() net.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners[0] == nil {
		return nil
	}
	return b.listeners[0].Addr()
}

// Source is this broker as the source of a mirror in the same process: connections in memory, without a port. Each call makes
// a Transport of its own, which the caller may change before it is used.
func (b *Broker) Source() mirror.Source {
	names := make([]string, b.opts.nodes)
	for i := range names {
		names[i] = memoryAddr(int32(i + 1))
	}
	return mirror.Source{Addr: kafka.TCP(names...), Transport: &kafka.Transport{Dial: b.Dial}}
}

// memoryPort is part of the names under which nodes are known in memory: node-1:9092 and so on.
const memoryPort = 9092

func memoryAddr(node int32) string {
	return net.JoinHostPort(memoryName(node), strconv.Itoa(memoryPort))
}

func memoryName(node int32) string { return "node-" + strconv.Itoa(int(node)) }

// Dial connects in memory to the node that address names (node-1:9092, node-2:9092, ...): for the dial function of any Kafka
// client in this process. Such connections carry neither TLS nor SASL: their principal is User:local.
func (b *Broker) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "memory", Err: fmt.Errorf("%s: %w", address, err)}
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	name, _, _ := strings.Cut(address, ":")
	number, ok := strings.CutPrefix(name, "node-")
	id, err := strconv.ParseInt(number, 10, 32)
	if !ok || err != nil || id < 1 || int32(id) > b.opts.nodes {
		return fail(fmt.Errorf("no such node, there are node-1 to node-%d", b.opts.nodes))
	}
	client, server := net.Pipe()
	if err := b.attach(server, int32(id), true); err != nil {
		client.Close()
		return fail(err)
	}
	return client, nil
}

// Close cuts all connections, ends all goroutines and waits for them. Closing twice is harmless.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	listeners := b.listeners
	b.mu.Unlock()
	b.cancel() // cuts the connections
	for _, l := range listeners {
		if l != nil {
			l.Close()
		}
	}
	b.work.Wait()
	b.sessions.drop(func(*session) bool { return true })
	return nil
}

// claim makes l the listener of the first node without one.
func (b *Broker) claim(l net.Listener) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return mirror.ErrClosed
	}
	for i := range b.listeners {
		if b.listeners[i] == nil {
			b.listeners[i] = l
			return nil
		}
	}
	return fmt.Errorf("serve %s: every one of the %d nodes has a listener", l.Addr(), b.opts.nodes)
}

func (b *Broker) nodeOf(l net.Listener) int32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.listeners {
		if b.listeners[i] == l {
			return int32(i + 1)
		}
	}
	return 0
}

func (b *Broker) accept(l net.Listener) error {
	node := b.nodeOf(l)
	for {
		nc, err := l.Accept()
		if b.ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return mirror.ErrClosed
		}
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ECONNABORTED) {
				b.log.Warn("accept", "addr", l.Addr().String(), "err", err)
				if !b.pause(acceptPause) {
					return mirror.ErrClosed
				}
				continue
			}
			return err
		}
		if err := b.attach(nc, node, false); err != nil {
			b.log.Debug("connection refused", "node", node, "err", err)
		}
	}
}

// attach serves a connection to a node; it owns nc from now on.
func (b *Broker) attach(nc net.Conn, node int32, memory bool) error {
	c := newConn(b, nc, node, memory)
	b.mu.Lock()
	err := error(nil)
	switch {
	case b.closed:
		err = mirror.ErrClosed
	case !b.cluster.alive(node):
		err = syscall.ECONNREFUSED
	default:
		b.conns[c] = struct{}{}
		b.work.Add(1)
	}
	b.mu.Unlock()
	if err != nil {
		nc.Close()
		return err
	}
	go func() {
		defer b.work.Done()
		c.serve()
		b.mu.Lock()
		delete(b.conns, c)
		b.mu.Unlock()
	}()
	return nil
}

// endpoint is the address under which the client behind c reaches a node.
func (b *Broker) endpoint(c *call, node int32) (host string, port int32, ok bool) {
	if c.memory {
		return memoryName(node), memoryPort, true
	}
	if i := int(node) - 1; i < len(b.opts.advertised) {
		a := b.opts.advertised[i]
		return a.host, a.port, true
	}
	b.mu.Lock()
	l := b.listeners[node-1]
	b.mu.Unlock()
	if l == nil {
		return "", 0, false
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return "", 0, false
	}
	ip := addr.IP
	if local, ok := c.local.(*net.TCPAddr); ok && ip.IsUnspecified() {
		ip = local.IP // of all our addresses the one that this client could reach
	}
	return ip.String(), int32(addr.Port), true
}
