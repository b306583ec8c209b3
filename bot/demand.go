package bot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages"
)

// A Demand is how often a package is downloaded elsewhere, for the order of search.
type Demand struct {
	Downloads int64     `json:"downloads"` // in a month
	AsOf      time.Time `json:"asOf,omitzero"`
	Asked     bool      `json:"asked,omitempty"` // npm said so, not the catalogue
}

var demandSuffix = []byte("downloads")

// demandKey is beside that of the package's Upstream, which is written whenever upstream was asked.
func demandKey(pkg string) []byte { return kvstore.Key(pkg, string(demandSuffix)) }

// IsDemand reports whether a key in [kvstore.Upstreams] is that of a package's demand.
func IsDemand(key []byte) bool {
	_, kind, ok := bytes.Cut(key, []byte{0})
	return ok && bytes.Equal(kind, demandSuffix)
}

// ReadDemand returns the demand of all packages of which it is known.
func ReadDemand(r kvstore.Reader) (map[string]Demand, error) {
	found := map[string]Demand{}
	for item, err := range r.Scan(kvstore.Upstreams, kvstore.Range{}) {
		if err != nil {
			return nil, fmt.Errorf("bot: couldn't read how often packages are downloaded: %w", err)
		}
		if !IsDemand(item.Key) {
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

// adoptPopularity takes what the catalogue says of its packages' popularity, but where npm has said it later.
func (b *Bot) adoptPopularity(c *packages.Catalogue) error {
	said := c.Popularity()
	known, err := ReadDemand(b.store)
	if err != nil {
		return err
	}
	batch := b.store.NewBatch()
	defer batch.Close()
	for name, n := range said.Downloads {
		if _, ok := c.Get(name); !ok {
			continue
		}
		before, ok := known[name]
		if now := (Demand{Downloads: n, AsOf: said.AsOf}); !ok || before != now && !(before.Asked && before.AsOf.After(said.AsOf)) {
			if err := setDemand(batch, name, now); err != nil {
				return err
			}
		}
	}
	for name, before := range known {
		if _, ok := said.Downloads[name]; !ok && !before.Asked {
			batch.Delete(kvstore.Upstreams, demandKey(name))
		}
	}
	return batch.Commit()
}

func setDemand(batch *kvstore.Batch, name string, d Demand) error {
	data, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	batch.Set(kvstore.Upstreams, demandKey(name), data)
	return nil
}

// The budget of asking how often packages are downloaded: sixty requests in an hour, and for each package one in a month.
const (
	countEvery = time.Minute
	countAgain = 30 * 24 * time.Hour
	countPause = time.Hour // after an answer that is none
)

// countDownloads asks for the demand of one package after another, those first of which it was never asked, until ctx ends.
func (b *Bot) countDownloads(ctx context.Context) error {
	for pause := countEvery; retry.Sleep(ctx, pause) == nil; {
		name, target, err := b.uncounted()
		if err != nil {
			return err
		}
		if pause = countEvery; name == "" {
			pause = countPause
			continue
		}
		if err := b.count(ctx, name, target); err != nil {
			if stops(err) || ctx.Err() != nil {
				return err
			}
			b.logger.Warn("couldn't ask how often a package is downloaded; it is tried again", "package", name, "after", countPause, "err", err)
			pause = countPause
		}
	}
	return nil
}

// uncounted returns the package of npm's that it is longest since it was asked about, "" where none is due.
func (b *Bot) uncounted() (name, target string, err error) {
	known, err := ReadDemand(b.store)
	if err != nil {
		return "", "", err
	}
	oldest := b.options.Now().Add(-countAgain)
	for _, p := range b.catalogue().Packages() {
		if p.Autoupdate == nil || p.Autoupdate.Source != npmType {
			continue
		}
		var asked time.Time
		if d := known[p.Name]; d.Asked {
			asked = d.AsOf
		}
		if asked.Before(oldest) || asked.IsZero() && name == "" {
			name, target, oldest = p.Name, p.Autoupdate.Target, asked
		}
	}
	return name, target, nil
}

// count asks for the demand of one package.
func (b *Bot) count(ctx context.Context, name, target string) error {
	n, err := b.options.Demand(ctx, target)
	if errors.Is(err, fetch.ErrNotFound) {
		n, err = 0, nil // of a new package nothing is counted yet
	}
	if err != nil {
		return err
	}
	batch := b.store.NewBatch()
	defer batch.Close()
	if err := setDemand(batch, name, Demand{Downloads: n, AsOf: b.options.Now().UTC().Truncate(time.Second), Asked: true}); err != nil {
		return err
	}
	return batch.Commit()
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
	// A thousand downloads from npm in a month count as one request here: most of them are of machines that build.
	downloadsPerRequest = 1000
)

// NewPopularity returns one that adds the requests here.
func NewPopularity(store kvstore.Reader, requests func(name string) float64) *Popularity {
	return &Popularity{store: store, requests: requests}
}

// Of returns how much a package is in demand, 0 for unknown. Only the order of the numbers counts.
func (p *Popularity) Of(name string) float64 {
	d, _ := p.Downloads(name)
	return p.requests(name) + float64(d.Downloads)/downloadsPerRequest
}

// Downloads returns how often a package is downloaded elsewhere, where that is known.
func (p *Popularity) Downloads(name string) (Demand, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.demand == nil || now.Sub(p.read) >= demandEvery {
		p.read = now
		if demand, err := ReadDemand(p.store); err == nil {
			p.demand = demand
		} else if p.demand == nil {
			p.demand = map[string]Demand{}
		}
	}
	d, ok := p.demand[name]
	return d, ok
}
