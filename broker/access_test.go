package broker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
)

// certificates are a server's and a client's side of TLS for 127.0.0.1.
func certificates(t *testing.T) (server, client *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: pool}
}

func TestTLSAndSASLPlain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	server, client := certificates(t)
	var mu sync.Mutex
	principals := make(map[string]bool)
	b := start(t, newHost(), one("orders"), broker.TLS(server),
		broker.SASLPlain(func(user, password string) bool { return user == "alice" && password == "secret" }),
		broker.Authorize(func(principal, _, _ string) bool {
			mu.Lock()
			defer mu.Unlock()
			principals[principal] = true
			return true
		}))
	require.NoError(t, b.Listen("127.0.0.1:0"))
	login := plain.Mechanism{Username: "alice", Password: "secret"}
	writeAndRead(t, ctx, &kafka.Transport{TLS: client, SASL: login}, &kafka.Dialer{TLS: client, SASLMechanism: login}, b.Addr().String())
	require.Equal(t, map[string]bool{"User:alice": true}, principals)

	wrong := &kafka.Transport{TLS: client, SASL: plain.Mechanism{Username: "alice", Password: "guess"}}
	defer wrong.CloseIdleConnections()
	_, err := (&kafka.Client{Addr: b.Addr(), Transport: wrong}).Metadata(ctx, &kafka.MetadataRequest{})
	require.ErrorIs(t, err, kafka.SASLAuthenticationFailed)

	// Who has not logged in may send little.
	nc, err := tls.Dial("tcp", b.Addr().String(), client)
	require.NoError(t, err)
	defer nc.Close()
	_, err = nc.Write([]byte{0, 0x10, 0, 0, 0, 18, 0, 3, 0, 0, 0, 1})
	require.NoError(t, err)
	_, err = nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)

	none := &kafka.Transport{TLS: client}
	defer none.CloseIdleConnections()
	_, err = (&kafka.Client{Addr: b.Addr(), Transport: none}).Metadata(ctx, &kafka.MetadataRequest{})
	require.Error(t, err)
}

func TestListenIsForThisMachineUnlessToldOtherwise(t *testing.T) {
	b := start(t, newHost(), nil)
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.org:0"} {
		require.ErrorContains(t, b.Listen(addr), "AllowRemote", addr)
	}
	require.Nil(t, b.Addr())
	require.Error(t, b.Listen("127.0.0.1"))
	require.NoError(t, b.Listen("127.0.0.1:0"))
	require.Error(t, b.Listen("127.0.0.1:0"), "its node has a listener")
}

// A listener on all addresses is advertised under the one that the client came by.
func TestAdvertisedAddresses(t *testing.T) {
	hosts := func(b *broker.Broker) (list []string) {
		_, port, err := net.SplitHostPort(b.Addr().String())
		require.NoError(t, err)
		nc, err := net.Dial("tcp", "127.0.0.1:"+port)
		require.NoError(t, err)
		for _, m := range connected(t, nc).metadata(9).Brokers {
			list = append(list, m.Host)
		}
		return list
	}
	b := start(t, newHost(), nil, broker.AllowRemote(), broker.Nodes(2))
	require.NoError(t, b.Listen("0.0.0.0:0"))
	require.Equal(t, []string{"127.0.0.1", "127.0.0.1"}, hosts(b))

	b = start(t, newHost(), nil, broker.Nodes(2), broker.Advertise("one.example:1", "two.example:2"))
	require.NoError(t, b.Listen("127.0.0.1:0"))
	require.Equal(t, []string{"one.example", "two.example"}, hosts(b))
}

func TestOptionsNameEveryMistake(t *testing.T) {
	c, err := mirror.Open(context.Background(), newHost())
	require.NoError(t, err)
	defer c.Close()
	_, err = broker.New(c, broker.Nodes(0), broker.MaxRequestBytes(1), broker.AutoCreate(0), broker.Advertise("x"), broker.Logger(nil))
	for _, text := range []string{"nodes", "request limit", "auto create", "advertise", "logger"} {
		require.ErrorContains(t, err, text)
	}
}

