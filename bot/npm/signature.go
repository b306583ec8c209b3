package npm

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/fetch"
)

// Registries that sign their packages do it as npm's own does: ECDSA over P-256 and SHA-256 of
// "name@version:integrity", in dist.signatures, with keys that they publish. What holds here holds for
// `npm audit signatures`: all signatures of a version have to be right, and a key signs nothing that was
// published after it expired.

const (
	// maxKeys bounds the response with a registry's keys, in bytes.
	maxKeys = 1 << 20
	// keysFresh is how long keys are used without asking whether they are still the ones.
	keysFresh = time.Hour
	// maxKeyID bounds the ids of keys, in bytes; those of npm's registry have 50.
	maxKeyID = 200
	// maxKeyText bounds a key in base64, in bytes; one over P-521 has 212.
	maxKeyText = 300
	// keysAgain is the same if one is missing.
	keysAgain = time.Minute
	// undated is when a version was published whose packument does not say, as npm has it.
	undated = "2015-01-01T00:00:00Z"
)

// A Signed is the outcome of verifying the registry's signature of a version.
type Signed struct {
	// Keys says that the registry publishes keys.
	Keys bool
	// KeyID is the key that signed, "" where the registry has not signed this version. Of several keys it
	// is the first one.
	KeyID string
	// Text is what that key signed, Sig its signature and PublicKey the key, both in base64 as the registry has them.
	Text, Sig, PublicKey string
}

// SignatureError says that a registry's signature is wrong. Trying again does not help.
type SignatureError struct {
	// KeyID is the key that is said to have signed, "" where that cannot be read.
	KeyID  string
	Reason string
}

// Error names the key, if it is known, and the reason. It does not name the package.
func (e *SignatureError) Error() string {
	if e.KeyID == "" {
		return "registry signature invalid: " + e.Reason
	}
	return fmt.Sprintf("registry signature by key %q invalid: %s", e.KeyID, e.Reason)
}

// Verify checks the registry's signature of v. It accepts a version without a signature, and a registry without keys, whose packuments may
// contain signatures of the registry that it mirrors; KeyID is "" in both cases. The error of a wrong signature is a *[SignatureError]. If the
// registry does not publish the signing key, that is another error, because its keys may be older than its packuments for a while. If v.Err is
// set, it is that.
func (c *Client) Verify(ctx context.Context, v Version) (signed Signed, err error) {
	defer v.wrapError(&err, "")
	if v.Err != nil {
		return Signed{}, v.Err
	}
	ring := c.keyring(v.Package)
	keys, err := ring.get(ctx, c, keysFresh)
	if err != nil || len(keys) == 0 {
		return Signed{}, err
	}
	var signatures []struct {
		KeyID string `json:"keyid"`
		Sig   string `json:"sig"`
	}
	if len(v.Signatures) > 0 {
		if err := json.Unmarshal(v.Signatures, &signatures); err != nil {
			return Signed{}, &SignatureError{Reason: "dist.signatures is no list of key ids and signatures"}
		}
	}
	signed.Keys = true
	for i, s := range signatures {
		key, ok, err := ring.find(ctx, c, s.KeyID)
		if err != nil {
			return Signed{}, err
		}
		if !ok {
			return Signed{}, fmt.Errorf("its registry signature is by key %.200q, which the registry does not publish", s.KeyID)
		}
		if err := key.check(v, s.Sig); err != "" {
			return Signed{}, &SignatureError{KeyID: s.KeyID, Reason: err}
		}
		if i == 0 {
			signed = Signed{Keys: true, KeyID: s.KeyID, Text: v.signedText(), Sig: plainBase64(s.Sig), PublicKey: key.Text}
		}
	}
	return signed, nil
}

// plainBase64 returns a signature without the line ends that decoding ignores.
func plainBase64(sig string) string {
	return strings.NewReplacer("\r", "", "\n", "").Replace(sig)
}

// A RegistryKey is a key that a registry publishes.
type RegistryKey struct {
	ID      string
	Key     *ecdsa.PublicKey // nil for one that is not understood
	Text    string           // in base64, as the registry has it; "" for one that cannot be read
	Expires time.Time        // zero for never
	expires string           // as the registry has it, "" for never
}

// Key returns the key that the registry of a package publishes under an id, also an expired one. ok is false if it publishes none. Key.Key is nil if
// the key or the time at which it expires is not understood. It requests the registry's keys if they are old or lack the id.
func (c *Client) Key(ctx context.Context, name, id string) (key RegistryKey, ok bool, err error) {
	key, ok, err = c.keyring(name).find(ctx, c, id)
	if err != nil {
		return RegistryKey{}, false, fmt.Errorf("npm package %s: %w", name, err)
	}
	if key.expires != "" && key.Expires.IsZero() {
		key.Key = nil // whether it is valid cannot be determined
	}
	return key, ok, nil
}

// check returns what is wrong with the signature of v, "" if it is valid. A key that had expired when v was published verifies nothing.
func (k RegistryKey) check(v Version, signature string) string {
	if k.Key == nil {
		return "the key is no ECDSA key that Larder can read"
	}
	if k.expires != "" {
		published := v.Published
		if published.IsZero() {
			published = parseTime(undated)
		}
		if k.Expires.IsZero() || !published.Before(k.Expires) {
			return fmt.Sprintf("the key expired on %.40s, and this version was published after that", k.expires)
		}
	}
	sig, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		return "it is not in base64"
	}
	sum := sha256.Sum256([]byte(v.signedText()))
	if !ecdsa.VerifyASN1(k.Key, sum[:], sig) {
		return "it does not fit name, version and integrity; this version may have been tampered with"
	}
	return ""
}

