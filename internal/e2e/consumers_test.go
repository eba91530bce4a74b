package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/disklog"
	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
)

const (
	orders = "orders"
	// stall is how long a consumer may take for any step; one that asks for metadata for ever takes longer.
	stall = 30 * time.Second
	// metadataPerMove and fetchesPerMove are more than a consumer asks for when its cluster is replaced. Java doesn't pause before it
	// fetches again from a broker that does not know its leader epoch.
	metadataPerMove, fetchesPerMove = 20, 100
)

// consumer reads a partition that was assigned to it, from the offset that its group has committed on, or from the start.
type consumer interface {
	read(until int64) (records []string, err error) // up to the one before the offset, as "offset value"
	commit() error
	close() error
}

// opener opens a consumer. reset is what it does where nothing else is known: "earliest", "latest" or "none". at, if not nil, is
// where it begins, whatever is committed.
type opener func(t *testing.T, addr, name, reset string, at *mirror.Position) consumer

// franz is a consumer of franz-go, which commits nothing by itself unless it is a member of its group.
type franz struct {
	cl   *kgo.Client
	name string
	next kadm.Offset
	lost []*kgo.ErrDataLoss
}

func openFranz(t *testing.T, addr, name, reset string, at *mirror.Position) consumer {
	admin := adminOf(t, addr)
	start := kgo.NewOffset().AtStart()
	if at != nil {
		start = start.At(at.Offset).WithEpoch(at.Epoch)
	} else {
		committed, err := admin.FetchOffsets(t.Context(), name)
		require.NoError(t, err)
		if o, ok := committed.Lookup(orders, 0); ok && o.At >= 0 {
			start = start.At(o.At).WithEpoch(o.LeaderEpoch)
		}
	}
	resets := map[string]kgo.Offset{"earliest": kgo.NewOffset().AtStart(), "latest": kgo.NewOffset().AtEnd(), "none": kgo.NoResetOffset()}
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(addr), kgo.ClientID(name),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{orders: {0: start}}),
		kgo.ConsumeResetOffset(resets[reset]),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return &franz{cl: cl, name: name}
}

func (f *franz) read(until int64) (records []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stall)
	defer cancel()
	for next := int64(-1); next < until; {
		fetches := f.cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return records, fmt.Errorf("stands still, has read up to offset %d", next)
		}
		for _, e := range fetches.Errors() {
			var lost *kgo.ErrDataLoss
			if !errors.As(e.Err, &lost) {
				return records, e.Err
			}
			f.lost = append(f.lost, lost)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, fmt.Sprintf("%d %s", r.Offset, r.Value))
			next = r.Offset + 1
			f.next = kadm.Offset{Topic: orders, At: next, LeaderEpoch: r.LeaderEpoch}
		})
	}
	return records, nil
}

func (f *franz) commit() error {
	offsets := kadm.Offsets{}
	offsets.Add(f.next)
	return kadm.NewClient(f.cl).CommitAllOffsets(context.Background(), f.name, offsets)
}

func (f *franz) close() error {
	f.cl.Close()
	return nil
}

// java is a consumer of the process that they share.
type java struct {
	process *kafkatest.Consumers
	name    string
}

func startJava(t *testing.T) opener {
	process, err := kafkatest.StartConsumers()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, process.Close()) })
	return func(t *testing.T, addr, name, reset string, at *mirror.Position) consumer {
		words := []any{"open", name, addr, orders, reset}
		if at != nil {
			words = append(words, at.Offset, at.Epoch)
		}
		_, err := process.Do(words...)
		require.NoError(t, err)
		return java{process, name}
	}
}

func (j java) read(until int64) ([]string, error) {
	return j.process.Do("read", j.name, until, stall.Milliseconds())
}

func (j java) commit() error {
	_, err := j.process.Do("commit", j.name)
	return err
}

func (j java) close() error {
	_, err := j.process.Do("close", j.name)
	return err
}

