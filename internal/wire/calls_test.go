package wire

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// asked runs one call against brokers that answer everything but ApiVersions with respond, and gives where it was sent.
func asked(t *testing.T, versions map[kmsg.Key]int16, respond func(kmsg.Request) kmsg.Response, call func(t *testing.T, c *Client)) (dials []string) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		c.serve = func(_ string, p *peer) {
			for p.next() {
				if _, ok := p.req.(*kmsg.ApiVersionsRequest); ok {
					p.answer(speaks(versions))
				} else if resp := respond(p.req); resp != nil {
					p.answer(resp)
				} else {
					return
				}
			}
		}
		client := newClient(t, &c)
		call(t, client)
		client.Close()
		synctest.Wait()
		dials = c.dials
	})
	return dials
}

func topic(name string, id byte, partitions ...int32) kmsg.MetadataResponseTopic {
	t := kmsg.NewMetadataResponseTopic()
	t.Topic, t.TopicID = &name, [16]byte{id}
	for _, i := range partitions {
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Leader, p.LeaderEpoch, p.Replicas = i, i%3+1, i+10, []int32{1, 2, 3}
		t.Partitions = append(t.Partitions, p)
	}
	return t
}

func TestMetadata(t *testing.T) {
	for _, version := range []int16{metadataFloor, 9, 12, 13} {
		versions := modern()
		versions[kmsg.Metadata] = version
		var req *kmsg.MetadataRequest
		asked(t, versions, func(r kmsg.Request) kmsg.Response {
			req = r.(*kmsg.MetadataRequest)
			resp := metadata()
			missing := topic("missing", 0)
			missing.ErrorCode = int16(kafka.UnknownTopicOrPartition)
			internal := topic("__consumer_offsets", 9, 0)
			internal.IsInternal = true
			leaderless := topic("orders", 1, 1, 0)
			leaderless.Partitions[0].Leader, leaderless.Partitions[0].ErrorCode = -1, int16(kafka.LeaderNotAvailable)
			resp.Topics = []kmsg.MetadataResponseTopic{missing, leaderless, internal, topic("missing", 7, 0)}
			resp.Brokers[0].Host, resp.Brokers[0].Port = "moved", 999
			resp.Brokers[1].Port = 0
			resp.Brokers[2].Host = ""
			return resp
		}, func(t *testing.T, c *Client) {
			m, err := c.Metadata(t.Context(), []string{"orders", "missing"})
			require.NoError(t, err)
			require.False(t, req.AllowAutoTopicCreation)
			require.Len(t, req.Topics, 2)
			require.Equal(t, "the-cluster", m.ClusterID)
			require.Equal(t, map[int32]string{1: "moved:999"}, m.Brokers, "an address that cannot be dialled is none")
			require.Len(t, m.Topics, 3)
			require.True(t, m.Topics[0].Internal)
			require.ErrorIs(t, m.Topics[1].Err, kafka.UnknownTopicOrPartition, "a topic that stands twice counts once")
			id := [16]byte{1}
			if version < 10 {
				id = [16]byte{}
			}
			require.Equal(t, TopicMeta{Name: "orders", ID: id, Partitions: []PartitionMeta{
				{0, 1, 10}, {1, -1, 11},
			}}, m.Topics[2])
			to, err := c.broker(1)
			require.NoError(t, err)
			require.Equal(t, "moved:999", to.host)

			_, err = c.Metadata(t.Context(), nil)
			require.NoError(t, err)
			require.NotNil(t, req.Topics)
			require.Empty(t, req.Topics, "none")
			list, err := c.ListTopics(t.Context())
			require.NoError(t, err)
			require.Nil(t, req.Topics, "all")
			require.Len(t, list, 3)
		})
	}
}

