package verify_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// A rootRig is a log whose key was stolen: honest is the operator's, and thief serves another one, signed with the stolen key.
type rootRig struct {
	*testing.T
	honest, thief  *lardertest.Larder
	root           note.Signer
	rootKey        string
	oldKey, newKey string
	last           logs.Checkpoint // that the old key may sign
}

func newRootRig(t *testing.T) *rootRig {
	r := &rootRig{T: t}
	private, public, err := signing.NewKey("cdn.example.com/root")
	if err != nil {
		t.Fatal(err)
	}
	if r.root, r.rootKey, err = signing.ParseKey([]byte(private)); err != nil || r.rootKey != public {
		t.Fatal(err)
	}
	keys, stolen := t.TempDir(), t.TempDir()
	r.honest = lardertest.Serve(t, testkit.NewShelf(t), keys)
	r.oldKey = r.honest.Signer.Key()
	if err := os.CopyFS(stolen, os.DirFS(keys)); err != nil {
		t.Fatal(err)
	}
	r.thief = lardertest.Serve(t, testkit.NewShelf(t), stolen)
	for _, l := range []*lardertest.Larder{r.honest, r.thief} {
		l.Enrol("vue", `{"name":"vue"}`)
		l.Publish("vue", "1.0.0", "a.js", map[string]string{"a.js": "1"})
		if err := l.Signer.Sign(); err != nil {
			t.Fatal(err)
		}
	}
	signed, _ := r.honest.Signer.Checkpoint()
	r.last = signed.Checkpoint
	if _, err := r.honest.Signer.Rotate(time.Now()); err != nil {
		t.Fatal(err)
	}
	r.newKey = r.honest.Signer.Key()
	if err := os.Remove(one(t, filepath.Join(keys, "old-*.key"))); err != nil {
		t.Fatal(err)
	}
	// The thief goes on by itself, with a key of its own that the stolen one has named.
	r.thief.Publish("vue", "6.6.6", "a.js", map[string]string{"a.js": "evil"})
	if err := r.thief.Signer.Sign(); err != nil {
		t.Fatal(err)
	}
	return r
}

func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

// list signs a list of the log's keys.
func (r *rootRig) list(version int64, keys ...signing.ListedKey) string {
	r.Helper()
	l := signing.KeyList{Origin: lardertest.Origin, Version: version, Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Second), Keys: keys}
	signed, err := l.Sign(r.root)
	if err != nil {
		r.Fatal(err)
	}
	return string(signed)
}

func (r *rootRig) before() string { return r.list(1, signing.ListedKey{Key: r.oldKey}) }

func (r *rootRig) after() string {
	return r.list(2, signing.ListedKey{Key: r.oldKey, End: &r.last}, signing.ListedKey{Key: r.newKey})
}

const keyListPath = "/log/key-list"

// check verifies a file as a client that pins the root key and remembers what it has seen in a folder.
func (r *rootRig) check(server *lardertest.Larder, folder, version string, trust verify.Trust) verify.Result {
	r.Helper()
	known, err := verify.ReadKnown(filepath.Join(folder, "known"))
	if err != nil {
		r.Fatal(err)
	}
	s := verify.Session{Known: known, Timeout: time.Minute, Options: verify.Options{Trust: trust}}
	if trust.Key == "" {
		s.Options.Root = r.rootKey
	}
	name := verify.Name{Package: "vue", Version: version, Path: "a.js"}
	_, result, err := s.Verify(r.Context(), verify.Subject{Server: server.URL, Name: name, URL: server.URL + "/ajax/libs/" + name.String()})
	if err != nil {
		r.Fatal(err)
	}
	return result
}

func (r *rootRig) want(server *lardertest.Larder, folder, version string, outcome verify.Outcome, problem string) {
	r.Helper()
	if got := r.check(server, folder, version, verify.Trust{}); got.Outcome != outcome || !strings.Contains(got.Problem, problem) {
		r.Errorf("%s: %s, %q; want %s about %q", version, got.Outcome, got.Problem, outcome, problem)
	}
}

