package broker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

func addToTxn(w *client, txnID string, pid int64, epoch int16, topic string, partitions ...int32) []int16 {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, txnID, pid, epoch
	rt := kmsg.NewAddPartitionsToTxnRequestTopic()
	rt.Topic, rt.Partitions = topic, partitions
	req.Topics = append(req.Topics, rt)
	var codes []int16
	for _, p := range ask[*kmsg.AddPartitionsToTxnResponse](w, req).Topics[0].Partitions {
		codes = append(codes, p.ErrorCode)
	}
	return codes
}

func endTxn(w *client, txnID string, pid int64, epoch int16, commit bool) int16 {
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = 3, txnID, pid, epoch, commit
	return ask[*kmsg.EndTxnResponse](w, req).ErrorCode
}

func txnProduce(w *client, version int16, txnID, topic string, partition int32, raw []byte) int16 {
	req := produceRequest(version, topic, partition, raw)
	req.TransactionID = &txnID
	return ask[*kmsg.ProduceResponse](w, req).Topics[0].Partitions[0].ErrorCode
}

func committedFetch(w *client, topic string, partition int32, offset int64) kmsg.FetchResponseTopicPartition {
	req := fetchRequest(11, want(topic, partition, offset))
	req.IsolationLevel, req.MinBytes = 1, 0
	return ask[*kmsg.FetchResponse](w, req).Topics[0].Partitions[0]
}

func TestTransaction(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 2})
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(5))
	r := initProducer(w, "tx", -1, -1)
	require.Zero(t, r.ErrorCode)
	pid, epoch := r.ProducerID, r.ProducerEpoch
	txn := func(n int, sequence int32) []byte { return sequenced(n, pid, epoch, sequence, batch.Transactional) }

	require.Equal(t, int16(48), txnProduce(w, 9, "tx", "orders", 0, txn(1, 0)), "before the partition is added")
	require.Equal(t, []int16{0, 0}, addToTxn(w, "tx", pid, epoch, "orders", 0, 1))
	require.Equal(t, []int16{55, 3}, addToTxn(w, "tx", pid, epoch, "orders", 0, 7))
	require.Zero(t, txnProduce(w, 9, "tx", "orders", 0, txn(3, 0)))
	w.write("orders", 0, records(2))

	p := committedFetch(w, "orders", 0, 0)
	require.Equal(t, int64(5), p.LastStableOffset)
	require.Equal(t, []int64{0}, offsets(t, p.RecordBatches))
	require.Equal(t, int64(5), w.listOffset("orders", 0, -1, 1).Offset)
	require.Equal(t, int64(10), w.listOffset("orders", 0, -1, 0).Offset)

	require.Zero(t, endTxn(w, "tx", pid, epoch, false))
	require.Zero(t, endTxn(w, "tx", pid, epoch, false), "again")
	require.Equal(t, int16(48), endTxn(w, "tx", pid, epoch, true))
	p = committedFetch(w, "orders", 0, 0)
	require.Equal(t, int64(11), p.LastStableOffset)
	require.Equal(t, []int64{0, 5, 8, 10}, offsets(t, p.RecordBatches))
	require.Len(t, p.AbortedTransactions, 1)
	require.Equal(t, pid, p.AbortedTransactions[0].ProducerID)
	require.Equal(t, int64(5), p.AbortedTransactions[0].FirstOffset)
	require.NotNil(t, committedFetch(w, "orders", 1, 0).AbortedTransactions, "read committed: a list, if an empty one")
	require.Nil(t, w.fetch(11, want("orders", 0, 0)).AbortedTransactions)

	require.Equal(t, []int16{0}, addToTxn(w, "tx", pid, epoch, "orders", 0))
	require.Zero(t, txnProduce(w, 9, "tx", "orders", 0, txn(1, 3)))
	require.Zero(t, endTxn(w, "tx", pid, epoch, true))
	p = committedFetch(w, "orders", 0, 11)
	require.Equal(t, []int64{11, 12}, offsets(t, p.RecordBatches))
	require.Empty(t, p.AbortedTransactions)

	require.Zero(t, txnProduce(w, 12, "tx", "orders", 1, txn(1, 0)), "from version 12 on producing is joining")
	require.Zero(t, endTxn(w, "tx", pid, epoch, true))

	require.Equal(t, int16(49), endTxn(w, "tx", pid+1, epoch, true))
	require.Equal(t, int16(47), endTxn(w, "tx", pid, epoch+1, true))
	require.Equal(t, int16(49), endTxn(w, "nobody", pid, epoch, true))
}

