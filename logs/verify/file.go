package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// A Name is what a file is called: its package, version and path.
type Name struct {
	Package string `json:"package"`
	Version string `json:"version"`
	Path    string `json:"path"`
}

func (n Name) String() string { return n.Package + "/" + n.Version + "/" + n.Path }

const assets = "/ajax/libs/"

// ParseURL reads the URL of a file: the server is what is in front of /ajax/libs/.
func ParseURL(text string) (server string, name Name, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", Name{}, err
	}
	before, after, ok := strings.Cut(u.EscapedPath(), assets)
	if !ok || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", Name{}, fmt.Errorf("%q is not the URL of a file, such as https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js", text)
	}
	if after, err = url.PathUnescape(after); err != nil {
		return "", Name{}, err
	}
	if name, err = ParseName(after); err != nil {
		return "", Name{}, err
	}
	return u.Scheme + "://" + u.Host + strings.TrimRight(before, "/"), name, nil
}

// ParseName reads PACKAGE/VERSION/PATH.
func ParseName(text string) (Name, error) {
	parts := strings.SplitN(text, "/", 3)
	if strings.HasPrefix(text, "@") { // a scope
		if parts = strings.SplitN(text, "/", 4); len(parts) == 4 {
			parts = append([]string{parts[0] + "/" + parts[1]}, parts[2:]...)
		}
	}
	if len(parts) < 3 || slices.Contains(parts, "") {
		return Name{}, fmt.Errorf("%q is not PACKAGE/VERSION/PATH, such as jquery/3.7.1/jquery.min.js", text)
	}
	return Name{parts[0], parts[1], parts[2]}, nil
}

// An Outcome is what verifying a file came to.
type Outcome string

// The outcomes. Each is worse than the one before it.
const (
	Proven    Outcome = "proven"    // the bytes are those that were published, and still are
	Published Outcome = "published" // by a proof that is verified offline: the bytes were published
	Unproven  Outcome = "unproven"  // it could not be found out: a witness, the network or a file is missing
	Expired   Outcome = "expired"   // the log's newest cosignature is too old, or none has a time: an old state may be replayed
	Stale     Outcome = "stale"     // the server shows an older state of the log than was seen before
	Withdrawn Outcome = "withdrawn" // the release was published, and withdrawn since
	Differs   Outcome = "differs"   // something is not what the log says
	Forked    Outcome = "forked"    // the log's key has signed two logs, and there is evidence of it
)

// Outcomes are all of them, in that order.
var Outcomes = []Outcome{Proven, Published, Unproven, Expired, Stale, Withdrawn, Differs, Forked}

// A Result tells of one file.
type Result struct {
	Outcome Outcome `json:"outcome"`
	Problem string  `json:"problem,omitempty"` // why it is not proven
	Name
	Size   int64        `json:"size,omitempty"`
	SHA256 kvstore.Hash `json:"sha256,omitzero"`
	SRI    logs.SRI     `json:"sri,omitzero"`
	Origin string       `json:"origin,omitempty"`
	From   string       `json:"from,omitempty"`
	// Codings are those in which the bytes were fetched, none for a local file.
	Codings []string     `json:"codings,omitempty"`
	Source  *logs.Source `json:"source,omitempty"`
	// Mirror says which other origin the release was taken from, and Confirmed which entry
	// found upstream to have the same.
	Mirror    *logs.Mirror `json:"mirror,omitempty"`
	Confirmed *Event       `json:"confirmed,omitempty"`
	// Published says which entry published the release.
	Published *Event `json:"published,omitempty"`
	Withdrawn *Event `json:"withdrawn,omitempty"`
	// Changed is the entry that says that upstream has another archive now, or none: that is for people to judge.
	Changed *Event `json:"upstreamChanged,omitempty"`
	// Cosigned is as of when the log's checkpoint is vouched to be the newest; zero if nothing says so.
	Cosigned time.Time `json:"cosigned,omitzero"`
	// Complete is [Release.Complete].
	Complete bool `json:"complete"`
	// Upstream is what comparing the release with its upstream came to, nil where that was not asked for or nothing was
	// proven before.
	Upstream *Comparison `json:"upstream,omitempty"`
	// Audits are what the given auditors say of it.
	Audits []AuditVerdict `json:"audits,omitempty"`
}

// An Event is an entry of the log, in short.
type Event struct {
	Entry  int64     `json:"entry"`
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
}

func event(e logs.Indexed) *Event { return &Event{e.Index, e.Time, e.Actor, e.Reason} }