func TestMetadataThatMakesNoSense(t *testing.T) {
	for name, partitions := range map[string][]int32{
		"a hole": {0, 2}, "not from 0": {1}, "twice": {0, 0}, "negative": {-1, 0}, "huge": {1<<31 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			asked(t, modern(), func(kmsg.Request) kmsg.Response {
				resp := metadata()
				nameless := topic("", 1, 0)
				nameless.Topic = nil
				resp.Topics = []kmsg.MetadataResponseTopic{topic("bad", 1, partitions...), topic("good", 2, 0, 1), nameless}
				return resp
			}, func(t *testing.T, c *Client) {
				m, err := c.Metadata(t.Context(), []string{"bad", "good"})
				require.NoError(t, err)
				require.Len(t, m.Topics, 2)
				require.ErrorIs(t, m.Topics[0].Err, ErrProtocol)
				require.Empty(t, m.Topics[0].Partitions)
				require.NoError(t, m.Topics[1].Err)
			})
		})
	}
	asked(t, modern(), func(kmsg.Request) kmsg.Response {
		resp := metadata()
		resp.ErrorCode = 129
		return resp
	}, func(t *testing.T, c *Client) {
		_, err := c.Metadata(t.Context(), nil)
		require.ErrorIs(t, err, Code(129))
		require.ErrorContains(t, err, "REBOOTSTRAP_REQUIRED")
	})
}

func TestOffsets(t *testing.T) {
	for _, version := range []int16{listOffsetsFloor, 6, 11} {
		versions := modern()
		versions[kmsg.ListOffsets] = version
		requests := 0
		dials := asked(t, versions, func(r kmsg.Request) kmsg.Response {
			requests++
			resp := kmsg.NewPtrListOffsetsResponse()
			for _, rt := range r.(*kmsg.ListOffsetsRequest).Topics {
				a := kmsg.NewListOffsetsResponseTopic()
				a.Topic = rt.Topic
				for _, rp := range rt.Partitions {
					p := kmsg.NewListOffsetsResponseTopicPartition()
					p.Partition, p.Offset, p.Timestamp, p.LeaderEpoch = rp.Partition, 100+rp.Timestamp, 55, rp.CurrentLeaderEpoch
					switch rp.Partition {
					case 3:
						p.ErrorCode = int16(kafka.FencedLeaderEpoch)
					case 4:
						continue
					case 5:
						p.Offset = -7
					}
					a.Partitions = append([]kmsg.ListOffsetsResponseTopicPartition{p}, a.Partitions...)
				}
				resp.Topics = append(resp.Topics, a)
			}
			return resp
		}, func(t *testing.T, c *Client) {
			got, err := c.Offsets(t.Context(), 2, []OffsetQuery{
				{"a", 0, 4, -1}, {"b", 0, 5, 1000}, {"a", 0, 4, -2}, {"a", 1, 6, -1},
				{"a", 3, 1, -1}, {"a", 4, 1, -1}, {"a", 5, 1, -1},
			})
			require.NoError(t, err)
			require.Equal(t, []OffsetAnswer{{99, 55, 4, nil}, {1100, 55, 5, nil}, {98, 55, 4, nil}, {99, 55, 6, nil}}, got[:4])
			require.ErrorIs(t, got[4].Err, kafka.FencedLeaderEpoch)
			require.ErrorIs(t, got[5].Err, ErrProtocol)
			require.ErrorIs(t, got[6].Err, ErrProtocol)
			require.Equal(t, 2, requests, "a partition may stand only once in a request")
			got, err = c.Offsets(t.Context(), 2, nil)
			require.NoError(t, err)
			require.Empty(t, got)
		})
		require.Equal(t, []string{"broker-2:9092"}, dials)
	}
}

func TestEpochEnds(t *testing.T) {
	for _, version := range []int16{epochEndFloor, 3, 4} {
		versions := modern()
		versions[kmsg.OffsetForLeaderEpoch] = version
		answers := map[int32]EpochAnswer{
			0: {Epoch: 4, End: 70}, 1: {Epoch: -1, End: -1}, 2: {Epoch: 6, End: 9}, 3: {Epoch: 2, End: -1}, 4: {Epoch: -1, End: 5}, 5: {Epoch: -3, End: -3},
		}
		asked(t, versions, func(r kmsg.Request) kmsg.Response {
			req := r.(*kmsg.OffsetForLeaderEpochRequest)
			require.True(t, version < 3 || req.ReplicaID == -1, "a consumer")
			resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
			resp.Topics = []kmsg.OffsetForLeaderEpochResponseTopic{{Topic: "a"}}
			for id, a := range answers {
				p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				p.Partition, p.LeaderEpoch, p.EndOffset = id, a.Epoch, a.End
				resp.Topics[0].Partitions = append(resp.Topics[0].Partitions, p)
			}
			return resp
		}, func(t *testing.T, c *Client) {
			var qs []EpochQuery
			for id := range int32(7) {
				qs = append(qs, EpochQuery{"a", id, 8, 5})
			}
			got, err := c.EpochEnds(t.Context(), 1, qs)
			require.NoError(t, err)
			require.Equal(t, []EpochAnswer{answers[0], answers[1]}, got[:2])
			for _, a := range got[2:] {
				require.ErrorIs(t, a.Err, ErrProtocol)
			}
		})
	}
}

