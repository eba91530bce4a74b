package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	idA = [16]byte{0xa}
	idB = [16]byte{0xb}
)

func at(topic string, partition int32, offset int64) FetchPartition {
	id := map[string][16]byte{"a": idA, "b": idB}[topic]
	return FetchPartition{Topic: topic, ID: id, Partition: partition, CurrentLeaderEpoch: 3, Offset: offset, LastFetchedEpoch: 2, MaxBytes: 1 << 20}
}

// script renders a fetch request in one line.
func script(req *kmsg.FetchRequest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "v%d session %d epoch %d:", req.Version, req.SessionID, req.SessionEpoch)
	name := func(topic string, id [16]byte) string {
		if req.Version > fetchNamed {
			return fmt.Sprintf("id:%x", id[:1])
		}
		return topic
	}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			fmt.Fprintf(&b, " %s/%d@%d", name(t.Topic, t.TopicID), p.Partition, p.FetchOffset)
		}
	}
	for _, t := range req.ForgottenTopics {
		for _, p := range t.Partitions {
			fmt.Fprintf(&b, " -%s/%d", name(t.Topic, t.TopicID), p)
		}
	}
	return b.String()
}

// answerTo makes a fetch answer of a session with a partition for each of the positions given.
func answerTo(session int32, code int16, parts ...kmsg.FetchResponseTopic) *kmsg.FetchResponse {
	resp := kmsg.NewPtrFetchResponse()
	resp.SessionID, resp.ErrorCode, resp.Topics = session, code, parts
	return resp
}

func got(topic string, partition int32, records string, change ...func(*kmsg.FetchResponseTopicPartition)) kmsg.FetchResponseTopic {
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition, p.HighWatermark, p.LastStableOffset, p.RecordBatches = partition, 100, 100, []byte(records)
	for _, f := range change {
		f(&p)
	}
	id := map[string][16]byte{"a": idA, "b": idB}[topic]
	return kmsg.FetchResponseTopic{Topic: topic, TopicID: id, Partitions: []kmsg.FetchResponseTopicPartition{p}}
}

// fetcher serves Fetch with the answers queued for it, and notes the requests.
type fetcher struct {
	cluster
	requests chan string
	answers  chan *kmsg.FetchResponse // nil: hang up
}

func newFetcher(versions map[kmsg.Key]int16) *fetcher {
	f := &fetcher{requests: make(chan string, 100), answers: make(chan *kmsg.FetchResponse, 100)}
	f.serve = func(_ string, p *peer) {
		p.handle(versions, func(req kmsg.Request) kmsg.Response {
			f.requests <- script(req.(*kmsg.FetchRequest))
			if resp := <-f.answers; resp != nil {
				return resp
			}
			return nil
		})
	}
	return f
}

var limits = Limits{MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 500 * time.Millisecond}

// exchange sends, answers and receives once, and gives the request as a line and the answer.
func (f *fetcher) exchange(t *testing.T, s *Session, answer *kmsg.FetchResponse) (string, *Response, error) {
	t.Helper()
	f.answers <- answer
	require.NoError(t, s.Send(t.Context(), limits))
	r, err := s.Receive(t.Context())
	return <-f.requests, r, err
}

// turn is exchange where the answer must be fine and is released.
func (f *fetcher) turn(t *testing.T, s *Session, answer *kmsg.FetchResponse) string {
	t.Helper()
	line, r, err := f.exchange(t, s, answer)
	require.NoError(t, err)
	r.Release()
	return line
}

func TestSessionSendsOnlyWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		c := newClient(t, &f.cluster)
		s := c.Session(1)
		s.Set(at("b", 0, 70))
		s.Set(at("a", 1, 50))
		s.Set(at("a", 0, 10))
		require.Equal(t, "v18 session 0 epoch 0: id:0a/0@10 id:0a/1@50 id:0b/0@70", f.turn(t, s, answerTo(7, 0, got("a", 0, "xyz"))))
		require.Equal(t, "v18 session 7 epoch 1:", f.turn(t, s, answerTo(7, 0)), "nothing was set")

		s.Set(at("a", 0, 20))
		s.Set(at("a", 1, 50))
		require.Equal(t, "v18 session 7 epoch 2: id:0a/0@20", f.turn(t, s, answerTo(7, 0)), "only what moved")

		s.Forget("b", 0)
		s.Forget("c", 0)
		require.Equal(t, "v18 session 7 epoch 3: -id:0b/0", f.turn(t, s, answerTo(7, 0)))

		s.Set(at("b", 0, 70))
		s.Forget("a", 1)
		s.Set(at("a", 1, 51))
		require.Equal(t, "v18 session 7 epoch 0: id:0a/1@51 id:0a/0@20 id:0b/0@70", f.turn(t, s, answerTo(7, 0)),
			"forgotten and set again before the broker knew: what it told meanwhile was dropped, so it must tell all again")

		s.Set(at("a", 2, 0))
		s.Forget("a", 2)
		require.Equal(t, "v18 session 7 epoch 1:", f.turn(t, s, answerTo(7, 0)), "set and forgotten was never there")
	})
}

