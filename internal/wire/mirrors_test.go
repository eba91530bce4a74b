package wire

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func describedMirrors() *DescribeMirrorsResponse {
	return &DescribeMirrorsResponse{
		ThrottleMillis: 7, ErrorCode: int16(UnknownMirror), ErrorMessage: "no such mirror",
		Mirrors: []DescribedMirror{
			{Name: "dr", SourceBootstrap: "a:1", SourceClusterID: "A", AuthorizedOperations: math.MinInt32, Upstreams: []string{"B", "C"},
				Topics: []DescribedTopic{{Name: "orders", ID: [16]byte{1, 2}, Partitions: []DescribedPartition{
					{Partition: 3, State: "STOPPED", ErrorMessage: "why", RetryAttempt: -1, SourceOffset: 9, DestinationOffset: 8, LastMirrorEpoch: 5, LastMirrorOffset: 90},
					{Partition: 4, State: "MIRRORING", SourceOffset: -1, DestinationOffset: -1, LastMirrorEpoch: -1, LastMirrorOffset: -1},
				}}}},
			{ErrorCode: int16(MirrorAuthorizationFailed), Name: "other", Topics: []DescribedTopic{}},
		},
	}
}

// mirrorMessages are one of each, with every field set, and with none.
func mirrorMessages() []kmsg.Request {
	lookups := []TopicPartitions{{ID: [16]byte{9}, Partitions: []int32{0, 5}}, {Partitions: []int32{}}}
	return []kmsg.Request{
		&DescribeMirrorsRequest{Mirrors: []string{"dr", ""}, IncludeAuthorizedOperations: true, ClusterID: "B", Lookups: lookups},
		&DescribeMirrorsRequest{Mirrors: []string{}},
		&DescribeMirrorsRequest{},
		&LastMirroredOffsetsRequest{Version: 1, ClusterID: "B", Topics: lookups},
		&LastMirroredOffsetsRequest{},
	}
}

func mirrorAnswers() []kmsg.Response {
	topics := []LastMirroredTopic{{ID: [16]byte{9}, Partitions: []LastMirroredPartition{
		{Partition: 1, Epoch: -1, Offset: 90}, {Partition: 2, ErrorCode: int16(kafka.UnknownTopicID), Epoch: -1, Offset: -1},
	}}}
	return []kmsg.Response{
		describedMirrors(), &DescribeMirrorsResponse{},
		&LastMirroredOffsetsResponse{Topics: topics},
		&LastMirroredOffsetsResponse{Version: 1, ThrottleMillis: 1, ErrorCode: int16(kafka.ClusterAuthorizationFailed), Topics: topics},
	}
}

func TestMirrorMessagesReadAsWritten(t *testing.T) {
	for i, m := range mirrorMessages() {
		t.Run(fmt.Sprintf("request %d", i), func(t *testing.T) {
			read := MirrorRequest(m.Key())
			read.SetVersion(m.GetVersion())
			require.NoError(t, read.ReadFrom(m.AppendTo(nil)))
			require.Equal(t, m, read)
		})
	}
	for i, m := range mirrorAnswers() {
		t.Run(fmt.Sprintf("response %d", i), func(t *testing.T) {
			read := m.RequestKind().ResponseKind()
			require.Equal(t, m.GetVersion(), read.GetVersion())
			b := m.AppendTo(nil)
			require.NoError(t, read.ReadFrom(b))
			require.Equal(t, m, read)
			for n := range b {
				require.ErrorIs(t, m.RequestKind().ResponseKind().ReadFrom(b[:n]), ErrProtocol, "cut to %d bytes", n)
			}
		})
	}
	require.Nil(t, MirrorRequest(0))
}

// The bytes are pinned: both ends of a mirror may run different versions of this package.
func TestMirrorMessageBytes(t *testing.T) {
	require.Equal(t, "\x02\x03dr\x01\x02\x00\x02\x02B\x01\x17"+ // names, operations, 2 tags: cluster; lookups of
		"\x02\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x07\x00",
		string((&DescribeMirrorsRequest{Mirrors: []string{"dr"}, IncludeAuthorizedOperations: true, ClusterID: "B",
			Lookups: []TopicPartitions{{ID: [16]byte{9}, Partitions: []int32{7}}}}).AppendTo(nil)))
}

