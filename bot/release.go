package bot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// tempPattern names the files of downloads under way; never an upstream's name.
const tempPattern = "download-*"

// A refusal is an error that occurs again at each attempt.
type refusal struct {
	reason string
	cause  error // may be nil
}

func (r *refusal) Error() string { return r.reason }

func (r *refusal) Unwrap() error { return r.cause }

func refuse(format string, args ...any) error {
	return &refusal{reason: fmt.Sprintf(format, args...)}
}

// refused returns the reason where err says that a release is not acceptable.
func refused(err error) (string, bool) {
	var own *refusal
	var archived *archive.RefusedError
	var git *git.RefusedError
	var passing passing
	if errors.As(err, &passing) {
		return "", false
	}
	if errors.As(err, &own) || errors.As(err, &archived) || errors.As(err, &git) || npm.IsPermanent(err) && !errors.Is(err, npm.ErrNotFound) {
		return err.Error(), true
	}
	return "", false
}

// release fetches and publishes one version, or records why not. If another
// goroutine is releasing it, wait is closed once that is done. The error is for what stops
// the bot.
func (b *Bot) release(ctx context.Context, t task) (wait <-chan struct{}, err error) {
	b.recovered()
	if wait := b.claims.take(t.id()); wait != nil {
		return wait, nil
	}
	defer b.claims.drop(t.id())
	if !t.fresh { // fresh ones have downloads of their own
		if err := b.releasing.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		defer b.releasing.Release(1)
	}
	return nil, b.releaseClaimed(ctx, t)
}

func (b *Bot) releaseClaimed(ctx context.Context, t task) error {
	state, err := views.LookupState(b.store, t.pkg.Name, t.version.name)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	if state.Kind.Final() {
		return nil // by another way since the task was made
	}
	state = views.State{
		Package: t.pkg.Name, Version: t.version.name, Kind: views.Processing,
		Released: t.released, Updated: b.options.Now(), Attempts: state.Attempts, Wrong: state.Wrong,
	}
	if err := b.setState(state); err != nil {
		return err
	}
	b.emit(ctx, Event{Kind: Releasing, Package: state.Package, Version: state.Version})
	start := b.options.Now()
	manifest, err := b.fetch(ctx, t, &state.Wrong)
	if err != nil {
		return b.outcome(ctx, t, state, err)
	}
	event := publishedEvent(manifest)
	b.logger.Info("published", "package", state.Package, "version", state.Version, "files", event.Files, "bytes", event.Bytes, "took", b.options.Now().Sub(start).Round(time.Millisecond))
	b.emit(ctx, event)
	return nil
}

// tooOften is how many times the process may end in the middle of a release
// before that one waits like one that failed.
const tooOften = 10

// recovered returns once what an earlier process was at is back in the schedule. A goroutine
// that is about to work on releases calls it first: with many releases in the store it takes
// seconds, for which no client should wait.
func (b *Bot) recovered() {
	b.resume.Do(func() {
		if err := b.recover(); err != nil {
			b.logger.Warn("couldn't recover what an earlier process was at", "err", err)
		}
	})
}

// recover gives the releases in whose middle an earlier process ended back to the
// schedule.
func (b *Bot) recover() error {
	states, err := views.StatesOf(b.store, views.Processing)
	if err != nil {
		return err
	}
	batch := b.store.NewBatch()
	defer batch.Close()
	for _, s := range states {
		s.Kind, s.Updated = views.Detected, b.options.Now()
		if s.Attempts++; s.Attempts >= tooOften {
			s.Kind, s.Reason = views.Failed, fmt.Sprintf("the process ended %d times in the middle of it", s.Attempts)
			s.Next = s.Updated.Add(backoff(s.Attempts))
		}
		if err := views.SetState(batch, s); err != nil {
			return err
		}
	}
	return batch.Commit()
}

func publishedEvent(m *logs.Manifest) Event {
	event := Event{Kind: Published, Package: m.Package, Version: m.Version, Files: len(m.Files)}
	for _, f := range m.Files {
		event.Bytes += f.Size
	}
	return event
}

