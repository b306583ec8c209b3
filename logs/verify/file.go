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

// A Name identifies a file of a release.
type Name struct {
	Package string `json:"package"`
	Version string `json:"version"`
	Path    string `json:"path"`
}

// String returns package/version/path, which is what follows /ajax/libs/ in the URL of the file.
func (n Name) String() string { return n.Package + "/" + n.Version + "/" + n.Path }

const assets = "/ajax/libs/"

// ParseURL splits the http or https URL of a library's file into the server, which is everything in front of /ajax/libs/
// but a user, without a slash at the end, and the name of the file, decoded. It ignores a query and a fragment.
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

// ParseName parses PACKAGE/VERSION/PATH. The package may have a scope, as in @scope/package, and the path slashes. It
// decodes nothing.
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

// An Outcome is the result of verifying a file, a log or a page.
type Outcome string

// The outcomes. Each is worse than the one before it.
const (
	Proven    Outcome = "proven"    // the bytes are those that were published, and still are
	Published Outcome = "published" // by a proof that is verified offline: the bytes were published
	Unproven  Outcome = "unproven"  // verification is impossible: a witness, the network or a file is missing
	Expired   Outcome = "expired"   // the log's newest cosignature is too old, or none has a time: an old state may be replayed
	Stale     Outcome = "stale"     // the server has an older state of the log than was seen before
	Withdrawn Outcome = "withdrawn" // the release was published, and withdrawn since
	Differs   Outcome = "differs"   // something is not what the log says
	Forked    Outcome = "forked"    // the log's key has signed two logs, and there is evidence of it
)

// Outcomes are all outcomes of files, each worse than the one before it.
var Outcomes = []Outcome{Proven, Published, Unproven, Expired, Stale, Withdrawn, Differs, Forked}

// A Result is the result of verifying one file.
type Result struct {
	Outcome Outcome `json:"outcome"`
	Problem string  `json:"problem,omitempty"` // why it is not proven
	Name
	Size   int64        `json:"size,omitempty"`
	SHA256 kvstore.Hash `json:"sha256,omitzero"`
	SRI    logs.SRI     `json:"sri,omitzero"`
	Origin string       `json:"origin,omitempty"`
	From   string       `json:"from,omitempty"`
	// Codings are the encodings in which the bytes were fetched; empty for a local file.
	Codings []string     `json:"codings,omitempty"`
	Source  *logs.Source `json:"source,omitempty"`
	// Mirror says which other origin the release was copied from, and Confirmed which entry says that upstream has the same.
	Mirror    *logs.Mirror `json:"mirror,omitempty"`
	Confirmed *Event       `json:"confirmed,omitempty"`
	// Published says which entry published the release.
	Published *Event `json:"published,omitempty"`
	Withdrawn *Event `json:"withdrawn,omitempty"`
	// Changed is the entry that says that upstream has another archive now, or none, which people have to judge.
	Changed *Event `json:"upstreamChanged,omitempty"`
	// Cosigned is as of when the log's checkpoint is vouched to be the newest; zero if nothing says so.
	Cosigned time.Time `json:"cosigned,omitzero"`
	// Complete is [Release.Complete].
	Complete bool `json:"complete"`
	// Upstream is the comparison of the release with its upstream. It is nil if none was requested, or if the file was not proven
	// before.
	Upstream *Comparison `json:"upstream,omitempty"`
	// Audits are the verdicts of the given auditors.
	Audits []AuditVerdict `json:"audits,omitempty"`
}

