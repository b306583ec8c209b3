package kvstore

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Batch gathers changes that become visible and durable together.
type Batch struct {
	store *Store
	batch *pebble.Batch
	err   error
}

// NewBatch begins a batch. Close it, whether committed or not.
func (s *Store) NewBatch() *Batch {
	return &Batch{store: s, batch: s.db.NewBatch()}
}

// Set stores value under key. Both are copied.
func (b *Batch) Set(ns Namespace, key, value []byte) {
	if b.err == nil {
		b.err = b.batch.Set(ns.physical(key), value, nil)
	}
}

// Delete removes key. That it is absent is no error.
func (b *Batch) Delete(ns Namespace, key []byte) {
	if b.err == nil {
		b.err = b.batch.Delete(ns.physical(key), nil)
	}
}

// Commit writes the batch and waits until it, and every content put before
// it, is on the disk.
func (b *Batch) Commit() error {
	if b.err != nil {
		return b.err
	}
	if err := b.batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("writing to %s: %w", b.store.dir, err)
	}
	return nil
}

// Close releases the batch. What was not committed is dropped.
func (b *Batch) Close() error { return b.batch.Close() }