func TestRead(t *testing.T) {
	for _, known := range []bool{true, false} {
		asked(t, modern(), func(r kmsg.Request) kmsg.Response {
			req := r.(*kmsg.FetchRequest)
			require.Equal(t, []int32{0, finalEpoch}, []int32{req.SessionID, req.SessionEpoch}, "no session")
			require.Zero(t, req.MaxWaitMillis)
			switch req.Topics[0].Partitions[0].FetchOffset {
			case 10:
				return answerTo(0, 0, got("a", 4, "bytes"))
			case 11:
				return answerTo(0, 0, got("a", 4, "", func(p *kmsg.FetchResponseTopicPartition) { p.ErrorCode = int16(kafka.OffsetOutOfRange) }))
			case 12:
				return answerTo(0, 0, got("a", 5, "bytes"))
			case 13:
				return answerTo(0, 0)
			case 14:
				return answerTo(0, 0, got("b", 4, "bytes"))
			}
			return answerTo(0, int16(kafka.TopicAuthorizationFailed))
		}, func(t *testing.T, c *Client) {
			p := at("a", 4, 10)
			if !known {
				p.ID = [16]byte{}
			}
			f, err := c.Read(t.Context(), 1, p, 1000)
			require.NoError(t, err)
			require.Equal(t, "bytes", string(f.Records))
			require.EqualValues(t, 100, f.HighWatermark)
			p.Offset = 11
			f, err = c.Read(t.Context(), 1, p, 1000)
			require.NoError(t, err)
			require.ErrorIs(t, f.Err, kafka.OffsetOutOfRange)
			for p.Offset = 12; p.Offset <= 14; p.Offset++ {
				_, err = c.Read(t.Context(), 1, p, 1000)
				require.ErrorIs(t, err, ErrProtocol)
			}
			_, err = c.Read(t.Context(), 1, p, 1000)
			require.ErrorIs(t, err, kafka.TopicAuthorizationFailed)
			_, err = c.Read(t.Context(), 42, p, 1000)
			mustFail[*UnknownBrokerError](t, err)
		})
	}
}

func TestVersions(t *testing.T) {
	asked(t, modern(), nil, func(t *testing.T, c *Client) {
		v, err := c.Versions(t.Context(), 3)
		require.NoError(t, err)
		require.EqualValues(t, 18, v[int16(kmsg.Fetch)])
		_, ok := v[99]
		require.False(t, ok)
	})
	for api, needed := range map[kmsg.Key]int16{kmsg.Fetch: fetchFloor, kmsg.OffsetForLeaderEpoch: epochEndFloor, kmsg.ListOffsets: listOffsetsFloor} {
		old := modern()
		old[api] = needed - 1
		asked(t, old, nil, func(t *testing.T, c *Client) {
			_, err := c.Versions(t.Context(), 3)
			e := mustFail[*VersionError](t, err)
			require.Equal(t, []any{api.Name(), needed - 1, needed}, []any{e.Request, e.Max, e.Needed})
		})
		delete(old, api)
		asked(t, old, nil, func(t *testing.T, c *Client) {
			_, err := c.Versions(t.Context(), 3)
			require.ErrorContains(t, err, "does not speak "+api.Name())
		})
	}
}

func TestThrottledCallsWait(t *testing.T) {
	asked(t, modern(), func(kmsg.Request) kmsg.Response {
		resp := metadata()
		resp.ThrottleMillis = 700
		return resp
	}, func(t *testing.T, c *Client) {
		start := time.Now()
		for i := range 3 {
			_, err := c.Metadata(t.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, time.Duration(i)*700*time.Millisecond, time.Since(start))
		}
	})
}
