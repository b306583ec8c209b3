package github

import (
	"bytes"
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
	"net/http"
	"strings"
	"sync"
	"time"
)

// An App is a GitHub App, as which a client may do what nobody else may, such as write check runs. It
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
		return nil, errors.New("the key of the app is none of RSA, which is what GitHub makes")
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

// proof is a JSON Web Token (RFC 7519) that only who has the key can make.
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
