package kvstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

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

// ErrBadDelta is returned for a delta that does not decode to its content.
var ErrBadDelta = errors.New("it is not a delta of the content")

// Deltas returns the deltas of a content that are stored, in the order in which they were first stored; nil without an error if there are none or the
// content is unknown.
func (s *Store) Deltas(h Hash) ([]Delta, error) { return ReadDeltas(s, h) }

// ReadDeltas is [Store.Deltas] for any reader of a store's rows, such as a snapshot.
func ReadDeltas(from Getter, h Hash) ([]Delta, error) {
	row, err := from.Get(Deltas, deltasKey(h))
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

// PutDelta stores a delta of the content h from an untrusted source. It decodes the delta with the dictionary that its header names, and returns
// [ErrBadDelta] if the result is not the content. It returns false and stores nothing if the store does not have both contents (any more), if the
// delta saves less than half of the content's smallest encoding, or if the content has a delta against the dictionary that is not larger, or
// [MaxDeltas] others. Like [Store.PutContent] it does not wait for the disk.
func (s *Store) PutDelta(h Hash, delta []byte) (stored bool, err error) {
	content, err := s.Content(h)
	if err != nil || !coding.DeltaWorthwhile(content.Representations[0].Length, int64(len(delta))) {
		return false, ignoreMissing(err)
	}
	dictionary, err := s.verifyDelta(h, delta)
	if err != nil {
		return false, ignoreMissing(err)
	}
	s.contents.Lock()
	defer s.contents.Unlock()
	for _, needed := range []Hash{h, dictionary} { // they may have been removed meanwhile
		if _, err := s.Content(needed); err != nil {
			return false, ignoreMissing(err)
		}
	}
	deltas, err := s.Deltas(h)
	if err != nil {
		return false, err
	}
	var stale int64
	next := Delta{Dictionary: dictionary, Length: int64(len(delta)), Sum: Sum(delta)}
	switch i := slices.IndexFunc(deltas, func(d Delta) bool { return d.Dictionary == dictionary }); {
	case i >= 0 && deltas[i].Length <= next.Length:
		return false, nil
	case i >= 0:
		stale = deltas[i].Length
		deltas[i] = next
	case len(deltas) == MaxDeltas:
		return false, nil
	default:
		deltas = append(deltas, next)
	}
	b := pebbleOf(s).NewBatchWithSize(len(delta) + 1<<10)
	err = errors.Join(
		b.Set(Blobs.physical(deltaBlobKey(h, dictionary)), delta, nil),
		b.Set(Deltas.physical(deltasKey(h)), encodeDeltas(deltas), nil),
		b.Set(Deltas.physical(dependentKey(dictionary, h)), nil, nil))
	if err != nil {
		return false, errors.Join(fmt.Errorf("content %s: %w", h, err), b.Close())
	}
	return true, s.writeReplacing(b, stale, pebble.NoSync)
}

// ignoreMissing returns nil if err is [ErrNotFound], and else err.
func ignoreMissing(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// verifyDelta decodes a delta of the content h with the dictionary that its header names, and returns the dictionary's hash. The error is
// [ErrBadDelta] if the delta is malformed or the result is not the content, and [ErrNotFound] if the store lacks either content.
func (s *Store) verifyDelta(h Hash, delta []byte) (dictionary Hash, err error) {
	named, ok := coding.DeltaDictionary(delta)
	if !ok {
		return dictionary, fmt.Errorf("content %s: %w: it names no dictionary", h, ErrBadDelta)
	}
	dictionary = named
	var texts [2][]byte
	for i, needed := range []Hash{h, dictionary} {
		content, err := s.Content(needed)
		if err == nil && content.Size > coding.MaxDictionary {
			err = fmt.Errorf("content %s: %w: content %s has over %d bytes", h, ErrBadDelta, needed, coding.MaxDictionary)
		}
		if err == nil {
			texts[i], err = s.Identity(needed)
		}
		if err != nil {
			return dictionary, err
		}
	}
	decoded, err := coding.DecodeDelta(texts[1], delta, int64(len(texts[0])))
	if err == nil && !bytes.Equal(decoded, texts[0]) {
		err = errors.New("it decodes to other bytes")
	}
	if err != nil {
		return dictionary, fmt.Errorf("content %s: %w: with the dictionary %s: %v", h, ErrBadDelta, dictionary, err)
	}
	return dictionary, nil
}

// FindDelta returns the bytes of the delta of a content against a dictionary. It returns [ErrNotFound] if none is stored; other errors are those of
// [Store.ReadDelta].
func (s *Store) FindDelta(h, dictionary Hash) ([]byte, error) {
	deltas, err := s.Deltas(h)
	if err != nil {
		return nil, err
	}
	for _, d := range deltas {
		if d.Dictionary == dictionary {
			return s.ReadDelta(h, d.Sum)
		}
	}
	return nil, fmt.Errorf("content %s as a delta against %s: %w", h, dictionary, ErrNotFound)
}

// ReadDelta returns the bytes of the delta of the content h whose encoded bytes have the SHA-256 sum. It returns [ErrNotFound] if no such delta is
// stored (any more), and [ErrCorrupt] if it is damaged. In that case it also deletes the delta and queues it to be made again, unless the store is
// read-only.
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
		_ = s.RequeueDelta(h, deltas[i].Dictionary) // until then clients get another encoding
	}
	return nil, fmt.Errorf("%w: content %s: its delta against %s does not have the checksum with which it was stored", ErrCorrupt, h, deltas[i].Dictionary)
}