// An Event is a summary of a log entry.
type Event struct {
	Entry  int64     `json:"entry"`
	Time   time.Time `json:"time"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
}

// newEvent returns a summary of a log entry.
func newEvent(e logs.Indexed) *Event { return &Event{e.Index, e.Time, e.Actor, e.Reason} }

// VerifyURL verifies that the bytes that are served under a URL, if they are requested in Brotli, in gzip and without
// encoding, are those of the file with this name. The caller derives the name from the URL, which may be at another server
// than the log. A file that is proven is then compared with upstream and audits, as the options say. The Result says what
// is proven, and why not more.
func (l *Log) VerifyURL(ctx context.Context, address string, name Name) Result {
	return l.verifyFile(ctx, name, func(r *Result, live bool, file logs.File, known bool) error {
		for _, accept := range requestedEncodings {
			got, err := l.verifyEncoding(ctx, address, accept, live, file, known)
			if err != nil {
				return err
			}
			if got != "" && !slices.Contains(r.Codings, got) {
				r.Codings = append(r.Codings, got)
			}
		}
		return nil
	})
}

// VerifyBytes verifies that data is the file of a release that the log publishes under this name. A file that is proven is
// then compared with upstream and audits, as the options say. The Result says what is proven, and why not more.
func (l *Log) VerifyBytes(ctx context.Context, data []byte, name Name) Result {
	return l.verifyFile(ctx, name, func(_ *Result, _ bool, file logs.File, known bool) error {
		if !known {
			return differs("the release has no such file")
		}
		s := newFileDigest()
		s.Write(data)
		return s.compareWith(file)
	})
}

// verifyFile reads what the log says about the file's release, and calls check to compare the file's bytes with it: live
// says whether the release is live, and known whether its manifest has the file; else file is zero. An error of check
// becomes the result's outcome. Next come a release that is not live ([Withdrawn]) and l.unverified. Without any of these
// the file is proven; only then verifyFile compares it with upstream and with audits, as the options say.
func (l *Log) verifyFile(ctx context.Context, name Name, check func(r *Result, live bool, file logs.File, known bool) error) Result {
	r := Result{Name: name, Cosigned: l.cosigned}
	release, err := l.Release(ctx, name.Package, name.Version)
	if errors.Is(err, errNoRelease) && l.unverified != nil {
		return r.withError(&UnverifiedError{l.unverified.Outcome, l.unverified.Problem + "; in this one, " + err.Error()})
	}
	if err != nil {
		return r.withError(err)
	}
	r.Complete, r.Published, r.Source = release.Complete, newEvent(release.Published), &release.Manifest.Source
	r.Mirror = release.Published.Mirror
	if release.Confirmed != nil {
		r.Confirmed = newEvent(*release.Confirmed)
	}
	if release.Withdrawn != nil {
		r.Withdrawn = newEvent(*release.Withdrawn)
	}
	if e := release.Changed; e != nil && e.Upstream.New != cmp.Or(r.Source.Commit, r.Source.Integrity) {
		r.Changed = newEvent(*e)
	}
	file, known := release.File(name.Path)
	if known {
		r.Size, r.SHA256, r.SRI, r.Origin, r.From = file.Size, file.SHA256, file.SRI, file.Origin, file.From
	}
	if err := check(&r, release.Live, file, known); err != nil {
		return r.withError(err)
	}
	if r.Withdrawn != nil {
		r.Outcome, r.Problem = Withdrawn, "the release was withdrawn: "+release.Withdrawn.Reason
		return r
	}
	if !release.Live {
		r.Outcome, r.Problem = Withdrawn, "the release was withdrawn: it is not among the live ones, and the server does not say which entry withdrew it"
		return r
	}
	if l.unverified != nil {
		return r.withError(l.unverified)
	}
	r.Outcome = Proven
	if l.options.Upstream != nil {
		l.compareUpstream(ctx, &r, release)
	}
	l.applyAudits(&r, release.Published)
	return r
}

// withError returns a copy of the result with the error's text as its problem, and [OutcomeOf] the error as its outcome.
func (r Result) withError(err error) Result {
	r.Outcome, r.Problem = OutcomeOf(err), err.Error()
	return r
}

// A fileDigest computes what a manifest records about a file's bytes: their number and their hashes.
type fileDigest struct {
	size   int64
	sha256 hash.Hash
	sha512 hash.Hash
}

// newFileDigest returns a digest, to which the bytes of a file are then written, that computes their number and hashes.
func newFileDigest() *fileDigest { return &fileDigest{sha256: sha256.New(), sha512: sha512.New()} }

// Write adds data to the digest. It never fails.
func (s *fileDigest) Write(data []byte) (int, error) {
	s.size += int64(len(data))
	s.sha256.Write(data)
	s.sha512.Write(data)
	return len(data), nil
}

// compareWith returns a [Difference] if the bytes that were written are not those of a file in a manifest.
func (s *fileDigest) compareWith(file logs.File) error {
	got := s.asFile(file.Path)
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

// asFile returns the number and the hashes of the bytes that were written, as a manifest's record of the file at the path.
func (s *fileDigest) asFile(path string) logs.File {
	return logs.File{Path: path, Size: s.size, SHA256: kvstore.Hash(s.sha256.Sum(nil)), SRI: logs.SRI(s.sha512.Sum(nil))}
}

// requestedEncodings are those in which a file is requested, one at a time: bytes that are right in one may be wrong in
// another.
var requestedEncodings = []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity}

// verifyEncoding requests a file in one encoding and compares the bytes with the manifest's record. live and known are as
// in [Log.verifyFile]. It returns the encoding of the response, or "" if the release is not live and the server answers 404
// or 410. Other bytes, a body that does not decode, or a file that the manifest does not have, are a [Difference]; any other
// error, such as an unknown encoding or another status, says why they could not be compared.
func (l *Log) verifyEncoding(ctx context.Context, address string, accept coding.Coding, live bool, file logs.File, known bool) (string, error) {
	response, err := l.remote.sendGet(ctx, address, accept.String())
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
		return "", fmt.Errorf("the release has no such file; the server answered %s", statusLine(response))
	case !served:
		return "", fmt.Errorf("the server answered %s%s", statusLine(response), excerpt(response))
	}
	coded, err := encodingOf(response)
	if err != nil {
		return "", err
	}
	return coded.String(), compareBody(coded, response.Body, file)
}

// encodingOf returns the encoding of a response's body by its headers, [coding.Identity] if they state none. An unknown one
// is an error.
func encodingOf(response *http.Response) (coding.Coding, error) {
	token := response.Header.Get("Content-Encoding")
	if token == "" {
		return coding.Identity, nil
	}
	coded, ok := coding.Parse(token)
	if !ok {
		return coded, fmt.Errorf("the response has the encoding %.40q, which was not requested", token)
	}
	return coded, nil
}

// compareBody decodes the body of a response and returns a [Difference] if the bytes, their number or their encoding are
// not right for the manifest's record; any other error is of the network. It stores none of the bytes, so a file may have
// any size. The caller closes body.
func compareBody(coded coding.Coding, body io.Reader, file logs.File) error {
	in := &limitedBody{rest: body, limit: maxEncodedSize(file.Size)}
	s := newFileDigest()
	err := in.decodeTo(s, coded, file.Size)
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
	if err := s.compareWith(file); err != nil {
		return differs("in %s: %v", coded, err)
	}
	return nil
}

// maxEncodedSize returns how many bytes the encoded form of a file of size bytes may have: twice as many and 64 KiB more,
// because it may be longer than the file.
func maxEncodedSize(size int64) int64 { return 2*min(size, 1<<50) + 64<<10 }

// A limitedBody reads a body up to a limit in bytes, and records why reading ended.
type limitedBody struct {
	rest  io.Reader
	n     int64
	limit int64
	over  bool
	err   error
}

// Read implements io.Reader: it reads from the body of a response. Once there are more bytes than the limit, it sets c.over
// and returns an error and no bytes. It records an error of the network in c.err.
func (c *limitedBody) Read(p []byte) (int, error) {
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

// decodeTo writes the decoded body to w. For any encoding but identity, it returns an error unless the body decodes to
// exactly size bytes and nothing follows; it writes at most size+1 bytes. For identity it does not compare the size.
func (c *limitedBody) decodeTo(w io.Writer, coded coding.Coding, size int64) error {
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

// A Difference is an error that says what differs from what the log states. Other errors say why something could not be verified.
type Difference struct{ problem string }

// Error returns what differs.
func (d *Difference) Error() string { return d.problem }

// differs returns a [Difference] with a formatted message.
func differs(format string, args ...any) error {
	return &Difference{fmt.Sprintf(format, args...)}
}

// NewDifference returns a [Difference] with a formatted message, for implementations of [Upstream].
func NewDifference(format string, args ...any) error { return differs(format, args...) }

// A ForkError says that the log's key has signed two checkpoints that cannot both be of one log, and has the evidence.
type ForkError struct {
	Evidence *signing.Evidence
	Fork     signing.Fork
	// File has the evidence; "" if it was not stored.
	File string
}

// Error returns why the log has forked and, if the evidence was stored, the file with it.
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

// Error returns the problem, without the outcome.
func (e *UnverifiedError) Error() string { return e.Problem }

// OutcomeOf returns the outcome that an error stands for: [Forked] for a [ForkError], [Differs] for a [Difference], that of
// an [UnverifiedError], and [Unproven] for any other error and for nil.
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
