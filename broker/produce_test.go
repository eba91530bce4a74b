package broker_test

import (
	"context"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

func TestProduceRefusesWhatIsNoBatch(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	change := func(f func(b []byte)) []byte {
		raw := records(3)
		f(raw)
		return raw
	}
	summed := func(f func(b []byte)) []byte {
		return change(func(b []byte) {
			f(b)
			binary.BigEndian.PutUint32(b[17:], batch.Sum(b))
		})
	}
	for name, c := range map[string]struct {
		raw  []byte
		code int16
	}{
		"nothing":               {nil, 2},
		"cut short":             {records(3)[:70], 2},
		"a flipped bit":         {change(func(b []byte) { b[len(b)-1] ^= 1 }), 2},
		"a negative length":     {change(func(b []byte) { b[8] = 0x80 }), 2},
		"2 GiB":                 {change(func(b []byte) { binary.BigEndian.PutUint32(b[8:], 1<<31-1) }), 2},
		"message format 1":      {change(func(b []byte) { b[16] = 1 }), 43},
		"two batches":           {append(records(1), records(1)...), 87},
		"a control batch":       {batch.AppendControl(nil, 0, 0, 1, 0, batch.Control{Type: batch.ControlCommit}, 0), 87},
		"a wrong count":         {summed(func(b []byte) { binary.BigEndian.PutUint32(b[57:], 2) }), 87},
		"records that are none": {summed(func(b []byte) { b[61] = 0xff }), 2},
		"append time":           {summed(func(b []byte) { b[22] |= 8 }), 32},
		"no sequence":           {sequenced(1, 7, 0, -1, 0), 87},
		"too large":             {records(100_000), 10},
	} {
		require.Equal(t, c.code, w.produce("orders", 0, c.raw).ErrorCode, name)
	}
	require.Equal(t, int16(3), w.produce("nothing", 0, records(1)).ErrorCode)
	require.Equal(t, int16(3), w.produce("orders", 1, records(1)).ErrorCode)
	require.Equal(t, int64(0), w.write("orders", 0, records(1)), "nothing of it was appended")
}

func TestEveryProduceVersionAppends(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	id := topicID(t, w, "orders")
	for v := int16(3); v <= 13; v++ {
		req := produceRequest(v, "orders", 0, records(1))
		req.Topics[0].TopicID = id
		p := ask[*kmsg.ProduceResponse](w, req).Topics[0].Partitions[0]
		require.Zero(t, p.ErrorCode)
		require.Equal(t, int64(v-3), p.BaseOffset)
	}
}

func TestAcksZeroGetsNoAnswer(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	req := produceRequest(9, "orders", 0, records(1))
	req.Acks = 0
	w.send(req)
	require.Equal(t, int64(1), w.write("orders", 0, records(1)), "the next answer is that of the next request")
}

// What was received is appended, also if the client did not wait to see it.
func TestAClientThatGoesAwayHasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost()
		b := start(t, host, one("orders"))
		w := dial(t, b, "node-1")
		entered, resume := make(chan struct{}), make(chan struct{})
		host.Fail(func(ctx context.Context, op memlog.Op, topic string, _ int32) error {
			if op == memlog.OpAppend && topic == "orders" {
				close(entered)
				<-resume
				return ctx.Err()
			}
			return nil
		})
		w.send(produceRequest(9, "orders", 0, records(1)))
		<-entered
		w.nc.Close()
		synctest.Wait()
		close(resume)
		synctest.Wait()
		host.Fail(nil)
		require.Equal(t, []int64{0}, offsets(t, dial(t, b, "node-1").fetch(11, want("orders", 0, 0)).RecordBatches))
	})
}

func TestLogAppendTime(t *testing.T) {
	host := newHost()
	require.NoError(t, host.EnsureTopic(context.Background(), mirror.Topic{Name: "stamped", Partitions: 1, Configs: map[string]string{"message.timestamp.type": "LogAppendTime"}}))
	b := start(t, host, nil)
	w := dial(t, b, "node-1")
	p := w.produce("stamped", 0, records(2))
	require.Zero(t, p.ErrorCode)
	require.Positive(t, p.LogAppendTime)
	raw := w.fetch(11, want("stamped", 0, 0)).RecordBatches
	require.NoError(t, batch.Check(raw))
	h, err := batch.Parse(raw)
	require.NoError(t, err)
	require.True(t, h.LogAppendTime())
	require.Equal(t, p.LogAppendTime, h.MaxTimestamp)
}

