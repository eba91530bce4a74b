package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/logtest"
)

func TestTheHostKeepsTheContract(t *testing.T) {
	logtest.Run(t, logtest.Harness{
		Fresh: func(context.Context) (mirror.Host, error) { return NewHost(), nil },
	})
}

func TestItPrintsWhatTheLogHolds(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, `greetings-0 holds [0, 3)
     0  hello
     1  from a log
     2  of your own
`, out.String())
}
