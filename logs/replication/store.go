package replication

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A Store is an open store, which may be damaged: that of a backup, for example.
type Store struct {
	store *kvstore.Store
	name  string
	note  []byte // the checkpoint, in place of the stored one
}

// FromStore returns an open store as a source with a name for messages. Close of the source closes the store.
func FromStore(store *kvstore.Store, name string) *Store { return &Store{store: store, name: name} }

// OpenFolder opens the store in the subfolder store of dir, or else in dir, read-only, as a source. The store may be damaged: what can be read of it
// is sent. The caller closes it.
func OpenFolder(dir string, logger *slog.Logger) (*Store, error) {
	path := filepath.Join(dir, "store")
	if _, err := os.Stat(path); err != nil {
		path = dir
	}
	s, err := kvstore.Open(path, kvstore.Options{ReadOnly: true, CacheBytes: 16 << 20, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("couldn't open %s as a source: %w", dir, err)
	}
	return FromStore(s, dir), nil
}

// WithCheckpoint returns the same store as a source that has note, in place of the stored one, as its signed checkpoint. Only one of the two is
// closed.
func (s *Store) WithCheckpoint(note []byte) *Store { return &Store{s.store, s.name, note} }

// Underlying returns the store that is the source.
func (s *Store) Underlying() *kvstore.Store { return s.store }

// Name implements [Source]: it returns the name that [FromStore] was given, or the folder.
func (s *Store) Name() string { return s.name }

// Close closes the store that is the source.
func (s *Store) Close() error { return s.store.Close() }

// Get implements [Log]: it returns the checkpoint, the key or keys, a hash tile or a bundle of entries, whichever the path is that of, from the
// store's rows, without verifying it. The checkpoint is the last signed one, or the one of [Store.WithCheckpoint]. Contents and any other path are
// [fs.ErrNotExist]. More than limit bytes are an error.
func (s *Store) Get(_ context.Context, path string, limit int64) (data []byte, err error) {
	if path == checkpointPath && s.note != nil {
		data = s.note
	} else if data, err = tiles.ReadLog(s.store, path); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.name, path, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s: %s has over %d bytes", s.name, path, limit)
	}
	return data, nil
}

// Await implements [Log]: it waits until ctx ends, because a store that is a source does not change.
func (*Store) Await(ctx context.Context, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

// Entries implements entryReader: it returns the raw entries from an index on, at most 256, up to the first that is not readable or does not belong
// to the store's own tree. If that is the one at index, the error is [fs.ErrNotExist].
func (s *Store) Entries(ctx context.Context, index int64) ([][]byte, error) {
	return ReadUntilGap(ctx, index, func(n int64) []byte {
		raw, err := logs.RawEntry(s.store, n)
		if err != nil || !logs.MatchesTree(s.store, n, raw) {
			return nil
		}
		return raw
	})
}

// Content implements [Contents]. It returns the encodings that can be read, also if the row that lists them is damaged. It leaves out those that
// cannot, and then says that the rest are not the smallest. If none can be read, missing or damaged, the error is [fs.ErrNotExist]. Callers verify
// them.
func (s *Store) Content(ctx context.Context, w Wanted) (found Found, err error) {
	encodings := []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity}
	read := func(c coding.Coding) ([]byte, error) {
		return s.store.Get(kvstore.Blobs, append(w.Hash[:len(w.Hash):len(w.Hash)], byte(c)))
	}
	if content, err := s.store.Content(w.Hash); err == nil {
		found.Squeezed = content.Squeezed
		encodings = encodings[:0]
		for _, r := range content.Representations {
			encodings = append(encodings, r.Coding)
		}
		read = func(c coding.Coding) ([]byte, error) {
			_, coded, err := s.store.Coded(w.Hash, c)
			return coded, err
		}
	}
	for _, c := range encodings {
		coded, err := read(c)
		if err != nil {
			found.Squeezed = false
			continue
		}
		found.Coded = append(found.Coded, kvstore.Coded{Coding: c, Bytes: coded})
	}
	if found.Coded == nil {
		return Found{}, fmt.Errorf("content %s: %w", w.Hash, fs.ErrNotExist)
	}
	found.Dictionaries = readDictionaries(s.store, w.Hash)
	return found, ctx.Err()
}

// Delta implements deltaSource: it returns the stored delta of the content h against a dictionary, or [fs.ErrNotExist]. It ignores the limit of its
// size. The error for a damaged one is [kvstore.ErrCorrupt].
func (s *Store) Delta(_ context.Context, h, dictionary kvstore.Hash, _ int64) ([]byte, error) {
	delta, err := s.store.FindDelta(h, dictionary)
	if errors.Is(err, kvstore.ErrNotFound) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return delta, err
}