func TestSessionIsRenewedWithAllPartitions(t *testing.T) {
	for _, code := range []kafka.Error{kafka.FetchSessionIDNotFound, kafka.InvalidFetchSessionEpoch, kafka.FetchSessionTopicIDError} {
		t.Run(code.Title(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFetcher(modern())
				s := newClient(t, &f.cluster).Session(1)
				s.Set(at("a", 0, 10))
				s.Set(at("a", 1, 20))
				f.turn(t, s, answerTo(7, 0))
				s.Set(at("a", 1, 21))
				line, r, err := f.exchange(t, s, answerTo(0, int16(code)))
				require.NoError(t, err, "lost sessions are not the caller's business")
				require.Equal(t, "v18 session 7 epoch 1: id:0a/1@21", line)
				require.Empty(t, r.Partitions)
				r.Release()

				old := 7 // closes it, if the broker still has it
				if code == kafka.FetchSessionIDNotFound {
					old = 0
				}
				require.Equal(t, fmt.Sprintf("v18 session %d epoch 0: id:0a/0@10 id:0a/1@21", old), f.turn(t, s, answerTo(8, 0)))
				require.Equal(t, "v18 session 8 epoch 1:", f.turn(t, s, answerTo(8, 0)))
			})
		})
	}
}

func TestSessionErrorToAFullRequestIsNotRetriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		s.Set(at("a", 0, 10))
		_, _, err := f.exchange(t, s, answerTo(0, int16(kafka.InvalidFetchSessionEpoch)))
		require.ErrorIs(t, err, kafka.InvalidFetchSessionEpoch)
	})
}

func TestBrokerWithoutSessionsIsAskedForAllWhatWaitedLongestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		for p := range int32(3) {
			s.Set(at("a", p, 10))
		}
		s.Set(at("b", 0, 10))
		require.Equal(t, "v18 session 0 epoch 0: id:0a/0@10 id:0a/1@10 id:0a/2@10 id:0b/0@10", f.turn(t, s, answerTo(0, 0, got("a", 0, "x"))))
		s.Set(at("a", 0, 11))
		require.Equal(t, "v18 session 0 epoch 0: id:0a/1@10 id:0a/2@10 id:0a/0@11 id:0b/0@10", f.turn(t, s, answerTo(0, 0, got("a", 1, "x"), got("a", 2, "x"))))
		require.Equal(t, "v18 session 0 epoch 0: id:0b/0@10 id:0a/0@11 id:0a/1@10 id:0a/2@10", f.turn(t, s, answerTo(0, 0)))
		s.Forget("b", 0)
		require.Equal(t, "v18 session 0 epoch 0: id:0a/0@11 id:0a/1@10 id:0a/2@10", f.turn(t, s, answerTo(9, 0)))
		require.Equal(t, "v18 session 9 epoch 1:", f.turn(t, s, answerTo(9, 0)), "the broker has room again")
		require.Equal(t, "v18 session 9 epoch 2:", f.turn(t, s, answerTo(0, 0)), "and closes it")
		require.Equal(t, "v18 session 0 epoch 0: id:0a/0@11 id:0a/1@10 id:0a/2@10", f.turn(t, s, answerTo(0, 0)))
	})
}

func TestReconnectStartsAFreshSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		s.Set(at("a", 0, 10))
		s.Set(at("a", 1, 20))
		f.turn(t, s, answerTo(7, 0))
		s.Set(at("a", 0, 11))
		_, _, err := f.exchange(t, s, nil)
		require.Error(t, err)
		require.Equal(t, "v18 session 7 epoch 0: id:0a/0@11 id:0a/1@20", f.turn(t, s, answerTo(8, 0)))
		dialled, _ := f.count()
		require.Equal(t, 2, dialled)
	})
}

