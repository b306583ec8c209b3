package durable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
)

// An Option gives up what an operation does otherwise. Several are joined with |.
type Option uint8

const (
	// AllowConcurrency delivers other events while a read waits for the disk. It has no effect in
	// a transaction or in [State.BlockConcurrencyWhile].
	AllowConcurrency Option = 1 << iota
	// AllowUnconfirmed lets the event's response and calls leave before a write is durable.
	AllowUnconfirmed
	// NoCache does not keep in memory what is read or written: it won't be asked
	// for soon.
	NoCache
)

// joinOptions returns all options joined into one.
func joinOptions(options []Option) (all Option) {
	for _, o := range options {
		all |= o
	}
	return all
}

// Get returns a copy of the value of a key; the bool is false if none exists. It sees the object's own writes, durable or not. A value that is not in
// memory is read from the store, and cached unless [NoCache] is given. Such a read ends the atomic write of the changes before it, except for those
// of an open transaction.
func (s *State) Get(ctx context.Context, key string, options ...Option) ([]byte, bool, error) {
	value, ok, err := s.get(ctx, key, joinOptions(options))
	return bytes.Clone(value), ok, err
}

// GetAll returns copies of the values of up to [MaxKeys] keys; more are [ErrTooLarge]. A key without a value is missing in the result. Values that
// are not in memory are read from the store at one moment, and cached, with the effects that [State.Get] describes.
func (s *State) GetAll(ctx context.Context, keys []string, options ...Option) (map[string][]byte, error) {
	if len(keys) > MaxKeys {
		return nil, fmt.Errorf("%w: %d keys were asked for at once, %d are allowed", ErrTooLarge, len(keys), MaxKeys)
	}
	found, err := s.getAll(ctx, keys, joinOptions(options))
	for key, value := range found {
		found[key] = bytes.Clone(value)
	}
	return found, err
}

// get does the work of [State.Get]: it returns the value of a key, and false if none exists. But the value is shared with the cache, and must not
// be changed.
func (s *State) get(ctx context.Context, key string, option Option) (value []byte, ok bool, err error) {
	found, err := s.getAll(ctx, []string{key}, option)
	value, ok = found[key]
	return value, ok, err
}

// getAll does the work of [State.GetAll], without its limit: it returns the values of keys, from memory or else the store, and caches them. They are
// shared with the cache, and must not be changed. Reading from the store passes the pending write to the committer.
func (s *State) getAll(ctx context.Context, keys []string, option Option) (map[string][]byte, error) {
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return nil, err
		}
	}
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	o := s.object
	found := make(map[string][]byte, len(keys))
	var missing []string
	for _, key := range keys {
		switch value, ok, known := s.lookupMemory(key); {
		case !known:
			missing = append(missing, key)
		case ok:
			found[key] = value
		}
	}
	if missing == nil {
		o.mu.Unlock()
		return found, nil
	}
	err := s.read(option, func(r kvstore.Reader) error {
		for _, key := range missing {
			value, ok, err := o.readStored(r, key)
			if err != nil {
				return err
			}
			if ok {
				found[key] = value
			}
		}
		return nil
	}, func() {
		for _, key := range missing {
			value, ok := found[key]
			o.cache.put(key, value, ok)
		}
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// lookupMemory returns the value of a key if it is in memory: in the transaction, among the changes that are not durable, or in the cache. known
// reports whether it is, ok whether the key has a value. The caller holds the object's mu.
func (s *State) lookupMemory(key string) (value []byte, ok, known bool) {
	if s.tx != nil {
		if c := s.tx.changes[key]; c != nil {
			return c.value, !c.deleted, true
		}
	}
	if c := s.object.dirty[key]; c != nil {
		return c.value, !c.deleted, true
	}
	return s.object.cache.get(key)
}

// readStored returns the value of a key of the object in the store; the bool is false if none exists.
func (o *object) readStored(r kvstore.Reader, key string) ([]byte, bool, error) {
	value, err := r.Get(kvstore.Durable, append(valuePrefix(o.class.name, o.name), key...))
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, false, nil
	}
	return value, err == nil, err
}

// read passes the pending write to the committer, and calls f with a snapshot of the store. Then it calls keep, which caches what f has read, unless
// NoCache is given, f failed or something was written meanwhile. With AllowConcurrency other events get the turn while f runs, but not in a
// transaction or a block. If the object is stopped, read returns that error. The caller holds the object's mu, which read unlocks.
func (s *State) read(option Option, f func(kvstore.Reader) error, keep func()) error {
	o := s.object
	o.commitPending()
	before := o.changes
	// The caller has read the pending changes under the same lock, so they and the snapshot are the object at one
	// moment.
	snapshot := o.class.runtime.store.Snapshot()
	err := func() error {
		if option&AllowConcurrency != 0 && !s.blocking && s.tx == nil {
			defer s.yieldTurn()()
		} else {
			o.mu.Unlock()
		}
		defer snapshot.Close()
		if o.class.runtime.reading != nil {
			o.class.runtime.reading(o.name)
		}
		return f(snapshot)
	}()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed != nil {
		return o.failed
	}
	if err == nil && option&NoCache == 0 && o.changes == before {
		keep()
	}
	return err
}

// Put sets the value of a key, of up to [MaxValueBytes] bytes, to a copy of value. Events see it at once, in a transaction when that has ended. It
// does not wait for the disk; it waits, up to the end of ctx, only for a transaction of another task. If the key, the value or the atomic write that
// it belongs to would be too large ([MaxWriteBytes]), the error is [ErrTooLarge] and nothing changes.
func (s *State) Put(ctx context.Context, key string, value []byte, options ...Option) error {
	if err := errors.Join(checkKey(key), checkValue(key, value)); err != nil {
		return err
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.object.mu.Unlock()
	return s.write(change{key: key, value: append([]byte{}, value...)}, joinOptions(options))
}

// Delete removes a key and its value, if they exist. Events see that at once, in a transaction when that has ended. It does not wait for the disk.
func (s *State) Delete(ctx context.Context, key string, options ...Option) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.object.mu.Unlock()
	return s.write(change{key: key, deleted: true}, joinOptions(options))
}

// DeleteAll removes every key and the alarm of the object, so that nothing of it stays in the store, in one atomic write with the writes before and
// after. It reads all of the object's values from the store, and does not wait for the deletion to be durable. After an error nothing is changed.
func (s *State) DeleteAll(ctx context.Context, options ...Option) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.object.mu.Unlock()
	entries, err := s.merge(s.object.class.runtime.store, ListOptions{}, s.changesInOrder(ListOptions{}))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.write(change{key: e.Key, deleted: true}, joinOptions(options)); err != nil {
			return err
		}
	}
	s.setAlarm(nil)
	return nil
}

