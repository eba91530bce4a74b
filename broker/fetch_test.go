package broker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
)

func topicID(t testing.TB, w *client, topic string) [16]byte {
	t.Helper()
	return w.metadata(13, topic).Topics[0].TopicID
}

func TestEveryFetchVersionAnswersTheSameBytes(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	for range 3 {
		w.write("orders", 0, records(10))
	}
	id := topicID(t, w, "orders")
	first := w.fetch(4, want("orders", 0, 0)).RecordBatches
	require.Equal(t, []int64{0, 10, 20}, offsets(t, first))
	for v := int16(5); v <= 18; v++ {
		f := want("orders", 0, 0)
		if v >= 13 {
			f.topic, f.id = "", id
		}
		p := w.fetch(v, f)
		require.Zero(t, p.ErrorCode, "version %d", v)
		require.Equal(t, first, p.RecordBatches, "version %d", v)
		require.Equal(t, int64(30), p.HighWatermark)
		require.Equal(t, int64(30), p.LastStableOffset)
	}
}

func TestFetchBeginsWithTheBatchThatHoldsTheOffset(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	for range 3 {
		w.write("orders", 0, records(10))
	}
	require.Equal(t, []int64{10, 20}, offsets(t, w.fetch(11, want("orders", 0, 15)).RecordBatches))
	require.Empty(t, w.fetch(11, want("orders", 0, 30)).RecordBatches)
	require.Equal(t, int16(1), w.fetch(11, want("orders", 0, 31)).ErrorCode)
	require.Equal(t, int16(1), w.fetch(11, want("orders", 0, -1)).ErrorCode)
}

func TestFetchHoldsTheClientsLimits(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 2})
	w := dial(t, b, "node-1")
	size := len(records(10))
	for range 3 {
		w.write("orders", 0, records(10))
		w.write("orders", 1, records(10))
	}
	limited := func(total, each int) [][]int64 {
		one, two := want("orders", 0, 0), want("orders", 1, 0)
		one.max, two.max = int32(each), int32(each)
		req := fetchRequest(11, one, two)
		req.MaxBytes = int32(total)
		var got [][]int64
		for _, rt := range ask[*kmsg.FetchResponse](w, req).Topics {
			for _, p := range rt.Partitions {
				got = append(got, offsets(t, p.RecordBatches))
			}
		}
		return got
	}
	require.Equal(t, [][]int64{{0, 10}, {0, 10}}, limited(10*size, 2*size), "per partition")
	require.Equal(t, [][]int64{{0, 10, 20}, {0}}, limited(4*size, 10*size), "altogether")
	require.Equal(t, [][]int64{{0, 10}, {0, 10}}, limited(10*size, 3*size-1), "whole batches only")
	require.Equal(t, [][]int64{{0}, nil}, limited(1, 1), "the first batch comes whole whatever its size")
}

func TestABatchLargerThanAnyBufferComesWhole(t *testing.T) {
	host := newHost()
	require.NoError(t, host.EnsureTopic(context.Background(), mirror.Topic{Name: "big", Partitions: 1, Configs: map[string]string{"max.message.bytes": "10000000"}}))
	b := start(t, host, nil)
	w := dial(t, b, "node-1")
	w.write("big", 0, records(10))
	raw := records(400_000)
	require.Greater(t, len(raw), 4<<20)
	w.write("big", 0, raw)
	p := w.fetch(11, want("big", 0, 10))
	require.Equal(t, []int64{10}, offsets(t, p.RecordBatches))
	require.Len(t, p.RecordBatches, len(raw))
}

