package bot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// MaxWithdrawalReason bounds a reason, in bytes. Responses to requests for the release contain it.
const MaxWithdrawalReason = 1000

// A WithdrawalService withdraws, restores and erases releases for an operator. Its methods may be called at the same time. It
// needs only a store and its log, no catalogue, so an operator can withdraw whatever else fails.
//
// Guarantees: each of these is an entry of the log, in the same write as the rows that it changes; a restored release is served
// as it was before; erasing removes no content that another release needs that is served or could be restored, that the log
// names, or that a release on its way to publication is about to name.
type WithdrawalService struct {
	store *kvstore.Store
	log   *logs.Log
	now   func() time.Time
}

// NewWithdrawalService returns a service over a store and its log. now returns the current time, for log entries.
func NewWithdrawalService(store *kvstore.Store, log *logs.Log, now func() time.Time) *WithdrawalService {
	return &WithdrawalService{store: store, log: log, now: now}
}

// ErrAlreadyWithdrawn says that an operator withdrew the release before.
var ErrAlreadyWithdrawn = errors.New("is withdrawn already")

// A WithdrawalOutcome describes a release that was withdrawn or restored.
type WithdrawalOutcome struct {
	Package string   `json:"package"`
	Version string   `json:"version"`
	Reason  string   `json:"reason"`
	Entry   int64    `json:"entry"` // of the log
	Files   []string `json:"files"` // paths, in the manifest's order
	Bytes   int64    `json:"bytes"` // of all files
}

// Withdraw withdraws a published release, for a reason of one line that is published with it. It withdraws a release again that
// the bot withdrew, so that the bot does not restore it. The error wraps [ErrAlreadyWithdrawn] if an operator has withdrawn it;
// others say that the reason is not acceptable or the release was never published. After an error nothing is written. It ignores
// its context.
func (s *WithdrawalService) Withdraw(_ context.Context, name, version, reason string) (WithdrawalOutcome, error) {
	return s.appendEntry(logs.Entry{Kind: logs.Withdrawn}, name, version, reason, func(v views.Version, _ *logs.Manifest, _ *kvstore.Pins) error {
		w := v.Withdrawn
		if w == nil {
			return nil
		}
		if e, err := logs.ReadEntry(s.store, w.Entry); err != nil {
			return err
		} else if e.Actor == ingest.ActorOperator {
			return fmt.Errorf("%s %s %w (log entry %d: %s)", name, version, ErrAlreadyWithdrawn, w.Entry, w.Reason)
		}
		return nil
	})
}

// Restore makes a withdrawn release served again, with the same files. policy is what the log entry says about the provenance
// policy of the package, nil for a package without a policy. Restore returns an error if the release is not withdrawn, a content
// of it was erased or is missing, or the log published it with another manifest than the store has.
func (s *WithdrawalService) Restore(ctx context.Context, name, version, reason string, policy *logs.Provenance) (WithdrawalOutcome, error) {
	return s.appendEntry(logs.Entry{Kind: logs.Restored, Provenance: policy}, name, version, reason, func(v views.Version, m *logs.Manifest, pins *kvstore.Pins) error {
		if v.Withdrawn == nil {
			return fmt.Errorf("%s %s is not withdrawn", name, version)
		}
		switch before, err := logs.LastPublication(s.store, name, version); {
		case err != nil:
			return err
		case before.Manifest != v.Manifest:
			return fmt.Errorf("%s %s cannot be restored: its row names other files than log entry %d published; `larder repair` corrects it", name, version, before.Index)
		}
		for _, f := range m.Files {
			there, err := pins.Has(f.SHA256)
			if err != nil {
				return err
			}
			if !there {
				return s.explainMissing(ctx, name, version, f)
			}
		}
		return nil
	})
}

// appendEntry completes the log entry e, of which the caller sets kind and provenance, for the release of that name and version.
// It appends it to the log and updates the views in one transaction, unless check returns an error. check runs in the
// transaction; it gets the release's row, its manifest, and pins that protect from deletion the contents that check looks up.
// appendEntry also returns an error for an unacceptable reason, and for a release that was never published. After an error
// nothing is written, and the outcome has no meaning.
func (s *WithdrawalService) appendEntry(e logs.Entry, name, version, reason string, check func(views.Version, *logs.Manifest, *kvstore.Pins) error) (WithdrawalOutcome, error) {
	reason, err := checkWithdrawalReason(reason)
	if err != nil {
		return WithdrawalOutcome{}, err
	}
	pins := s.store.Pin()
	defer pins.Release()
	var out WithdrawalOutcome
	err = s.log.Update(func(tx *logs.Tx) error {
		v, m, err := s.lookup(name, version)
		if err != nil {
			return err
		}
		if err := check(v, m, pins); err != nil {
			return err
		}
		e.Time, e.Actor, e.Package, e.Version, e.Released = s.now(), ingest.ActorOperator, name, version, v.Released
		e.Reason, e.Manifest, e.Mirror = reason, v.Manifest, v.Mirror
		appended, err := tx.Append(e)
		if err != nil {
			return err
		}
		out = newWithdrawalOutcome(appended, m)
		return views.Apply(tx.Batch, views.Change{Index: appended.Index, Entry: appended.Entry, Manifest: m})
	})
	return out, err
}

