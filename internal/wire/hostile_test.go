package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestNonsenseOfOnePartitionStaysThere(t *testing.T) {
	bad := func(change func(*kmsg.FetchResponseTopicPartition)) []kmsg.FetchResponseTopic {
		return []kmsg.FetchResponseTopic{got("a", 0, "x", change), got("a", 1, "fine")}
	}
	for name, topics := range map[string][]kmsg.FetchResponseTopic{
		"negative high watermark": bad(func(p *kmsg.FetchResponseTopicPartition) { p.HighWatermark = -2 }),
		"negative log start":      bad(func(p *kmsg.FetchResponseTopicPartition) { p.LogStartOffset = -9 }),
		"twice in one answer":     {got("a", 0, "x"), got("a", 1, "fine"), got("a", 0, "y")},
		"twice, with an error":    {got("a", 0, "x"), got("a", 0, "y", func(p *kmsg.FetchResponseTopicPartition) { p.ErrorCode = 3 }), got("a", 1, "fine")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFetcher(modern())
				s := newClient(t, &f.cluster).Session(1)
				s.Set(at("a", 0, 10))
				s.Set(at("a", 1, 10))
				_, r, err := f.exchange(t, s, answerTo(7, 0, topics...))
				require.NoError(t, err)
				defer r.Release()
				require.Len(t, r.Partitions, 2)
				require.ErrorIs(t, r.Partitions[0].Err, ErrProtocol)
				require.Empty(t, r.Partitions[0].Records)
				require.NoError(t, r.Partitions[1].Err)
				require.Equal(t, "fine", string(r.Partitions[1].Records))
			})
		})
	}
}

func TestErrorOfOnePartition(t *testing.T) {
	for _, code := range []int16{1, 3, 6, 74, 75, 100, 103, 109, 999, -1} {
		synctest.Test(t, func(t *testing.T) {
			f := newFetcher(modern())
			s := newClient(t, &f.cluster).Session(1)
			s.Set(at("a", 0, 10))
			_, r, err := f.exchange(t, s, answerTo(7, 0, got("a", 0, "bytes that do not count", func(p *kmsg.FetchResponseTopicPartition) {
				p.ErrorCode, p.HighWatermark = code, -1
			})))
			require.NoError(t, err)
			defer r.Release()
			require.ErrorIs(t, r.Partitions[0].Err, kafka.Error(code))
			require.Empty(t, r.Partitions[0].Records)
		})
	}
}

func TestNonsenseOfTheWholeAnswerEndsTheConnection(t *testing.T) {
	fine := func() *kmsg.FetchResponse { return answerTo(7, 0, got("a", 0, "records")) }
	raw := func(change func(b []byte) []byte) func(*peer) {
		return func(p *peer) { p.Write(change(frame(p.corr, p.req, fine()))) }
	}
	for name, respond := range map[string]func(*peer){
		"partition never asked for":  func(p *peer) { p.answer(answerTo(7, 0, got("a", 1, "x"))) },
		"topic never asked for":      func(p *peer) { p.answer(answerTo(7, 0, got("b", 0, "x"))) },
		"negative session":           func(p *peer) { p.answer(answerTo(-7, 0)) },
		"error for the whole answer": func(p *peer) { p.answer(answerTo(7, 29, got("a", 0, "x"))) },
		"another correlation id":     raw(func(b []byte) []byte { b[7]++; return b }),
		"negative length":            raw(func(b []byte) []byte { b[0] = 0xff; return b }),
		"length of 2 GiB":            raw(func(b []byte) []byte { b[0] = 0x7f; return b }),
		"length 3":                   raw(func(b []byte) []byte { binary.BigEndian.PutUint32(b, 3); return b }),
		"body missing":               raw(func(b []byte) []byte { binary.BigEndian.PutUint32(b, 4); return b[:8] }),
		"half of it":                 raw(func(b []byte) []byte { return b[:len(b)/2] }),
		"cut short": raw(func(b []byte) []byte {
			b = b[:len(b)-5]
			binary.BigEndian.PutUint32(b, uint32(len(b)-4))
			return b
		}),
		"a claim of 2 billion topics": raw(func(b []byte) []byte {
			return append(b[:4+4+1+4+2+4], 0xff, 0xff, 0xff, 0xff, 0x07)
		}),
		"header tags without end": raw(func(b []byte) []byte { b[8] = 0xff; return b }),
		"nothing":                 func(*peer) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c cluster
				sick := true
				c.serve = func(_ string, p *peer) {
					for p.next() {
						if _, ok := p.req.(*kmsg.ApiVersionsRequest); ok {
							p.answer(speaks(modern()))
						} else if sick {
							sick = false
							respond(p)
							return
						} else {
							p.answer(fine())
						}
					}
				}
				s := newClient(t, &c).Session(1)
				s.Set(at("a", 0, 10))
				require.NoError(t, s.Send(t.Context(), limits))
				_, err := s.Receive(t.Context())
				require.Equal(t, "broker-1:9092", mustFail[*Error](t, err).Addr)

				require.NoError(t, s.Send(t.Context(), limits), "the next one connects again")
				r, err := s.Receive(t.Context())
				require.NoError(t, err)
				require.Equal(t, "records", string(r.Partitions[0].Records))
				r.Release()
				dialled, _ := c.count()
				require.Equal(t, 2, dialled)
			})
		})
	}
}

func TestAnotherSessionInAnIncrementalAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFetcher(modern())
		s := newClient(t, &f.cluster).Session(1)
		s.Set(at("a", 0, 10))
		f.turn(t, s, answerTo(7, 0))
		_, _, err := f.exchange(t, s, answerTo(8, 0))
		require.ErrorIs(t, err, ErrProtocol)
	})
}

func TestAClaimIsNotAllocated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cluster
		c.serve = func(_ string, p *peer) {
			p.next()
			p.answer(speaks(modern()))
			p.next()
			b := frame(p.corr, p.req, answerTo(7, 0))
			binary.BigEndian.PutUint32(b, maxFrame-1)
			p.Write(b)
		}
		s := newClient(t, &c).Session(1)
		s.Set(at("a", 0, 10))
		small := limits
		small.MaxBytes = 1000
		require.NoError(t, s.Send(t.Context(), small))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := s.Receive(t.Context())
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	})
}

func TestRecordsAreNotCopied(t *testing.T) {
	for _, version := range []int16{10, 12, 18} {
		req := &kmsg.FetchRequest{Version: version}
		b := frame(1, req, answerTo(7, 0, got("a", 0, strings.Repeat("r", 1000))))[8:]
		var resp kmsg.FetchResponse
		require.NoError(t, parseFetch(&resp, req, b))
		records := resp.Topics[0].Partitions[0].RecordBatches
		at := bytes.IndexByte(b, 'r')
		require.Same(t, &b[at], &records[0])
		require.Equal(t, len(records), cap(records), "appending to them must not write into what follows")
	}
}

// player is a connection that plays bytes and swallows what is written.
type player struct{ *bytes.Reader }

func (player) Write(b []byte) (int, error)      { return len(b), nil }
func (player) Close() error                     { return nil }
func (player) LocalAddr() net.Addr              { return nil }
func (player) RemoteAddr() net.Addr             { return nil }
func (player) SetDeadline(time.Time) error      { return nil }
func (player) SetReadDeadline(time.Time) error  { return nil }
func (player) SetWriteDeadline(time.Time) error { return nil }

// play runs call with a client whose every connection plays stream.
func play(stream []byte, call func(c *Client) error) error {
	c := New(Config{Addr: kafka.TCP("boot:9092"), Transport: &kafka.Transport{
		Dial: func(context.Context, string, string) (net.Conn, error) { return player{bytes.NewReader(stream)}, nil },
	}})
	defer c.Close()
	c.learn(map[int32]string{1: "broker-1:9092"})
	return call(c)
}

var calls = []struct {
	key  kmsg.Key
	call func(c *Client) error
}{
	{kmsg.Metadata, func(c *Client) error { _, err := c.Metadata(context.Background(), []string{"a"}); return err }},
	{kmsg.ListOffsets, func(c *Client) error {
		_, err := c.Offsets(context.Background(), 1, []OffsetQuery{{"a", 0, 1, -1}})
		return err
	}},
	{kmsg.OffsetForLeaderEpoch, func(c *Client) error {
		_, err := c.EpochEnds(context.Background(), 1, []EpochQuery{{"a", 0, 1, 1}})
		return err
	}},
	{kmsg.Fetch, func(c *Client) error {
		f, err := c.Read(context.Background(), 1, at("a", 0, 10), 1000)
		if err == nil && f.Err == nil && f.HighWatermark < 0 {
			return errors.New("a high watermark below 0 came through")
		}
		return err
	}},
}

