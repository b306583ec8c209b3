package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
)

// A Source may have what a store has lost. Nothing that it answers is trusted: contents
// are held against their hashes, and entries against the root that was signed. It is safe
// for concurrent use.
type Source interface {
	// Name is what messages call it.
	Name() string
	// Entries returns the bytes of the log's entries from index on, at least one and as many
	// as come at once, or [fs.ErrNotExist] where it has none.
	Entries(ctx context.Context, index int64) ([][]byte, error)
	// Content returns a content, or [fs.ErrNotExist].
	Content(ctx context.Context, w Wanted) (Found, error)
	// Spent returns how many requests it took, and how many bytes came.
	Spent() (requests, bytes int64)
	// Close releases it.
	Close() error
}

// Wanted is a content, with a place where the log names it.
type Wanted struct {
	Hash  kvstore.Hash
	Entry logs.Indexed // names the content, or the manifest that has File
	// Manifest and File are of a file of a release; nil for what the entry itself names.
	Manifest *logs.Manifest
	File     *logs.File
	// PackageJSON returns the package JSON that was in force at the entry.
	PackageJSON func() ([]byte, error)
}

// Found is a content as a source has it, in one coding or more.
type Found struct {
	Squeezed bool // whether the codings are the best there are
	Coded    []kvstore.Coded
}

// String names the content as an operator would: a file by its URL's path.
func (w Wanted) String() string {
	if w.File != nil {
		return assetPath(w.Entry, w.File)
	}
	return fmt.Sprintf("entry %d (%s %s %s)", w.Entry.Index, w.Entry.Kind, w.Entry.Package, w.Entry.Version)
}

func assetPath(e logs.Indexed, file *logs.File) string {
	return "/ajax/libs/" + e.Package + "/" + e.Version + "/" + file.Path
}

// limit is the most bytes that the content can have.
func (w Wanted) limit() int64 {
	if w.File != nil {
		return w.File.Size
	}
	return logs.MaxManifest
}

// errOther says that a source has other bytes than those that were asked for.
var errOther = errors.New("it has other bytes")

// check keeps what is sound of what a source has found, and returns the identity.
func (w Wanted) check(found Found) ([]byte, Found, error) {
	sound := Found{Squeezed: found.Squeezed}
	var identity []byte
	for _, c := range found.Coded {
		plain, err := coding.DecodeUpTo(c.Coding, c.Bytes, w.limit())
		if err != nil || kvstore.Sum(plain) != w.Hash {
			sound.Squeezed = false
			continue
		}
		identity = plain
		sound.Coded = append(sound.Coded, c)
	}
	if len(sound.Coded) == 0 {
		return nil, Found{}, errOther
	}
	return identity, sound, nil
}

// entriesAtOnce is how many entries a store is asked for at once.
const entriesAtOnce = 256

// stored is a store as a source, which may be damaged.
type stored struct {
	store *kvstore.Store
	name  string
}

// OfStore returns an open store as a source, which Close closes.
func OfStore(store *kvstore.Store, name string) Source { return stored{store, name} }

func (s stored) Name() string          { return s.name }
func (stored) Spent() (_, bytes int64) { return 0, 0 }
func (s stored) Close() error          { return s.store.Close() }

func (s stored) Entries(ctx context.Context, index int64) ([][]byte, error) {
	var entries [][]byte
	for n := index; n < index+entriesAtOnce; n++ {
		raw, err := logs.RawEntry(s.store, n)
		if err != nil || !logs.Belongs(s.store, n, raw) {
			break
		}
		entries = append(entries, raw)
	}
	if entries == nil {
		return nil, fmt.Errorf("entry %d: %w", index, fs.ErrNotExist)
	}
	return entries, ctx.Err()
}

func (s stored) Content(_ context.Context, w Wanted) (Found, error) {
	content, err := s.store.Content(w.Hash)
	if err != nil {
		return s.blobs(w.Hash)
	}
	found := Found{Squeezed: content.Squeezed}
	for _, r := range content.Representations {
		_, coded, err := s.store.Coded(w.Hash, r.Coding)
		if err != nil {
			found.Squeezed = false
			continue
		}
		found.Coded = append(found.Coded, kvstore.Coded{Coding: r.Coding, Bytes: coded})
	}
	if found.Coded == nil {
		return found, fmt.Errorf("none of its codings can be read: %w", fs.ErrNotExist)
	}
	return found, nil
}

// blobs returns the codings of a content whose row is lost.
func (s stored) blobs(h kvstore.Hash) (found Found, err error) {
	for _, c := range []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity} {
		coded, err := s.store.Get(kvstore.Blobs, append(h[:len(h):len(h)], byte(c)))
		if err == nil {
			found.Coded = append(found.Coded, kvstore.Coded{Coding: c, Bytes: coded})
		}
	}
	if found.Coded == nil {
		return found, fmt.Errorf("content %s: %w", h, fs.ErrNotExist)
	}
	return found, nil
}