func adminOf(t *testing.T, addr string) *kadm.Client {
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// cluster is one of ours, in a folder. Clients know it by the gateway's address.
type cluster struct {
	*mirror.Coordinator
	broker *broker.Broker
	host   *disklog.Host
}

func openCluster(t *testing.T, dir string, g *gateway) *cluster {
	host, err := disklog.Open(dir)
	require.NoError(t, err)
	c, err := mirror.Open(t.Context(), host)
	require.NoError(t, err)
	b, err := broker.New(c, broker.Advertise(g.Addr().String()))
	require.NoError(t, err)
	require.NoError(t, b.Listen("127.0.0.1:0"))
	s := &cluster{c, b, host}
	t.Cleanup(func() { s.close(t) })
	return s
}

func (c *cluster) addr() string { return c.broker.Addr().String() }

// close may be called twice.
func (c *cluster) close(t *testing.T) {
	require.NoError(t, c.broker.Close())
	require.NoError(t, c.Coordinator.Close())
	require.NoError(t, c.host.Close())
}

func (c *cluster) mirrorOf(t *testing.T, name string, src mirror.Source) *mirror.Mirror {
	m, err := c.Mirror(name, src)
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context()))
	require.NoError(t, m.AddTopics(t.Context(), orders))
	return m
}

// migration is a topic that moves from cluster to cluster, with its consumers.
type migration struct {
	*testing.T
	gateway   *gateway
	openers   map[string]opener
	consumers []*traveller
	written   int
	orders    []order // those that are not lost
}

type order struct {
	offset int64
	text   string // as a consumer tells it
}

// traveller is a consumer and what is expected of it.
type traveller struct {
	consumer
	open  opener
	name  string
	ahead bool // it has read, and committed, what was never mirrored
	stays bool // it goes on as it is: it remembers epochs of the cluster before
	next  int64
	asked map[int16]int // how often what, since it read the last time
}

// newMigration has travellers of each client and each kind, once the gateway leads somewhere and they are opened.
func newMigration(t *testing.T) *migration {
	m := &migration{T: t, gateway: openGateway(t), openers: map[string]opener{"franz-go": openFranz, "java": startJava(t)}}
	for client, open := range m.openers {
		for _, ahead := range []bool{false, true} {
			for _, stays := range []bool{false, true} {
				name := fmt.Sprintf("%s,ahead=%t,stays=%t", client, ahead, stays)
				m.consumers = append(m.consumers, &traveller{open: open, name: name, ahead: ahead, stays: stays})
			}
		}
	}
	return m
}

func (m *migration) address() string { return m.gateway.Addr().String() }

// write writes n more orders to where the gateway leads, or opts say.
func (m *migration) write(n int, opts ...kgo.Opt) {
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(m.address()), kgo.DefaultProduceTopic(orders)}, opts...)...)
	require.NoError(m, err)
	defer cl.Close()
	var records []*kgo.Record
	for range n {
		records = append(records, kgo.StringRecord(fmt.Sprintf("order-%d", m.written)))
		m.written++
	}
	for _, r := range cl.ProduceSync(m.Context(), records...) {
		require.NoError(m, r.Err)
		m.orders = append(m.orders, order{r.Record.Offset, fmt.Sprintf("%d %s", r.Record.Offset, r.Record.Value)})
	}
}

// lose is what happens to the orders from an offset on.
func (m *migration) lose(from int64) {
	m.orders = slices.DeleteFunc(m.orders, func(o order) bool { return o.offset >= from })
}

func (m *migration) end() int64 { return m.orders[len(m.orders)-1].offset + 1 }

func (m *migration) from(offset int64) (texts []string) {
	for _, o := range m.orders {
		if o.offset >= offset {
			texts = append(texts, o.text)
		}
	}
	return texts
}

