// Package load fills topics of a Kafka cluster with every kind of batch that a mirror must carry over unchanged. It writes with
// franz-go.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kind is one kind of topic. Its name is the topic's.
type Kind struct {
	Name          string
	Transactional bool              // committed readers see less than others
	Compacted     bool              // has gaps after Compact
	Configs       map[string]string // the topic's
	records       func(round int) []*kgo.Record
	options       []kgo.Opt
}

// Kinds are all kinds there are. "compacted" can be brought to rest by Rest, "compacting" never rests.
var Kinds = []Kind{
	{Name: "plain", records: small, options: opts(kgo.NoCompression())},
	{Name: "gzip", records: small, options: opts(kgo.GzipCompression())},
	{Name: "snappy", records: small, options: opts(kgo.SnappyCompression())},
	{Name: "lz4", records: small, options: opts(kgo.Lz4Compression())},
	{Name: "zstd", records: small, options: opts(kgo.ZstdCompression())},
	{Name: "idempotent", records: small, options: []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}},
	{Name: "transactional", records: small, Transactional: true},
	{Name: "compacted", records: keyed, options: opts(kgo.NoCompression()), Compacted: true, Configs: compaction},
	{Name: "compacting", records: keyed, options: opts(kgo.Lz4Compression()), Compacted: true, Configs: compaction},
	{Name: "append-time", records: small, options: opts(kgo.ZstdCompression()), Configs: map[string]string{"message.timestamp.type": "LogAppendTime"}},
	{Name: "headers", records: headers, options: opts(kgo.NoCompression())},
	{Name: "nulls", records: nulls, options: opts(kgo.SnappyCompression())},
	{Name: "large", records: large, options: opts(kgo.NoCompression()), Configs: map[string]string{"max.message.bytes": "16777216"}},
}

// Find answers the kind of that name.
func Find(name string) Kind {
	for _, k := range Kinds {
		if k.Name == name {
			return k
		}
	}
	panic("no kind " + name)
}

var compaction = map[string]string{
	"cleanup.policy":            "compact",
	"segment.ms":                "50", // the segment that is written to is never compacted
	"min.cleanable.dirty.ratio": "0.001",
	"delete.retention.ms":       "0",
}

// opts are those of a producer without idempotence: the batches carry no producer id.
func opts(codec kgo.CompressionCodec) []kgo.Opt {
	return []kgo.Opt{kgo.ProducerBatchCompression(codec), kgo.DisableIdempotentWrite()}
}

// Loader writes to one cluster.
type Loader struct {
	addrs []string
	open  []*kgo.Client // with a transaction begun
}

// New makes a loader of the cluster behind the addresses.
func New(addrs ...string) *Loader { return &Loader{addrs: addrs} }

// Close leaves the transactions that are open to their time-out.
func (l *Loader) Close() {
	for _, cl := range l.open {
		cl.Close()
	}
	l.open = nil
}

// Create creates the kind's topic.
func (l *Loader) Create(ctx context.Context, k Kind, partitions int32, replicas int16) error {
	cl, err := l.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	configs := map[string]*string{}
	for name, value := range k.Configs {
		configs[name] = &value
	}
	_, err = kadm.NewClient(cl).CreateTopic(ctx, partitions, replicas, configs, k.Name)
	return err
}

// Write writes one round, about 300 records in several batches, to the partition. Acknowledged on return.
func (l *Loader) Write(ctx context.Context, k Kind, partition int32, round int) error {
	if k.Transactional {
		return l.transactions(ctx, k, partition, round)
	}
	cl, err := l.client(k.options...)
	if err != nil {
		return err
	}
	defer cl.Close()
	return produce(ctx, cl, k, partition, k.records(round))
}

func produce(ctx context.Context, cl *kgo.Client, k Kind, partition int32, records []*kgo.Record) error {
	const batches = 6
	var failed error
	for i := range batches {
		for _, r := range records[i*len(records)/batches : (i+1)*len(records)/batches] {
			r.Topic, r.Partition = k.Name, partition
			cl.Produce(ctx, r, func(_ *kgo.Record, err error) { failed = errors.Join(failed, err) })
		}
		if err := cl.Flush(ctx); err != nil {
			return err
		}
	}
	if failed != nil {
		return fmt.Errorf("%s-%d: %w", k.Name, partition, failed)
	}
	return nil
}

