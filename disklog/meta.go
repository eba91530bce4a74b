package disklog

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/clustermirror/mirror/internal/vfs"
)

// The small files beside the segments are JSON with a line behind it that holds its CRC-32C, so that people can read them
// and damage is never believed. They are replaced whole.

const sumLine = "\n#crc32c %08x\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// temporary is what a file is called until it is whole. No topic can be named so.
func temporary(name string) string { return name + "~" }

// store replaces a small file. Durable on return; on an error either the old or the new one is there.
func store(fsys vfs.FS, dir, name string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := replace(fsys, filepath.Join(dir, name), fmt.Appendf(body, sumLine, crc32.Checksum(body, castagnoli))); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// replace writes a file whole: whatever happens, the old or the new one is there. Which, a crash decides until its
// folder is synced.
func replace(fsys vfs.FS, name string, body []byte) error {
	f, err := fsys.Create(temporary(name))
	if err != nil {
		return err
	}
	_, err = f.WriteAt(body, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return fsys.Rename(temporary(name), name)
}

// load reads a small file. fs.ErrNotExist if there is none, *CorruptError if it is damaged.
func load(fsys vfs.FS, dir, name string, v any) error {
	file := filepath.Join(dir, name)
	b, err := readAll(fsys, file)
	if err != nil {
		return err
	}
	if err := decode(b, v); err != nil {
		return &CorruptError{File: file, Position: -1, Err: err}
	}
	return nil
}

func decode(b []byte, v any) error {
	i := strings.LastIndex(strings.TrimSuffix(string(b), "\n"), "\n")
	if i < 0 || string(b[i:]) != fmt.Sprintf(sumLine, crc32.Checksum(b[:i], castagnoli)) {
		return errors.New("its CRC does not match")
	}
	return json.Unmarshal(b[:i], v)
}

func readAll(fsys vfs.FS, file string) ([]byte, error) {
	f, err := fsys.Open(file, false)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// remove removes a file that may be gone already.
func remove(fsys vfs.FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
