package logs

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
)

// EntryFormat is the version of the entries' JSON schema that this package
// writes.
const EntryFormat = 1

// MaxEntry is the largest entry in bytes. C2SP tlog-tiles allows 65,535; an
// entry stays far below, because an entry that needs more names a content instead.
const MaxEntry = 16 << 10

// MaxReason bounds Entry.Reason, in bytes. A longer one is cut; a caller that has more
// to say keeps all of it as a content and names that in Entry.Detail.
const MaxReason = 2 << 10

// A Kind says what happened.
type Kind string

// The kinds of entries.
const (
	PackageAdded    Kind = "package-added"    // a package JSON was registered
	PackageChanged  Kind = "package-changed"  // a registered package's JSON changed, as Diff shows
	PackageRemoved  Kind = "package-removed"  // the catalogue no longer has a registered package: its releases stay, no others follow
	Detected        Kind = "detected"         // upstream has a release that is not here yet
	Refused         Kind = "refused"          // a release will not be published, for the entry's Reason
	Processed       Kind = "processed"        // a release's files were made; Manifest says what was done to each
	Published       Kind = "published"        // a release appeared: the files that Manifest lists
	Mirrored        Kind = "mirrored"         // a release appeared, taken from another origin, as Mirror says
	Confirmed       Kind = "confirmed"        // upstream has the bytes of a mirrored release that only its origin vouched for
	Replaced        Kind = "replaced"         // a release appeared with upstream's files, after those of another origin were withdrawn
	Withdrawn       Kind = "withdrawn"        // a published release is served no longer
	Restored        Kind = "restored"         // a withdrawn release is served again
	Erased          Kind = "erased"           // contents of a withdrawn release, those that Erasure lists, were removed
	UpstreamChanged Kind = "upstream-changed" // what was published from is not what upstream has now
	KeyChanged      Kind = "key-changed"      // checkpoints are signed with another key from here on
	LossAccepted    Kind = "loss-accepted"    // the log before, of another origin, has lost entries that were signed; it goes on as this one
)

// Kinds are all kinds of entries.
var Kinds = []Kind{
	PackageAdded, PackageChanged, PackageRemoved, Detected, Refused, Processed, Published, Mirrored, Confirmed, Replaced,
	Withdrawn, Restored, Erased, UpstreamChanged, KeyChanged, LossAccepted,
}

