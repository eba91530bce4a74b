package mirror_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
)

// peer stands between mirrors and a source that answers as it should, and alters its answers: so tests make sources that lie, are old,
// or are broken in one point.
type peer struct {
	source *source
	relays sync.WaitGroup

	mu    sync.Mutex
	rules map[int16]func(kmsg.Request, kmsg.Response)
	asked map[int16]int // how many requests of a kind there were
	conns []net.Conn    // all that were ever made
}

func (s *source) peer() *peer {
	p := &peer{source: s, rules: make(map[int16]func(kmsg.Request, kmsg.Response)), asked: make(map[int16]int)}
	s.peers = append(s.peers, p)
	return p
}

// alter has f change the answers of one kind from now on; it may know the request. The later one replaces the earlier.
func alter[Q kmsg.Request, A kmsg.Response](p *peer, f func(Q, A)) {
	var kind A
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules[kind.Key()] = func(req kmsg.Request, resp kmsg.Response) { f(req.(Q), resp.(A)) }
}

// honest has all answers come as the source gives them, from now on.
func (p *peer) honest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.rules)
}

// speaks bounds the versions of requests, by key; those below 0 are not spoken at all. Connections are made anew: they ask once.
func (p *peer) speaks(most map[int16]int16) {
	alter(p, func(_ *kmsg.ApiVersionsRequest, resp *kmsg.ApiVersionsResponse) {
		var keys []kmsg.ApiVersionsResponseApiKey
		for _, k := range resp.ApiKeys {
			if v, ok := most[k.ApiKey]; ok {
				k.MaxVersion = v
			}
			if k.MaxVersion >= 0 {
				keys = append(keys, k)
			}
		}
		resp.ApiKeys = keys
	})
	p.hangUp()
}

// hangUp cuts all connections.
func (p *peer) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

// count is how many requests of a kind there were.
func (p *peer) count(key int16) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[key]
}

// Source is the source as seen through the peer.
func (p *peer) Source() mirror.Source {
	return mirror.Source{Addr: p.source.broker.Source().Addr, Transport: &kafka.Transport{Dial: p.dial}}
}

func (p *peer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	inner, err := p.source.broker.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	p.mu.Lock()
	p.conns = append(p.conns, theirs)
	p.mu.Unlock()
	p.relays.Go(func() {
		defer inner.Close()
		defer theirs.Close()
		for p.relay(theirs, inner) == nil {
		}
	})
	return ours, nil
}

// relay hands one request to the source, and its answer, altered, back.
func (p *peer) relay(mirror, source io.ReadWriter) error {
	asked, err := frame(mirror)
	if err != nil {
		return err
	}
	if _, err := source.Write(asked); err != nil {
		return err
	}
	answer, err := frame(source)
	if err != nil {
		return err
	}
	key, version := int16(binary.BigEndian.Uint16(asked[4:])), int16(binary.BigEndian.Uint16(asked[6:]))
	p.mu.Lock()
	p.asked[key]++
	f := p.rules[key]
	p.mu.Unlock()
	if f != nil {
		if answer, err = altered(asked, answer, key, version, f); err != nil {
			panic(err) // the test's own fault
		}
	}
	_, err = mirror.Write(answer)
	return err
}

// frame reads a length and what it counts.
func frame(r io.Reader) ([]byte, error) {
	b := make([]byte, 4)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	b = append(b, make([]byte, binary.BigEndian.Uint32(b))...)
	_, err := io.ReadFull(r, b[4:])
	return b, err
}

// altered takes an answer apart and puts it together again. The headers that both sides write have no tags.
func altered(asked, answer []byte, key, version int16, f func(kmsg.Request, kmsg.Response)) ([]byte, error) {
	req, ok := broker.NewRequest(key, version)
	if !ok {
		return nil, fmt.Errorf("no request with key %d, version %d", key, version)
	}
	head := 14 + int(binary.BigEndian.Uint16(asked[12:])) // length, key, version, correlation id, client id
	keep := 8                                             // length, correlation id
	if req.IsFlexible() {
		head++
		if key != int16(kmsg.ApiVersions) {
			keep++
		}
	}
	if err := req.ReadFrom(asked[head:]); err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	if err := resp.ReadFrom(answer[keep:]); err != nil {
		return nil, err
	}
	f(req, resp)
	b := resp.AppendTo(answer[:keep:keep])
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}
