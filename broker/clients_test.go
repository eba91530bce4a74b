package broker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/broker"
)

func writeAndRead(t *testing.T, ctx context.Context, transport *kafka.Transport, dialer *kafka.Dialer, addr string) {
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{Addr: kafka.TCP(addr), Topic: "orders", Transport: transport, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond}
	var sent []kafka.Message
	for i := range 100 {
		sent = append(sent, kafka.Message{Key: fmt.Appendf(nil, "k%d", i), Value: fmt.Appendf(nil, "v%d", i), Headers: []kafka.Header{{Key: "h", Value: []byte("x")}}})
	}
	require.NoError(t, w.WriteMessages(ctx, sent...))
	require.NoError(t, w.Close())

	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{addr}, Topic: "orders", Dialer: dialer, MaxWait: 100 * time.Millisecond})
	for i := range sent {
		m, err := r.ReadMessage(ctx)
		require.NoError(t, err)
		require.Equal(t, int64(i), m.Offset)
		require.Equal(t, sent[i].Key, m.Key)
		require.Equal(t, sent[i].Value, m.Value)
	}
	require.NoError(t, r.Close())
}

func TestKafkaGoWritesAndReads(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	t.Run("in memory", func(t *testing.T) {
		b := start(t, newHost(), one("orders"))
		writeAndRead(t, ctx, b.Source().Transport, &kafka.Dialer{DialFunc: b.Dial}, "node-1:9092")
	})
	t.Run("over loopback", func(t *testing.T) {
		b := start(t, newHost(), one("orders"))
		require.NoError(t, b.Listen("127.0.0.1:0"))
		writeAndRead(t, ctx, &kafka.Transport{}, &kafka.Dialer{}, b.Addr().String())
	})
	t.Run("with several nodes", func(t *testing.T) {
		b := start(t, newHost(), one("orders"), broker.Nodes(3))
		require.NoError(t, b.Listen("127.0.0.1:0"))
		writeAndRead(t, ctx, &kafka.Transport{}, &kafka.Dialer{}, b.Addr().String())
	})
}
