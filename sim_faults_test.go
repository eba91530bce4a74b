//go:build faults

package mirror_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each planted fault is found within so many histories, or the simulation is blind to it.
func TestPlantedFaultsAreFound(t *testing.T) {
	count := envInt(t, "SIM_HISTORIES", 5000)
	only := regexp.MustCompile(os.Getenv("SIM_FAULT"))
	where, err := os.Getwd()
	require.NoError(t, err)
	found := regexp.MustCompile(`seed (\d+)(, [^\n]*| does not come to an end)`)
	for _, f := range faults {
		if !only.MatchString(f.name) {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			dir := t.TempDir()
			replace := make(map[string]string)
			for _, f := range []fault{f, partners[f.name]} {
				if f.name == "" {
					continue
				}
				path := filepath.Join(where, f.file)
				src, err := os.ReadFile(path)
				require.NoError(t, err)
				replace[path] = filepath.Join(dir, filepath.Base(f.file))
				require.NoError(t, os.WriteFile(replace[path], []byte(strings.Replace(string(src), f.old, f.new, 1)), 0o600))
			}
			overlay, err := json.Marshal(map[string]any{"Replace": replace})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))

			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", filepath.Join(dir, "overlay.json"), "-vet=off", "-timeout", "30m", "-run", "^TestSimulation$", ".")
			cmd.Env = append(os.Environ(), "SIM_SHRINK=no", fmt.Sprintf("SIM_HISTORIES=%d", count))
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "nothing found in %d histories", count)
			seed := found.Find(out)
			require.NotNil(t, seed, "%s", out)
			t.Logf("%s", seed)
		})
	}
}
