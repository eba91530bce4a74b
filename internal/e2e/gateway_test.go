package e2e

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// gateway is the one address that clients know; which cluster it leads to changes. It counts what they ask.
type gateway struct {
	net.Listener
	work sync.WaitGroup

	mu    sync.Mutex
	to    string // where it leads; "" for nowhere
	conns []net.Conn
	asked map[string]map[int16]int // by client id and API key
}

// API keys.
const (
	fetchKey    = 1
	metadataKey = 3
	epochEndKey = 23 // OffsetForLeaderEpoch
)

func openGateway(t testing.TB) *gateway {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gateway{Listener: l, asked: make(map[string]map[int16]int)}
	g.work.Go(g.accept)
	t.Cleanup(func() {
		l.Close()
		g.lead("")
		g.work.Wait()
	})
	return g
}

// lead cuts all connections and leads the next ones elsewhere.
func (g *gateway) lead(to string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		c.Close()
	}
	g.to, g.conns = to, nil
}

// takeCounts answers how often a client has asked what since the last time.
func (g *gateway) takeCounts(client string) map[int16]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	counts := g.asked[client]
	delete(g.asked, client)
	return counts
}

func (g *gateway) count(client string, key int16) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked[client] == nil {
		g.asked[client] = make(map[int16]int)
	}
	g.asked[client][key]++
}

func (g *gateway) accept() {
	for {
		client, err := g.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		broker, err := net.Dial("tcp", g.to)
		if err != nil {
			client.Close()
		} else {
			g.conns = append(g.conns, client, broker)
			g.work.Go(func() { g.pass(client, broker) })
		}
		g.mu.Unlock()
	}
}

// pass hands on requests one by one, and answers as they come, until either side goes away.
func (g *gateway) pass(client, broker net.Conn) {
	g.work.Go(func() {
		_, _ = io.Copy(client, broker)
		client.Close()
	})
	defer broker.Close()
	for frame := make([]byte, 4); ; frame = frame[:4] {
		if _, err := io.ReadFull(client, frame); err != nil {
			return
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
		if _, err := io.ReadFull(client, frame[4:]); err != nil {
			return
		}
		// size, key, version, correlation id, length of the client id
		n := int(binary.BigEndian.Uint16(frame[12:]))
		g.count(string(frame[14:14+n]), int16(binary.BigEndian.Uint16(frame[4:])))
		if _, err := broker.Write(frame); err != nil {
			return
		}
	}
}
