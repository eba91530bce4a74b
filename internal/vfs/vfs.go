// Package vfs is the handful of disk calls that durable logs are built on, with the operating system behind them (OS) or,
// for tests, memory (Mem): a file system that can fail any call and can be cloned as a power cut would leave it.
//
// What callers may count on, and nothing more: bytes of a file are durable after its Sync; a name (created, renamed,
// removed) is durable after SyncDir of its folder; Rename replaces its target at once, before or after a crash, never in
// between. What was not synced may survive a crash whole, in parts of a sector each, or not at all, in any order.
package vfs

import (
	"errors"
	"io"
)

// ErrLocked is returned by FS.Lock when another holder has the lock.
var ErrLocked = errors.New("locked by another process")

// FS is a file system. Names are paths with the separator of the operating system. All methods may be called
// concurrently; errors are those of package os, so fs.ErrNotExist and syscall.ENOSPC are found by errors.Is.
type FS interface {
	// Create opens a file for reading and writing, empty: it is made, or cut to nothing if it exists.
	Create(name string) (File, error)
	// Open opens a file that exists, for reading, and for writing too if write is set.
	Open(name string, write bool) (File, error)
	// Mkdir makes a folder. One that exists already is not an error.
	Mkdir(name string) error
	// Rename gives a file another name; a file that has it already is replaced.
	Rename(from, to string) error
	// Remove removes a file or an empty folder.
	Remove(name string) error
	// List is the names in a folder, sorted.
	List(name string) ([]string, error)
	// SyncDir makes durable the names in a folder.
	SyncDir(name string) error
	// Lock takes the exclusive lock that stands behind a file, which is made if missing. ErrLocked if it is taken, by this
	// process or another one. It is released by Close, and when the process ends.
	Lock(name string) (io.Closer, error)
}

// File is an open file. All methods may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size is the length in bytes.
	Size() (int64, error)
	// Truncate cuts the file to size, or grows it by zeros.
	Truncate(size int64) error
	// Sync makes durable the bytes and the length.
	Sync() error
}
