package broker

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/wire"
)

// Client says on whose behalf Handle answers.
type Client struct {
	Node      int32  // the node that was asked; 0 means 1
	Principal string // for Authorize, as User:<name>; empty means User:ANONYMOUS
}

// NewRequest is an empty request of a kind and version that Keys lists, to be filled with ReadFrom; false for others. It knows
// KIP-1279's requests too, which kmsg does not.
func NewRequest(key, version int16) (req kmsg.Request, ok bool) {
	if a, known := apis[key]; !known || !a.has(version) {
		return nil, false
	}
	if req = wire.MirrorRequest(key); req == nil {
		req = kmsg.RequestForKey(key)
	}
	req.SetVersion(version)
	return req, true
}

// Handle answers one request, for programs that have a listener of their own and mount some or all of the handlers. The request
// comes from NewRequest, or is kmsg's of a version that Keys lists. It blocks as long as the request may (a fetch that waits for data) or
// until ctx ends. The records of a Produce request are changed in place and not kept. The answer is the caller's; nil if the request
// wants none (Produce with acks=0).
func (b *Broker) Handle(ctx context.Context, from Client, req kmsg.Request) (kmsg.Response, error) {
	known, ok := NewRequest(req.Key(), req.GetVersion())
	if !ok || reflect.TypeOf(known) != reflect.TypeOf(req) {
		return nil, fmt.Errorf("%T with key %d, version %d: not handled", req, req.Key(), req.GetVersion())
	}
	if b.ctx.Err() != nil {
		return nil, mirror.ErrClosed
	}
	if from.Node < 0 || from.Node > b.opts.nodes {
		return nil, fmt.Errorf("node %d: there are 1 to %d", from.Node, b.opts.nodes)
	}
	from.Node = max(from.Node, 1)
	if from.Principal == "" {
		from.Principal = anonymous
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	c := call{Client: from}
	resp := apis[req.Key()].handle(b, ctx, &c, req)
	if c.silent || c.failed != nil {
		return nil, c.failed
	}
	return resp, nil
}

// Requests of KIP-1279 that other mirrors ask, both for last mirrored positions; the first is an older form of the second. The KIP has
// not fixed the numbers yet: these are its authors'.
const (
	KeyLastMirroredOffsets = wire.KeyLastMirroredOffsets
	KeyDescribeMirrors     = wire.KeyDescribeMirrors
)

// Keys are the requests that are handled and their versions, by key. The caller owns the answer.
func Keys() []kmsg.ApiVersionsResponseApiKey {
	keys := make([]kmsg.ApiVersionsResponseApiKey, 0, len(apis))
	for key, a := range apis {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = key, a.min, a.max
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return cmp.Compare(a.ApiKey, b.ApiKey) })
	return keys
}

// call is one request on its way through a handler.
type call struct {
	Client
	memory bool     // the client is connected in memory
	local  net.Addr // our end of the connection; nil if there is none
	room   room     // where records are read to; valid until the answer is written
	fresh  bool     // the catalog was read from the host during this call
	silent bool     // the client wants no answer
	failed error    // why there is none, where the answer has no room for it
}

// api is one kind of request.
type api struct {
	min, max int16
	handle   func(*Broker, context.Context, *call, kmsg.Request) kmsg.Response
}

func (a api) has(version int16) bool { return version >= a.min && version <= a.max }

const (
	keyFetch       = 1
	keyApiVersions = 18
)

// apis is filled by init because Keys, which a handler calls, reads it.
var apis map[int16]api

func init() {
	apis = map[int16]api{
		0:              on(3, 13, (*Broker).produce),
		keyFetch:       on(4, 18, (*Broker).fetch),
		2:              on(1, 10, (*Broker).listOffsets),
		3:              on(0, 13, (*Broker).metadata),
		8:              on(2, 9, (*Broker).offsetCommit),
		9:              on(1, 9, (*Broker).offsetFetch),
		10:             on(0, 6, (*Broker).findCoordinator),
		17:             on(1, 1, (*Broker).saslHandshake),
		keyApiVersions: on(0, 4, (*Broker).apiVersions),
		19:             on(2, 7, (*Broker).createTopics),
		21:             on(0, 2, (*Broker).deleteRecords),
		22:             on(0, 5, (*Broker).initProducerID),
		23:             on(2, 4, (*Broker).offsetForLeaderEpoch),
		24:             on(0, 3, (*Broker).addPartitionsToTxn),
		26:             on(0, 4, (*Broker).endTxn),
		32:             on(0, 4, (*Broker).describeConfigs),
		36:             on(0, 2, (*Broker).saslAuthenticate),
		37:             on(0, 3, (*Broker).createPartitions),
		60:             on(0, 1, (*Broker).describeCluster),

		wire.KeyLastMirroredOffsets: on(0, 1, (*Broker).lastMirroredOffsets),
		wire.KeyDescribeMirrors:     on(0, 0, (*Broker).describeMirrors),
	}
}

// on makes an api of a method that takes and gives the types of one request.
func on[Q kmsg.Request, A any](lo, hi int16, f func(*Broker, context.Context, *call, Q, *A)) api {
	return api{lo, hi, func(b *Broker, ctx context.Context, c *call, req kmsg.Request) kmsg.Response {
		resp := req.ResponseKind()
		f(b, ctx, c, req.(Q), any(resp).(*A))
		return resp
	}}
}

func (b *Broker) apiVersions(_ context.Context, _ *call, _ *kmsg.ApiVersionsRequest, resp *kmsg.ApiVersionsResponse) {
	resp.ApiKeys = Keys()
}

// allowed asks the host's authorizer.
func (b *Broker) allowed(c *call, operation, resource string) bool {
	return b.opts.authorize == nil || b.opts.authorize(c.Principal, operation, resource)
}