func TestTopicIDs(t *testing.T) {
	named := FetchPartition{Topic: "old", Partition: 0, Offset: 5}
	t.Run("a session with an unknown id goes by names", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFetcher(modern())
			s := newClient(t, &f.cluster).Session(1)
			s.Set(at("a", 0, 10))
			f.turn(t, s, answerTo(7, 0))
			s.Set(named)
			require.Equal(t, "v12 session 7 epoch 0: a/0@10 old/0@5", f.turn(t, s, answerTo(8, 0)))
			s.Forget("old", 0)
			require.Equal(t, "v12 session 8 epoch 1: -old/0", f.turn(t, s, answerTo(8, 0)))
		})
	})
	t.Run("another id is another topic", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFetcher(modern())
			s := newClient(t, &f.cluster).Session(1)
			s.Set(at("a", 0, 10))
			s.Set(at("a", 1, 20))
			f.turn(t, s, answerTo(7, 0))
			again := at("a", 0, 0)
			again.ID = idB
			s.Set(again)
			require.Equal(t, "v18 session 7 epoch 0: id:0b/0@0 id:0a/1@20", f.turn(t, s, answerTo(8, 0, got("b", 0, "x"))))
		})
	})
}

func TestNewLeaderEpochReachesTheBroker(t *testing.T) {
	for version, want := range map[int16]string{
		18: "v18 session 7 epoch 1: id:0a/0@10",
		12: "v12 session 7 epoch 1: a/0@10",
		11: "v11 session 7 epoch 0: a/0@10 a/1@20", // the broker's session would keep the old one
	} {
		synctest.Test(t, func(t *testing.T) {
			v := modern()
			v[kmsg.Fetch] = version
			f := newFetcher(v)
			s := newClient(t, &f.cluster).Session(1)
			s.Set(at("a", 0, 10))
			s.Set(at("a", 1, 20))
			f.turn(t, s, answerTo(7, 0))
			p := at("a", 0, 10)
			p.CurrentLeaderEpoch++
			s.Set(p)
			require.Equal(t, want, f.turn(t, s, answerTo(7, 0)))
		})
	}
}

func TestFetchVersionIsTheNewestShared(t *testing.T) {
	for version := int16(fetchFloor); version <= fetchMost+1; version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := modern()
				v[kmsg.Fetch] = version
				f := newFetcher(v)
				s := newClient(t, &f.cluster).Session(1)
				s.Set(at("a", 0, 10))
				line, r, err := f.exchange(t, s, answerTo(7, 0, got("a", 0, "records", func(p *kmsg.FetchResponseTopicPartition) {
					p.LogStartOffset, p.LastStableOffset = 3, 99
					p.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 1, FirstOffset: 2}}
				})))
				require.NoError(t, err)
				defer r.Release()
				require.Contains(t, line, fmt.Sprintf("v%d ", min(version, fetchMost)))
				require.Len(t, r.Partitions, 1)
				p := r.Partitions[0]
				require.NoError(t, p.Err)
				require.Equal(t, "records", string(p.Records))
				require.Equal(t, []int64{10, 100, 99, 3}, []int64{p.Offset, p.HighWatermark, p.LastStable, p.LogStart})
				require.Equal(t, Leader{-1, -1}, p.Leader)
			})
		})
	}
}

func TestTooOldBrokerIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := modern()
		v[kmsg.Fetch] = 8
		f := newFetcher(v)
		c := newClient(t, &f.cluster)
		s := c.Session(1)
		s.Set(at("a", 0, 10))
		err := s.Send(t.Context(), limits)
		require.ErrorIs(t, err, ErrVersion)
		require.Equal(t, "broker broker-1:9092 speaks Fetch versions 0 to 8, needed is one of 10 to 18; Apache Kafka has it from 2.1 on", err.Error())
		_, err = c.Versions(t.Context(), 1)
		require.ErrorIs(t, err, ErrVersion)
	})
}

func TestTagIsThatOfTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		p := at("a", 0, 10)
		p.Tag = "first"
		s.Set(p)
		f.answers <- answerTo(7, 0, got("a", 0, "x"))
		require.NoError(t, s.Send(t.Context(), limits))
		p.Tag = "second"
		s.Set(p)
		r, err := s.Receive(t.Context())
		require.NoError(t, err)
		require.Equal(t, "first", r.Partitions[0].Tag)
		r.Release()
		_, r, err = f.exchange(t, s, answerTo(7, 0, got("a", 0, "x")))
		require.NoError(t, err)
		require.Equal(t, "second", r.Partitions[0].Tag, "a new tag at the same offset needs no word to the broker")
		r.Release()
	})
}

func TestForgottenInFlightIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		s.Set(at("a", 0, 10))
		s.Set(at("a", 1, 10))
		f.answers <- answerTo(7, 0, got("a", 0, "x"), got("a", 1, "y"))
		require.NoError(t, s.Send(t.Context(), limits))
		s.Forget("a", 0)
		r, err := s.Receive(t.Context())
		require.NoError(t, err)
		require.Len(t, r.Partitions, 1)
		require.EqualValues(t, 1, r.Partitions[0].Partition)
		r.Release()
	})
}

func TestLeaderHintTeachesTheAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		c := newClient(t, &f.cluster)
		s := c.Session(1)
		s.Set(at("a", 0, 10))
		answer := answerTo(7, 0, got("a", 0, "", func(p *kmsg.FetchResponseTopicPartition) {
			p.ErrorCode, p.HighWatermark = int16(kafka.NotLeaderForPartition), -1
			p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 9, 4
		}))
		answer.Brokers = []kmsg.FetchResponseBroker{{NodeID: 9, Host: "moved", Port: 1234}, {NodeID: 10, Host: "", Port: 1}, {NodeID: -1, Host: "x", Port: 1}}
		_, r, err := f.exchange(t, s, answer)
		require.NoError(t, err)
		defer r.Release()
		require.ErrorIs(t, r.Partitions[0].Err, kafka.NotLeaderForPartition)
		require.Equal(t, Leader{9, 4}, r.Partitions[0].Leader)
		to, err := c.broker(9)
		require.NoError(t, err)
		require.Equal(t, "moved:1234", to.host)
		_, err = c.broker(10)
		require.Error(t, err)
	})
}

func TestDivergence(t *testing.T) {
	for _, tc := range []struct {
		epoch int32
		end   int64
		bad   bool
	}{
		{1, 8, false}, {2, 9, false}, {0, 0, false},
		{2, 10, true},  // is no divergence
		{3, 5, true},   // above what was asked about
		{-1, 5, true},  // unknown is an error code, not a divergence
		{1, -1, true},  //
		{-5, -5, true}, //
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFetcher(modern())
			s := newClient(t, &f.cluster).Session(1)
			s.Set(at("a", 0, 10)) // last fetched epoch 2
			_, r, err := f.exchange(t, s, answerTo(7, 0, got("a", 0, "", func(p *kmsg.FetchResponseTopicPartition) {
				p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = tc.epoch, tc.end
			})))
			require.NoError(t, err)
			defer r.Release()
			p := r.Partitions[0]
			if tc.bad {
				require.ErrorIs(t, p.Err, ErrProtocol, "%+v", tc)
				require.Nil(t, p.Diverging)
			} else {
				require.NoError(t, p.Err)
				require.Equal(t, &EpochEnd{tc.epoch, tc.end}, p.Diverging)
			}
		})
	}
}

func TestThrottleDelaysTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		s.Set(at("a", 0, 10))
		answer := answerTo(7, 0)
		answer.ThrottleMillis = 1500
		_, r, err := f.exchange(t, s, answer)
		require.NoError(t, err)
		require.Equal(t, 1500*time.Millisecond, r.Throttle)
		r.Release()

		start := time.Now()
		answer = answerTo(7, 0)
		answer.ThrottleMillis = 1 << 30 // twelve days
		f.turn(t, s, answer)
		require.Equal(t, 1500*time.Millisecond, time.Since(start))

		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, s.Send(ctx, limits), context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(start), "the wait ends with the context")
		f.answers <- answerTo(8, 0)
		require.NoError(t, s.Send(t.Context(), limits))
		require.LessOrEqual(t, time.Since(start), maxThrottle)
		r, err = s.Receive(t.Context())
		require.NoError(t, err)
		r.Release()
	})
}

