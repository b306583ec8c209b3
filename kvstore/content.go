package kvstore

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// Hash is the SHA-256 of a content's identity bytes.
type Hash [sha256.Size]byte

// Sum returns the SHA-256 of bytes. For the identity bytes of a content, that is its [Hash].
func Sum(identity []byte) Hash { return sha256.Sum256(identity) }

// SumReader returns the SHA-256 of all that r reads.
func SumReader(r io.Reader) (Hash, error) {
	sum := sha256.New()
	_, err := io.Copy(sum, r)
	return Hash(sum.Sum(nil)), err
}

// String returns the hash in lower-case hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash parses a SHA-256 in hexadecimal, as [Hash.String] writes it; upper-case digits are accepted. With an error it returns the zero hash.
func ParseHash(s string) (Hash, error) {
	var h Hash
	if len(s) != hex.EncodedLen(len(h)) {
		return h, fmt.Errorf("%q is not a SHA-256 in hexadecimal", s)
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return Hash{}, fmt.Errorf("%q is not a SHA-256 in hexadecimal", s)
	}
	return h, nil
}

// MarshalText implements encoding.TextMarshaler: it returns the hash in lower-case hexadecimal.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: it sets the hash from 64 hexadecimal digits. With an error it sets the hash to zero.
func (h *Hash) UnmarshalText(text []byte) (err error) {
	*h, err = ParseHash(string(text))
	return err
}

// Representation says what a content is in one coding.
type Representation struct {
	Coding coding.Coding
	Length int64 // bytes, coded
	Sum    Hash  // SHA-256 of the coded bytes
}

// Content describes a stored content: its size and the encodings that are stored.
type Content struct {
	Size            int64            // identity bytes
	Squeezed        bool             // whether it was stored as having its best encodings; repairing it ends that
	Representations []Representation // smallest first, never empty
}

// Find returns the representation in the encoding want. The bool is false if the content is not stored in it.
func (c Content) Find(want coding.Coding) (Representation, bool) {
	for _, r := range c.Representations {
		if r.Coding == want {
			return r, true
		}
	}
	return Representation{}, false
}

// Coded is a content's bytes in one coding.
type Coded struct {
	Coding coding.Coding
	Bytes  []byte
}

// Content returns the size and the encodings of the content h, or [ErrNotFound]. It reads the content's row only, not its bytes. If the row is
// damaged, it returns [ErrCorrupt] and schedules a repair.
func (s *Store) Content(h Hash) (Content, error) {
	c, err := s.readContent(s.db, h)
	if errors.Is(err, ErrCorrupt) {
		s.repairLater(h)
	}
	return c, err
}

// readContent reads the row of a content from a database or snapshot: its size and its encodings. Unlike [Store.Content] it schedules no repair.
func (s *Store) readContent(from handle, h Hash) (Content, error) {
	row, err := s.get(from, Contents, h[:])
	if errors.Is(err, ErrNotFound) {
		return Content{}, fmt.Errorf("content %s: %w", h, ErrNotFound)
	}
	if err != nil {
		return Content{}, err
	}
	c, err := decodeContent(row)
	if err != nil {
		return Content{}, fmt.Errorf("%w: content %s: %w", ErrCorrupt, h, err)
	}
	return c, nil
}

// PutContent stores the content h of size bytes in the given encodings. The caller guarantees that each decodes to the bytes whose hash is h. An
// encoding that is stored already is replaced by a smaller one, never by a larger one, and the others stay; a reader sees all of them change at once.
// squeezed marks the content as having its best encodings; false leaves that as it is. A size other than the stored one is an error, and so is a
// content that would have no encoding. If the content's row is damaged, the error is [ErrCorrupt]. It changes no row of [Queue].
//
// It does not wait for the disk: when the next [Batch.Commit] of any caller that writes something has returned nil, the content is durable.
func (s *Store) PutContent(h Hash, size int64, squeezed bool, coded []Coded) error {
	return s.putContent(h, size, squeezed, coded, true)
}