func TestIdempotentProducer(t *testing.T) {
	host := newHost()
	b := start(t, host, one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	const pid = 5
	require.Equal(t, int64(0), w.write("orders", 0, sequenced(3, pid, 0, 0, 0)))
	require.Equal(t, int64(3), w.write("orders", 0, sequenced(2, pid, 0, 3, 0)))
	require.Equal(t, int64(0), w.write("orders", 0, sequenced(3, pid, 0, 0, 0)), "again: answered with the old offset")
	require.Equal(t, int64(3), w.write("orders", 0, sequenced(2, pid, 0, 3, 0)))
	require.Equal(t, int16(45), w.produce("orders", 0, sequenced(1, pid, 0, 7, 0)).ErrorCode, "a hole")
	require.Equal(t, int64(5), w.write("orders", 0, sequenced(1, pid, 0, 5, 0)))
	require.Equal(t, int16(45), w.produce("orders", 0, sequenced(1, pid, 1, 5, 0)).ErrorCode, "a new epoch begins at 0")
	require.Equal(t, int64(6), w.write("orders", 0, sequenced(1, pid, 1, 0, 0)))
	require.Equal(t, int16(47), w.produce("orders", 0, sequenced(1, pid, 0, 6, 0)).ErrorCode, "the epoch before")
	require.Equal(t, int64(7), w.write("orders", 0, sequenced(1, 99, 4, 1234, 0)), "nothing is known of this one")

	t.Run("an unclean election takes what is known with the records", func(t *testing.T) {
		require.NoError(t, b.Lag("orders", 0, 2, 6))
		require.NoError(t, b.Elect("orders", 0, 2, true))
		w := dial(t, b, "node-2")
		require.Equal(t, int64(6), w.write("orders", 0, sequenced(1, pid, 0, 6, 0)))
		require.Equal(t, int64(5), w.write("orders", 0, sequenced(1, pid, 0, 5, 0)))
	})
}

// The log is as long again as before when the producer comes back: its length alone does not tell that it was cut.
func TestALogThatWasCutAndHasGrownAgainIsReadAnew(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	for i := range int32(5) {
		w.write("orders", 0, sequenced(1, 5, 0, i, 0))
	}
	require.NoError(t, b.Lag("orders", 0, 2, 2))
	require.NoError(t, b.Elect("orders", 0, 2, true))
	w = dial(t, b, "node-2")
	w.write("orders", 0, records(10))
	require.Equal(t, int16(45), w.produce("orders", 0, sequenced(1, 5, 0, 5, 0)).ErrorCode)
	require.Equal(t, int64(1), w.write("orders", 0, sequenced(1, 5, 0, 1, 0)))
	require.Equal(t, int64(12), w.write("orders", 0, sequenced(1, 5, 0, 2, 0)), "lost, and written again")
}

func TestWhatIsKnownOfProducersSurvivesARestart(t *testing.T) {
	host := memlog.New()
	c, err := mirror.Open(context.Background(), host)
	require.NoError(t, err)
	b := over(t, c, one("orders"))
	w := dial(t, b, "node-1")
	for i := range int32(7) {
		w.write("orders", 0, sequenced(1, 5, 0, i, 0))
	}
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())

	b = start(t, host, nil)
	w = dial(t, b, "node-1")
	require.Equal(t, int64(6), w.write("orders", 0, sequenced(1, 5, 0, 6, 0)))
	require.Equal(t, int16(45), w.produce("orders", 0, sequenced(1, 5, 0, 1, 0)).ErrorCode, "older than what can come again")
	require.Equal(t, int64(7), w.write("orders", 0, sequenced(1, 5, 0, 7, 0)))
}

// After a takeover the producers of the other side mean nothing, whatever ids this side hands out.
func TestAResetBatchForgetsAllProducers(t *testing.T) {
	host := newHost()
	c, err := mirror.Open(context.Background(), host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	b := over(t, c, one("orders"))
	w := dial(t, b, "node-1")
	require.Equal(t, int64(0), w.write("orders", 0, sequenced(50, 1, 0, 0, 0)))
	p, err := c.Partition(context.Background(), "orders", 0)
	require.NoError(t, err)
	_, err = p.Append(context.Background(), batch.AppendControl(nil, 0, 0, -1, -1, batch.Control{Type: batch.ControlMirrorPIDReset}, 0))
	require.NoError(t, err)
	require.Equal(t, int64(51), w.write("orders", 0, sequenced(50, 1, 0, 0, 0)))
	require.Equal(t, int64(51), w.write("orders", 0, sequenced(50, 1, 0, 0, 0)))
}

func initProducer(w *client, txnID string, pid int64, epoch int16) *kmsg.InitProducerIDResponse {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = 4, 60_000, pid, epoch
	if txnID != "" {
		req.TransactionalID = &txnID
	}
	return ask[*kmsg.InitProducerIDResponse](w, req)
}

func TestProducerIDsAreNeverGivenTwice(t *testing.T) {
	host := memlog.New()
	seen := make(map[int64]bool)
	w := func(b *broker.Broker) *client { return dial(t, b, "node-1") }
	c, err := mirror.Open(context.Background(), host)
	require.NoError(t, err)
	b := over(t, c, one("orders"))
	client := w(b)
	client.write("orders", 0, sequenced(1, 41, 0, 0, 0)) // an id that came from elsewhere
	for range 3 {
		r := initProducer(client, "", -1, -1)
		require.Zero(t, r.ErrorCode)
		require.Greater(t, r.ProducerID, int64(41))
		require.Zero(t, r.ProducerEpoch)
		require.False(t, seen[r.ProducerID])
		seen[r.ProducerID] = true
	}
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	client = w(start(t, host, nil))
	for range 3 {
		id := initProducer(client, "", -1, -1).ProducerID
		require.False(t, seen[id])
		seen[id] = true
	}
}