// outcome records that a release was not published.
func (b *Bot) outcome(ctx context.Context, t task, s views.State, cause error) error {
	if _, err := views.LookupVersion(b.store, s.Package, s.Version); err == nil {
		return nil // published by another way meanwhile, which its state says
	}
	s.Updated = b.options.Now()
	if reason, ok := refused(cause); ok {
		s.Kind, s.Reason = views.Refused, reason
		var signed logs.Signature
		var invalid *npm.SignatureError
		if errors.As(cause, &invalid) {
			signed = logs.Signature{Outcome: logs.SignatureInvalid, Key: invalid.KeyID}
		}
		if err := b.refuse(s, t.actor, signed); err != nil {
			return err
		}
		b.logger.Warn("refused", "package", s.Package, "version", s.Version, "reason", reason)
		b.emit(ctx, Event{Kind: Refused, Package: s.Package, Version: s.Version, Reason: reason})
		if !b.knownUpstream(s.Package).Filled { // the next one takes its place
			b.refills.Store(s.Package, true)
			b.sooner(ctx, s.Package, s.Updated)
		}
		return nil
	}
	if stops(cause) || ctx.Err() != nil {
		// It is not the release's fault. Should even this not be written, then
		// recover has it at the next start.
		s.Kind = views.Detected
		if err := b.setState(s); err != nil {
			b.logger.Debug("state not put back", "package", s.Package, "version", s.Version, "err", err)
		}
		return fmt.Errorf("bot: %s %s: %w", s.Package, s.Version, errors.Join(ctx.Err(), cause))
	}
	var limit *git.LimitError
	if errors.As(cause, &limit) {
		s.Kind, s.Reason, s.Next = views.Detected, cause.Error(), limit.Until.Add(jittered(minWait))
		if err := b.setState(s); err != nil {
			return err
		}
		b.sooner(ctx, s.Package, s.Next)
		b.emit(ctx, Event{Kind: Waits, Package: s.Package, Version: s.Version, Reason: s.Reason, Next: s.Next})
		return nil
	}
	down := isOutage(cause) && b.outages.down(archivesOf(t.pkg))
	if s.Attempts == 0 || !down {
		s.Attempts++
	}
	s.Kind, s.Reason, s.Next = views.Failed, cause.Error(), s.Updated.Add(min(longestRest, backoff(s.Attempts)))
	if down {
		s.Next = s.Updated.Add(minWait)
	}
	if wrong(cause) != "" {
		s.Reason += seen(s.Wrong)
	}
	if at, ok := fetch.RetryAt(cause); ok {
		s.Next = later(s.Next, at)
	}
	if err := b.setState(s); err != nil {
		return err
	}
	b.sooner(ctx, s.Package, s.Next)
	b.logger.Warn("failed", "package", s.Package, "version", s.Version, "err", cause, "attempts", s.Attempts, "next", s.Next)
	b.emit(ctx, Event{Kind: Failed, Package: s.Package, Version: s.Version, Reason: s.Reason, Next: s.Next})
	return nil
}

// refuse records in the log and the states that a version will not be published.
func (b *Bot) refuse(s views.State, actor string, signed logs.Signature) error {
	pins := b.store.Pin()
	defer pins.Release()
	detail, err := b.detail(pins, s.Reason)
	if err != nil {
		return err
	}
	err = b.log.Update(func(tx *logs.Tx) error {
		if err := b.unpublished(s.Package, s.Version); err != nil {
			return err
		}
		return views.Record(tx, views.Change{Entry: logs.Entry{
			Kind: logs.Refused, Time: s.Updated, Actor: actor,
			Package: s.Package, Version: s.Version, Released: s.Released, Reason: s.Reason, Detail: detail,
			Signature: signed,
		}})
	})
	if err != nil && detail != (kvstore.Hash{}) {
		b.leftovers.Store(true)
	}
	return err
}

// neverOther refuses a release that was published with another manifest, by the word of the
// log: the views may have lost that, as they may a withdrawal.
func (b *Bot) neverOther(name, version string, manifest kvstore.Hash) error {
	before, err := logs.LastPublication(b.store, name, version)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case before.Manifest != manifest:
		return refuse("it was published with other files (log entry %d), and a version that was published never gets other files; `larder repair` brings back what was known of it", before.Index)
	}
	return nil
}

func (b *Bot) setState(s views.State) error {
	batch := b.store.NewBatch()
	defer batch.Close()
	if err := views.SetState(batch, s); err != nil {
		return err
	}
	if err := batch.Commit(); err != nil {
		return err
	}
	b.options.Changed(s.Package)
	return nil
}