// signedText returns the text that registries sign for a version: name@version:hash.
func (v Version) signedText() string { return v.Package + "@" + v.Version + ":" + v.Hash() }

// Hash returns the hash of v's tarball as the packument declares it, in the form ALGORITHM-BASE64: all hashes of dist.integrity, with a space between
// them, else dist.shasum in that form, else "".
func (v Version) Hash() string {
	if v.Integrity != "" {
		return strings.Join(strings.Fields(v.Integrity), " ")
	}
	if want, err := parseHashes(v); err == nil {
		return want.algorithm.name + "-" + base64.StdEncoding.EncodeToString(want.sums[0])
	}
	return ""
}

// A keyring has the keys of one registry.
type keyring struct {
	url *url.URL

	turn       *semaphore.Weighted // of the goroutine that uses what follows
	asked      time.Time
	validators Validators
	keys       map[string]RegistryKey
}

// keyring returns the cached keys of a package's registry. It adds a keyring without keys if none exists; nothing is requested.
func (c *Client) keyring(name string) *keyring {
	at := c.config.keysURL(name)
	ring, _ := c.keys.LoadOrStore(at.String(), &keyring{url: at, turn: semaphore.NewWeighted(1)})
	return ring.(*keyring)
}

// get returns the registry's keys by id, from the cache unless they were requested longer than age ago; none if it publishes none. Callers that need
// the same keys wait for one request. The map does not change later.
func (k *keyring) get(ctx context.Context, c *Client, age time.Duration) (map[string]RegistryKey, error) {
	if err := k.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer k.turn.Release(1)
	now := c.o.Now()
	if !k.asked.IsZero() && now.Sub(k.asked) < age {
		return k.keys, nil
	}
	keys, validators, err := c.requestKeys(ctx, k.url, k.validators)
	switch {
	case errors.Is(err, ErrNotModified):
		keys, validators = k.keys, k.validators
	case err != nil:
		return nil, fmt.Errorf("couldn't get the registry's keys: %w", err)
	}
	k.asked, k.keys, k.validators = now, keys, validators
	return keys, nil
}

// find returns the key with an id. If the key is unknown, it may be new, so find requests the keys again unless it did so recently.
func (k *keyring) find(ctx context.Context, c *Client, id string) (key RegistryKey, ok bool, err error) {
	for _, age := range []time.Duration{keysFresh, keysAgain} {
		keys, err := k.get(ctx, c, age)
		if err != nil {
			return RegistryKey{}, false, err
		}
		if key, ok = keys[id]; ok {
			break
		}
	}
	return key, ok, nil
}

// requestKeys requests the keys of a registry. The error is [ErrNotModified] if known describes the current ones. The registry publishes none, which
// is no error, if it responds with any 4xx that is not temporary, 401 and 403 included, or with something else than a JSON object. Other malformed
// responses are errors.
func (c *Client) requestKeys(ctx context.Context, at *url.URL, known Validators) (keys map[string]RegistryKey, validators Validators, err error) {
	err = c.fetch.Get(ctx, c.newRequest(at, conditionalHeader(known), maxKeys), func(r *fetch.Response) error {
		if r.Status == http.StatusNotModified {
			return ErrNotModified
		}
		validators = Validators{ETag: r.Header.Get("ETag"), LastModified: r.Header.Get("Last-Modified")}
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		keys, err = parseKeys(data)
		return err
	})
	if hasNothing(err) { // it publishes none
		return nil, Validators{}, nil
	}
	return keys, validators, err
}

// parseKeys parses the registry's response about its keys, and returns them by id. A key that is no ECDSA key, cannot be parsed, or has over
// maxKeyText bytes is in the result with a nil key. Of several under one id the first counts; keys with an empty or overlong id are left out. A
// response that does not begin with { counts as that of a registry without keys, because some respond with a page for people; any other malformed one
// is an error.
func parseKeys(data []byte) (map[string]RegistryKey, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return nil, nil
	}
	var answer struct {
		Keys []struct {
			KeyID   string `json:"keyid"`
			Key     string `json:"key"`
			Expires string `json:"expires"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("they are malformed: %.200v", err)
	}
	keys := make(map[string]RegistryKey, len(answer.Keys))
	for _, k := range answer.Keys {
		if _, ok := keys[k.KeyID]; ok || k.KeyID == "" || len(k.KeyID) > maxKeyID {
			continue // of several under one id the first counts, as for npm
		}
		key := RegistryKey{ID: k.KeyID, Expires: parseTime(k.Expires), expires: k.Expires}
		if der, err := base64.StdEncoding.DecodeString(k.Key); err == nil && len(k.Key) <= maxKeyText {
			if parsed, err := x509.ParsePKIXPublicKey(der); err == nil {
				key.Key, _ = parsed.(*ecdsa.PublicKey)
				key.Text = plainBase64(k.Key)
			}
		}
		keys[k.KeyID] = key
	}
	return keys, nil
}
