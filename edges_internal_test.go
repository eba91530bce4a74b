package mirror

// Waiters is how many channels are told of a change of the partition.
func (p *Partition) Waiters() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiters)
}
