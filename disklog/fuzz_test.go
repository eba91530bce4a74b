package disklog

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/vfs"
)

func put(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name)
	require.NoError(t, err)
	_, err = f.WriteAt(b, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// Whatever bytes stand in the last segment after a crash: the log opens, holds whole batches in order whose CRCs match,
// which are a prefix of the bytes, and goes on; opened once more, it is the same.
func FuzzTornSegment(f *testing.F) {
	a, b := mk(3, 2, 100, 5), mk(9, 1, 300, 6)
	f.Add(cat(a, b))
	f.Add(cat(a, b)[:250])
	f.Add(cat(a, make([]byte, 200)))
	f.Add(cat(b, a))
	f.Add([]byte{})
	huge := bytes.Clone(b)
	huge[8] = 0x7f
	f.Add(cat(a, huge))
	f.Fuzz(func(t *testing.T, segment []byte) {
		fs := vfs.NewMem()
		openMem(t, fs)
		require.NoError(t, fs.Mkdir("data/t-0"))
		put(t, fs, "data/t-0/00000000000000000002.log", segment)
		fs = fs.Clone()
		_, l := openMem(t, fs)
		kept, err := contents(l)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(segment, kept))
		require.NoError(t, wellFormed(kept, 0))
		_, end := l.Bounds()
		if end < 1<<40 {
			next := mk(end, 1, 100, 7)
			require.NoError(t, l.Append(ctx, next))
			kept = cat(kept, next)
		}
		h, l := openMem(t, fs.Clone())
		requireContents(t, l, kept)
		require.NoError(t, h.Close())
	})
}

// Whatever bytes stand in the index files, before a crash or a clean shutdown: each offset is found all the same.
func FuzzIndex(f *testing.F) {
	base := vfs.NewMem()
	h, l := openMem(f, base, SegmentBytes(20_000))
	for i := range int64(12) {
		require.NoError(f, l.Append(ctx, mk(i*2, 2, 2500, i*7%5)))
	}
	require.NoError(f, h.Close())
	all, err := contents(openLog(f, open(f, base.Clone()), "t", 0))
	require.NoError(f, err)
	for _, name := range []string{"00000000000000000000.index", "00000000000000000000.timeindex"} {
		b, err := readAll(base, "data/t-0/"+name)
		require.NoError(f, err)
		f.Add(b, b, false)
		f.Add(b[:len(b)-3], []byte{}, true)
	}
	f.Fuzz(func(t *testing.T, index, times []byte, crash bool) {
		fs := base.Clone()
		for _, segment := range []string{"00000000000000000000", "00000000000000000016"} {
			put(t, fs, "data/t-0/"+segment+".index", index)
			put(t, fs, "data/t-0/"+segment+".timeindex", times)
		}
		if crash {
			require.NoError(t, remove(fs, "data/clean"))
		}
		h, l := openMem(t, fs, SegmentBytes(20_000))
		for b := range mirror.Batches(all) {
			buf := make([]byte, len(b.Bytes))
			n, err := l.Read(ctx, b.Base+1, buf)
			require.NoError(t, err)
			require.Equal(t, b.Bytes, buf[:n])
			_, err = l.(mirror.OffsetForTimer).OffsetForTime(ctx, b.MaxTime)
			require.NoError(t, err)
		}
		require.NoError(t, l.Append(ctx, mk(30, 1, 9000, 3)))
		require.NoError(t, l.TruncateTo(ctx, 21))
		require.NoError(t, l.AdvanceStart(ctx, 17))
		require.NoError(t, h.Trim(ctx, "t", TrimPolicy{MaxAge: 1}))
		require.NoError(t, h.Close())
	})
}

// A small file is taken for what its CRC vouches for, or refused; nothing panics.
func FuzzSmallFile(f *testing.F) {
	fs := vfs.NewMem()
	require.NoError(f, store(fs, ".", "x", bounds{Start: 5}))
	good, err := readAll(fs, "x")
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte("\n#crc32c 00000000\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		fs := vfs.NewMem()
		put(t, fs, "x", b)
		var got bounds
		err := load(fs, ".", "x", &got)
		var damaged *CorruptError
		if err != nil && !errors.As(err, &damaged) {
			t.Fatalf("not a CorruptError: %v", err)
		}
	})
}