func TestUnknownTagsAreSkipped(t *testing.T) {
	b := (&DescribeMirrorsRequest{Mirrors: []string{"dr"}}).AppendTo(nil)
	b = append(b[:len(b)-1], "\x02\x00\x02\x01"+"\xff\x07\x03xyz"...) // tag 0: an empty string, tag 1023
	var m DescribeMirrorsRequest
	require.NoError(t, m.ReadFrom(b))
	require.Equal(t, DescribeMirrorsRequest{Mirrors: []string{"dr"}}, m)
}

func TestMirrorCalls(t *testing.T) {
	versions := modern()
	versions[kmsg.Key(KeyDescribeMirrors)], versions[kmsg.Key(KeyLastMirroredOffsets)] = 0, 0
	asked(t, versions, func(req kmsg.Request) kmsg.Response {
		if v, ok := req.(*LastMirroredOffsetsRequest); ok {
			return &LastMirroredOffsetsResponse{Topics: []LastMirroredTopic{{ID: v.Topics[0].ID, Partitions: []LastMirroredPartition{{Offset: 5}}}}}
		}
		return describedMirrors()
	}, func(t *testing.T, c *Client) {
		d, err := c.DescribeMirrors(t.Context(), 1, &DescribeMirrorsRequest{ClusterID: "A"})
		require.NoError(t, err)
		require.Equal(t, describedMirrors(), d)
		l, err := c.LastMirroredOffsets(t.Context(), 1, &LastMirroredOffsetsRequest{Topics: []TopicPartitions{{ID: idA}}})
		require.NoError(t, err)
		require.Equal(t, LastMirroredPartition{Epoch: -1, Offset: 5}, l.Topics[0].Partitions[0], "version 0 has no epoch")
	})
	asked(t, modern(), nil, func(t *testing.T, c *Client) {
		_, err := c.DescribeMirrors(t.Context(), 1, &DescribeMirrorsRequest{})
		require.ErrorIs(t, err, ErrVersion)
		require.Equal(t, "broker broker-1:9092 does not speak DescribeMirrors, needed is one of 0 to 0", err.Error())
	})
}

func TestErrorCodesHaveNames(t *testing.T) {
	require.NoError(t, CodeError(0))
	require.ErrorIs(t, CodeError(103), kafka.InconsistentTopicID)
	for code := ReadOnlyTopic; code <= MirrorTopicNotStopped; code++ {
		if code != 135 {
			require.NotEmpty(t, codeNames[code], "%d", code)
		}
		require.ErrorIs(t, CodeError(int16(code)), code)
	}
	require.Equal(t, "[134] READ_ONLY_TOPIC", CodeError(134).Error())
	require.ErrorContains(t, CodeError(9999), "9999")
}

// FuzzMirrorMessages: any bytes are refused or read to a message that is written and read again to the same one.
func FuzzMirrorMessages(f *testing.F) {
	for i, m := range mirrorMessages() {
		f.Add(byte(0), byte(i&1), m.AppendTo(nil))
		f.Add(byte(1), byte(i&1), m.AppendTo(nil))
	}
	for _, m := range mirrorAnswers() {
		f.Add(byte(2), byte(m.GetVersion()), m.AppendTo(nil))
		f.Add(byte(3), byte(m.GetVersion()), m.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, which, version byte, b []byte) {
		type message interface {
			SetVersion(int16)
			AppendTo([]byte) []byte
			ReadFrom([]byte) error
		}
		fresh := func() message {
			m := []message{new(DescribeMirrorsRequest), new(LastMirroredOffsetsRequest), new(DescribeMirrorsResponse), new(LastMirroredOffsetsResponse)}[which%4]
			m.SetVersion(int16(version & 1))
			return m
		}
		first, second := fresh(), fresh()
		if first.ReadFrom(b) != nil {
			return
		}
		if err := second.ReadFrom(first.AppendTo(nil)); err != nil || !reflect.DeepEqual(first, second) {
			t.Fatalf("%+v\n%+v\n%v", first, second, err)
		}
	})
}