// FuzzPeer: whatever a peer sends, each call returns, without a panic, and allocates no more than a small multiple of what has
// arrived.
func FuzzPeer(f *testing.F) {
	for i, c := range calls {
		for _, old := range []bool{false, true} {
			versions := modern()
			if old {
				versions = map[kmsg.Key]int16{kmsg.Metadata: 7, kmsg.Fetch: 11, kmsg.ListOffsets: 4, kmsg.OffsetForLeaderEpoch: 2}
			}
			hello := kmsg.NewPtrApiVersionsRequest()
			hello.Version = 3
			stream := frame(1, hello, speaks(versions))
			req := kmsg.RequestForKey(int16(c.key))
			req.SetVersion(versions[c.key])
			var resp kmsg.Response
			switch c.key {
			case kmsg.Metadata:
				m := metadata()
				m.Topics = append(m.Topics, topic("a", 1, 0, 1))
				resp = m
			case kmsg.Fetch:
				resp = answerTo(0, 0, got("a", 0, "records"))
			default:
				resp = req.ResponseKind()
			}
			f.Add(byte(i), append(stream, frame(2, req, resp)...))
		}
	}
	f.Fuzz(func(t *testing.T, which byte, stream []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		play(stream, calls[int(which)%len(calls)].call)
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(2<<20+64*len(stream)); got > most {
			t.Fatalf("%d bytes allocated for %d that came", got, len(stream))
		}
	})
}

// FuzzFetchAnswer: an answer of a session is refused as a whole, or each partition in it was asked for, stands there once, keeps
// its records within the frame, and is free of error only with numbers that can be true. The session's state stays usable: the
// next request names everything, or belongs to the broker's session.
func FuzzFetchAnswer(f *testing.F) {
	for _, version := range []int16{10, 11, 12, 13, 16, 18} {
		req := &kmsg.FetchRequest{Version: version}
		hint := got("a", 1, "", func(p *kmsg.FetchResponseTopicPartition) {
			p.ErrorCode, p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 6, 2, 9
		})
		apart := got("b", 0, "", func(p *kmsg.FetchResponseTopicPartition) { p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = 1, 5 })
		answer := answerTo(7, 0, got("a", 0, "records"), hint, apart)
		answer.Brokers = []kmsg.FetchResponseBroker{{NodeID: 2, Host: "b2", Port: 9}}
		f.Add(version, frame(1, req, answer)[8:])
		f.Add(version, frame(1, req, answerTo(0, 70))[8:])
		f.Add(version, frame(1, req, answerTo(7, 0, got("a", 0, "x"), got("a", 0, "y")))[8:])
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		version = fetchFloor + (version&0x7fff)%(fetchMost-fetchFloor+1)
		c := New(Config{})
		defer c.Close()
		s := c.Session(1)
		s.conn = &conn{client: c, versions: map[int16][2]int16{1: {0, version}}}
		positions := []FetchPartition{at("a", 0, 10), at("a", 1, 10), at("b", 0, 10)}
		for _, p := range positions {
			s.Set(p)
		}
		require.NoError(t, s.prepare(limits))
		buf := newBuffer(len(body))
		copy(buf.b, body)
		r := &Response{buf: buf, unbook: func() {}}
		r.holders.Store(1)
		defer r.Release()
		if s.accept(r, buf.b[:len(body)]) != nil {
			return
		}
		seen := make(map[key]bool)
		for _, p := range r.Partitions {
			k := key{p.Topic, p.Partition}
			if seen[k] {
				t.Fatalf("%v stands twice", k)
			}
			seen[k] = true
			if !slices.ContainsFunc(positions, func(q FetchPartition) bool { return k == key{q.Topic, q.Partition} }) {
				t.Fatalf("%v was never asked for", k)
			}
			if len(p.Records) > 0 && !bytes.Contains(body, p.Records) {
				t.Fatal("records are not from the frame")
			}
			if p.Err == nil && p.HighWatermark < 0 || p.Err != nil && (p.Records != nil || p.Diverging != nil) {
				t.Fatalf("%+v", p)
			}
			if d := p.Diverging; d != nil && (d.Epoch < 0 || d.End < 0 || d.Epoch > 2 || d.Epoch == 2 && d.End >= 10) {
				t.Fatalf("%+v", d)
			}
		}
		if err := s.prepare(limits); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, topic := range s.req.Topics {
			n += len(topic.Partitions)
		}
		if full := s.req.SessionEpoch == 0; full && n != len(positions) || !full && (n != 0 || s.req.SessionID != s.resp.SessionID) {
			t.Fatalf("epoch %d, session %d, %d partitions", s.req.SessionEpoch, s.req.SessionID, n)
		}
	})
}
