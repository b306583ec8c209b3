package search

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// Query is what to look for.
type Query struct {
	// Text is what somebody typed: any bytes. Without anything but white space
	// it finds every library.
	Text string
	// Fields are the attributes to look in, of [Fields], without regard to case.
	// Unknown ones are ignored; where none is left, all are looked in.
	Fields []string
	// Popularity tells how much a library is wanted, in any unit; 0 is unknown.
	// Nil: no library is known to be wanted more than another.
	Popularity func(name string) float64
}

// Search returns the names of the libraries that match q, best first; the order
// is described with the package. For a query without text it is the alphabet's.
func (x *Index) Search(ctx context.Context, q Query) ([]string, error) {
	text := strings.TrimSpace(cutBytes(q.Text, maxText))
	answers, err := x.find(ctx, text, q.Fields)
	if err != nil {
		return nil, err
	}
	if text == "" {
		return namesOf(answers), nil
	}
	return rank(answers, text, q.Popularity), nil
}

// find returns what matches, sorted by name.
func (x *Index) find(ctx context.Context, text string, names []string) ([]answer, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.state == nil {
		return nil, ErrClosed
	}
	l := &lookup{state: x.state, ctx: ctx, fields: chosen(names)}
	matches, err := l.all(text)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("search: couldn't look up %q: %w", cutBytes(text, 80), err)
	}
	var answers []answer
	for i, m := range matches {
		if m.tier != noTier {
			answers = append(answers, answer{match: m, name: l.libraries[i].name})
		}
	}
	return answers, nil
}

// chosen returns the fields to look in.
func chosen(names []string) []*field {
	var list, all []*field
	for i := range fields {
		f := &fields[i]
		all = append(all, f)
		if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, f.name) }) {
			list = append(list, f)
		}
	}
	if len(list) == 0 || slices.Contains(names, "*") {
		return all
	}
	return list
}

// queryWords returns the words of a query that count, those first that probably
// fewest libraries have.
func queryWords(text string) []string {
	seen := map[string]bool{}
	var list []string
	for _, w := range words(text) {
		if !seen[w] && len(list) < maxWords {
			seen[w] = true
			list = append(list, w)
		}
	}
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return list
}
