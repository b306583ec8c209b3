package library

import (
	"errors"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// An Upgrade is the delta that a browser downloads if it has the same file of another version. Bytes is its size.
type Upgrade struct {
	From  string `json:"from"` // the version
	Bytes int64  `json:"bytes"`
}

// Upgrades returns the sizes of the stored deltas of the file f of release r against the file at the same path in the
// versions that [packages.Predecessors] chooses, nearest first. versions are the library's published ones. It returns none
// if the server sends no deltas, or the list of deltas is damaged.
func (x *Index) Upgrades(r *Release, f views.PublishedFile, versions []views.Version) ([]Upgrade, error) {
	if !x.options.Dictionaries {
		return nil, nil
	}
	return readUpgrades(x.store, r, f, versions)
}

// readUpgrades returns the sizes of the deltas in the store of the file f of release r against the file at the same path in
// the versions that [packages.Predecessors] chooses, nearest first. versions are the library's published ones. It returns
// none if the list of deltas is damaged.
func readUpgrades(store kvstore.Reader, r *Release, f views.PublishedFile, versions []views.Version) (upgrades []Upgrade, err error) {
	deltas, err := kvstore.ReadDeltas(store, f.Hash)
	switch {
	case errors.Is(err, kvstore.ErrCorrupt): // `larder fsck` reports it
		return nil, nil
	case err != nil || len(deltas) == 0:
		return nil, err
	}
	for _, from := range packages.Predecessors(r.Version, VersionNames(versions)) {
		before, err := views.LookupFile(store, r.Library, from, f.Path)
		if errors.Is(err, kvstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, d := range deltas {
			if d.Dictionary == before.Hash {
				upgrades = append(upgrades, Upgrade{from, d.Length})
			}
		}
	}
	return upgrades, nil
}
