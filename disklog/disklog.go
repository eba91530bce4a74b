// Package disklog is the embedded default host of a mirror: durable partition logs in a folder on local disk, laid out as
// Kafka lays out its own, so that Kafka's tools read them.
//
//	host, err := disklog.Open("replica")
//	if err != nil { ... }
//	defer host.Close()
//	m, err := mirror.New(ctx, "dr", source, host)
//
// One process at a time may write a folder; OpenReadOnly lets others look into it meanwhile. README.md beside this file
// has the byte layout, what is durable when, and how a crash is recovered from.
package disklog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/internal/vfs"
)

// format is the version of the layout. A folder of another one is refused.
const format = 1

// The names in a host's folder, beside those of partitions, which all end in a dash and a number.
const (
	metaFile  = "meta"   // format and cluster id
	lockFile  = "lock"   // held while a Host may write
	cleanFile = "clean"  // only while no Host may write: the bounds of all logs
	topicsDir = "topics" // a small file for each topic
)

type meta struct {
	Format    int    `json:"format"`
	ClusterID string `json:"cluster_id"`
}

// Host keeps the logs of topics in a folder. It implements mirror.Host, and its logs mirror.OffsetForTimer and mirror.TopicIDer. All
// methods may be called concurrently.
type Host struct {
	dir      string
	opts     options
	fs       vfs.FS
	files    *files
	readOnly bool
	meta     meta
	lock     io.Closer

	closed  atomic.Bool
	folders atomic.Int64 // how many partitions' folders were made
	rooted  atomic.Int64 // how many of them have a durable name

	mu     sync.Mutex // never held across disk calls
	topics map[string]*topic
	clean  map[string]*cleanLog // of logs that were not opened since
	alien  map[string]bool      // topics that have folders here but no file
}

var (
	_ mirror.Host           = (*Host)(nil)
	_ mirror.Log            = (*handle)(nil)
	_ mirror.OffsetForTimer = (*handle)(nil)
	_ mirror.TopicIDer      = (*handle)(nil)
)

// Open opens the host in a folder, which is made if missing (its parent is not). It takes the folder's lock: a
// *LockedError if another Host has it. A *FormatError if the folder is not one of disklog's, or of another version.
// Opening reads no log: those are looked at when OpenLog asks for them, and after a clean shutdown only when they are
// used.
func Open(dir string, opts ...Option) (*Host, error) {
	o := defaults()
	for _, opt := range opts {
		opt.set(&o)
	}
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("disklog: %w", err)
	}
	h := newHost(dir, o)
	if err := h.open(); err != nil {
		if h.lock != nil {
			err = errors.Join(err, h.lock.Close())
		}
		return nil, explain(dir, err)
	}
	return h, nil
}

// OpenReadOnly opens a folder for looking only: it takes no lock and changes nothing, so it may stand beside a Host that
// writes. Whatever would change something answers ErrReadOnly. A log shows what is whole on disk: OpenLog looks, and Read
// looks again at the end; so Bounds is as of the last look, and what was not synced yet may be gone after a crash.
func OpenReadOnly(dir string) (*Host, error) {
	h := newHost(dir, defaults())
	h.readOnly = true
	if err := errors.Join(h.readMeta(), h.readTopics()); err != nil {
		return nil, explain(dir, err)
	}
	return h, nil
}

func newHost(dir string, o options) *Host {
	return &Host{
		dir: dir, opts: o, fs: o.fs, files: &files{max: o.maxOpenFiles},
		topics: map[string]*topic{}, clean: map[string]*cleanLog{}, alien: map[string]bool{},
	}
}

func explain(dir string, err error) error {
	var locked *LockedError
	var unknown *FormatError
	switch {
	case errors.As(err, &locked) || errors.As(err, &unknown):
		return err
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return fmt.Errorf("disklog: folder %s can't be written by this user (OpenReadOnly needs no more than reading): %w", dir, err)
	}
	return fmt.Errorf("disklog: open folder %s: %w", dir, err)
}

