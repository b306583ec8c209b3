package npm

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// A key of npm's own registry and what it signed with it, as the registry publishes them.
const (
	realKeys      = `{"keys":[{"expires":"2025-01-29T00:00:00.000Z","keyid":"SHA256:jl3bwswu80PjjokCgh0o2w5c2U4LhQAE57gj9cz1kzA","keytype":"ecdsa-sha2-nistp256","scheme":"ecdsa-sha2-nistp256","key":"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE1Olb3zMAFFxXKHiIkQO5cJ3Yhl5i6UPp+IhuteBJbuHcA5UogKo0EWtlWwW6KSaKoTNEYL7JlCQiVnkhBktUgg=="}]}`
	realIntegrity = "sha512-RMdeiD0OJC+S2w4931iqdi5MB9xe2T/lXZbRrHxbsmQrSA+FwhPk2bIqIwbNDCmThPgNw841Q272O6EFSYhBjQ=="
	realSignature = `[{"keyid":"SHA256:jl3bwswu80PjjokCgh0o2w5c2U4LhQAE57gj9cz1kzA","sig":"MEUCICKQJCEvvV3HdhCSj3TwH9qqIWLwc0GR1m/NED/s1bPIAiEAvkTmhIDIrD4MZoI2g27+HsuxoFJhC/evORT6T2UUwSc="}]`
)

func TestSignatureOfNpmsOwnRegistry(t *testing.T) {
	r, c := start(t, Options{})
	r.SetKeys([]byte(realKeys))
	v := Version{Package: "venv", Version: "0.1.0", Integrity: realIntegrity, Signatures: []byte(realSignature)}
	signed, err := c.Verify(t.Context(), v)
	if err != nil || !signed.Keys || signed.KeyID != "SHA256:jl3bwswu80PjjokCgh0o2w5c2U4LhQAE57gj9cz1kzA" {
		t.Errorf("got %+v, %v", signed, err)
	}
	v.Version = "0.1.1"
	var wrong *SignatureError
	if _, err := c.Verify(t.Context(), v); !errors.As(err, &wrong) {
		t.Errorf("of another version: %v", err)
	}
}

// get returns a version as the registry's packument has it.
func get(t *testing.T, c *Client, name, version string) Version {
	t.Helper()
	p, _, err := c.Packument(t.Context(), name, Validators{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Versions[version]
}

func TestSignatures(t *testing.T) {
	key, other, unknown := npmtest.NewKey(t), npmtest.NewKey(t), npmtest.NewKey(t)
	expired := func(at time.Time) *npmtest.Key {
		k := *npmtest.NewKey(t)
		k.Expires = at.Format(time.RFC3339)
		return &k
	}
	before, after, ancient := expired(published), expired(published.Add(time.Second)), expired(time.Date(2014, 12, 31, 0, 0, 0, 0, time.UTC))
	undated := *npmtest.NewKey(t)
	undated.Expires = "soon"
	endless := *key
	endless.ID = strings.Repeat("<", 1000)
	same := *other
	same.ID = key.ID

	tests := []struct {
		name    string
		version string
		options []npmtest.Option
		want    Signed
		wrong   string // of a SignatureError
		err     string // of another
	}{
		{name: "signed", options: []npmtest.Option{npmtest.Signed(key)}, want: Signed{Keys: true, KeyID: key.ID}},
		{name: "not signed", want: Signed{Keys: true}},
		{name: "an empty list", options: []npmtest.Option{npmtest.Dist("signatures", []string{})}, want: Signed{Keys: true}},
		{name: "signed twice", options: []npmtest.Option{npmtest.Signed(other, key)}, want: Signed{Keys: true, KeyID: other.ID}},
		{name: "an expired key, used before", options: []npmtest.Option{npmtest.Signed(after)}, want: Signed{Keys: true, KeyID: after.ID}},
		{name: "an expired key", options: []npmtest.Option{npmtest.Signed(before)}, wrong: "expired on 2024-05-06"},
		{name: "an expiry that is none", options: []npmtest.Option{npmtest.Signed(&undated)}, wrong: "expired on soon"},
		{name: "one good, one expired", options: []npmtest.Option{npmtest.Signed(key, before)}, wrong: "expired"},
		{name: "another key under the id", options: []npmtest.Option{npmtest.Signed(&same)}, wrong: "does not fit"},
		{name: "no base64", options: []npmtest.Option{npmtest.Dist("signatures", []map[string]string{{"keyid": key.ID, "sig": "!"}})}, wrong: "base64"},
		{name: "no ASN.1", options: []npmtest.Option{npmtest.Dist("signatures", []map[string]string{{"keyid": key.ID, "sig": "AAAA"}})}, wrong: "does not fit"},
		{name: "no list", options: []npmtest.Option{npmtest.Dist("signatures", "x")}, wrong: "no list"},
		{name: "a key that is none", options: []npmtest.Option{npmtest.Dist("signatures", []map[string]string{{"keyid": "rsa", "sig": "AAAA"}})}, wrong: "no ECDSA key"},
		{name: "an unknown key", options: []npmtest.Option{npmtest.Signed(unknown)}, err: "does not publish"},
		{name: "an endless key id", options: []npmtest.Option{npmtest.Signed(&endless)}, err: "does not publish"},
		{name: "one good, one unknown", options: []npmtest.Option{npmtest.Signed(key, unknown)}, err: "does not publish"},
		{name: "shasum alone", options: []npmtest.Option{npmtest.Dist("integrity", nil), npmtest.Signed(key)}, want: Signed{Keys: true, KeyID: key.ID}},
	}
	r, c := start(t, Options{})
	r.PublishKeys(key, other, before, after, ancient, &undated, &endless, &npmtest.Key{ID: "rsa"})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.Add("left", "1.0.0", published, map[string]string{"a.js": tt.name}, tt.options...)
			got, err := c.Verify(t.Context(), get(t, c, "left", "1.0.0"))
			var wrong *SignatureError
			switch {
			case tt.wrong != "":
				if !errors.As(err, &wrong) || !strings.Contains(err.Error(), tt.wrong) || !IsPermanent(err) {
					t.Errorf("error %v, want one about %q that is permanent", err, tt.wrong)
				}
			case tt.err != "":
				if err == nil || !strings.Contains(err.Error(), tt.err) || IsPermanent(err) {
					t.Errorf("error %v, want one about %q that may pass", err, tt.err)
				}
			case err != nil || (Signed{Keys: got.Keys, KeyID: got.KeyID}) != tt.want:
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			case got.KeyID != "" && (!strings.HasPrefix(got.Text, "left@1.0.0:sha") || got.Sig == "" || got.PublicKey == ""):
				t.Errorf("what was signed is not told: %+v", got)
			}
		})
	}

	// Without a time, npm takes it for published in 2015.
	v := get(t, c, "left", "1.0.0")
	v.Published = time.Time{}
	for k, ok := range map[*npmtest.Key]bool{ancient: false, after: true} {
		r.Add("left", "1.0.0", published, nil, npmtest.Signed(k))
		v := get(t, c, "left", "1.0.0")
		v.Published = time.Time{}
		if _, err := c.Verify(t.Context(), v); err == nil != ok {
			t.Errorf("without a time, by the key that expires on %s: %v", k.Expires, err)
		}
	}

	// The signature covers the integrity.
	r.Add("left", "1.0.0", published, map[string]string{"a.js": "1"}, npmtest.Signed(key))
	v = get(t, c, "left", "1.0.0")
	v.Integrity = realIntegrity
	if _, err := c.Verify(t.Context(), v); err == nil {
		t.Error("another integrity passes")
	}
}

