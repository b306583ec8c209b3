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

// Deltas returns the deltas of a content that are stored, in the order of their dictionaries' hashes; nil without an error if there are none or the
// content is unknown.
func (s *Store) Deltas(h Hash) ([]Delta, error) { return ReadDeltas(s, h) }

// ReadDeltas returns the deltas of a content that a store or a snapshot of it has, in the order of their dictionaries' hashes; nil without an error
// if there are none or the content is unknown. A malformed row is [ErrCorrupt].
func ReadDeltas(from Reader, h Hash) (deltas []Delta, err error) {
	for item, err := range from.Scan(Deltas, Range{Prefix: deltaPrefix(ofContent, h)}) {
		if err != nil {
			return nil, err
		}
		d, err := decodeDeltaRow(item.Key, item.Value)
		if err != nil {
			return nil, fmt.Errorf("%w: deltas of content %s: %w", ErrCorrupt, h, err)
		}
		deltas = append(deltas, d)
	}
	return deltas, nil
}

// PutDelta stores a delta of the content h from an untrusted source. It decodes the delta with the dictionary that its header names, and returns
// [ErrBadDelta] if the result is not the content, or if either content has over [coding.MaxDictionary] bytes. Like [Store.PutContent] it does not
// wait for the disk.
//
// It stores nothing, and returns false without an error, if the store does not have both contents (any more), if the delta saves less than half of
// the content's smallest encoding, in which case it is not decoded, or if the content has a delta against the dictionary that is not larger, or
// [MaxDeltas] others. With an error, stored means nothing.
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
	case i >= 0 && deltas[i].Length <= next.Length, i < 0 && len(deltas) == MaxDeltas:
		return false, nil
	case i >= 0:
		stale = deltas[i].Length
	}
	b := s.newSizedBatch(len(delta))
	b.Set(Blobs, deltaBlobKey(h, dictionary), delta)
	b.Set(Deltas, deltaKey(ofContent, h, dictionary), encodeDeltaRow(next))
	b.Set(Deltas, deltaKey(ofDictionary, dictionary, h), nil)
	if err := s.writeReplacing(b, stale, pebble.NoSync); err != nil {
		return false, err
	}
	s.deltas.Add(1)
	return true, nil
}

// StoredDeltas returns how many deltas have been stored since the store was opened. As long as it stays the same, no content has more deltas than before.
func (s *Store) StoredDeltas() uint64 { return s.deltas.Load() }

