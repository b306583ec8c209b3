package logs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// A Query selects entries. The zero value selects all of them.
type Query struct {
	Package string // "" for all
	Version string // of Package, "" for all
	Kinds   []Kind // nil for all
	// Since is the time from which on entries are wanted; zero for all.
	Since time.Time
	// Before is the index before which entries are wanted, 0 for the newest.
	Before int64
	// Limit is how many entries are wanted at most. Required.
	Limit int
}

// Matches reports whether the query selects an entry, whatever its index.
func (q Query) Matches(e Entry) bool {
	return (q.Package == "" || e.Package == q.Package) &&
		(q.Version == "" || e.Version == q.Version) &&
		(len(q.Kinds) == 0 || slices.Contains(q.Kinds, e.Kind)) &&
		!e.Time.Before(q.Since)
}

// A Page is a part of what a query selects.
type Page struct {
	Entries []Indexed // newest first
	// Next is the Before of the query for what follows, 0 where nothing does.
	Next int64
}

// clockSlack is how far entries may be out of the order of their times: they are in
// the order in which they were written, and clocks are put right.
const clockSlack = 24 * time.Hour

// Read returns the newest entries that a query selects. What it costs depends on how
// many those are, and not on how many there are besides.
func Read(r kvstore.Reader, q Query) (Page, error) {
	var page Page
	for e, err := range q.walk(r, span{to: q.Before, reverse: true}) {
		if err != nil {
			return Page{}, err
		}
		if e.Time.Before(q.Since.Add(-clockSlack)) {
			break
		}
		if e.Time.Before(q.Since) {
			continue
		}
		if len(page.Entries) == q.Limit {
			page.Next = page.Entries[q.Limit-1].Index
			break
		}
		page.Entries = append(page.Entries, e)
	}
	return page, nil
}

// Known reports whether an entry is about the package, or, where version is not
// "", about that version of it.
func Known(r kvstore.Reader, pkg, version string) (bool, error) {
	if pkg == "" || strings.ContainsRune(pkg+version, 0) {
		return false, nil
	}
	for _, err := range r.Scan(kvstore.LogIndex, kvstore.Range{Prefix: kvstore.Prefix(scopeOf(pkg, version)...)}) {
		return err == nil, err
	}
	return false, nil
}

// First returns the oldest entry about a package, or kvstore.ErrNotFound.
func First(r kvstore.Reader, pkg string) (Indexed, error) {
	for e, err := range (Query{Package: pkg}).walk(r, span{}) {
		return e, err
	}
	return Indexed{}, fmt.Errorf("logs: package %q: %w", pkg, kvstore.ErrNotFound)
}

// Publication returns the newest entry that published a release, or kvstore.ErrNotFound. It
// takes the log's word, whatever became of the views.
func Publication(r kvstore.Reader, pkg, version string) (Indexed, error) {
	for e, err := range (Query{Package: pkg, Version: version, Kinds: Publications}).walk(r, span{reverse: true}) {
		return e, err
	}
	return Indexed{}, fmt.Errorf("logs: a publication of %q %q: %w", pkg, version, kvstore.ErrNotFound)
}

// mostNext bounds what Next returns, in entries.
const mostNext = 256

// Next waits until the log has an entry from an index on, and returns those that the
// query's package, version and kinds select, oldest first, of which there may be none.
// It returns no more than some hundreds, so that a caller that sends them to a slow client
// keeps nothing open meanwhile; after is the index from which to go on. It returns
// ctx's error when that ends first.
func (l *Log) Next(ctx context.Context, from int64, q Query) (entries []Indexed, after int64, err error) {
	checkpoint, err := l.Wait(ctx, from)
	if err != nil {
		return nil, from, err
	}
	for e, err := range q.walk(l.store, span{from: from, to: checkpoint.Size}) {
		if err != nil {
			return nil, from, err
		}
		if entries = append(entries, e); len(entries) == mostNext {
			return entries, e.Index + 1, nil
		}
	}
	return entries, checkpoint.Size, nil
}

// A span is some of the indexes of the log, and the order in which they are wanted.
type span struct {
	from    int64 // included
	to      int64 // excluded, 0 for all that there are
	reverse bool
}

// after returns the range of the keys that end a prefix with the span's indexes.
func (s span) after(prefix []byte) kvstore.Range {
	r := kvstore.Range{Prefix: prefix, From: append(slices.Clone(prefix), indexKey(s.from)...), Reverse: s.reverse}
	if s.to > 0 {
		r.To = append(slices.Clone(prefix), indexKey(s.to)...)
	}
	return r
}

// comesBefore reports whether the index a is wanted before b.
func (s span) comesBefore(a, b int64) bool {
	if s.reverse {
		return a > b
	}
	return a < b
}