// A client that pins the root key is not deceived by a stolen key, once it has seen the list that ends that key.
func TestStolenKey(t *testing.T) {
	r := newRootRig(t)
	folder := t.TempDir()
	r.honest.Lie(keyListPath, r.after())
	r.thief.Lie(keyListPath, r.before())
	// Without the root key, who pins the old key believes the thief.
	if got := r.check(r.thief, t.TempDir(), "6.6.6", verify.Trust{Key: r.oldKey}); got.Outcome != verify.Proven {
		t.Fatalf("the thief's log: %+v", got)
	}
	r.want(r.honest, folder, "1.0.0", verify.Proven, "")
	r.want(r.honest, folder, "1.0.0", verify.Proven, "") // from what is remembered
	// The older list is never accepted again, whoever shows it.
	r.want(r.thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
	r.honest.Lie(keyListPath, r.before())
	r.want(r.honest, folder, "1.0.0", verify.Proven, "")
	// The list overrides that the stolen key has named another one.
	if _, err := r.thief.Signer.Rotate(time.Now()); err != nil {
		t.Fatal(err)
	}
	r.want(r.thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
	r.thief.Lie(keyListPath, r.after())
	r.want(r.thief, t.TempDir(), "6.6.6", verify.Differs, "that key may be stolen")
	// A list that is not the root key's, and two of one version.
	r.honest.Lie(keyListPath, strings.Replace(r.after(), "version 2", "version 3", 1))
	r.want(r.honest, folder, "1.0.0", verify.Differs, "not signed with the root key")
	r.honest.Lie(keyListPath, r.list(2, signing.ListedKey{Key: r.newKey}))
	r.want(r.honest, folder, "1.0.0", verify.Differs, "two lists of keys with the version 2")
}

// What a client saw of the thief before it knew the list does not keep it from the log.
func TestAfterTheThief(t *testing.T) {
	r := newRootRig(t)
	folder := t.TempDir()
	r.thief.Lie(keyListPath, r.before())
	r.want(r.thief, folder, "6.6.6", verify.Proven, "") // the root key had not ended the key
	r.honest.Lie(keyListPath, r.after())
	r.want(r.honest, folder, "1.0.0", verify.Proven, "")
	r.want(r.thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
}

func TestKeyListOfServer(t *testing.T) {
	end := func(r *rootRig, size int64, root byte) string {
		return r.list(2, signing.ListedKey{Key: r.oldKey, End: &logs.Checkpoint{Size: size, Root: [32]byte{root}}}, signing.ListedKey{Key: r.newKey})
	}
	r := newRootRig(t)
	expired := signing.KeyList{Origin: lardertest.Origin, Version: 2, Expires: time.Now().Add(-time.Hour).UTC().Truncate(time.Second), Keys: []signing.ListedKey{{Key: r.newKey}}}
	signed, err := expired.Sign(r.root)
	if err != nil {
		t.Fatal(err)
	}
	_, unused, err := signing.NewKey(lardertest.Origin)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, list string
		outcome    verify.Outcome
		problem    string
	}{
		{"right", r.after(), verify.Proven, ""},
		{"expired", string(signed), verify.Unproven, "the list of keys has expired"},
		{"without the key that signs", r.list(2, signing.ListedKey{Key: unused}), verify.Differs, "not signed with"},
		{"that ends a key with another tree", end(r, r.last.Size, 9), verify.Differs, "the last tree of the key"},
		{"that ends a key later", end(r, 100, 9), verify.Stale, "the root key says that it had 100"},
		{"malformed", "nothing", verify.Differs, "not signed with the root key"},
		{"too long", strings.Repeat("x", signing.MaxKeyList+1), verify.Unproven, "has over"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.T = t
			r.honest.Lie(keyListPath, tt.list)
			r.want(r.honest, t.TempDir(), "1.0.0", tt.outcome, tt.problem)
		})
	}
}

// A server without a list is no problem for a client that has seen one.
func TestServerWithoutKeyList(t *testing.T) {
	r := newRootRig(t)
	folder := t.TempDir()
	r.want(r.honest, folder, "1.0.0", verify.Unproven, "has no list of keys")
	response, err := http.Get(r.honest.URL + keyListPath)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("%s, %v", response.Status, err)
	}
	r.honest.Lie(keyListPath, r.after())
	r.want(r.honest, folder, "1.0.0", verify.Proven, "")
	r.want(r.thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
}
