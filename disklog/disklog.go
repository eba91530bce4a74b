// Package disklog is the embedded default host of a mirror: durable partition logs in a folder on local disk, laid out as
// Kafka lays out its own, so that Kafka's tools read them.
//
//	host, err := disklog.Open("replica")
//	if err != nil { ... }
//	defer host.Close()
//	m, err := mirror.New(ctx, "dr", source, host)
//
// One process at a time may write a folder; OpenReadOnly lets others look into it meanwhile. README.md beside this file has the
// byte layout, what is durable when, and how a crash is recovered from.
package disklog

import (
	"context"
	"crypto/rand"
	"encoding/base64"
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

// topicFile is the small file of a topic.
type topicFile struct {
	ID         topicID           `json:"id"`
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs,omitempty"`

	deleted bool // its data is being removed
}

// deletedSuffix marks the file of a topic that is deleted. To mark it so needs no room on a disk that may be full. No topic can be
// named so, and the longest name does not become too long.
const deletedSuffix = "~gone"

// topicID is a topic's id in a file: as Kafka prints it.
type topicID mirror.TopicID

func (id topicID) MarshalText() ([]byte, error) { return []byte(mirror.TopicID(id).String()), nil }

func (id *topicID) UnmarshalText(b []byte) error {
	raw, err := base64.RawURLEncoding.DecodeString(string(b))
	if err != nil || len(raw) != len(id) {
		return fmt.Errorf("%q is no topic id", b)
	}
	copy(id[:], raw)
	return nil
}

// Host keeps the logs of topics in a folder. It implements mirror.Host, and its logs mirror.OffsetForTimer. All methods may be called
// concurrently.
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
)

// topic is one topic, or the name of one that was deleted.
type topic struct {
	admin sem // held while the topic is made, changed or deleted

	// Guarded by Host.mu.
	file *topicFile // nil: there is no such topic
	logs map[int32]*log
}

// Open opens the host in a folder, which is made if missing (its parent is not). It takes the folder's lock: a *LockedError if another Host
// has it. A *FormatError if the folder is not one of disklog's, or of another version. Opening reads no log: those are
// looked at when OpenLog asks for them, and after a clean shutdown only when they are used.
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
	// Durable from here on: the names of folders that a process made which did not live to sync them, and that the shutdown was
	// clean no longer holds.
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

// randomID is an id for a topic or a cluster. As in Kafka none begins with a dash, which command lines would take for a flag.
func randomID() (id mirror.TopicID) {
	for id == (mirror.TopicID{}) || strings.HasPrefix(id.String(), "-") {
		_, _ = rand.Read(id[:]) // never fails
		id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	}
	return id
}

