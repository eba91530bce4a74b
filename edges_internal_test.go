package mirror

// Waiters is how many channels are told of a change of the partition.
func (p *Partition) Waiters() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiters)
}

// Checkpointed says that the state holds a checkpoint of the partition, or a part of one.
func (p *Partition) Checkpointed() bool {
	for k := range p.c.store.All(typeCheckpoint) {
		if k.Topic == p.id && k.Partition == p.num {
			return true
		}
	}
	return false
}
