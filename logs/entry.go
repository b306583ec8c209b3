package logs

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// EntryFormat is the version of the entries' JSON schema that this package
// writes.
const EntryFormat = 1

// MaxEntry is the largest entry in bytes. C2SP tlog-tiles allows 65,535; an
// entry stays far below, because whoever needs more names a content instead.
const MaxEntry = 16 << 10

// maxReason bounds Entry.Reason, in bytes.
const maxReason = 2 << 10

// A Kind says what happened.
type Kind string

// The kinds of entries.
const (
	PackageAdded   Kind = "package-added"   // a package JSON was enrolled
	PackageChanged Kind = "package-changed" // an enrolled package's JSON changed
	Detected       Kind = "detected"        // upstream has a release that is not here yet
	Refused        Kind = "refused"         // a release will not be published, for the entry's Reason
	Published      Kind = "published"       // a release appeared: the files that Manifest lists
	Withdrawn      Kind = "withdrawn"       // a published release is served no longer
)

// An Entry is one change.
type Entry struct {
	Format  int       `json:"format"`
	Kind    Kind      `json:"kind"`
	Time    time.Time `json:"time"`
	Actor   string    `json:"actor"` // who did it: "bot" or "operator"
	Package string    `json:"package"`
	Version string    `json:"version,omitempty"`
	// Released is when upstream published the release, where upstream says so.
	Released time.Time `json:"released,omitzero"`
	// Reason says in a sentence why, for Refused and Withdrawn.
	Reason string `json:"reason,omitempty"`
	// Manifest is the content that holds the Manifest of a Published entry.
	Manifest kvstore.Hash `json:"manifest,omitzero"`
	// PackageJSON is the content that holds the package JSON as it now is.
	PackageJSON kvstore.Hash `json:"packageJSON,omitzero"`
}

// normal returns the entry as it will be decoded.
func (e Entry) normal() Entry {
	e.Format = EntryFormat
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	e.Released = e.Released.UTC().Truncate(time.Millisecond)
	e.Reason = strings.ToValidUTF8(e.Reason, "\uFFFD")
	if len(e.Reason) > maxReason {
		e.Reason = truncate(e.Reason, maxReason)
	}
	return e
}

// encode returns the entry's bytes, which are what the tree hashes.
func (e Entry) encode() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("logs: couldn't encode a %s entry of %s: %w", e.Kind, e.Package, err)
	}
	if len(data) > MaxEntry {
		return nil, fmt.Errorf("logs: a %s entry of %s has %d bytes, over the limit of %d", e.Kind, e.Package, len(data), MaxEntry)
	}
	return data, nil
}

// decodeEntry is encode's inverse; it refuses formats that it does not know.
func decodeEntry(data []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return Entry{}, err
	}
	if e.Format != EntryFormat {
		return Entry{}, fmt.Errorf("entry format %d is not known to this release of Larder, which writes format %d", e.Format, EntryFormat)
	}
	return e, nil
}

// truncate cuts s to at most n bytes without splitting a character.
func truncate(s string, n int) string {
	const mark = "…"
	n -= len(mark)
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + mark
}
