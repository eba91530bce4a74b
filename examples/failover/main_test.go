package main

import (
	"context"
	"io"
	"log"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror"
)

func TestBothSitesEndIdentical(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	require.Contains(t, out.String(), "identical: ")
	require.Contains(t, out.String(), "EVENT TRUNCATED mirror back orders-0 [")
	require.Contains(t, out.String(), "EVENT TRUNCATED mirror back orders-1 [")
}

func TestSitesThatDifferAreAnError(t *testing.T) {
	var sites [2]*site
	for i := range sites {
		s, err := open(t.Context(), log.New(io.Discard, "", 0), t.TempDir())
		require.NoError(t, err)
		defer func() { require.NoError(t, s.close()) }()
		require.NoError(t, s.host.EnsureTopic(t.Context(), mirror.Topic{Name: topic, Partitions: partitions}))
		sites[i] = s
	}
	_, err := compare(t.Context(), sites[0], sites[1])
	require.NoError(t, err, "both are empty")

	var c clients
	c.at.Store(sites[0].broker)
	stop := background(t.Context(), func(ctx context.Context) { c.produce(ctx, "only") })
	require.NoError(t, c.more(t.Context(), 1))
	stop()
	_, err = compare(t.Context(), sites[0], sites[1])
	require.ErrorContains(t, err, "differs")
}
