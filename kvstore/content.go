package kvstore

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// Hash is the SHA-256 of a content's identity bytes.
type Hash [sha256.Size]byte

// Sum returns the hash of identity bytes.
func Sum(identity []byte) Hash { return sha256.Sum256(identity) }

// String returns the hash in lower-case hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads what [Hash.String] writes.
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

// Representation is a content in one coding.
type Representation struct {
	Coding coding.Coding
	Length int64 // bytes, coded
	Sum    Hash  // SHA-256 of the coded bytes
}

// Content says how a content is kept.
type Content struct {
	Size            int64            // identity bytes
	Squeezed        bool             // whether every coding is the best there is
	Representations []Representation // smallest first, never empty
}

// Find returns the representation in c.
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

// Content returns how h is kept, or [ErrNotFound].
func (s *Store) Content(h Hash) (Content, error) {
	row, err := s.Get(Contents, h[:])
	if err != nil {
		return Content{}, err
	}
	c, err := decodeContent(row)
	if err != nil {
		return Content{}, fmt.Errorf("%w: content %s: %w", ErrCorrupt, h, err)
	}
	return c, nil
}

// PutContent stores a content in the given codings, which must decode to the
// bytes whose hash is h and whose length is size. What is already stored and
// not larger stays. It does not wait for the disk: the next [Batch.Commit]
// makes it durable before itself.
func (s *Store) PutContent(h Hash, size int64, squeezed bool, coded []Coded) error {
	s.content.Lock()
	defer s.content.Unlock()
	have, err := s.Content(h)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	next := Content{Size: size, Squeezed: squeezed || have.Squeezed, Representations: slices.Clone(have.Representations)}
	b := s.db.NewBatch()
	defer b.Close()
	for _, c := range coded {
		r := Representation{Coding: c.Coding, Length: int64(len(c.Bytes)), Sum: Sum(c.Bytes)}
		i := slices.IndexFunc(next.Representations, func(o Representation) bool { return o.Coding == c.Coding })
		switch {
		case i < 0:
			next.Representations = append(next.Representations, r)
		case r.Length < next.Representations[i].Length:
			next.Representations[i] = r
		default:
			continue
		}
		if err := b.Set(Blobs.physical(blobKey(h, c.Coding)), c.Bytes, nil); err != nil {
			return err
		}
	}
	slices.SortStableFunc(next.Representations, func(a, b Representation) int { return cmp.Compare(a.Length, b.Length) })
	if err := b.Set(Contents.physical(h[:]), encodeContent(next), nil); err != nil {
		return err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("writing to %s: %w", s.dir, err)
	}
	return nil
}

// Coded returns a content in one coding, checked against its checksum.
func (s *Store) Coded(h Hash, c coding.Coding) (Representation, []byte, error) {
	content, err := s.Content(h)
	if err != nil {
		return Representation{}, nil, err
	}
	r, ok := content.Find(c)
	if !ok {
		return r, nil, ErrNotFound
	}
	b, err := s.Get(Blobs, blobKey(h, c))
	if err != nil {
		return r, nil, err
	}
	if Sum(b) != r.Sum {
		return r, nil, fmt.Errorf("%w: content %s", ErrCorrupt, h)
	}
	return r, b, nil
}

// Identity returns a content's identity bytes, checked against h.
func (s *Store) Identity(h Hash) ([]byte, error) {
	content, err := s.Content(h)
	if err != nil {
		return nil, err
	}
	c := content.Representations[0].Coding
	_, coded, err := s.Coded(h, c)
	if err != nil {
		return nil, err
	}
	identity, err := coding.Decode(c, coded, content.Size)
	if err != nil {
		return nil, fmt.Errorf("%w: content %s: %w", ErrCorrupt, h, err)
	}
	if Sum(identity) != h {
		return nil, fmt.Errorf("%w: content %s", ErrCorrupt, h)
	}
	return identity, nil
}

func blobKey(h Hash, c coding.Coding) []byte {
	return append(h[:len(h):len(h)], byte(c))
}
