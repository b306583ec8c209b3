package bot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/attestation"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// A source is a kind of upstream.
type source interface {
	// list asks what there is under a target. A target that is not there is
	// fetch.ErrNotFound.
	list(ctx context.Context, target string, known fetch.Validators) (*listing, error)
	// fetch gets a version into dst, and verifies it. It may leave out contents of files that the package does not publish.
	fetch(ctx context.Context, p *packages.Package, target string, v candidate, dst *os.File) (*fetched, error)
	// same compares what a listing states of a version's archive with the hash of
	// what was published. known is false if they have no algorithm in common.
	same(v candidate, published string) (same, known bool)
}

// A candidate is a version that a source lists.
type candidate struct {
	name      string
	published time.Time // zero where the source does not say
	hash      string    // of its archive, or of the commit that it is; "" if upstream states none
	ref       any       // what the source knows it by

	deprecated string // why upstream warns of it, "" where it does not
}

// A listing is what a source has under a target.
type listing struct {
	unchanged  bool // since what the validators describe; no version is in it
	versions   map[string]candidate
	latest     string // the version that upstream calls so; "" where it calls none
	validators fetch.Validators
	moved      string // the address that the target redirects to; "" where it does not
}

// fetched is a version on its way to publication.
type fetched struct {
	archive  archive.Source
	source   logs.Source
	released time.Time // zero where the listing says it, or it is not known
	notes    []string
	// signature is the registry's, with all that verifies it.
	signature logs.Signature
	// attested fetches and verifies the attestations of the release. Nil: its upstream has no such thing.
	attested func(context.Context) (attested, error)
}

// source returns what answers for a package; nil for one that is not updated.
func (b *Bot) source(p *packages.Package) source {
	if p.Autoupdate == nil {
		return nil
	}
	return b.sourceOf(p.Autoupdate.Source)
}

// sourceOf returns what answers for a kind of upstreams; nil for one that is not asked.
func (b *Bot) sourceOf(kind string) source {
	switch {
	case kind == npmType && b.options.Npm != nil:
		return npmSource{b.options.Npm, b.options.Provenance}
	case kind == gitType && b.options.Git != nil:
		return gitSource{b.options.Git}
	}
	return nil
}

// upstreamOf names the registry or host that a package's versions are listed by, for [outages].
func upstreamOf(p *packages.Package) string {
	target := p.Autoupdate.Target
	if p.Autoupdate.Source == npmType {
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

// archivesOf names where a package's archives come from, which may be down alone.
func archivesOf(p *packages.Package) string { return "archives of " + upstreamOf(p) }

// The types of sources, in package JSONs and in manifests.
const (
	npmType = "npm"
	gitType = "git"
)

type npmSource struct {
	client     *npm.Client
	provenance *attestation.Verifier
}

func (s npmSource) list(ctx context.Context, target string, known fetch.Validators) (*listing, error) {
	packument, fresh, err := s.client.Packument(ctx, target, known)
	if errors.Is(err, npm.ErrNotModified) {
		return &listing{unchanged: true, validators: known}, nil
	}
	if err != nil {
		return nil, err
	}
	l := &listing{versions: make(map[string]candidate, len(packument.Versions)), latest: packument.DistTags["latest"], validators: fresh}
	for name, v := range packument.Versions {
		listed := candidate{name: name, published: v.Published, ref: v, deprecated: v.Deprecated}
		if v.Err == nil {
			listed.hash = v.Hash()
		}
		l.versions[name] = listed
	}
	return l, nil
}

func (s npmSource) fetch(ctx context.Context, _ *packages.Package, target string, v candidate, dst *os.File) (*fetched, error) {
	listed := v.ref.(npm.Version)
	opened, signed, err := s.client.Release(ctx, listed, dst)
	if err != nil {
		return nil, err
	}
	signature := signature(signed)
	return &fetched{
		archive:   opened,
		source:    logs.Source{Type: npmType, Name: target, Integrity: listed.Hash(), Signature: signature.WithoutText()},
		signature: signature,
		attested:  func(ctx context.Context) (attested, error) { return s.fetchAttestations(ctx, listed) },
	}, nil
}

func (s npmSource) same(v candidate, published string) (same, known bool) {
	return v.ref.(npm.Version).SameTarball(published)
}

// maxSigned is the longest text that a registry signed, in bytes, which is kept in an entry; npm's have some 120.
const maxSigned = 1 << 10

// signature is what the log says of a registry's signature.
func signature(s npm.Signed) logs.Signature {
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

func (s gitSource) list(ctx context.Context, target string, known fetch.Validators) (*listing, error) {
	found, err := s.client.Tags(ctx, target, known.ETag)
	if err != nil {
		return nil, err
	}
	l := &listing{unchanged: found.Unchanged, validators: fetch.Validators{ETag: found.Validator}, moved: found.Moved}
	if !l.unchanged {
		l.versions = make(map[string]candidate, len(found.Tags))
		for _, tag := range found.Tags {
			l.versions[tag.Version] = candidate{name: tag.Version, hash: tag.Commit, ref: tag}
		}
	}
	return l, nil
}

func (s gitSource) fetch(ctx context.Context, p *packages.Package, target string, v candidate, dst *os.File) (*fetched, error) {
	tag := v.ref.(git.Tag)
	selection := func(ctx context.Context, names archive.Source) (func(string) bool, error) {
		plan, err := packages.NewPlan(ctx, p, names)
		if err != nil {
			return nil, err
		}
		return func(name string) bool { return len(plan.Targets[name]) > 0 || describesRelease(name) }, nil
	}
	release, err := s.client.Release(ctx, target, tag, selection, dst)
	var rule *archive.RefusedError
	if errors.As(err, &rule) { // by the names in the commit, which are what the tag has
		return nil, err
	}
	if _, ok := refused(err); ok { // the host may have sent something else than the commit
		return nil, unverified{err, hashOf(dst, err)}
	}
	if err != nil {
		return nil, err
	}
	return &fetched{
		archive: release.Archive, released: release.Date, notes: release.Notes,
		source: logs.Source{Type: gitType, Name: target, Tag: tag.Name, Commit: tag.Commit},
	}, nil
}

// hashOf returns the hash of what was downloaded, and of what is wrong with it.
func hashOf(file *os.File, cause error) string {
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

func (s gitSource) same(v candidate, published string) (same, known bool) {
	return v.hash == published, true
}

// missing says that a source does not have a version.
func (b *Bot) missing(p *packages.Package, name string, there []string) error {
	return fmt.Errorf("%s's %s has no version %s%s", p.Autoupdate.Source, p.Autoupdate.Target, name, nearest(name, there))
}
