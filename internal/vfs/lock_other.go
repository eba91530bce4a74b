//go:build !unix || solaris || aix

package vfs

import (
	"errors"
	"fmt"
	"io"
)

// Lock has no flock to stand on here; going on without a lock would let two processes write one folder.
func (osFS) Lock(name string) (io.Closer, error) {
	return nil, fmt.Errorf("lock %s: %w on this operating system", name, errors.ErrUnsupported)
}