// write applies a change of a value, within the transaction if there is one. If that would be too large, the error is [ErrTooLarge]. The caller holds
// the object's mu.
func (s *State) write(c change, option Option) error {
	c.noCache = option&NoCache != 0
	c.confirm = option&AllowUnconfirmed == 0
	if s.tx != nil {
		return s.tx.add(c)
	}
	return s.object.addChange(c)
}

// Sync waits until every write of the object is durable, those with [AllowUnconfirmed] too, but not those of a transaction that is open. It keeps the
// turn. If ctx ends first, it returns the cause, and the writes go on. If a write has failed, the error is [ErrReset].
func (s *State) Sync(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	o := s.object
	o.commitPending()
	last := o.last
	o.mu.Unlock()
	return last.wait(ctx)
}

// GetJSON returns the value of a key that [PutJSON] stored, decoded; the bool is false if none exists. Malformed JSON, or JSON that does not fit T,
// is [kvstore.ErrCorrupt]. If the value is not in memory, reading it ends the atomic write of the changes before it, as that of [State.Get] does.
func GetJSON[T any](ctx context.Context, s *State, key string, options ...Option) (T, bool, error) {
	var v T
	data, ok, err := s.get(ctx, key, joinOptions(options))
	if err != nil || !ok {
		return v, false, err
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, false, fmt.Errorf("%w: the value of %q: %w", kvstore.ErrCorrupt, key, err)
	}
	return v, true, nil
}

// PutJSON sets the value of a key to v in JSON, as [State.Put] does. If v cannot be encoded, it returns an error and changes nothing.
func PutJSON[T any](ctx context.Context, s *State, key string, v T, options ...Option) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("the value of %q: %w", key, err)
	}
	return s.Put(ctx, key, data, options...)
}

// A transaction gathers changes that happen together or not at all.
type transaction struct {
	strand  *strand
	changes map[string]*change
	bytes   int
	alarmed bool
	alarm   *alarm
	done    chan struct{} // closed when it is over
}

// Transaction runs f, whose writes take effect together when it returns nil. With an error none of them does, and the error is returned; with a panic
// none does, and the panic goes on. They are one atomic write, whatever is read between them, and do not wait for the disk. Tasks that run beside it
// wait when they use the storage.
//
// f has to use the State that it receives. It cannot call out, begin tasks or block, and not open another transaction. It must not wait for tasks
// either, because they may wait for its end.
func (s *State) Transaction(ctx context.Context, f func(context.Context, *State) error) error {
	if err := s.lock(ctx); err != nil {
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
		return errorOfStopped(o.failed, err)
	case err != nil:
		return err
	}
	return o.applyTransaction(tx)
}

// end closes the transaction, without applying its changes, and wakes the tasks that wait for that. The caller holds o.mu.
func (tx *transaction) end(o *object) {
	o.tx = nil
	close(tx.done)
}

// add adds a change of a value to the transaction. If that would be too large, the error is [ErrTooLarge]. The caller holds the object's mu.
func (tx *transaction) add(c change) error {
	size := c.size()
	if old := tx.changes[c.key]; old != nil {
		size -= old.size()
	}
	if err := checkWriteSize(tx.bytes, size, c.deleted); err != nil {
		return err
	}
	tx.bytes += size
	tx.changes[c.key] = &c
	return nil
}

// applyTransaction applies the changes of a transaction that has succeeded to the object, in one pending write. If the present pending write
// has no room for them, it first passes that one to the committer. The caller holds o.mu.
func (o *object) applyTransaction(tx *transaction) error {
	if o.pending != nil && o.pending.bytes > 0 && o.pending.bytes+tx.bytes > MaxWriteBytes {
		o.commitPending()
	}
	for _, deletes := range []bool{false, true} { // deletions always fit, so that no change fails after others were applied
		for _, c := range tx.changes {
			if c.deleted != deletes {
				continue
			}
			if err := o.addChange(*c); err != nil {
				return err
			}
		}
	}
	if tx.alarmed {
		o.setAlarm(tx.alarm)
	}
	return nil
}
