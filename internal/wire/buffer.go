package wire

import (
	"math/bits"
	"sync"
)

// maxFrame bounds what any answer may claim. Kafka's own limit on one batch, which an answer may exceed its limits by, lies
// far below.
const maxFrame = 1 << 30

// buffer is pooled memory for one frame.
type buffer struct {
	b     []byte // the whole capacity
	class int
}

// Four size classes to each doubling, from 4 KB on: at most a quarter of a buffer lies idle.
const classes = 73 // the last one holds maxFrame

var pools [classes]sync.Pool

func classSize(class int) int { return (4 + class%4) << (10 + class/4) }

// classOf is the smallest class that holds n bytes.
func classOf(n int) int {
	if n <= classSize(0) {
		return 0
	}
	shift := bits.Len(uint(n-1)) - 3 // leaves the leading bit and two more
	return 4*(shift-10) + (n-1)>>shift - 3
}

// newBuffer gives memory for at least n bytes, n <= maxFrame, with old contents.
func newBuffer(n int) *buffer {
	class := classOf(n)
	if b, _ := pools[class].Get().(*buffer); b != nil {
		return b
	}
	return &buffer{b: make([]byte, classSize(class)), class: class}
}

func (b *buffer) release() { pools[b.class].Put(b) }
