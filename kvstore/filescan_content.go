package kvstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// Content returns the encodings of a content that were found in the files and decode to it, which it verifies. squeezed reports whether the content
// was stored as having its best encodings, and all of them were found. It leaves out values that cannot be read now, and finds no content of more
// than limit bytes. If rows lead to no encoding of a content, the first such call decodes all unnamed values of blob files to identify them, which
// takes long. It returns [ErrNotFound] if nothing was found. It is safe for concurrent use.
func (s *FileScan) Content(ctx context.Context, h Hash, limit int64) (squeezed bool, found []Coded, err error) {
	if squeezed, found = s.readEncodings(h, limit); found == nil {
		if err := s.identifyOnce(ctx); err != nil {
			return false, nil, err
		}
		squeezed, found = s.readEncodings(h, limit)
	}
	if err := s.Err(); err != nil {
		return false, nil, err
	}
	if found == nil {
		return false, nil, fmt.Errorf("content %s: %w", h, ErrNotFound)
	}
	return squeezed, found, nil
}

// readEncodings returns the encodings of a content that the index names and that decode to it, in at most limit bytes; at most one for each coding.
// It leaves out those that cannot be read or are damaged. squeezed reports whether none was left out and a row says that they are the best. found is
// nil if it found none; [FileScan.Err] says whether the index could be read.
func (s *FileScan) readEncodings(h Hash, limit int64) (squeezed bool, found []Coded) {
	complete := true
	add := func(c coding.Coding, sum Hash) {
		if slices.ContainsFunc(found, func(o Coded) bool { return o.Coding == c }) {
			return
		}
		value, err := s.readValue(sum)
		if err == nil {
			if _, ok := decodeAs(h, c, value, limit); ok {
				found = append(found, Coded{c, value})
				return
			}
		}
		complete = false
	}
	add(coding.Identity, h)
	complete = true // it may not have been stored so
	named := append([]byte{'h'}, h[:]...)
	for key, flag := range s.scanIndex(named) {
		rest := key[len(named):]
		squeezed = squeezed || flag[0] == 1
		add(coding.Coding(rest[0]), Hash(rest[1:]))
	}
	return squeezed && complete, found
}

// readValue reads the value with the hash sum from the place that the index has for it. It returns [ErrCorrupt] if the bytes in a file do not have
// the hash; a value in the index itself is not verified. If the index has no place for it, the error is pebble.ErrNotFound.
func (s *FileScan) readValue(sum Hash) ([]byte, error) {
	where, closer, err := indexOf(s).Get(append([]byte{'v'}, sum[:]...))
	if err != nil {
		return nil, err
	}
	if where[0] == inIndex {
		value := bytes.Clone(where[1:])
		return value, closer.Close()
	}
	at := decodeLocation(where)
	if err := closer.Close(); err != nil {
		return nil, err
	}
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, s.files[at.file]))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &fileReader{File: f, scan: s, number: at.file, size: math.MaxInt64}
	b, err := r.read(at.offset, at.length)
	if err != nil {
		return nil, err
	}
	var value []byte
	if at.kind == inBlobFile {
		values, ok := decodeValues(b)
		if !ok || at.row >= len(values) {
			return nil, ErrCorrupt
		}
		value = values[at.row]
	} else {
		versions, ok := decodeRows(b)
		if !ok || at.row >= len(versions) {
			return nil, ErrCorrupt
		}
		value = versions[at.row].value
	}
	if Sum(value) != sum {
		return nil, ErrCorrupt
	}
	return value, nil
}

// The limits of decoding values to identify them: a published file may decode to a very long one.
const (
	maxIdentified  = 512 << 20 // of one value
	identifyBudget = 4 << 30   // of all, and so many times the values' own length
	identifyFactor = 64
)

// identifyOnce decodes the values of blob files that no row names, within a budget of bytes, and records in the index which contents they are. It
// does nothing if an earlier call has succeeded. Concurrent calls wait for the one that runs.
func (s *FileScan) identifyOnce(ctx context.Context) error {
	s.identifying.Lock()
	defer s.identifying.Unlock()
	if s.identified {
		return nil
	}
	err := s.identify(ctx, identifyBudget)
	s.identified = err == nil
	return err
}

// identify decodes the values of blob files that no row names, as Brotli and as gzip, and records in the index the hashes of the contents that they
// decode to: the rows that name them may be lost. It skips values that cannot be read. It decodes at most about budget bytes, and 64 more for each
// byte of a value.
func (s *FileScan) identify(ctx context.Context, budget int64) error {
	for key, where := range s.scanIndex([]byte{'v'}) {
		if err := ctx.Err(); err != nil {
			return err
		}
		sum := Hash(key[1:])
		if where[0] != inBlobFile || s.isNamed(sum) {
			continue
		}
		value, err := s.readValue(sum)
		if err != nil {
			continue // it was damaged since
		}
		budget += identifyFactor * int64(len(value))
		for _, c := range []coding.Coding{coding.Brotli, coding.Gzip} {
			h, n, ok := hashDecoded(ctx, c, value, min(maxIdentified, budget))
			if budget -= n; ok {
				s.addName(h, c, sum, false)
			}
		}
		if err := s.flushIfLarge(); err != nil {
			return err
		}
	}
	return errors.Join(s.commit(), ctx.Err())
}

// isNamed reports whether a row that was found names the value with this hash. An error of reading the index is recorded, and counts as not.
func (s *FileScan) isNamed(value Hash) bool {
	_, closer, err := indexOf(s).Get(append([]byte{'n'}, value[:]...))
	if err == nil {
		err = closer.Close()
	}
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		s.recordFailure(err)
	}
	return err == nil
}

// hashDecoded decodes value in the coding c and returns the SHA-256 of the result; n is how many bytes were decoded. ok is false if value is not of
// that coding, decodes to more than limit bytes, or ctx ends.
func hashDecoded(ctx context.Context, c coding.Coding, value []byte, limit int64) (h Hash, n int64, ok bool) {
	r, err := coding.NewReader(c, bytes.NewReader(value))
	if err != nil {
		return h, 0, false
	}
	defer r.Close()
	digest := sha256.New()
	const step = 1 << 20
	for n <= limit && ctx.Err() == nil {
		read, err := io.CopyN(digest, r, min(step, limit+1-n))
		n += read
		if err == io.EOF {
			return Hash(digest.Sum(nil)), n, true
		}
		if err != nil {
			break
		}
	}
	return h, n, false
}