// An Entry is one change. docs/log-entry.schema.json is the schema of its JSON.
type Entry struct {
	Format  int       `json:"format"`
	Kind    Kind      `json:"kind"`
	Time    time.Time `json:"time"`
	Actor   string    `json:"actor"`             // who did it: "bot" or "operator"
	Package string    `json:"package,omitempty"` // "" for KeyChanged and LossAccepted only
	Version string    `json:"version,omitempty"`
	// Released is when upstream published the release, where upstream says so.
	Released time.Time `json:"released,omitzero"`
	// Reason says in a sentence why, for Refused, Withdrawn, Restored, Erased, Confirmed,
	// Replaced and UpstreamChanged.
	Reason string `json:"reason,omitempty"`
	// Manifest is the content that holds the Manifest of the release that the
	// entry is about, from Processed on.
	Manifest kvstore.Hash `json:"manifest,omitzero"`
	// Files is the root of the tree over the manifest's files, [Manifest.Root], for
	// Published, Mirrored and Replaced.
	Files kvstore.Hash `json:"files,omitzero"`
	// PackageJSON is the content that holds the package JSON as it now is; for
	// PackageRemoved, as it last was.
	PackageJSON kvstore.Hash `json:"packageJSON,omitzero"`
	// Diff is the content that holds a unified diff from the package JSON as it
	// was to PackageJSON.
	Diff kvstore.Hash `json:"diff,omitzero"`
	// Detail is the content that holds the whole text where Reason is cut.
	Detail kvstore.Hash `json:"detail,omitzero"`
	// Erasure is the content that holds the Erasure of an Erased entry.
	Erasure kvstore.Hash `json:"erasure,omitzero"`
	// Signature is the outcome of verifying upstream's own signature, for Processed, for Published and Replaced with
	// the signature itself, and for Refused where that is the reason.
	Signature Signature `json:"signature,omitzero"`
	// Provenance is what is signed of where the release was built, for Published, Replaced, and Refused of an import that lacks a required attestation.
	Provenance *Provenance `json:"provenance,omitempty"`
	// Maker is what made the manifest's minified files, for Published and Replaced.
	Maker *Maker `json:"maker,omitempty"`
	// Downloads is how often npm counted downloads of the package in a month, as far as the bot knew, for Published, Mirrored and
	// Replaced: mirrors rank search results by it.
	Downloads int64 `json:"downloads,omitempty"`
	// Mirror is where a release was taken from, for Mirrored and what follows about it.
	Mirror *Mirror `json:"mirror,omitempty"`
	// Upstream is what changed there, for UpstreamChanged.
	Upstream UpstreamChange `json:"upstream,omitzero"`
	// Policy is the provenance policy of the package before and after, for PackageAdded and PackageChanged where it changed.
	Policy PolicyChange `json:"policy,omitzero"`
	// Key is the new key of a KeyChanged entry: a verifier key as in
	// https://c2sp.org/signed-note.
	Key string `json:"key,omitempty"`
	// KeySignature is what makes Key trustworthy to who trusts the key before: the
	// signature line of that key in a signed note whose text is Key and a line feed.
	KeySignature string `json:"keySignature,omitempty"`
	// Former is the last signed checkpoint of the log before, for LossAccepted, and Lost the
	// entries of it that are lost.
	Former string `json:"former,omitempty"`
	Lost   Range  `json:"lost,omitzero"`
	// Live is the root of the map of live releases after the entry. Append sets it.
	Live kvstore.Hash `json:"live"`
}

// An UpstreamChange is the integrity that upstream states for a release's
// archive, or the commit that a tag names, before and after; "" is that of a release that upstream does not have.
type UpstreamChange struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// A PolicyChange is the repository that the releases of a package must be built from, before and after; "" for any.
type PolicyChange struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// Weakens reports whether releases no longer have to be built from the old repository. It is false if the policy has not
// changed, or there was none.
func (c PolicyChange) Weakens() bool { return c.Old != "" && c.Old != c.New }

// A Provenance is what was found of a release's provenance attestation: what a build service has signed of which
// repository, commit and workflow made the archive.
type Provenance struct {
	Outcome AttestationOutcome `json:"outcome"`
	// Reason says why the attestation proves nothing, for AttestationInvalid and AttestationUnverified.
	Reason string `json:"reason,omitempty"`
	// Bundle is the content that holds the attestation, a Sigstore bundle as the registry has it; none if it has none.
	Bundle kvstore.Hash `json:"bundle,omitzero"`
	// Repository, Commit and Workflow are the certificate's, for AttestationVerified.
	Repository string `json:"repository,omitempty"` // its URL
	Commit     string `json:"commit,omitempty"`     // in hexadecimal digits
	Workflow   string `json:"workflow,omitempty"`   // the URL of its file, at a branch or tag
	// Publish is the registry's own attestation; zero in older entries and if there is no registry.
	Publish Publish `json:"publish,omitzero"`
	// Required is the repository that the package JSON requires, "" if it has no policy.
	Required string `json:"required,omitempty"`
	// Override is why an operator published the release although it does not satisfy the policy; "" for all others.
	Override string `json:"override,omitempty"`
}

// A Publish is the result of verifying a registry's attestation that it received the archive.
type Publish struct {
	Outcome AttestationOutcome `json:"outcome"`
	Reason  string             `json:"reason,omitempty"` // as in [Provenance]
	Bundle  kvstore.Hash       `json:"bundle,omitzero"`  // as in [Provenance]
	// Key is the id of the registry's key that signed, and PublicKey that key in base64, for AttestationVerified.
	Key       string `json:"key,omitempty"`
	PublicKey string `json:"publicKey,omitempty"`
}