// RequeueDelta deletes the delta of the content h against a dictionary, if it is stored, and queues it to be made again or, on a mirror, fetched
// again.
func (s *Store) RequeueDelta(h, dictionary Hash) error {
	s.contents.Lock()
	defer s.contents.Unlock()
	b := pebbleOf(s).NewBatch()
	stale, err := s.deleteDelta(b, deltaEdits{}, h, dictionary)
	if err == nil {
		err = b.Set(Queue.physical(QueuedDeltaKey(time.Time{}, h, dictionary)), nil, nil)
	}
	if err != nil {
		return errors.Join(err, b.Close())
	}
	return s.writeReplacing(b, stale, pebble.NoSync)
}

// QueuedDeltas begins the keys in the Queue namespace of deltas to make or, on a mirror, to fetch.
var QueuedDeltas = []byte("d")

// QueuedDeltaKey returns the key in the Queue namespace of the row that queues the delta of a content against a dictionary. Rows with a newer release
// time sort first; the zero time is last.
func QueuedDeltaKey(released time.Time, h, dictionary Hash) []byte {
	key := binary.BigEndian.AppendUint64(slices.Clone(QueuedDeltas), ^uint64(max(0, released.Unix())))
	return slices.Concat(key, h[:], dictionary[:])
}

// ParseDeltaRow returns the content and the dictionary from a key in the namespace [Deltas], if it is that of the row that exists for each pair of
// dictionary and content with a delta. ok is false for other keys, such as that of a content's list of deltas.
func ParseDeltaRow(key []byte) (h, dictionary Hash, ok bool) {
	if len(key) != 1+2*len(h) || key[0] != dependent {
		return h, dictionary, false
	}
	return Hash(key[1+len(h):]), Hash(key[1:]), true
}

// ParseQueuedDeltaKey returns the content and the dictionary from a key made by [QueuedDeltaKey]. ok is false if the key does not have its length.
func ParseQueuedDeltaKey(key []byte) (h, dictionary Hash, ok bool) {
	const hashes = 1 + 8
	if len(key) != hashes+2*len(h) {
		return h, dictionary, false
	}
	return Hash(key[hashes:]), Hash(key[hashes+len(h):]), true
}

// deltaEdits are the lists of deltas as a batch, which is not committed yet, changes them.
type deltaEdits map[Hash][]Delta

