package main

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/broker"
)

func TestPositionsAreForPeers(t *testing.T) {
	b, err := NewBroker(t.Context(), NewLog(), rules)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	for _, k := range served() {
		if k.ApiKey != broker.KeyLastMirroredOffsets && k.ApiKey != broker.KeyDescribeMirrors {
			continue
		}
		req, ok := broker.NewRequest(k.ApiKey, k.MaxVersion)
		require.True(t, ok)
		f := frame{key: k.ApiKey, version: k.MaxVersion, rest: req.AppendTo([]byte{0xff, 0xff, 0})} // no client name, no tags
		for principal, want := range map[string]uint16{anyone: 31, peer: 0} {
			resp, err := b.answer(nil, principal, f)
			require.NoError(t, err)
			require.Equal(t, want, binary.BigEndian.Uint16(resp.AppendTo(nil)[4:]), "key %d for %s", k.ApiKey, principal)
		}
	}
}

func TestWhatIsNotServedEndsTheConnection(t *testing.T) {
	b, err := NewBroker(t.Context(), NewLog(), rules)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	for _, k := range broker.Keys() {
		if mounted[k.ApiKey] || k.ApiKey == produce.ApiKey || k.ApiKey == apiVersions.ApiKey {
			continue
		}
		req, ok := broker.NewRequest(k.ApiKey, k.MinVersion)
		require.True(t, ok)
		_, err := b.answer(nil, peer, frame{key: k.ApiKey, version: k.MinVersion, rest: req.AppendTo([]byte{0xff, 0xff, 0})})
		require.Error(t, err, "key %d", k.ApiKey)
	}
}

func TestOnlyWholePlainBatchesAreTaken(t *testing.T) {
	batch := func(change func(*protocol.RecordSet)) []byte {
		set := protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(protocol.Record{Value: protocol.NewBytes([]byte("v"))})}
		change(&set)
		var b bytes.Buffer
		_, err := set.WriteTo(&b)
		require.NoError(t, err)
		return b.Bytes()[4:] // without the length in front
	}
	good := batch(func(*protocol.RecordSet) {})
	require.Zero(t, check(good))
	require.Zero(t, check(append(bytes.Clone(good), good...)))

	torn := bytes.Clone(good)
	torn[len(torn)-1]++
	require.Equal(t, corruptMessage, check(torn))
	require.Equal(t, corruptMessage, check(good[:len(good)-1]))
	require.Equal(t, corruptMessage, check(nil))
	require.Equal(t, invalidRecord, check(batch(func(s *protocol.RecordSet) { s.Attributes = protocol.Control })))
	require.Equal(t, invalidRecord, check(batch(func(s *protocol.RecordSet) { s.Attributes = protocol.Transactional })))
}

// Whatever comes over a connection is a request or an error, and a request that says how long it is gets no memory for saying so.
func FuzzFrames(f *testing.F) {
	for _, k := range broker.Keys() {
		req, _ := broker.NewRequest(k.ApiKey, k.MaxVersion)
		b := binary.BigEndian.AppendUint16(nil, uint16(k.ApiKey))
		b = binary.BigEndian.AppendUint16(b, uint16(k.MaxVersion))
		b = req.AppendTo(append(b, 0, 0, 0, 1, 0xff, 0xff, 0))
		f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	}
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := readFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(fr.rest), len(b))
		if req, err := fr.request(); err == nil {
			require.Equal(t, fr.key, req.Key())
			require.Equal(t, fr.version, req.GetVersion())
		}
	})
}