// read lets consumers read all orders from where they are, and commit. Each order comes once, and none of them asks in a loop.
func (m *migration) read(who func(*traveller) bool) {
	for _, c := range m.consumers {
		if !who(c) {
			continue
		}
		got, err := c.read(m.end())
		require.NoError(m, err, c.name)
		require.Equal(m, m.from(c.next), got, c.name)
		require.NoError(m, c.commit(), c.name)
		c.next, c.asked = m.end(), m.gateway.takeCounts(c.name)
		m.Log(c.name, "has sent", c.asked)
		require.LessOrEqual(m, c.asked[metadataKey], metadataPerMove, c.name)
		require.LessOrEqual(m, c.asked[fetchKey], fetchesPerMove, c.name)
	}
	committed := m.committed()
	for _, c := range m.consumers {
		require.Equal(m, c.next, committed[c.name].At, c.name)
		require.GreaterOrEqual(m, committed[c.name].LeaderEpoch, int32(0), c.name)
	}
}

// moved is read at another cluster. Those who come with nothing but what is committed ask there first where its epoch ends.
func (m *migration) moved() {
	fresh := slices.DeleteFunc(slices.Clone(m.consumers), func(c *traveller) bool { return c.stays })
	for _, c := range fresh {
		c.consumer = c.open(m.T, m.address(), c.name, "latest", nil)
	}
	m.read(all)
	for _, c := range fresh {
		require.Positive(m, c.asked[epochEndKey], c.name)
	}
}

func all(*traveller) bool { return true }

// leave closes those consumers that don't stay.
func (m *migration) leave() {
	for _, c := range m.consumers {
		if !c.stays {
			require.NoError(m, c.close())
		}
	}
}

// committed is what the consumers' groups have committed at the cluster to which the gateway leads.
func (m *migration) committed() map[string]kadm.Offset {
	admin := adminOf(m.T, m.address())
	offsets := make(map[string]kadm.Offset)
	for _, c := range m.consumers {
		answers, err := admin.FetchOffsets(m.Context(), c.name)
		require.NoError(m, err)
		o, ok := answers.Lookup(orders, 0)
		require.True(m, ok, c.name)
		offsets[c.name] = o.Offset
	}
	return offsets
}

// failover moves the topic to west when its source dies, which has 50 orders more then, under a leader epoch of their own if elect
// makes one. The consumers' offsets are carried over, after others have begun to write to west. It answers what they had committed.
func (m *migration) failover(east mirror.Source, elect, die func(), west *cluster) map[string]kadm.Offset {
	for _, c := range m.consumers {
		c.consumer = c.open(m.T, m.address(), c.name, "latest", &mirror.Position{Epoch: -1})
	}
	m.write(60)
	m.read(all)
	fetches := func(change func(*kgo.Client, map[string][]int32)) {
		for _, c := range m.consumers {
			if f, ok := c.consumer.(*franz); ok && !c.ahead {
				change(f.cl, map[string][]int32{orders: {0}})
			}
		}
	}
	// Those that stay behind fetch nothing meanwhile: what they had in a buffer they would read at west too.
	fetches(func(cl *kgo.Client, p map[string][]int32) { cl.PauseFetchPartitions(p) })
	elect()
	m.write(40)
	dr := west.mirrorOf(m.T, "dr", east)
	caughtUp(m.T, dr)
	require.NoError(m, dr.Close()) // west hears of nothing any more
	elect()
	m.write(50)
	ahead := func(c *traveller) bool { return c.ahead }
	m.read(ahead)
	committed := m.committed()
	m.leave()

	m.gateway.lead("")
	die()
	m.lose(100)
	dr, err := west.Detached("dr")
	require.NoError(m, err)
	require.NoError(m, dr.Remove(m.Context(), orders))
	m.gateway.lead(west.addr())
	m.write(20)
	admin := adminOf(m.T, m.address())
	var tail kadm.Offset
	for _, c := range m.consumers {
		at := committed[c.name]
		offsets := kadm.Offsets{}
		offsets.Add(at)
		require.NoError(m, admin.CommitAllOffsets(m.Context(), c.name, offsets))
		if c.ahead {
			tail = at
			c.next = 100 // whose records it has never seen, whatever it has read at those offsets
		}
	}
	fetches((*kgo.Client).ResumeFetchPartitions)
	m.moved()
	for _, c := range m.consumers {
		if f, ok := c.consumer.(*franz); ok && c.ahead && c.stays {
			require.Len(m, f.lost, 1)
			require.Equal(m, []int64{150, 100}, []int64{f.lost[0].ConsumedTo, f.lost[0].ResetTo})
		}
	}

	// Consumers that keep their offsets elsewhere. With the epoch, franz-go finds where the logs part and goes on there, Java does so
	// too if it may reset at all; without it, both can only do what they are told for offsets that are out of range.
	open := func(client, reset string, epoch int32) consumer {
		return m.openers[client](m.T, m.address(), client+reset, reset, &mirror.Position{Epoch: epoch, Offset: tail.At})
	}
	for client := range m.openers {
		c := open(client, "none", tail.LeaderEpoch)
		got, err := c.read(m.end())
		if client == "java" {
			require.ErrorContains(m, err, "LogTruncationException")
		} else {
			require.NoError(m, err, client)
			require.Equal(m, m.from(100), got, client)
		}
		require.NoError(m, c.close())
		c = open(client, "earliest", -1)
		got, err = c.read(m.end())
		require.NoError(m, err, client)
		require.Equal(m, m.from(0), got, client)
		require.NoError(m, c.close())
	}
	return committed
}

