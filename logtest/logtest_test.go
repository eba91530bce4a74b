package logtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/clustermirror/mirror"
	"github.com/clustermirror/mirror/memlog"
)

// inMemory is memlog with everything that the suite can use.
func inMemory() Harness {
	return Harness{
		Fresh:  func(context.Context) (mirror.Host, error) { return memlog.New(), nil },
		Reopen: func(_ context.Context, h mirror.Host) (mirror.Host, error) { return h, nil }, // its life is the process's
		Crash: func(_ context.Context, h mirror.Host, rng *rand.Rand) (mirror.Host, error) {
			return h.(*memlog.Host).Crash(rng), nil
		},
		Full: func(h mirror.Host, full bool) {
			if !full {
				h.(*memlog.Host).Fail(nil)
				return
			}
			var room atomic.Int64
			room.Store(2)
			h.(*memlog.Host).Fail(func(_ context.Context, op memlog.Op, _ string, _ int32) error {
				if op == memlog.OpAppend && room.Add(-1) < 0 {
					return errors.New("no space left")
				}
				return nil
			})
		},
	}
}

func TestMemlogKeepsTheContract(t *testing.T) { Run(t, inMemory()) }

func BenchmarkMemlog(b *testing.B) { Bench(b, inMemory()) }
