package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// Catalogue returns the catalogue in use. It returns an empty one while none was set; [Publisher.CurrentCatalogue] returns nil
// then.
func (pb *Publisher) Catalogue() *packages.Catalogue {
	if c := pb.current.Load(); c != nil {
		return c
	}
	return &packages.Catalogue{}
}

// LastValidPackage returns a package from the catalogue in use or, if its file there is not valid, from the JSON that the log has
// of it. ok is false, and the package nil, if neither has a valid one, if the package was removed from the catalogue, or if the
// store cannot be read.
func (pb *Publisher) LastValidPackage(name string) (_ *packages.Package, ok bool) {
	if p, ok := pb.Catalogue().Get(name); ok {
		return p, true
	}
	known, err := views.LookupPackage(pb.store, name)
	if err != nil || known.Removed {
		return nil, false
	}
	p, err := packages.Parse(packages.Path(name), known.JSON)
	return p, err == nil
}

// RegisterCatalogue records in the log which packages of a catalogue are new or changed, as [Publisher.Register] does, and then
// which recorded ones it no longer has. Of the latter it refuses the releases that wait for publication, except one that is being
// processed now, and sends an event for each package; published releases stay. New and changed packages are polled at once, and
// their refused releases tried again. A package whose file in the catalogue is invalid counts as present. RegisterCatalogue does
// not put the catalogue in use. It locks Records.Mu while it registers, not while it records removals. After an error, what it
// recorded before stays.
func (pb *Publisher) RegisterCatalogue(ctx context.Context, c *packages.Catalogue) error {
	if err := pb.Register(ctx, c.Packages()...); err != nil {
		return err
	}
	rows, err := views.Packages(pb.store)
	if err != nil {
		return err
	}
	for _, known := range rows {
		if !known.Removed && !c.Mentions(known.Name) {
			if err := pb.recordRemoval(ctx, known); err != nil {
				return fmt.Errorf("bot: couldn't record that the catalogue has %s no more: %w", known.Name, err)
			}
		}
	}
	return nil
}

// removedReason is why a version is refused that waited when its package was removed.
const removedReason = "the catalogue has the package no more"