// ImproveContent stores those of the given encodings of a stored content that are new or smaller than the stored ones, without waiting for the disk.
// squeezed marks the content as having its best encodings; false leaves that as it is. A size other than the stored one is an error. It returns
// [ErrNotFound] for a content that is not stored, or no longer: an encoder that took a while must not restore what was removed meanwhile.
func (s *Store) ImproveContent(h Hash, size int64, squeezed bool, coded []Coded) error {
	return s.putContent(h, size, squeezed, coded, false)
}

// putContent stores those of the given encodings of a content that are new or smaller than the stored ones, and marks it as squeezed if squeezed is
// true. If that changes nothing, it writes nothing. If the content is not stored, it is added if add is true; otherwise the error is [ErrNotFound]. A
// size other than the stored one is an error, and so is a content that would have no encoding. It does not wait for the disk.
func (s *Store) putContent(h Hash, size int64, squeezed bool, coded []Coded, add bool) error {
	sums := make([]Hash, len(coded))
	for i, c := range coded {
		sums[i] = Sum(c.Bytes)
	}
	s.contents.Lock()
	defer s.contents.Unlock()
	have, err := s.Content(h)
	switch {
	case errors.Is(err, ErrNotFound) && add:
		have, err = Content{Size: size}, nil
	case err != nil:
		return err
	case have.Size != size:
		return fmt.Errorf("content %s is stored with %d bytes and can't have %d", h, have.Size, size)
	}
	next := Content{Size: size, Squeezed: have.Squeezed || squeezed, Representations: slices.Clone(have.Representations)}
	changed := next.Squeezed != have.Squeezed
	var bytes, stale int64
	replaced := make(map[coding.Coding][]byte, len(coded))
	for i, c := range coded {
		if old, ok := next.addSmaller(Representation{Coding: c.Coding, Length: int64(len(c.Bytes)), Sum: sums[i]}); ok {
			replaced[c.Coding] = c.Bytes
			bytes += int64(len(c.Bytes))
			stale += old.Length
			changed = true
		}
	}
	if len(next.Representations) == 0 {
		return fmt.Errorf("content %s needs a coding to be stored in", h)
	}
	if !changed {
		return nil
	}
	b := s.newSizedBatch(int(bytes))
	for c, coded := range replaced {
		b.Set(Blobs, blobKey(h, c), coded)
	}
	b.Set(Contents, h[:], encodeContent(next))
	return s.writeReplacing(b, stale, pebble.NoSync)
}

// addSmaller adds the encoding r to the content, or replaces a larger one of the same coding, which is returned as old. ok reports whether it did
// either; old is the zero value if it replaced none. It keeps the encodings sorted by length.
func (c *Content) addSmaller(r Representation) (old Representation, ok bool) {
	i := slices.IndexFunc(c.Representations, func(o Representation) bool { return o.Coding == r.Coding })
	switch {
	case i < 0:
		c.Representations = append(c.Representations, r)
	case r.Length < c.Representations[i].Length:
		old, c.Representations[i] = c.Representations[i], r
	default:
		return old, false
	}
	slices.SortStableFunc(c.Representations, func(a, b Representation) int { return cmp.Compare(a.Length, b.Length) })
	return old, true
}

// Coded returns a content in one encoding, with its bytes checked against their checksum. It returns [ErrNotFound] if the content is not stored, or
// not in that encoding. If it is damaged, the error is [ErrCorrupt] and a repair is scheduled.
func (s *Store) Coded(h Hash, c coding.Coding) (Representation, []byte, error) {
	r, coded, err := s.readCoded(s.db, h, c)
	if !errors.Is(err, ErrCorrupt) {
		return r, coded, err
	}
	// The row and the blob may have been replaced between the two reads. A
	// snapshot costs a lock, so it is only taken to be sure.
	snap := s.Snapshot()
	defer snap.Close()
	if r, coded, err = s.readCoded(snap.snap, h, c); errors.Is(err, ErrCorrupt) {
		s.repairLater(h)
	}
	return r, coded, err
}

