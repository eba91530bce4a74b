package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBothSitesEndIdentical(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	require.Contains(t, out.String(), "identical: ")
	require.Contains(t, out.String(), "EVENT TRUNCATED mirror back orders-0 [")
}
