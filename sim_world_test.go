package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/broker"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/memlog"
)

const (
	simTopic   = "orders"
	simTimeout = 30 * time.Second // of a command
)

var errSimulated = errors.New("simulated failure of the host")

// world is one history while it is played.
type world struct {
	t     *testing.T
	judge *judge
	rng   *lockedRand // chance that the script does not hold: which calls fail, what a crash leaves
	history
	sites   []*site
	links   []*link
	ghosts  []*ghost
	values  int
	trace   []string
	answers []string // of commands, for the trace
	tasks   sync.WaitGroup
	pending atomic.Int64 // tasks
	loud    bool
}

// site is a cluster: a host, and what runs on it until it crashes or is closed.
type site struct {
	w    *world
	name string
	host *memlog.Host

	c       *mirror.Coordinator // nil while it is down
	broker  *broker.Broker
	mirrors map[*link]*mirror.Mirror
	tails   []*tail

	mu       sync.Mutex // guards what follows
	after    *memlog.Host
	restored bool // after has an older state than it should
	crashIn  int  // host calls until the power is cut; 0: it isn't
	faults   int  // host calls that may still fail
	slow     int  // appends that still take long
	running  *broker.Broker
	gate     *mirror.Coordinator      // as c
	attached map[*link]*mirror.Mirror // as mirrors

	appending int // appends under way
}

// link is one mirror: dst mirrors src.
type link struct {
	name     string
	dst, src *site
	cable    cable
}

func newWorld(t *testing.T, h history) *world {
	w := &world{t: t, rng: &lockedRand{r: rand.New(rand.NewPCG(h.seed, 2))}, history: h}
	w.judge = newJudge(w)
	w.loud = os.Getenv("SIM_LOUD") != ""
	for i := range h.sites {
		s := &site{w: w, name: string(rune('A' + i))}
		s.host = memlog.New(memlog.ClusterID("cluster-"+s.name), memlog.Rand(rand.New(rand.NewPCG(h.seed, uint64(10+i)))))
		w.sites = append(w.sites, s)
	}
	for _, dst := range w.sites {
		for _, src := range w.sites {
			if src != dst {
				w.links = append(w.links, &link{name: dst.name + "-from-" + src.name, dst: dst, src: src})
			}
		}
	}
	return w
}

// play plays the script, and then lets everything come to rest.
func (w *world) play() {
	first := mirror.Topic{Name: simTopic, Partitions: w.partitions}
	if w.grown {
		first.Partitions = 1
	}
	require.NoError(w.t, w.sites[0].host.EnsureTopic(w.t.Context(), first))
	w.judge.named(w.sites[0])
	for _, s := range w.sites {
		s.open()
	}
	for _, st := range w.steps {
		w.trace = append(w.trace, st.String())
		if w.loud {
			fmt.Println(st) //nolint:forbidigo // a replay is watched while it plays, also if it hangs
		}
		w.step(st)
		synctest.Wait()
		for _, s := range w.sites {
			s.revive()
		}
		pass(5 * time.Millisecond) // the state is written when no more of it comes
		synctest.Wait()
		w.note()
		if w.judge.look(); w.judge.verdict() != "" {
			break
		}
	}
	if w.judge.verdict() == "" {
		w.rest()
	}
	for _, s := range w.sites {
		s.shut()
	}
	w.tasks.Wait()
	for _, g := range w.ghosts {
		g.close()
	}
}

