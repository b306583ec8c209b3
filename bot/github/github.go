// Package github makes clients of GitHub's REST API, for GitHub itself and for GitHub
// Enterprise Server, and verifies what its webhooks send.
//
// What it guarantees: the token goes to the configured host only, over TLS unless that is
// this machine, and is in no error and no log. No more is asked of GitHub than it allows: a request that would
// be over a limit waits, as long as its context lets it, and is sent again where GitHub
// answered that it was over one. Nothing else is sent twice, because nothing here knows
// what may be; the caller does. An answer has a size and a time within which it comes.
//
// The package must not know what callers do with a client.
package github

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/go-github/v60/github"

	"github.com/larder-cdn/larder/internal/text"
)

// DefaultURL is where GitHub itself answers.
const DefaultURL = "https://api.github.com"

// Options are what a client needs.
type Options struct {
	// URL is where the API is: https://HOST/api/v3 for GitHub Enterprise Server. Default:
	// DefaultURL.
	URL string
	// Token is what GitHub knows this program by. Default: it does not.
	Token string
	// App is a GitHub App to ask as, in place of Token. Default: none.
	App *App
	// UserAgent is sent with every request. Default "larder".
	UserAgent string
	// Pause is the least time from one request that changes something to the next.
	// Default: the second that GitHub asks for.
	Pause time.Duration
	// Transport sends requests. Default: a copy of http.DefaultTransport.
	Transport http.RoundTripper
	// Logger is told of each wait for a limit. Default: none.
	Logger *slog.Logger
}

// A Client is a client of GitHub's. It is safe for concurrent use, but GitHub would
// rather be asked one thing after the other.
type Client struct {
	*github.Client
	transport *transport
}

// New returns a client. It asks for nothing yet.
func New(o Options) (*Client, error) {
	base, err := url.Parse(strings.TrimRight(cmp.Or(o.URL, DefaultURL), "/") + "/")
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, errors.New("github: the address of the API must be a URL such as " + DefaultURL)
	}
	if base.Scheme == "http" && !loopback(base.Hostname()) {
		return nil, fmt.Errorf("github: the address of the API must begin with https: over http every machine between here and %s could read the token", base.Host)
	}
	if strings.ContainsFunc(o.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("github: the token has a character that no token has, such as a space or the end of a line")
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	t := &transport{base: o.Transport, host: base.Host, token: o.Token, pause: cmp.Or(o.Pause, time.Second), logger: o.Logger}
	if o.App != nil {
		if o.App.ID == "" || o.App.Key == nil || strings.Count(o.App.Repository, "/") != 1 {
			return nil, errors.New("github: an app needs its id, its key and a repository OWNER/NAME that it is installed in")
		}
		t.app = &appTokens{app: *o.App, base: base.String(), userAgent: cmp.Or(o.UserAgent, "larder"), transport: o.Transport}
	}
	c := github.NewClient(&http.Client{
		Transport: t,
		// What is moved is told, and not followed: with a token, nor as a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	})
	c.BaseURL, c.UserAgent = base, cmp.Or(o.UserAgent, "larder")
	return &Client{Client: c, transport: t}, nil
}

// Authorized reports whether requests are made with a token or as an app.
func (c *Client) Authorized() bool { return c.transport.token != "" || c.transport.app != nil }

// IsHost reports whether repositories on host are those that the API at apiURL, "" for GitHub's own, knows.
func IsHost(apiURL, host string) bool {
	base, err := url.Parse(cmp.Or(apiURL, DefaultURL))
	return err == nil && base.Host != "" && strings.TrimPrefix(strings.ToLower(base.Host), "api.") == strings.TrimPrefix(strings.ToLower(host), "www.")
}

// Waiting returns until when requests wait for one of GitHub's limits, zero where they
// do not.
func (c *Client) Waiting() time.Time {
	c.transport.mu.Lock()
	defer c.transport.mu.Unlock()
	if time.Now().Before(c.transport.until) {
		return c.transport.until
	}
	return time.Time{}
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// Status returns the HTTP status of an answer that is an error, 0 where err is another
// one.
func Status(err error) int {
	if e := (*github.ErrorResponse)(nil); errors.As(err, &e) && e.Response != nil {
		return e.Response.StatusCode
	}
	return 0
}

// Describe is an error of a client's for people: what GitHub says, or why it could not be
// asked, without the address, which callers know better. The same failure has the same
// description each time.
func Describe(err error) string {
	if e := (*github.ErrorResponse)(nil); errors.As(err, &e) && e.Response != nil {
		text := fmt.Sprintf("GitHub answered %d %s", e.Response.StatusCode, http.StatusText(e.Response.StatusCode))
		if e.Response.StatusCode >= http.StatusInternalServerError {
			return text // with which it sends another number each time
		}
		if e.Message != "" {
			text += ": " + short(e.Message)
		}
		for _, detail := range e.Errors {
			if detail.Message != "" {
				text += "; " + short(detail.Message)
			}
		}
		return text
	}
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	// The local port differs each time.
	if e := (*net.OpError)(nil); errors.As(err, &e) && e.Op != "dial" {
		return fmt.Sprintf("couldn't %s: %v", e.Op, e.Err)
	}
	return err.Error()
}

// short is what another server says, on a line that is not too long.
func short(s string) string {
	const most = 300
	return text.Short(strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), ""), most)
}

// An App is a GitHub App, as which a client may do what no other client may, such as write check runs. It
// proves that it is the app with its key, and gets tokens for that, each good for an hour: RS256 (RFC 7515)
// and one request, as in
// https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-an-installation-access-token-for-a-github-app.
type App struct {
	// ID is the app's id, or its client id.
	ID string
	// Key is its private key.
	Key *rsa.PrivateKey
	// Repository, OWNER/NAME, is one that the app is installed in. Tokens are for that one alone, and for
	// reading what is public.
	Repository string
}

// ParseAppKey reads an app's private key, as GitHub lets it be downloaded: PEM.
func ParseAppKey(text []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the key of the app is no PEM file, as GitHub lets it be downloaded")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the key of the app cannot be read: it is no private key of RSA")
	}
	private, ok := key.(*rsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key of the app is not an RSA key, which is what GitHub makes")
	}
	return private, nil
}