func TestLongPoll(t *testing.T) {
	poll := func(t *testing.T, meanwhile func(w *client, b *broker.Broker)) (*kmsg.FetchResponse, time.Duration) {
		host := newHost()
		b := start(t, host, one("orders"))
		w, other := dial(t, b, "node-1"), dial(t, b, "node-1")
		other.write("orders", 0, records(1))
		begin := time.Now()
		req := fetchRequest(11, want("orders", 0, 1))
		req.MaxWaitMillis, req.MinBytes = 10_000, int32(2*len(records(1)))
		w.send(req)
		synctest.Wait()
		meanwhile(other, b)
		resp := w.receive(req).(*kmsg.FetchResponse)
		return resp, time.Since(begin)
	}
	t.Run("ends at its time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			resp, took := poll(t, func(w *client, _ *broker.Broker) {
				w.write("orders", 0, records(1)) // less than it waits for
			})
			require.Equal(t, 10*time.Second, took)
			require.Equal(t, []int64{1}, offsets(t, resp.Topics[0].Partitions[0].RecordBatches))
		})
	})
	t.Run("ends when there is enough", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			resp, took := poll(t, func(w *client, _ *broker.Broker) {
				w.write("orders", 0, records(1))
				w.write("orders", 0, records(1))
			})
			require.Zero(t, took)
			require.Equal(t, []int64{1, 2}, offsets(t, resp.Topics[0].Partitions[0].RecordBatches))
		})
	})
	t.Run("ends when the leader epoch changes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, newHost(), one("orders"), broker.Nodes(2))
			w := dial(t, b, "node-1")
			w.write("orders", 0, records(1))
			f := want("orders", 0, 1)
			f.epoch = w.metadata(9, "orders").Topics[0].Partitions[0].LeaderEpoch
			req := fetchRequest(11, f)
			req.MaxWaitMillis = 10_000
			begin := time.Now()
			w.send(req)
			synctest.Wait()
			require.NoError(t, b.Elect("orders", 0, 1, false))
			p := w.receive(req).(*kmsg.FetchResponse).Topics[0].Partitions[0]
			require.Equal(t, int16(74), p.ErrorCode)
			require.Zero(t, time.Since(begin))
		})
	})
	t.Run("ends when the client goes away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, newHost(), one("orders"))
			w := dial(t, b, "node-1")
			req := fetchRequest(11, want("orders", 0, 0))
			req.MaxWaitMillis = 1 << 30
			begin := time.Now()
			w.send(req)
			synctest.Wait()
			w.nc.Close()
			require.NoError(t, b.Close())
			require.Zero(t, time.Since(begin))
		})
	})
	t.Run("ends when the broker is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, newHost(), one("orders"))
			w := dial(t, b, "node-1")
			req := fetchRequest(11, want("orders", 0, 0))
			req.MaxWaitMillis = 1 << 30
			w.send(req)
			synctest.Wait()
			require.NoError(t, b.Close())
			_, err := w.nc.Read(make([]byte, 1))
			require.Error(t, err)
		})
	})
}

// The cases are those that a real leader was asked: epochs 0 [0,100) and a later one [100,200).
func TestFetchTellsWhereLogsPartedAsKafkaDoes(t *testing.T) {
	b := start(t, newHost(), one("orders"), broker.Nodes(2))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(100))
	for range 6 {
		require.NoError(t, b.Elect("orders", 0, 1, false))
	}
	w.write("orders", 0, records(100))
	low := w.epochEnd("orders", 0, -1, 0)
	require.Equal(t, int64(100), low.EndOffset)
	high := w.metadata(9, "orders").Topics[0].Partitions[0].LeaderEpoch
	require.Equal(t, int32(6), high)
	at := func(offset int64, last int32) kmsg.FetchResponseTopicPartition {
		f := want("orders", 0, offset)
		f.last = last
		return w.fetch(12, f)
	}
	for last := range high {
		p := at(150, last)
		require.Zero(t, p.ErrorCode)
		require.Empty(t, p.RecordBatches)
		require.Equal(t, int32(0), p.DivergingEpoch.Epoch)
		require.Equal(t, int64(100), p.DivergingEpoch.EndOffset)
	}
	require.Equal(t, int16(1), at(150, high+3).ErrorCode, "an epoch that the leader does not know")
	p := at(150, -1)
	require.Equal(t, []int64{100}, offsets(t, p.RecordBatches))
	require.Equal(t, int64(-1), p.DivergingEpoch.EndOffset)
	p = at(150, high)
	require.Equal(t, []int64{100}, offsets(t, p.RecordBatches))
	p = at(100, 0)
	require.Equal(t, []int64{100}, offsets(t, p.RecordBatches))
	p = at(250, high)
	require.Zero(t, p.ErrorCode)
	require.Equal(t, int64(200), p.DivergingEpoch.EndOffset, "a client that is ahead of the leader has diverged")
}

func TestFetchChecksTheLeaderEpoch(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 2}, broker.Nodes(2))
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(1))
	id := topicID(t, w, "orders")
	with := func(epoch int32) kmsg.FetchResponseTopicPartition {
		f := want("orders", 0, 0)
		f.epoch = epoch
		return w.fetch(11, f)
	}
	require.Zero(t, with(0).ErrorCode)
	require.Equal(t, int16(75), with(1).ErrorCode)
	require.NoError(t, b.Elect("orders", 0, 1, false))
	require.Equal(t, int16(74), with(0).ErrorCode)

	require.NoError(t, b.Elect("orders", 0, 2, false))
	f := want("", 0, 0)
	f.id = id
	resp := ask[*kmsg.FetchResponse](w, fetchRequest(16, f))
	p := resp.Topics[0].Partitions[0]
	require.Equal(t, int16(6), p.ErrorCode)
	require.Equal(t, int32(2), p.CurrentLeader.LeaderID)
	require.Equal(t, int32(2), p.CurrentLeader.LeaderEpoch)
	require.Len(t, resp.Brokers, 1)
	require.Equal(t, "node-2", resp.Brokers[0].Host)
	require.Equal(t, []int64{0}, offsets(t, dial(t, b, "node-2").fetch(11, want("orders", 0, 0)).RecordBatches))
}

