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
	Refused    StateKind = "refused"    // it will not be published, for Reason
	Failed     StateKind = "failed"     // the last attempt failed for Reason; the next is at Next
	Withdrawn  StateKind = "withdrawn"  // it was published and is served no longer
)

// Final reports whether the bot leaves a version in this state alone.
func (k StateKind) Final() bool {
	return k == Published || k == Refused || k == Withdrawn
}

// A State is what became of one version that upstream has: what was tried, when,
// why it failed and when it is tried again. Apply writes the states that follow
// from the log; the bot writes Processing and Failed, which a rebuild forgets.
type State struct {
	Package  string    `json:"package"`
	Version  string    `json:"version"`
	Kind     StateKind `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Released time.Time `json:"released,omitzero"` // when upstream published it, where known
	Updated  time.Time `json:"updated"`
	Attempts int       `json:"attempts,omitempty"` // that failed
	Next     time.Time `json:"next,omitzero"`      // of the next attempt, for Failed
}

// SetState adds a version's state to b.
func SetState(b *kvstore.Batch, s State) error {
	return setJSON(b, kvstore.States, kvstore.Key(s.Package, s.Version), s)
}

// LookupState returns a version's state, or kvstore.ErrNotFound.
func LookupState(r kvstore.Reader, pkg, version string) (State, error) {
	var s State
	return s, getJSON(r, kvstore.States, kvstore.Key(pkg, version), &s)
}

// States returns the states of a package's versions, or of all packages' where
// pkg is "", in byte order of names and versions.
func States(r kvstore.Reader, pkg string) ([]State, error) {
	var prefix []byte
	if pkg != "" {
		prefix = kvstore.Prefix(pkg)
	}
	return scanJSON[State](r, kvstore.States, prefix)
}

// StatesOf returns all states of one kind, in byte order of names and versions. It reads
// every state but decodes few, so it is much faster than States.
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
		var s State
		if err := decodeJSON(item.Key, item.Value, &s); err != nil {
			return nil, err
		}
		if s.Kind == kind {
			found = append(found, s)
		}
	}
	return found, nil
}
