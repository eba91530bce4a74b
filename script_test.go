package mirror_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// The KIP's worked examples as scripts: testdata/kip1279/*.txt. A line that begins with "> " is a command, the lines below it are what
// came of it: the sites that have changed, each with its log as [from,to)@leader epoch of the batches. The rest is said by whoever
// wrote the script.
//
//	go test -run TestWorkedExamples -rewrite .
//
// writes what comes of them now. Commit a rewrite only if you understand each line that it changed: these files are what the library
// promises.
var rewrite = flag.Bool("rewrite", false, "write what the scripts in testdata/kip1279 come to now")

func TestWorkedExamples(t *testing.T) {
	files, err := filepath.Glob("testdata/kip1279/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			var got string
			synctest.Test(t, func(t *testing.T) { got = play(t, string(want)) })
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			same(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
		})
	}
}

// same names the first line that differs, below the command that it came of.
func same(t *testing.T, want, got []string) {
	t.Helper()
	command := ""
	for i := range max(len(want), len(got)) {
		var w, g string
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if strings.HasPrefix(w, "> ") {
			command = w
		}
		if w != g || i >= len(want) || i >= len(got) {
			t.Fatalf("line %d, after %q\n  stands: %s\n  now:    %s", i+1, command, w, g)
		}
	}
}

// play runs the commands of a script and answers the script with what came of them.
func play(t *testing.T, script string) string {
	w := &stage{t: t, sites: make(map[string]*cluster), shown: make(map[string]string), unplugged: make(map[string]bool)}
	defer w.end()
	var out strings.Builder
	outcome := false // the lines of an earlier outcome are left out
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		switch cmd, ok := strings.CutPrefix(line, "> "); {
		case ok:
			outcome = true
			said := w.do(strings.Fields(cmd))
			pass(2 * time.Minute) // whatever follows from it has happened
			synctest.Wait()
			out.WriteString(line + "\n" + w.plain(said+w.show()))
		case line == "" || line[0] == '#':
			outcome = false
			out.WriteString(line + "\n")
		case !outcome:
			t.Fatalf("neither a command nor a comment: %q", line)
		}
	}
	return out.String()
}

// stage is the sites of a script, each with one topic of one partition.
type stage struct {
	t         *testing.T
	sites     map[string]*cluster
	takeovers []int64           // leader epochs that takeovers began with
	shown     map[string]string // what was last shown of each

	mu        sync.Mutex
	unplugged map[string]bool // links: "B<-A"
	conns     []patched
}

type patched struct {
	net.Conn
	link string
}

// cluster is one site: a host, its coordinator, and a broker over it.
type cluster struct {
	source
	name  string
	nodes int
	down  bool
	links map[string]*attached // by the site they mirror from

	mu   sync.Mutex
	told []mirror.Event // since they were last shown
}

type attached struct {
	m    *mirror.Mirror
	opts []mirror.MirrorOption
}

const examples = "orders" // the topic

func (w *stage) end() {
	for _, s := range w.sites {
		if !s.down {
			s.close()
		}
	}
}

func (s *cluster) boot() error {
	c, err := mirror.Open(s.t.Context(), s.host, mirror.OnEvent(func(e mirror.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, e)
	}))
	if err != nil {
		return err
	}
	b, err := broker.New(c, broker.Nodes(s.nodes))
	if err != nil {
		return err
	}
	s.c, s.broker = c, b
	return nil
}

// dial connects a link to its source, unless that is down or the link unplugged.
func (w *stage) dial(to, from *cluster) func(context.Context, string, string) (net.Conn, error) {
	name := to.name + "<-" + from.name
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if from.down || w.unplugged[name] {
			return nil, syscall.ECONNREFUSED
		}
		c, err := from.broker.Dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		w.conns = append(w.conns, patched{c, name})
		return c, nil
	}
}