// readCoded reads a content in one encoding from a database or snapshot, and checks its length and checksum. It returns [ErrNotFound] or
// [ErrCorrupt], and schedules no repair.
func (s *Store) readCoded(from handle, h Hash, c coding.Coding) (Representation, []byte, error) {
	content, err := s.readContent(from, h)
	if err != nil {
		return Representation{}, nil, err
	}
	r, ok := content.Find(c)
	if !ok {
		return Representation{}, nil, fmt.Errorf("content %s in %s: %w", h, c, ErrNotFound)
	}
	coded, err := s.get(from, Blobs, blobKey(h, c))
	switch {
	case errors.Is(err, ErrNotFound):
		return Representation{}, nil, fmt.Errorf("%w: content %s lacks its bytes in %s", ErrCorrupt, h, c)
	case err != nil:
		return Representation{}, nil, err
	case int64(len(coded)) != r.Length || Sum(coded) != r.Sum:
		return Representation{}, nil, fmt.Errorf("%w: content %s: its bytes in %s don't have the checksum they were stored with", ErrCorrupt, h, c)
	}
	return r, coded, nil
}

// Read returns the encoded bytes of a content in the representation r, which [Store.Content] returned before, checked against r's checksum. It
// returns [ErrNotFound] if the content is not stored, or no longer as r because a smaller encoding has replaced it. If it is damaged, the error is
// [ErrCorrupt] and a repair is scheduled.
func (s *Store) Read(h Hash, r Representation) ([]byte, error) {
	coded, err := s.get(s.db, Blobs, blobKey(h, r.Coding))
	if err == nil && int64(len(coded)) == r.Length && Sum(coded) == r.Sum {
		return coded, nil // whatever the row says by now
	}
	now, coded, err := s.Coded(h, r.Coding)
	if err == nil && now != r {
		return nil, fmt.Errorf("content %s in %s, as it was: %w", h, r.Coding, ErrNotFound)
	}
	return coded, err
}

// Identity returns a content's identity bytes, checked against h. It reads the identity encoding if that is stored, and decodes the others, smallest
// first, if that is missing or damaged. It returns [ErrNotFound] if the content is not stored, and [ErrCorrupt] if no encoding is sound. Damage
// schedules a repair, also if another encoding is sound.
func (s *Store) Identity(h Hash) ([]byte, error) {
	content, err := s.Content(h)
	if err != nil {
		return nil, err
	}
	// Identity itself needs no decoding.
	slices.SortStableFunc(content.Representations, func(a, b Representation) int {
		return cmp.Compare(min(a.Coding, 1), min(b.Coding, 1))
	})
	var failed error
	for _, r := range content.Representations {
		identity, err := s.decodeVerified(h, r.Coding, content.Size)
		if err == nil {
			return identity, nil
		}
		if failed == nil || errors.Is(err, ErrCorrupt) && !errors.Is(failed, ErrCorrupt) {
			failed = err
		}
	}
	return nil, failed
}

// decodeVerified reads a content in one encoding, decodes it to size bytes, and checks that their hash is h. If the encoding is damaged or decodes to
// other bytes, the error is [ErrCorrupt] and a repair is scheduled. If it is not stored, the error is [ErrNotFound].
func (s *Store) decodeVerified(h Hash, c coding.Coding, size int64) ([]byte, error) {
	_, coded, err := s.Coded(h, c)
	if err != nil {
		return nil, err
	}
	identity, err := coding.Decode(c, coded, size)
	if err == nil && Sum(identity) != h {
		err = errors.New("it decodes to other bytes")
	}
	if err != nil {
		s.repairLater(h)
		return nil, fmt.Errorf("%w: content %s in %s: %w", ErrCorrupt, h, c, err)
	}
	return identity, nil
}

