package wire

import (
	"encoding/binary"
	"math"
)

// codec writes or reads the fields of a flexible message (KIP-482), by the same calls: the layout of a message is told once. A
// read beyond the end sets bad, and every field after it is zero.
type codec struct {
	b       []byte
	reading bool
	bad     bool
}

// take gives the next n bytes of what is read.
func (c *codec) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.bad, c.b = true, nil
		return nil
	}
	taken := c.b[:n]
	c.b = c.b[n:]
	return taken
}

func (c *codec) int16(v *int16) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint16(c.b, uint16(*v))
	} else if b := c.take(2); b != nil {
		*v = int16(binary.BigEndian.Uint16(b))
	}
}

func (c *codec) int32(v *int32) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint32(c.b, uint32(*v))
	} else if b := c.take(4); b != nil {
		*v = int32(binary.BigEndian.Uint32(b))
	}
}

func (c *codec) int64(v *int64) {
	if !c.reading {
		c.b = binary.BigEndian.AppendUint64(c.b, uint64(*v))
	} else if b := c.take(8); b != nil {
		*v = int64(binary.BigEndian.Uint64(b))
	}
}

func (c *codec) bool(v *bool) {
	if !c.reading {
		b := byte(0)
		if *v {
			b = 1
		}
		c.b = append(c.b, b)
	} else if b := c.take(1); b != nil {
		*v = b[0] != 0
	}
}

func (c *codec) uuid(v *[16]byte) {
	if !c.reading {
		c.b = append(c.b, v[:]...)
	} else {
		copy(v[:], c.take(16))
	}
}

func (c *codec) uvarint(v uint64) uint64 {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, v)
		return v
	}
	v, n := binary.Uvarint(c.b)
	if n <= 0 || v > math.MaxUint32 {
		c.bad, c.b = true, nil
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *codec) string(v *string) {
	n := c.uvarint(uint64(len(*v)) + 1)
	switch {
	case !c.reading:
		c.b = append(c.b, *v...)
	case n == 0:
		c.bad = true
	default:
		*v = string(c.take(n - 1))
	}
}

// nullable is a string that stands as null if it is empty.
func (c *codec) nullable(v *string) {
	switch {
	case c.reading:
		*v = ""
		if n := c.uvarint(0); n > 0 {
			*v = string(c.take(n - 1))
		}
	case *v == "":
		c.uvarint(0)
	default:
		c.string(v)
	}
}

// list is an array of what each handles; a nil one stands as null, and null is read as nil. It grows as elements are read, never
// by what it claims to hold.
func list[T any](c *codec, v *[]T, each func(*T)) {
	if !c.reading {
		if *v == nil {
			c.uvarint(0)
			return
		}
		c.uvarint(uint64(len(*v)) + 1)
		for i := range *v {
			each(&(*v)[i])
		}
		return
	}
	n := c.uvarint(0)
	if *v = nil; n == 0 {
		return
	}
	*v = []T{}
	for range n - 1 {
		var e T
		if each(&e); c.bad {
			return
		}
		*v = append(*v, e)
	}
}

// tag is a field that stands only if it is set, and that a reader may not know.
type tag struct {
	number uint64
	set    bool
	walk   func()
}

// tags ends a structure; the fields are in the order of their numbers.
func (c *codec) tags(fields ...tag) {
	if !c.reading {
		n := uint64(0)
		for _, f := range fields {
			if f.set {
				n++
			}
		}
		c.uvarint(n)
		for _, f := range fields {
			if f.set {
				whole := c.b
				c.b = nil
				f.walk()
				value := c.b
				c.b = whole
				c.uvarint(f.number)
				c.uvarint(uint64(len(value)))
				c.b = append(c.b, value...)
			}
		}
		return
	}
	for n := c.uvarint(0); n > 0 && !c.bad; n-- {
		number := c.uvarint(0)
		value := c.take(c.uvarint(0))
		for _, f := range fields {
			if f.number == number && !c.bad {
				rest := c.b
				c.b = value
				f.walk()
				c.b = rest
			}
		}
	}
}
