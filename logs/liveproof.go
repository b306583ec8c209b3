package logs

import (
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
)

// A LiveMapProof shows the record of a release in the map with a root, or that it has none.
type LiveMapProof struct {
	// Live is the release's record; nil if it is not live.
	Live *LiveRelease `json:"live,omitempty"`
	// Other is the only other release below the place where this one would be. If neither is set, the place is empty.
	Other *OtherRelease `json:"other,omitempty"`
	// Path are the hashes beside the path from that place to the root.
	Path []kvstore.Hash `json:"path"`
}

// OtherRelease is a release that shows, by its place, that another one is not live.
type OtherRelease struct {
	Key kvstore.Hash `json:"key"`
	LiveRelease
}

// Check returns an error unless the proof shows that a map with this root has the record [LiveMapProof.Live] of a release, or that
// the release is not live if that is nil.
func (p LiveMapProof) Check(root kvstore.Hash, pkg, version string) error {
	depth := len(p.Path)
	if depth > keyBits {
		return fmt.Errorf("the proof has %d steps, and %d are the most", depth, keyBits)
	}
	key, sum := LiveKey(pkg, version), EmptyLiveMap
	switch {
	case p.Live != nil && p.Other != nil:
		return errors.New("the proof names two releases in one place")
	case p.Live != nil:
		sum = hashLeaf(key, *p.Live)
	case p.Other != nil && (p.Other.Key == key || !sharePrefix(p.Other.Key, key, depth)):
		return errors.New("the proof names a release that belongs to another place")
	case p.Other != nil:
		sum = hashLeaf(p.Other.Key, p.Other.LiveRelease)
	}
	for i, sibling := range p.Path {
		if keyBit(key, depth-1-i) == 0 {
			sum = hashInner(sum, sibling)
		} else {
			sum = hashInner(sibling, sum)
		}
	}
	if sum != root {
		return fmt.Errorf("the proof leads to the root %s, not to %s", sum, root)
	}
	return nil
}