// How long what an app proves itself with is good. GitHub takes ten minutes at most, and clocks differ.
const (
	proofTime   = 8 * time.Minute
	clocksApart = time.Minute
	tokenMargin = 5 * time.Minute // before a token ends, in which the next one is got
)

// appTokens gets tokens for an app, one after the other.
type appTokens struct {
	app       App
	base      string // of the API, with a slash at its end
	userAgent string
	transport http.RoundTripper

	mu      sync.Mutex
	token   string
	expires time.Time
}

// get returns a token that is good for a while.
func (a *appTokens) get(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Until(a.expires) > tokenMargin {
		return a.token, nil
	}
	var installation struct{ ID int64 }
	if err := a.ask(ctx, http.MethodGet, "repos/"+a.app.Repository+"/installation", nil, &installation); err != nil {
		return "", fmt.Errorf("couldn't find where the GitHub App %s is installed in %s: %w", a.app.ID, a.app.Repository, err)
	}
	var made struct {
		Token   string
		Expires time.Time `json:"expires_at"`
	}
	_, name, _ := strings.Cut(a.app.Repository, "/")
	only := map[string][]string{"repositories": {name}}
	err := a.ask(ctx, http.MethodPost, fmt.Sprintf("app/installations/%d/access_tokens", installation.ID), only, &made)
	if err == nil && (made.Token == "" || strings.ContainsFunc(made.Token, func(r rune) bool { return r <= ' ' || r > '~' })) {
		err = errors.New("GitHub's answer has no token")
	}
	if err != nil {
		return "", fmt.Errorf("couldn't get a token for the GitHub App %s: %w", a.app.ID, err)
	}
	a.token, a.expires = made.Token, made.Expires
	return a.token, nil
}

// refused tells that GitHub does not take a token any more.
func (a *appTokens) refused(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token == token {
		a.expires = time.Time{}
	}
}

// ask asks as the app itself.
func (a *appTokens) ask(ctx context.Context, method, path string, question, answer any) error {
	proof, err := a.proof(time.Now())
	if err != nil {
		return err
	}
	var asked []byte
	if question != nil {
		if asked, err = json.Marshal(question); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(asked))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+proof)
	r.Header.Set("Accept", "application/vnd.github+json")
	r.Header.Set("User-Agent", a.userAgent)
	response, err := a.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		var said struct{ Message string }
		_ = json.Unmarshal(body, &said) // what is no JSON says nothing to people
		return fmt.Errorf("GitHub answered %d %s: %s", response.StatusCode, http.StatusText(response.StatusCode), short(said.Message))
	}
	return json.Unmarshal(body, answer)
}

// proof is a JSON Web Token (RFC 7519) that only the holder of the key can make.
func (a *appTokens) proof(now time.Time) (string, error) {
	claims, err := json.Marshal(struct {
		Issued  int64  `json:"iat"`
		Expires int64  `json:"exp"`
		Issuer  string `json:"iss"`
	}{now.Add(-clocksApart).Unix(), now.Add(proofTime).Unix(), a.app.ID})
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	b.WriteString(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims))
	sum := sha256.Sum256(b.Bytes())
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.app.Key, crypto.SHA256, sum[:])
	if err != nil {
		return "", fmt.Errorf("couldn't sign with the key of the GitHub App %s: %w", a.app.ID, err)
	}
	return b.String() + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}
