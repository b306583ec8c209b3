package kvstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A Delta describes a stored [coding.DCZ] encoding of a content, which only a client that has the dictionary can decode.
type Delta struct {
	Dictionary Hash  // of the identity bytes of another content, which is stored
	Length     int64 // bytes, encoded
	Sum        Hash  // SHA-256 of the encoded bytes
}

// MaxDeltas is how many deltas a content may have.
const MaxDeltas = 3

// ErrFull is returned where a content has [MaxDeltas] already.
var ErrFull = errors.New("the content has as many deltas as it may have")

// Deltas returns the deltas of a content in the order in which they were stored; nil if there are none.
func (s *Store) Deltas(h Hash) ([]Delta, error) {
	row, err := s.get(s.db, Deltas, deltasKey(h))
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	deltas, err := decodeDeltas(row)
	if err != nil {
		return nil, fmt.Errorf("%w: deltas of content %s: %w", ErrCorrupt, h, err)
	}
	return deltas, nil
}

// PutDelta stores a delta of a content against a dictionary, from which it must decode to the content. It does nothing if that pair has a delta
// that is not larger. It returns [ErrNotFound] if the store does not have both contents (any more), and [ErrFull] if the content has
// too many. Like [Store.PutContent] it does not wait for the disk.
func (s *Store) PutDelta(h, dictionary Hash, delta []byte) error {
	sum := Sum(delta)
	s.contents.Lock()
	defer s.contents.Unlock()
	for _, needed := range []Hash{h, dictionary} {
		if _, err := s.Content(needed); err != nil {
			return err
		}
	}
	deltas, err := s.Deltas(h)
	if err != nil {
		return err
	}
	var stale int64
	next := Delta{Dictionary: dictionary, Length: int64(len(delta)), Sum: sum}
	switch i := slices.IndexFunc(deltas, func(d Delta) bool { return d.Dictionary == dictionary }); {
	case i >= 0 && deltas[i].Length <= next.Length:
		return nil
	case i >= 0:
		stale = deltas[i].Length
		deltas[i] = next
	case len(deltas) == MaxDeltas:
		return fmt.Errorf("content %s: %w: %d", h, ErrFull, MaxDeltas)
	default:
		deltas = append(deltas, next)
	}
	b := database(s).NewBatchWithSize(len(delta) + 1<<10)
	err = errors.Join(
		b.Set(Blobs.physical(deltaBlobKey(h, dictionary)), delta, nil),
		b.Set(Deltas.physical(deltasKey(h)), encodeDeltas(deltas), nil),
		b.Set(Deltas.physical(dependentKey(dictionary, h)), nil, nil))
	if err != nil {
		return errors.Join(fmt.Errorf("content %s: %w", h, err), b.Close())
	}
	return s.writeReplacing(b, stale, pebble.NoSync)
}

// ReadDelta returns the bytes of the delta of a content that has the checksum sum. It returns [ErrNotFound] if that is not stored (any more), and
// [ErrCorrupt] if it is damaged; then it deletes the delta.
func (s *Store) ReadDelta(h, sum Hash) ([]byte, error) {
	deltas, err := s.Deltas(h)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(deltas, func(d Delta) bool { return d.Sum == sum })
	if i < 0 {
		return nil, fmt.Errorf("content %s as a delta with the checksum %s: %w", h, sum, ErrNotFound)
	}
	delta, err := s.get(s.db, Blobs, deltaBlobKey(h, deltas[i].Dictionary))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if err == nil && int64(len(delta)) == deltas[i].Length && Sum(delta) == sum {
		return delta, nil
	}
	if now, e := s.Deltas(h); e == nil && !slices.Contains(now, deltas[i]) {
		return nil, fmt.Errorf("content %s as a delta with the checksum %s: %w", h, sum, ErrNotFound) // replaced or deleted between the reads
	}
	if !s.opts.ReadOnly {
		_ = s.DeleteDelta(h, deltas[i].Dictionary) // clients get another encoding
	}
	return nil, fmt.Errorf("%w: content %s: its delta against %s does not have the checksum with which it was stored", ErrCorrupt, h, deltas[i].Dictionary)
}

// DeleteDelta deletes the delta of a content against a dictionary, if it is stored.
func (s *Store) DeleteDelta(h, dictionary Hash) error {
	s.contents.Lock()
	defer s.contents.Unlock()
	b := database(s).NewBatch()
	stale, err := s.deleteDelta(b, deltaEdits{}, h, dictionary)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	return s.writeReplacing(b, stale, pebble.NoSync)
}

// deltaEdits are the lists of deltas as a batch, which is not committed yet, changes them.
type deltaEdits map[Hash][]Delta

// read returns the deltas of a content as the batch leaves them; none if their row is malformed, because the batch replaces it.
func (e deltaEdits) read(s *Store, h Hash) ([]Delta, error) {
	if edited, ok := e[h]; ok {
		return edited, nil
	}
	deltas, err := s.Deltas(h)
	if errors.Is(err, ErrCorrupt) {
		return nil, nil
	}
	return deltas, err
}

// write adds the row that lists the deltas of a content to a batch.
func (e deltaEdits) write(to handle, h Hash, deltas []Delta) error {
	b := to.(*pebble.Batch)
	e[h] = deltas
	if len(deltas) == 0 {
		return b.Delete(Deltas.physical(deltasKey(h)), nil)
	}
	return b.Set(Deltas.physical(deltasKey(h)), encodeDeltas(deltas), nil)
}

