package durable

import (
	"context"
	"fmt"
)

// A transaction gathers changes that happen together or not at all.
type transaction struct {
	strand  *strand
	changes map[string]*change
	bytes   int
	alarmed bool
	alarm   *alarm
	done    chan struct{} // closed when it is over
}

// Transaction runs f, whose writes happen when it returns nil; with an error, none
// of them does, and the error is returned. They are one atomic write, whatever is read
// between them. Tasks beside wait with what they want of the storage meanwhile.
//
// F has to use the state that it is given. It cannot call out.
func (s *State) Transaction(ctx context.Context, f func(context.Context, *State) error) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	o := s.object
	if s.tx != nil {
		o.mu.Unlock()
		return fmt.Errorf("a transaction cannot be within another")
	}
	tx := &transaction{strand: s.strand, changes: make(map[string]*change), done: make(chan struct{})}
	o.tx = tx
	o.mu.Unlock()
	returned := false
	defer func() {
		if !returned { // f panicked
			o.mu.Lock()
			tx.end(o)
			o.mu.Unlock()
		}
	}()
	inner := &State{strand: s.strand, tx: tx, blocking: s.blocking}
	err := f(inner.context(ctx), inner)
	returned = true
	o.mu.Lock()
	defer o.mu.Unlock()
	tx.end(o)
	switch {
	case o.failed != nil:
		return stopped(o.failed, err)
	case err != nil:
		return err
	}
	return o.apply(tx)
}

// end closes the transaction. The caller holds o.mu.
func (tx *transaction) end(o *object) {
	o.tx = nil
	close(tx.done)
}

// add makes a change within the transaction. The caller holds o.mu.
func (tx *transaction) add(c change) error {
	size := c.size()
	if old := tx.changes[c.key]; old != nil {
		size -= old.size()
	}
	if err := checkWrite(tx.bytes, size, c.deleted); err != nil {
		return err
	}
	tx.bytes += size
	tx.changes[c.key] = &c
	return nil
}

// apply makes the changes of a transaction. The caller holds o.mu.
func (o *object) apply(tx *transaction) error {
	if o.pending != nil && o.pending.bytes > 0 && o.pending.bytes+tx.bytes > MaxWriteBytes {
		o.seal()
	}
	for _, c := range tx.changes {
		if err := o.add(*c); err != nil {
			return err
		}
	}
	if tx.alarmed {
		o.setAlarm(tx.alarm)
	}
	return nil
}