// String describes the provenance in a line.
func (p Provenance) String() string {
	described := p.Outcome.describe(fmt.Sprintf("built from %s at commit %s by %s", p.Repository, p.Commit, p.Workflow), p.Reason)
	if p.Override != "" {
		described += fmt.Sprintf("; the package JSON requires %s, and the operator overrode that: %s", p.Required, p.Override)
	}
	return described
}

// String describes the attestation in a line.
func (p Publish) String() string {
	return p.Outcome.describe("attested by the registry's key "+p.Key, p.Reason)
}

// describe returns the text proven for a verified attestation, a fixed text for a missing one, and for any other outcome
// that it is broken or not verified, with the reason.
func (o AttestationOutcome) describe(proven, reason string) string {
	switch o {
	case AttestationVerified:
		return proven
	case AttestationMissing:
		return "none: the registry has no attestation"
	case AttestationInvalid:
		return "broken: " + reason
	}
	return "not verified: " + reason
}

// An AttestationOutcome is the result of the search for an attestation.
type AttestationOutcome string

// The outcomes.
const (
	AttestationVerified   AttestationOutcome = "verified"   // it is right, and about this archive
	AttestationMissing    AttestationOutcome = "missing"    // the registry has none
	AttestationInvalid    AttestationOutcome = "invalid"    // there is one, and it is broken, for the Reason
	AttestationUnverified AttestationOutcome = "unverified" // the registry lists one and does not have it, for the Reason; in older entries also what is invalid
)

// A Maker is a program that made files of a release. Who runs the same version with the same options gets the same bytes.
type Maker struct {
	Program string `json:"program"`
	Version string `json:"version"`
	// Options are those of its command line, for JavaScript and for CSS.
	Options string `json:"options"`
}

// A Range is a part of a log.
type Range struct {
	From int64 `json:"from"` // the first entry
	To   int64 `json:"to"`   // the one after the last
}

// String returns the range in words: "entry 3", or "entries 3 to 5", both included.
func (r Range) String() string {
	if r.To-r.From == 1 {
		return fmt.Sprintf("entry %d", r.From)
	}
	return fmt.Sprintf("entries %d to %d", r.From, r.To-1)
}

// Contents returns the hashes of the documents that the entry names, which are never removed: the manifest, package JSON,
// diff, detail, erasure and attestations that it has, in this order; nil if it has none. It does not return the files of a
// release, which the manifest names.
func (e Entry) Contents() []kvstore.Hash {
	var named []kvstore.Hash
	var build, publish kvstore.Hash
	if p := e.Provenance; p != nil {
		build, publish = p.Bundle, p.Publish.Bundle
	}
	for _, h := range []kvstore.Hash{e.Manifest, e.PackageJSON, e.Diff, e.Detail, e.Erasure, build, publish} {
		if h != (kvstore.Hash{}) {
			named = append(named, h)
		}
	}
	return named
}

// normalized returns a copy of the entry as it is after encoding and decoding: in the present format, with times in UTC to
// the millisecond, invalid UTF-8 in the reason replaced, and a reason over [MaxReason] cut.
func (e Entry) normalized() Entry {
	e.Format = EntryFormat
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	e.Released = e.Released.UTC().Truncate(time.Millisecond)
	e.Reason = text.Short(strings.ToValidUTF8(e.Reason, "\uFFFD"), MaxReason)
	return e
}

// encode returns the entry's bytes, which the tree hashes. An entry over [MaxEntry] is an error.
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

// decodeEntry decodes an entry. It returns an error for unknown formats, and for an entry without the root of the map of
// live releases.
func decodeEntry(data []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return Entry{}, err
	}
	if e.Format != EntryFormat {
		return Entry{}, fmt.Errorf("entry format %d is not known to this release of Larder, which writes format %d", e.Format, EntryFormat)
	}
	if e.Live == (kvstore.Hash{}) {
		return Entry{}, errors.New("the entry has no root of the map of live releases")
	}
	return e, nil
}
