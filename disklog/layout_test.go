package disklog

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/batch"
	"github.com/clustermirror/mirror/internal/vfs"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *rewrite {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile("testdata/"+name, []byte(got), 0o644))
	}
	want, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "if this is as it should be: go test -run %s -rewrite", t.Name())
}

// The bytes on disk are a format: what one version writes the next one reads.
func TestBytesOnDisk(t *testing.T) {
	fs := vfs.NewMem()
	h := open(t, fs)
	h.meta.ClusterID = "AAAAAAAAQACAAAAAAAAAAA"
	require.NoError(t, store(fs, "data", metaFile, h.meta))
	require.NoError(t, h.Close())
	h, err := Open("data", onFS(fs), quiet, SegmentBytes(12_000))
	require.NoError(t, err)
	require.NoError(t, h.EnsureTopic(ctx, mirror.Topic{
		Name: "orders", ID: mirror.TopicID{0xca, 0xfe}, Partitions: 2, Configs: map[string]string{"cleanup.policy": "compact"},
	}))
	l, err := h.OpenLog(ctx, "orders", 1)
	require.NoError(t, err)
	for _, b := range []struct {
		base     int64
		n, size  int
		maxStamp int64
	}{
		{10, 5, 3000, 1000}, {15, 1, 2000, 3000}, {20, 2, 70, 2000}, {22, 1, 4500, 2500}, {23, 4, 1000, 4000},
		{27, 1, 3000, 3500}, {28, 1, 6000, 9000},
	} {
		require.NoError(t, l.Append(ctx, mk(b.base, b.n, b.size, b.maxStamp)))
	}
	require.NoError(t, l.AdvanceStart(ctx, 12))
	require.NoError(t, h.Close())
	golden(t, "layout.txt", dump(t, fs, "data", ""))
}

// dump tells a folder in words: small files as they are, batches by their headers, index entries as numbers.
func dump(t *testing.T, fs vfs.FS, dir, indent string) string {
	var out strings.Builder
	names, err := fs.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		file := dir + "/" + name
		b, err := readAll(fs, file)
		if err != nil {
			fmt.Fprintf(&out, "%s%s/\n%s", indent, name, dump(t, fs, file, indent+"  "))
			continue
		}
		fmt.Fprintf(&out, "%s%s  %d bytes\n", indent, name, len(b))
		say := func(format string, args ...any) { fmt.Fprintf(&out, indent+"  "+format+"\n", args...) }
		switch _, kind := parseName(name); kind {
		case logFile:
			for pos := 0; pos < len(b); {
				h, raw, err := batch.Next(b[pos:])
				require.NoError(t, err)
				say("at %d: offsets %d to %d, %d bytes, max timestamp %d, crc %08x", pos, h.Base, h.Next()-1, len(raw), h.MaxTimestamp, h.CRC)
				pos += len(raw)
			}
		case indexFile:
			for ; len(b) > 0; b = b[offsetEntry:] {
				last, pos := parseEntry(b[:offsetEntry])
				say("%x: base + %d at %d", b[:offsetEntry], last, pos)
			}
		case timeFile:
			for ; len(b) > 0; b = b[timeEntry:] {
				ts, last := parseEntry(b[:timeEntry])
				say("%x: timestamp %d, base + %d", b[:timeEntry], ts, last)
			}
		default:
			for line := range strings.Lines(string(b)) {
				say("%s", strings.TrimSuffix(line, "\n"))
			}
		}
	}
	return out.String()
}

// The disk calls of each operation, in order: where a sync is missing or in the wrong place, this shows it to a reader.
func TestDiskCalls(t *testing.T) {
	fs := vfs.NewMem()
	var out strings.Builder
	fs.Hook(func(c vfs.Call) error {
		if c.Changes() || c.Op == "lock" {
			fmt.Fprintf(&out, "  %v\n", c)
		}
		return nil
	})
	do := func(what string, f func() error) {
		fmt.Fprintf(&out, "%s\n", what)
		require.NoError(t, f())
	}
	var h *Host
	var l mirror.Log
	start := func() (err error) {
		h, err = Open("data", onFS(fs), quiet, SegmentBytes(10_000))
		return err
	}
	do("open a new folder", start)
	do("create a topic", func() error {
		return h.EnsureTopic(ctx, mirror.Topic{Name: "t", ID: mirror.TopicID{1}, Partitions: 1})
	})
	do("open a log", func() (err error) {
		l, err = h.OpenLog(ctx, "t", 0)
		return err
	})
	do("append", func() error { return l.Append(ctx, cat(mk(0, 10, 4500, 1), mk(10, 10, 1500, 2))) })
	do("sync", func() error { return l.Sync(ctx) })
	do("append", func() error { return l.Append(ctx, mk(20, 10, 1000, 3)) })
	do("sync", func() error { return l.Sync(ctx) })
	do("append what needs a new segment", func() error { return l.Append(ctx, mk(30, 10, 6000, 4)) })
	do("sync", func() error { return l.Sync(ctx) })
	do("advance the start within a segment", func() error { return l.AdvanceStart(ctx, 5) })
	do("advance the start beyond a segment", func() error { return l.AdvanceStart(ctx, 35) })
	do("append", func() error { return l.Append(ctx, mk(40, 10, 1000, 4)) })
	do("truncate", func() error { return l.TruncateTo(ctx, 40) })
	do("reset", func() error { return l.Reset(ctx, 500) })
	do("append", func() error { return l.Append(ctx, mk(500, 10, 4500, 1)) })
	do("close", func() error { return h.Close() })
	do("open", start)
	do("delete the topic", func() error { return h.DeleteTopic(ctx, "t") })
	golden(t, "calls.txt", out.String())
}

// Whatever the sizes of appends, reads and the pauses between them, and however often the host was restarted, the same
// batches make the same files.
func TestSameBatchesMakeTheSameFiles(t *testing.T) {
	var want string
	for seed := range uint64(20) {
		r := newRand(seed)
		fs := vfs.NewMem()
		h, l := openMem(t, fs, SegmentBytes(20_000))
		batches := newRand(99) // the same each time
		var all [][]byte
		base := int64(0)
		for range 60 {
			b := mk(base+batches.Int64N(3), 1+batches.IntN(5), 61+batches.IntN(4000), batches.Int64N(1000))
			all = append(all, b)
			base = next(b)
		}
		for len(all) > 0 {
			n := 1 + r.IntN(min(len(all), 1+r.IntN(20)))
			require.NoError(t, l.Append(ctx, cat(all[:n]...)))
			all = all[n:]
			switch r.IntN(6) {
			case 0:
				require.NoError(t, l.Sync(ctx))
			case 1:
				require.NoError(t, h.Close())
				h, l = openMem(t, fs, SegmentBytes(20_000))
			case 2: // killed
				fs = fs.Clone()
				h, l = openMem(t, fs, SegmentBytes(20_000))
			case 3:
				b := mk(base+10, 1, 61+r.IntN(4000), r.Int64N(1000))
				_, end := l.Bounds()
				v := l.(*handle).log.view.Load()
				if v.active != nil && v.grow.size+int64(len(b)) <= 20_000 { // else the cut leaves a segment that ends early
					require.NoError(t, l.Append(ctx, b))
					require.NoError(t, l.TruncateTo(ctx, end))
				}
			}
		}
		require.NoError(t, h.Close())
		got := dump(t, fs, "data/t-0", "")
		if i := strings.Index(got, boundsFile); i >= 0 { // counts the cuts
			got = got[:i]
		}
		if want == "" {
			want = got
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}
