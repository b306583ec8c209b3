package bot

import (
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// diff stores what changed in a package's JSON and returns the content's hash. The
// entry that uses it can do without: where the JSON as it was cannot be read, the
// hash is zero and the damage is for a check to tell.
func (b *Bot) diff(pins *kvstore.Pins, known views.Package, p *packages.Package) (kvstore.Hash, error) {
	before, err := b.packageJSON(known)
	if err != nil {
		b.logger.Warn("the log will not say what changed", "package", p.Name, "err", err)
		return kvstore.Hash{}, nil
	}
	path := packages.Path(p.Name)
	diff, err := udiff.ToUnified("a/"+path, "b/"+path, string(before), udiff.Lines(string(before), string(p.JSON)), udiff.DefaultContextLines)
	if err != nil {
		return kvstore.Hash{}, fmt.Errorf("couldn't write down what changed: %w", err)
	}
	return b.keep(pins, []byte(diff))
}

// packageJSON returns a package's JSON as it was written. The views have it without
// white space, which makes no diff that people can read.
func (b *Bot) packageJSON(p views.Package) ([]byte, error) {
	e, err := logs.ReadEntry(b.store, p.Entry)
	if err != nil {
		return nil, err
	}
	data, err := b.store.Identity(e.PackageJSON)
	if err != nil {
		return nil, fmt.Errorf("the package JSON of entry %d: %w", p.Entry, err)
	}
	return data, nil
}

// detail stores a reason that is too long for an entry and returns the content's
// hash; zero for the others.
func (b *Bot) detail(pins *kvstore.Pins, reason string) (kvstore.Hash, error) {
	whole := strings.ToValidUTF8(reason, "\uFFFD")
	if len(whole) <= logs.MaxReason {
		return kvstore.Hash{}, nil
	}
	return b.keep(pins, []byte(whole))
}
