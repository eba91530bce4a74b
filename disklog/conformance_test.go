package disklog

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/vfs"
	"github.com/clustermirror/mirror/logtest"
)

// harness runs the public suite over a file system in memory, with segments so small that every check meets many.
func harness(opts ...Option) logtest.Harness {
	open := func(fs *vfs.Mem) (mirror.Host, error) {
		return Open("data", append([]Option{onFS(fs), quiet}, opts...)...)
	}
	fsOf := func(h mirror.Host) *vfs.Mem { return h.(*Host).fs.(*vfs.Mem) }
	return logtest.Harness{
		Fresh: func(context.Context) (mirror.Host, error) { return open(vfs.NewMem()) },
		Reopen: func(_ context.Context, h mirror.Host) (mirror.Host, error) {
			if err := h.(*Host).Close(); err != nil {
				return nil, err
			}
			return open(fsOf(h))
		},
		Crash: func(_ context.Context, h mirror.Host, rng *rand.Rand) (mirror.Host, error) {
			return open(fsOf(h).Crash(rng))
		},
		Full: func(h mirror.Host, full bool) {
			if full {
				fsOf(h).Limit(100)
			} else {
				fsOf(h).Limit(-1)
			}
		},
	}
}

func TestKeepsTheContract(t *testing.T) {
	t.Run("small segments", func(t *testing.T) { logtest.Run(t, harness(SegmentBytes(4096), MaxOpenFiles(8))) })
	t.Run("large segments", func(t *testing.T) { logtest.Run(t, harness()) })
	t.Run("on disk", func(t *testing.T) {
		logtest.Run(t, logtest.Harness{
			Fresh: func(context.Context) (mirror.Host, error) {
				return Open(filepath.Join(t.TempDir(), "data"), quiet, onFS(noSync{vfs.OS}))
			},
			Reopen: func(_ context.Context, h mirror.Host) (mirror.Host, error) {
				if err := h.(*Host).Close(); err != nil {
					return nil, err
				}
				return Open(h.(*Host).dir, quiet, onFS(noSync{vfs.OS}))
			},
		})
	})
}

// noSync is a real disk that nobody pulls the plug of, so that tests need not wait for it.
type noSync struct{ vfs.FS }

type noSyncFile struct{ vfs.File }

func (noSync) SyncDir(string) error { return nil }
func (noSyncFile) Sync() error      { return nil }
func (n noSync) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return noSyncFile{f}, nil
}
func (n noSync) Create(name string) (vfs.File, error) { return n.wrap(n.FS.Create(name)) }
func (n noSync) Open(name string, write bool) (vfs.File, error) {
	return n.wrap(n.FS.Open(name, write))
}
