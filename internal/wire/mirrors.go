package wire

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The numbers of KIP-1279. The KIP itself has fixed none of them yet: these are its authors', who may still change them. They
// stand here and nowhere else, but for the type of the control record MIRROR_PID_RESET, which is in every log and therefore in
// package batch.
const (
	KeyLastMirroredOffsets int16 = 97
	KeyDescribeMirrors     int16 = 99
)

const (
	ReadOnlyTopic             Code = 134
	MirrorAlreadyExists       Code = 136
	UnknownMirror             Code = 137
	TopicAlreadyInMirror      Code = 138
	TopicNotInMirror          Code = 139
	MirrorTopicAlreadyPaused  Code = 140
	MirrorTopicNotPaused      Code = 141
	MirrorTopicBeingStopped   Code = 142
	MirrorNotEmpty            Code = 143
	MirrorAuthorizationFailed Code = 144
	InvalidMirrorState        Code = 145
	MirrorTopicNotStopped     Code = 146
)

// Tags that this project adds to the KIP's messages, far above the ones that the KIP may come to use.
const (
	tagUpstreams = 1000
	tagTopicID   = 1001
)

var mirrorKeyNames = map[int16]string{
	KeyLastMirroredOffsets: "LastMirroredOffsets",
	KeyDescribeMirrors:     "DescribeMirrors",
}

// keyName names a request.
func keyName(key int16) string {
	if name := mirrorKeyNames[key]; name != "" {
		return name
	}
	return kmsg.NameForKey(key)
}

// MirrorRequest gives an empty request of the KIP that has messages here, nil for another key. It does for the keys what
// kmsg.RequestForKey does for Kafka's.
func MirrorRequest(key int16) kmsg.Request {
	switch key {
	case KeyLastMirroredOffsets:
		return new(LastMirroredOffsetsRequest)
	case KeyDescribeMirrors:
		return new(DescribeMirrorsRequest)
	}
	return nil
}

// walker is a message whose layout walk tells; its other methods follow from that.
type walker interface{ walk(c *codec) }

func appendWalk(dst []byte, m walker) []byte {
	c := &codec{b: dst}
	m.walk(c)
	return c.b
}

func readWalk(src []byte, m walker) error {
	c := &codec{b: src, reading: true}
	if m.walk(c); c.bad {
		return protocolError("the message is cut short")
	}
	return nil
}

// TopicPartitions names partitions of a topic by its id.
type TopicPartitions struct {
	ID         [16]byte
	Partitions []int32
}

func (t *TopicPartitions) walk(c *codec) {
	c.uuid(&t.ID)
	list(c, &t.Partitions, c.int32)
	c.tags()
}

// DescribeMirrorsRequest asks a cluster for its mirrors, and where it stopped mirroring partitions.
type DescribeMirrorsRequest struct {
	Version                     int16
	Mirrors                     []string // nil: all
	IncludeAuthorizedOperations bool
	ClusterID                   string            // only mirrors whose source this is; empty: all
	Lookups                     []TopicPartitions // only these partitions; nil: all
}

func (m *DescribeMirrorsRequest) walk(c *codec) {
	list(c, &m.Mirrors, c.string)
	c.bool(&m.IncludeAuthorizedOperations)
	c.tags(
		tag{0, m.ClusterID != "", func() { c.nullable(&m.ClusterID) }},
		tag{1, m.Lookups != nil, func() { list(c, &m.Lookups, func(t *TopicPartitions) { t.walk(c) }) }},
	)
}

// DescribeMirrorsResponse is what one broker knows; partitions that it does not lead may be missing.
type DescribeMirrorsResponse struct {
	Version        int16
	ThrottleMillis int32
	ErrorCode      int16
	ErrorMessage   string
	Mirrors        []DescribedMirror
}

// DescribedMirror is one mirror of the answering cluster.
type DescribedMirror struct {
	ErrorCode            int16
	ErrorMessage         string
	Name                 string
	SourceBootstrap      string
	SourceClusterID      string
	AuthorizedOperations int32 // math.MinInt32: not asked for
	Topics               []DescribedTopic
	// Upstreams are the clusters that the source itself mirrors from, and so on up, the nearest first. Ours alone: nil from a
	// broker that does not say.
	Upstreams []string
}

// DescribedTopic is a mirror topic. ID is ours alone: zero from a broker that does not say.
type DescribedTopic struct {
	Name       string
	Partitions []DescribedPartition
	ID         [16]byte
}

