package verify

import (
	"context"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

// MaxAttestation bounds an attestation's Sigstore bundle, in bytes; npm's have some 11,000.
const MaxAttestation = 256 << 10

// A Build is the facts that an attestation proves about the build of an archive.
type Build struct {
	Repository string `json:"repository"` // its URL
	Commit     string `json:"commit"`     // in hexadecimal digits
	Workflow   string `json:"workflow"`   // the URL of its file, at a branch or tag
}

// An Upstream compares what a log says about a release with what the release's upstream has.
type Upstream interface {
	// Compare compares a release with its upstream. An upstream that cannot be reached is no error: the Comparison is [Unproven].
	Compare(ctx context.Context, c Claim) Comparison
}

// A Claim is a log's statement about a release. Each part is proven to be in the log.
type Claim struct {
	Entry    logs.Entry // the one that published it
	Manifest *logs.Manifest
	// Bundle is the attestation of the build that the entry names, and Publish that of the publication; nil where it names none.
	Bundle, Publish []byte
	// PackageJSON is the last one in the log; nil if the log was not read completely.
	PackageJSON []byte
}

// A Comparison is the result of comparing a release with its upstream.
type Comparison struct {
	// Outcome is [Proven] if every file that could be compared is upstream's, [Differs] if one is not, and [Unproven] if the release
	// could not be compared.
	Outcome Outcome `json:"outcome"`
	Problem string  `json:"problem,omitempty"`
	Err     error   `json:"-"` // that Problem is the text of
	// Where describes the request to upstream; Registry is the registry's URL.
	Where    string `json:"where,omitempty"`
	Registry string `json:"registry,omitempty"`
	// Integrity is what the registry states of the archive, whose bytes have it, and Key the id of the registry's key
	// that has signed it, "" for none.
	Integrity string `json:"integrity,omitempty"`
	Key       string `json:"key,omitempty"`
	// Attested is the id of the registry's key that has signed the attestation of the publication, "" for none.
	Attested string `json:"attested,omitempty"`
	// Commit is what the tag names, of a git repository.
	Commit string `json:"commit,omitempty"`
	// Files is the number of files that are upstream's, byte for byte; Made that of generated files which were generated again with
	// the same result; Unchecked that of all others.
	Files     int `json:"files"`
	Made      int `json:"made"`
	Unchecked int `json:"unchecked"`
	// Path is where upstream's archive has the file itself, "" for one that was made.
	Path string `json:"path,omitempty"`
	// Provenance is where the archive was built, where an attestation proves that.
	Provenance *Build `json:"provenance,omitempty"`
	// Mismatches say which documents name another repository than that.
	Mismatches []string `json:"mismatches,omitempty"`
	Notes      []string `json:"notes,omitempty"`
	// At returns where upstream's archive has a file, "" for one that was made, or why that could not be checked. It must be set
	// if Outcome is [Proven].
	At func(path string) (string, error) `json:"-"`
}

// maxPackageJSON bounds a package JSON, in bytes.
const maxPackageJSON = 1 << 20

// compareUpstream compares the release of a proven file with its upstream, once for all its files, and sets r.Upstream. If
// upstream differs in any file of the release, the outcome of r becomes [Differs]. If the release or this file could not be
// compared, it becomes [Unproven]. In both cases r.Problem says why.
func (l *Log) compareUpstream(ctx context.Context, r *Result, release *Release) {
	if release.compared == nil {
		found, err := l.compareWithUpstream(ctx, l.options.Upstream, release)
		if err != nil {
			found = Comparison{Outcome: OutcomeOf(err), Problem: err.Error()}
		}
		release.compared = &found
	}
	found := *release.compared
	r.Upstream = &found
	switch found.Outcome {
	case Proven:
		var err error
		if found.Path, err = found.At(r.Path); err != nil {
			r.Outcome, r.Problem = Unproven, fmt.Sprintf("it is what the log says, and whether it is what upstream has could not be checked: %v", err)
		}
	case Differs:
		r.Outcome, r.Problem = Differs, "the log is not what upstream says: "+found.Problem
	default:
		r.Outcome, r.Problem = Unproven, fmt.Sprintf("it is what the log says, and could not be compared with upstream: %s", found.Problem)
	}
}

// compareWithUpstream compares what the log says about a release with upstream. The error is about reading the log; if upstream
// could not be compared, the Comparison is [Unproven].
func (l *Log) compareWithUpstream(ctx context.Context, upstream Upstream, release *Release) (Comparison, error) {
	claim, err := l.readClaim(ctx, release)
	if err != nil {
		return Comparison{}, err
	}
	return upstream.Compare(ctx, claim), nil
}

// readClaim fetches what the log says about a release, for comparing it with upstream: its attestations, and its package
// JSON if the log was read completely. It verifies that they have the hashes that the entries state, but not the signatures
// of attestations. With an error, the Claim must not be used.
func (l *Log) readClaim(ctx context.Context, release *Release) (Claim, error) {
	claim := Claim{Entry: release.Published.Entry, Manifest: release.Manifest}
	err := claim.ReadAttestations(func(h kvstore.Hash) ([]byte, error) {
		return l.fetchContent(ctx, release.Published.Index, h, MaxAttestation)
	})
	if e := release.packageJSON; err == nil && e.PackageJSON != (kvstore.Hash{}) {
		claim.PackageJSON, err = l.fetchContent(ctx, e.Index, e.PackageJSON, maxPackageJSON)
	}
	return claim, err
}

// ReadAttestations sets c.Bundle and c.Publish to the attestations that c.Entry names, and leaves those that it does not
// name. read returns a content by its hash; its first error is returned. The attestations are not verified.
func (c *Claim) ReadAttestations(read func(kvstore.Hash) ([]byte, error)) (err error) {
	p := c.Entry.Provenance
	if p == nil {
		return nil
	}
	if p.Bundle != (kvstore.Hash{}) {
		c.Bundle, err = read(p.Bundle)
	}
	if err == nil && p.Publish.Bundle != (kvstore.Hash{}) {
		c.Publish, err = read(p.Publish.Bundle)
	}
	return err
}

// fetchContent fetches a content that the entry with this index names by its hash, of at most limit bytes. Content with
// another hash is a [Difference]; content that cannot be fetched or is too long is another error.
func (l *Log) fetchContent(ctx context.Context, index int64, h kvstore.Hash, limit int64) ([]byte, error) {
	data, err := l.remote.get(ctx, tiles.ContentPath(index, h), limit)
	if err != nil {
		return nil, fmt.Errorf("couldn't get what entry %d names: %w", index, err)
	}
	if sum := kvstore.Sum(data); sum != h {
		return nil, differs("a content that entry %d names has the hash %s, and not %s", index, sum, h)
	}
	return data, nil
}