func (w *stage) attach(to, from *cluster, opts []mirror.MirrorOption) error {
	src := from.broker.Source()
	src.Transport = &kafka.Transport{DialTimeout: src.Transport.DialTimeout, Dial: w.dial(to, from)}
	m, err := to.c.Mirror("from-"+from.name, src, opts...)
	if err != nil {
		return err
	}
	to.links[from.name] = &attached{m, opts}
	return m.Start(w.t.Context())
}

// do carries out one command: its name, a site or a link (B<-A), a number, and name=value or a word for what else it needs.
func (w *stage) do(cmd []string) string {
	t := w.t
	require.GreaterOrEqual(t, len(cmd), 2, "%v", cmd)
	verb, who := cmd[0], cmd[1]
	given := make(map[string]string)
	for _, arg := range cmd[2:] {
		name, value, ok := strings.Cut(arg, "=")
		if _, err := strconv.Atoi(arg); err == nil {
			name, value, ok = "n", arg, true
		}
		if !ok {
			value = "true"
		}
		given[name] = value
	}
	num := func(name string, other int) int {
		v, ok := given[name]
		if !ok {
			return other
		}
		n, err := strconv.Atoi(v)
		require.NoError(t, err, "%v", cmd)
		return n
	}
	if verb == "site" {
		s := &cluster{source: source{t: t, host: memlog.New(memlog.ClusterID("cluster-" + who))}, name: who, nodes: num("nodes", 1), links: make(map[string]*attached)}
		require.NoError(t, s.boot())
		w.sites[who] = s
		return ""
	}
	if to, from, ok := strings.Cut(who, "<-"); ok {
		return outcome(w.link(verb, w.cluster(to), w.cluster(from), given))
	}
	s := w.cluster(who)
	var err error
	switch verb {
	case "create":
		s.create(examples, 1)
	case "write":
		err = s.append(num("n", 1), num("epoch", -1), int64(num("producer", -1)))
	case "commit":
		err = s.marker(int64(num("producer", -1)), batch.ControlCommit)
	case "elect":
		if epoch := num("epoch", -1); epoch >= 0 { // as many as that takes
			_, err = s.c.RaiseLeaderEpoch(t.Context(), examples, 0, int32(epoch))
			break
		}
		err = s.broker.Elect(examples, 0, int32(num("node", 1)), given["unclean"] != "")
	case "lag":
		err = s.broker.Lag(examples, 0, int32(num("node", 2)), int64(num("at", -1)))
	case "kill":
		err = s.broker.Kill(int32(num("node", 1)))
	case "restart":
		err = s.broker.Restart(int32(num("node", 1)))
	case "crash": // what was not synced may be gone
		w.mu.Lock()
		s.down = true
		w.mu.Unlock()
		s.host = s.host.Crash(rng(1))
		require.NoError(t, s.broker.Close())
		_ = s.c.Close() // its host answers nothing any more
	case "boot":
		require.NoError(t, s.boot())
		w.mu.Lock()
		s.down = false
		w.mu.Unlock()
		for from, l := range s.links { // as programs do when they start
			require.NoError(t, w.attach(s, w.cluster(from), l.opts))
		}
	case "count":
		n := 0
		for _, err := range s.partition(examples, 0).Records(t.Context(), 0) {
			require.NoError(t, err)
			n++
		}
		return fmt.Sprintf("   a consumer of committed records gets %d\n", n)
	case "compare":
		a, b := s.log(), w.cluster(given["with"]).log()
		if a != b {
			return "   they differ\n"
		}
		return "   the logs are the same\n"
	default:
		t.Fatalf("no such command: %v", cmd)
	}
	return outcome(err)
}

