package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/clustermirror/mirror/internal/e2e/kafkatest"
)

var benchMB = flag.Int("mb", 1000, "megabytes that each copier of the benchmark copies")

// BenchmarkCopy copies 1 KB records, uncompressed, four partitions, out of a real broker by each copier in turn, and tells the
// medians of what each one took, side by side. Every iteration is one turn of all.
func BenchmarkCopy(b *testing.B) {
	const topic, partitions = "bench", 4
	ctx := b.Context()
	source, dest := startKafka(b, 1).Brokers[0], startKafka(b, 1).Brokers[0]
	records := *benchMB * 1000
	require.NoError(b, createTopic(ctx, source, topic, partitions))
	_, err := kafkatest.Tool(ctx, "ProducerPerformance", "--topic", topic, "--num-records", fmt.Sprint(records), "--record-size", "1000",
		"--throughput", "-1", "--bootstrap-server", source.Addr, "--command-property", "linger.ms=10", "batch.size=131072")
	require.NoError(b, err)
	ends, err := logEnds(ctx, source, topic)
	require.NoError(b, err)

	names := []string{"raw", "mirror", "franz-go"}
	costs, destCPU := map[string][]copyCost{}, []time.Duration{}
	for b.Loop() {
		for _, name := range names {
			job := copyJob{Copier: name, Source: source.Addr, Topic: topic, Ends: ends, Dir: b.TempDir(), Dest: dest.Addr}
			before, err := processorTime(dest.PID())
			require.NoError(b, err)
			if name == "franz-go" {
				require.NoError(b, createTopic(ctx, dest, topic, partitions))
			}
			syscall.Sync() // what others left to write is not this one's
			cost, err := copyInChild(ctx, job)
			require.NoError(b, err)
			costs[name] = append(costs[name], cost)
			if name == "franz-go" {
				after, err := processorTime(dest.PID())
				require.NoError(b, err)
				destCPU = append(destCPU, after-before)
				require.NoError(b, deleteTopic(ctx, dest, topic))
			}
			require.NoError(b, os.RemoveAll(job.Dir)) // at once: three of them are large
		}
	}

	gb := float64(*benchMB) / 1000
	cpu := func(name string) float64 {
		return median(costs[name], func(c copyCost) time.Duration { return c.CPU }).Seconds() / gb
	}
	wall := func(name string) float64 {
		return median(costs[name], func(c copyCost) time.Duration { return c.Wall }).Seconds() / gb
	}
	var table strings.Builder
	fmt.Fprintf(&table, "\n%d MB, medians of %d\n%-10s %12s %8s\n", *benchMB, len(destCPU), "copier", "CPU-s per GB", "MB/s")
	for _, name := range names {
		fmt.Fprintf(&table, "%-10s %12.2f %8.0f\n", name, cpu(name), 1000/wall(name))
	}
	broker := median(destCPU, func(d time.Duration) time.Duration { return d }).Seconds() / gb
	fmt.Fprintf(&table, "%-10s %12.2f\n", " its broker", broker)
	b.Log(table.String())
	b.ReportMetric(cpu("mirror")/cpu("raw"), "cpu-of-raw")
	b.ReportMetric(cpu("mirror")/(cpu("franz-go")+broker), "cpu-of-franz-go+broker")
	b.ReportMetric(wall("franz-go")/wall("mirror"), "times-franz-go-speed")
	b.ReportMetric(0, "ns/op")
}

func median[T any](all []T, of func(T) time.Duration) time.Duration {
	var values []time.Duration
	for _, v := range all {
		values = append(values, of(v))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// processorTime is what the process has used so far, in ticks of 10 ms.
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

func admin(b *kafkatest.Broker, f func(*kadm.Client) error) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr))
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(kadm.NewClient(cl))
}

func createTopic(ctx context.Context, b *kafkatest.Broker, topic string, partitions int32) error {
	return admin(b, func(a *kadm.Client) error {
		_, err := a.CreateTopic(ctx, partitions, 1, nil, topic)
		return err
	})
}

func deleteTopic(ctx context.Context, b *kafkatest.Broker, topic string) error {
	return admin(b, func(a *kadm.Client) error {
		_, err := a.DeleteTopic(ctx, topic)
		return err
	})
}

func logEnds(ctx context.Context, b *kafkatest.Broker, topic string) (ends []int64, err error) {
	err = admin(b, func(a *kadm.Client) error {
		listed, err := a.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		for p := range int32(len(listed[topic])) {
			ends = append(ends, listed[topic][p].Offset)
		}
		return listed.Error()
	})
	return ends, err
}