// blobKey returns the key in [Blobs] of the row with the bytes of a content in an encoding.
func blobKey(h Hash, c coding.Coding) []byte {
	return append(h[:len(h):len(h)], byte(c))
}

// A row in Contents is
//
//	format (1 byte), flags (1 byte), size (uvarint), number of representations (1 byte),
//
// and for each of them, smallest first,
//
//	coding (1 byte), length (uvarint), sum (32 bytes).
const (
	rowFormat   = 1
	rowSqueezed = 1 << 0 // a flag
)

// encodeContent returns the value of a content's row in [Contents].
func encodeContent(c Content) []byte {
	row := make([]byte, 0, 3+binary.MaxVarintLen64+len(c.Representations)*(1+binary.MaxVarintLen64+len(Hash{})))
	var flags byte
	if c.Squeezed {
		flags |= rowSqueezed
	}
	row = append(row, rowFormat, flags)
	row = binary.AppendUvarint(row, uint64(c.Size))
	row = append(row, byte(len(c.Representations)))
	for _, r := range c.Representations {
		row = append(row, byte(r.Coding))
		row = binary.AppendUvarint(row, uint64(r.Length))
		row = append(row, r.Sum[:]...)
	}
	return row
}

var errRow = errors.New("its row is malformed")

// decodeContent parses the value of a content's row in [Contents]. It returns an error for anything that encodeContent does not write.
func decodeContent(row []byte) (Content, error) {
	if len(row) == 0 || row[0] != rowFormat {
		return Content{}, fmt.Errorf("%w, or of a format that this larder doesn't know", errRow)
	}
	d := decoder{row: row[1:]}
	flags := d.byte()
	c := Content{Squeezed: flags&rowSqueezed != 0, Size: d.length()}
	count := int(d.byte())
	for i := 0; i < count && !d.failed; i++ {
		r := Representation{Coding: coding.Coding(d.byte()), Length: d.length(), Sum: d.hash()}
		_, twice := c.Find(r.Coding)
		if twice || i > 0 && r.Length < c.Representations[i-1].Length {
			return Content{}, errRow
		}
		c.Representations = append(c.Representations, r)
	}
	if d.failed || len(d.row) > 0 || count == 0 || flags&^rowSqueezed != 0 {
		return Content{}, errRow
	}
	return c, nil
}

// decoder takes values off the front of a row, or of an edit of a MANIFEST. Once one is missing, all that follow are zero.
type decoder struct {
	row    []byte
	failed bool
}

// next consumes the next n bytes of the row. If it has fewer, it returns nil and marks the decoder as failed.
func (d *decoder) next(n uint64) []byte {
	if n > uint64(len(d.row)) {
		d.row, d.failed = nil, true
		return nil
	}
	taken := d.row[:n]
	d.row = d.row[n:]
	return taken
}

// byte consumes one byte of the row. If none exists, it returns 0 and marks the decoder as failed.
func (d *decoder) byte() byte {
	if b := d.next(1); b != nil {
		return b[0]
	}
	return 0
}

// hash consumes a hash, 32 bytes, of the row. If there are fewer, it returns zeros and marks the decoder as failed.
func (d *decoder) hash() (h Hash) {
	copy(h[:], d.next(uint64(len(h))))
	return h
}

// number consumes a number (uvarint) of the row. If it is missing, exceeds int64 or has superfluous bytes, it returns 0 and marks the decoder as
// failed.
func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.row)
	if n <= 0 || v > math.MaxInt64 || n > 1 && d.row[n-1] == 0 {
		d.row, d.failed = nil, true
		return 0
	}
	d.row = d.row[n:]
	return v
}

// length consumes a number of bytes, as number does.
func (d *decoder) length() int64 { return int64(d.number()) }

// skipBytes consumes a length and as many bytes of the row. If it has fewer, it marks the decoder as failed.
func (d *decoder) skipBytes() { d.next(d.number()) }