// link carries out the commands that concern a mirror.
func (w *stage) link(verb string, to, from *cluster, given map[string]string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	name := to.name + "<-" + from.name
	if to.links[from.name] == nil {
		opts := []mirror.MirrorOption{mirror.FetchWait(5 * time.Second)} // fewer polls in all that time
		if given["fail-on-divergence"] != "" {
			opts = append(opts, mirror.FailOnDivergence())
		}
		require.NoError(w.t, w.attach(to, from, opts))
	}
	m := to.links[from.name].m
	switch verb {
	case "mirror":
		return m.AddTopics(ctx, examples)
	case "stop":
		return m.Remove(ctx, examples)
	case "promote":
		return m.Promote(ctx, examples)
	case "resume":
		return m.Resume(ctx, examples)
	case "recover":
		return m.Recover(ctx, examples)
	case "plug", "unplug":
		w.mu.Lock()
		w.unplugged[name] = verb == "unplug"
		for _, c := range w.conns {
			if c.link == name {
				c.Close()
			}
		}
		w.mu.Unlock()
		return nil
	}
	w.t.Fatalf("no such command: %s %s", verb, name)
	return nil
}

func outcome(err error) string {
	var lines strings.Builder
	for err := range strings.Lines(fmt.Sprint(err)) {
		fmt.Fprintf(&lines, "   refused: %s\n", strings.TrimSuffix(err, "\n"))
	}
	if err == nil {
		return ""
	}
	return lines.String()
}

func (w *stage) cluster(name string) *cluster {
	require.Contains(w.t, w.sites, name)
	return w.sites[name]
}

// append writes batches of at most ten records, under a leader epoch to which elections have led if one is given, and syncs them.
func (s *cluster) append(n, epoch int, producer int64) error {
	p := s.partition(examples, 0)
	if p.LeaderEpoch() < int32(epoch) {
		if _, err := s.c.RaiseLeaderEpoch(s.t.Context(), examples, 0, int32(epoch)); err != nil {
			return err
		}
	}
	for ; n > 0; n -= 10 {
		if _, err := p.Append(s.t.Context(), produced(min(n, 10), producer, producer >= 0)); err != nil {
			return err
		}
	}
	return p.Sync(s.t.Context())
}

func (s *cluster) marker(producer int64, kind int16) error {
	_, err := s.partition(examples, 0).Append(s.t.Context(), batch.AppendControl(nil, 0, 0, producer, 0, batch.Control{Type: kind}, 0))
	return err
}

// show is what has changed.
func (w *stage) show() string {
	var all strings.Builder
	for _, name := range sortedKeys(w.sites) {
		s := w.sites[name]
		told := s.tell()
		if now := s.show(nil); now != w.shown[name] || len(told) > 0 {
			w.shown[name] = now
			all.WriteString(s.show(told))
		}
	}
	return all.String()
}

// show is the site's log, what is behind it, and what it has told; empty before there is a topic.
func (s *cluster) show(told []mirror.Event) string {
	if s.down {
		return s.name + "  down\n"
	}
	list, err := s.host.Topics(s.t.Context())
	require.NoError(s.t, err)
	if !slices.ContainsFunc(list, func(x mirror.Topic) bool { return x.Name == examples }) {
		return ""
	}
	p := s.partition(examples, 0)
	gate := "writable"
	if s.c.CheckWrite(examples, 0) != nil {
		gate = "read-only"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s\n", s.name, s.log())
	fmt.Fprintf(&b, "   leader epoch %d, %s", p.LeaderEpoch(), gate)
	lso, err := p.LastStableOffset(s.t.Context())
	require.NoError(s.t, err)
	if _, end := p.Bounds(); lso != end {
		fmt.Fprintf(&b, ", stable to %d", lso)
	}
	b.WriteString("\n")
	for _, from := range sortedKeys(s.links) {
		for _, ts := range s.links[from].m.Describe().Topics {
			fmt.Fprintf(&b, "   from %s: %s\n", from, describe(ts.Partitions[0], "from-"+from, told))
		}
	}
	for _, e := range told {
		if e.Kind == mirror.DataLoss || e.Kind == mirror.Truncated {
			fmt.Fprintf(&b, "   %s [%d,%d): %s\n", e.Kind, e.From, e.To, e.Reason)
		}
	}
	return b.String()
}

// tell takes the events since the last time; health is told with the state.
func (s *cluster) tell() []mirror.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.told
	s.told = nil
	return slices.DeleteFunc(told, func(e mirror.Event) bool { return e.Kind == mirror.HealthChanged })
}