// read returns the list of a content's deltas as the uncommitted batch leaves it, or as stored if the batch does not change it. It returns nil if the
// stored row is malformed, because the batch replaces it.
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

// write adds to a batch the row that lists the deltas of a content, or its deletion if the list is empty, and remembers the list for
// [deltaEdits.read].
func (e deltaEdits) write(batch handle, h Hash, deltas []Delta) error {
	b := batch.(*pebble.Batch)
	e[h] = deltas
	if len(deltas) == 0 {
		return b.Delete(Deltas.physical(deltasKey(h)), nil)
	}
	return b.Set(Deltas.physical(deltasKey(h)), encodeDeltas(deltas), nil)
}

// deleteDelta adds to a batch the deletion of the delta of h against a dictionary: its bytes, its row by dictionary, and its place in the content's
// list. It returns the bytes of the delta, 0 if the list does not have it. The caller holds s.contents.
func (s *Store) deleteDelta(batch handle, e deltaEdits, h, dictionary Hash) (stale int64, err error) {
	b := batch.(*pebble.Batch)
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

// deleteDeltas adds to a batch the deletion of all deltas of a content, and of all deltas of other contents that have it as their dictionary. It
// returns how many stored bytes that makes stale. The caller holds s.contents.
func (s *Store) deleteDeltas(batch handle, e deltaEdits, h Hash) (stale int64, err error) {
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
		if of, dictionary, ok := ParseDeltaRow(item.Key); ok {
			pairs = append(pairs, [2]Hash{of, dictionary})
		}
	}
	for _, pair := range pairs {
		bytes, err := s.deleteDelta(batch, e, pair[0], pair[1])
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
			if err := batch.(*pebble.Batch).Delete(Blobs.physical(item.Key), nil); err != nil {
				return 0, err
			}
		}
	}
	return stale, e.write(batch, h, nil)
}

// A DamagedDelta is a delta that is damaged, or whose content or dictionary is not stored; or a row in [Deltas] with a malformed key.
type DamagedDelta struct {
	Content, Dictionary Hash
	Key                 []byte // of the row; nil unless it is malformed
	Problem             error
}

// String returns what is wrong with the delta or the row, for messages that name the content or the key before.
func (d DamagedDelta) String() string {
	if d.Key != nil {
		return d.Problem.Error()
	}
	return fmt.Sprintf("its delta against %s: %v; clients get other encodings", d.Dictionary, d.Problem)
}

// RepairDelta repairs what [Store.DamagedDeltas] reported: it deletes the delta and queues it to be made or fetched again, or deletes a row with a
// malformed key.
func (s *Store) RepairDelta(d DamagedDelta) error {
	if d.Key == nil {
		return s.RequeueDelta(d.Content, d.Dictionary)
	}
	b := s.NewBatch()
	defer b.Close()
	b.Delete(Deltas, d.Key)
	return b.Commit()
}