// walk iterates over the entries of the query's package, version and kinds.
func (q Query) walk(r kvstore.Reader, s span) iter.Seq2[Indexed, error] {
	if q.Package == "" && len(q.Kinds) == 0 {
		return walkAll(r, s)
	}
	return func(yield func(Indexed, error) bool) {
		for index, err := range q.indexes(r, s) {
			var e Indexed
			if err == nil {
				e, err = ReadEntry(r, index)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func walkAll(r kvstore.Reader, s span) iter.Seq2[Indexed, error] {
	return func(yield func(Indexed, error) bool) {
		for item, err := range r.Scan(kvstore.LogEntries, s.after(nil)) {
			var e Indexed
			if err == nil {
				var index int64
				if index, err = parseIndexKey(item.Key); err == nil {
					e, err = indexed(index, slices.Clone(item.Value))
				}
			} else {
				err = fmt.Errorf("logs: couldn't read the entries: %w", err)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// indexes merges what the index has of each kind.
func (q Query) indexes(r kvstore.Reader, s span) iter.Seq2[int64, error] {
	kinds := q.Kinds
	if len(kinds) == 0 {
		kinds = Kinds
	}
	return func(yield func(int64, error) bool) {
		var heads []*head
		defer func() {
			for _, h := range heads {
				h.stop()
			}
		}()
		for i, kind := range kinds {
			if slices.Contains(kinds[:i], kind) || strings.ContainsRune(string(kind)+q.Package+q.Version, 0) {
				continue
			}
			heads = append(heads, q.newHead(r, kind, s))
		}
		for {
			var first *head
			for _, h := range heads {
				if h.err != nil {
					yield(0, h.err)
					return
				}
				if h.ok && (first == nil || s.comesBefore(h.index, first.index)) {
					first = h
				}
			}
			if first == nil || !yield(first.index, nil) {
				return
			}
			first.step()
		}
	}
}

// A head is where a scan of one kind has come to.
type head struct {
	index int64
	err   error
	ok    bool
	next  func() (int64, error, bool)
	stop  func()
}

func (q Query) newHead(r kvstore.Reader, kind Kind, s span) *head {
	prefix := kindPrefix(scopeOf(q.Package, q.Version), kind)
	h := new(head)
	h.next, h.stop = iter.Pull2(func(yield func(int64, error) bool) {
		for item, err := range r.Scan(kvstore.LogIndex, s.after(prefix)) {
			var index int64
			if err == nil {
				index, err = parseIndexRow(prefix, item.Key)
			} else {
				err = fmt.Errorf("logs: couldn't read the index: %w", err)
			}
			if !yield(index, err) {
				return
			}
		}
	})
	h.step()
	return h
}

func (h *head) step() { h.index, h.err, h.ok = h.next() }

// ErrSince says that a text is no time.
var ErrSince = errors.New("must be a time such as 2006-01-02 or 2006-01-02T15:04:05Z, or how long ago: 90m, 24h, 7d")

// ParseSince reads a time as people write it: a day, a time (RFC 3339), or how long
// before now it was.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return t, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, ErrSince
}

// ParseKinds reads kinds that are separated by commas. Nothing is no kinds, which a
// Query takes for all.
func ParseKinds(text string) ([]Kind, error) {
	var kinds []Kind
	for word := range strings.SplitSeq(text, ",") {
		kind := Kind(strings.ToLower(strings.TrimSpace(word)))
		switch {
		case kind == "":
		case !slices.Contains(Kinds, kind):
			return nil, fmt.Errorf("must be some of %s, not %.50q", kindNames(), word)
		case !slices.Contains(kinds, kind):
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

func kindNames() string {
	names := make([]string, len(Kinds))
	for i, k := range Kinds {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

// The index finds entries without reading the others. An entry has a row in it for
// each scope that can be asked for: the whole log, its package, its release. Within
// a scope rows are apart by kind, so that the few refusals among thousands of
// publications cost no more than as many refusals alone.
//
// Append writes the rows; repair calls Index for each entry.

// indexRow is the value of every row: the version of its form.
var indexRow = []byte{1}

// Index adds the rows of the index that an entry has to b.
func Index(b *kvstore.Batch, index int64, e Entry) {
	for _, scope := range scopes(e.Package, e.Version) {
		b.Set(kvstore.LogIndex, indexRowKey(scope, e.Kind, index), indexRow)
	}
}

// scopes are where an entry about these is found, the widest first.
func scopes(pkg, version string) [][]string {
	all := [][]string{{"a"}}
	if pkg != "" {
		all = append(all, []string{"p", pkg})
	}
	if pkg != "" && version != "" {
		all = append(all, []string{"r", pkg, version})
	}
	return all
}

func scopeOf(pkg, version string) []string {
	all := scopes(pkg, version)
	return all[len(all)-1]
}

// kindPrefix begins the rows of one kind in a scope, which the entries' indexes end.
func kindPrefix(scope []string, kind Kind) []byte {
	return append(kvstore.Prefix(scope...), kvstore.Prefix(string(kind))...)
}

func indexRowKey(scope []string, kind Kind, index int64) []byte {
	return append(kindPrefix(scope, kind), indexKey(index)...)
}

// parseIndexRow returns the index that a row's key ends with.
func parseIndexRow(prefix, key []byte) (int64, error) {
	if len(key) != len(prefix)+8 {
		return 0, fmt.Errorf("logs: the row %q of the index is malformed; `larder repair` makes it again", key)
	}
	return parseIndexKey(key[len(prefix):])
}
