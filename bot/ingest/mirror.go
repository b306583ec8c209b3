package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// Reasons why a release is not fetched from another origin.
var (
	// ErrStays says that no other origin is requested for a version: it is or was published here, was refused, or the catalogue does not have its
	// package.
	ErrStays = errors.New("it is not requested elsewhere")
	// ErrInHand says that the bot is publishing the version right now.
	ErrInHand = errors.New("it is being published right now")
)

// CheckWanted returns nil if a version that is missing here may be requested from another origin, such as cdnjs or another
// Larder: it is valid, the catalogue has its package, and the version was neither published, withdrawn included, nor refused here. Else the
// error is [ErrStays]; it may be one of the store instead, or wrap both.
func (pb *Publisher) CheckWanted(name, version string) error {
	c := pb.current.Load()
	if c == nil || !packages.ValidVersion(version) {
		return ErrStays
	}
	if _, ok := c.Get(name); !ok {
		return ErrStays
	}
	return pb.checkUnknown(name, version)
}

// checkUnknown returns nil if a version was neither published, withdrawn included, nor refused here. Else the error is
// [ErrStays]; it may be one of the store instead, or wrap both.
func (pb *Publisher) checkUnknown(name, version string) error {
	if _, err := views.LookupVersion(pb.store, name, version); !errors.Is(err, kvstore.ErrNotFound) {
		return errors.Join(ErrStays, err)
	}
	state, err := views.LookupState(pb.store, name, version)
	if err == nil && state.Kind == views.Refused {
		return ErrStays
	}
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	return nil
}

// A Mirroring is a release of another origin on its way to publication.
type Mirroring struct {
	bot     *Publisher
	pkg     *packages.Package
	version string
	pins    *kvstore.Pins
}

// StartMirroring begins to publish a release with the files of another origin, such as cdnjs or another Larder: it locks the
// version, so that no other goroutine publishes it, and returns an object that receives the files and the manifest. The caller
// closes it once. The error is [ErrStays] if the version must not be requested there, [ErrInHand] if another goroutine is
// publishing it, or one of the store; then nothing is locked and the result is nil. The first call in a process may take seconds
// (see [Publisher.Recover]).
func (pb *Publisher) StartMirroring(name, version string) (*Mirroring, error) {
	if err := pb.CheckWanted(name, version); err != nil {
		return nil, err
	}
	p, err := pb.LookupPackage(name)
	if err != nil {
		return nil, err
	}
	pb.Recover()
	if pb.claims.TryAcquire(ReleaseID(name, version)) != nil {
		return nil, ErrInHand
	}
	return &Mirroring{pb, p, version, pb.store.Pin()}, nil
}

// Close ends the work on a mirrored release, published or not. It unlocks the version, so that others may publish it, and allows
// the deletion of stored contents that no release names. A second call panics or unlocks the version for another goroutine.
func (m *Mirroring) Close() {
	m.pins.Release()
	m.bot.claims.Release(ReleaseID(m.pkg.Name, m.version))
}

// StoreFile stores data, the content of a file of the mirrored release that the caller has verified, and returns its hash. It
// waits until the budget has memory for the compression, or returns the error of ctx. The content is protected from deletion
// until [Mirroring.Close]; if no release names it then, [Publisher.RemoveLeftovers] deletes it.
func (m *Mirroring) StoreFile(ctx context.Context, data []byte) (kvstore.Hash, error) {
	leave, err := m.bot.options.Budget.AcquireFile(ctx, ReleaseID(m.pkg.Name, m.version), true, coding.Memory(coding.Brotli, coding.Quick, int64(len(data))), 0)
	if err != nil {
		return kvstore.Hash{}, err
	}
	defer leave()
	m.bot.leftovers.Store(true) // until it is published
	return m.bot.storeContent(m.pins, data)
}

// IsModule reports whether a .js file of the mirrored release is an ES module, by its content data, which a child process parses
// if necessary. It is false for all other files, .mjs included, and for scripts that are too large, do not parse, or take their
// parser down. It is for origins with cdnjs's API, which do not say that. If the script must be parsed, it waits until the memory
// budget has space. An error means that it could not be found out now.
func (m *Mirroring) IsModule(ctx context.Context, path string, data []byte) (bool, error) {
	if !needsFormat(path, data) {
		return false, nil
	}
	size := int64(len(data))
	leave, err := m.bot.options.Budget.AcquireFile(ctx, ReleaseID(m.pkg.Name, m.version), true, size, worker.Memory(worker.FindFormat, size))
	if err != nil {
		return false, err
	}
	defer leave()
	return m.bot.fresh.isModule(ctx, ReleaseID(m.pkg.Name, m.version), path, data)
}

