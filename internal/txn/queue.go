package txn

import "slices"

// queue holds the open transactions by first offset, which is the order in which they come. Every step costs an amortised
// constant: the oldest one is asked for by each reader, and a log may hold very many that hang.
type queue struct {
	items []Open        // Next 0: removed; the first and more than half of the others are not
	index map[int64]int // producer id -> number of its item; nil as long as nothing is open
	first int           // number of items[0]
}

// add opens a transaction, or moves the Next of the one that its producer has open.
func (q *queue) add(o Open) {
	if n, ok := q.index[o.ProducerID]; ok {
		q.items[n-q.first].Next = o.Next
		return
	}
	if q.index == nil {
		q.index = make(map[int64]int)
	}
	q.index[o.ProducerID] = q.first + len(q.items)
	q.items = append(q.items, o)
}

func (q *queue) remove(pid int64) (Open, bool) {
	n, ok := q.index[pid]
	if !ok {
		return Open{}, false
	}
	o := q.items[n-q.first]
	q.drop(n - q.first)
	q.tidy()
	return o, true
}

// advance drops what ends at or below start, and lets what begins below it begin there.
func (q *queue) advance(start int64) {
	for i := range q.items {
		switch o := &q.items[i]; {
		case o.Next == 0:
		case o.Next <= start:
			q.drop(i)
		default:
			o.FirstOffset = max(o.FirstOffset, start)
		}
	}
	q.tidy()
}

func (q *queue) drop(i int) {
	delete(q.index, q.items[i].ProducerID)
	q.items[i].Next = 0
}

// tidy restores what items promises.
func (q *queue) tidy() {
	if len(q.index) == 0 {
		*q = queue{}
		return
	}
	for q.items[0].Next == 0 {
		q.items = q.items[1:]
		q.first++
	}
	if len(q.index) > len(q.items)/2 {
		return
	}
	q.items, q.first = q.list(), 0
	for i, o := range q.items {
		q.index[o.ProducerID] = i
	}
}

func (q *queue) oldest() (Open, bool) {
	if len(q.items) == 0 {
		return Open{}, false
	}
	return q.items[0], true
}

// list is a copy of the items that are not removed.
func (q *queue) list() []Open {
	if len(q.items) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(q.items), func(o Open) bool { return o.Next == 0 })
}
