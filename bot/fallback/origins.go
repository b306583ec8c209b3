package fallback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/verify"
)

// parseOrigin returns the origin that larder:URL or cdnjs:URL describes, which sends its requests through f. The error completes
// a sentence that begins with the given text. It sends no request.
func (f *Fallback) parseOrigin(given string) (origin, error) {
	kind, address, _ := strings.Cut(given, ":")
	at, err := url.Parse(address)
	if err != nil || at.Host == "" || at.User != nil || at.RawQuery != "" || at.Fragment != "" || at.Scheme != "https" && at.Scheme != "http" {
		return nil, errors.New("must be larder:URL or cdnjs:URL, such as larder:https://cdn.example.com")
	}
	if len(given) > 512 {
		return nil, errors.New("must not be longer than 512 bytes")
	}
	host := host{f, strings.TrimRight(address, "/"), at}
	switch kind {
	case "larder":
		client := verify.NewClient()
		client.Transport = hopTransport{f.getter.Transport(fetch.TransportOptions{Trusted: host.isOrigin})}
		o := verify.Options{Server: host.base, Trust: verify.Trust{Key: f.o.Key, Root: f.o.Root, Now: f.o.Now}, Client: client, UserAgent: f.o.UserAgent}
		origin := &larder{host: host, options: o, contents: replication.NewServer(o)}
		origin.age.Store(new(logAge))
		return origin, nil
	case "cdnjs":
		return &cdnjs{host: host}, nil
	}
	return nil, fmt.Errorf("is of the kind %.20q, and there are larder:URL and cdnjs:URL", kind)
}

// A host is where an origin is.
type host struct {
	*Fallback
	base string // without a slash at its end
	at   *url.URL
}

// isOrigin reports whether a URL has the scheme, host and port of the origin, which the operator named. Requests to such URLs may
// go to private addresses.
func (h host) isOrigin(u *url.URL) bool { return fetch.SameOrigin(u, h.at) }

// get requests an address, with the hops in ctx, and returns the body of the response. The error is one of package fetch:
// [fetch.ErrNotFound], or [fetch.ErrTooLarge] for more than limit bytes.
func (h host) get(ctx context.Context, address string, limit int64) (data []byte, err error) {
	err = h.getter.Get(ctx, fetch.Request{URL: address, Header: hopHeader(ctx), Trusted: h.isOrigin, Limit: limit}, func(r *fetch.Response) error {
		data, err = io.ReadAll(r.Body)
		return err
	})
	return data, err
}

// assetPath returns the escaped path of the URL at which an origin serves a file of a release: /ajax/libs/, package, version and
// path.
func assetPath(pkg, version, path string) string {
	return "/ajax/libs/" + url.PathEscape(pkg) + "/" + url.PathEscape(version) + (&url.URL{Path: "/" + path}).EscapedPath()
}

// A cdnjs is an origin with cdnjs's API, which states the integrity of each file.
type cdnjs struct {
	host
	assets atomic.Pointer[string] // the base of the files' URLs; nil until it is known
}

// String returns the origin in the form of the settings, such as "cdnjs:https://api.cdnjs.com".
func (o *cdnjs) String() string { return "cdnjs:" + o.base }

const mostListing = 16 << 20 // bytes of what an API says of a release

// find implements [origin]. It requests the list of the release's files with their integrities from the API, and returns an offer
// of those that have a SHA-512, whichever file the client wants. It downloads no file. The error is [fetch.ErrNotFound] if the
// API lacks the release.
func (o *cdnjs) find(ctx context.Context, pkg, version, _ string) (*offer, error) {
	api := o.base + "/libraries/" + url.PathEscape(pkg)
	data, err := o.get(ctx, api+"/"+url.PathEscape(version)+"?fields=name,version,rawFiles,files,sri", mostListing)
	if err != nil {
		return nil, err
	}
	listed, err := parseListing(data, pkg, version)
	if err != nil {
		return nil, err
	}
	if err := o.findAssetBase(ctx, api); err != nil {
		return nil, err
	}
	return &offer{
		mirror: logs.Mirror{Source: o.String(), Proof: logs.ProofSelfAsserted},
		manifest: &logs.Manifest{
			Package: pkg, Version: version, Released: o.o.Now().UTC().Truncate(time.Second),
			Source: logs.Source{Type: "cdnjs", Name: o.base},
		},
		files:    listed,
		contents: o,
	}, nil
}

