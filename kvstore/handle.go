package kvstore

import (
	"io"

	"github.com/cockroachdb/pebble/v2"
)

// A handle is a value of Pebble's, whose type the exported types and the signatures of their methods do not mention. Otherwise
// each package that mentions a [Store] would compile all of Pebble's generic code once more: about 900 functions, 1.5 s of
// processor time. TestImportersCompileNoGenericLibrary has the bound.
type handle = io.Closer

// pebbleOf returns the database that the store has open.
func pebbleOf(s *Store) *pebble.DB { return s.db.(*pebble.DB) }

// pebbleBatch returns Pebble's batch with the changes that b gathers.
func pebbleBatch(b *Batch) *pebble.Batch { return b.batch.(*pebble.Batch) }

// An iterator is the part of Pebble's that a scan uses.
type iterator interface {
	// First and Last move to the first or last key; Next and Prev to the one after or before. They return false if none exists, or after an error.
	First() bool
	Last() bool
	Next() bool
	Prev() bool
	// Key and ValueAndErr return the present row; both are valid until the next move.
	Key() []byte
	ValueAndErr() ([]byte, error)
	// Error returns the first error of a move; Close releases the iterator.
	Error() error
	Close() error
}

// openIterator returns an iterator over the keys of from, a *pebble.DB or *pebble.Snapshot, from lower, included, to upper, excluded; both begin with
// the namespace, and a nil upper is the end of the database. The caller closes the iterator. It is not inlined, because other packages compile the
// iterators that call it.
//
//go:noinline
func openIterator(from handle, lower, upper []byte) (iterator, error) {
	return from.(pebble.Reader).NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
}