func TestFetchByAnIDThatIsNotKnown(t *testing.T) {
	b := start(t, newHost(), one("orders"))
	w := dial(t, b, "node-1")
	f := want("", 0, 0)
	f.id = [16]byte{1}
	require.Equal(t, int16(100), w.fetch(13, f).ErrorCode)
	require.Equal(t, int16(3), w.fetch(12, want("nothing", 0, 0)).ErrorCode)
	require.Equal(t, int16(3), w.fetch(12, want("orders", 1, 0)).ErrorCode)
	require.Equal(t, int16(3), w.fetch(12, want(mirror.StateTopic, 0, 0)).ErrorCode)
}

func TestFetchSession(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 3, "other": 1})
	w := dial(t, b, "node-1")
	w.write("orders", 0, records(1))

	first := fetchRequest(12, want("orders", 0, 0), want("orders", 1, 0), want("orders", 2, 0))
	first.SessionEpoch = 0
	resp := ask[*kmsg.FetchResponse](w, first)
	require.NotZero(t, resp.SessionID)
	require.Len(t, resp.Topics, 1)
	require.Len(t, resp.Topics[0].Partitions, 3, "the first answer tells everything")

	epoch := int32(0)
	next := func(change func(*kmsg.FetchRequest)) *kmsg.FetchResponse {
		t.Helper()
		epoch++
		req := fetchRequest(12)
		req.SessionID, req.SessionEpoch, req.MinBytes = resp.SessionID, epoch, 0
		if change != nil {
			change(req)
		}
		return ask[*kmsg.FetchResponse](w, req)
	}
	partitions := func(r *kmsg.FetchResponse) (list []int32) {
		require.Zero(t, r.ErrorCode)
		require.Equal(t, resp.SessionID, r.SessionID)
		for _, topic := range r.Topics {
			for _, p := range topic.Partitions {
				list = append(list, p.Partition)
			}
		}
		return list
	}
	require.Equal(t, []int32{0}, partitions(next(nil)), "only what has data")
	require.Empty(t, partitions(next(func(r *kmsg.FetchRequest) { r.Topics = fetchRequest(12, want("orders", 0, 1)).Topics })))
	w.write("orders", 2, records(1))
	require.Equal(t, []int32{2}, partitions(next(nil)))
	require.Equal(t, []int32{2}, partitions(next(nil)), "until the client moves on")

	forget := kmsg.NewFetchRequestForgottenTopic()
	forget.Topic, forget.Partitions = "orders", []int32{2}
	require.Empty(t, partitions(next(func(r *kmsg.FetchRequest) { r.ForgottenTopics = append(r.ForgottenTopics, forget) })))
	require.Equal(t, []int32{0}, partitions(next(func(r *kmsg.FetchRequest) { r.Topics = fetchRequest(12, want("other", 0, 0)).Topics })), "a new one is told of")

	t.Run("wrong epoch", func(t *testing.T) {
		req := fetchRequest(12)
		req.SessionID, req.SessionEpoch = resp.SessionID, epoch+5
		require.Equal(t, int16(71), ask[*kmsg.FetchResponse](w, req).ErrorCode)
	})
	t.Run("ids in a session of names", func(t *testing.T) {
		req := fetchRequest(13)
		req.SessionID, req.SessionEpoch = resp.SessionID, epoch+1
		require.Equal(t, int16(106), ask[*kmsg.FetchResponse](w, req).ErrorCode)
	})
	t.Run("unknown", func(t *testing.T) {
		req := fetchRequest(12)
		req.SessionID, req.SessionEpoch = resp.SessionID+1, 1
		require.Equal(t, int16(70), ask[*kmsg.FetchResponse](w, req).ErrorCode)
	})
	t.Run("ended by the client", func(t *testing.T) {
		req := fetchRequest(12, want("orders", 0, 0))
		req.SessionID, req.SessionEpoch = resp.SessionID, -1
		require.Zero(t, ask[*kmsg.FetchResponse](w, req).SessionID)
		req.SessionEpoch = epoch + 1
		require.Equal(t, int16(70), ask[*kmsg.FetchResponse](w, req).ErrorCode)
	})
}

func TestASessionServesItsPartitionsInTurn(t *testing.T) {
	b := start(t, newHost(), map[string]int32{"orders": 3})
	w := dial(t, b, "node-1")
	for i := range int32(3) {
		w.write("orders", i, records(1))
	}
	req := fetchRequest(12, want("orders", 0, 0), want("orders", 1, 0), want("orders", 2, 0))
	req.SessionEpoch, req.MaxBytes = 0, 1 // room for one batch
	served := func(resp *kmsg.FetchResponse) (list []int32) {
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				if len(p.RecordBatches) > 0 {
					list = append(list, p.Partition)
				}
			}
		}
		return list
	}
	resp := ask[*kmsg.FetchResponse](w, req)
	got := served(resp)
	for epoch := int32(1); epoch < 4; epoch++ {
		next := fetchRequest(12)
		next.SessionID, next.SessionEpoch, next.MaxBytes = resp.SessionID, epoch, 1
		got = append(got, served(ask[*kmsg.FetchResponse](w, next))...)
	}
	require.Equal(t, []int32{0, 1, 2, 0}, got)
}
