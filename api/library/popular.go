package library

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// A ranking is what Popular answers from.
type ranking struct {
	mu        sync.Mutex
	of        *Listing
	made      time.Time
	libraries []*Library // most in demand first
}

// rankEvery is how long the popular ones are believed.
const rankEvery = time.Minute

// Popular returns the libraries that are most in demand, up to n; where nothing is
// known of demand, those with the most versions. It may be a minute late to see that
// demand has changed: asking for that of every library takes a millisecond.
func (x *Index) Popular(ctx context.Context, n int) ([]*Library, error) {
	listing, err := x.Listing(ctx)
	if err != nil {
		return nil, err
	}
	r := &x.ranking
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := x.now().Sub(r.made); r.of != listing || age < 0 || age >= rankEvery {
		r.of, r.made, r.libraries = listing, x.now(), x.rank(listing)
	}
	n = max(0, min(n, len(r.libraries)))
	return r.libraries[:n:n], nil
}

// rank returns the libraries that people may look for in the order of demand.
func (x *Index) rank(listing *Listing) []*Library {
	type ranked struct {
		*Library
		demand float64
	}
	var all []ranked
	for _, l := range listing.Libraries {
		if l.HasFile() && !l.Hidden {
			all = append(all, ranked{l, x.popularity(l.Name)})
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.demand, a.demand), cmp.Compare(b.Versions, a.Versions))
	})
	libraries := make([]*Library, len(all))
	for i := range libraries {
		libraries[i] = all[i].Library
	}
	return libraries
}
