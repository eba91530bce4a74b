package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, fsys FS, name string) string {
	t.Helper()
	f, err := fsys.Open(name, false)
	require.NoError(t, err)
	defer f.Close()
	size, err := f.Size()
	require.NoError(t, err)
	b := make([]byte, size+1)
	n, err := f.ReadAt(b, 0)
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, size, n)
	return string(b[:n])
}

func write(t *testing.T, fsys FS, name, text string) File {
	t.Helper()
	f, err := fsys.Create(name)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(text), 0)
	require.NoError(t, err)
	return f
}

// The file system in memory answers as the operating system's does.
func TestMemoryAnswersAsTheSystemDoes(t *testing.T) {
	for name, fsys := range map[string]FS{"system": OS, "memory": NewMem()} {
		t.Run(name, func(t *testing.T) {
			dir := "d"
			if fsys == OS {
				dir = filepath.Join(t.TempDir(), dir)
			}
			in := func(name string) string { return filepath.Join(dir, name) }
			require.NoError(t, fsys.Mkdir(dir))
			require.NoError(t, fsys.Mkdir(dir))
			_, err := fsys.Open(in("a"), true)
			require.ErrorIs(t, err, fs.ErrNotExist)
			_, err = fsys.List(in("a"))
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorIs(t, fsys.Remove(in("a")), fs.ErrNotExist)
			require.ErrorIs(t, fsys.Rename(in("a"), in("b")), fs.ErrNotExist)
			require.ErrorIs(t, fsys.SyncDir(in("a")), fs.ErrNotExist)
			require.ErrorIs(t, fsys.Mkdir(in("a/b")), fs.ErrNotExist)

			f := write(t, fsys, in("a"), "hello")
			require.Error(t, fsys.Mkdir(in("a")))
			_, err = f.WriteAt([]byte("!"), 8)
			require.NoError(t, err)
			require.Equal(t, "hello\x00\x00\x00!", read(t, fsys, in("a")))
			require.NoError(t, f.Truncate(4))
			require.NoError(t, f.Truncate(6))
			require.NoError(t, f.Sync())
			require.NoError(t, fsys.SyncDir(dir))
			require.Equal(t, "hell\x00\x00", read(t, fsys, in("a")))
			n, err := f.ReadAt(make([]byte, 1), 99)
			require.ErrorIs(t, err, io.EOF)
			require.Zero(t, n)

			write(t, fsys, in("b"), "b")
			require.NoError(t, fsys.Rename(in("b"), in("a")))
			names, err := fsys.List(dir)
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, names)
			require.Equal(t, "b", read(t, fsys, in("a")))
			_, err = f.WriteAt([]byte("x"), 0) // replaced, but open
			require.NoError(t, err)
			require.NoError(t, f.Close())
			require.Error(t, f.Sync())

			r, err := fsys.Open(in("a"), false)
			require.NoError(t, err)
			_, err = r.WriteAt([]byte("x"), 0)
			require.Error(t, err)
			require.Error(t, r.Truncate(0))
			require.Error(t, fsys.Remove(dir)) // not empty
			require.NoError(t, fsys.Remove(in("a")))
			_, err = r.ReadAt(make([]byte, 1), 0)
			require.NoError(t, err)

			lock, err := fsys.Lock(in("lock"))
			require.NoError(t, err)
			_, err = fsys.Lock(in("lock"))
			require.ErrorIs(t, err, ErrLocked)
			require.NoError(t, lock.Close())
			lock, err = fsys.Lock(in("lock"))
			require.NoError(t, err)
			require.NoError(t, lock.Close())
		})
	}
}