// URL verifies the bytes that are served under a URL, in each coding that there is.
func (l *Log) URL(ctx context.Context, address string, name Name) Result {
	return l.verify(ctx, name, func(r *Result, live bool, file logs.File, known bool) error {
		return l.fetchAll(ctx, address, r, live, file, known)
	})
}

// Bytes verifies bytes from anywhere.
func (l *Log) Bytes(ctx context.Context, data []byte, name Name) Result {
	return l.verify(ctx, name, func(_ *Result, _ bool, file logs.File, known bool) error {
		if !known {
			return differs("the release has no such file")
		}
		s := newSums()
		s.Write(data)
		return s.compare(file)
	})
}

// verify finds what the log says of a file, and has check hold something against it.
func (l *Log) verify(ctx context.Context, name Name, check func(r *Result, live bool, file logs.File, known bool) error) Result {
	r := Result{Name: name, Cosigned: l.cosigned}
	release, err := l.Release(ctx, name.Package, name.Version)
	if errors.Is(err, errNoRelease) && l.unverified != nil {
		return r.failed(&UnverifiedError{l.unverified.Outcome, l.unverified.Problem + "; in this one, " + err.Error()})
	}
	if err != nil {
		return r.failed(err)
	}
	r.Complete, r.Published, r.Source = release.Complete, event(release.Published), &release.Manifest.Source
	r.Mirror = release.Published.Mirror
	if release.Confirmed != nil {
		r.Confirmed = event(*release.Confirmed)
	}
	if release.Withdrawn != nil {
		r.Withdrawn = event(*release.Withdrawn)
	}
	if e := release.Changed; e != nil && e.Upstream.New != cmp.Or(r.Source.Commit, r.Source.Integrity) {
		r.Changed = event(*e)
	}
	file, known := release.File(name.Path)
	if known {
		r.Size, r.SHA256, r.SRI, r.Origin, r.From = file.Size, file.SHA256, file.SRI, file.Origin, file.From
	}
	if err := check(&r, release.Live, file, known); err != nil {
		return r.failed(err)
	}
	if r.Withdrawn != nil {
		r.Outcome, r.Problem = Withdrawn, "the release was withdrawn: "+release.Withdrawn.Reason
		return r
	}
	if !release.Live {
		r.Outcome, r.Problem = Withdrawn, "the release was withdrawn: it is not among the live ones, and the server does not tell which entry withdrew it"
		return r
	}
	if l.unverified != nil {
		return r.failed(l.unverified)
	}
	r.Outcome = Proven
	if l.options.Upstream != nil {
		l.askUpstream(ctx, &r, release)
	}
	l.checkAudits(&r, release.Published)
	return r
}

func (r Result) failed(err error) Result {
	r.Outcome, r.Problem = OutcomeOf(err), err.Error()
	return r
}

// sums are what a manifest says of a file's bytes.
type sums struct {
	size   int64
	sha256 hash.Hash
	sha512 hash.Hash
}

func newSums() *sums { return &sums{sha256: sha256.New(), sha512: sha512.New()} }

func (s *sums) Write(data []byte) (int, error) {
	s.size += int64(len(data))
	s.sha256.Write(data)
	s.sha512.Write(data)
	return len(data), nil
}

// compare holds the bytes against a manifest's line.
func (s *sums) compare(file logs.File) error {
	got := s.file(file.Path)
	switch {
	case got.Size != file.Size:
		return differs("there are %d bytes, the manifest says %d", got.Size, file.Size)
	case got.SHA256 != file.SHA256:
		return differs("the SHA-256 of the bytes is %s, the manifest says %s", got.SHA256, file.SHA256)
	case got.SRI != file.SRI:
		return differs("the integrity of the bytes is %s, the manifest says %s", got.SRI, file.SRI)
	}
	return nil
}

// file is what a manifest would say of the bytes as a file.
func (s *sums) file(path string) logs.File {
	return logs.File{Path: path, Size: s.size, SHA256: kvstore.Hash(s.sha256.Sum(nil)), SRI: logs.SRI(s.sha512.Sum(nil))}
}

// accepted are the codings that files are asked for in, one at a time: what is right
// in one may be wrong in another.
var accepted = []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity}

func (l *Log) fetchAll(ctx context.Context, address string, r *Result, live bool, file logs.File, known bool) error {
	for _, accept := range accepted {
		got, err := l.fetch(ctx, address, accept, live, file, known)
		if err != nil {
			return err
		}
		if got != "" && !slices.Contains(r.Codings, got) {
			r.Codings = append(r.Codings, got)
		}
	}
	return nil
}

