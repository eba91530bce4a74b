package kafkatest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
)

func TestABrokerComesBackOnItsOldData(t *testing.T) {
	ctx := t.Context()
	begin := time.Now()
	c, err := kafkatest.Start(ctx, 3)
	require.NoError(t, err)
	defer c.Close()
	t.Log("started", time.Since(begin))
	begin = time.Now()
	out, err := kafkatest.Tool(ctx, "TopicCommand", "--bootstrap-server", c.Brokers[0].Addr, "--create", "--topic", "t", "--partitions", "1", "--replication-factor", "1")
	require.NoError(t, err)
	require.Contains(t, out, "Created topic t")
	t.Log("tool", time.Since(begin))
	leader, err := c.Leader(ctx, "t", 0)
	require.NoError(t, err)
	for _, end := range []func(){leader.Kill, leader.Stop} {
		begin = time.Now()
		end()
		t.Log("ended", time.Since(begin))
		begin = time.Now()
		require.NoError(t, leader.Start(ctx))
		t.Log("started again", time.Since(begin))
	}
	again, err := c.Leader(ctx, "t", 0)
	require.NoError(t, err)
	require.Same(t, leader, again)
	require.DirExists(t, leader.Dir("t", 0))
}
