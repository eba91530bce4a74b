package main

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// In a synctest bubble the clients' back-offs, long polls and batch time-outs take no real time.
func TestWhatIsWrittenIsReadFromTheMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, err := story(t.Context(), "a", "b", "c")
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c"}, read)
	})
}