// Each kind of request is refused in its own terms when the authorizer says no.
func TestAuthorize(t *testing.T) {
	var denied []string
	b := start(t, newHost(), one("orders"), broker.Authorize(func(principal, operation, resource string) bool {
		require.Equal(t, "User:local", principal)
		return !slices.Contains(denied, operation+" "+resource)
	}))
	w := dial(t, b, "node-1")
	id := topicID(t, w, "orders")
	deny := func(what string, code int16, ask func() int16) {
		t.Helper()
		denied = nil
		require.Zero(t, ask(), what)
		denied = []string{what}
		require.Equal(t, code, ask(), what)
	}
	deny("Write Topic:orders", 29, func() int16 { return w.produce("orders", 0, records(1)).ErrorCode })
	deny("Read Topic:orders", 29, func() int16 { return w.fetch(11, want("orders", 0, 0)).ErrorCode })
	deny("Describe Topic:orders", 29, func() int16 { return w.listOffset("orders", 0, -1, 0).ErrorCode })
	deny("Describe Topic:orders", 29, func() int16 { return w.epochEnd("orders", 0, -1, 0).ErrorCode })
	deny("Describe Topic:orders", 29, func() int16 { return w.metadata(9, "orders").Topics[0].ErrorCode })
	deny("Read Group:g", 30, func() int16 { return commitOffset(w, 9, "g", "orders", 0, 0) })
	deny("IdempotentWrite Cluster:kafka-cluster", 31, func() int16 { return initProducer(w, "", -1, -1).ErrorCode })
	deny("Write TransactionalId:tx", 53, func() int16 { return initProducer(w, "tx", -1, -1).ErrorCode })

	denied = []string{"Describe Topic:orders"}
	require.Empty(t, w.metadata(9).Topics, "not even the name")
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 12, []kmsg.MetadataRequestTopic{{TopicID: id}}
	require.Equal(t, int16(100), ask[*kmsg.MetadataResponse](w, req).Topics[0].ErrorCode)
	denied = []string{"Create Cluster:kafka-cluster", "Create Topic:new"}
	require.Equal(t, int16(29), createTopics(w, 7, false, newTopic("new", 1, 1))["new"].ErrorCode)
}

// Someone else's broker hands single requests over.
func TestHandle(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	ctx := context.Background()
	resp, err := b.Handle(ctx, broker.Client{}, produceRequest(9, "orders", 0, records(3)))
	require.NoError(t, err)
	require.Zero(t, resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
	quiet := produceRequest(9, "orders", 0, records(3))
	quiet.Acks = 0
	resp, err = b.Handle(ctx, broker.Client{}, quiet)
	require.NoError(t, err)
	require.Nil(t, resp)
	resp, err = b.Handle(ctx, broker.Client{Node: 1}, fetchRequest(11, want("orders", 0, 0)))
	require.NoError(t, err)
	require.Equal(t, []int64{0, 3}, offsets(t, resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches))
	resp, err = b.Handle(ctx, broker.Client{Node: 2}, fetchRequest(11, want("orders", 0, 0)))
	require.NoError(t, err)
	require.Equal(t, int16(6), resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].ErrorCode)

	for _, k := range broker.Keys() {
		for v := k.MinVersion; v <= k.MaxVersion; v++ {
			req, ok := broker.NewRequest(k.ApiKey, v)
			require.True(t, ok)
			require.Equal(t, k.ApiKey, req.Key())
			require.Equal(t, v, req.GetVersion())
		}
		_, ok := broker.NewRequest(k.ApiKey, k.MaxVersion+1)
		require.False(t, ok)
	}

	_, err = b.Handle(ctx, broker.Client{Node: 3}, fetchRequest(11))
	require.Error(t, err)
	_, err = b.Handle(ctx, broker.Client{}, fetchRequest(3))
	require.Error(t, err)
	_, err = b.Handle(ctx, broker.Client{}, kmsg.NewPtrJoinGroupRequest())
	require.Error(t, err)
	require.NoError(t, b.Close())
	_, err = b.Handle(ctx, broker.Client{}, fetchRequest(11))
	require.ErrorIs(t, err, mirror.ErrClosed)
	_, err = b.Dial(ctx, "tcp", "node-1:9092")
	require.ErrorIs(t, err, mirror.ErrClosed)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.ErrorIs(t, b.Serve(l), mirror.ErrClosed)
}
