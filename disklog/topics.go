package disklog

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/clustermirror/mirror"
)

// topicFile is the small file of a topic.
type topicFile struct {
	ID         topicID           `json:"id"`
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs,omitempty"`

	deleted bool // its data is being removed
}

// deletedSuffix marks the file of a topic that is deleted. To mark it so needs no room on a disk that may be full. No
// topic can be named so, and the longest name does not become too long.
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

// topic is one topic, or the name of one that was deleted.
type topic struct {
	admin sem // held while the topic is made, changed or deleted

	// Guarded by Host.mu.
	file *topicFile // nil: there is no such topic
	logs map[int32]*log
}

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
			return fmt.Errorf("%d partitions: with a name this long, those of their folders would have more than 255 bytes", f.Partitions)
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

// DeleteTopic deletes a topic with all its data, durably. Open logs of it answer mirror.ErrUnknownPartition from then
// on. A topic that does not exist is not an error.
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

// administer runs f alone for a topic, with its file, nil if there is none. A deletion that failed half-way is finished
// first.
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