// transactions interleaves a transaction that is aborted and two that are committed, one of them last.
func (l *Loader) transactions(ctx context.Context, k Kind, partition int32, round int) error {
	var clients [3]*kgo.Client
	for i := range clients {
		cl, err := l.begin(fmt.Sprintf("%s-%d-%d", k.Name, partition, i))
		if err != nil {
			return err
		}
		defer cl.Close()
		clients[i] = cl
	}
	records := k.records(round)
	part := func(n int) []*kgo.Record { return records[n*len(records)/5 : (n+1)*len(records)/5] }
	for n, cl := range []*kgo.Client{clients[0], clients[1], clients[0], clients[2], clients[1]} {
		if err := produce(ctx, cl, k, partition, part(n)); err != nil {
			return err
		}
	}
	return errors.Join(
		clients[1].EndTransaction(ctx, kgo.TryAbort),
		clients[0].EndTransaction(ctx, kgo.TryCommit),
		clients[2].EndTransaction(ctx, kgo.TryCommit),
	)
}

// LeaveOpen writes records in a transaction that nobody ends for ten minutes.
func (l *Loader) LeaveOpen(ctx context.Context, k Kind, partition int32) error {
	cl, err := l.begin(fmt.Sprintf("%s-%d-open", k.Name, partition))
	if err != nil {
		return err
	}
	l.open = append(l.open, cl)
	return produce(ctx, cl, k, partition, k.records(0))
}

func (l *Loader) begin(id string) (*kgo.Client, error) {
	cl, err := l.client(kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute))
	if err != nil {
		return nil, err
	}
	return cl, cl.BeginTransaction()
}

func (l *Loader) client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(l.addrs...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ManualFlushing(), // so that a flush makes one batch
		kgo.ProducerBatchMaxBytes(12 << 20),
		kgo.MaxBufferedBytes(64 << 20),
	}, options...)...)
}

// Compact writes to a compacted topic until done finds that the cluster has compacted it.
func (l *Loader) Compact(ctx context.Context, k Kind, partition int32, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for round := 0; ; round++ {
		if err := l.Write(ctx, k, partition, round); err != nil {
			return err
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s-%d is not compacted: %w", k.Name, partition, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Rest ends the compaction of a topic, whose bytes stay as they are from then on.
func (l *Loader) Rest(ctx context.Context, k Kind) error {
	cl, err := l.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	policy, roll := "delete", "604800000"
	answers, err := kadm.NewClient(cl).AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &policy},
		{Op: kadm.SetConfig, Name: "segment.ms", Value: &roll},
	}, k.Name)
	if err != nil {
		return err
	}
	return answers[0].Err
}

// The values look the same to every client, so their readings can be compared as text.

func value(round, i int) []byte {
	r := rand.New(rand.NewPCG(uint64(round), uint64(i)))
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d", round, i)
	for range 8 + r.IntN(24) {
		fmt.Fprintf(&b, " %x", r.IntN(1<<12))
	}
	return []byte(b.String())
}

func small(round int) []*kgo.Record {
	var all []*kgo.Record
	for i := range 300 {
		all = append(all, &kgo.Record{Key: fmt.Appendf(nil, "key %d", i), Value: value(round, i)})
	}
	return all
}

// keyed writes few keys over and over, and now and then deletes one.
func keyed(round int) []*kgo.Record {
	all := small(round)
	for i, r := range all {
		r.Key = fmt.Appendf(nil, "key %d", i*7%60)
		if i%50 == 49 {
			r.Value = nil
		}
	}
	return all
}

func headers(round int) []*kgo.Record {
	all := small(round)
	for i, r := range all {
		for n := range i % 4 {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: fmt.Sprintf("header %d", n%2), Value: value(i, n)})
		}
		if i%5 == 0 {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "", Value: nil}, kgo.RecordHeader{Key: "empty", Value: []byte{}})
		}
	}
	return all
}

func nulls(round int) []*kgo.Record {
	all := small(round)
	for i, r := range all {
		switch i % 5 {
		case 0:
			r.Key = nil
		case 1:
			r.Value = nil
		case 2:
			r.Key, r.Value = nil, nil
		case 3:
			r.Key, r.Value = []byte{}, []byte{}
		}
	}
	return all
}

// large makes six batches: of 8 MB each in the first round, of half a megabyte in the later ones.
func large(round int) []*kgo.Record {
	n := 6
	if round == 0 {
		n = 6 * 16
	}
	all := make([]*kgo.Record, n)
	for i := range all {
		v := make([]byte, 512<<10)
		r := rand.New(rand.NewPCG(uint64(round), uint64(i)))
		for j := range v {
			v[j] = 'a' + byte(r.IntN(26))
		}
		all[i] = &kgo.Record{Key: fmt.Appendf(nil, "key %d", i), Value: v}
	}
	return all
}
