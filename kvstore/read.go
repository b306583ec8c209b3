package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// Reader reads rows. [Store] reads the present rows, [Snapshot] those of the time when it
// was taken.
type Reader interface {
	Getter
	// Scan yields the rows of r in the order of the bytes of their keys. An error is
	// the last thing it yields, with a zero Item.
	Scan(ns Namespace, r Range) iter.Seq2[Item, error]
}

// Getter reads single rows.
type Getter interface {
	// Get returns a copy of the value under key, or [ErrNotFound].
	Get(ns Namespace, key []byte) ([]byte, error)
}

// Range selects rows of one namespace. The zero value selects all of them;
// each bound narrows the others. From and To are whole keys, so they begin with
// Prefix if there is one. A nil bound is none.
type Range struct {
	Prefix  []byte // only keys that begin with it
	From    []byte // the first key, included
	To      []byte // the end, excluded
	Reverse bool   // last key first; the bounds stay
}

// Item is one row. Key has no namespace. Both slices are valid until the next
// step of the scan only.
type Item struct {
	Key, Value []byte
}

// bounds returns the keys between which the range lies in Pebble, with the namespace in front: lower is included, upper is not, and a nil upper is
// the end of the database.
func (r Range) bounds(ns Namespace) (lower, upper []byte) {
	lower = ns.physical(r.Prefix)
	upper = prefixSuccessor(lower)
	if from := ns.physical(r.From); r.From != nil && bytes.Compare(from, lower) > 0 {
		lower = from
	}
	if to := ns.physical(r.To); r.To != nil && (upper == nil || bytes.Compare(to, upper) < 0) {
		upper = to
	}
	return lower, upper
}

// Snapshot is the store as it was at one moment. It keeps what is replaced
// meanwhile from being reclaimed, so close it soon.
type Snapshot struct {
	store *Store
	snap  handle // a *pebble.Snapshot
}

// Snapshot returns an unchanging view of all rows as they are now. The caller closes it soon, because it keeps replaced rows on the disk. If the
// store is closed, reading the snapshot returns an error.
func (s *Store) Snapshot() *Snapshot {
	if !s.users.enter() {
		return &Snapshot{store: s} // reading it returns closedError
	}
	defer s.users.leave()
	return &Snapshot{store: s, snap: pebbleOf(s).NewSnapshot()}
}

// Close releases the snapshot. It always returns nil, and does nothing if the store is closed. It must be called once only.
func (s *Snapshot) Close() error {
	if !s.store.users.enter() {
		return nil
	}
	defer s.store.users.leave()
	_ = s.store.guard.do(s.snap.Close) // it may wait for the manifest; what was read is right all the same
	return nil
}

// Get implements [Getter]: it returns a copy of the value at the time of the snapshot, or [ErrNotFound].
func (s *Snapshot) Get(ns Namespace, key []byte) ([]byte, error) {
	return s.store.get(s.snap, ns, key)
}

// Scan implements [Reader]: it yields the rows of r as they were at the time of the snapshot. An error is the last thing it yields. [Store.Close]
// waits for the end of the loop.
func (s *Snapshot) Scan(ns Namespace, r Range) iter.Seq2[Item, error] {
	return s.store.scan(s.snap, ns, r)
}

// Get implements [Getter]: it returns a copy of the present value, or [ErrNotFound].
func (s *Store) Get(ns Namespace, key []byte) ([]byte, error) {
	return s.get(s.db, ns, key)
}

// Scan implements [Reader]: it yields the rows of r as they were when the loop began. An error is the last thing it yields. [Store.Close] waits for
// the end of the loop.
func (s *Store) Scan(ns Namespace, r Range) iter.Seq2[Item, error] {
	return s.scan(s.db, ns, r)
}

