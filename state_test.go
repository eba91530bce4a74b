package mirror

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	allStates = []State{Unknown, Preparing, Mirroring, Pausing, Paused, Stopping, Stopped, Failed}
	allEvents = []event{evPrepare, evAligned, evDiverge, evPause, evStop, evSettle, evFail, evRetry}
)

// Every pair of state and event, as text: a change of behaviour shows as a change of this table.
func TestEveryTransition(t *testing.T) {
	want := strings.TrimSpace(`
UNKNOWN prepare -> PREPARING
UNKNOWN pause -> PAUSING
UNKNOWN stop -> STOPPING
UNKNOWN fail -> FAILED
PREPARING prepare -> PREPARING
PREPARING aligned -> MIRRORING
PREPARING diverge -> PREPARING
PREPARING pause -> PAUSING
PREPARING stop -> STOPPING
PREPARING fail -> FAILED
MIRRORING diverge -> PREPARING
MIRRORING pause -> PAUSING
MIRRORING stop -> STOPPING
MIRRORING fail -> FAILED
PAUSING prepare -> PREPARING
PAUSING stop -> STOPPING
PAUSING settle -> PAUSED
PAUSING fail -> FAILED
PAUSED prepare -> PREPARING
PAUSED stop -> STOPPING
PAUSED fail -> FAILED
STOPPING settle -> STOPPED
STOPPING fail -> FAILED
STOPPED prepare -> PREPARING
STOPPED fail -> FAILED
FAILED pause -> PAUSING
FAILED stop -> STOPPING
FAILED fail -> FAILED
FAILED retry -> MIRRORING`)
	var got []string
	for _, s := range allStates {
		for _, e := range allEvents {
			if to, ok := next(s, Mirroring, e); ok {
				got = append(got, fmt.Sprintf("%s %s -> %s", s, e, to))
			}
		}
	}
	require.Equal(t, want, strings.Join(got, "\n"))
}

func TestRetryGoesToTheStateBeforeTheFailure(t *testing.T) {
	for _, before := range allStates {
		to, ok := next(Failed, before, evRetry)
		require.True(t, ok)
		if before == Unknown || before == Failed {
			require.Equal(t, Preparing, to)
		} else {
			require.Equal(t, before, to)
		}
	}
}

// Whatever is wished, a partition that follows pursue, does what its state says and never fails gets there, from every state.
func TestEveryWishIsReached(t *testing.T) {
	for _, wished := range []State{Mirroring, Paused, Stopped} {
		for _, from := range allStates {
			{
				s, path := from, []State{from}
				for range 10 {
					e := pursue(s, wished)
					if e == "" {
						switch s {
						case Preparing:
							e = evAligned
						case Pausing, Stopping:
							e = evSettle
						case Failed:
							e = evRetry
						}
					}
					if e == "" {
						break
					}
					to, ok := next(s, from, e)
					require.True(t, ok, "%s %s on the way to %s: %v", s, e, wished, path)
					s, path = to, append(path, to)
				}
				if from == Stopped && wished != Stopped || from == Stopping && wished != Stopped {
					continue // a stopped topic is left as it is; a stop that has begun ends
				}
				if from == Failed && wished != Stopped {
					continue // goes back to a state that the rows above cover
				}
				require.Equal(t, wished, s, "from %s: %v", from, path)
			}
		}
	}
}