// note adds what can be seen of the sites to the trace.
func (w *world) note() {
	var b strings.Builder
	b.WriteString("      ")
	for _, s := range w.sites {
		fmt.Fprintf(&b, " | %s", s.name)
		if s.c == nil {
			b.WriteString(" down")
			continue
		}
		if id := w.judge.topic(s); id != (mirror.TopicID{}) {
			fmt.Fprintf(&b, " #%.2s", id)
		}
		for num := range w.partitions {
			start, end, last := w.judge.bounds(s, num)
			fmt.Fprintf(&b, "  %d: [%d,%d) e%d", num, start, end, last)
			if err := s.c.CheckWrite(simTopic, num); err == nil {
				b.WriteString(" open")
			}
			for l, m := range s.mirrors {
				if st, _, ok := partitionStatus(m, num); ok {
					fmt.Fprintf(&b, " %s:%s", l.src.name, st.State)
				}
			}
		}
	}
	w.judge.mu.Lock()
	w.trace = append(w.trace, w.answers...)
	w.answers = nil
	w.judge.mu.Unlock()
	w.trace = append(w.trace, b.String())
	if w.loud {
		fmt.Println(b.String()) //nolint:forbidigo // a replay is watched while it plays, also if it hangs
	}
}

func partitionStatus(m *mirror.Mirror, num int32) (mirror.PartitionStatus, mirror.TopicID, bool) {
	for _, ts := range m.Describe().Topics {
		if ts.Name == simTopic && int(num) < len(ts.Partitions) {
			return ts.Partitions[num], ts.ID, true
		}
	}
	return mirror.PartitionStatus{}, mirror.TopicID{}, false
}

// rest ends all trouble, and lets all that is mirrored catch up, sources first.
func (w *world) rest() {
	for _, l := range w.links {
		l.cable.mend()
	}
	for _, s := range w.sites {
		s.mu.Lock()
		s.crashIn, s.faults, s.slow = 0, 0, 0
		s.mu.Unlock()
	}
	w.tasks.Wait() // commands end with their time-out at the latest
	for _, s := range w.sites {
		s.revive()
		if s.c == nil {
			w.judge.accuse("%s does not come up: %v", s.name, s.open())
			return
		}
		for num := range w.partitions {
			for node := range int32(simNodes) {
				_ = s.broker.Lag(simTopic, num, node+1, -1) // the leader itself is refused
			}
		}
	}
	for _, l := range w.active() {
		if err := w.settle(l); err != nil {
			w.judge.accuse("%s never settles: %v\n%v", l.name, err, l.dst.mirrors[l].Describe())
			return
		}
	}
	pass(time.Minute) // readers come to the end too
	synctest.Wait()
	w.judge.look()
	w.judge.atRest()
}

// active are the links that mirror something, each after the one that its source mirrors by.
func (w *world) active() (list []*link) {
	by := make(map[*site]*link)
	for _, l := range w.links {
		for _, ts := range l.dst.mirrors[l].Describe().Topics {
			if ts.Desired == mirror.Stopped {
				continue
			}
			if by[l.dst] != nil {
				w.judge.accuse("%s and %s mirror at once", l.name, by[l.dst].name)
			}
			by[l.dst] = l
		}
	}
	var add func(*link)
	add = func(l *link) {
		if l == nil || slices.Contains(list, l) {
			return
		}
		delete(by, l.dst)
		add(by[l.src])
		list = append(list, l)
	}
	for _, s := range w.sites {
		add(by[s])
	}
	return list
}

// settle waits until both ends of a link are equal. A loop of mirrors can't come to rest: its partitions say so. Nor can a mirror of
// a topic that was deleted at its source: that one is started over.
func (w *world) settle(l *link) error {
	m := l.dst.mirrors[l]
	if w.judge.gone(l) {
		return w.startOver(l)
	}
	if err := errors.Join(w.judge.recover(w.t.Context(), l), m.Resume(w.t.Context(), simTopic)); err != nil {
		return err
	}
	for tries := 0; ; tries++ {
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Minute)
		err := m.WaitCaughtUp(ctx, simTopic)
		cancel()
		synctest.Wait()
		switch {
		case errors.Is(err, mirror.ErrFailed) && strings.Contains(err.Error(), mirror.ErrPeerActive.Error()):
			return nil
		case w.judge.gone(l):
			return w.startOver(l)
		case err == nil && w.judge.same(l, tries == 20):
			return nil
		case err != nil && !errors.Is(err, mirror.ErrFailed) && !(w.follow && errors.Is(err, mirror.ErrStopped)), tries == 20:
			return err
		}
		pass(5 * time.Second) // it is tried again or about to stop, or a cut at the source has yet to be noticed
		if w.judge.gone(l) {  // not while Recover is trying it once more
			return w.startOver(l)
		}
		if err := w.judge.recover(w.t.Context(), l); err != nil {
			return err
		}
	}
}

