// Package kafkatest runs real Apache Kafka on the loopback interface: brokers that can be stopped, killed and started again,
// Kafka's own tools and kcat, and the brokers' data folders. It installs what it needs.
package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Cluster is a KRaft cluster of Brokers with ids 1, 2, ... Its methods are not for concurrent use.
type Cluster struct {
	Brokers []*Broker
	dir     string
	id      string
}

// Broker is one process. Broker 1 is also the cluster's only controller: while it is down nothing is elected.
type Broker struct {
	ID      int32
	Addr    string
	cluster *Cluster
	dir     string
	process *exec.Cmd
	exited  chan struct{} // closed when process has ended
}

// Start starts n brokers and waits until they know each other. Each setting is a line of server.properties.
func Start(ctx context.Context, n int, settings ...string) (*Cluster, error) {
	if _, err := Install(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kafkatest-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, id: newClusterID()}
	ports, err := freePorts(n + 1)
	if err != nil {
		return nil, err
	}
	controller := fmt.Sprintf("127.0.0.1:%d", ports[n])
	for i := range n {
		b := &Broker{ID: int32(i + 1), Addr: fmt.Sprintf("127.0.0.1:%d", ports[i]), cluster: c, dir: filepath.Join(dir, fmt.Sprint(i+1))}
		c.Brokers = append(c.Brokers, b)
		if err := b.format(ctx, controller, n, settings); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	for _, b := range c.Brokers {
		if err := b.launch(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	for _, b := range c.Brokers {
		if err := b.wait(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Addrs are the addresses of all brokers.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, b := range c.Brokers {
		addrs = append(addrs, b.Addr)
	}
	return addrs
}

// Leader is the broker that leads the partition.
func (c *Cluster) Leader(ctx context.Context, topic string, partition int32) (*Broker, error) {
	p, err := c.partition(ctx, topic, partition)
	if err != nil {
		return nil, err
	}
	if p.Leader < 1 || int(p.Leader) > len(c.Brokers) {
		return nil, fmt.Errorf("%s-%d has no leader", topic, partition)
	}
	return c.Brokers[p.Leader-1], nil
}

// InSync are the ids of the replicas that have all that the leader has acknowledged.
func (c *Cluster) InSync(ctx context.Context, topic string, partition int32) ([]int32, error) {
	p, err := c.partition(ctx, topic, partition)
	return p.ISR, err
}

func (c *Cluster) partition(ctx context.Context, topic string, partition int32) (kadm.PartitionDetail, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...))
	if err != nil {
		return kadm.PartitionDetail{}, err
	}
	defer cl.Close()
	topics, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	if err != nil {
		return kadm.PartitionDetail{}, err
	}
	p := topics[topic].Partitions[partition]
	return p, p.Err
}

// Logs is the end of what each broker has logged.
func (c *Cluster) Logs() string {
	var all strings.Builder
	for _, b := range c.Brokers {
		log, err := os.ReadFile(b.log())
		fmt.Fprintf(&all, "broker %d (%v):\n%s\n", b.ID, err, tail(log))
	}
	return all.String()
}

// Close kills the brokers and removes their data.
func (c *Cluster) Close() error {
	for _, b := range c.Brokers {
		b.Kill()
	}
	return os.RemoveAll(c.dir)
}

// Start starts a broker that was stopped or killed, on its old data, and waits until it serves.
func (b *Broker) Start(ctx context.Context) error {
	if err := b.launch(); err != nil {
		return err
	}
	return b.wait(ctx)
}

// Kill ends the process as a power cut would, but for what the system's cache keeps.
func (b *Broker) Kill() { b.signal(syscall.SIGKILL) }

// Stop lets the broker hand over its partitions and close its logs.
func (b *Broker) Stop() { b.signal(syscall.SIGTERM) }

// Running says whether the broker was started and neither stopped nor killed since.
func (b *Broker) Running() bool { return b.process != nil }

// PID is the broker's process id.
func (b *Broker) PID() int { return b.process.Process.Pid }

// Dir is the folder that holds the partition's segment files.
func (b *Broker) Dir(topic string, partition int32) string {
	return filepath.Join(b.dir, "data", fmt.Sprintf("%s-%d", topic, partition))
}

func (b *Broker) log() string { return filepath.Join(b.dir, "log") }

func (b *Broker) signal(s os.Signal) {
	if b.process == nil {
		return
	}
	_ = b.process.Process.Signal(s) // fails only if it has ended
	<-b.exited
	b.process = nil
}

func (b *Broker) format(ctx context.Context, controller string, n int, settings []string) error {
	roles, listeners := "broker", "PLAINTEXT://"+b.Addr
	if b.ID == 1 {
		roles, listeners = "broker,controller", listeners+",CONTROLLER://"+controller
	}
	replicas := min(n, 3)
	properties := filepath.Join(b.dir, "server.properties")
	err := errors.Join(os.MkdirAll(b.dir, 0o755), os.WriteFile(properties, []byte(strings.Join(append([]string{
		"process.roles=" + roles,
		"node.id=" + fmt.Sprint(b.ID),
		"controller.quorum.voters=1@" + controller,
		"controller.listener.names=CONTROLLER",
		"listeners=" + listeners,
		"advertised.listeners=PLAINTEXT://" + b.Addr,
		"inter.broker.listener.name=PLAINTEXT",
		"log.dirs=" + filepath.Join(b.dir, "data"),
		"auto.create.topics.enable=false",
		"offsets.topic.num.partitions=4",
		"transaction.state.log.num.partitions=4",
		"transaction.state.log.min.isr=1",
		fmt.Sprintf("offsets.topic.replication.factor=%d", replicas),
		fmt.Sprintf("transaction.state.log.replication.factor=%d", replicas),
		"group.initial.rebalance.delay.ms=0",
		// Elections, retention and compaction happen within a test's patience.
		"broker.session.timeout.ms=3000",
		"broker.heartbeat.interval.ms=500",
		"replica.lag.time.max.ms=3000",
		"log.initial.task.delay.ms=100",
		"log.retention.check.interval.ms=1000",
		"log.cleaner.backoff.ms=200",
		"",
	}, settings...), "\n")), 0o644))
	if err != nil {
		return err
	}
	_, err = java(ctx, "kafka.tools.StorageTool", "format", "-t", b.cluster.id, "-c", properties)
	return err
}

func (b *Broker) launch() error {
	log, err := os.OpenFile(b.log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args, err := jvm("kafka.Kafka", filepath.Join(b.dir, "server.properties"))
	if err != nil {
		return err
	}
	cmd := exec.Command("java", args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := start(cmd); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // why it ended stands in its log
		close(exited)
	}()
	b.process, b.exited = cmd, exited
	return nil
}

// wait returns when the broker itself lists itself: registered, unfenced, and serving.
func (b *Broker) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		select {
		case <-b.exited:
			return fmt.Errorf("broker %d ended:\n%s", b.ID, b.cluster.Logs())
		case <-ctx.Done():
			return fmt.Errorf("broker %d does not serve: %w:\n%s", b.ID, context.Cause(ctx), b.cluster.Logs())
		case <-time.After(100 * time.Millisecond):
		}
		if b.serves(ctx) {
			return nil
		}
	}
}

func (b *Broker) serves(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	// Asked before it listens, a client would back off longer than the broker needs.
	conn, err := net.Dial("tcp", b.Addr)
	if err != nil {
		return false
	}
	conn.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr))
	if err != nil {
		return false
	}
	defer cl.Close()
	brokers, err := kadm.NewClient(cl).ListBrokers(ctx)
	if err != nil {
		return false
	}
	for _, listed := range brokers {
		if listed.NodeID == b.ID {
			return true
		}
	}
	return false
}

// newClusterID makes an id that Kafka's tools accept: 22 characters of URL-safe base64, the first of them no dash.
func newClusterID() string {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// freePorts looks below the range from which the system takes the ports of outgoing connections, so that none of those gets a
// port before the broker does, or while the broker is down.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 1000 {
		port := 20000 + mathrand.IntN(12000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close() // held until all are found, so they differ
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports on 127.0.0.1")
}