// DescribedPartition is a partition of a mirror topic. Numbers that are not known are -1.
type DescribedPartition struct {
	Partition         int32
	State             string
	ErrorMessage      string
	RetryAttempt      int16
	SourceOffset      int64 // the source's high watermark
	DestinationOffset int64
	LastMirrorEpoch   int32 // the last mirrored position
	LastMirrorOffset  int64
}

func (m *DescribeMirrorsResponse) walk(c *codec) {
	c.int32(&m.ThrottleMillis)
	c.int16(&m.ErrorCode)
	c.nullable(&m.ErrorMessage)
	list(c, &m.Mirrors, func(v *DescribedMirror) { v.walk(c) })
	c.tags()
}

func (v *DescribedMirror) walk(c *codec) {
	c.int16(&v.ErrorCode)
	c.nullable(&v.ErrorMessage)
	c.string(&v.Name)
	c.nullable(&v.SourceBootstrap)
	c.nullable(&v.SourceClusterID)
	c.int32(&v.AuthorizedOperations)
	list(c, &v.Topics, func(t *DescribedTopic) { t.walk(c) })
	c.tags(tag{tagUpstreams, v.Upstreams != nil, func() { list(c, &v.Upstreams, c.string) }})
}

func (t *DescribedTopic) walk(c *codec) {
	c.string(&t.Name)
	list(c, &t.Partitions, func(p *DescribedPartition) { p.walk(c) })
	c.tags(tag{tagTopicID, t.ID != [16]byte{}, func() { c.uuid(&t.ID) }})
}

func (p *DescribedPartition) walk(c *codec) {
	c.int32(&p.Partition)
	c.string(&p.State)
	c.nullable(&p.ErrorMessage)
	c.int16(&p.RetryAttempt)
	c.int64(&p.SourceOffset)
	c.int64(&p.DestinationOffset)
	c.int32(&p.LastMirrorEpoch)
	c.int64(&p.LastMirrorOffset)
	c.tags()
}

// LastMirroredOffsetsRequest is the older way to ask where mirroring from a cluster stopped.
type LastMirroredOffsetsRequest struct {
	Version   int16
	ClusterID string // the source, i.e. the one that asks
	Topics    []TopicPartitions
}

func (m *LastMirroredOffsetsRequest) walk(c *codec) {
	c.string(&m.ClusterID)
	list(c, &m.Topics, func(t *TopicPartitions) { t.walk(c) })
	c.tags()
}

// LastMirroredOffsetsResponse answers with offsets (version 0) or positions (1).
type LastMirroredOffsetsResponse struct {
	Version        int16
	ThrottleMillis int32
	ErrorCode      int16
	Topics         []LastMirroredTopic
}

// LastMirroredTopic is a topic of the answer.
type LastMirroredTopic struct {
	ID         [16]byte
	Partitions []LastMirroredPartition
}

// LastMirroredPartition is where mirroring of a partition stopped; -1: not known. Version 0 has no epoch: the reader finds -1.
type LastMirroredPartition struct {
	Partition int32
	ErrorCode int16
	Epoch     int32
	Offset    int64
}

func (m *LastMirroredOffsetsResponse) walk(c *codec) {
	c.int32(&m.ThrottleMillis)
	c.int16(&m.ErrorCode)
	list(c, &m.Topics, func(t *LastMirroredTopic) {
		c.uuid(&t.ID)
		list(c, &t.Partitions, func(p *LastMirroredPartition) {
			c.int32(&p.Partition)
			c.int16(&p.ErrorCode)
			if m.Version >= 1 {
				c.int32(&p.Epoch)
			} else if c.reading {
				p.Epoch = -1
			}
			c.int64(&p.Offset)
			c.tags()
		})
		c.tags()
	})
	c.tags()
}

// DescribeMirrors asks one broker. ErrVersion if it knows no mirrors.
func (c *Client) DescribeMirrors(ctx context.Context, broker int32, req *DescribeMirrorsRequest) (*DescribeMirrorsResponse, error) {
	return askMirror[*DescribeMirrorsResponse](ctx, c, broker, req)
}

// LastMirroredOffsets asks one broker. ErrVersion if it knows no positions.
func (c *Client) LastMirroredOffsets(ctx context.Context, broker int32, req *LastMirroredOffsetsRequest) (*LastMirroredOffsetsResponse, error) {
	return askMirror[*LastMirroredOffsetsResponse](ctx, c, broker, req)
}

