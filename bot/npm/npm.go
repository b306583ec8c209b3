// Package npm reads packages from an npm registry: which versions a package has, and their tarballs.
//
// What it guarantees:
//
//   - Which registry is queried, for which scope, with which credentials, trusting which certificates and
//     through which proxy is npm's own configuration and nothing else: npm_config_… variables, .npmrc
//     files, and the variables for proxies.
//   - Credentials go only to the origin and path for which that configuration holds them.
//   - A tarball is handed over only if its bytes are the ones that the packument promises. What the
//     registry has signed of that promise can be verified.
//   - An [AttestationVerifier] verifies, by Sigstore's trusted root, what the build service has signed of the repository, commit and
//     workflow of a tarball, and what the registry has signed of its publication. That proves who built it and from what, not
//     that the repository is the one that people expect.
//   - What a packument says is not trusted: it is read as a stream, with bounded memory, and one
//     malformed version does not stop the others.
//
// The registry that is configured may have any address, and so may a proxy; they are the operator's word.
// Tarballs elsewhere come under package fetch's address rules.
//
// The package must not know what becomes of a release, nor keep anything on disk.
package npm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/osv-scalibr/veles/secrets/npmjsaccesstoken"

	"github.com/larder-cdn/larder/bot/fetch"
)

var (
	// ErrNotModified: the packument is still the one that the given validators describe.
	ErrNotModified = errors.New("not modified")
	// ErrNotFound: the registry has no such package or tarball.
	ErrNotFound = fetch.ErrNotFound
)

// Options bound what is taken from a registry. Zero fields mean their defaults.
type Options struct {
	// PackumentBytes is the longest packument; default 256 MiB. It is never in memory completely.
	PackumentBytes int64
	// TarballBytes is the longest tarball; default 512 MiB.
	TarballBytes int64
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Client queries the configured registries. It is safe for concurrent use.
type Client struct {
	config *Config
	fetch  *fetch.Client
	o      Options
	keys   sync.Map // of keyrings, by URL
	// plainFeed says that the change feed knows since and limit only.
	plainFeed atomic.Bool
}

// NewClient returns a client for the registries of config. It sends requests by f's rules and limits, with the certificates and proxies of config.
// Closing f closes its connections.
func NewClient(config *Config, f *fetch.Client, o Options) *Client {
	o.PackumentBytes = cmp.Or(o.PackumentBytes, 256<<20)
	o.TarballBytes = cmp.Or(o.TarballBytes, 512<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Client{config: config, fetch: f.With(config.network), o: o}
}

// Registry returns the address of a package's registry, to display.
func (c *Client) Registry(name string) string { return c.config.Registry(name) }

// Validators are package fetch's.
type Validators = fetch.Validators

// Packument gets the packument of a package, whose name includes the scope, unless known describes the current one: then the error is
// [ErrNotModified]. The returned validators describe the new packument. Other errors are [ErrNotFound] and others of package fetch, a
// *[NameError] and a *[MalformedError].
func (c *Client) Packument(ctx context.Context, name string, known Validators) (*Packument, Validators, error) {
	target, err := c.config.packumentURL(name)
	if err != nil {
		return nil, Validators{}, err
	}
	var packument *Packument
	var validators Validators
	err = c.fetch.Get(ctx, c.newRequest(target, conditionalHeader(known), c.o.PackumentBytes), func(r *fetch.Response) error {
		if r.Status == http.StatusNotModified {
			return ErrNotModified
		}
		validators = Validators{ETag: r.Header.Get("ETag"), LastModified: r.Header.Get("Last-Modified")}
		packument, err = decodePackument(name, r.Body)
		return err
	})
	if err != nil {
		return nil, Validators{}, fmt.Errorf("npm package %s: %w", name, err)
	}
	return packument, validators, nil
}

// Probe requests the packument of a package without reading it, and returns the registry's clock, zero if it does not say or has no such
// package. The error is nil if the registry responds and accepts the credentials, also if it has no such package.
func (c *Client) Probe(ctx context.Context, name string) (clock time.Time, err error) {
	target, err := c.config.packumentURL(name)
	if err != nil {
		return clock, err
	}
	err = c.fetch.Get(ctx, c.newRequest(target, http.Header{"Accept": {"application/json"}}, c.o.PackumentBytes), func(r *fetch.Response) error {
		clock, _ = http.ParseTime(r.Header.Get("Date"))
		return nil
	})
	if errors.Is(err, fetch.ErrNotFound) {
		err = nil
	}
	return clock, err
}

// conditionalHeader returns the header of a request for JSON, with the conditions by which a server responds 304 if it still has what known
// describes.
func conditionalHeader(known Validators) http.Header {
	header := http.Header{"Accept": {"application/json"}}
	if known.ETag != "" {
		header.Set("If-None-Match", known.ETag)
	}
	if known.LastModified != "" {
		header.Set("If-Modified-Since", known.LastModified)
	}
	return header
}

// newRequest returns a request for a URL of at most limit bytes, with npm's credentials for that URL, and trust in the configured registries. It
// sends nothing.
func (c *Client) newRequest(target *url.URL, header http.Header, limit int64) fetch.Request {
	return fetch.Request{
		URL:           target.String(),
		Header:        header,
		Authorization: c.config.authorizationFor,
		Trusted:       c.config.isTrusted,
		Limit:         limit,
	}
}

// publicRegistry returns the URL of the registry that npm uses by default, with a slash at its end. A library knows it, so the host is not written
// here.
func publicRegistry() string {
	at, err := url.Parse(npmjsaccesstoken.NewValidator().Endpoint)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: at.Scheme, Host: at.Host, Path: "/"}).String()
}
