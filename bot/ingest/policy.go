package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// overrideHint is the end of a refusal: how an operator publishes the release all the same.
const overrideHint = "`--without-provenance REASON` publishes it nevertheless, and the log says so"

// satisfyPolicy checks whether the attestation of a release's build is from the repository that the policy of its package
// requires. found is what is known of the attestation, nil for an import, which can have none. It returns the provenance for the
// log entry: found itself for a package without a policy, else a copy with the required repository. override is an operator's
// reason to publish the release although it does not satisfy the policy, and is recorded only then; "" for none. Otherwise the
// error is a *sources.Refusal or, if the attestation could not be fetched, another one, after which the release is tried again.
func satisfyPolicy(p *packages.Package, found *logs.Provenance, override string) (*logs.Provenance, error) {
	required := p.Provenance.Required()
	if required == "" {
		return found, nil
	}
	var checked logs.Provenance
	if found != nil {
		checked = *found
	} else {
		checked.Outcome = logs.AttestationMissing
	}
	checked.Required = required
	override = text.Plain(strings.TrimSpace(override))
	built := checked.Outcome == logs.AttestationVerified
	switch {
	case built && git.CanonicalAddress(checked.Repository) == git.CanonicalAddress(required):
		return &checked, nil
	case override != "":
		checked.Override = text.Short(override, sources.MaxNote)
		return &checked, nil
	case built:
		return nil, sources.Refusef("the package JSON requires a build from %s, and it was built from %s; %s", required, text.Short(checked.Repository, 200), overrideHint)
	case found == nil:
		return nil, sources.Refusef("the package JSON requires a build from %s, and an imported release has no attestation of its build; %s", required, overrideHint)
	case checked.Outcome == logs.AttestationUnverified:
		return nil, fmt.Errorf("the package JSON requires a build from %s, and the attestation could not be fetched: %s", required, checked.Reason)
	}
	return nil, sources.Refusef("the package JSON requires a build from %s, and nothing proves that: provenance %s; %s", required, checked, overrideHint)
}

// CheckRestored returns an error unless a withdrawn release was published with the attestation that its package requires now, by
// the package JSON that was recorded last. override is an operator's reason to restore the release nevertheless; "" for none. It
// returns the provenance for the log entry. That is nil, without an error, for a package that requires no attestation, and for a
// release that was never published. It does not check that the release is withdrawn.
func CheckRestored(store *kvstore.Store, name, version, override string) (*logs.Provenance, error) {
	required, err := requiredRepository(store, name)
	if err != nil || required == "" {
		return nil, err
	}
	published, err := logs.LastPublication(store, name, version)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, nil // it cannot be restored
	}
	if err != nil {
		return nil, err
	}
	found := published.Provenance
	if found == nil {
		found = &logs.Provenance{Outcome: logs.AttestationMissing}
	}
	checked, err := satisfyPolicy(&packages.Package{Provenance: &packages.Policy{Repository: required}}, found, override)
	if err != nil {
		return nil, fmt.Errorf("%s %s is not restored: the package JSON requires a build from %s, and log entry %d has no attestation of that; `--without-provenance REASON` restores it nevertheless, and the log says so", name, version, required, published.Index)
	}
	return checked, nil
}