func TestLongPollEndsAtOnce(t *testing.T) {
	for name, end := range map[string]func(c *Client, s *Session, cancel func()){
		"context": func(_ *Client, _ *Session, cancel func()) { cancel() },
		"session": func(_ *Client, s *Session, _ func()) { s.Close() },
		"client":  func(c *Client, _ *Session, _ func()) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFetcher(modern()) // never answers
				c := newClient(t, &f.cluster)
				s := c.Session(1)
				s.Set(at("a", 0, 10))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				require.NoError(t, s.Send(ctx, limits))
				failed := make(chan error)
				go func() {
					_, err := s.Receive(ctx)
					failed <- err
				}()
				synctest.Wait()
				start := time.Now()
				end(c, s, cancel)
				err := <-failed
				require.Zero(t, time.Since(start))
				if name == "context" {
					require.ErrorIs(t, err, context.Canceled)
				} else {
					require.Equal(t, ErrClosed, err)
					require.Equal(t, ErrClosed, s.Send(t.Context(), limits))
				}
				close(f.answers) // lets the broker see the end of the connection
				synctest.Wait()
				_, open := f.count()
				require.Zero(t, open)
			})
		})
	}
}

func TestSilentBrokerIsGivenUpAfterTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster, func(c *Config) { c.RequestTimeout = 10 * time.Second }).Session(1)
		s.Set(at("a", 0, 10))
		start := time.Now()
		require.NoError(t, s.Send(t.Context(), limits))
		_, err := s.Receive(t.Context())
		require.Equal(t, 10*time.Second+limits.MaxWait, time.Since(start))
		require.Equal(t, "Fetch to broker-1:9092: read pipe: i/o timeout (the connection stands but no answer came in time)", err.Error())
		close(f.answers)
		synctest.Wait()
		_, open := f.count()
		require.Zero(t, open, "the connection is closed")
	})
}

func TestSlowButMovingAnswerIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := strings.Repeat("r", 3*step)
		var c cluster
		c.serve = func(_ string, p *peer) {
			p.next()
			p.answer(speaks(modern()))
			p.next()
			b := frame(p.corr, p.req, answerTo(7, 0, got("a", 0, records)))
			for piece := range slices.Chunk(b, step) {
				time.Sleep(9 * time.Second) // virtual: slow, and each piece in time
				p.Write(piece)
			}
			p.next()
		}
		s := newClient(t, &c, func(c *Config) { c.RequestTimeout = 20 * time.Second }).Session(1)
		s.Set(at("a", 0, 10))
		require.NoError(t, s.Send(t.Context(), limits))
		r, err := s.Receive(t.Context())
		require.NoError(t, err)
		require.Equal(t, records, string(r.Partitions[0].Records))
		r.Release()
	})
}

func TestSendAndReceiveTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		_, err := s.Receive(t.Context())
		require.ErrorIs(t, err, errOrder)
		require.NoError(t, s.Send(t.Context(), limits))
		require.ErrorIs(t, s.Send(t.Context(), limits), errOrder)
		f.answers <- answerTo(7, 0)
		r, err := s.Receive(t.Context())
		require.NoError(t, err)
		r.Release()
	})
}

func TestUnknownBroker(t *testing.T) {
	f := newFetcher(modern())
	err := newClient(t, &f.cluster).Session(42).Send(t.Context(), limits)
	require.EqualValues(t, 42, mustFail[*UnknownBrokerError](t, err).Broker)
}

func TestReserveBoundsWhatIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		var booked, released int
		var refuse error
		c := newClient(t, &f.cluster, func(c *Config) {
			c.Reserve = func(_ context.Context, n int) (func(), error) {
				booked += n
				return func() { released += n }, refuse
			}
		})
		s := c.Session(1)
		s.Set(at("a", 0, 10))
		records := strings.Repeat("r", 3*int(limits.MaxBytes)) // one batch far above the limit
		_, r, err := f.exchange(t, s, answerTo(7, 0, got("a", 0, records)))
		require.NoError(t, err)
		require.Equal(t, records, string(r.Partitions[0].Records))
		require.Equal(t, int(limits.MaxBytes)+answerOverhead+partitionOverhead, booked)
		require.Zero(t, released)
		r.Retain()
		r.Release()
		require.Zero(t, released)
		r.Release()
		require.Equal(t, booked, released)
		require.Panics(t, r.Release)

		refuse = errors.New("no more")
		_, _, err = f.exchange(t, s, answerTo(7, 0, got("a", 0, "x")))
		require.ErrorIs(t, err, refuse)
	})
}
