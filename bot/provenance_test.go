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

const provenanceData = "npm/testdata/"

func readProvenance(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(provenanceData + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// npm's own archive of its package sigstore, with the attestation that npm has of it.
func TestProvenance(t *testing.T) {
	archive, bundle, other := readProvenance(t, "sigstore-1.3.0.tgz"), readProvenance(t, "sigstore-1.3.0.json"), readProvenance(t, "sigstore-2.0.0.json")
	verified := logs.Provenance{
		Outcome:    logs.AttestationVerified,
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
		{"of another archive", other, 0, logs.Provenance{Outcome: logs.AttestationInvalid}, "digest"},
		{"nothing", []byte("{}"), 0, logs.Provenance{Outcome: logs.AttestationInvalid}, "bundle"},
		{"not passed on", bundle, 403, logs.Provenance{Outcome: logs.AttestationUnverified}, "does not have it"},
		{"lost", bundle, 404, logs.Provenance{Outcome: logs.AttestationUnverified}, "does not have it"},
		{"none", nil, 0, logs.Provenance{Outcome: logs.AttestationMissing}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.register("sigstore", fromNpm("sigstore", "dist/util/*.js"))
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
			got.Reason, got.Bundle, got.Publish = "", kvstore.Hash{}, logs.Publish{}
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
	r.register("a", fromNpm("a", "*.js"))
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"}, npmtest.Attested([]byte("{}")))
	r.registry.Fail(npmtest.Fault{Path: "/-/npm/v1/attestations/", Status: 503})
	r.open()
	r.settle()
	if s := r.state("a", "1.0.0"); !strings.Contains(s.Reason, "couldn't get its attestations") {
		t.Errorf("state %+v", s)
	}
}

// npm's own attestation of the publication is kept beside that of the build, and a broken one is recorded as broken.
func TestPublishAttestation(t *testing.T) {
	archive, build, publish := readProvenance(t, "sigstore-1.3.0.tgz"), readProvenance(t, "sigstore-1.3.0.json"), readProvenance(t, "publish-1.3.0.json")
	verified := logs.Publish{Outcome: logs.AttestationVerified, Key: npmtest.FormerKeyID, PublicKey: npmtest.FormerKey}
	tests := []struct {
		name    string
		publish []byte
		keys    func(*npmtest.Registry)
		want    logs.Publish
		reason  string
	}{
		{"npm's", publish, (*npmtest.Registry).PublishFormerKey, verified, ""},
		{"broken", bytes.Replace(publish, []byte(`"payload":"eyJ`), []byte(`"payload":"eyI`), 1), (*npmtest.Registry).PublishFormerKey, logs.Publish{Outcome: logs.AttestationInvalid}, "payload"},
		{"that of the build in its place", build, (*npmtest.Registry).PublishFormerKey, logs.Publish{Outcome: logs.AttestationInvalid}, "does not name the key"},
		{"by a key that is not published", publish, func(r *npmtest.Registry) { r.PublishKeys(npmtest.NewKey(t)) }, logs.Publish{Outcome: logs.AttestationUnverified}, npmtest.FormerKeyID},
		{"none", nil, (*npmtest.Registry).PublishFormerKey, logs.Publish{Outcome: logs.AttestationMissing}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.register("sigstore", fromNpm("sigstore", "dist/util/*.js"))
			tt.keys(r.registry)
			r.registry.Add("sigstore", "1.3.0", hour(1), nil, npmtest.Tarball(archive), npmtest.AttestedWith(build, tt.publish))
			r.open()
			r.settle()
			e := r.one(logs.Published)
			got := e.Provenance.Publish
			if !strings.Contains(got.Reason, tt.reason) || (got.Reason == "") != (tt.reason == "") {
				t.Errorf("reason %q, want %q", got.Reason, tt.reason)
			}
			if tt.publish != nil && r.content(got.Bundle) != string(compact(t, tt.publish)) {
				t.Error("the bundle is not kept")
			}
			got.Reason, got.Bundle = "", kvstore.Hash{}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if e.Provenance.Outcome != logs.AttestationVerified {
				t.Errorf("the attestation of the build is %s", e.Provenance)
			}
			r.auditNow()
			if r.audit(); !strings.Contains(r.upstreamNote("sigstore", "1.3.0"), "the same") {
				t.Errorf("compared with upstream: %s", r.upstreamNote("sigstore", "1.3.0"))
			}
			r.sound()
		})
	}
}

func (r *rig) upstreamNote(pkg, version string) string {
	r.Helper()
	note, _ := r.note(pkg, version)
	return note
}
