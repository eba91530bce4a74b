package disklog

import (
	"errors"
	"fmt"
)

// ErrReadOnly is returned for every change asked of a Host that OpenReadOnly gave.
var ErrReadOnly = errors.New("the folder was opened for reading only")

// LockedError is returned by Open for a folder that another Host has open, in this process or another one.
type LockedError struct{ Dir string }

func (e *LockedError) Error() string {
	return fmt.Sprintf("disklog: folder %s is in use by another host: close that one first, or look into the folder with OpenReadOnly", e.Dir)
}

// FormatError is returned for a folder that this version of the library can't read.
type FormatError struct {
	Dir    string
	Format int // what the folder is; 0: nothing that disklog made
}

func (e *FormatError) Error() string {
	if e.Format == 0 {
		return fmt.Sprintf("disklog: folder %s is not empty and holds no file %q, so disklog did not make it: name an empty or a new folder",
			e.Dir, metaFile)
	}
	return fmt.Sprintf("disklog: folder %s has format %d, this version knows format %d: open it with the version that wrote it, or a newer one",
		e.Dir, e.Format, format)
}

// CorruptError is returned for a file whose bytes are not what was written.
type CorruptError struct {
	File     string
	Position int64 // in the file; -1: the file as a whole
	Err      error // what is wrong there
}

func (e *CorruptError) Error() string {
	if e.Position < 0 {
		return fmt.Sprintf("file %s is damaged: %v; restore it from a copy", e.File, e.Err)
	}
	return fmt.Sprintf("file %s is damaged at byte %d: %v; cut or reset the partition to drop what follows, or restore the file from a copy",
		e.File, e.Position, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }
