package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/disklog"
)

// copierEnv, if set, makes the test binary one copier and nothing else: a process of its own has a processor time of its own.
const copierEnv = "MIRROR_E2E_COPIER"

// copyJob is what a copier has to do: all partitions of a topic up to the given ends.
type copyJob struct {
	Copier string // a key of copiers
	Source string
	Topic  string
	Ends   []int64
	Dir    string // where raw and mirror write
	Dest   string // where franz-go produces
}

// copyCost is what it took.
type copyCost struct{ CPU, Wall time.Duration }

var copiers = map[string]func(context.Context, copyJob) error{"raw": rawCopy, "mirror": mirrorCopy, "franz-go": franzCopy}

// copyInChild runs the job in a process of its own.
func copyInChild(ctx context.Context, job copyJob) (cost copyCost, err error) {
	arg, err := json.Marshal(job)
	if err != nil {
		return cost, err
	}
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), copierEnv+"="+string(arg))
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return cost, fmt.Errorf("%s: %w: %s", job.Copier, err, complaint.Bytes())
	}
	return cost, json.Unmarshal(out.Bytes(), &cost)
}

func runCopier(arg string) error {
	var job copyJob
	if err := json.Unmarshal([]byte(arg), &job); err != nil {
		return err
	}
	begin := time.Now()
	if err := copiers[job.Copier](context.Background(), job); err != nil {
		return err
	}
	cost := copyCost{Wall: time.Since(begin)}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return err
	}
	cost.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return json.NewEncoder(os.Stdout).Encode(cost)
}

// rawCopy is the least that any exact copy has to do: one connection, Fetch as its bytes are, the CRC of each batch, a write
// into a plain file for each partition of each answer. One request is always on its way.
func rawCopy(_ context.Context, job copyJob) error {
	conn, err := net.Dial("tcp", job.Source)
	if err != nil {
		return err
	}
	defer conn.Close()
	files := make([]*os.File, len(job.Ends))
	for p := range files {
		if files[p], err = os.Create(filepath.Join(job.Dir, fmt.Sprint(p))); err != nil {
			return err
		}
		defer files[p].Close()
	}
	var (
		next      = make([]int64, len(job.Ends))
		formatter = kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw"))
		castagoli = crc32.MakeTable(crc32.Castagnoli)
		request   []byte
		answer    []byte
	)
	for id := int32(0); ; id++ {
		req := kmsg.NewPtrFetchRequest()
		req.Version = 11 // the last one that names topics in words
		req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 500, 1, 10<<20
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic = job.Topic
		for p, end := range job.Ends {
			if next[p] < end {
				rp := kmsg.NewFetchRequestTopicPartition()
				rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = int32(p), next[p], 1<<20
				rt.Partitions = append(rt.Partitions, rp)
			}
		}
		if rt.Partitions == nil {
			return nil
		}
		req.Topics = append(req.Topics, rt)
		request = formatter.AppendRequest(request[:0], req, id)
		if _, err := conn.Write(request); err != nil {
			return err
		}
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return err
		}
		n := int(binary.BigEndian.Uint32(size[:]))
		if n > cap(answer) {
			answer = make([]byte, n+n/4)
		}
		if _, err := io.ReadFull(conn, answer[:n]); err != nil {
			return err
		}
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = req.Version
		if err := resp.ReadFrom(answer[4:n]); err != nil { // after the correlation id
			return err
		}
		for _, rt := range resp.Topics {
			for _, rp := range rt.Partitions {
				if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
					return err
				}
				b := rp.RecordBatches
				for len(b) >= 61 {
					size := 12 + int(binary.BigEndian.Uint32(b[8:]))
					if size > len(b) {
						break
					}
					if crc32.Checksum(b[21:size], castagoli) != binary.BigEndian.Uint32(b[17:]) {
						return fmt.Errorf("partition %d: batch at %d is damaged", rp.Partition, binary.BigEndian.Uint64(b))
					}
					next[rp.Partition] = int64(binary.BigEndian.Uint64(b)) + int64(binary.BigEndian.Uint32(b[23:])) + 1
					b = b[size:]
				}
				if _, err := files[rp.Partition].Write(rp.RecordBatches[:len(rp.RecordBatches)-len(b)]); err != nil {
					return err
				}
			}
		}
	}
}

func mirrorCopy(ctx context.Context, job copyJob) error {
	host, err := disklog.Open(job.Dir)
	if err != nil {
		return err
	}
	m, err := mirror.New(ctx, "bench", mirror.Source{Addr: kafka.TCP(job.Source)}, host)
	if err != nil {
		return err
	}
	err = errors.Join(m.Start(ctx), m.AddTopics(ctx, job.Topic), m.WaitCaughtUp(ctx, job.Topic))
	for p, want := range job.Ends {
		part, perr := m.Coordinator().Partition(ctx, job.Topic, int32(p))
		if err = errors.Join(err, perr); err != nil {
			break
		}
		if _, end := part.Bounds(); end != want {
			err = fmt.Errorf("partition %d ends at %d, not at %d", p, end, want)
		}
	}
	return errors.Join(err, m.Close(), host.Close())
}

// franzCopy is what a program without this library does: consume, and produce the same records elsewhere.
func franzCopy(ctx context.Context, job copyJob) error {
	from := map[int32]kgo.Offset{}
	for p := range job.Ends {
		from[int32(p)] = kgo.NewOffset().AtStart()
	}
	source, err := kgo.NewClient(kgo.SeedBrokers(job.Source), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{job.Topic: from}))
	if err != nil {
		return err
	}
	defer source.Close()
	dest, err := kgo.NewClient(kgo.SeedBrokers(job.Dest), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.DefaultProduceTopic(job.Topic))
	if err != nil {
		return err
	}
	defer dest.Close()
	left := len(job.Ends)
	failed := make(chan error, 1)
	for left > 0 {
		fetches := source.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset == job.Ends[r.Partition]-1 {
				left--
			}
			dest.Produce(ctx, r, func(_ *kgo.Record, err error) {
				if err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		})
	}
	if err := dest.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
