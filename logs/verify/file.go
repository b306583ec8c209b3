package verify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
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
	if len(parts) < 3 || slices.Contains(parts, "") {
		return Name{}, fmt.Errorf("%q is not PACKAGE/VERSION/PATH, such as jquery/3.7.1/jquery.min.js", text)
	}
	return Name{parts[0], parts[1], parts[2]}, nil
}

// An Outcome is what verifying a file came to.
type Outcome string

// The outcomes.
const (
	Proven    Outcome = "proven"    // the bytes are those that were published, and still are
	Withdrawn Outcome = "withdrawn" // the release was published, and withdrawn since
	Differs   Outcome = "differs"   // something is not what the log says
	Unproven  Outcome = "unproven"  // it could not be found out
)

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
	// Published says which entry published the release.
	Published *Event `json:"published,omitempty"`
	Withdrawn *Event `json:"withdrawn,omitempty"`
	// Complete is [Release.Complete].
	Complete bool `json:"complete"`
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
	return l.verify(ctx, name, func(r *Result, file logs.File, known bool) error {
		return l.fetchAll(ctx, address, r, file, known)
	})
}

// Bytes verifies bytes that somebody has.
func (l *Log) Bytes(ctx context.Context, data []byte, name Name) Result {
	return l.verify(ctx, name, func(_ *Result, file logs.File, known bool) error {
		if !known {
			return differs("the release has no such file")
		}
		return compare(file, data)
	})
}

// verify finds what the log says of a file, and has check hold something against it.
func (l *Log) verify(ctx context.Context, name Name, check func(r *Result, file logs.File, known bool) error) Result {
	r := Result{Name: name}
	release, err := l.Release(ctx, name.Package, name.Version)
	if err != nil {
		return r.failed(err)
	}
	r.Complete, r.Published, r.Source = release.Complete, event(release.Published), &release.Manifest.Source
	if release.Withdrawn != nil {
		r.Withdrawn = event(*release.Withdrawn)
	}
	file, known := release.File(name.Path)
	if known {
		r.Size, r.SHA256, r.SRI, r.Origin, r.From = file.Size, file.SHA256, file.SRI, file.Origin, file.From
	}
	if err := check(&r, file, known); err != nil {
		return r.failed(err)
	}
	if r.Withdrawn != nil {
		r.Outcome, r.Problem = Withdrawn, "the release was withdrawn: "+release.Withdrawn.Reason
		return r
	}
	r.Outcome = Proven
	return r
}

func (r Result) failed(err error) Result {
	r.Outcome, r.Problem = Unproven, err.Error()
	if difference := (*Difference)(nil); errors.As(err, &difference) {
		r.Outcome = Differs
	}
	return r
}

// compare holds bytes against a manifest's line.
func compare(file logs.File, data []byte) error {
	switch {
	case int64(len(data)) != file.Size:
		return differs("there are %d bytes, the manifest says %d", len(data), file.Size)
	case kvstore.Sum(data) != file.SHA256:
		return differs("the SHA-256 of the bytes is %s, the manifest says %s", kvstore.Sum(data), file.SHA256)
	case logs.SumSRI(data) != file.SRI:
		return differs("the integrity of the bytes is %s, the manifest says %s", logs.SumSRI(data), file.SRI)
	}
	return nil
}

// accepted are the codings that files are asked for in, one at a time: what is right
// in one may be wrong in another.
var accepted = []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity}

func (l *Log) fetchAll(ctx context.Context, address string, r *Result, file logs.File, known bool) error {
	for _, accept := range accepted {
		got, err := l.fetch(ctx, address, accept, r.Withdrawn != nil, file, known)
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
func (l *Log) fetch(ctx context.Context, address string, accept coding.Coding, withdrawn bool, file logs.File, known bool) (string, error) {
	limit := 2*file.Size + 64<<10 // a coding may be longer than what it codes
	body, response, err := l.remote.ask(ctx, address, accept.String(), limit)
	if err != nil {
		return "", err
	}
	served := response.StatusCode == http.StatusOK
	switch {
	case withdrawn && (response.StatusCode == http.StatusGone || response.StatusCode == http.StatusNotFound):
		return "", nil
	case !known && served:
		return "", differs("the server has a file there, and the release has none of that name")
	case !known:
		return "", fmt.Errorf("the release has no such file; the server answered %s", response.Status)
	case !served:
		return "", fmt.Errorf("the server answered %s%s", response.Status, excerpt(response, body))
	case int64(len(body)) > limit:
		return "", differs("there are over %d bytes, the manifest says %d", limit, file.Size)
	}
	token := response.Header.Get("Content-Encoding")
	if token == "" {
		token = coding.Identity.String()
	}
	coded, ok := coding.Parse(token)
	if !ok {
		return "", fmt.Errorf("the server answered in the coding %.40q, which was not asked for", token)
	}
	data, err := coding.Decode(coded, body, file.Size)
	if err != nil && coded != coding.Identity {
		return "", differs("in %s: it does not decode to the %d bytes that the manifest says: %v", coded, file.Size, err)
	}
	if coded == coding.Identity {
		data = body
	}
	if err := compare(file, data); err != nil {
		return "", differs("in %s: %v", coded, err)
	}
	return coded.String(), nil
}