// recordRemoval records in the log that the catalogue no longer has a package, whose row is known, and emits a note as an event.
// In the same transaction it refuses the package's releases that wait for publication, except one that is being processed now;
// published ones stay. It needs no lock of Records. ctx is only for the event.
func (pb *Publisher) recordRemoval(ctx context.Context, known views.Package) error {
	pins := pb.store.Pin()
	defer pins.Release()
	data, err := pb.readPackageJSON(known)
	if err != nil {
		// Its row has the same JSON without white space, and fsck reports the damage.
		pb.logger.Warn("the log will name the package JSON without white space", "package", known.Name, "err", err)
		data = known.JSON
	}
	hash, err := pb.storeContent(pins, data)
	if err != nil {
		return err
	}
	states, err := views.States(pb.store, known.Name)
	if err != nil {
		return err
	}
	now := pb.options.Now()
	err = pb.log.Update(func(tx *logs.Tx) error {
		entry := logs.Entry{Kind: logs.PackageRemoved, Time: now, Actor: ActorBot, Package: known.Name, PackageJSON: hash}
		if err := views.Record(tx, views.Change{Entry: entry, PackageJSON: data}); err != nil {
			return err
		}
		for _, s := range states {
			if s.Kind.Final() || s.Kind == views.Processing { // the latter is about to be published, or waits after all
				continue
			}
			refused := logs.Entry{
				Kind: logs.Refused, Time: now, Actor: ActorBot,
				Package: s.Package, Version: s.Version, Released: s.Released, Reason: removedReason,
			}
			if err := views.Record(tx, views.Change{Entry: refused}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	pb.logger.Info("package removed", "package", known.Name)
	pb.options.Events.Emit(ctx, sources.Event{Kind: sources.Note, Package: known.Name, Reason: known.Name + ": " + removedReason + "; what is published stays"})
	return nil
}

// Register records in the log, in one transaction, those of the given packages whose JSON is new or has changed, or that were
// removed from the catalogue before. The upstream of one that was recorded before is due for a poll at once, and refused releases
// of it are scheduled for a retry, because the change may remove the reason of the refusals. After an error nothing is recorded.
// It locks Records.Mu, which the caller does not hold.
func (pb *Publisher) Register(ctx context.Context, all ...*packages.Package) error {
	pins := pb.store.Pin()
	defer pins.Release()
	pb.options.Records.Mu.Lock()
	defer pb.options.Records.Mu.Unlock()
	return pb.log.Update(func(tx *logs.Tx) error {
		for _, p := range all {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := pb.registerOne(tx, pins, p); err != nil {
				return fmt.Errorf("bot: couldn't register %s: %w", p.Name, err)
			}
		}
		return nil
	})
}

// registerOne adds to the transaction what [Publisher.Register] records of one package: a log entry and, unless the package is
// new, the upstream's state. It resets that state so that the package is polled at once, forgets what is known of an upstream
// that the package no longer names, and adds the refused versions to those that are retried. It does nothing if the JSON is
// recorded already. pins protects the stored JSON from deletion. The caller holds the lock Records.Mu of the upstreams' states.
func (pb *Publisher) registerOne(tx *logs.Tx, pins *kvstore.Pins, p *packages.Package) error {
	var compact bytes.Buffer
	if err := json.Compact(&compact, p.JSON); err != nil {
		return err
	}
	known, err := views.LookupPackage(pb.store, p.Name)
	isNew := errors.Is(err, kvstore.ErrNotFound)
	if err != nil && !isNew {
		return err
	}
	if !isNew && !known.Removed && bytes.Equal(known.JSON, compact.Bytes()) {
		return nil
	}
	hash, err := pb.storeContent(pins, p.JSON)
	if err != nil {
		return err
	}
	entry := logs.Entry{Kind: logs.PackageChanged, Time: pb.options.Now(), Actor: ActorBot, Package: p.Name, PackageJSON: hash}
	if isNew || known.Removed {
		entry.Kind = logs.PackageAdded
	} else if entry.Diff, err = pb.storeDiff(pins, known, p); err != nil {
		return err
	}
	if entry.Policy = comparePolicies(known, p); entry.Policy.Weakens() {
		pb.logger.Warn("releases no longer have to be built from a repository", "package", p.Name, "required", entry.Policy.Old, "now", entry.Policy.New)
	}
	if err := views.Record(tx, views.Change{Entry: entry, PackageJSON: p.JSON}); err != nil {
		return err
	}
	if isNew {
		return nil
	}
	upstream := pb.options.Records.Known(p.Name)
	upstream.Validators, upstream.Next, upstream.Attempts = fetch.Validators{}, time.Time{}, 0
	if !upstream.Follows(p) {
		upstream.ForgetTarget()
		upstream.Notes = nil
		if p.Autoupdate != nil {
			upstream.Source, upstream.Target = p.Autoupdate.Source, p.Autoupdate.Target
		}
	}
	states, err := views.States(pb.store, p.Name)
	if err != nil {
		return err
	}
	for _, s := range states {
		if s.Kind == views.Refused && packages.ValidVersion(s.Version) && !slices.Contains(upstream.Retry, s.Version) {
			upstream.Retry, upstream.Filled = append(upstream.Retry, s.Version), false
		}
	}
	return sources.SetUpstream(pb.store, tx.Batch, upstream)
}

// storeDiff stores the difference between the recorded JSON of a package, known, and the new one, p, as a content, and returns
// its hash. If the recorded JSON cannot be read, it logs that and returns a zero hash and no error.
func (pb *Publisher) storeDiff(pins *kvstore.Pins, known views.Package, p *packages.Package) (kvstore.Hash, error) {
	before, err := pb.readPackageJSON(known)
	if err != nil {
		pb.logger.Warn("the log will not say what changed", "package", p.Name, "err", err)
		return kvstore.Hash{}, nil
	}
	path := packages.Path(p.Name)
	return pb.storeContent(pins, fmt.Appendf(nil, "--- a/%[1]s\n+++ b/%[1]s\n%s", path, text.Diff(string(before), string(p.JSON))))
}

// readPackageJSON returns the JSON of a recorded package as it was written, with white space, which the row p does not have. It
// returns an error if the store has lost it or the log entry.
func (pb *Publisher) readPackageJSON(p views.Package) ([]byte, error) {
	e, err := logs.ReadEntry(pb.store, p.Entry)
	if err != nil {
		return nil, err
	}
	data, err := pb.store.Identity(e.PackageJSON)
	if err != nil {
		return nil, fmt.Errorf("the package JSON of entry %d: %w", p.Entry, err)
	}
	return data, nil
}

// storeDetail stores the complete text of a reason that is too long for a log entry (over logs.MaxReason bytes) as a content, and
// returns its hash. It stores nothing and returns a zero hash for a shorter one.
func (pb *Publisher) storeDetail(pins *kvstore.Pins, reason string) (kvstore.Hash, error) {
	whole := strings.ToValidUTF8(reason, "\uFFFD")
	if len(whole) <= logs.MaxReason {
		return kvstore.Hash{}, nil
	}
	return pb.storeContent(pins, []byte(whole))
}
