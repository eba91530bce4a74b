package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is a scripted Kafka cluster without ports: Dial of its Transport leads to serve, by address.
type cluster struct {
	mu    sync.Mutex
	dials []string
	open  int
	serve func(addr string, p *peer)
}

// peer is the broker's side of one connection.
type peer struct {
	net.Conn
	corr int32
	req  kmsg.Request
}

func (c *cluster) transport() *kafka.Transport {
	return &kafka.Transport{Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		c.mu.Lock()
		c.dials = append(c.dials, addr)
		c.open++
		c.mu.Unlock()
		go func() {
			defer func() {
				theirs.Close()
				c.mu.Lock()
				c.open--
				c.mu.Unlock()
			}()
			c.serve(addr, &peer{Conn: theirs})
		}()
		return ours, nil
	}}
}

// count is how many connections were dialled, and how many the brokers still see open.
func (c *cluster) count() (dialled, open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.dials), c.open
}

// next reads one request; false at the end of the connection.
func (p *peer) next() bool {
	var size [4]byte
	if _, err := io.ReadFull(p, size[:]); err != nil {
		return false
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(p, b); err != nil {
		return false
	}
	var version int16
	p.req, version, p.corr = decode(b)
	p.req.SetVersion(version)
	return true
}

// decode reads a request with its header.
func decode(b []byte) (req kmsg.Request, version int16, corr int32) {
	api := int16(binary.BigEndian.Uint16(b))
	if req = MirrorRequest(api); req == nil {
		req = kmsg.RequestForKey(api)
	}
	version, corr = int16(binary.BigEndian.Uint16(b[2:])), int32(binary.BigEndian.Uint32(b[4:]))
	req.SetVersion(version)
	b = b[8:]
	if n := int16(binary.BigEndian.Uint16(b)); n > 0 {
		b = b[n:]
	}
	b = b[2:]
	if req.IsFlexible() {
		b = b[1:]
	}
	if err := req.ReadFrom(b); err != nil {
		panic(fmt.Sprintf("key %d version %d: %v", req.Key(), version, err))
	}
	return req, version, corr
}

// answer writes the response to the last request.
func (p *peer) answer(resp kmsg.Response) { p.Write(frame(p.corr, p.req, resp)) }

func frame(corr int32, req kmsg.Request, resp kmsg.Response) []byte {
	resp.SetVersion(req.GetVersion())
	if resp.Key() == int16(kmsg.ApiVersions) && resp.(*kmsg.ApiVersionsResponse).ErrorCode == 35 {
		resp.SetVersion(0)
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(corr))
	if req.IsFlexible() && req.Key() != int16(kmsg.ApiVersions) {
		b = append(b, 0)
	}
	b = resp.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// speaks is the answer to ApiVersions of a broker that goes up to the versions given, by key.
func speaks(versions map[kmsg.Key]int16) *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	for api, v := range versions {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MaxVersion = int16(api), v
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	return resp
}

func modern() map[kmsg.Key]int16 {
	return map[kmsg.Key]int16{kmsg.ApiVersions: 4, kmsg.Metadata: 13, kmsg.Fetch: 18, kmsg.ListOffsets: 11,
		kmsg.OffsetForLeaderEpoch: 4, kmsg.SASLHandshake: 1, kmsg.SASLAuthenticate: 2}
}

// handle serves requests until the connection ends: ApiVersions with versions, Metadata with metadata, anything else with
// respond; a nil answer ends the connection.
func (p *peer) handle(versions map[kmsg.Key]int16, respond func(kmsg.Request) kmsg.Response) {
	for p.next() {
		var resp kmsg.Response
		switch p.req.(type) {
		case *kmsg.ApiVersionsRequest:
			resp = speaks(versions)
		case *kmsg.MetadataRequest:
			resp = metadata()
		default:
			resp = respond(p.req)
		}
		if resp == nil {
			return
		}
		p.answer(resp)
	}
}

// metadata names brokers 1 to 3 and no topic.
func metadata() *kmsg.MetadataResponse {
	resp := kmsg.NewPtrMetadataResponse()
	resp.ClusterID = new("the-cluster")
	for id := int32(1); id <= 3; id++ {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = id, fmt.Sprintf("broker-%d", id), 9092
		resp.Brokers = append(resp.Brokers, b)
	}
	return resp
}

// newClient makes a client of the cluster that has seen its metadata.
func newClient(t *testing.T, c *cluster, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{Addr: kafka.TCP("boot:9092"), Transport: c.transport()}
	for _, f := range change {
		f(&cfg)
	}
	client := New(cfg)
	t.Cleanup(client.Close)
	client.learn(map[int32]string{1: "broker-1:9092", 2: "broker-2:9092", 3: "broker-3:9092"})
	return client
}

func mustFail[T error](t *testing.T, err error) T {
	t.Helper()
	var e T
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a %T", err, e)
	}
	return e
}