func TestRegistryWithoutKeys(t *testing.T) {
	key := npmtest.NewKey(t)
	tests := []struct {
		name string
		set  func(*npmtest.Registry)
		err  string
	}{
		{"nothing there", func(*npmtest.Registry) {}, ""},
		{"no keys", func(r *npmtest.Registry) { r.PublishKeys() }, ""},
		{"an object without keys", func(r *npmtest.Registry) { r.SetKeys([]byte(`{}`)) }, ""},
		{"a page", func(r *npmtest.Registry) { r.SetKeys([]byte("<!doctype html>")) }, ""},
		{"bad request", func(r *npmtest.Registry) { r.Fail(npmtest.Fault{Path: "/-/npm/", Status: http.StatusBadRequest}) }, ""},
		{"forbidden", func(r *npmtest.Registry) { r.Fail(npmtest.Fault{Path: "/-/npm/", Status: http.StatusForbidden}) }, ""},
		{"too many requests", func(r *npmtest.Registry) { r.Fail(npmtest.Fault{Path: "/-/npm/", Status: http.StatusTooManyRequests}) }, "429"},
		{"unavailable", func(r *npmtest.Registry) {
			r.Fail(npmtest.Fault{Path: "/-/npm/", Status: http.StatusServiceUnavailable})
		}, "503"},
		{"cut short", func(r *npmtest.Registry) {
			r.PublishKeys(key)
			r.Fail(npmtest.Fault{Path: "/-/npm/", Truncate: true})
		}, "keys"},
		{"malformed", func(r *npmtest.Registry) { r.SetKeys([]byte(`{"keys":1}`)) }, "malformed"},
		{"too long", func(r *npmtest.Registry) { r.SetKeys([]byte(strings.Repeat(" ", maxKeys+1))) }, "bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, c := start(t, Options{})
			tt.set(r)
			r.Add("left", "1.0.0", published, nil, npmtest.Signed(key)) // as a mirror passes it on
			got, err := c.Verify(t.Context(), get(t, c, "left", "1.0.0"))
			switch {
			case tt.err == "" && (err != nil || got != Signed{}):
				t.Errorf("got %+v, %v", got, err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("got %+v, %v, want an error about %q", got, err, tt.err)
			}
		})
	}
}

