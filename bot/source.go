package bot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/attestation"
	"github.com/larder-cdn/larder/logs/views"
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

// An Upstream is what the bot remembers of a package's upstream.
type Upstream struct {
	Package    string           `json:"package"`
	Source     string           `json:"source,omitempty"`    // "npm" or "git"; "" in old rows is npm
	Target     string           `json:"target,omitempty"`    // its name or address there
	Validators fetch.Validators `json:"validators,omitzero"` // of the last answer that was taken in whole
	// Seen are the versions that upstream ever had. What is not among them later
	// has appeared since, whatever its time says: mirrors make up times.
	Seen []string `json:"seen,omitempty"`
	// Gone is how many of Seen, at its end, upstream did not list the last time; Ignored are versions that it did list
	// and the package JSON leaves out.
	Gone    int      `json:"gone,omitempty"`
	Ignored []string `json:"ignored,omitempty"`
	// Filled says that the package has the releases that it starts with, as far as upstream has any that can be
	// published; Looked is how many were looked at for that.
	Filled bool `json:"filled,omitempty"`
	Looked int  `json:"looked,omitempty"`
	// Began is when it had them first. What was refused since is new to the package.
	Began time.Time `json:"began,omitzero"`
	// Retry are the versions that an earlier package JSON had refused, and for which the bot has not applied the current one yet.
	Retry []string `json:"mended,omitempty"`
	// Tried has the hashes, as upstream states them, of the archives of versions that were refused or are about to be
	// fetched. With another one a refused version is tried again.
	Tried map[string]string `json:"tried,omitempty"`
	// Fresh are the versions that appeared after the first look, and wait, while Filled does not hold.
	Fresh []string `json:"fresh,omitempty"`
	// Moves are when the last few releases appeared, newest first; Changed is when a look last found that upstream had
	// changed, and Named when an event last said so. They set the pace of the looks.
	Moves    []time.Time `json:"moves,omitempty"`
	Changed  time.Time   `json:"changed,omitzero"`
	Named    time.Time   `json:"named,omitzero"`
	Checked  time.Time   `json:"checked"`
	Next     time.Time   `json:"next"`               // when it is asked again
	Attempts int         `json:"attempts,omitempty"` // in a row that failed
	Reason   string      `json:"reason,omitempty"`   // why the last one failed
	Outage   bool        `json:"outage,omitempty"`   // that is not about the package
	Missing  bool        `json:"missing,omitempty"`  // the last one said that there is no such package
	// Deprecated are the versions that upstream warned of when it was last asked, by what it says.
	Deprecated map[string][]string `json:"deprecated,omitempty"`
	// Repository is the repository at GitHub that the target names, as it was when its releases last changed.
	Repository repositoryState `json:"repository,omitzero"`
	Replaced   bool            `json:"replaced,omitempty"` // at the last poll the target named another repository
	// Notes are what people should know of the target, such as that it has moved.
	Notes []string `json:"notes,omitempty"`
}

// LookupUpstream returns what is remembered of a package's upstream, or
// kvstore.ErrNotFound.
func LookupUpstream(r kvstore.Reader, pkg string) (Upstream, error) {
	data, err := r.Get(kvstore.Upstreams, kvstore.Key(pkg))
	if err != nil {
		return Upstream{}, err
	}
	var u Upstream
	if err := json.Unmarshal(data, &u); err != nil {
		return Upstream{}, fmt.Errorf("bot: what is known of %s's upstream is malformed: %w", pkg, err)
	}
	return u, nil
}

// knownUpstream is LookupUpstream with the zero value for an unknown one. What
// is remembered only saves a request, so a row that cannot be read is forgotten.
func (b *Bot) knownUpstream(pkg string) Upstream {
	u, err := LookupUpstream(b.store, pkg)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		b.logger.Warn("upstream row ignored", "package", pkg, "err", err)
	}
	u.Package = pkg
	return u
}

// follows reports whether u is about what a package's JSON names now.
func (u Upstream) follows(p *packages.Package) bool {
	return p.Autoupdate != nil && p.Autoupdate.Target == u.Target && p.Autoupdate.Source == cmp.Or(u.Source, npmType)
}

// filledBy reports whether a package whose upstream was asked before has chosen the releases that it starts with: where
// none of those was refused, no other has to take its place.
func (u *Upstream) filledBy(states []views.State, newest int) bool {
	refused := len(u.Retry) > 0
	if !u.Filled && len(u.Seen) > 0 && !refused {
		first := packages.NewStart(newest)
		pending := false
		for _, s := range states {
			count(first, s)
			pending = pending || !s.Kind.Final()
			refused = refused || s.Kind == views.Refused
		}
		u.Filled, u.Looked = !pending && (!refused || first.Full()), first.Looked()
	}
	return u.Filled || !refused
}

// publishesSame reports whether pages show the same of two rows of a package.
func (u Upstream) publishesSame(other Upstream) bool {
	return slices.Equal(u.Seen, other.Seen) && u.Gone == other.Gone && slices.Equal(u.Ignored, other.Ignored) && reflect.DeepEqual(u.Deprecated, other.Deprecated)
}

// forget leaves nothing that is about another target.
func (u *Upstream) forget() {
	u.Validators, u.Seen, u.Filled, u.Looked, u.Tried = fetch.Validators{}, nil, false, 0, nil
	u.Gone, u.Ignored, u.Deprecated = 0, nil, nil
	u.Began, u.Retry = time.Time{}, nil
	u.Fresh, u.Moves, u.Changed, u.Named = nil, nil, time.Time{}, time.Time{}
	u.Repository, u.Replaced = repositoryState{}, false
}

// due returns when the upstream is polled next. Next was written down under the interval
// of that time; one that is shorter now brings it forward, unless it waits for another reason.
func (u Upstream) due(interval time.Duration) time.Time {
	if longest := u.Checked.Add(interval + interval/10); u.Attempts == 0 && longest.Before(u.Next) {
		return longest
	}
	return u.Next
}

func setUpstream(batch *kvstore.Batch, u Upstream) error {
	data, err := json.Marshal(u)
	if err != nil {
		return fmt.Errorf("bot: %w", err)
	}
	batch.Set(kvstore.Upstreams, kvstore.Key(u.Package), data)
	return nil
}
