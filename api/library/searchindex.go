package library

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/larder-cdn/larder/api/search"
)

// ErrSearch says that libraries cannot be searched, though they can be listed and read.
var ErrSearch = errors.New("library: the search index cannot be used")

// A searchIndex is the full-text index of the libraries. If it fails, the libraries can be read without it, and the next update builds a
// new one.
type searchIndex struct {
	mu    sync.Mutex
	index *search.Index
	err   error // why it does not have all libraries
}

func (s *searchIndex) open() error {
	index, err := search.New()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSearch, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index = index
	return nil
}

func (s *searchIndex) close() { s.current().Close() }

func (s *searchIndex) current() *search.Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// failure returns why libraries cannot be searched, nil if they can.
func (s *searchIndex) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// update puts the changed libraries into the index, or all of them if the last update failed. A nil library has been removed.
func (s *searchIndex) update(all *Listing, changed map[string]*Library, logger *slog.Logger) {
	failed := s.failure() != nil
	if !failed && len(changed) == 0 {
		return
	}
	var err error
	if failed {
		s.close()
		err, changed = s.open(), all.byName
	}
	if err == nil {
		err = putInto(s.current(), changed)
	}
	if err != nil {
		logger.Error("library: couldn't update the search index; search responds 503 until it has been built again", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func putInto(index *search.Index, libraries map[string]*Library) error {
	var documents []search.Document
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(libraries)) {
		if l := libraries[name]; l == nil || l.Hidden {
			gone = append(gone, name)
		} else {
			documents = append(documents, l.document())
		}
	}
	if err := index.Update(documents, gone); err != nil {
		return fmt.Errorf("%w: %w", ErrSearch, err)
	}
	return nil
}

// Search returns the libraries that match text, best first. Fields restricts the
// search to some of [search.Fields]; nil is all.
func (x *Index) Search(ctx context.Context, text string, fields []string) ([]*Library, error) {
	listing, err := x.Listing(ctx)
	if err == nil {
		err = x.search.failure()
	}
	if err != nil {
		return nil, err
	}
	names, err := x.search.current().Search(ctx, search.Query{Text: text, Fields: fields, Popularity: func(name string) float64 {
		if l := listing.Library(name); l != nil {
			return x.popularity(l)
		}
		return 0 // the index is a moment ahead of the listing
	}})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("library: couldn't search for %q: %w", text, err)
	case err != nil:
		return nil, fmt.Errorf("%w: couldn't search for %q: %w", ErrSearch, text, err)
	}
	found := make([]*Library, 0, len(names))
	for _, name := range names {
		if l := listing.Library(name); l != nil { // the index may be a moment ahead
			found = append(found, l)
		}
	}
	return found, nil
}
