package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// IsErased reports whether the log says that the files of a withdrawn release were erased, and not that the release was restored
// or published again since. It is false for a version that the log does not have, and with an error. It does not look for the
// files.
func IsErased(r kvstore.Reader, name, version string) (bool, error) {
	kinds := append([]logs.Kind{logs.Erased, logs.Restored}, logs.Publications...)
	last, err := logs.Read(r, logs.Query{Package: name, Version: version, Kinds: kinds, Limit: 1})
	return err == nil && len(last.Entries) > 0 && last.Entries[0].Kind == logs.Erased, err
}

// storeBundles stores the attestations of a release (of its build and its publication) as contents, which pins protects from
// deletion. It returns a copy of a.Found, the provenance for the log entry, with their hashes, never nil without an error. If
// there is no attestation, the Outcome in it says so, and the hashes are zero. It leaves out an attestation that is too large,
// whose hash is zero, too.
func (pb *Publisher) storeBundles(pins *kvstore.Pins, a sources.Attested) (*logs.Provenance, error) {
	found := a.Found
	for _, bundle := range []struct {
		data []byte
		hash *kvstore.Hash
	}{{a.Bundles.Build, &found.Bundle}, {a.Bundles.Publish, &found.Publish.Bundle}} {
		if len(bundle.data) == 0 || len(bundle.data) > verify.MaxAttestation {
			continue
		}
		var err error
		if *bundle.hash, err = pb.storeContent(pins, bundle.data); err != nil {
			return nil, err
		}
	}
	return &found, nil
}

// emptyTempDir creates the folder dir for downloads if it does not exist, and deletes the downloads that an earlier process has
// left in it: files whose names begin with "download-". It fails if one cannot be deleted.
func emptyTempDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, tempPattern))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// Actors in the log.
const (
	ActorBot      = "bot"
	ActorOperator = "operator"
)

// LookupPackage returns a package of the catalogue in use, or an error for users that says why it has no valid one of that name.
// It does not look at packages that only the log has.
func (pb *Publisher) LookupPackage(name string) (*packages.Package, error) {
	p, ok := pb.Catalogue().Get(name)
	if !ok {
		for _, refused := range pb.Catalogue().Problems() {
			if path.Base(refused.File) == name+".json" {
				return nil, fmt.Errorf("the catalogue has a JSON for package %q, but it was refused: %w", name, refused)
			}
		}
		var names []string
		for _, p := range pb.Catalogue().Packages() {
			names = append(names, p.Name)
		}
		return nil, fmt.Errorf("the catalogue has no package %q; add %s to it (docs/packages.md), or start Larder with another --catalogue%s", name, packages.Path(name), SuggestWord(name, names))
	}
	return p, nil
}

// CheckUnpublished returns nil if a version was never published here, also if it waits for publication or was refused. It returns
// an error for users if the version is malformed, published, or withdrawn; other errors are those of the store.
func (pb *Publisher) CheckUnpublished(name, version string) error {
	if !packages.ValidVersion(version) {
		return fmt.Errorf("%q is not a version: letters, digits and . _ + - are allowed, a letter or digit first", version)
	}
	switch v, err := views.LookupVersion(pb.store, name, version); {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case v.Withdrawn != nil:
		return fmt.Errorf("%s %s was withdrawn (%s); `larder withdraw --undo %s %s` serves it again as it was", name, version, v.Withdrawn.Reason, name, version)
	default:
		return fmt.Errorf("%s %s is published already, and a published version is never rewritten", name, version)
	}
}