// deleteDelta adds the removal of one delta to a batch, and returns its length. The caller holds s.contents.
func (s *Store) deleteDelta(from handle, e deltaEdits, h, dictionary Hash) (stale int64, err error) {
	b := from.(*pebble.Batch)
	deltas, err := e.read(s, h)
	if err != nil {
		return 0, err
	}
	var rest []Delta
	for _, d := range deltas {
		if d.Dictionary == dictionary {
			stale += d.Length
		} else {
			rest = append(rest, d)
		}
	}
	return stale, errors.Join(e.write(b, h, rest), b.Delete(Blobs.physical(deltaBlobKey(h, dictionary)), nil), b.Delete(Deltas.physical(dependentKey(dictionary, h)), nil))
}

// deleteDeltas adds to a batch the removal of all deltas of a content, and of those that need it as their dictionary. It returns their bytes. The
// caller holds s.contents.
func (s *Store) deleteDeltas(b handle, e deltaEdits, h Hash) (stale int64, err error) {
	deltas, err := e.read(s, h)
	if err != nil {
		return 0, err
	}
	pairs := make([][2]Hash, 0, len(deltas))
	for _, d := range deltas {
		pairs = append(pairs, [2]Hash{h, d.Dictionary})
	}
	for item, err := range s.Scan(Deltas, Range{Prefix: dependentPrefix(h)}) {
		if errors.Is(err, ErrCorrupt) {
			break // a delta without its dictionary is of no use and does no harm; an erasure must not wait for it
		}
		if err != nil {
			return 0, err
		}
		if len(item.Key) == 1+2*len(h) {
			pairs = append(pairs, [2]Hash{Hash(item.Key[1+len(h):]), h})
		}
	}
	for _, pair := range pairs {
		bytes, err := s.deleteDelta(b, e, pair[0], pair[1])
		if err != nil {
			return 0, err
		}
		stale += bytes
	}
	blobs := blobKey(h, coding.DCZ)
	for item, err := range s.Scan(Blobs, Range{Prefix: blobs}) { // also those that a damaged row does not list
		if err != nil {
			return 0, err
		}
		if len(item.Key) == len(blobs)+len(h) {
			if err := b.(*pebble.Batch).Delete(Blobs.physical(item.Key), nil); err != nil {
				return 0, err
			}
		}
	}
	return stale, e.write(b, h, nil)
}

// DeltasByContent calls fn with each content that has deltas, until fn returns an error. A row that cannot be read is an error of its content.
func (s *Store) DeltasByContent(fn func(h Hash, deltas []Delta, err error) error) error {
	for item, err := range s.Scan(Deltas, Range{Prefix: []byte{ofContent}}) {
		if err != nil {
			return err
		}
		var h Hash
		if len(item.Key) != 1+len(h) {
			return fmt.Errorf("%w: a key of deltas has %d bytes", ErrCorrupt, len(item.Key))
		}
		copy(h[:], item.Key[1:])
		deltas, err := decodeDeltas(item.Value)
		if err := fn(h, deltas, err); err != nil {
			return err
		}
	}
	return nil
}

// Keys of [Deltas] begin with one of these bytes.
const (
	ofContent = 'c' // hash: a list of deltas
	dependent = 'd' // dictionary, hash: nothing; the content has a delta against the dictionary
)

// deltasKey returns the key of the row that lists the deltas of a content.
func deltasKey(h Hash) []byte { return append([]byte{ofContent}, h[:]...) }

// dependentPrefix returns the prefix of the rows that name the contents with deltas against a dictionary.
func dependentPrefix(dictionary Hash) []byte { return append([]byte{dependent}, dictionary[:]...) }

// dependentKey returns the key of the row that says that a content has a delta against a dictionary.
func dependentKey(dictionary, h Hash) []byte { return append(dependentPrefix(dictionary), h[:]...) }

// deltaBlobKey returns the key of the row with the bytes of a delta.
func deltaBlobKey(h, dictionary Hash) []byte { return append(blobKey(h, coding.DCZ), dictionary[:]...) }

// A row that lists deltas is a format (1 byte), and for each of them the dictionary (32 bytes), the length (uvarint) and the sum (32 bytes).
const deltasFormat = 1

// encodeDeltas returns the row that lists deltas.
func encodeDeltas(deltas []Delta) []byte {
	row := []byte{deltasFormat}
	for _, d := range deltas {
		row = binary.AppendUvarint(append(row, d.Dictionary[:]...), uint64(d.Length))
		row = append(row, d.Sum[:]...)
	}
	return row
}

// decodeDeltas accepts what encodeDeltas writes and nothing else.
func decodeDeltas(row []byte) (deltas []Delta, err error) {
	if len(row) == 0 || row[0] != deltasFormat {
		return nil, errRow
	}
	d := rowDecoder{row: row[1:]}
	for len(d.row) > 0 && !d.failed {
		deltas = append(deltas, Delta{Dictionary: d.hash(), Length: d.length(), Sum: d.hash()})
	}
	if d.failed || len(deltas) == 0 || len(deltas) > MaxDeltas || !bytes.Equal(encodeDeltas(deltas), row) {
		return nil, errRow
	}
	return deltas, nil
}
