package main

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDemoEndsIdentical(t *testing.T) {
	var out strings.Builder
	require.NoError(t, demo(context.Background(), &out, t.TempDir()))
	require.Contains(t, out.String(), "identical: 5 topics")
	require.Contains(t, out.String(), "MIRRORING")
}

func TestRealSourceNeedsTopicsAndFolder(t *testing.T) {
	require.ErrorContains(t, follow(context.Background(), &strings.Builder{}, []string{"localhost:1"}, []string{""}, ""), "-topics")
}
