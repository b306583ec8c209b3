package sources

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages"
)

// PopularityCounts are the downloads and stars that a package has elsewhere, for the order of search results.
type PopularityCounts struct {
	Downloads int64     `json:"downloads,omitempty"` // from npm, in a month
	AsOf      time.Time `json:"asOf,omitzero"`       // zero if the downloads are unknown
	Asked     bool      `json:"asked,omitempty"`     // npm said so, not the catalogue
	GitHub    *Stars    `json:"github,omitempty"`    // nil until GitHub was requested
}

// Stars are the counts of a repository at GitHub.
type Stars struct {
	git.Counts
	Repository string    `json:"repository"`     // as [git.CanonicalAddress] writes it
	AsOf       time.Time `json:"asOf"`           // when GitHub was requested
	ETag       string    `json:"etag,omitempty"` // of the response
	Missing    bool      `json:"missing,omitempty"`
}

var popularitySuffix = []byte("downloads")

// popularityKey returns the key of the row with the [PopularityCounts] of a package. It is not in the row of its Upstream, which is written with
// each poll.
func popularityKey(pkg string) []byte { return kvstore.Key(pkg, string(popularitySuffix)) }

// IsPopularityKey reports whether a key in [kvstore.Upstreams] is that of a package's [PopularityCounts].
func IsPopularityKey(key []byte) bool {
	_, kind, ok := bytes.Cut(key, []byte{0})
	return ok && bytes.Equal(kind, popularitySuffix)
}

// ReadAllPopularityCounts returns the stored [PopularityCounts] of all packages by name. It leaves out rows that are damaged.
func ReadAllPopularityCounts(r kvstore.Reader) (map[string]PopularityCounts, error) {
	found := map[string]PopularityCounts{}
	err := scanRows(r, kvstore.Range{}, popularitySuffix, func(pkg, rest string, d PopularityCounts) {
		if rest == "" {
			found[pkg] = d
		}
	})
	if err != nil {
		return nil, fmt.Errorf("bot: couldn't read how often packages are downloaded: %w", err)
	}
	return found, nil
}

// StorePopularity stores the download counts that a catalogue has for its packages, except for packages of which npm has returned a later count. It
// deletes counts of earlier catalogues for packages that this one has none for. Stars stay. It holds Mu meanwhile, and stores all or nothing.
func (r *Records) StorePopularity(c *packages.Catalogue) error {
	said := c.Popularity()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	known, err := ReadAllPopularityCounts(r.store)
	if err != nil {
		return err
	}
	changed := make(map[string]PopularityCounts)
	for name, n := range said.Downloads {
		before := known[name]
		if _, ok := c.Get(name); !ok || before.Asked && before.AsOf.After(said.AsOf) && !before.AsOf.After(r.options.Now()) {
			continue
		}
		if now := (PopularityCounts{Downloads: n, AsOf: said.AsOf, GitHub: before.GitHub}); now != before {
			changed[name] = now
		}
	}
	for name, before := range known {
		if _, ok := said.Downloads[name]; !ok && !before.Asked && !before.AsOf.IsZero() {
			changed[name] = PopularityCounts{GitHub: before.GitHub}
		}
	}
	return r.store.WriteBatch(func(b *kvstore.Batch) error {
		for name, d := range changed {
			if err := setPopularityCounts(b, name, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// setPopularityCounts adds the row with a package's [PopularityCounts] to a batch, or deletes it if the counts are zero.
func setPopularityCounts(batch *kvstore.Batch, name string, d PopularityCounts) error {
	if d == (PopularityCounts{}) {
		batch.Delete(kvstore.Upstreams, popularityKey(name))
		return nil
	}
	return setRow(batch, popularityKey(name), d)
}

// LookupPopularityCounts returns the stored [PopularityCounts] of a package, the zero value if none exists or its row is damaged.
func LookupPopularityCounts(r kvstore.Reader, name string) (d PopularityCounts, err error) {
	data, err := r.Get(kvstore.Upstreams, popularityKey(name))
	if errors.Is(err, kvstore.ErrNotFound) {
		return PopularityCounts{}, nil
	}
	if err == nil && json.Unmarshal(data, &d) != nil {
		d = PopularityCounts{}
	}
	return d, err
}

// ChangePopularityCounts applies a change to the stored [PopularityCounts] of a package, and stores the result, or deletes the row if that is zero.
// It holds Mu meanwhile.
func (r *Records) ChangePopularityCounts(name string, change func(*PopularityCounts)) error {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	d, err := LookupPopularityCounts(r.store, name)
	if err != nil {
		return err
	}
	change(&d)
	return r.store.WriteBatch(func(b *kvstore.Batch) error { return setPopularityCounts(b, name, d) })
}

// StarsDueBefore reports whether GitHub should be requested for the stars of d's package before those of other's. Packages without a download count
// come before those with one; then those whose stars were never requested, and those requested the longest ago.
func (d PopularityCounts) StarsDueBefore(other PopularityCounts) bool {
	if d.AsOf.IsZero() != other.AsOf.IsZero() {
		return d.AsOf.IsZero()
	}
	if d.GitHub == nil || other.GitHub == nil {
		return d.GitHub == nil && other.GitHub != nil
	}
	return d.GitHub.AsOf.Before(other.GitHub.AsOf)
}

// A Popularity orders packages by their downloads elsewhere and by the requests on this server. It reads the stored counts again every ten minutes.
type Popularity struct {
	store    kvstore.Reader
	requests func(name string) float64

	mu     sync.Mutex
	read   time.Time
	counts map[string]PopularityCounts
}

const (
	countsInterval = 10 * time.Minute
	// A thousand downloads from npm in a month count as one request here: most of them are of machines that build. Where
	// there are none, a star at GitHub counts as a hundred, about what well-known packages have for each.
	downloadsPerRequest = 1000
	downloadsPerStar    = 100
	// The first of the built-in list of popular packages counts as so many downloads, the n-th as an n-th of it, which is about how
	// the downloads of npm's packages are distributed.
	downloadsOfMostPopular = 300_000_000
)

// NewPopularity returns the popularity of packages by the rows in store and by requests, which returns the number of requests for a package on this
// server.
func NewPopularity(store kvstore.Reader, requests func(name string) float64) *Popularity {
	return &Popularity{store: store, requests: requests}
}

// Score returns a number by which search results are ordered: the requests for the package here, and a thousandth of its downloads elsewhere. These
// are the stored count; else published, which the publisher stored with the newest release; else 100 for each stored star; else an estimate if npm,
// the name of the npm package or "", is in a built-in list of popular packages.
func (p *Popularity) Score(name, npm string, published int64) float64 {
	d := p.Counts(name)
	downloads := cmp.Or(d.Downloads, published)
	if downloads == 0 && d.GitHub != nil {
		downloads = downloadsPerStar * d.GitHub.Stars
	}
	if rank := packages.PopularRank(npm); downloads == 0 && rank > 0 {
		downloads = int64(downloadsOfMostPopular / rank)
	}
	return p.requests(name) + float64(downloads)/downloadsPerRequest
}

// Counts returns the stored [PopularityCounts] of a package, the zero value if none exists. It reads those of all packages into memory at most every
// ten minutes, and keeps the earlier ones if that fails.
func (p *Popularity) Counts(name string) PopularityCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.counts == nil || now.Sub(p.read) >= countsInterval {
		p.read = now
		if demand, err := ReadAllPopularityCounts(p.store); err == nil {
			p.counts = demand
		} else if p.counts == nil {
			p.counts = map[string]PopularityCounts{}
		}
	}
	return p.counts[name]
}
