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

// A Demand is how much a package is wanted elsewhere, for the order of search.
type Demand struct {
	Downloads int64     `json:"downloads,omitempty"` // from npm, in a month
	AsOf      time.Time `json:"asOf,omitzero"`       // zero where the downloads are not known
	Asked     bool      `json:"asked,omitempty"`     // npm said so, not the catalogue
	GitHub    *Stars    `json:"github,omitempty"`    // nil until GitHub was asked
}

// Stars are what GitHub says of how much a repository is liked.
type Stars struct {
	git.Counts
	Repository string    `json:"repository"`     // that they are of, as [git.Place] writes it
	AsOf       time.Time `json:"asOf"`           // when GitHub was asked
	ETag       string    `json:"etag,omitempty"` // of its answer
	Missing    bool      `json:"missing,omitempty"`
}

var demandSuffix = []byte("downloads")

// demandKey returns the key of the row with the [Demand] of a package. It is not in the row of its Upstream, which is written with each poll.
func demandKey(pkg string) []byte { return kvstore.Key(pkg, string(demandSuffix)) }

// IsDemandKey reports whether a key in [kvstore.Upstreams] is that of a package's [Demand].
func IsDemandKey(key []byte) bool {
	_, kind, ok := bytes.Cut(key, []byte{0})
	return ok && bytes.Equal(kind, demandSuffix)
}

// ReadAllDemand returns the stored [Demand] of all packages by name.
func ReadAllDemand(r kvstore.Reader) (map[string]Demand, error) {
	found := map[string]Demand{}
	for item, err := range r.Scan(kvstore.Upstreams, kvstore.Range{}) {
		if err != nil {
			return nil, fmt.Errorf("bot: couldn't read how often packages are downloaded: %w", err)
		}
		if !IsDemandKey(item.Key) {
			continue
		}
		name, _, _ := bytes.Cut(item.Key, []byte{0})
		var d Demand
		if json.Unmarshal(item.Value, &d) == nil { // a damaged row only costs a place in an order
			found[string(name)] = d
		}
	}
	return found, nil
}

// StorePopularity stores the download counts that a catalogue has for its packages, except for packages of which npm has returned a later count.
func (r *Records) StorePopularity(c *packages.Catalogue) error {
	said := c.Popularity()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	known, err := ReadAllDemand(r.store)
	if err != nil {
		return err
	}
	batch := r.store.NewBatch()
	defer batch.Close()
	for name, n := range said.Downloads {
		before := known[name]
		if _, ok := c.Get(name); !ok || before.Asked && before.AsOf.After(said.AsOf) && !before.AsOf.After(r.options.Now()) {
			continue
		}
		if now := (Demand{Downloads: n, AsOf: said.AsOf, GitHub: before.GitHub}); now != before {
			if err := setDemand(batch, name, now); err != nil {
				return err
			}
		}
	}
	for name, before := range known {
		if _, ok := said.Downloads[name]; ok || before.Asked || before.AsOf.IsZero() {
			continue
		}
		if err := setDemand(batch, name, Demand{GitHub: before.GitHub}); err != nil {
			return err
		}
	}
	return batch.Commit()
}

// setDemand adds the row with a package's [Demand] to a batch, or deletes it if the demand is zero.
func setDemand(batch *kvstore.Batch, name string, d Demand) error {
	if d == (Demand{}) {
		batch.Delete(kvstore.Upstreams, demandKey(name))
		return nil
	}
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	batch.Set(kvstore.Upstreams, demandKey(name), data)
	return nil
}

// LookupDemand returns the stored [Demand] of a package, the zero value if there is none or its row is damaged.
func LookupDemand(r kvstore.Reader, name string) (d Demand, err error) {
	data, err := r.Get(kvstore.Upstreams, demandKey(name))
	if errors.Is(err, kvstore.ErrNotFound) {
		return Demand{}, nil
	}
	if err == nil && json.Unmarshal(data, &d) != nil {
		d = Demand{}
	}
	return d, err
}

// ChangeDemand applies a change to the stored [Demand] of a package.
func (r *Records) ChangeDemand(name string, change func(*Demand)) error {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	d, err := LookupDemand(r.store, name)
	if err != nil {
		return err
	}
	change(&d)
	batch := r.store.NewBatch()
	defer batch.Close()
	if err := setDemand(batch, name, d); err != nil {
		return err
	}
	return batch.Commit()
}

// IsStarredBefore reports whether GitHub should be requested for the stars of d's package before those of other's: without a download count before with
// one, then the longest ago.
func (d Demand) IsStarredBefore(other Demand) bool {
	if d.AsOf.IsZero() != other.AsOf.IsZero() {
		return d.AsOf.IsZero()
	}
	if d.GitHub == nil || other.GitHub == nil {
		return d.GitHub == nil && other.GitHub != nil
	}
	return d.GitHub.AsOf.Before(other.GitHub.AsOf)
}

// A Popularity answers how much packages are in demand, from what is known of their downloads elsewhere and of the requests
// here. What the store has of the former is read again every ten minutes.
type Popularity struct {
	store    kvstore.Reader
	requests func(name string) float64

	mu     sync.Mutex
	read   time.Time
	demand map[string]Demand
}

const (
	demandEvery = 10 * time.Minute
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

// Score returns a number by which search results are ordered, 0 for an unknown package. npm is the npm package of its releases, "" for none; published is
// the download count that the publisher stored with the newest release, 0 for none. Both count only if this process has not requested npm's or GitHub's
// counts, as on a mirror.
func (p *Popularity) Score(name, npm string, published int64) float64 {
	d := p.Demand(name)
	downloads := cmp.Or(d.Downloads, published)
	if downloads == 0 && d.GitHub != nil {
		downloads = downloadsPerStar * d.GitHub.Stars
	}
	if rank := packages.PopularRank(npm); downloads == 0 && rank > 0 {
		downloads = int64(downloadsOfMostPopular / rank)
	}
	return p.requests(name) + float64(downloads)/downloadsPerRequest
}

// Demand returns the stored [Demand] of a package, up to ten minutes old.
func (p *Popularity) Demand(name string) Demand {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.demand == nil || now.Sub(p.read) >= demandEvery {
		p.read = now
		if demand, err := ReadAllDemand(p.store); err == nil {
			p.demand = demand
		} else if p.demand == nil {
			p.demand = map[string]Demand{}
		}
	}
	return p.demand[name]
}