func (h *Host) open() error {
	if err := h.fs.Mkdir(h.dir); err != nil {
		return err
	}
	// The format is looked at before anything is written, the lock file included.
	if err := h.readMeta(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lock, err := h.fs.Lock(filepath.Join(h.dir, lockFile))
	if errors.Is(err, vfs.ErrLocked) {
		return &LockedError{Dir: h.dir}
	}
	if err != nil {
		return err
	}
	h.lock = lock
	if err := h.readMeta(); errors.Is(err, fs.ErrNotExist) {
		err = h.initialize()
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := h.readTopics(); err != nil {
		return err
	}
	if err := h.readFolders(); err != nil {
		return err
	}
	if err := h.readClean(); err != nil {
		return err
	}
	// Durable from here on: the names of folders that a process made which did not live to sync them, and that the
	// shutdown was clean no longer holds.
	if err := h.fs.SyncDir(h.dir); err != nil {
		return err
	}
	return h.finishDeletes()
}

// readMeta reads the meta file. fs.ErrNotExist if there is none and the folder holds nothing else.
func (h *Host) readMeta() error {
	err := load(h.fs, h.dir, metaFile, &h.meta)
	if errors.Is(err, fs.ErrNotExist) {
		names, lerr := h.fs.List(h.dir)
		if lerr != nil {
			return lerr
		}
		for _, name := range names {
			switch name {
			case lockFile, topicsDir, temporary(metaFile): // a crash came before the meta file
			default:
				return &FormatError{Dir: h.dir}
			}
		}
		return err
	}
	if err == nil && h.meta.Format != format {
		return &FormatError{Dir: h.dir, Format: h.meta.Format}
	}
	return err
}

// initialize makes an empty host. The meta file comes last: with it the folder is one.
func (h *Host) initialize() error {
	if err := h.fs.Mkdir(filepath.Join(h.dir, topicsDir)); err != nil {
		return err
	}
	h.meta = meta{Format: format, ClusterID: randomID().String()}
	if err := store(h.fs, h.dir, metaFile, h.meta); err != nil {
		return err
	}
	return h.fs.SyncDir(filepath.Dir(h.dir))
}

// randomID is an id for a topic or a cluster. As in Kafka none begins with a dash, which command lines would take for a
// flag.
func randomID() (id mirror.TopicID) {
	for id == (mirror.TopicID{}) || strings.HasPrefix(id.String(), "-") {
		_, _ = rand.Read(id[:]) // never fails
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	}
	return id
}

// readClean reads what a clean shutdown left, and removes it: once a log may change it is no longer true.
func (h *Host) readClean() error {
	err := load(h.fs, h.dir, cleanFile, &h.clean)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if damaged := (*CorruptError)(nil); errors.As(err, &damaged) {
		h.opts.logger.Warn("disklog: the file of the last clean shutdown is damaged; logs are checked as after a crash", "error", err)
		h.clean, err = map[string]*cleanLog{}, nil
	}
	if err != nil {
		return err
	}
	return h.fs.Remove(filepath.Join(h.dir, cleanFile))
}

// ClusterID is a random id, 22 characters, made when the folder was.
func (h *Host) ClusterID() string { return h.meta.ClusterID }

// OpenLog opens one partition. mirror.ErrUnknownPartition if the topic does not have it.
func (h *Host) OpenLog(ctx context.Context, topic string, partition int32) (mirror.Log, error) {
	l, err := h.openLog(ctx, topic, partition)
	if err != nil {
		return nil, fmt.Errorf("disklog: open %s: %w", partitionName(topic, partition), err)
	}
	return &handle{log: l}, nil
}

func (h *Host) openLog(ctx context.Context, name string, partition int32) (*log, error) {
	l, err := h.log(name, partition)
	if err != nil && h.readOnly && errors.Is(err, mirror.ErrUnknownPartition) {
		if err := h.readTopics(); err != nil { // it may be new
			return nil, err
		}
		l, err = h.log(name, partition)
	}
	if err != nil {
		return nil, err
	}
	if err := l.writer.lock(ctx); err != nil {
		return nil, err
	}
	defer l.writer.unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	switch {
	case l.clean != nil: // its bounds are known, the rest can wait
	case h.readOnly:
		_, err = l.refresh(ctx)
	default:
		err = l.load(ctx)
	}
	return l, err
}

// log is the one object that stands for a partition.
func (h *Host) log(name string, partition int32) (*log, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Load() {
		return nil, mirror.ErrClosed
	}
	t := h.topics[name]
	if t == nil || t.file == nil || t.file.deleted || partition < 0 || partition >= t.file.Partitions {
		return nil, mirror.ErrUnknownPartition
	}
	l := t.logs[partition]
	if l == nil {
		l = &log{host: h, topic: name, id: t.file.ID, partition: partition, writer: newSem(), flushing: newSem()}
		v := &view{}
		if l.clean = h.clean[l.name()]; l.clean != nil {
			delete(h.clean, l.name())
			v.start, v.end = l.clean.Start, l.clean.End
		}
		l.view.Store(v)
		t.logs[partition] = l
	}
	return l, nil
}

// syncRoot makes durable the names of the first n folders that were made. Of many logs whose first Sync comes at once, one
// does it for all.
func (h *Host) syncRoot(n int64) error {
	if h.rooted.Load() >= n {
		return nil
	}
	made := h.folders.Load()
	if err := h.fs.SyncDir(h.dir); err != nil {
		return err
	}
	for {
		old := h.rooted.Load()
		if old >= made || h.rooted.CompareAndSwap(old, made) {
			return nil
		}
	}
}

// Close syncs all logs and gives the folder free. Calls that are under way end first; later ones answer
// mirror.ErrClosed. The next Open then needs to check nothing. Closing again is harmless.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed.Swap(true) {
		h.mu.Unlock()
		return nil
	}
	var logs []*log
	topics := slices.Collect(maps.Values(h.topics))
	for _, t := range topics {
		logs = slices.AppendSeq(logs, maps.Values(t.logs))
	}
	h.mu.Unlock()
	if h.readOnly {
		h.files.close()
		return nil
	}
	for _, t := range topics { // who comes later finds the host closed
		_ = t.admin.lock(context.Background())
		t.admin.unlock()
	}

	const atOnce = 16 // syncs: file systems commit several as one
	var g errgroup.Group
	g.SetLimit(atOnce)
	ends := make([]*cleanLog, len(logs))
	errs := make([]error, len(logs))
	for i, l := range logs {
		g.Go(func() error {
			ends[i], errs[i] = l.finish()
			errs[i] = l.fault("close", errs[i])
			return nil
		})
	}
	_ = g.Wait()
	h.files.close()
	for i, l := range logs {
		if ends[i] != nil {
			h.clean[l.name()] = ends[i]
		}
	}
	errs = append(errs, store(h.fs, h.dir, cleanFile, h.clean), h.lock.Close())
	return errors.Join(errs...)
}

func partitionName(topic string, partition int32) string {
	return fmt.Sprintf("%s-%d", topic, partition)
}
