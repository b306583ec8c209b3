package audit_test

import (
	"os"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/verify"
)

// addModules publishes a package at the registry, and returns what an honest log says of its modules.
func (r *rig) addModules() verify.Claim {
	r.Helper()
	r.registry.Add("ui", "1.0.0", released, map[string]string{
		"package.json": `{"exports":{".":"./index.js","./server":"./server.js"}}`, "index.js": "exports.a = 1;", "server.js": "require('fs')",
	})
	packument, _, err := r.client.Packument(r.Context(), "ui", npm.Validators{})
	if err != nil {
		r.Fatal(err)
	}
	v := packument.Versions["1.0.0"]
	file, err := os.CreateTemp(r.TempDir(), "")
	if err != nil {
		r.Fatal(err)
	}
	defer file.Close()
	archive, _, err := r.client.Release(r.Context(), v, file)
	if err != nil {
		r.Fatal(err)
	}
	record, files, err := ingest.BuildModules(r.Context(), r.pool, ingest.ModulesRelease{Owner: "log", Package: "ui", Archive: archive})
	if err != nil || record.Problem != "" {
		r.Fatal(record, err)
	}
	m := &logs.Manifest{Package: "ui", Version: "1.0.0", Released: released, About: &logs.About{Modules: record}, Source: logs.Source{Type: "npm", Name: "ui", Integrity: v.Hash()}}
	for _, f := range files {
		m.Files = append(m.Files, fileOf(f.Path, string(f.Data)))
	}
	return verify.Claim{Entry: logs.Entry{Kind: logs.Published, Package: "ui", Version: "1.0.0"}, Manifest: m}
}

// fileOf returns the manifest's form of a built file.
func fileOf(path, data string) logs.File { return file(path, data, logs.Built, "") }

func TestCompareModules(t *testing.T) {
	tests := []struct {
		name    string
		change  func(*verify.Claim)
		outcome verify.Outcome
		problem string
		made    int
		note    string
	}{
		{"honest", func(*verify.Claim) {}, verify.Proven, "", 2, ""},
		{"altered bytes", func(c *verify.Claim) { c.Manifest.Files[0] = fileOf(c.Manifest.Files[0].Path, theft) }, verify.Differs, "comes out otherwise when it is built again", 1, ""},
		{"an invented module", func(c *verify.Claim) { c.Manifest.Files = append(c.Manifest.Files, fileOf("esm/zz.mjs", theft)) }, verify.Differs, "does not give such a file", 2, ""},
		{"an input with other bytes", func(c *verify.Claim) { c.Manifest.About.Modules.Inputs["index.js"] = kvstore.Sum(nil) }, verify.Differs, "index.js with other bytes than upstream has", 0, ""},
		{"an input that is not there", func(c *verify.Claim) { c.Manifest.About.Modules.Inputs["gone.js"] = kvstore.Sum(nil) }, verify.Differs, "1 files that upstream does not have", 0, ""},
		{"another esbuild", func(c *verify.Claim) { c.Manifest.About.Modules.Version = "0.1.0" }, verify.Proven, "", 0, "2 files were not checked, such as esm/index.mjs.map: made by esbuild 0.1.0"},
		{"other options", func(c *verify.Claim) { c.Manifest.About.Modules.Options = "--bundle" }, verify.Proven, "", 0, "made by esbuild"},
		{"no record", func(c *verify.Claim) { c.Manifest.About = nil }, verify.Proven, "", 0, "the manifest does not say how it was built"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			claim := r.addModules()
			tt.change(&claim)
			got := r.auditor.Compare(t.Context(), claim)
			if got.Outcome != tt.outcome || !strings.Contains(got.Problem, tt.problem) || got.Made != tt.made || !strings.Contains(strings.Join(got.Notes, "\n"), tt.note) {
				t.Errorf("got %+v\nwant %s about %q, %d made, a note %q", got, tt.outcome, tt.problem, tt.made, tt.note)
			}
			if _, err := got.At("esm/index.mjs"); tt.note != "" && err == nil {
				t.Error("a file that was not checked counts as proven")
			}
		})
	}
}