// ignoreMissing returns nil if err is [ErrNotFound], and else err.
func ignoreMissing(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// verifyDelta decodes a delta of the content h with the dictionary that its header names, and returns the dictionary's hash. The error is
// [ErrBadDelta] if the delta is malformed, the result is not the content, or either content has over [coding.MaxDictionary] bytes. It is
// [ErrNotFound] if the store lacks either content.
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

// FindDelta returns the bytes of the delta of a content against a dictionary. It returns [ErrNotFound] if none is stored, and [ErrCorrupt] if it is
// damaged. If its bytes are missing, damaged on the disk, or do not have the stored checksum, it also deletes the delta and queues it to be made
// again, unless the store is read-only; a damaged row stays.
func (s *Store) FindDelta(h, dictionary Hash) ([]byte, error) {
	d, err := s.deltaRow(h, dictionary)
	if err != nil {
		return nil, fmt.Errorf("content %s as a delta against %s: %w", h, dictionary, err)
	}
	return s.readDelta(h, d)
}

// ReadDelta returns the bytes of the delta of the content h whose encoded bytes have the SHA-256 sum. It returns [ErrNotFound] if no such delta is
// stored (any more), and [ErrCorrupt] if it, or the row of any delta of the content, is damaged. If its bytes are missing, damaged on the disk, or do
// not have that checksum, it also deletes the delta and queues it to be made again, unless the store is read-only.
func (s *Store) ReadDelta(h, sum Hash) ([]byte, error) {
	deltas, err := s.Deltas(h)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(deltas, func(d Delta) bool { return d.Sum == sum })
	if i < 0 {
		return nil, fmt.Errorf("content %s as a delta with the checksum %s: %w", h, sum, ErrNotFound)
	}
	return s.readDelta(h, deltas[i])
}

// readDelta returns the bytes of the delta of the content h that the row d describes, checked against d. It returns [ErrNotFound] if the delta was
// replaced or deleted since the row was read. Otherwise bytes that are missing, damaged on the disk, or do not match d are [ErrCorrupt]; then, unless
// the store is read-only, it deletes the delta and queues it to be made again, and ignores errors of that. Other errors of reading the bytes are
// returned as they are.
func (s *Store) readDelta(h Hash, d Delta) ([]byte, error) {
	delta, err := s.get(s.db, Blobs, deltaBlobKey(h, d.Dictionary))
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	if err == nil && int64(len(delta)) == d.Length && Sum(delta) == d.Sum {
		return delta, nil
	}
	if now, err := s.deltaRow(h, d.Dictionary); ignoreMissing(err) == nil && now != d {
		return nil, fmt.Errorf("content %s as a delta with the checksum %s: %w", h, d.Sum, ErrNotFound) // replaced or deleted between the reads
	}
	if !s.opts.ReadOnly {
		_ = s.RequeueDelta(h, d.Dictionary) // until then clients get another encoding
	}
	if errors.Is(err, ErrCorrupt) {
		return nil, fmt.Errorf("content %s: its delta against %s: %w", h, d.Dictionary, err)
	}
	return nil, fmt.Errorf("%w: content %s: its delta against %s does not have the checksum with which it was stored", ErrCorrupt, h, d.Dictionary)
}

// deltaRow returns what the row of the delta of the content h against a dictionary says about it. It returns [ErrNotFound] if the row is missing, and
// [ErrCorrupt] if it is malformed.
func (s *Store) deltaRow(h, dictionary Hash) (Delta, error) {
	key := deltaKey(ofContent, h, dictionary)
	row, err := s.get(s.db, Deltas, key)
	if err != nil {
		return Delta{}, err
	}
	d, err := decodeDeltaRow(key, row)
	if err != nil {
		return Delta{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return d, nil
}

// RequeueDelta deletes the delta of the content h against a dictionary, if it is stored, and queues it, last, to be made again or, on a mirror,
// fetched again. Both are one atomic write, for which it does not wait for the disk.
func (s *Store) RequeueDelta(h, dictionary Hash) error {
	s.contents.Lock()
	defer s.contents.Unlock()
	b := s.NewBatch()
	stale, err := s.deleteDelta(b, h, dictionary)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	b.Set(Queue, QueuedDeltaKey(time.Time{}, h, dictionary), nil)
	return s.writeReplacing(b, stale, pebble.NoSync)
}

// QueuedDeltas begins the keys in the Queue namespace of deltas to make or, on a mirror, to fetch.
var QueuedDeltas = []byte("d")

// QueuedDeltaKey returns the key in the Queue namespace of the row that queues the delta of a content against a dictionary. Rows with a newer release
// time, in seconds, sort first; the zero time and times before 1970 are last.
func QueuedDeltaKey(released time.Time, h, dictionary Hash) []byte {
	key := binary.BigEndian.AppendUint64(slices.Clone(QueuedDeltas), ^uint64(max(0, released.Unix())))
	return slices.Concat(key, h[:], dictionary[:])
}

// ParseDeltaRow returns the content and the dictionary from a key in the namespace [Deltas], if it is that of the row with the length and checksum of
// a delta. ok is false for other keys.
func ParseDeltaRow(key []byte) (h, dictionary Hash, ok bool) { return parseDeltaKey(key, ofContent) }

// ParseQueuedDeltaKey returns the content and the dictionary from a key made by [QueuedDeltaKey]. ok is false if the key does not have the length of
// such a key; its first byte is not checked.
func ParseQueuedDeltaKey(key []byte) (h, dictionary Hash, ok bool) {
	const hashes = 1 + 8
	if len(key) != hashes+2*len(h) {
		return h, dictionary, false
	}
	return Hash(key[hashes:]), Hash(key[hashes+len(h):]), true
}

// deleteDelta adds to a batch the deletion of the delta of h against a dictionary: its bytes and its two rows. It returns how many bytes the delta
// has, 0 if it is not stored or its row is malformed or damaged: an erasure must not wait for its repair. After an error the caller closes the batch.
// The caller holds s.contents.
func (s *Store) deleteDelta(b *Batch, h, dictionary Hash) (stale int64, err error) {
	d, err := s.deltaRow(h, dictionary)
	if ignoreMissing(err) != nil && !errors.Is(err, ErrCorrupt) {
		return 0, err
	}
	b.Delete(Deltas, deltaKey(ofContent, h, dictionary))
	b.Delete(Deltas, deltaKey(ofDictionary, dictionary, h))
	b.Delete(Blobs, deltaBlobKey(h, dictionary))
	return d.Length, nil
}

// deleteDeltas adds to a batch the deletion of all deltas of a content, and of all deltas of other contents that have it as their dictionary. It
// records in stale how many stored bytes each of them has, by content and dictionary. It also deletes the content's rows with malformed keys, and the
// bytes of its own deltas whose rows are lost. If damage ends the scan of the rows, it leaves the rest of them as they are, without an error. The
// caller holds s.contents.
func (s *Store) deleteDeltas(b *Batch, h Hash, stale map[[2]Hash]int64) error {
	for _, kind := range []byte{ofContent, ofDictionary} {
		for item, err := range s.Scan(Deltas, Range{Prefix: deltaPrefix(kind, h)}) {
			if errors.Is(err, ErrCorrupt) {
				break // an erasure must not wait: the bytes of its own deltas are deleted below, and the others are of no use and do no harm
			}
			if err != nil {
				return err
			}
			first, second, ok := parseDeltaKey(item.Key, kind)
			if !ok { // not written by this version
				b.Delete(Deltas, item.Key)
				continue
			}
			if kind == ofDictionary {
				first, second = second, first
			}
			if stale[[2]Hash{first, second}], err = s.deleteDelta(b, first, second); err != nil {
				return err
			}
		}
	}
	blobs := blobKey(h, coding.DCZ)
	for item, err := range s.Scan(Blobs, Range{Prefix: blobs}) { // also those of which the rows are lost
		if err != nil {
			return err
		}
		if len(item.Key) == len(blobs)+len(h) {
			b.Delete(Blobs, item.Key)
		}
	}
	return nil
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

// RepairDelta repairs what [Store.DamagedDeltas] reported: it deletes the delta and queues it to be made or fetched again, without waiting for the
// disk. For a row with a malformed key, it deletes the row, and waits.
func (s *Store) RepairDelta(d DamagedDelta) error {
	if d.Key == nil {
		return s.RequeueDelta(d.Content, d.Dictionary)
	}
	b := s.NewBatch()
	defer b.Close()
	b.Delete(Deltas, d.Key)
	return b.Commit()
}

// DamagedDeltas scans all deltas and calls fn with each damaged one; it stops at the first error, also one that fn returns or that of ctx, and
// returns it. If deep is true, it also reads and decodes each delta and compares the result with the content. A delta that cannot be read for another
// reason than damage is also passed to fn. Deltas that are deleted during the scan are not.
func (s *Store) DamagedDeltas(ctx context.Context, deep bool, fn func(DamagedDelta) error) error {
	for item, err := range s.Scan(Deltas, Range{}) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		damaged := DamagedDelta{}
		h, dictionary, ok := ParseDeltaRow(item.Key)
		if ok {
			damaged.Problem = s.checkDelta(h, dictionary, deep)
		} else if dictionary, h, ok = parseDeltaKey(item.Key, ofDictionary); ok {
			damaged.Problem = s.requireDeltaRow(deltaKey(ofContent, h, dictionary))
		} else {
			damaged = DamagedDelta{Key: bytes.Clone(item.Key), Problem: fmt.Errorf("%w: the key of a delta is malformed", ErrCorrupt)}
		}
		damaged.Content, damaged.Dictionary = h, dictionary
		if damaged.Problem == nil {
			continue
		}
		if _, err := s.get(s.db, Deltas, item.Key); errors.Is(err, ErrNotFound) {
			continue // deleted meanwhile
		}
		if err := fn(damaged); err != nil {
			return err
		}
	}
	return nil
}

// checkDelta returns nil if the delta of a content against a dictionary is sound: both contents and both rows of the delta are stored. If deep is
// true, it also reads the delta, checks its checksum, decodes it, and compares the result with the content. Otherwise the error says what is wrong,
// or that something could not be read.
func (s *Store) checkDelta(h, dictionary Hash, deep bool) error {
	for _, needed := range []Hash{h, dictionary} {
		if _, err := s.Content(needed); err != nil {
			return err
		}
	}
	d, err := s.deltaRow(h, dictionary)
	if err == nil {
		err = s.requireDeltaRow(deltaKey(ofDictionary, dictionary, h))
	}
	if err != nil || !deep {
		return err
	}
	delta, err := s.get(s.db, Blobs, deltaBlobKey(h, dictionary))
	if err == nil && Sum(delta) != d.Sum {
		err = fmt.Errorf("%w: it does not have the checksum with which it was stored", ErrCorrupt)
	}
	if err == nil {
		_, err = s.verifyDelta(h, delta)
	}
	return err
}

// requireDeltaRow returns [ErrCorrupt] if the store does not have the row of a delta with this key, and any other error of reading it as it is.
func (s *Store) requireDeltaRow(key []byte) error {
	_, err := s.get(s.db, Deltas, key)
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: one of its two rows is missing", ErrCorrupt)
	}
	return err
}

// Each delta has two rows in [Deltas], whose keys begin with one of these bytes.
const (
	ofContent    = 'c' // hash, dictionary: length and checksum of the delta
	ofDictionary = 'd' // dictionary, hash: nothing
)

// deltaPrefix returns the prefix of the keys in [Deltas] of the rows of a kind that begin with the hash first.
func deltaPrefix(kind byte, first Hash) []byte { return append([]byte{kind}, first[:]...) }

// deltaKey returns the key in [Deltas] of the row of a kind with these hashes, in its order.
func deltaKey(kind byte, first, second Hash) []byte {
	return append(deltaPrefix(kind, first), second[:]...)
}

// parseDeltaKey returns the hashes in a key of [Deltas], in its order; ok is false if it is not the key of a row of this kind.
func parseDeltaKey(key []byte, kind byte) (first, second Hash, ok bool) {
	if len(key) != 1+2*len(first) || key[0] != kind {
		return first, second, false
	}
	return Hash(key[1:]), Hash(key[1+len(first):]), true
}

// deltaBlobKey returns the key in [Blobs] of the row with the bytes of the delta of h against a dictionary.
func deltaBlobKey(h, dictionary Hash) []byte { return append(blobKey(h, coding.DCZ), dictionary[:]...) }

// The row of a delta is a format (1 byte), the length (uvarint) and the sum (32 bytes).
const deltaFormat = 1

// encodeDeltaRow returns the value of the row with the length and checksum of a delta.
func encodeDeltaRow(d Delta) []byte {
	return append(binary.AppendUvarint([]byte{deltaFormat}, uint64(d.Length)), d.Sum[:]...)
}

// decodeDeltaRow parses the row of kind ofContent with this key and value. It returns errRow for anything that [Store.PutDelta] does not write.
func decodeDeltaRow(key, row []byte) (Delta, error) {
	_, dictionary, ok := parseDeltaKey(key, ofContent)
	if !ok || len(row) == 0 || row[0] != deltaFormat {
		return Delta{}, errRow
	}
	r := decoder{row: row[1:]}
	d := Delta{Dictionary: dictionary, Length: r.length(), Sum: r.hash()}
	if r.failed || len(r.row) > 0 {
		return Delta{}, errRow
	}
	return d, nil
}