// startOver does what is advised about a topic that the source no longer has.
func (w *world) startOver(l *link) error {
	m, ctx := l.dst.mirrors[l], w.t.Context()
	w.judge.speak(l)
	if err := m.Remove(ctx, simTopic); err != nil {
		return err
	}
	for num := range w.partitions {
		if err := l.dst.c.CheckWrite(simTopic, num); err != nil {
			return err
		}
	}
	w.judge.drop(l.dst)
	begin := []func(context.Context, ...string) error{m.AddTopics, m.Resume, m.Overwrite}[w.rng.IntN(3)]
	err := begin(ctx, simTopic)
	switch exists := w.judge.topic(l.src) != (mirror.TopicID{}); {
	case exists && err == nil:
		return w.settle(l)
	case !exists && errors.Is(err, mirror.ErrUnknownTopic), errors.Is(err, mirror.ErrPeerActive):
		return nil
	}
	return fmt.Errorf("start over: %w", err)
}

const simNodes = 2

// open brings a site up. It may fail, as the host may.
func (s *site) open() error {
	ctx := s.w.t.Context()
	s.host.Fail(s.before)
	logger := slog.New(slog.DiscardHandler)
	if s.w.loud {
		logger = slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug})).With("site", s.name)
	}
	opts := []mirror.Option{
		mirror.Logger(logger), mirror.OnEvent(func(e mirror.Event) { s.w.judge.event(s, e) }),
		mirror.RequestTimeout(3 * time.Second), mirror.Backoff(50*time.Millisecond, 5*time.Second),
	}
	if s.w.stable {
		opts = append(opts, mirror.TruncateToStable(1000))
	}
	if s.w.careful {
		opts = append(opts, mirror.FailOnDivergence())
	}
	if s.w.follow {
		opts = append(opts, mirror.StopOnSourceDelete())
	}
	c, err := mirror.Open(ctx, watchedHost{s.host, s}, opts...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.gate, s.attached = c, make(map[*link]*mirror.Mirror)
	s.mu.Unlock()
	b, err := broker.New(c, broker.Nodes(simNodes))
	if err != nil {
		return errors.Join(err, c.Close())
	}
	s.c, s.broker, s.mirrors, s.tails = c, b, make(map[*link]*mirror.Mirror), nil
	for _, l := range s.w.links {
		if l.dst != s {
			continue
		}
		m, err := c.Mirror(l.name, l.source())
		if err == nil {
			err = m.Start(ctx)
		}
		if err != nil {
			s.close()
			return err
		}
		s.mirrors[l] = m
		s.mu.Lock()
		s.attached[l] = m
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.running = b
	s.mu.Unlock()
	return nil
}

// close ends what runs on the site; a host that has crashed meanwhile makes that fail.
func (s *site) close() {
	if s.c == nil {
		return
	}
	s.mu.Lock()
	s.running = nil
	s.mu.Unlock()
	for _, tl := range s.tails {
		tl.stop()
	}
	_ = s.broker.Close()
	_ = s.c.Close()
	s.c, s.broker, s.mirrors, s.tails = nil, nil, nil, nil
}

// revive brings a site up that is down, or whose host has crashed.
func (s *site) revive() {
	for range 10 {
		s.mu.Lock()
		after, restored := s.after, s.restored
		s.after, s.restored = nil, false
		s.mu.Unlock()
		if after != nil {
			s.close()
			s.host = after
			s.w.judge.crashed(s, restored)
			s.w.trace = append(s.w.trace, "        crash of "+s.name)
		}
		if s.c != nil {
			s.watchTails()
			return
		}
		if err := s.open(); err == nil {
			s.watchTails()
			return
		}
	}
}

// watchTails follows the partitions that there are by now.
func (s *site) watchTails() {
	for num := range s.w.partitions {
		p, err := s.c.Partition(s.w.t.Context(), simTopic, num)
		if err != nil {
			return
		}
		switch {
		case int(num) == len(s.tails):
			s.tails = append(s.tails, follow(p))
		case s.tails[num].p != p:
			s.tails[num].stop()
			s.tails[num] = follow(p)
		}
	}
}

func (s *site) shut() {
	s.mu.Lock()
	s.crashIn, s.faults, s.slow = 0, 0, 0
	s.mu.Unlock()
	s.close()
}

// unwatched marks the judge's own calls: they never fail.
type unwatched struct{}

// before is asked ahead of every call of the host.
func (s *site) before(ctx context.Context, _ memlog.Op, _ string, _ int32) error {
	if ctx.Value(unwatched{}) != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.after != nil {
		return mirror.ErrClosed
	}
	if s.crashIn > 0 {
		if s.crashIn--; s.crashIn == 0 {
			s.crash()
			return mirror.ErrClosed
		}
	}
	if s.faults > 0 && s.w.rng.IntN(3) == 0 {
		s.faults--
		return errSimulated
	}
	return nil
}

// crash cuts the power; s.mu is held.
func (s *site) crash() {
	if s.after == nil {
		s.after = s.host.Crash(rand.New(rand.NewPCG(uint64(s.w.rng.IntN(1<<30)), 3)))
		s.running = nil
		for _, l := range s.w.links {
			if l.src == s {
				l.cable.unplug()
			}
		}
	}
}

// takesLong says how long an append takes.
func (s *site) takesLong() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slow == 0 {
		return 0
	}
	s.slow--
	return time.Duration(s.w.rng.IntN(300)) * time.Millisecond
}