// DamagedDeltas scans all deltas and calls fn with each damaged one; it stops at the first error, also one that fn returns. If deep is true, it also
// reads and decodes each delta and compares the result with the content. Deltas that are deleted during the scan are not reported.
func (s *Store) DamagedDeltas(ctx context.Context, deep bool, fn func(DamagedDelta) error) error {
	for item, err := range s.Scan(Deltas, Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if h, dictionary, ok := ParseDeltaRow(item.Key); ok {
			err = s.checkDelta(h, dictionary, deep)
			if _, gone := s.get(s.db, Deltas, dependentKey(dictionary, h)); err != nil && !errors.Is(gone, ErrNotFound) {
				err = fn(DamagedDelta{Content: h, Dictionary: dictionary, Problem: err})
			} else {
				err = nil // sound, or deleted meanwhile
			}
		} else if len(item.Key) == 1+len(h) && item.Key[0] == ofContent {
			err = s.checkDeltaList(Hash(item.Key[1:]), fn)
		} else {
			err = fn(DamagedDelta{Key: bytes.Clone(item.Key), Problem: fmt.Errorf("%w: the key of a delta is malformed", ErrCorrupt)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkDeltaList checks the row that lists the deltas of a content. It calls fn if the row is malformed, and with each delta in it that lacks the row
// by its dictionary. It returns read errors and those of fn.
func (s *Store) checkDeltaList(h Hash, fn func(DamagedDelta) error) error {
	deltas, err := s.Deltas(h)
	if errors.Is(err, ErrCorrupt) {
		return fn(DamagedDelta{Content: h, Problem: err})
	}
	if err != nil {
		return err
	}
	for _, d := range deltas {
		_, err := s.get(s.db, Deltas, dependentKey(d.Dictionary, h))
		if now, e := s.Deltas(h); errors.Is(err, ErrNotFound) && e == nil && slices.Contains(now, d) {
			err = fn(DamagedDelta{Content: h, Dictionary: d.Dictionary, Problem: fmt.Errorf("%w: the row of its dictionary is missing", ErrCorrupt)})
		}
		if ignoreMissing(err) != nil {
			return err
		}
	}
	return nil
}

// checkDelta returns nil if the delta of a content against a dictionary is sound: both contents are stored, and the content's list has the delta. If
// deep is true, it also reads the delta, checks its checksum and decodes it. Otherwise the error says what is wrong.
func (s *Store) checkDelta(h, dictionary Hash, deep bool) error {
	for _, needed := range []Hash{h, dictionary} {
		if _, err := s.Content(needed); err != nil {
			return err
		}
	}
	deltas, err := s.Deltas(h)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(deltas, func(d Delta) bool { return d.Dictionary == dictionary })
	if i < 0 {
		return fmt.Errorf("%w: the row of the content's deltas does not list it", ErrCorrupt)
	}
	if !deep {
		return nil
	}
	delta, err := s.get(s.db, Blobs, deltaBlobKey(h, dictionary))
	if err == nil && Sum(delta) != deltas[i].Sum {
		err = fmt.Errorf("%w: it does not have the checksum with which it was stored", ErrCorrupt)
	}
	if err == nil {
		_, err = s.verifyDelta(h, delta)
	}
	return err
}

// Keys of [Deltas] begin with one of these bytes.
const (
	ofContent = 'c' // hash: a list of deltas
	dependent = 'd' // dictionary, hash: nothing; the content has a delta against the dictionary
)

// deltasKey returns the key in [Deltas] of the row that lists the deltas of the content h.
func deltasKey(h Hash) []byte { return append([]byte{ofContent}, h[:]...) }

// dependentPrefix returns the prefix of the keys in [Deltas] of the rows that name the contents with deltas against a dictionary.
func dependentPrefix(dictionary Hash) []byte { return append([]byte{dependent}, dictionary[:]...) }

// dependentKey returns the key in [Deltas] of the row that says that the content h has a delta against a dictionary.
func dependentKey(dictionary, h Hash) []byte { return append(dependentPrefix(dictionary), h[:]...) }

// deltaBlobKey returns the key in [Blobs] of the row with the bytes of the delta of h against a dictionary.
func deltaBlobKey(h, dictionary Hash) []byte { return append(blobKey(h, coding.DCZ), dictionary[:]...) }

// A row that lists deltas is a format (1 byte), and for each of them the dictionary (32 bytes), the length (uvarint) and the sum (32 bytes).
const deltasFormat = 1

// encodeDeltas returns the value of the row that lists a content's deltas.
func encodeDeltas(deltas []Delta) []byte {
	row := []byte{deltasFormat}
	for _, d := range deltas {
		row = binary.AppendUvarint(append(row, d.Dictionary[:]...), uint64(d.Length))
		row = append(row, d.Sum[:]...)
	}
	return row
}

// decodeDeltas parses the value of a row that lists a content's deltas. It returns errRow for anything that encodeDeltas does not write.
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