// fetch gets a file once, and returns the coding that it came in, "" where it is not
// served because it was withdrawn.
func (l *Log) fetch(ctx context.Context, address string, accept coding.Coding, live bool, file logs.File, known bool) (string, error) {
	response, err := l.remote.ask(ctx, address, accept.String())
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	served := response.StatusCode == http.StatusOK
	switch {
	case !live && (response.StatusCode == http.StatusGone || response.StatusCode == http.StatusNotFound):
		return "", nil
	case !known && served:
		return "", differs("the server has a file there, and the release has none of that name")
	case !known:
		return "", fmt.Errorf("the release has no such file; the server answered %s", status(response))
	case !served:
		return "", fmt.Errorf("the server answered %s%s", status(response), excerpt(response))
	}
	token := response.Header.Get("Content-Encoding")
	if token == "" {
		token = coding.Identity.String()
	}
	coded, ok := coding.Parse(token)
	if !ok {
		return "", fmt.Errorf("the server answered in the coding %.40q, which was not asked for", token)
	}
	if err := decode(coded, response.Body, file); err != nil {
		return "", err
	}
	return coded.String(), nil
}

// decode holds a body against a manifest's line. It keeps none of it, so a file may be of
// any size.
func decode(coded coding.Coding, body io.Reader, file logs.File) error {
	in := &counted{rest: body, limit: codedLimit(file.Size)}
	s := newSums()
	err := in.into(s, coded, file.Size)
	if err != nil {
		io.Copy(io.Discard, in) // that it is far too long says more
	}
	switch {
	case in.over:
		return differs("there are over %d bytes, the manifest says %d", in.limit, file.Size)
	case in.err != nil: // it is the network that failed
		return in.err
	case err != nil && coded != coding.Identity:
		return differs("in %s: it does not decode to the %d bytes that the manifest says: %v", coded, file.Size, err)
	}
	if err := s.compare(file); err != nil {
		return differs("in %s: %v", coded, err)
	}
	return nil
}

// codedLimit bounds a coding, which may be longer than what it codes.
func codedLimit(size int64) int64 { return 2*min(size, 1<<50) + 64<<10 }

// counted reads a body up to a limit, and remembers why it ended.
type counted struct {
	rest  io.Reader
	n     int64
	limit int64
	over  bool
	err   error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.rest.Read(p)
	c.n += int64(n)
	switch {
	case c.n > c.limit:
		c.over = true
		return 0, errors.New("it is too long")
	case err != nil && err != io.EOF:
		c.err = err
	}
	return n, err
}

// into decodes the body, and one byte more than the file may have, to see its end.
func (c *counted) into(w io.Writer, coded coding.Coding, size int64) error {
	if coded == coding.Identity {
		_, err := io.Copy(w, c)
		return err
	}
	r, err := coding.NewReader(coded, c)
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := io.Copy(w, io.LimitReader(r, size+1))
	switch {
	case err != nil:
		return err
	case n != size:
		return fmt.Errorf("it decodes to %d bytes or more", n)
	}
	var more [1]byte
	if n, _ := c.Read(more[:]); n > 0 {
		return errors.New("something follows its end")
	}
	return nil
}

// A Difference is an error that says what is not as it was promised. Other errors
// say why something could not be found out.
type Difference struct{ problem string }

func (d *Difference) Error() string { return d.problem }

func differs(format string, args ...any) error {
	return &Difference{fmt.Sprintf(format, args...)}
}

// NewDifference is for implementations of [Upstream].
func NewDifference(format string, args ...any) error { return differs(format, args...) }

// A ForkError says that the log's key has signed two checkpoints that cannot both be of
// one log, and has the evidence.
type ForkError struct {
	Evidence *signing.Evidence
	Fork     signing.Fork
	// File has the evidence; "" if it was not stored.
	File string
}

func (e *ForkError) Error() string {
	text := "the log has forked: " + e.Fork.Why
	if e.File != "" {
		text += "; " + e.File + " proves it to anyone (larder verify --evidence)"
	}
	return text
}

// An UnverifiedError says why nothing that a log says is proven, though nothing in it is wrong.
type UnverifiedError struct {
	Outcome Outcome // Stale, Expired or Unproven
	Problem string
}

func (e *UnverifiedError) Error() string { return e.Problem }

// OutcomeOf returns the outcome that an error of this package has; [Unproven] for any other error.
func OutcomeOf(err error) Outcome {
	var unverified *UnverifiedError
	switch {
	case errors.As(err, new(*ForkError)):
		return Forked
	case errors.As(err, new(*Difference)):
		return Differs
	case errors.As(err, &unverified):
		return unverified.Outcome
	}
	return Unproven
}