// describe is a partition's state, with the way it took there.
func describe(p mirror.PartitionStatus, name string, told []mirror.Event) string {
	var way []string
	for _, e := range told {
		if e.Kind == mirror.StateChanged && e.Mirror == name {
			way = append(way, e.After)
		}
	}
	if len(way) == 0 {
		way = []string{p.State.String()}
	}
	s := strings.Join(way, " -> ")
	if p.Health != mirror.OK && p.State == mirror.Mirroring {
		s += ", " + string(p.Health)
	}
	if p.Lag > 0 {
		s += fmt.Sprintf(", at least %d behind", p.Lag)
	}
	if p.TakenOver {
		s += ", taken over"
	}
	if p.Position != nil {
		s += fmt.Sprintf(", position (%d, %d)", p.Position.Epoch, p.Position.Offset)
	}
	if p.Totals != (mirror.Totals{}) {
		s += fmt.Sprintf(", in all lost %d and cut %d", p.Totals.Lost, p.Totals.Cut)
	}
	if p.State == mirror.Failed {
		s += ": " + p.Reason
	}
	return s
}

// log is what a site holds.
func (s *cluster) log() string {
	p := s.partition(examples, 0)
	start, end := p.Bounds()
	type run struct {
		from, to int64
		what     string
	}
	var runs []run
	for b, err := range mirror.Batches(content(s.t, p, start)) {
		require.NoError(s.t, err)
		h, err := batch.Parse(b.Bytes)
		require.NoError(s.t, err)
		next := run{b.Base, b.Next, fmt.Sprintf("@%d", b.Epoch)}
		switch {
		case h.Control():
			ctl, err := batch.ParseControl(b.Bytes)
			require.NoError(s.t, err)
			switch {
			case ctl.PIDReset():
				next.what += " RESET"
			case ctl.Type == batch.ControlAbort:
				next.what += fmt.Sprintf(" ABORT of producer %d", h.ProducerID)
			case ctl.Type == batch.ControlCommit:
				next.what += fmt.Sprintf(" COMMIT of producer %d", h.ProducerID)
			}
		case h.ProducerID >= 0:
			next.what += fmt.Sprintf(" producer %d", h.ProducerID)
		}
		if n := len(runs); n > 0 && runs[n-1].to == next.from && runs[n-1].what == next.what && !h.Control() {
			runs[n-1].to = next.to
			continue
		}
		runs = append(runs, next)
	}
	if len(runs) == 0 {
		return fmt.Sprintf("empty at %d", end)
	}
	var list []string
	for _, r := range runs {
		list = append(list, fmt.Sprintf("[%d,%d)%s", max(r.from, start), r.to, r.what))
	}
	return strings.Join(list, ", ")
}

var takeoverEpochs = regexp.MustCompile(`\b[0-9]{6,}\b`)

// plain replaces what is random: T1 is the leader epoch of the first takeover, T1+10 ten above it.
func (w *stage) plain(text string) string {
	const least, near = 1 << 18, 1000 // takeovers lie further apart
	of := func(n int64) int {
		return slices.IndexFunc(w.takeovers, func(t int64) bool { return n >= t && n < t+near })
	}
	var found []int64
	for _, s := range takeoverEpochs.FindAllString(text, -1) {
		n, err := strconv.ParseInt(s, 10, 64)
		require.NoError(w.t, err)
		found = append(found, n)
	}
	slices.Sort(found)
	for _, n := range found {
		if n >= least && of(n) < 0 {
			w.takeovers = append(w.takeovers, n)
		}
	}
	return takeoverEpochs.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.ParseInt(s, 10, 64) // as above
		i := of(n)
		switch {
		case i < 0:
			return s
		case n == w.takeovers[i]:
			return fmt.Sprintf("T%d", i+1)
		}
		return fmt.Sprintf("T%d+%d", i+1, n-w.takeovers[i])
	})
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