// npmTimeout is how long a release waits to be compared with npm before it is published.
const npmTimeout = 30 * time.Second

// Publish publishes the mirrored release with the given manifest, whose files the caller has stored with [Mirroring.StoreFile].
// It returns the manifest that it published; with an error the result has no meaning. It registers the package first. mirror
// names the origin and says what proves that the files are upstream's. If nothing but the origin vouches for them, Publish first
// compares the release with npm's, for 30 seconds at most. If the bytes of a file differ, it publishes npm's own release instead,
// and emits no event. If npm cannot be compared, or has no path in common, it publishes the mirrored one. It may complete the
// given manifest. If ctx ends meanwhile, it publishes nothing.
func (m *Mirroring) Publish(ctx context.Context, manifest *logs.Manifest, mirror logs.Mirror) (*logs.Manifest, error) {
	b := m.bot
	if err := b.Register(ctx, m.pkg); err != nil {
		return nil, err
	}
	if mirror.Provisional() {
		limited, cancel := context.WithTimeout(ctx, npmTimeout)
		own, entry, err := b.assembleFromNpm(limited, m.pkg, m.version, m.pins)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			b.logger.Debug("not compared with npm yet", "package", m.pkg.Name, "version", m.version, "err", err)
		default:
			switch same, other := compareFiles(manifest, own); {
			case len(other) > 0:
				b.logger.Warn("another origin has other bytes than npm; npm's are published", "package", m.pkg.Name, "version", m.version, "origin", mirror.Source, "path", other[0], "paths", len(other))
				entry.Kind = logs.Published
				return own, b.commit(m.pins, own, ActorBot, logs.Processed, entry)
			case same > 0:
				mirror.Proof = logs.ProofNpm
			}
		}
	}
	if manifest.Default == "" && manifest.Source.Type == cdnjsType {
		completeManifest(manifest, m.pkg)
	}
	if err := b.commit(m.pins, manifest, ActorBot, "", logs.Entry{Kind: logs.Mirrored, Mirror: &mirror}); err != nil {
		return nil, err
	}
	b.announce(ctx, "mirrored", manifest, "origin", mirror.Source, "proof", mirror.Proof)
	return manifest, nil
}

// cdnjsType is the type of source of a release that was listed by an origin with cdnjs's API.
const cdnjsType = "cdnjs"