// SuggestWord returns the end of an error message, "; did you mean …?", with the one of words that is most similar to the
// misspelt word got. It returns "" if none is similar.
func SuggestWord(got string, words []string) string {
	if best, ok := text.Nearest(got, words); ok {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return ""
}

// tempPattern names the files of downloads under way; never an upstream's name.
const tempPattern = "download-*"

// PublishTask fetches and publishes the version of the task t, or records why that failed. If another goroutine is publishing the
// version, PublishTask does nothing and returns a channel that is closed once that is done; otherwise wait is nil. Unless
// t.Fresh, it waits while too many releases are under way, with the version locked. The error is for problems that stop the bot,
// such as one of the store, or that of ctx; a release that failed or was refused is none.
func (pb *Publisher) PublishTask(ctx context.Context, t Task) (wait <-chan struct{}, err error) {
	pb.Recover()
	if wait := pb.claims.TryAcquire(t.ID()); wait != nil {
		return wait, nil
	}
	defer pb.claims.Release(t.ID())
	if !t.Fresh { // fresh ones have downloads of their own
		if err := pb.releasing.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		defer pb.releasing.Release(1)
	}
	return nil, pb.releaseClaimed(ctx, t)
}

// releaseClaimed fetches and publishes the version of the task t, which the calling goroutine has locked, or records why that
// failed, and emits events about it. It does nothing if the version has been published, refused, withdrawn or mirrored meanwhile.
// The error is for problems that stop the bot, such as one of the store, or that of ctx.
func (pb *Publisher) releaseClaimed(ctx context.Context, t Task) error {
	state, err := views.LookupState(pb.store, t.Pkg.Name, t.Version.Name)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	if state.Kind.Final() {
		return nil // by another way since the task was made
	}
	state = views.State{
		Package: t.Pkg.Name, Version: t.Version.Name, Kind: views.Processing,
		Released: t.Released, Updated: pb.options.Now(), Attempts: state.Attempts, Wrong: state.Wrong,
	}
	if err := pb.setState(state); err != nil {
		return err
	}
	pb.options.Events.Emit(ctx, sources.Event{Kind: sources.Releasing, Package: state.Package, Version: state.Version})
	start := pb.options.Now()
	manifest, err := pb.fetchAndPublish(ctx, t, &state.Wrong)
	if err != nil {
		return pb.recordFailure(ctx, t, state, err)
	}
	pb.announce(ctx, "published", manifest, "took", pb.options.Now().Sub(start).Round(time.Millisecond))
	return nil
}

// tooOften is how many times the process may end in the middle of a release
// before that one waits like one that failed.
const tooOften = 10

// Recover schedules the releases again that an earlier process was publishing when it ended. Only the first call does so, also if
// it fails, which it logs; others wait for it. A goroutine that is about to work on releases calls it first: with many releases
// in the store it takes seconds, for which no client should wait.
func (pb *Publisher) Recover() {
	pb.resume.Do(func() {
		if err := pb.recoverStates(); err != nil {
			pb.logger.Warn("couldn't recover what an earlier process was at", "err", err)
		}
	})
}

// recoverStates sets the state of each release that an earlier process was publishing when it ended to detected, so that it is
// tried again. This counts as an attempt. From the tenth attempt on, the state becomes failed, with a time for the next one. No
// goroutine may be publishing releases yet.
func (pb *Publisher) recoverStates() error {
	states, err := views.StatesOf(pb.store, views.Processing)
	if err != nil {
		return err
	}
	for i := range states {
		s := &states[i]
		s.Kind, s.Updated = views.Detected, pb.options.Now()
		if s.Attempts++; s.Attempts >= tooOften {
			s.Kind, s.Reason = views.Failed, fmt.Sprintf("the process ended %d times in the middle of it", s.Attempts)
			s.Next = s.Updated.Add(sources.Backoff(s.Attempts))
		}
	}
	return pb.writeStates(states...)
}

// announce logs that a release was published, in the words of done and with further attributes, and emits the event of that, which it
// returns: it has the number and the total bytes of the files.
func (pb *Publisher) announce(ctx context.Context, done string, m *logs.Manifest, further ...any) sources.Event {
	event := sources.Event{Kind: sources.Published, Package: m.Package, Version: m.Version, Files: len(m.Files)}
	for _, f := range m.Files {
		event.Bytes += f.Size
	}
	attributes := []any{"package", event.Package, "version", event.Version, "files", event.Files, "bytes", event.Bytes}
	pb.logger.Info(done, append(attributes, further...)...)
	pb.options.Events.Emit(ctx, event)
	return event
}

// recordFailure stores, logs and emits as an event why the release of the task t was not published; s is its state so far, and
// cause the error. It does nothing if the version was published meanwhile. A refusal becomes an entry of the log, except one for
// selecting no file if another release was refused for the same fileMap; this also happens if ctx has ended. The release stays
// refused until the package JSON or upstream's archive changes, and a package that still needs first releases gets another one in
// its place. Otherwise, if cause stops the bot or ctx has ended, recordFailure only sets the state back to Detected, and returns
// an error that wraps cause. After another error, the state has the time of the next attempt, and the package is polled again
// then; a limit of requests to a git host does not count as an attempt. The only other error is one of the store.
func (pb *Publisher) recordFailure(ctx context.Context, t Task, s views.State, cause error) error {
	if _, err := views.LookupVersion(pb.store, s.Package, s.Version); err == nil {
		return nil // published by another way meanwhile, which its state says
	}
	s.Updated = pb.options.Now()
	if reason, ok := sources.RefusalReason(cause); ok {
		s.Kind, s.Reason = views.Refused, reason
		evidence := logs.Entry{Actor: t.Actor}
		if invalid, ok := errors.AsType[*npm.SignatureError](cause); ok {
			evidence.Signature = logs.Signature{Outcome: logs.SignatureInvalid, Key: invalid.KeyID}
		}
		refuse := pb.recordRefusal
		if refusal, ok := errors.AsType[*sources.Refusal](cause); ok && refusal.NoFiles {
			refuse = pb.refuseWithoutFiles
		}
		if err := refuse(s, evidence); err != nil {
			return err
		}
		pb.logger.Warn("refused", "package", s.Package, "version", s.Version, "reason", reason)
		pb.options.Events.Emit(ctx, sources.Event{Kind: sources.Refused, Package: s.Package, Version: s.Version, Reason: reason})
		if !pb.options.Records.Known(s.Package).Filled { // the next one takes its place
			pb.refills.Store(s.Package, true)
			pb.options.Reschedule(ctx, s.Package, s.Updated)
		}
		return nil
	}
	if sources.Stops(cause) || ctx.Err() != nil {
		// It is not the release's fault. Should even this not be written, then
		// recover has it at the next start.
		s.Kind = views.Detected
		if err := pb.setState(s); err != nil {
			pb.logger.Debug("state not put back", "package", s.Package, "version", s.Version, "err", err)
		}
		return fmt.Errorf("bot: %s %s: %w", s.Package, s.Version, errors.Join(ctx.Err(), cause))
	}
	if limit, ok := errors.AsType[*git.LimitError](cause); ok {
		s.Kind, s.Reason, s.Next = views.Detected, cause.Error(), limit.Until.Add(sources.Jittered(sources.MinWait))
		if err := pb.setState(s); err != nil {
			return err
		}
		pb.options.Reschedule(ctx, s.Package, s.Next)
		pb.options.Events.Emit(ctx, sources.Event{Kind: sources.Waits, Package: s.Package, Version: s.Version, Reason: s.Reason, Next: s.Next})
		return nil
	}
	down := sources.IsOutage(cause) && pb.options.Breakers.IsDown(sources.ArchivesName(t.Pkg))
	if s.Attempts == 0 || !down {
		s.Attempts++
	}
	s.Kind, s.Reason, s.Next = views.Failed, cause.Error(), s.Updated.Add(min(sources.LongestRest, sources.Backoff(s.Attempts)))
	if down {
		s.Next = s.Updated.Add(sources.MinWait)
	}
	if sources.WrongHash(cause) != "" {
		s.Reason += describeWrong(s.Wrong)
	}
	if at, ok := fetch.RetryAt(cause); ok {
		s.Next = sources.Later(s.Next, at)
	}
	if err := pb.setState(s); err != nil {
		return err
	}
	pb.options.Reschedule(ctx, s.Package, s.Next)
	pb.logger.Warn("failed", "package", s.Package, "version", s.Version, "err", cause, "attempts", s.Attempts, "next", s.Next)
	pb.options.Events.Emit(ctx, sources.Event{Kind: sources.Failed, Package: s.Package, Version: s.Version, Reason: s.Reason, Next: s.Next})
	return nil
}

// recordRefusal records, in the log and as the version's state, that a version will not be published, for the reason in s. The
// log entry has the actor, the signature and the provenance of evidence. A long reason is stored as a content, too. If the
// version has been published or withdrawn, or is malformed, recordRefusal returns an error and records nothing.
func (pb *Publisher) recordRefusal(s views.State, evidence logs.Entry) error {
	pins := pb.store.Pin()
	defer pins.Release()
	detail, err := pb.storeDetail(pins, s.Reason)
	if err != nil {
		return err
	}
	err = pb.log.Update(func(tx *logs.Tx) error {
		if err := pb.CheckUnpublished(s.Package, s.Version); err != nil {
			return err
		}
		return views.Record(tx, views.Change{Entry: logs.Entry{
			Kind: logs.Refused, Time: s.Updated, Actor: evidence.Actor,
			Package: s.Package, Version: s.Version, Released: s.Released, Reason: s.Reason, Detail: detail,
			Signature: evidence.Signature, Provenance: evidence.Provenance,
		}})
	})
	if err != nil && detail != (kvstore.Hash{}) {
		pb.leftovers.Store(true)
	}
	return err
}

// refuseWithoutFiles records that a version will not be published because the fileMap of the package JSON selects no file of it.
// Only the first such version for each package JSON gets a log entry, with the actor and the evidence of evidence; the upstream's
// record names that version. Further ones only get a state, with Unlogged set, as long as the first one stays refused. It locks
// Records.Mu, which the caller does not hold. The package is recorded in the log.
func (pb *Publisher) refuseWithoutFiles(s views.State, evidence logs.Entry) error {
	pb.options.Records.Mu.Lock()
	defer pb.options.Records.Mu.Unlock()
	known, err := views.LookupPackage(pb.store, s.Package)
	if err != nil {
		return err
	}
	upstream := pb.options.Records.Known(s.Package)
	if report := upstream.NoFiles; report.PackageJSON == known.Entry && report.Version != "" && report.Version != s.Version {
		reported, err := views.LookupState(pb.store, s.Package, report.Version)
		if err == nil && reported.Kind == views.Refused && !reported.Unlogged {
			s.Unlogged = true
			return pb.setState(s)
		}
	}
	if err := pb.recordRefusal(s, evidence); err != nil {
		return err
	}
	upstream.NoFiles = sources.NoFilesReport{Version: s.Version, PackageJSON: known.Entry}
	return pb.options.Records.Set(upstream)
}

// checkManifest returns a *sources.Refusal if the log says that the version was published before with another manifest than the
// one of that hash, for example because the store has lost the release since. It returns nil if the log has no publication of the
// version, or one with this manifest.
func (pb *Publisher) checkManifest(name, version string, manifest kvstore.Hash) error {
	before, err := logs.LastPublication(pb.store, name, version)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case before.Manifest != manifest:
		return sources.Refusef("it was published with other files (log entry %d), and a version that was published never gets other files; `larder repair` brings back what was known of it", before.Index)
	}
	return nil
}

