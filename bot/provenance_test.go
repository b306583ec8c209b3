package bot_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

const provenanceData = "../logs/verify/testdata/provenance/"

// npm's own archive of its package sigstore, with the attestation that npm has of it.
func TestProvenance(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(provenanceData + name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	archive, bundle, other := read("sigstore-1.3.0.tgz"), read("sigstore-1.3.0.json"), read("sigstore-2.0.0.json")
	verified := logs.Provenance{
		Outcome:    logs.ProvenanceVerified,
		Repository: "https://github.com/sigstore/sigstore-js",
		Commit:     "dae8bd8eb433a4147b4655c00fe73e0f22bc0fb1",
		Workflow:   "https://github.com/sigstore/sigstore-js/.github/workflows/release.yml@refs/heads/main",
	}
	tests := []struct {
		name   string
		bundle []byte
		lost   int // what the registry answers in its place
		want   logs.Provenance
		reason string
	}{
		{"npm's", bundle, 0, verified, ""},
		{"of another archive", other, 0, logs.Provenance{Outcome: logs.ProvenanceUnverified}, "digest"},
		{"nothing", []byte("{}"), 0, logs.Provenance{Outcome: logs.ProvenanceUnverified}, "bundle"},
		{"not passed on", bundle, 403, logs.Provenance{Outcome: logs.ProvenanceUnverified}, "does not have it"},
		{"lost", bundle, 404, logs.Provenance{Outcome: logs.ProvenanceUnverified}, "does not have it"},
		{"none", nil, 0, logs.Provenance{Outcome: logs.ProvenanceMissing}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.enrol("sigstore", fromNpm("sigstore", "dist/util/*.js"))
			options := []npmtest.Option{npmtest.Tarball(archive)}
			if tt.bundle != nil {
				options = append(options, npmtest.Attested(tt.bundle))
			}
			r.registry.Add("sigstore", "1.3.0", hour(1), nil, options...)
			if tt.lost != 0 {
				r.registry.Fail(npmtest.Fault{Path: "/-/npm/v1/attestations/", Status: tt.lost})
			}
			r.open()
			r.settle()
			e := r.one(logs.Published)
			if e.Provenance == nil {
				t.Fatal("the entry says nothing of provenance")
			}
			got := *e.Provenance
			if !strings.Contains(got.Reason, tt.reason) || (got.Reason == "") != (tt.reason == "") {
				t.Errorf("reason %q, want %q", got.Reason, tt.reason)
			}
			if kept := tt.bundle != nil && tt.lost == 0; kept {
				data, err := r.store.Identity(got.Bundle)
				if err != nil || !bytes.Equal(data, compact(t, tt.bundle)) {
					t.Errorf("%d bytes of the bundle are kept, %v", len(data), err)
				}
			} else if got.Bundle != (kvstore.Hash{}) {
				t.Error("a bundle is kept")
			}
			got.Reason, got.Bundle = "", kvstore.Hash{}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if e.Maker == nil || e.Maker.Program != "esbuild" || e.Maker.Version == "unknown" || !strings.Contains(e.Maker.Options, "--minify") {
				t.Errorf("made by %+v", e.Maker)
			}
			if p := r.one(logs.Processed); p.Provenance != nil || p.Maker != nil {
				t.Errorf("the entry before says %+v, %+v too", p.Provenance, p.Maker)
			}
			r.sound()
		})
	}
}

// compact is a bundle as it is within the registry's answer.
func compact(t *testing.T, bundle []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, bundle); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A registry whose attestations fail for a while has the release wait.
func TestAttestationsFail(t *testing.T) {
	r := newRig(t)
	r.enrol("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, npmtest.Attested([]byte("{}")))
	r.registry.Fail(npmtest.Fault{Path: "/-/npm/v1/attestations/", Status: 503})
	r.open()
	r.settle()
	if s := r.state("a", "1.0.0"); !strings.Contains(s.Reason, "couldn't get its attestations") {
		t.Errorf("state %+v", s)
	}
}