// source is the link's source cluster, whichever broker runs there, over a cable that may be cut.
func (l *link) source() mirror.Source {
	names := make([]string, simNodes)
	for i := range names {
		names[i] = nodeName(int32(i + 1))
	}
	return mirror.Source{Addr: kafka.TCP(names...), Transport: &kafka.Transport{
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			l.src.mu.Lock()
			b := l.src.running
			l.src.mu.Unlock()
			if g := l.cable.ghostAt(addr); g != nil {
				b = g.broker
			}
			if b == nil || l.cable.isCut() {
				return nil, syscall.ECONNREFUSED
			}
			c, err := b.Dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return l.cable.plug(c), nil
		},
	}}
}

func nodeName(node int32) string { return fmt.Sprintf("node-%d:9092", node) }

// cable is the network between a mirror and its source.
type cable struct {
	mu     sync.Mutex
	cut    bool
	loseIn int           // answers (reads of the mirror) until one is lost, and its connection with it
	breaks bool          // that one is the last
	late   time.Duration // every answer comes that much later
	ghost  *ghost        // that is reached in the place of a node
	plugs  map[*plugged]struct{}
}

type plugged struct {
	net.Conn
	cable *cable
}

func (c *cable) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cable) isWhole() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.cut && c.loseIn == 0 && c.late == 0 && c.ghost == nil
}

func (c *cable) plug(conn net.Conn) net.Conn {
	p := &plugged{conn, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plugs == nil {
		c.plugs = make(map[*plugged]struct{})
	}
	c.plugs[p] = struct{}{}
	return p
}

func (c *cable) set(cut bool, loseIn int, late time.Duration) {
	c.mu.Lock()
	c.cut, c.loseIn, c.late, c.breaks = cut, loseIn, late, false
	c.mu.Unlock()
	if cut {
		c.unplug()
	}
}

// breakIn cuts the cable after so many answers.
func (c *cable) breakIn(answers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut, c.loseIn, c.late, c.breaks = false, answers, 0, true
}

// unplug cuts every connection.
func (c *cable) unplug() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.plugs {
		p.Conn.Close()
	}
}

func (c *cable) mend() {
	c.set(false, 0, 0)
	c.haunt(nil)
}