// A cluster of ours dies and comes back. Its consumers go to the one that took over, and back, with the epochs that they have
// committed, and those that they remember.
func TestConsumersGoThroughFailoverAndFailback(t *testing.T) {
	ctx := t.Context()
	m := newMigration(t)
	dir := t.TempDir()
	east, west := openCluster(t, dir, m.gateway), openCluster(t, t.TempDir(), m.gateway)
	require.NoError(t, east.host.EnsureTopic(ctx, mirror.Topic{Name: orders, Partitions: 1}))
	m.gateway.lead(east.addr())
	elect := func() {
		for range 20 { // more than a mirror that has not heard of them leaves room for
			require.NoError(t, east.broker.Elect(orders, 0, 1, false))
		}
	}
	before := m.failover(east.broker.Source(), elect, func() { east.close(t) }, west)

	// What was never mirrored is cut at east, and no offset that is committed there lies above.
	m.leave()
	m.gateway.lead("")
	m.write(20, kgo.SeedBrokers("node-1:9092"), kgo.Dialer(west.broker.Dial))
	east = openCluster(t, dir, m.gateway)
	back := east.mirrorOf(t, "back", west.broker.Source())
	caughtUp(t, back)
	m.gateway.lead(east.addr())
	after := m.committed()
	for _, c := range m.consumers {
		at := after[c.name]
		if c.ahead {
			require.Equal(t, []int64{150, 100}, []int64{before[c.name].At, at.At}, c.name)
			require.Less(t, at.LeaderEpoch, before[c.name].LeaderEpoch, c.name)
		} else {
			require.Equal(t, before[c.name], at, c.name)
		}
		if !c.stays {
			c.next = at.At
		}
	}
	m.moved()

	// East takes over while they read.
	require.NoError(t, back.Promote(ctx, orders))
	m.write(20)
	m.read(all)
}

// A real cluster dies, and its consumers go to ours.
func TestConsumersLeaveRealKafka(t *testing.T) {
	m := newMigration(t)
	c := startKafka(t, 1, "advertised.listeners=PLAINTEXT://"+m.address())
	m.gateway.lead(c.Addrs()[0])
	createOn(t, c, orders, [][]int32{{1}}, nil)
	m.failover(mirror.Source{Addr: kafka.TCP(c.Addrs()...)}, func() {}, c.Brokers[0].Kill, openCluster(t, t.TempDir(), m.gateway))
}
