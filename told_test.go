package mirror_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/clustermirror/mirror/memlog"
)

// What commands, plans and Describe tell people: it must be true, and lead on.

func TestACommandOnNoTopicSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newSource(t)
		m := newMirror(t, a, memlog.New())
		ctx := t.Context()
		_, planned := m.PlanAdd(ctx)
		for what, err := range map[string]error{
			"AddTopics": m.AddTopics(ctx), "Remove": m.Remove(ctx), "Promote": m.Promote(ctx), "Pause": m.Pause(ctx),
			"Resume": m.Resume(ctx), "Overwrite": m.Overwrite(ctx), "Recover": m.Recover(ctx), "PlanAdd": planned,
		} {
			require.ErrorContains(t, err, "mirror dr: no topic is named", what)
		}
	})
}