// get returns a copy of a value from a database or snapshot, or [ErrNotFound]. Damage is [ErrCorrupt]. If the store is closed, the error has no
// sentinel.
func (s *Store) get(from handle, ns Namespace, key []byte) ([]byte, error) {
	if !s.users.enter() {
		return nil, s.closedError()
	}
	defer s.users.leave()
	value, closer, err := from.(pebble.Reader).Get(ns.physical(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, s.readError(err, ns, key)
	}
	// A value in a blob file is fetched as Get returns, which has no error for
	// that: what went wrong then comes with Close, and value is worth nothing.
	value = bytes.Clone(value)
	if err := closer.Close(); err != nil {
		return nil, s.readError(err, ns, key)
	}
	return value, nil
}

// scan yields the rows of a range in the order of their keys, or in reverse, from a database or snapshot. Keys come without the namespace, and a row
// is valid until the next step. An error, also that the store is closed, is the last thing it yields.
func (s *Store) scan(from handle, ns Namespace, r Range) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		lower, upper := r.bounds(ns)
		if upper != nil && bytes.Compare(lower, upper) >= 0 {
			return
		}
		if !s.users.enter() {
			yield(Item{}, s.closedError())
			return
		}
		defer s.users.leave()
		it, err := openIterator(from, lower, upper)
		if err != nil {
			yield(Item{}, s.readError(err, ns, r.Prefix))
			return
		}
		defer it.Close()
		first, next := it.First, it.Next
		if r.Reverse {
			first, next = it.Last, it.Prev
		}
		for ok := first(); ok; ok = next() {
			value, err := it.ValueAndErr()
			if err != nil {
				yield(Item{}, s.readError(err, ns, it.Key()[1:]))
				return
			}
			if !yield(Item{Key: it.Key()[1:], Value: value}, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(Item{}, s.readError(err, ns, r.Prefix))
		}
	}
}

// readError wraps the error of a failed read with the folder of the store and the key, for contents the hash. It marks damage as [ErrCorrupt].
func (s *Store) readError(err error, ns Namespace, key []byte) error {
	at := fmt.Sprintf("%q", key)
	if ns == Blobs || ns == Contents {
		at = fmt.Sprintf("content %x", key[:min(len(key), len(Hash{}))])
	}
	if pebble.IsCorruptionError(err) || errors.Is(err, errBlobFile) {
		return fmt.Errorf("%w: reading %s from %s: %w", ErrCorrupt, at, s.dir, stripTrace(err))
	}
	return fmt.Errorf("couldn't read %s from %s: %w", at, s.dir, err)
}

// Namespace is the first byte of every key. It says who owns a row.
type Namespace byte

// The namespaces. They are part of the format on disk: a letter is never
// given a second meaning.
const (
	Absent     Namespace = 'a' // package, version: a release of which the contents are elsewhere
	Blobs      Namespace = 'b' // hash, coding, dictionary of a delta: the coded bytes; written by this package only
	Contents   Namespace = 'c' // hash: which codings there are; written by this package only
	Deltas     Namespace = 'e' // hash of a content or a dictionary: which deltas there are; written by this package only
	Durable    Namespace = 'd' // durable objects: class, name, and the times of their alarms
	Files      Namespace = 'f' // package, version, path
	LogHashes  Namespace = 'h' // Merkle tree hashes by index
	LogIndex   Namespace = 'i' // where the log's entries about something are
	LogLive    Namespace = 'j' // nodes of the map of live releases
	LogState   Namespace = 'k' // size and checkpoint of the log
	LogEntries Namespace = 'l' // log entries by index
	Meta       Namespace = 'm' // the store's own format version, and settings
	Named      Namespace = 'n' // hash, live or not, release: what names a content
	Packages   Namespace = 'p' // package
	Queue      Namespace = 'q' // work that survives a restart
	Renderings Namespace = 'r' // what pages show of documents: a cache of this store only
	SRIs       Namespace = 's' // package, version, path
	States     Namespace = 't' // package, version: what was tried, how it ended
	Upstreams  Namespace = 'u' // the last responses of upstreams
	Versions   Namespace = 'v' // package, version
	Usage      Namespace = 'w' // requests for releases, by month
)

// Key returns the parts joined with zero bytes as a key, so that a key with more parts sorts right after its parent. No part may have a zero byte.
func Key(parts ...string) []byte {
	return []byte(strings.Join(parts, "\x00"))
}

// Prefix returns the prefix of the keys that begin with the given parts and have at least one more: Prefix("jquery") covers Key("jquery", "3.7.1")
// and not Key("jquery-ui", "1").
func Prefix(parts ...string) []byte {
	return append(Key(parts...), 0)
}

// physical returns the key as Pebble has it: with the namespace in front.
func (ns Namespace) physical(key []byte) []byte {
	k := make([]byte, 0, 1+len(key))
	k = append(k, byte(ns))
	return append(k, key...)
}

// prefixSuccessor returns the smallest key greater than every key that begins with
// prefix, or nil if no such key exists.
func prefixSuccessor(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			next := append([]byte(nil), prefix[:i+1]...)
			next[i]++
			return next
		}
	}
	return nil
}