// haunt lets a node be reached no more, but a ghost in its place; nil ends that.
func (c *cable) haunt(g *ghost) {
	c.mu.Lock()
	changed := c.ghost != g
	c.ghost = g
	c.mu.Unlock()
	if changed {
		c.unplug()
	}
}

func (c *cable) ghostAt(addr string) *ghost {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ghost != nil && c.ghost.node == addr {
		return c.ghost
	}
	return nil
}

func (p *plugged) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if err != nil {
		return n, err
	}
	c := p.cable
	c.mu.Lock()
	late, lost := c.late, false
	if c.loseIn > 0 {
		c.loseIn--
		lost = c.loseIn == 0
		c.cut = c.cut || lost && c.breaks
	}
	c.mu.Unlock()
	if lost {
		p.Conn.Close()
		if c.isCut() {
			c.unplug()
		}
		return 0, syscall.ECONNRESET
	}
	if late > 0 {
		pass(late)
	}
	return n, nil
}

func (p *plugged) Close() error {
	p.cable.mu.Lock()
	delete(p.cable.plugs, p)
	p.cable.mu.Unlock()
	return p.Conn.Close()
}

// tail is a reader that follows a partition and keeps what it has read: unless it is told of a cut, it believes that it still holds.
type tail struct {
	p      *mirror.Partition
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	read map[int64]string
	busy bool // with a record: what happens to the log meanwhile it is told afterwards
}

func follow(p *mirror.Partition) *tail {
	ctx, cancel := context.WithCancel(context.Background())
	tl := &tail{p: p, cancel: cancel, done: make(chan struct{}), read: make(map[int64]string)}
	go func() {
		defer close(tl.done)
		pos, _ := p.Bounds()
		for ctx.Err() == nil && pos >= 0 {
			pos = tl.from(ctx, p, pos)
		}
	}()
	return tl
}

// from reads until something ends it, and says where to go on; -1 if the log is no more.
func (tl *tail) from(ctx context.Context, p *mirror.Partition, pos int64) int64 {
	for msg, err := range p.Records(ctx, pos, mirror.Follow(), mirror.ReadUncommitted()) {
		tl.mu.Lock()
		var cut *mirror.CutError
		switch {
		case err == nil:
			tl.read[msg.Offset] = string(msg.Value)
			pos = msg.Offset + 1
		case errors.As(err, &cut):
			for offset := range tl.read {
				if offset >= cut.From {
					delete(tl.read, offset)
				}
			}
			pos = cut.From
		case errors.Is(err, mirror.ErrUnknownPartition), errors.Is(err, mirror.ErrClosed):
			pos = -1
		case ctx.Err() == nil: // out of range, or the host: begin anew
			clear(tl.read)
			pos, _ = p.Bounds()
		}
		tl.busy = err == nil && msg.Offset%3 == 0 || cut != nil // with a record, or with undoing what was cut
		busy := tl.busy
		tl.mu.Unlock()
		if busy {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
			}
			tl.mu.Lock()
			tl.busy = false
			tl.mu.Unlock()
		}
		if err != nil && cut == nil {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
	return pos
}

func (tl *tail) stop() {
	tl.cancel()
	<-tl.done
}

// value is one that no other record has.
func (w *world) value(s *site) []byte {
	w.values++
	return fmt.Appendf(nil, "%s%d", s.name, w.values)
}

// records is a batch of n records, of a producer if pid is not negative.
func (w *world) records(s *site, n int, pid int64, transactional bool) []byte {
	h := batch.Header{BaseTimestamp: time.Now().UnixMilli(), ProducerID: pid, ProducerEpoch: -1, BaseSequence: -1}
	if pid >= 0 {
		h.ProducerEpoch = 0
	}
	if transactional {
		h.Attributes = batch.Transactional
	}
	list := make([]batch.Record, n)
	for i := range list {
		list[i] = batch.Record{OffsetDelta: int32(i), Value: w.value(s)}
	}
	return batch.Append(nil, h, list)
}