func TestANewOwnerAbortsAndFencesTheOneBefore(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	first := initProducer(w, "tx", -1, -1)
	addToTxn(w, "tx", first.ProducerID, first.ProducerEpoch, "orders", 0)
	require.Zero(t, txnProduce(w, 9, "tx", "orders", 0, sequenced(2, first.ProducerID, first.ProducerEpoch, 0, batch.Transactional)))

	second := initProducer(w, "tx", -1, -1)
	require.Zero(t, second.ErrorCode)
	require.Equal(t, first.ProducerID, second.ProducerID)
	require.Greater(t, second.ProducerEpoch, first.ProducerEpoch)
	p := committedFetch(w, "orders", 0, 0)
	require.Equal(t, int64(3), p.LastStableOffset)
	require.Len(t, p.AbortedTransactions, 1)
	require.Equal(t, int16(47), txnProduce(w, 9, "tx", "orders", 0, sequenced(1, first.ProducerID, first.ProducerEpoch, 2, batch.Transactional)))
	require.Equal(t, int16(47), endTxn(w, "tx", first.ProducerID, first.ProducerEpoch, true))
	require.Equal(t, int16(90), initProducer(w, "tx", first.ProducerID, first.ProducerEpoch).ErrorCode)

	addToTxn(w, "tx", second.ProducerID, second.ProducerEpoch, "orders", 0)
	require.Zero(t, txnProduce(w, 9, "tx", "orders", 0, sequenced(2, second.ProducerID, second.ProducerEpoch, 0, batch.Transactional)))
	require.Zero(t, endTxn(w, "tx", second.ProducerID, second.ProducerEpoch, true))
}

func TestATransactionThatTakesTooLongIsAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newHost(), one("orders"))
		w := dial(t, b, "node-1")
		r := initProducer(w, "tx", -1, -1)
		addToTxn(w, "tx", r.ProducerID, r.ProducerEpoch, "orders", 0)
		txnProduce(w, 9, "tx", "orders", 0, sequenced(2, r.ProducerID, r.ProducerEpoch, 0, batch.Transactional))
		poll := fetchRequest(11, want("orders", 0, 2)) // its marker ends it
		poll.MaxWaitMillis = 1 << 30
		begin := time.Now()
		ask[*kmsg.FetchResponse](w, poll)
		require.Equal(t, time.Minute, time.Since(begin))
		require.Equal(t, int64(3), committedFetch(w, "orders", 0, 0).LastStableOffset)
		require.Equal(t, int16(47), endTxn(w, "tx", r.ProducerID, r.ProducerEpoch, true))
	})
}

func TestAnOpenTransactionSurvivesARestart(t *testing.T) {
	host := memlog.New()
	c, err := mirror.Open(context.Background(), host)
	require.NoError(t, err)
	b := over(t, c, one("orders"))
	w := dial(t, b, "node-1")
	r := initProducer(w, "tx", -1, -1)
	addToTxn(w, "tx", r.ProducerID, r.ProducerEpoch, "orders", 0)
	txnProduce(w, 9, "tx", "orders", 0, sequenced(2, r.ProducerID, r.ProducerEpoch, 0, batch.Transactional))
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())

	w = dial(t, start(t, host, nil), "node-1")
	require.Zero(t, committedFetch(w, "orders", 0, 0).LastStableOffset)
	require.Zero(t, txnProduce(w, 9, "tx", "orders", 0, sequenced(1, r.ProducerID, r.ProducerEpoch, 2, batch.Transactional)))
	require.Zero(t, endTxn(w, "tx", r.ProducerID, r.ProducerEpoch, true))
	p := committedFetch(w, "orders", 0, 0)
	require.Equal(t, int64(4), p.LastStableOffset)
	require.Empty(t, p.AbortedTransactions)
}
