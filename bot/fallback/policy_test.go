package fallback

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// What another origin has of a package with a policy is published only as npm has it, with the attestation that the policy
// requires.
func TestPolicyOfFallback(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("../npm/testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	archive, build := npmtest.Tarball(read("sigstore-1.3.0.tgz")), read("sigstore-1.3.0.json")
	const file = "dist/util/json.js"
	tests := []struct {
		name       string
		repository string
		options    []npmtest.Option // none: npm does not have the release
		want       []logs.Kind
	}{
		{"attested", "https://github.com/sigstore/sigstore-js", []npmtest.Option{archive, npmtest.Attested(build)}, []logs.Kind{logs.PackageAdded, logs.Processed, logs.Published}},
		{"of another repository", "https://github.com/sigstore/other", []npmtest.Option{archive, npmtest.Attested(build)}, []logs.Kind{logs.PackageAdded, logs.Refused}},
		{"not attested", "https://github.com/sigstore/sigstore-js", []npmtest.Option{archive}, []logs.Kind{logs.PackageAdded, logs.Refused}},
		{"not at npm", "https://github.com/sigstore/sigstore-js", nil, []logs.Kind{logs.PackageAdded}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCDN(t)
			c.files["1.3.0"] = map[string]string{file: "the origin's own"}
			r := newRig(t, c.origin())
			r.setPackage(`{"name": "a", "description": "A test.", "keywords": ["test"], "filename": "` + file + `", "optimization": {"js": false},
				"repository": {"type": "git", "url": "https://example.com/a.git"}, "provenance": {"repository": "` + tt.repository + `"},
				"autoupdate": {"source": "npm", "target": "sigstore", "fileMap": [{"basePath": "", "files": ["dist/util/*.js"]}]}}`)
			if tt.options != nil {
				r.registry.Add("sigstore", "1.3.0", testkit.Released, nil, tt.options...)
			}
			data, failure := r.ask("1.3.0", file)
			r.waitIdle()
			if published := tt.want[len(tt.want)-1] == logs.Published; data != "" || (failure == nil) != published {
				t.Errorf("served %q, %+v", data, failure)
			}
			if got := c.count(); got != 0 {
				t.Errorf("the origin was asked %d times", got)
			}
			r.wantKinds(tt.want...)
		})
	}
}

// setPackage replaces the catalogue by one with a package JSON.
func (r *rig) setPackage(data string) {
	r.Helper()
	p, err := packages.Parse("a.json", []byte(data))
	if err != nil {
		r.Fatal(err)
	}
	folder := r.TempDir()
	path := filepath.Join(folder, packages.Path(p.Name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(path, p.JSON, 0o644); err != nil {
		r.Fatal(err)
	}
	catalogue, err := packages.Open(folder)
	if err != nil {
		r.Fatal(err)
	}
	if err := r.bot.SetCatalogue(r.Context(), catalogue); err != nil {
		r.Fatal(err)
	}
}

// TestPolicyOfRestoredAtOrigin: what an origin restores is not restored here if the package has a policy by now.
func TestPolicyOfRestoredAtOrigin(t *testing.T) {
	s := lardertest.New(t)
	s.Shelf.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "1"})
	s.Shelf.Publish("a", "2.0.0", "a.js", map[string]string{"a.js": "2"})
	r := newRig(t, "larder:"+s.URL)
	for version, want := range map[string]string{"1.0.0": "1", "2.0.0": "2"} {
		if got, failure := r.ask(version, "a.js"); got != want || failure != nil {
			t.Fatalf("got %q, %+v", got, failure)
		}
		r.waitIdle()
	}
	s.Shelf.Withdraw("a", "1.0.0", "malware")
	r.follows(4)
	r.setPackage(`{"name": "a", "description": "A test.", "keywords": ["test"], "filename": "a.js", "provenance": {"repository": "https://github.com/sigstore/sigstore-js"},
		"repository": {"type": "git", "url": "https://example.com/a.git"}, "autoupdate": {"source": "npm", "target": "a", "fileMap": [{"basePath": "", "files": ["*.js"]}]}}`)
	s.Shelf.Restore("a", "1.0.0", "it was none")
	s.Shelf.Withdraw("a", "2.0.0", "malware") // which is followed after the restoration
	r.follows(6)
	r.wantKinds(logs.PackageAdded, logs.Mirrored, logs.Mirrored, logs.Withdrawn, logs.PackageChanged, logs.Withdrawn)
}
