// Package sources has what the bot knows of upstreams: how each kind of source lists and fetches releases, which upstreams respond, and what the
// store records of them: versions and polls, where releases came from, download counts, audits. It also has the events that the
// parts of the bot report, and which errors stop the bot.
//
// Guarantees: what a source fetches is verified by what the source states of it; stored times are bounded by the clock, so a clock that was ahead
// delays nothing for longer than an interval.
//
// The package must not know when upstreams are polled, and publishes nothing.
package sources

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// DescribesRelease reports whether a path is that of the package.json or of a README in the top folder. Such a file is read for the README or
// dependencies, published or not.
func DescribesRelease(name string) bool { return name == "package.json" || ReadmeRank(name) > 0 }

// ReadmeRank returns how likely a path is that of the README of a release: 0 for no README in the top folder, 3 for the likeliest.
func ReadmeRank(name string) int {
	lower := strings.ToLower(name)
	if strings.Contains(name, "/") || strings.TrimSuffix(lower, path.Ext(lower)) != "readme" {
		return 0
	}
	switch path.Ext(lower) {
	case ".md", ".markdown":
		return 3
	case ".txt", "":
		return 2
	case ".rst":
		return 1
	}
	return 0
}

// A Source is a kind of upstream.
type Source interface {
	// List requests the versions of a target. The error for an unknown target is fetch.ErrNotFound.
	List(ctx context.Context, target string, known fetch.Validators) (*Listing, error)
	// Fetch downloads a version into dst, and verifies it. It may leave out contents of files that the package does not publish.
	Fetch(ctx context.Context, p *packages.Package, target string, v Candidate, dst *os.File) (*Fetched, error)
	// Same compares the hash that a listing states for a version's archive with that of the published one. known is false if they have no
	// algorithm in common.
	Same(v Candidate, published string) (same, known bool)
}

// A Candidate is a version that a source lists.
type Candidate struct {
	Name       string
	Published  time.Time // zero if the source does not state it
	Hash       string    // of its archive, or of the commit that it is; "" if upstream states none
	Ref        any       // the source's own data about the version
	Deprecated string    // upstream's warning, "" if it is not deprecated
}

// A Listing is the versions that a source has of a target.
type Listing struct {
	Unchanged  bool // since the state that the validators describe; Versions is nil
	Versions   map[string]Candidate
	Latest     string // by upstream's own tag; "" without one
	Validators fetch.Validators
	Moved      string // the address that the target redirects to; "" without a redirect
}

// Fetched is a version on its way to publication.
type Fetched struct {
	Archive  archive.Source
	Source   logs.Source
	Released time.Time // zero where the listing says it, or it is not known
	Notes    []string
	// Signature is the registry's, with all that verifies it.
	Signature logs.Signature
	// Attested fetches and verifies the attestations of the release. Nil: its upstream has no such thing.
	Attested func(context.Context) (Attested, error)
}

// Sources are the kinds of upstreams that the bot requests. A nil client means that packages of its kind are not updated.
type Sources struct {
	Npm        *npm.Client
	Git        *git.Client
	Provenance *npm.AttestationVerifier // of npm's attestations
}

// ForPackage returns the source of a package's releases, nil for a package that is not updated or for whose kind the bot has no client.
func (s *Sources) ForPackage(p *packages.Package) Source {
	if p.Autoupdate == nil {
		return nil
	}
	return s.ForKind(p.Autoupdate.Source)
}

// ForKind returns the source of a kind, [KindNpm] or [KindGit], nil if the bot has no client for it.
func (s *Sources) ForKind(kind string) Source {
	switch {
	case kind == KindNpm && s.Npm != nil:
		return NpmSource{s.Npm, s.Provenance}
	case kind == KindGit && s.Git != nil:
		return gitSource{s.Git}
	}
	return nil
}

// UpstreamName returns the name in [Breakers] of what lists a package's versions: "npm", with the scope if there is one, or the host of a repository,
// or else the kind of source. The package has an upstream.
func UpstreamName(p *packages.Package) string {
	target := p.Autoupdate.Target
	if p.Autoupdate.Source == KindNpm {
		scope, _, scoped := strings.Cut(target, "/")
		if !scoped {
			scope = ""
		}
		return strings.TrimSpace("npm " + scope) // a scope may have a registry of its own
	}
	if at, err := url.Parse(target); err == nil && at.Host != "" {
		return at.Host
	}
	return p.Autoupdate.Source
}

// ArchivesName returns the name in [Breakers] of where a package's archives come from, which may be down alone. The package has an upstream.
func ArchivesName(p *packages.Package) string { return "archives of " + UpstreamName(p) }

// The types of sources, in package JSONs and in manifests.
const (
	KindNpm = "npm"
	KindGit = "git"
)

// An NpmSource lists and fetches releases from an npm registry.
type NpmSource struct {
	client     *npm.Client
	provenance *npm.AttestationVerifier
}

