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
	Package string `json:"package,omitempty"` // "" for all
	Version string `json:"version,omitempty"` // of Package, "" for all; [Read] ignores it without Package
	Kinds   []Kind `json:"kinds,omitempty"`   // nil for all
	// Since is the time from which on entries are wanted; zero for all.
	Since time.Time `json:"since,omitzero"`
	// Before is the index before which entries are wanted, 0 for the newest.
	Before int64 `json:"before,omitempty"`
	// Limit is how many entries are wanted at most. Required: [Read] panics if it is 0 and an entry matches.
	Limit int `json:"limit"`
}

// Matches reports whether the query selects an entry by its package, version, kind and time, ignoring Before and Limit.
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

// clockTolerance is how far entries may be out of the order of their times: they are in the order of their writes, and clocks may be
// corrected.
const clockTolerance = 24 * time.Hour

// Read returns the newest entries that a query selects, newest first and at most its Limit, and where the next page begins.
// With Since, it ends at the first entry that is over a day older, because entries are in the order of their writes. The
// cost grows with the number of entries that it returns, and not with the size of the log.
func Read(r kvstore.Reader, q Query) (Page, error) {
	var page Page
	for e, err := range q.Newest(r) {
		if err != nil {
			return Page{}, err
		}
		if e.Time.Before(q.Since.Add(-clockTolerance)) {
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

// Newest iterates over the entries before q.Before that the query's package, version and kinds select, newest first. It ignores
// the rest of the query. The caller must end after the first error.
func (q Query) Newest(r kvstore.Reader) iter.Seq2[Indexed, error] {
	return q.entries(r, span{to: q.Before, reverse: true})
}

// HasEntry reports whether the log has an entry about a package, or about a version of it if version is not "". It is false
// for an empty package, and for a name with a zero byte.
func HasEntry(r kvstore.Reader, pkg, version string) (bool, error) {
	if pkg == "" || strings.ContainsRune(pkg+version, 0) {
		return false, nil
	}
	for _, err := range r.Scan(kvstore.LogIndex, kvstore.Range{Prefix: kvstore.Prefix(scopeOf(pkg, version)...)}) {
		return err == nil, err
	}
	return false, nil
}

// FirstEntry returns the oldest entry about a package, or kvstore.ErrNotFound. pkg must not be "".
func FirstEntry(r kvstore.Reader, pkg string) (Indexed, error) {
	for e, err := range (Query{Package: pkg}).entries(r, span{}) {
		return e, err
	}
	return Indexed{}, fmt.Errorf("logs: package %q: %w", pkg, kvstore.ErrNotFound)
}

// LastPublication returns the newest entry that publishes a release, even if the release was withdrawn since, or
// kvstore.ErrNotFound. It reads the log and not the views. Neither pkg nor version may be "".
func LastPublication(r kvstore.Reader, pkg, version string) (Indexed, error) {
	for e, err := range (Query{Package: pkg, Version: version, Kinds: Publications}).Newest(r) {
		return e, err
	}
	return Indexed{}, fmt.Errorf("logs: a publication of %q %q: %w", pkg, version, kvstore.ErrNotFound)
}

// maxNext bounds what Next returns, in entries.
const maxNext = 256

// Next waits until the log has an entry from an index on, and returns the new entries that the query's package, version and
// kinds select, oldest first, which may be none. It ignores the rest of the query. It returns at most 256 entries, so that a
// caller can send them to a slow client without keeping anything open. after is the index from which to continue. If ctx
// ends first, it returns ctx's error; with any error, after is from.
func (l *Log) Next(ctx context.Context, from int64, q Query) (entries []Indexed, after int64, err error) {
	checkpoint, err := l.Wait(ctx, from)
	if err != nil {
		return nil, from, err
	}
	for e, err := range q.entries(l.store, span{from: from, to: checkpoint.Size}) {
		if err != nil {
			return nil, from, err
		}
		if entries = append(entries, e); len(entries) == maxNext {
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

// keyRange returns the range of keys that consist of a prefix and an index in the span.
func (s span) keyRange(prefix []byte) kvstore.Range {
	r := kvstore.Range{Prefix: prefix, From: append(slices.Clone(prefix), indexKey(s.from)...), Reverse: s.reverse}
	if s.to > 0 {
		r.To = append(slices.Clone(prefix), indexKey(s.to)...)
	}
	return r
}

// comesBefore reports whether the index a comes before b: is smaller, or larger if the span is reverse.
func (s span) comesBefore(a, b int64) bool {
	if s.reverse {
		return a > b
	}
	return a < b
}

// entries iterates over the entries in a span that the query's package, version and kinds select, in the span's order. It
// ignores the version if the query has no package. The caller must end after the first error.
func (q Query) entries(r kvstore.Reader, s span) iter.Seq2[Indexed, error] {
	if q.Package == "" && len(q.Kinds) == 0 {
		return allEntries(r, s)
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

// allEntries iterates over all entries in a span, in the span's order. It ends after an error of the store; an entry that
// cannot be decoded is an error too, after which the caller may continue.
func allEntries(r kvstore.Reader, s span) iter.Seq2[Indexed, error] {
	return func(yield func(Indexed, error) bool) {
		for item, err := range r.Scan(kvstore.LogEntries, s.keyRange(nil)) {
			var index int64
			if err == nil {
				index, err = parseIndexKey(item.Key)
			}
			if err != nil {
				yield(Indexed{}, fmt.Errorf("logs: couldn't read the entries: %w", err))
				return
			}
			if !yield(ParseEntry(index, slices.Clone(item.Value))) {
				return
			}
		}
	}
}

// indexes iterates over the indexes in a span of entries that the query's package, version and kinds select, in the span's
// order, merged from the index of each kind. It ends after the first error.
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

// A head is an iterator over the indexes of entries of one kind.
type head struct {
	index int64
	err   error
	ok    bool
	next  func() (int64, error, bool)
	stop  func()
}

// newHead returns an iterator over the indexes in a span of entries of one kind, which is at the first of them; its ok is
// false if there are no such entries. The caller must call stop.
func (q Query) newHead(r kvstore.Reader, kind Kind, s span) *head {
	prefix := kindPrefix(scopeOf(q.Package, q.Version), kind)
	h := new(head)
	h.next, h.stop = iter.Pull2(func(yield func(int64, error) bool) {
		for item, err := range r.Scan(kvstore.LogIndex, s.keyRange(prefix)) {
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

// step advances the iterator to the next index; ok becomes false at the end.
func (h *head) step() { h.index, h.err, h.ok = h.next() }

// ErrSince says that a text is no time.
var ErrSince = errors.New("must be a time such as 2006-01-02 or 2006-01-02T15:04:05Z, or how long ago: 90m, 24h, 7d")

// ParseSince parses a time as people write it: a day (in UTC), a time (RFC 3339), or a duration before now, such as 90m or
// 7d. The error is [ErrSince].
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

// ParseKinds parses kinds that are separated by commas, in any case and with spaces around, and returns each once. Without
// any, it returns nil, which selects all kinds. An unknown kind is an error.
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

// kindNames returns the names of all kinds, separated by commas, for messages.
func kindNames() string {
	names := make([]string, len(Kinds))
	for i, k := range Kinds {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

// The index finds entries without reading the others. An entry has a row in it for
// each scope that can be queried: the whole log, its package, its release. Within
// a scope rows are apart by kind, so that the few refusals among thousands of
// publications cost no more than as many refusals alone.
//
// Append writes the rows; a repair calls AddToIndex for each entry.

// indexRow is the value of every row: the version of its form.
var indexRow = []byte{1}

// AddToIndex adds the rows of the index for the entry with this index to a batch.
func AddToIndex(b *kvstore.Batch, index int64, e Entry) {
	for _, scope := range scopes(e.Package, e.Version) {
		b.Set(kvstore.LogIndex, indexRowKey(scope, e.Kind, index), indexRow)
	}
}

// scopes returns the parts of the index in which an entry about a package and version is found, the widest first.
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

// scopeOf returns the narrowest part of the index for a package and version, either of which may be "".
func scopeOf(pkg, version string) []string {
	all := scopes(pkg, version)
	return all[len(all)-1]
}

// kindPrefix returns the beginning of the keys for entries of one kind in a part of the index. The entries' indexes end the
// keys.
func kindPrefix(scope []string, kind Kind) []byte {
	return append(kvstore.Prefix(scope...), kvstore.Prefix(string(kind))...)
}

// indexRowKey returns the key of the row for an entry, given by its index and kind, in a part of the index.
func indexRowKey(scope []string, kind Kind, index int64) []byte {
	return append(kindPrefix(scope, kind), indexKey(index)...)
}

// parseIndexRow returns the index at the end of a key of the index with this prefix. A key with anything else after the
// prefix is an error.
func parseIndexRow(prefix, key []byte) (int64, error) {
	if len(key) != len(prefix)+8 {
		return 0, fmt.Errorf("logs: the row %q of the index is malformed; `larder repair` makes it again", key)
	}
	return parseIndexKey(key[len(prefix):])
}