// Name implements [replication.Contents]. It returns the name of the origin, for messages.
func (o *cdnjs) Name() string { return o.String() }

// Content implements [replication.Contents] for files that are identified by the integrity which the API states: it downloads the file w.File of the
// release w.Manifest, which find has found, and does not verify it. The error wraps fs.ErrNotExist if the origin lacks it.
func (o *cdnjs) Content(ctx context.Context, w replication.Wanted) (replication.Found, error) {
	data, err := o.get(ctx, *o.assets.Load()+assetPath(w.Manifest.Package, w.Manifest.Version, w.File.Path), w.Limit)
	if errors.Is(err, fetch.ErrNotFound) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return replication.Found{Coded: []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}}, err
}

// parseListing returns the files of a release, in a response of cdnjs's API, that have a SHA-512 and an acceptable path; only
// path and integrity are set. The error wraps errMismatch if the response is malformed, is about another release, or has no such
// file.
func parseListing(data []byte, pkg, version string) ([]logs.File, error) {
	var listed struct {
		Name     string            `json:"name"`
		Version  string            `json:"version"`
		Files    []string          `json:"files"`
		RawFiles []string          `json:"rawFiles"`
		SRI      map[string]string `json:"sri"`
	}
	if err := json.Unmarshal(data, &listed); err != nil {
		return nil, fmt.Errorf("%w: its API's answer is no JSON as cdnjs has it: %w", errMismatch, err)
	}
	if listed.Name != pkg || listed.Version != version {
		return nil, fmt.Errorf("%w: its API was asked for %s %s and tells of %q %q", errMismatch, pkg, version, text.Short(listed.Name, 100), text.Short(listed.Version, 100))
	}
	var files []logs.File
	for path, integrity := range listed.SRI {
		f := logs.File{Path: path, Origin: logs.Taken}
		for _, hash := range logs.StrongestHashes(integrity) {
			if f.SRI.UnmarshalText([]byte(hash)) == nil && isFilePath(path) {
				files = append(files, f)
				break
			}
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w: its API states no SHA-512 for any file", errMismatch)
	}
	return files, nil
}

// isFilePath reports whether a path of an origin is acceptable for a file of a release: relative, clean, of at most 1024 bytes,
// and without backslashes and unprintable characters.
func isFilePath(path string) bool {
	return len(path) <= 1024 && path != "." && fs.ValidPath(path) && !strings.ContainsFunc(path, text.Unprintable) && !strings.Contains(path, `\`)
}

// findAssetBase sets o.assets to the base of the files' URLs, which may be on another host than the API. api is the API's address of any library; its
// response has the URL of a file. If it says nothing, the base is that of the API. It does nothing if the base is known.
func (o *cdnjs) findAssetBase(ctx context.Context, api string) error {
	if o.assets.Load() != nil {
		return nil
	}
	data, err := o.get(ctx, api+"?fields=latest", mostListing)
	if err != nil && !errors.Is(err, fetch.ErrNotFound) {
		return err
	}
	var library struct {
		Latest string `json:"latest"`
	}
	base := o.base
	if err == nil && json.Unmarshal(data, &library) == nil {
		if before, _, ok := strings.Cut(library.Latest, "/ajax/libs/"); ok && (strings.HasPrefix(before, "https://") || strings.HasPrefix(before, "http://")) {
			base = before
		}
	}
	o.assets.Store(&base)
	return nil
}

// A larder is an origin that is another Larder, whose log proves what it has.
type larder struct {
	host
	options  verify.Options
	contents *replication.Server
	opening  sync.Mutex // of the file of known logs
	age      atomic.Pointer[logAge]
}

// A logAge says how old the checkpoint of an origin's log was when it was read last.
type logAge struct {
	opened   bool      // whether the log was verified since the start, and since a check found no release of the origin here
	cosigned time.Time // as of when its checkpoint was vouched to be the newest then; zero if nothing said so
}

// checkAge returns an error if the checkpoint of the origin's log, as it was read last, has no cosignature or only old ones: an
// origin that replays an old checkpoint hides withdrawals. Before the log was read it returns nil.
func (o *larder) checkAge(now time.Time) error {
	age := o.age.Load()
	if !age.opened {
		return nil
	}
	return verify.CheckAge(age.cosigned, now, verify.AlertAge)
}

// String returns the origin in the form of the settings, such as "larder:https://cdn.example.com".
func (o *larder) String() string { return "larder:" + o.base }

// appearing are the pauses in which a release that the origin serves, as one that it takes from an origin of its
// own, appears in its log.
var appearing = []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}

// find implements [origin]. It requests the file, which it discards, and returns at once if the origin lacks it. Then it looks
// for the release in the origin's log, for about 20 seconds until it appears there. The error wraps errMismatch if the log
// contradicts itself or what was seen of it before.
func (o *larder) find(ctx context.Context, pkg, version, path string) (*offer, error) {
	// The file first: what is not there costs one request, and an origin that has an origin of its own looks there.
	if _, err := o.get(ctx, o.base+assetPath(pkg, version, path), mostFile); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		got, err := o.findInLog(ctx, pkg, version)
		if err == nil || try == len(appearing) || verify.OutcomeOf(err) != verify.Unproven || errors.Is(err, fetch.ErrNotFound) {
			if o := verify.OutcomeOf(err); err != nil && (o == verify.Differs || o == verify.Forked) {
				err = fmt.Errorf("%w: %w", errMismatch, err)
			}
			return got, err
		}
		if err := retry.Sleep(ctx, appearing[try]); err != nil {
			return nil, err
		}
	}
}

// findInLog returns the offer of a release that the origin's log proves. The error wraps [fetch.ErrNotFound] if the release was
// withdrawn there, and errMismatch if a path or size in its manifest is not acceptable.
func (o *larder) findInLog(ctx context.Context, pkg, version string) (*offer, error) {
	log, err := o.openLog(ctx)
	if err != nil {
		return nil, err
	}
	r, err := log.Release(ctx, pkg, version)
	switch {
	case err != nil:
		return nil, err
	case !r.Live:
		return nil, fmt.Errorf("its log says that %s %s was withdrawn: %w", pkg, version, fetch.ErrNotFound)
	}
	for _, f := range r.Manifest.Files {
		if !isFilePath(f.Path) || f.Size > mostFile {
			return nil, fmt.Errorf("%w: the path %q, or its %d bytes", errMismatch, text.Short(f.Path, 200), f.Size)
		}
	}
	mirror := logs.Mirror{Source: o.String(), Proof: logs.ProofLog, Key: log.Key(), Entry: r.Published.Index, Size: log.Size()}
	if r.Confirmed == nil && r.Published.Mirror.Provisional() { // the log proves only what another origin stated
		mirror.Proof = logs.ProofSelfAsserted
	}
	return &offer{
		strict: true, mirror: mirror, manifest: r.Manifest, files: r.Manifest.Files, contents: o.contents,
	}, nil
}

// openLog requests the log of another Larder, verifies that it continues the state in the file Options.Known, and stores its
// state there. It returns an error if the log cannot be verified. If no key is known, it trusts the key that the server states,
// and logs a warning. One goroutine at a time does so; others wait.
func (o *larder) openLog(ctx context.Context) (*verify.Log, error) {
	o.opening.Lock()
	defer o.opening.Unlock()
	known, err := verify.ReadKnown(o.o.Known)
	if err != nil {
		return nil, err
	}
	log, firstUse, err := known.Open(ctx, o.options, o.o.Now())
	if firstUse && err == nil {
		o.o.Logger.Warn("the key of an origin's log is taken on its own word; compare it with the one that its operator publishes, or give it in the setting fallback-key or fallback-root", "origin", o.String(), "key", log.Key())
	}
	if err != nil {
		return nil, err
	}
	o.age.Store(&logAge{true, log.Cosigned()})
	if err := log.Unverified(); err != nil {
		return nil, err
	}
	return log, nil
}

// hopTransport says on requests through which Larders they came.
type hopTransport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper. It sends a copy of the request with the Larders that the client's request came through,
// which its context has.
func (h hopTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := r.Clone(r.Context())
	maps.Copy(sent.Header, hopHeader(r.Context()))
	return h.RoundTripper.RoundTrip(sent)
}