// fetch downloads a release and publishes it. It counts in came what came instead.
func (b *Bot) fetch(ctx context.Context, t task, came *views.WrongBytes) (*logs.Manifest, error) {
	file, err := os.CreateTemp(b.options.TempDir, tempPattern)
	if err != nil {
		return nil, fmt.Errorf("couldn't make a file for the download: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	got, err := b.fetchRight(ctx, t, file, came)
	if err != nil {
		return nil, err
	}
	released := t.released
	if !got.released.IsZero() {
		released = got.released
	}
	if released.IsZero() {
		released = b.options.Now()
	}
	return b.publish(ctx, intake{
		pkg: t.pkg, version: t.version.name, released: released, actor: t.actor,
		archive: got.archive, source: got.source, notes: got.notes, fresh: t.fresh,
		signature: got.signature, attested: got.attested, override: t.override,
	})
}

// An intake is a release on its way to publication.
type intake struct {
	pkg      *packages.Package
	version  string
	released time.Time
	actor    string
	archive  archive.Source
	source   logs.Source
	notes    []string
	// signature and attested are those of [fetched].
	signature logs.Signature
	attested  func(context.Context) (attested, error)
	override  string                     // why an operator publishes it although it does not satisfy the policy; "" for none
	fresh     bool                       // it does not wait for releases that are not
	check     func(*logs.Manifest) error // has the last word on what is about to be published; may be nil
}

// publish takes the files that the package JSON names out of the archive and
// publishes them. Contents are stored on the way; all that makes them a release
// is one write at the end.
func (b *Bot) publish(ctx context.Context, in intake) (_ *logs.Manifest, err error) {
	defer func() {
		if err != nil {
			b.leftovers.Store(true)
		}
	}()
	pins := b.store.Pin()
	defer pins.Release()
	manifest, err := b.assemble(ctx, in, pins)
	if err != nil {
		return nil, err
	}
	if in.check != nil {
		if err := in.check(manifest); err != nil {
			return nil, err
		}
	}
	entry, err := b.evidence(ctx, in, manifest, pins)
	if err != nil {
		return nil, err
	}
	if entry.Provenance, err = satisfyPolicy(in.pkg, entry.Provenance, in.override); err != nil {
		return nil, err
	}
	entry.Kind = logs.Published
	if err := b.commit(pins, manifest, in.actor, logs.Processed, entry); err != nil {
		return nil, err
	}
	return manifest, nil
}

// evidence is what the entry of a publication says of its upstream and of how files were made. What it names is kept.
func (b *Bot) evidence(ctx context.Context, in intake, m *logs.Manifest, pins *kvstore.Pins) (logs.Entry, error) {
	entry := logs.Entry{Signature: in.signature}
	if slices.ContainsFunc(m.Files, func(f logs.File) bool { return f.Origin == logs.Minified }) {
		entry.Maker = new(logs.Maker)
		entry.Maker.Program, entry.Maker.Version, entry.Maker.Options = worker.Minifier()
	}
	if in.attested == nil {
		return entry, nil
	}
	attested, err := in.attested(ctx)
	if err == nil {
		entry.Provenance, err = b.storeBundles(pins, attested)
	}
	return entry, err
}

// commit publishes a release, whose contents are kept, by an entry, with one of the kind before in front of it where
// that is not "".
func (b *Bot) commit(pins *kvstore.Pins, manifest *logs.Manifest, actor string, before logs.Kind, entry logs.Entry) error {
	data, err := manifest.Encode()
	if err != nil {
		return err
	}
	hash, err := b.keep(pins, data)
	if err != nil {
		return err
	}
	queued := 0
	err = b.log.Update(func(tx *logs.Tx) error {
		// Whatever was true before, this is the moment that counts.
		if err := errors.Join(b.unpublished(manifest.Package, manifest.Version), b.neverOther(manifest.Package, manifest.Version, hash)); err != nil {
			return err
		}
		if entry.Kind == logs.Mirrored {
			if err := b.stays(manifest.Package, manifest.Version); err != nil {
				return err
			}
		}
		entry.Time, entry.Actor = b.options.Now(), actor
		entry.Package, entry.Version, entry.Released, entry.Manifest = manifest.Package, manifest.Version, manifest.Released, hash
		demand, err := readDemand(b.store, manifest.Package)
		if err != nil {
			return err
		}
		entry.Downloads = demand.Downloads
		if err := b.confirmPolicy(entry); err != nil {
			return err
		}
		if before != "" {
			first := entry
			first.Kind, first.Signature, first.Provenance, first.Maker, first.Downloads = before, manifest.Source.Signature, nil, nil, 0
			if err := views.Record(tx, views.Change{Entry: first}); err != nil {
				return err
			}
		}
		if err := views.Record(tx, views.Change{Entry: entry, Manifest: manifest}); err != nil {
			return err
		}
		queued, err = b.squeeze.add(tx.Batch, b.store, manifest)
		return err
	})
	if err != nil {
		return err
	}
	b.squeeze.added(queued)
	return nil
}
