package broker

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
)

func TestErrorCodesTellClientsWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int16
	}{
		{nil, 0},
		{&mirror.ReadOnlyError{Topic: "orders", Mirror: "dr"}, 134},
		{mirror.ErrUnknownPartition, 3},
		{mirror.ErrOutOfRange, 1},
		{mirror.ErrClosed, 6}, // look for the new leader
		{mirror.ErrFenced, 6},
		{context.DeadlineExceeded, 7},
		{errors.New("disk full"), 56},
	} {
		require.Equal(t, c.code, ErrorCode(c.err), "%v", c.err)
		if c.err != nil {
			require.Equal(t, c.code, ErrorCode(fmt.Errorf("append: %w", c.err)), "%v, wrapped", c.err)
		}
	}
}
