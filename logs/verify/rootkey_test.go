package verify_test

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// A rootRig is a log whose key was stolen, and clients that pin the root key.
type rootRig struct {
	*testing.T
	*lardertest.StolenKey
}

func newRootRig(t *testing.T) *rootRig {
	t.Helper()
	return &rootRig{t, lardertest.NewStolenKey(t, "vue")}
}

// check verifies a file as a client that pins the root key and remembers what it has seen in a folder.
func (r *rootRig) check(server *lardertest.Larder, folder, version string, trust verify.Trust) verify.Result {
	r.Helper()
	known, err := verify.ReadKnown(filepath.Join(folder, "known"))
	if err != nil {
		r.Fatal(err)
	}
	s := verify.Session{Known: known, Timeout: time.Minute, Options: verify.Options{Trust: trust}}
	if trust.Key == "" {
		s.Options.Trust.Root = r.Root
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
	r.Honest.Lie(lardertest.KeyListPath, r.After())
	r.Thief.Lie(lardertest.KeyListPath, r.Before())
	// Without the root key, who pins the old key believes the thief.
	if got := r.check(r.Thief, t.TempDir(), "6.6.6", verify.Trust{Key: r.OldKey}); got.Outcome != verify.Proven {
		t.Fatalf("the thief's log: %+v", got)
	}
	r.want(r.Honest, folder, "1.0.0", verify.Proven, "")
	r.want(r.Honest, folder, "1.0.0", verify.Proven, "") // from what is remembered
	// The older list is never accepted again, whoever shows it.
	r.want(r.Thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
	r.Honest.Lie(lardertest.KeyListPath, r.Before())
	r.want(r.Honest, folder, "1.0.0", verify.Proven, "")
	// The list overrides that the stolen key has named another one.
	if _, err := r.Thief.Signer.Rotate(time.Now()); err != nil {
		t.Fatal(err)
	}
	r.want(r.Thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
	r.Thief.Lie(lardertest.KeyListPath, r.After())
	r.want(r.Thief, t.TempDir(), "6.6.6", verify.Differs, "that key may be stolen")
	// A list that is not the root key's, and two of one version.
	r.Honest.Lie(lardertest.KeyListPath, strings.Replace(r.After(), "version 2", "version 3", 1))
	r.want(r.Honest, folder, "1.0.0", verify.Differs, "not signed with the root key")
	r.Honest.Lie(lardertest.KeyListPath, r.List(2, signing.ListedKey{Key: r.NewKey}))
	r.want(r.Honest, folder, "1.0.0", verify.Differs, "two lists of keys with the version 2")
}

// TestListOfRefusedLog: a list counts from the first time that it is seen, even if the log with it is refused then.
func TestListOfRefusedLog(t *testing.T) {
	r := newRootRig(t)
	folder := t.TempDir()
	r.Thief.Lie(lardertest.KeyListPath, r.After())
	r.want(r.Thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
	r.Thief.Lie(lardertest.KeyListPath, r.Before())
	r.want(r.Thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
}

// TestListWithOtherSignature: a server can add lines of other keys to a signed note, which does not make it another list.
func TestListWithOtherSignature(t *testing.T) {
	r := newRootRig(t)
	folder := t.TempDir()
	r.Honest.Lie(lardertest.KeyListPath, r.After())
	r.want(r.Honest, folder, "1.0.0", verify.Proven, "")
	r.Honest.Lie(lardertest.KeyListPath, r.After()+"\u2014 other.example.com AAAAAAAA\n")
	r.want(r.Honest, folder, "1.0.0", verify.Proven, "")
}

// What a client saw of the thief before it knew the list does not keep it from the log.
func TestAfterTheThief(t *testing.T) {
	r := newRootRig(t)
	folder := t.TempDir()
	r.Thief.Lie(lardertest.KeyListPath, r.Before())
	r.want(r.Thief, folder, "6.6.6", verify.Proven, "") // the root key had not ended the key
	r.Honest.Lie(lardertest.KeyListPath, r.After())
	r.want(r.Honest, folder, "1.0.0", verify.Proven, "")
	r.want(r.Thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
}

func TestKeyListOfServer(t *testing.T) {
	end := func(r *rootRig, size int64, root byte) string {
		return r.List(2, signing.ListedKey{Key: r.OldKey, End: &logs.Checkpoint{Size: size, Root: [32]byte{root}}}, signing.ListedKey{Key: r.NewKey})
	}
	r := newRootRig(t)
	expired := r.Sign(signing.KeyList{Version: 2, Expires: time.Now().Add(-time.Hour), Keys: []signing.ListedKey{{Key: r.NewKey}}})
	_, unused, err := signing.NewKey(lardertest.Origin)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, list string
		outcome    verify.Outcome
		problem    string
	}{
		{"right", r.After(), verify.Proven, ""},
		{"expired", expired, verify.Unproven, "the list of keys has expired"},
		{"without the key that signs", r.List(2, signing.ListedKey{Key: unused}), verify.Differs, "not signed with"},
		{"that ends a key with another tree", end(r, r.Last.Size, 9), verify.Differs, "the last tree of the key"},
		{"that ends a key later", end(r, 100, 9), verify.Stale, "the root key says that it had 100"},
		{"malformed", "nothing", verify.Differs, "not signed with the root key"},
		{"too long", strings.Repeat("x", signing.MaxKeyList+1), verify.Unproven, "has over"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r.T = t
			r.Honest.Lie(lardertest.KeyListPath, tt.list)
			r.want(r.Honest, t.TempDir(), "1.0.0", tt.outcome, tt.problem)
		})
	}
}

// A server without a list is no problem for a client that has seen one.
func TestServerWithoutKeyList(t *testing.T) {
	r := newRootRig(t)
	folder := t.TempDir()
	r.want(r.Honest, folder, "1.0.0", verify.Unproven, "the server has no list of keys that the root key has signed, and none was seen before; ask the log's operator to sign one (larder key sign)")
	response, err := http.Get(r.Honest.URL + lardertest.KeyListPath)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("%s, %v", response.Status, err)
	}
	r.Honest.Lie(lardertest.KeyListPath, r.After())
	r.want(r.Honest, folder, "1.0.0", verify.Proven, "")
	r.want(r.Thief, folder, "6.6.6", verify.Differs, "that key may be stolen")
}