// requiredRepository returns the repository from which releases of a package must be built, according to the package JSON that
// was recorded in the log last, not the catalogue. It returns "" and no error if that requires none, is not valid any more, or
// does not exist.
func requiredRepository(store *kvstore.Store, name string) (string, error) {
	known, err := views.LookupPackage(store, name)
	if errors.Is(err, kvstore.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	p, err := packages.Parse(packages.Path(name), known.JSON)
	if err != nil { // one from before a stricter check has no policy either
		return "", nil //nolint:nilerr // see above
	}
	return p.Provenance.Required(), nil
}

// checkPolicyUnchanged returns an error if the catalogue in use requires the package's releases to be built from another
// repository than the one for which e.Provenance was checked, or requires one and the entry has no provenance. It returns nil if
// the catalogue requires none, or does not have the package. e is the log entry that is about to publish the release. It does not
// check the provenance itself.
func (pb *Publisher) checkPolicyUnchanged(e logs.Entry) error {
	p, ok := pb.Catalogue().Get(e.Package)
	if !ok {
		return nil
	}
	satisfied := ""
	if e.Provenance != nil {
		satisfied = e.Provenance.Required
	}
	if required := p.Provenance.Required(); required != "" && required != satisfied {
		return fmt.Errorf("the package JSON requires a build from %s, and that was not checked; it is tried again", required)
	}
	return nil
}

// comparePolicies returns how the package JSON p changes the repository that known, the recorded JSON, requires for builds; ""
// stands for none. known is zero for a new package; a recorded JSON that is not valid requires none. The result is zero if it
// does not change.
func comparePolicies(known views.Package, p *packages.Package) logs.PolicyChange {
	change := logs.PolicyChange{New: p.Provenance.Required()}
	if before, err := packages.Parse(packages.Path(p.Name), known.JSON); err == nil {
		change.Old = before.Provenance.Required()
	}
	if change.Old == change.New {
		return logs.PolicyChange{}
	}
	return change
}

// refuseImport returns a *sources.Refusal for an import into a package that requires an attestation, and nil for other packages:
// an imported release has none. override is an operator's reason to allow the import, with which the result is nil; "" for none.
// Before it returns a refusal, refuseImport registers the package and records the refusal in the log and as the version's state,
// unless the version has a state already, such as that of a release which the bot is going to fetch. Another error means that it
// could not be recorded.
func (pb *Publisher) refuseImport(ctx context.Context, p *packages.Package, version, override string) error {
	_, refusal := satisfyPolicy(p, nil, override)
	if refusal == nil {
		return nil
	}
	if _, err := views.LookupState(pb.store, p.Name, version); !errors.Is(err, kvstore.ErrNotFound) {
		return errors.Join(refusal, err)
	}
	if err := pb.Register(ctx, p); err != nil {
		return err
	}
	state := views.State{Package: p.Name, Version: version, Reason: refusal.Error(), Updated: pb.options.Now()}
	missing := &logs.Provenance{Outcome: logs.AttestationMissing, Required: p.Provenance.Required()}
	if err := pb.recordRefusal(state, logs.Entry{Actor: ActorOperator, Provenance: missing}); err != nil {
		return err
	}
	return refusal
}

// NeedsAttestation reports whether the package JSON, as it was at StartMirroring, requires an attestation of the release's build.
// Other origins have none, so only npm's own release may be published then; see [Mirroring.PublishFromNpm].
func (m *Mirroring) NeedsAttestation() bool { return m.pkg.Provenance.Required() != "" }

// PublishFromNpm downloads npm's own release of the version, in 30 seconds at most, and publishes it in place of the one from
// another origin, with an event. It registers the package first. If npm's release must not be published either, PublishFromNpm
// records the refusal in the log, unless ctx has ended, and returns it. It only returns other errors, such as a failed download.
func (m *Mirroring) PublishFromNpm(ctx context.Context) error {
	b := m.bot
	if err := b.Register(ctx, m.pkg); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, npmTimeout)
	defer cancel()
	b.leftovers.Store(true)
	own, entry, err := b.assembleFromNpm(limited, m.pkg, m.version, m.pins)
	if err == nil {
		entry.Provenance, err = satisfyPolicy(m.pkg, entry.Provenance, "")
	}
	if reason, ok := sources.RefusalReason(err); ok && ctx.Err() == nil {
		state := views.State{Package: m.pkg.Name, Version: m.version, Reason: reason, Updated: b.options.Now()}
		return errors.Join(err, b.recordRefusal(state, logs.Entry{Actor: ActorBot}))
	}
	if err != nil {
		return fmt.Errorf("couldn't publish npm's release, as the policy of the package requires: %w", err)
	}
	entry.Kind = logs.Published
	if err := b.commit(m.pins, own, ActorBot, logs.Processed, entry); err != nil {
		return err
	}
	b.announce(ctx, "published", own)
	return nil
}