// assembleFromNpm downloads npm's release of a version, and stores its contents, which pins protects from deletion, but not the
// manifest. It returns the manifest, and a log entry in which only the evidence is set: the registry's signature, the provenance,
// and the program that minified files. It publishes nothing, and does not check the package's policy. It returns an error for a
// package that is not from npm, and one that wraps fetch.ErrNotFound if npm lacks the version. With an error the results have no
// meaning, and some contents may be stored.
func (pb *Publisher) assembleFromNpm(ctx context.Context, p *packages.Package, version string, pins *kvstore.Pins) (*logs.Manifest, logs.Entry, error) {
	from, ok := pb.options.Sources.ForPackage(p).(sources.NpmSource)
	if !ok {
		return nil, logs.Entry{}, fmt.Errorf("%s does not come from npm", p.Name)
	}
	listed, err := from.List(ctx, p.Autoupdate.Target, fetch.Validators{})
	if err != nil {
		return nil, logs.Entry{}, err
	}
	v, ok := listed.Versions[version]
	if !ok {
		return nil, logs.Entry{}, fmt.Errorf("npm's %s has no version %s: %w", p.Autoupdate.Target, version, fetch.ErrNotFound)
	}
	file, err := os.CreateTemp(pb.options.TempDir, tempPattern)
	if err != nil {
		return nil, logs.Entry{}, fmt.Errorf("couldn't make a file for the download: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	got, err := from.Fetch(ctx, p, p.Autoupdate.Target, v, file)
	if err != nil {
		return nil, logs.Entry{}, err
	}
	got.Released = cmp.Or(v.Published, pb.options.Now())
	in := pendingRelease{Fetched: *got, pkg: p, version: version, actor: ActorBot, fresh: true}
	manifest, err := pb.assemble(ctx, in, pins)
	if err != nil {
		return nil, logs.Entry{}, err
	}
	entry, err := pb.collectEvidence(ctx, in, manifest, pins)
	return manifest, entry, err
}

// compareFiles compares the manifest of a release that was copied from another origin with the manifest own, made from npm's
// tarball. It compares the paths that both have and whose file in own is from the tarball, so none that was minified or built
// here. same is the number of those with the same bytes, and other the sorted paths of those with other bytes, nil for none.
func compareFiles(mirrored, own *logs.Manifest) (same int, other []string) {
	files := make(map[string]kvstore.Hash, len(mirrored.Files))
	for _, f := range mirrored.Files {
		files[f.Path] = f.SHA256
	}
	for _, f := range own.Files {
		switch h, ok := files[f.Path]; {
		case !ok || f.Origin != logs.Upstream:
		case h == f.SHA256:
			same++
		default:
			other = append(other, f.Path)
		}
	}
	slices.Sort(other)
	return same, other
}

// ReconcileWithNpm compares a published release that was copied from another origin, which alone vouches for its bytes, with
// npm's release, which it downloads. If all files of npm's tarball at paths that both have are equal, the log says so. If not,
// the release is withdrawn, and npm's is published in its place if the package's policy allows that. resolved is true if no later
// call is needed, also if the release does not exist, was withdrawn, or something else vouches for it. It is false with every
// error, such as a failed download or no path in common.
func (pb *Publisher) ReconcileWithNpm(ctx context.Context, name, version string) (resolved bool, err error) {
	v, err := views.LookupVersion(pb.store, name, version)
	if errors.Is(err, kvstore.ErrNotFound) {
		return true, nil
	}
	if err != nil || !v.Mirror.Provisional() || v.Withdrawn != nil {
		return err == nil, err
	}
	p, err := pb.LookupPackage(name)
	if err != nil {
		return false, err
	}
	mirrored, err := logs.ReadManifest(pb.store, v.Manifest)
	if err != nil {
		return false, err
	}
	pins := pb.store.Pin()
	defer pins.Release()
	pb.leftovers.Store(true)
	own, evidence, err := pb.assembleFromNpm(ctx, p, version, pins)
	if err != nil {
		return false, err
	}
	same, other := compareFiles(mirrored, own)
	switch {
	case len(other) > 0:
		if evidence.Provenance, err = satisfyPolicy(p, evidence.Provenance, ""); err != nil {
			err = pb.followOrigin(v, logs.Withdrawn, fmt.Sprintf("npm has other bytes at %q, and its release is not published either: %v", text.Short(other[0], maxPath), err), nil)
		} else {
			err = pb.replaceMirrored(v, mirrored, own, evidence, other, pins)
		}
		return err == nil, err
	case same == 0:
		return false, fmt.Errorf("npm's %s %s has no path in common with the mirrored release", name, version)
	}
	mirror := *v.Mirror
	mirror.Proof, v.Mirror = logs.ProofNpm, &mirror
	reason := fmt.Sprintf("npm has the same bytes at %s; %d are the origin's own", text.Count(same, "path", "paths"), len(mirrored.Files)-same)
	err = pb.followOrigin(v, logs.Confirmed, reason, nil)
	return err == nil, err
}

// checkUnchanged returns an error if the log has a newer entry about the version than was, its row that the caller has read
// before, or if the version has no row. The caller is in a transaction of the log, so that no entry comes after the check.
func (pb *Publisher) checkUnchanged(was views.Version) error {
	v, err := views.LookupVersion(pb.store, was.Package, was.Version)
	if err == nil && v.Entry != was.Entry { // each change is an entry
		err = fmt.Errorf("%s %s has changed meanwhile", was.Package, was.Version)
	}
	return err
}

// replaceMirrored withdraws a release of another origin, v with the manifest mirrored, and publishes npm's release own in the
// same write. The contents of own are stored, and pins protects them from deletion. evidence has npm's signature, its provenance
// and the minifier; other has the paths at which the bytes differ, one at least. It does not check the package's policy. It
// returns an error, and publishes and withdraws nothing, if v has changed. It emits no event.
func (pb *Publisher) replaceMirrored(v views.Version, mirrored, own *logs.Manifest, evidence logs.Entry, other []string, pins *kvstore.Pins) error {
	reason := fmt.Sprintf("npm has other bytes than %s at %s, %q first", v.Mirror.Source, text.Count(len(other), "path", "paths"), text.Short(other[0], maxPath))
	err := pb.recordRelease(pins, own, func(tx *logs.Tx, hash kvstore.Hash) error {
		if err := pb.checkUnchanged(v); err != nil {
			return err
		}
		entry := logs.Entry{Time: pb.options.Now(), Actor: ActorBot, Package: v.Package, Version: v.Version}
		withdrawn, processed, replaced := entry, entry, entry
		withdrawn.Kind, withdrawn.Released, withdrawn.Manifest, withdrawn.Reason, withdrawn.Mirror = logs.Withdrawn, v.Released, v.Manifest, reason, v.Mirror
		processed.Kind, processed.Released, processed.Manifest, processed.Signature = logs.Processed, own.Released, hash, own.Source.Signature
		replaced.Signature, replaced.Provenance, replaced.Maker = evidence.Signature, evidence.Provenance, evidence.Maker
		replaced.Kind, replaced.Released, replaced.Manifest, replaced.Reason = logs.Replaced, own.Released, hash, reason
		for _, c := range []views.Change{{Entry: withdrawn, Manifest: mirrored}, {Entry: processed}, {Entry: replaced, Manifest: own}} {
			if err := views.Record(tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	pb.logger.Warn("replaced", "package", v.Package, "version", v.Version, "reason", reason)
	return nil
}

// WithdrawMirrored withdraws a release that was copied from another origin, because the origin has withdrawn it. withdrawnAt is
// when the origin did so or, if that is not known, when the bot was notified; reason is for the log. WithdrawMirrored does
// nothing and returns nil if the release is withdrawn, or if an operator has restored it here at that time or later. It does not
// check that the release is a copied one. The log entry has the current time. The error is kvstore.ErrNotFound if the version was
// never published here.
func (pb *Publisher) WithdrawMirrored(name, version string, withdrawnAt time.Time, reason string) error {
	v, err := views.LookupVersion(pb.store, name, version)
	if err != nil || v.Withdrawn != nil {
		return err
	}
	last, err := logs.ReadEntry(pb.store, v.Entry)
	if err != nil || last.Kind == logs.Restored && last.Actor != ActorBot && !withdrawnAt.After(last.Time) {
		return err
	}
	return pb.followOrigin(v, logs.Withdrawn, reason, nil)
}

// errErased says that files of a release are not here any more.
var errErased = errors.New("its files were erased here")

// RestoreMirrored restores a release that was copied from another origin and that the bot has withdrawn, because its origin
// serves the manifest with that hash again. reason is for the log. RestoreMirrored does nothing and returns nil if the release is
// not withdrawn, if the last entry about it is not the bot's, if the hash is not that of its manifest, if files of it were erased
// or are missing, or if the package JSON requires an attestation. The error is kvstore.ErrNotFound if the version was never
// published here.
func (pb *Publisher) RestoreMirrored(name, version string, manifest kvstore.Hash, reason string) error {
	v, err := views.LookupVersion(pb.store, name, version)
	if err != nil || v.Withdrawn == nil || v.Manifest != manifest {
		return err
	}
	last, err := logs.ReadEntry(pb.store, v.Entry)
	if err != nil || last.Actor != ActorBot {
		return err
	}
	if required, err := requiredRepository(pb.store, name); err != nil || required != "" {
		if err == nil {
			pb.logger.Warn("not restored: no other origin has the attestation that the package JSON requires", "package", name, "version", version, "required", required, "why", reason)
		}
		return err
	}
	pins := pb.store.Pin()
	defer pins.Release()
	err = pb.followOrigin(v, logs.Restored, reason, func(m *logs.Manifest) error {
		if erased, err := IsErased(pb.store, name, version); err != nil || erased {
			return cmp.Or(err, errErased)
		}
		for _, f := range m.Files {
			if there, err := pins.Has(f.SHA256); err != nil || !there {
				return cmp.Or(err, errErased)
			}
		}
		return nil
	})
	if errors.Is(err, errErased) {
		pb.logger.Warn("not restored", "package", name, "version", version, "why", reason, "err", err)
		return nil
	}
	return err
}

// followOrigin withdraws or restores the mirrored release v here, because its origin did so or because npm has other bytes, or records
// that npm has the same. kind is logs.Withdrawn, logs.Restored or logs.Confirmed, reason is for the log, and v.Mirror is what the log
// says of the origin from now on. followOrigin returns an error if the log has a newer entry about
// the version than v. allowed receives the release's manifest and may be nil; its error, which followOrigin returns, prevents the
// change, and it runs in the same transaction.
func (pb *Publisher) followOrigin(v views.Version, kind logs.Kind, reason string, allowed func(*logs.Manifest) error) error {
	m, err := logs.ReadManifest(pb.store, v.Manifest)
	if err != nil {
		return err
	}
	err = pb.log.Update(func(tx *logs.Tx) error {
		if err := pb.checkUnchanged(v); err != nil {
			return err
		}
		if allowed != nil {
			if err := allowed(m); err != nil {
				return err
			}
		}
		return views.Record(tx, views.Change{Manifest: m, Entry: logs.Entry{
			Kind: kind, Time: pb.options.Now(), Actor: ActorBot, Package: v.Package, Version: v.Version,
			Released: v.Released, Reason: reason, Manifest: v.Manifest, Mirror: v.Mirror,
		}})
	})
	if err == nil {
		level := slog.LevelWarn
		if kind == logs.Confirmed {
			level = slog.LevelInfo
		}
		pb.logger.Log(context.Background(), level, string(kind), "package", v.Package, "version", v.Version, "reason", reason)
	}
	return err
}
