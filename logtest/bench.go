package logtest

import (
	"fmt"
	"testing"

	wire "github.com/clustermirror/mirror/internal/batch"

	"github.com/clustermirror/mirror"
)

// Bench measures what a mirror spends its time with: appends as they come from a fetch, syncs, and reads in order.
func Bench(b *testing.B, h Harness) {
	for _, batches := range []int{1, 64} {
		for _, sync := range []bool{false, true} {
			b.Run(fmt.Sprintf("append/batches=%d/sync=%v", batches, sync), func(b *testing.B) {
				bench(b, h, func(e *env, l mirror.Log) { benchAppend(b, e, l, batches, sync) })
			})
		}
	}
	for _, room := range []int{wire.HeaderSize, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("read/bytes=%d", room), func(b *testing.B) {
			bench(b, h, func(e *env, l mirror.Log) { benchRead(b, e, l, room) })
		})
	}
}

func bench(b *testing.B, h Harness, f func(*env, mirror.Log)) {
	b.ReportAllocs()
	if err := run(b.Context(), h, func(e *env) { f(e, e.log()) }); err != nil {
		b.Fatal(err)
	}
}

// benchBatch is 16 KB of records.
func benchBatch(base int64) batch { return made(base, 16, 16, 1000, 0) }

func benchAppend(b *testing.B, e *env, l mirror.Log, batches int, sync bool) {
	var all []byte
	for range batches {
		all = append(all, benchBatch(0).bytes...)
	}
	b.SetBytes(int64(len(all)))
	var end int64
	for b.Loop() {
		if end > 1<<17 { // 128 MB are enough to hold
			e.must(l.Reset(e.ctx, 0), "Reset")
			end = 0
		}
		for rest := all; len(rest) > 0; end += 16 {
			wire.SetBase(rest, end)
			rest = rest[len(all)/batches:]
		}
		e.must(l.Append(e.ctx, all), "Append")
		if sync {
			e.sync(l)
		}
	}
}

func benchRead(b *testing.B, e *env, l mirror.Log, room int) {
	var end int64
	for end < 64<<10 {
		one := benchBatch(end)
		e.append(l, one)
		end = one.next
	}
	b.SetBytes(int64(room))
	step := int64(16 * max(1, room/len(benchBatch(0).bytes)))
	buf := make([]byte, room)
	var offset int64
	for b.Loop() {
		if offset+2*step > end { // a whole buffer each time
			offset = 0
		}
		_, err := l.Read(e.ctx, offset, buf)
		e.must(err, "Read")
		offset += step
	}
}