func askMirror[R kmsg.Response](ctx context.Context, c *Client, broker int32, req kmsg.Request) (r R, err error) {
	ctx, done, err := c.begin(ctx, c.life)
	if err != nil {
		return r, err
	}
	defer done()
	resp, err := c.askBroker(ctx, broker, req, 0, req.MaxVersion())
	if err != nil {
		return r, err
	}
	return resp.(R), nil
}

// The rest makes the messages kmsg's Requests and Responses, so that client and server treat them like Kafka's own.

func (*DescribeMirrorsRequest) Key() int16                 { return KeyDescribeMirrors }
func (*DescribeMirrorsRequest) MaxVersion() int16          { return 0 }
func (m *DescribeMirrorsRequest) SetVersion(v int16)       { m.Version = v }
func (m *DescribeMirrorsRequest) GetVersion() int16        { return m.Version }
func (*DescribeMirrorsRequest) IsFlexible() bool           { return true }
func (m *DescribeMirrorsRequest) AppendTo(b []byte) []byte { return appendWalk(b, m) }
func (m *DescribeMirrorsRequest) ReadFrom(b []byte) error  { return readWalk(b, m) }
func (m *DescribeMirrorsRequest) ResponseKind() kmsg.Response {
	return &DescribeMirrorsResponse{Version: m.Version}
}

func (*DescribeMirrorsResponse) Key() int16                 { return KeyDescribeMirrors }
func (*DescribeMirrorsResponse) MaxVersion() int16          { return 0 }
func (m *DescribeMirrorsResponse) SetVersion(v int16)       { m.Version = v }
func (m *DescribeMirrorsResponse) GetVersion() int16        { return m.Version }
func (*DescribeMirrorsResponse) IsFlexible() bool           { return true }
func (m *DescribeMirrorsResponse) AppendTo(b []byte) []byte { return appendWalk(b, m) }
func (m *DescribeMirrorsResponse) ReadFrom(b []byte) error  { return readWalk(b, m) }
func (m *DescribeMirrorsResponse) Throttle() (int32, bool)  { return m.ThrottleMillis, true }
func (m *DescribeMirrorsResponse) SetThrottle(ms int32)     { m.ThrottleMillis = ms }
func (m *DescribeMirrorsResponse) RequestKind() kmsg.Request {
	return &DescribeMirrorsRequest{Version: m.Version}
}

func (*LastMirroredOffsetsRequest) Key() int16                 { return KeyLastMirroredOffsets }
func (*LastMirroredOffsetsRequest) MaxVersion() int16          { return 1 }
func (m *LastMirroredOffsetsRequest) SetVersion(v int16)       { m.Version = v }
func (m *LastMirroredOffsetsRequest) GetVersion() int16        { return m.Version }
func (*LastMirroredOffsetsRequest) IsFlexible() bool           { return true }
func (m *LastMirroredOffsetsRequest) AppendTo(b []byte) []byte { return appendWalk(b, m) }
func (m *LastMirroredOffsetsRequest) ReadFrom(b []byte) error  { return readWalk(b, m) }
func (m *LastMirroredOffsetsRequest) ResponseKind() kmsg.Response {
	return &LastMirroredOffsetsResponse{Version: m.Version}
}

func (*LastMirroredOffsetsResponse) Key() int16                 { return KeyLastMirroredOffsets }
func (*LastMirroredOffsetsResponse) MaxVersion() int16          { return 1 }
func (m *LastMirroredOffsetsResponse) SetVersion(v int16)       { m.Version = v }
func (m *LastMirroredOffsetsResponse) GetVersion() int16        { return m.Version }
func (*LastMirroredOffsetsResponse) IsFlexible() bool           { return true }
func (m *LastMirroredOffsetsResponse) AppendTo(b []byte) []byte { return appendWalk(b, m) }
func (m *LastMirroredOffsetsResponse) ReadFrom(b []byte) error  { return readWalk(b, m) }
func (m *LastMirroredOffsetsResponse) Throttle() (int32, bool)  { return m.ThrottleMillis, true }
func (m *LastMirroredOffsetsResponse) SetThrottle(ms int32)     { m.ThrottleMillis = ms }
func (m *LastMirroredOffsetsResponse) RequestKind() kmsg.Request {
	return &LastMirroredOffsetsRequest{Version: m.Version}
}
