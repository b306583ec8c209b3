package library

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// A Ranking is all libraries in the order of demand.
type Ranking struct {
	// Libraries begin with those whose latest version has a main file. Among these, and among the others, those most in
	// demand come first, then those with the most versions, then those first by name.
	Libraries []*Library

	of   *Listing
	made time.Time
}

// rankEvery is how long a ranking is used.
const rankEvery = time.Minute

// Ranking returns all libraries by popularity. It computes their order again if a minute has passed or libraries have
// changed; until then it returns the same pointer, whose data must not be changed. It waits for the first listing, as
// [Index.Listing] does.
func (x *Index) Ranking(ctx context.Context) (*Ranking, error) {
	listing, err := x.Listing(ctx)
	if err != nil {
		return nil, err
	}
	x.rankingMu.Lock()
	defer x.rankingMu.Unlock()
	r := x.ranking
	if r != nil && r.of == listing {
		if age := x.options.Now().Sub(r.made); age >= 0 && age < rankEvery {
			return r, nil
		}
	}
	x.ranking = &Ranking{Libraries: x.rank(listing), of: listing, made: x.options.Now()}
	return x.ranking, nil
}

// Popular returns up to n libraries that have a published main file and are not hidden from search, most popular first. It
// waits for the first listing, as [Index.Listing] does.
func (x *Index) Popular(ctx context.Context, n int) ([]*Library, error) {
	ranking, err := x.Ranking(ctx)
	if err != nil {
		return nil, err
	}
	var popular []*Library
	for _, l := range ranking.Libraries {
		if len(popular) >= n || !l.HasFile() {
			break
		}
		if !l.Hidden {
			popular = append(popular, l)
		}
	}
	return popular, nil
}

// rank returns the listing's libraries in a new slice: those with a published main file first, and among these and the
// others by descending x.options.Popularity, then the number of versions, then the order of the listing.
func (x *Index) rank(listing *Listing) []*Library {
	demand := make(map[*Library]float64, len(listing.Libraries))
	for _, l := range listing.Libraries {
		demand[l] = x.options.Popularity(l)
	}
	ranked := slices.Clone(listing.Libraries)
	slices.SortStableFunc(ranked, func(a, b *Library) int {
		if a.HasFile() != b.HasFile() {
			if a.HasFile() {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(demand[b], demand[a]), cmp.Compare(b.Versions, a.Versions))
	})
	return ranked
}

// GitHub returns the GitHub repository of a library and its last known counts, such as stars. ok is false if the library has
// no repository there or the counts are not known; at may be empty then.
func (x *Index) GitHub(l *Library) (at GitHub, counts GitHubCounts, ok bool) {
	g := l.GitHub()
	if g == nil || x.options.GitHub == nil {
		return GitHub{}, GitHubCounts{}, false
	}
	counts, ok = x.options.GitHub(l.Name)
	return *g, counts, ok
}