func TestKeysAreAskedSeldom(t *testing.T) {
	now := published
	var mu sync.Mutex
	r, c := start(t, Options{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	pass := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	first, second := npmtest.NewKey(t), npmtest.NewKey(t)
	r.PublishKeys(first)
	r.Add("left", "1.0.0", published, nil, npmtest.Signed(first))
	r.Add("left", "2.0.0", published, nil, npmtest.Signed(second))
	old, renewed := get(t, c, "left", "1.0.0"), get(t, c, "left", "2.0.0")
	asked := func() (statuses []int) {
		for _, request := range r.Requests() {
			if request.Path == "/-/npm/v1/keys" {
				statuses = append(statuses, request.Status)
			}
		}
		return statuses
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := c.Verify(t.Context(), old); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := asked(); len(got) != 1 {
		t.Errorf("eight versions at once ask %v", got)
	}
	pass(2 * time.Hour)
	if _, err := c.Verify(t.Context(), old); err != nil {
		t.Error(err)
	}
	if got := asked(); len(got) != 2 || got[1] != http.StatusNotModified {
		t.Errorf("two hours later: asked %v", got)
	}

	// A key that is new is found as soon as something is signed with it.
	pass(2 * time.Minute)
	r.PublishKeys(first, second)
	for _, v := range []Version{renewed, renewed, old} {
		if _, err := c.Verify(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	if got := asked(); len(got) != 3 || got[2] != http.StatusOK {
		t.Errorf("with a new key: asked %v", got)
	}

	// One that is not published does not have the registry asked for each version.
	r.PublishKeys(first)
	pass(2 * time.Hour)
	for range 5 {
		if _, err := c.Verify(t.Context(), renewed); err == nil {
			t.Error("a key that was taken back passes")
		}
	}
	if got := asked(); len(got) != 4 {
		t.Errorf("with an unknown key: asked %v", got)
	}
}

func TestKeysOfTheRegistryForTheScope(t *testing.T) {
	open, team := npmtest.New(t), npmtest.New(t)
	open.Setenv(t)
	t.Setenv("npm_config_@team:registry", team.URL+"/sub")
	c := client(t, Options{})
	open.PublishKeys(npmtest.NewKey(t))
	signed, err := c.Verify(t.Context(), Version{Package: "@team/a", Version: "1.0.0", Integrity: realIntegrity, Signatures: []byte(realSignature)})
	if err != nil || signed.Keys {
		t.Errorf("of a scope whose registry has none: %+v, %v", signed, err)
	}
	if open.Count("/-/") != 0 || team.Count("/sub/-/npm/v1/keys") != 1 {
		t.Errorf("asked %+v and %+v", open.Requests(), team.Requests())
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(realKeys))
	f.Add([]byte(`{"keys":[{"keyid":"a","key":"AAAA","expires":""},{"keyid":"a"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := parseKeys(data)
		if err != nil {
			return
		}
		v := Version{Package: "venv", Version: "0.1.0", Integrity: realIntegrity}
		for id, key := range keys {
			if key.check(v, "AAAA") == "" {
				t.Errorf("key %q of %q verifies anything", id, data)
			}
		}
	})
}

func TestSameTarball(t *testing.T) {
	const (
		sha1, hex = "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "da39a3ee5e6b4b0d3255bfef95601890afd80709" // of no bytes
		sha512    = "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="
	)
	tests := []struct {
		name        string
		v           Version
		before      string
		same, known bool
	}{
		{"the same", Version{Integrity: sha512}, sha512, true, true},
		{"another", Version{Integrity: realIntegrity}, sha512, false, true},
		{"one of several", Version{Integrity: realIntegrity + " " + sha512}, sha512, true, true},
		{"one of several before", Version{Integrity: sha512}, sha512 + " " + realIntegrity, true, true},
		{"the strongest decides", Version{Integrity: realIntegrity + " " + sha1}, sha512 + " " + sha1, false, true},
		{"shasum", Version{Shasum: hex}, sha1, true, true},
		{"shasum, and integrity that came later", Version{Integrity: sha512, Shasum: hex}, sha1, true, true},
		{"integrity in place of shasum", Version{Integrity: sha512}, sha1, false, false},
		{"nothing", Version{}, sha512, false, false},
		{"nothing before", Version{Integrity: sha512}, "", false, false},
		{"nonsense", Version{Integrity: "sha512-!", Shasum: "x"}, "sha512-!", false, false},
	}
	for _, tt := range tests {
		if same, known := tt.v.SameTarball(tt.before); same != tt.same || known != tt.known {
			t.Errorf("%s: %v, %v, want %v, %v", tt.name, same, known, tt.same, tt.known)
		}
	}
	if got := (Version{Shasum: hex}).Hash(); got != sha1 {
		t.Errorf("shasum as integrity is %q, want %q", got, sha1)
	}
}