// readTopics reads the topics' files.
func (h *Host) readTopics() error {
	dir := filepath.Join(h.dir, topicsDir)
	names, err := h.fs.List(dir)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, name := range names {
		topic, deleted := strings.CutSuffix(name, deletedSuffix)
		if checkName(topic) != nil || deleted && h.readOnly {
			continue // what a crash left of a small file
		}
		f := topicFile{deleted: deleted}
		err := load(h.fs, dir, name, &f)
		if h.readOnly && errors.Is(err, fs.ErrNotExist) {
			continue // deleted just now
		}
		if err != nil {
			return err
		}
		seen[topic] = true
		h.mu.Lock()
		t := h.topic(topic)
		if h.readOnly && t.file != nil && t.file.ID != f.ID {
			clear(t.logs) // they belong to a topic that was deleted
		}
		t.file = &f
		h.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, t := range h.topics {
		if !seen[name] {
			t.file = nil
		}
	}
	return nil
}

// readFolders finds folders of partitions that belong to no topic.
func (h *Host) readFolders() error {
	names, err := h.fs.List(h.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		i := strings.LastIndexByte(name, '-')
		if i > 0 && h.topics[name[:i]] == nil {
			h.alien[name[:i]] = true
		}
	}
	return nil
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

// finishDeletes removes the data of topics whose deletion a crash has cut short.
func (h *Host) finishDeletes() error {
	for name, t := range h.topics {
		if t.file != nil && t.file.deleted {
			if err := h.removeTopic(name, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// topic is the entry for a name, which is made if missing. Called with h.mu held.
func (h *Host) topic(name string) *topic {
	t := h.topics[name]
	if t == nil {
		t = &topic{admin: newSem(), logs: map[int32]*log{}}
		h.topics[name] = t
	}
	return t
}

// checkName says whether Kafka would take the name for a topic.
func checkName(name string) error {
	ok := len(name) > 0 && len(name) <= 249 && name != "." && name != ".."
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-')
	}
	if !ok {
		return fmt.Errorf("disklog: %q is no name for a topic: 1 to 249 of a-z A-Z 0-9 . _ - and not . or ..", name)
	}
	return nil
}

// ClusterID is a random id, 22 characters, made when the folder was.
func (h *Host) ClusterID() string { return h.meta.ClusterID }

// Topics lists the topics, by name.
func (h *Host) Topics(context.Context) ([]mirror.Topic, error) {
	if h.closed.Load() {
		return nil, mirror.ErrClosed
	}
	if h.readOnly {
		if err := h.readTopics(); err != nil {
			return nil, fmt.Errorf("disklog: %w", err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var ts []mirror.Topic
	for name, t := range h.topics {
		if f := t.file; f != nil && !f.deleted {
			ts = append(ts, mirror.Topic{Name: name, ID: mirror.TopicID(f.ID), Partitions: f.Partitions, Configs: maps.Clone(f.Configs)})
		}
	}
	slices.SortFunc(ts, func(a, b mirror.Topic) int { return strings.Compare(a.Name, b.Name) })
	return ts, nil
}

// EnsureTopic creates a topic, or grows it. Configs that are not nil replace those it has. See mirror.Host.
func (h *Host) EnsureTopic(ctx context.Context, want mirror.Topic) error {
	if err := checkName(want.Name); err != nil {
		return err
	}
	return h.administer(ctx, want.Name, func(t *topic, have *topicFile) error {
		f := topicFile{ID: topicID(want.ID)}
		switch {
		case have == nil && h.alien[want.Name]:
			return fmt.Errorf("folders of partitions of this topic are in %s, but no file in %s says so: move them away", h.dir, topicsDir)
		case have == nil && want.ID == mirror.TopicID{}:
			f.ID = topicID(randomID())
		case have == nil:
		case want.ID != mirror.TopicID{} && topicID(want.ID) != have.ID:
			return fmt.Errorf("%w: it is %v here, not %v", mirror.ErrTopicConflict, mirror.TopicID(have.ID), want.ID)
		default:
			f = *have
		}
		f.Partitions = max(f.Partitions, want.Partitions)
		if want.Configs != nil {
			f.Configs = maps.Clone(want.Configs)
		}
		switch {
		case f.Partitions < 1:
			return fmt.Errorf("%d partitions: a topic has at least one", f.Partitions)
		case len(partitionName(want.Name, f.Partitions-1)) > 255:
			return fmt.Errorf("%d partitions of a topic with a name this long: the names of their folders would be longer than file systems allow", f.Partitions)
		case have != nil && f.Partitions == have.Partitions && maps.Equal(f.Configs, have.Configs):
			return nil
		}
		if err := store(h.fs, filepath.Join(h.dir, topicsDir), want.Name, &f); err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		t.file = &f
		return nil
	})
}

// DeleteTopic deletes a topic with all its data, durably. Open logs of it answer mirror.ErrUnknownPartition from then on. A topic that does not
// exist is not an error.
func (h *Host) DeleteTopic(ctx context.Context, name string) error {
	return h.administer(ctx, name, func(t *topic, have *topicFile) error {
		if have == nil {
			return nil
		}
		file := filepath.Join(h.dir, topicsDir, name)
		if err := h.fs.Rename(file, file+deletedSuffix); err != nil {
			return err
		}
		f := *have
		f.deleted = true
		h.mu.Lock()
		t.file = &f
		logs := slices.Collect(maps.Values(t.logs))
		clear(t.logs)
		for p := range f.Partitions {
			delete(h.clean, partitionName(name, p))
		}
		h.mu.Unlock()
		for _, l := range logs {
			l.retire()
		}
		return h.removeTopic(name, t)
	})
}

// administer runs f alone for a topic, with its file, nil if there is none. A deletion that failed half-way is finished first.
func (h *Host) administer(ctx context.Context, name string, f func(t *topic, have *topicFile) error) error {
	if h.readOnly {
		return ErrReadOnly
	}
	h.mu.Lock()
	t := h.topic(name)
	h.mu.Unlock()
	if err := t.admin.lock(ctx); err != nil {
		return err
	}
	defer t.admin.unlock()
	if h.closed.Load() {
		return mirror.ErrClosed
	}
	h.mu.Lock()
	have := t.file
	h.mu.Unlock()
	var err error
	if have != nil && have.deleted {
		err, have = h.removeTopic(name, t), nil
	}
	if err == nil {
		err = f(t, have)
	}
	if err != nil {
		return fmt.Errorf("disklog: topic %s: %w", name, err)
	}
	return nil
}

// removeTopic removes the data of a topic that is marked as deleted, and at last its file. Each step may be done again.
func (h *Host) removeTopic(name string, t *topic) error {
	dir := filepath.Join(h.dir, topicsDir)
	if err := h.fs.SyncDir(dir); err != nil { // the mark
		return err
	}
	for p := range t.file.Partitions {
		folder := filepath.Join(h.dir, partitionName(name, p))
		files, err := h.fs.List(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := remove(h.fs, filepath.Join(folder, f)); err != nil {
				return err
			}
		}
		if err := remove(h.fs, folder); err != nil {
			return err
		}
	}
	// A folder that came back after the mark is gone would be another topic's, if one of this name is made again.
	if err := h.fs.SyncDir(h.dir); err != nil {
		return err
	}
	if err := remove(h.fs, filepath.Join(dir, name+deletedSuffix)); err != nil {
		return err
	}
	if err := h.fs.SyncDir(dir); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t.file = nil
	return nil
}

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
		_, err = l.refresh()
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

// Trim drops old segments of each partition of a topic. It knows nothing of mirrors: the caller sees to it that only topics are
// trimmed that no mirror owns.
func (h *Host) Trim(ctx context.Context, topic string, policy TrimPolicy) error {
	if h.readOnly {
		return ErrReadOnly
	}
	h.mu.Lock()
	partitions := int32(0)
	if t := h.topics[topic]; t != nil && t.file != nil && !t.file.deleted {
		partitions = t.file.Partitions
	}
	h.mu.Unlock()
	if partitions == 0 {
		return fmt.Errorf("disklog: trim %s: %w", topic, mirror.ErrUnknownPartition)
	}
	var errs []error
	for p := range partitions {
		l, err := h.openLog(ctx, topic, p)
		if err == nil {
			err = l.trim(ctx, policy)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("disklog: trim %s: %w", partitionName(topic, p), err))
		}
	}
	return errors.Join(errs...)
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

// Close syncs all logs and gives the folder free. Calls that are under way end first; later ones answer mirror.ErrClosed. The next Open then
// needs to check nothing. Closing again is harmless.
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
