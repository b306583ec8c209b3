package fallback

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// What another origin has of a package with a policy is published only as npm has it, with the attestation that the policy
// requires.
func TestPolicyOfFallback(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("../../logs/attestation/testdata", name))
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
			p, err := packages.Parse("a.json", []byte(`{"name": "a", "description": "A test.", "keywords": ["test"], "filename": "`+file+`", "optimization": {"js": false},
				"repository": {"type": "git", "url": "https://example.com/a.git"}, "provenance": {"repository": "`+tt.repository+`"},
				"autoupdate": {"source": "npm", "target": "sigstore", "fileMap": [{"basePath": "", "files": ["dist/util/*.js"]}]}}`))
			if err != nil {
				t.Fatal(err)
			}
			folder := t.TempDir()
			path := filepath.Join(folder, packages.Path("a"))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, p.JSON, 0o644); err != nil {
				t.Fatal(err)
			}
			catalogue, err := packages.Open(folder)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.bot.SetCatalogue(t.Context(), catalogue); err != nil {
				t.Fatal(err)
			}
			if tt.options != nil {
				r.registry.Add("sigstore", "1.3.0", testkit.Released, nil, tt.options...)
			}
			data, failure := r.ask("1.3.0", file)
			r.settle()
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
