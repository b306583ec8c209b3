package views

import (
	"bytes"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// A StateKind is how far a version has come.
type StateKind string

// The states of a version.
const (
	Detected   StateKind = "detected"   // upstream has it; it waits for its turn
	Processing StateKind = "processing" // it is being fetched, or was when the process ended
	Published  StateKind = "published"  // it is served
	Mirrored   StateKind = "mirrored"   // it is served as another origin has it, for which nothing but that origin's word vouches
	Refused    StateKind = "refused"    // it will not be published, for Reason
	Failed     StateKind = "failed"     // the last attempt failed for Reason; the next is at Next
	Withdrawn  StateKind = "withdrawn"  // it was published and is served no longer
)

// The kinds of upstream versions that the bot never tried to publish. The store has no state of them.
const (
	Older      StateKind = "older"      // than what was taken
	Prerelease StateKind = "prerelease" // one of those that the package did not start with
	Ignored    StateKind = "ignored"    // a pattern of the package JSON leaves it out
	Gone       StateKind = "gone"       // upstream had it once
)

// An Account is the state of a version that upstream has or had, whether the bot tried it or not.
type Account struct {
	State
	Command string `json:"command,omitempty"` // the command with which an operator publishes it, "" if it cannot be published
}

// Final reports whether a version in this state is served, refused or withdrawn, so that it does not wait for another
// attempt of the bot. It is false for a version that was never tried.
func (k StateKind) Final() bool {
	return k.Served() || k == Refused || k == Withdrawn
}

// Served reports whether a version in this state is served: published, or mirrored.
func (k StateKind) Served() bool { return k == Published || k == Mirrored }

// IsUntried reports whether the bot leaves out versions of this kind, and so never tried to publish one: Older, Prerelease,
// Ignored and Gone. It is false for Detected, of which a version waits for its turn.
func (k StateKind) IsUntried() bool {
	return k == Older || k == Prerelease || k == Ignored || k == Gone
}

// A State is the state of one version that upstream has: what was tried, when,
// why it failed and when it is tried again. Apply writes the states that follow
// from the log; the bot writes Processing, Failed and Unlogged refusals, which a repair leaves alone.
type State struct {
	Package  string    `json:"package"`
	Version  string    `json:"version"`
	Kind     StateKind `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Released time.Time `json:"released,omitzero"` // when upstream published it, where known
	Updated  time.Time `json:"updated,omitzero"`
	Attempts int       `json:"attempts,omitempty"` // that failed
	Next     time.Time `json:"next,omitzero"`      // of the next attempt, for Failed
	// Unlogged reports whether the log has no entry of a refusal, because one about another release of the package has the same cause.
	Unlogged bool `json:"unlogged,omitempty"`
	// Imported reports whether what was refused is an import without a required attestation, so that upstream's release may be published.
	Imported bool `json:"imported,omitempty"`
	// Wrong is what came in place of the archive, for Failed.
	Wrong WrongBytes `json:"wrong,omitzero"`
}

// WrongBytes counts how often the same bytes came in place of those that upstream promises.
type WrongBytes struct {
	Hash  string    `json:"hash"` // of the bytes, in the notation of upstream's promise
	Times int       `json:"times"`
	First time.Time `json:"first"`
}

// SetState adds the row of a version's state to a batch.
func SetState(b *kvstore.Batch, s State) error {
	return setJSON(b, kvstore.States, kvstore.Key(s.Package, s.Version), s)
}

// LookupState returns a version's state, or kvstore.ErrNotFound.
func LookupState(r kvstore.Reader, pkg, version string) (State, error) {
	var s State
	return s, getJSON(r, kvstore.States, kvstore.Key(pkg, version), &s)
}

// DecodeState decodes a row of kvstore.States.
func DecodeState(row kvstore.Item) (State, error) {
	var s State
	return s, decodeJSON(row.Key, row.Value, &s)
}

// States returns the states of a package's versions, or of all packages if pkg is "", in byte order of names and versions.
func States(r kvstore.Reader, pkg string) ([]State, error) {
	var prefix []byte
	if pkg != "" {
		prefix = kvstore.Prefix(pkg)
	}
	return scanJSON[State](r, kvstore.States, prefix)
}

// StatesOf returns all states of one kind, in byte order of names and versions. It decodes only these, so it is much faster
// than States.
func StatesOf(r kvstore.Reader, kind StateKind) ([]State, error) {
	var found []State
	word := []byte(`"` + kind + `"`)
	for item, err := range r.Scan(kvstore.States, kvstore.Range{}) {
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(item.Value, word) {
			continue
		}
		s, err := DecodeState(item)
		if err != nil {
			return nil, err
		}
		if s.Kind == kind {
			found = append(found, s)
		}
	}
	return found, nil
}