// Over many crashes, everything that may happen does, and what must not does not.
func TestCrashKeepsWhatWasSyncedAndAnyPartOfTheRest(t *testing.T) {
	m := NewMem()
	require.NoError(t, m.Mkdir("d"))
	require.NoError(t, m.SyncDir("."))
	old := strings.Repeat("a", 3*sector)
	f := write(t, m, "d/f", old)
	require.NoError(t, f.Sync())
	require.NoError(t, m.SyncDir("d"))
	_, err := f.WriteAt([]byte(strings.Repeat("b", 2*sector)), 2*sector)
	require.NoError(t, err)
	write(t, m, "d/new", "n")
	require.NoError(t, m.Mkdir("e"))

	seen := map[string]bool{}
	for seed := range uint64(300) {
		c := m.Crash(rand.New(rand.NewPCG(seed, 0)))
		again := m.Crash(rand.New(rand.NewPCG(seed, 0)))
		got := read(t, c, "d/f")
		require.Equal(t, got, read(t, again, "d/f"), "the same seed gives the same crash")
		require.Equal(t, old[:2*sector], got[:2*sector], "what was synced and not written since")
		pattern := ""
		for i := 2 * sector; i < len(got); i += sector {
			require.Equal(t, strings.Repeat(got[i:i+1], sector), got[i:i+sector], "a sector is whole")
			pattern += got[i : i+1]
		}
		seen[fmt.Sprintf("%q", pattern)] = true
		_, err := c.Open("d/new", false)
		seen[fmt.Sprintf("new: %v", err == nil)] = true
		_, err = c.List("e")
		seen[fmt.Sprintf("e: %v", err == nil)] = true
	}
	for _, what := range []string{`"a"`, `"b"`, `"a\x00"`, `"b\x00"`, `"ab"`, `"bb"`, "new: true", "new: false", "e: true", "e: false"} {
		require.Contains(t, seen, what)
	}
	require.Equal(t, old[:2*sector]+strings.Repeat("b", 2*sector), read(t, m.Clone(), "d/f"), "a killed process loses nothing")
}

func TestACrashNeverTearsARename(t *testing.T) {
	m := NewMem()
	require.NoError(t, write(t, m, "a", "old").Sync())
	require.NoError(t, m.SyncDir("."))
	require.NoError(t, write(t, m, "a~", "new").Sync())
	require.NoError(t, m.Rename("a~", "a"))
	seen := map[string]bool{}
	for seed := range uint64(100) {
		seen[read(t, m.Crash(rand.New(rand.NewPCG(seed, 0))), "a")] = true
	}
	require.Equal(t, map[string]bool{"old": true, "new": true}, seen)
}

func TestASyncThatFailsLosesWhatItShouldHaveWritten(t *testing.T) {
	m := NewMem()
	f := write(t, m, "a", "xxx")
	require.NoError(t, m.SyncDir("."))
	m.Hook(func(c Call) error {
		if c.Op == "sync" {
			return syscall.EIO
		}
		return nil
	})
	require.ErrorIs(t, f.Sync(), syscall.EIO)
	m.Hook(nil)
	require.NoError(t, f.Sync())
	require.Equal(t, "xxx", read(t, m, "a"))
	require.Empty(t, read(t, m.Crash(rand.New(rand.NewPCG(1, 1))), "a"))
}

func TestHookFailsCallsAndLimitFillsTheDisk(t *testing.T) {
	m := NewMem()
	f := write(t, m, "a", "12345")
	m.Hook(func(c Call) error {
		if c.String() == "write a 5+4" {
			return &Short{N: 2, Err: syscall.EIO}
		}
		return nil
	})
	n, err := f.WriteAt([]byte("6789"), 5)
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, 2, n)
	require.Equal(t, "1234567", read(t, m, "a"))
	m.Hook(nil)

	m.Limit(3)
	n, err = f.WriteAt([]byte("abcdef"), 5) // two bytes of it exist already
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, 5, n)
	require.NoError(t, f.Truncate(1))
	_, err = f.WriteAt([]byte("123456789"), 1)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("1"), 10)
	require.ErrorIs(t, err, syscall.ENOSPC)
	m.Limit(-1)
	_, err = f.WriteAt([]byte("1"), 10)
	require.NoError(t, err)
}