// newWithdrawalOutcome returns the description of what the entry e did to its release, whose manifest is m: the files, and their
// bytes together.
func newWithdrawalOutcome(e logs.Indexed, m *logs.Manifest) WithdrawalOutcome {
	out := WithdrawalOutcome{
		Package: e.Package, Version: e.Version, Reason: e.Reason, Entry: e.Index,
		Files: text.Each(m.Files, func(f logs.File) string { return f.Path }),
	}
	for _, f := range m.Files {
		out.Bytes += f.Size
	}
	return out
}

// lookup returns the row of a version that is published or was withdrawn, and its manifest. If the version was never published,
// it returns the error of explainAbsent, which says why to people.
func (s *WithdrawalService) lookup(name, version string) (views.Version, *logs.Manifest, error) {
	v, err := views.LookupVersion(s.store, name, version)
	if errors.Is(err, kvstore.ErrNotFound) {
		return v, nil, s.explainAbsent(name, version)
	}
	if err != nil {
		return v, nil, err
	}
	m, err := logs.ReadManifest(s.store, v.Manifest)
	return v, m, err
}

// explainAbsent returns an error for people that says why a version was never published: by its state, or because the package or
// version is unknown. It returns an error of the store instead.
func (s *WithdrawalService) explainAbsent(name, version string) error {
	state, err := views.LookupState(s.store, name, version)
	switch {
	case err == nil:
		return fmt.Errorf("%s %s was never published: it is %s", name, version, state.Kind)
	case !errors.Is(err, kvstore.ErrNotFound):
		return err
	}
	switch versions, err := views.Versions(s.store, name); {
	case err != nil:
		return err
	case len(versions) == 0:
		return fmt.Errorf("no release of %s was ever published; `larder status` lists the packages", name)
	}
	return fmt.Errorf("%s has no version %s; `larder status %s` lists those it has", name, version, name)
}

// explainMissing returns the error that says why a release cannot be restored: its files were erased, with the log entry about
// that, or the content of the file f is lost. It reads the whole log; an error of that is returned instead.
func (s *WithdrawalService) explainMissing(ctx context.Context, name, version string, f logs.File) error {
	erased := logs.Indexed{Index: -1}
	for e, err := range logs.Entries(s.store, 0) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if e.Kind == logs.Erased && e.Package == name && e.Version == version {
			erased = e
		}
	}
	if erased.Index < 0 {
		return fmt.Errorf("%s %s cannot be restored: the content %s of its file %s is missing; `larder fsck` tells what else is", name, version, f.SHA256, f.Path)
	}
	return fmt.Errorf("%s %s cannot be restored: its files were erased for good (log entry %d: %s)", name, version, erased.Index, erased.Reason)
}

// checkWithdrawalReason returns a reason without white space at its ends, or an error unless it is one printable line of at most
// MaxWithdrawalReason bytes.
func checkWithdrawalReason(reason string) (string, error) {
	reason = strings.TrimSpace(reason)
	switch {
	case reason == "":
		return "", errors.New("a reason is needed: it is published in the log and in each response to a request for the release")
	case len(reason) > MaxWithdrawalReason:
		return "", fmt.Errorf("the reason has %d bytes; at most %d are allowed: shorten it, and link to more", len(reason), MaxWithdrawalReason)
	case !utf8.ValidString(reason) || strings.ContainsFunc(reason, text.Unprintable):
		return "", errors.New("the reason must be one line of text, without control characters")
	}
	return reason, nil
}

// WithdrawAndErase withdraws a release. Then it calls inForce, which waits until no process serves the release any more. If erase
// is true, it erases the release's files after that, also those of a release that an operator has withdrawn before. The outcome
// is nil for such a release, and not nil once the withdrawal is recorded, even if a later step fails. The erasure is nil unless
// erasing was tried. Without erase, a release that was withdrawn before is [ErrAlreadyWithdrawn].
func (s *WithdrawalService) WithdrawAndErase(ctx context.Context, name, version, reason string, erase bool, inForce func(context.Context) error) (*WithdrawalOutcome, *Erasure, error) {
	var withdrawn *WithdrawalOutcome
	switch out, err := s.Withdraw(ctx, name, version, reason); {
	case err == nil:
		withdrawn = &out
	case !errors.Is(err, ErrAlreadyWithdrawn) || !erase:
		return nil, nil, err
	}
	if err := inForce(ctx); err != nil || !erase {
		return withdrawn, nil, err
	}
	erasure, err := s.Erase(ctx, name, version, reason)
	if err != nil && withdrawn != nil {
		err = fmt.Errorf("%s %s is withdrawn (log entry %d), but its files could not be erased: %w", name, version, withdrawn.Entry, err)
	}
	return withdrawn, &erasure, err
}
