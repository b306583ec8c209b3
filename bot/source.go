package bot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// A source is a kind of upstream.
type source interface {
	// list asks what there is under a target. A target that is not there is
	// fetch.ErrNotFound.
	list(ctx context.Context, target string, known fetch.Validators) (*listing, error)
	// fetch gets a version into dst, and verifies it.
	fetch(ctx context.Context, target string, v candidate, dst *os.File) (*fetched, error)
	// same compares what a listing states of a version's archive with the hash of
	// what was published. Where they have nothing in common, that cannot be told.
	same(v candidate, published string) (same, known bool)
}

// A candidate is a version that a source lists.
type candidate struct {
	name      string
	published time.Time // zero where the source does not say
	hash      string    // of its archive, or of the commit that it is; "" where there is none
	ref       any       // what the source knows it by
}

// A listing is what a source has under a target.
type listing struct {
	unchanged  bool // since what the validators describe; no version is in it
	versions   map[string]candidate
	validators fetch.Validators
	notes      []string // what people should know of the target
	noted      bool     // notes are all there are; else there are those of the last time
}

// fetched is a version on its way to publication.
type fetched struct {
	archive  archive.Source
	source   logs.Source
	released time.Time // zero where the listing says it, or nobody does
	notes    []string
}

// source returns what answers for a package; nil for one that is not updated.
func (b *Bot) source(p *packages.Package) source {
	if p.Autoupdate == nil {
		return nil
	}
	switch {
	case p.Autoupdate.Source == npmType && b.options.Npm != nil:
		return npmSource{b.options.Npm}
	case p.Autoupdate.Source == gitType && b.options.Git != nil:
		return gitSource{b.options.Git}
	}
	return nil
}

// The types of sources, in package JSONs and in manifests.
const (
	npmType = "npm"
	gitType = "git"
)

type npmSource struct{ client *npm.Client }

func (s npmSource) list(ctx context.Context, target string, known fetch.Validators) (*listing, error) {
	packument, fresh, err := s.client.Packument(ctx, target, known)
	if errors.Is(err, npm.ErrNotModified) {
		return &listing{unchanged: true, validators: known}, nil
	}
	if err != nil {
		return nil, err
	}
	l := &listing{versions: make(map[string]candidate, len(packument.Versions)), validators: fresh, noted: true}
	for name, v := range packument.Versions {
		listed := candidate{name: name, published: v.Published, ref: v}
		if v.Err == nil {
			listed.hash = v.Hash()
		}
		l.versions[name] = listed
	}
	return l, nil
}

func (s npmSource) fetch(ctx context.Context, target string, v candidate, dst *os.File) (*fetched, error) {
	listed := v.ref.(npm.Version)
	signed, err := s.client.Verify(ctx, listed)
	if err != nil {
		return nil, err
	}
	if err := s.client.Tarball(ctx, listed, dst); err != nil {
		return nil, err
	}
	info, err := dst.Stat()
	if err != nil {
		return nil, err
	}
	opened, err := archive.Open(dst, info.Size())
	if err != nil {
		return nil, refuse("%v", err)
	}
	return &fetched{
		archive: opened.StripRoot(),
		source:  logs.Source{Type: npmType, Name: target, Integrity: listed.Hash(), Signature: signature(signed)},
	}, nil
}

func (s npmSource) same(v candidate, published string) (same, known bool) {
	return v.ref.(npm.Version).SameTarball(published)
}

// signature is what the log says of a registry's signature.
func signature(s npm.Signed) logs.Signature {
	switch {
	case s.KeyID != "":
		return logs.Signature{Outcome: logs.SignatureVerified, Key: s.KeyID}
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
	l := &listing{unchanged: found.Unchanged, validators: fetch.Validators{ETag: found.Validator}}
	if found.About != nil {
		l.notes, l.noted = found.About.Notes(), true
	}
	if !l.unchanged {
		l.versions = make(map[string]candidate, len(found.Tags))
		for _, tag := range found.Tags {
			l.versions[tag.Version] = candidate{name: tag.Version, hash: tag.Commit, ref: tag}
		}
	}
	return l, nil
}

func (s gitSource) fetch(ctx context.Context, target string, v candidate, dst *os.File) (*fetched, error) {
	tag := v.ref.(git.Tag)
	release, err := s.client.Release(ctx, target, tag, dst)
	if err != nil {
		return nil, err
	}
	return &fetched{
		archive: release.Archive, released: release.Date, notes: release.Notes,
		source: logs.Source{Type: gitType, Name: target, Tag: tag.Name, Commit: tag.Commit},
	}, nil
}

func (s gitSource) same(v candidate, published string) (same, known bool) {
	return v.hash == published, true
}

// missing says that a source does not have a version.
func (b *Bot) missing(p *packages.Package, name string, there []string) error {
	return fmt.Errorf("%s's %s has no version %s%s", p.Autoupdate.Source, p.Autoupdate.Target, name, nearest(name, there))
}
