package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
)

// serve lets Kafka's clients in, and answers the address.
func serve(t testing.TB, c *mirror.Coordinator) string {
	b, err := broker.New(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.NoError(t, b.Listen("127.0.0.1:0"))
	return b.Addr().String()
}
