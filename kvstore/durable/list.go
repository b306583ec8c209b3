package durable

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
)

// ListOptions selects keys, in the order of their bytes. The zero value selects all
// of them; each field narrows the others.
type ListOptions struct {
	Prefix     string // only keys that begin with it
	Start      string // the first key, included
	StartAfter string // the first key, excluded; not together with Start
	End        string // the end, excluded
	Reverse    bool   // the last key comes first; the bounds stay
	Limit      int    // how many, from where the order begins; 0: all
}

// An Entry is a key and its value.
type Entry struct {
	Key   string
	Value []byte
}

// List returns the entries that o selects. It reads from the disk, always.
func (s *State) List(ctx context.Context, o ListOptions, options ...Option) ([]Entry, error) {
	if o.Start != "" && o.StartAfter != "" {
		return nil, errors.New("a list can start at a key or after one, not both")
	}
	if o.Limit < 0 {
		return nil, errors.New("a list can't have a negative limit")
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	changes := s.overlay(o)
	var entries []Entry
	err := s.read(join(options), func(r kvstore.Reader) (err error) {
		entries, err = s.merge(r, o, changes)
		return err
	}, func() {
		if s.tx != nil {
			return // some of it may never happen
		}
		for _, e := range entries {
			s.object.cache.put(e.Key, bytes.Clone(e.Value), true)
		}
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// selects reports whether a key is within the bounds.
func (o ListOptions) selects(key string) bool {
	return strings.HasPrefix(key, o.Prefix) && key >= o.Start && (o.StartAfter == "" || key > o.StartAfter) && (o.End == "" || key < o.End)
}

func (o ListOptions) compare(a, b string) int {
	if o.Reverse {
		a, b = b, a
	}
	return cmp.Compare(a, b)
}

// overlay returns what was changed and may not be in the store yet, in the order of
// the list. The caller holds o.mu.
func (s *State) overlay(o ListOptions) []*change {
	newest := make(map[string]*change)
	for key, c := range s.object.dirty {
		if o.selects(key) {
			newest[key] = c
		}
	}
	if s.tx != nil {
		for key, c := range s.tx.changes {
			if o.selects(key) {
				newest[key] = c
			}
		}
	}
	changes := make([]*change, 0, len(newest))
	for _, c := range newest {
		// A change may be made again while the list is read.
		changes = append(changes, &change{key: c.key, value: c.value, deleted: c.deleted})
	}
	slices.SortFunc(changes, func(a, b *change) int { return o.compare(a.key, b.key) })
	return changes
}

// merge returns what a store has, with changes on top.
func (s *State) merge(r kvstore.Reader, o ListOptions, changes []*change) (entries []Entry, err error) {
	full := func() bool { return o.Limit > 0 && len(entries) >= o.Limit }
	add := func(c *change) {
		if !c.deleted {
			entries = append(entries, Entry{c.key, bytes.Clone(c.value)})
		}
	}
	prefix := valuePrefix(s.object.class.name, s.object.name)
	at := func(key string) []byte { return append(bytes.Clone(prefix), key...) }
	bounds := kvstore.Range{Prefix: at(o.Prefix), Reverse: o.Reverse, From: at(o.Start)}
	if o.StartAfter != "" {
		bounds.From = at(o.StartAfter + "\x00")
	}
	if o.End != "" {
		bounds.To = at(o.End)
	}
	for item, err := range r.Scan(kvstore.Durable, bounds) {
		if err != nil {
			return nil, err
		}
		key := string(item.Key[len(prefix):])
		for len(changes) > 0 && o.compare(changes[0].key, key) < 0 && !full() {
			add(changes[0])
			changes = changes[1:]
		}
		if full() {
			return entries, nil
		}
		if len(changes) > 0 && changes[0].key == key {
			add(changes[0])
			changes = changes[1:]
		} else {
			entries = append(entries, Entry{key, bytes.Clone(item.Value)})
		}
		if full() {
			return entries, nil
		}
	}
	for ; len(changes) > 0 && !full(); changes = changes[1:] {
		add(changes[0])
	}
	return entries, nil
}