// List implements [Source]: it requests the packument, npm's metadata of a package, and returns its versions. The listing is Unchanged, without
// versions, if known still describes the packument. A malformed version has no hash.
func (s NpmSource) List(ctx context.Context, target string, known fetch.Validators) (*Listing, error) {
	packument, fresh, err := s.client.Packument(ctx, target, known)
	if errors.Is(err, npm.ErrNotModified) {
		return &Listing{Unchanged: true, Validators: known}, nil
	}
	if err != nil {
		return nil, err
	}
	l := &Listing{Versions: make(map[string]Candidate, len(packument.Versions)), Latest: packument.DistTags["latest"], Validators: fresh}
	for name, v := range packument.Versions {
		listed := Candidate{Name: name, Published: v.Published, Ref: v, Deprecated: v.Deprecated}
		if v.Err == nil {
			listed.Hash = v.Hash()
		}
		l.Versions[name] = listed
	}
	return l, nil
}

// Fetch implements [Source]: it downloads the tarball into dst and verifies its integrity and the registry's signature. The attestations are fetched
// only when Attested of the result is called.
func (s NpmSource) Fetch(ctx context.Context, _ *packages.Package, target string, v Candidate, dst *os.File) (*Fetched, error) {
	listed := v.Ref.(npm.Version)
	opened, signed, err := s.client.Release(ctx, listed, dst)
	if err != nil {
		return nil, err
	}
	signature := signatureForLog(signed)
	return &Fetched{
		Archive:   opened,
		Source:    logs.Source{Type: KindNpm, Name: target, Integrity: listed.Hash(), Signature: signature.WithoutText()},
		Signature: signature,
		Attested:  func(ctx context.Context) (Attested, error) { return s.fetchAttestations(ctx, listed) },
	}, nil
}

// Same implements [Source] by the integrities of the tarball.
func (s NpmSource) Same(v Candidate, published string) (same, known bool) {
	return v.Ref.(npm.Version).SameTarball(published)
}

// maxSigned is the longest signed text of a registry that an entry of the log stores, in bytes; npm's have some 120.
const maxSigned = 1 << 10

// signatureForLog returns what the log stores of a registry's signature: verified with the key, and with text and signature unless the text is too
// long; missing if the registry has keys and did not sign; or that it has no keys.
func signatureForLog(s npm.Signed) logs.Signature {
	switch {
	case len(s.Text) > maxSigned:
		return logs.Signature{Outcome: logs.SignatureVerified, Key: s.KeyID}
	case s.KeyID != "":
		return logs.Signature{Outcome: logs.SignatureVerified, Key: s.KeyID, Text: s.Text, Sig: s.Sig, PublicKey: s.PublicKey}
	case s.Keys:
		return logs.Signature{Outcome: logs.SignatureMissing}
	default:
		return logs.Signature{Outcome: logs.SignatureNoKeys}
	}
}

type gitSource struct{ client *git.Client }

// List implements [Source]: it requests the tags, and returns each with its commit as hash. The listing is Unchanged, without versions, if known
// still describes the tags.
func (s gitSource) List(ctx context.Context, target string, known fetch.Validators) (*Listing, error) {
	found, err := s.client.Tags(ctx, target, known.ETag)
	if err != nil {
		return nil, err
	}
	l := &Listing{Unchanged: found.Unchanged, Validators: fetch.Validators{ETag: found.Validator}, Moved: found.Moved}
	if !l.Unchanged {
		l.Versions = make(map[string]Candidate, len(found.Tags))
		for _, tag := range found.Tags {
			l.Versions[tag.Version] = Candidate{Name: tag.Version, Hash: tag.Commit, Ref: tag}
		}
	}
	return l, nil
}

// Fetch implements [Source]: it fetches the files of the commit that a tag names, each verified by its hash, but only those that p publishes, the
// README and the package.json. An error for which a release would be refused, other than for the names in it, comes with a hash of the download,
// because the host may have sent something else.
func (s gitSource) Fetch(ctx context.Context, p *packages.Package, target string, v Candidate, dst *os.File) (*Fetched, error) {
	tag := v.Ref.(git.Tag)
	selection := func(ctx context.Context, names archive.Source) (func(string) bool, error) {
		plan, err := packages.NewPlan(ctx, p, names)
		if err != nil {
			return nil, err
		}
		return func(name string) bool { return len(plan.Targets[name]) > 0 || DescribesRelease(name) }, nil
	}
	release, err := s.client.Release(ctx, target, tag, selection, dst)
	if errors.As(err, new(*archive.RefusedError)) { // by the names in the commit, which are what the tag has
		return nil, err
	}
	if _, ok := RefusalReason(err); ok { // the host may have sent something else than the commit
		return nil, unverified{err, hashDownload(dst, err)}
	}
	if err != nil {
		return nil, err
	}
	return &Fetched{
		Archive: release.Archive, Released: release.Date, Notes: release.Notes,
		Source: logs.Source{Type: KindGit, Name: target, Tag: tag.Name, Commit: tag.Commit, Tree: release.Tree},
	}, nil
}

// hashDownload returns a SHA-256 over the text of cause and a downloaded file, in hexadecimal, or the text of the error if the file cannot be read.
func hashDownload(file *os.File, cause error) string {
	sum := sha256.New()
	io.WriteString(sum, cause.Error())
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err.Error()
	}
	if _, err := io.Copy(sum, file); err != nil {
		return err.Error()
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Same implements [Source]: it compares the commits. known is always true.
func (s gitSource) Same(v Candidate, published string) (same, known bool) {
	return v.Hash == published, true
}