// setState stores the state of a version (detected, processing, failed and so on) without a log entry, and then calls
// Options.Changed with the package. After an error the state is as before.
func (pb *Publisher) setState(s views.State) error {
	err := pb.writeStates(s)
	if err == nil {
		pb.options.Changed(s.Package)
	}
	return err
}

// writeStates stores the states of versions in one write, without log entries.
func (pb *Publisher) writeStates(states ...views.State) error {
	return pb.store.WriteBatch(func(b *kvstore.Batch) error {
		for _, s := range states {
			if err := views.SetState(b, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// fetchAndPublish downloads the release of the task t from upstream, publishes it, and returns the manifest. It updates came,
// which counts how often upstream sent the same wrong bytes. The caller has locked the version, and records an error as the
// version's state.
func (pb *Publisher) fetchAndPublish(ctx context.Context, t Task, came *views.WrongBytes) (*logs.Manifest, error) {
	file, err := os.CreateTemp(pb.options.TempDir, tempPattern)
	if err != nil {
		return nil, fmt.Errorf("couldn't make a file for the download: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	got, err := pb.fetchVerified(ctx, t, file, came)
	if err != nil {
		return nil, err
	}
	got.Released = cmp.Or(got.Released, t.Released, pb.options.Now())
	return pb.publish(ctx, pendingRelease{Fetched: *got, pkg: t.Pkg, version: t.Version.Name, actor: t.Actor, fresh: t.Fresh, override: t.Override})
}

// A pendingRelease is a release that was downloaded or received, with its archive, and is about to be made and published.
type pendingRelease struct {
	sources.Fetched // with the time of the release
	pkg             *packages.Package
	version         string
	actor           string
	override        string                     // why an operator publishes it although it does not satisfy the policy; "" for none
	fresh           bool                       // it does not wait for releases that are not
	check           func(*logs.Manifest) error // has the last word on what is about to be published; may be nil
}

// publish takes the files that the package JSON names out of the archive of the release in, and publishes them. It stores the
// contents first; one write at the end makes them a release. It returns the published manifest. After an error, contents without
// a release may be left over, for [Publisher.RemoveLeftovers]. The error is a *sources.Refusal if the release must not be
// published, or that of in.check. The caller has locked the version.
func (pb *Publisher) publish(ctx context.Context, in pendingRelease) (_ *logs.Manifest, err error) {
	defer func() {
		if err != nil {
			pb.leftovers.Store(true)
		}
	}()
	pins := pb.store.Pin()
	defer pins.Release()
	manifest, err := pb.assemble(ctx, in, pins)
	if err != nil {
		return nil, err
	}
	if in.check != nil {
		if err := in.check(manifest); err != nil {
			return nil, err
		}
	}
	entry, err := pb.collectEvidence(ctx, in, manifest, pins)
	if err != nil {
		return nil, err
	}
	if entry.Provenance, err = satisfyPolicy(in.pkg, entry.Provenance, in.override); err != nil {
		return nil, err
	}
	entry.Kind = logs.Published
	if err := pb.commit(pins, manifest, in.actor, logs.Processed, entry); err != nil {
		return nil, err
	}
	return manifest, nil
}

// collectEvidence returns a log entry in which only the evidence about the release in is set: the registry's signature, the
// provenance, and the program that minified files of m. It downloads the attestations and stores them as contents, which pins
// protects from deletion. Provenance is nil if in.Attested is, as for an import. With an error the entry has no meaning.
func (pb *Publisher) collectEvidence(ctx context.Context, in pendingRelease, m *logs.Manifest, pins *kvstore.Pins) (logs.Entry, error) {
	entry := logs.Entry{Signature: in.Signature}
	if slices.ContainsFunc(m.Files, func(f logs.File) bool { return f.Origin == logs.Minified }) {
		entry.Maker = new(logs.Maker)
		entry.Maker.Program, entry.Maker.Version, entry.Maker.Options = worker.Minifier()
	}
	if in.Attested == nil {
		return entry, nil
	}
	attested, err := in.Attested(ctx)
	if err == nil {
		entry.Provenance, err = pb.storeBundles(pins, attested)
	}
	return entry, err
}

// commit publishes a release whose contents are stored and protected by pins: it writes the log entry, the manifest and the rows
// for serving in one transaction, and queues its files for recompression. The caller sets the kind of entry and its evidence;
// commit sets the time, the actor, the release and the download count. If before is not "", an entry of that kind
// precedes it. commit returns an error and publishes nothing if the version has been published or withdrawn, if another manifest
// is recorded for it, if the package's policy requires another repository than was checked, or if a mirrored version was refused
// here. It emits no event.
func (pb *Publisher) commit(pins *kvstore.Pins, manifest *logs.Manifest, actor string, before logs.Kind, entry logs.Entry) error {
	return pb.recordRelease(pins, manifest, func(tx *logs.Tx, hash kvstore.Hash) error {
		if err := errors.Join(pb.CheckUnpublished(manifest.Package, manifest.Version), pb.checkManifest(manifest.Package, manifest.Version, hash)); err != nil {
			return err
		}
		if entry.Kind == logs.Mirrored {
			if err := pb.checkUnknown(manifest.Package, manifest.Version); err != nil {
				return err
			}
		}
		entry.Time, entry.Actor = pb.options.Now(), actor
		entry.Package, entry.Version, entry.Released, entry.Manifest = manifest.Package, manifest.Version, manifest.Released, hash
		// The entry has the download count at the time of publication.
		demand, err := sources.LookupPopularityCounts(pb.store, manifest.Package)
		if err != nil {
			return err
		}
		entry.Downloads = demand.Downloads
		if err := pb.checkPolicyUnchanged(entry); err != nil {
			return err
		}
		if before != "" {
			first := entry
			first.Kind, first.Signature, first.Provenance, first.Maker, first.Downloads = before, manifest.Source.Signature, nil, nil, 0
			if err := views.Record(tx, views.Change{Entry: first}); err != nil {
				return err
			}
		}
		return views.Record(tx, views.Change{Entry: entry, Manifest: manifest})
	})
}

// recordRelease stores the manifest of a release, whose contents pins protects from deletion. In one transaction it has record
// add the log entries, and queues the release's files for recompression. record receives the transaction and the manifest's hash;
// its error undoes the transaction, but the manifest stays stored as a content.
func (pb *Publisher) recordRelease(pins *kvstore.Pins, manifest *logs.Manifest, record func(tx *logs.Tx, hash kvstore.Hash) error) error {
	data, err := manifest.Encode()
	if err != nil {
		return err
	}
	hash, err := pb.storeContent(pins, data)
	if err != nil {
		return err
	}
	queued := 0
	err = pb.log.Update(func(tx *logs.Tx) error {
		if err := record(tx, hash); err != nil {
			return err
		}
		var err error
		queued, err = pb.options.Recompressor.Enqueue(tx.Batch, manifest)
		return err
	})
	if err != nil {
		return err
	}
	pb.options.Recompressor.Enqueued(queued)
	return nil
}
