package bot_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

const sigstoreRepository = "https://github.com/sigstore/sigstore-js"

// requireBuild is the policy of a package JSON.
func requireBuild(repository string) string {
	return fmt.Sprintf(`, "provenance": {"repository": %q}`, repository)
}

// registerSigstore registers sigstore under a policy, and publishes its version 1.3.0 at the registry.
func (r *rig) registerSigstore(repository string, build []byte) {
	r.Helper()
	r.register("sigstore", fromNpm("sigstore", "dist/util/*.js")+requireBuild(repository))
	options := []npmtest.Option{npmtest.Tarball(readProvenance(r.T, "sigstore-1.3.0.tgz"))}
	if build != nil {
		options = append(options, npmtest.AttestedWith(build, readProvenance(r.T, "publish-1.3.0.json")))
	}
	r.registry.PublishFormerKey()
	r.registry.Add("sigstore", "1.3.0", hour(1), nil, options...)
}

// A release is published only with a valid attestation for the repository that the package JSON requires.
func TestPolicy(t *testing.T) {
	build := readProvenance(t, "sigstore-1.3.0.json")
	tests := []struct {
		name, repository string
		build            []byte
		refused          string // part of the reason, "" where it is published
	}{
		{"from the repository", sigstoreRepository, build, ""},
		{"in other letters", "https://github.com/Sigstore/sigstore-JS", build, ""},
		{"from another repository", "https://github.com/sigstore/sigstore", build, "it was built from " + sigstoreRepository},
		{"from one with a longer name", sigstoreRepository + "-fork", build, "it was built from " + sigstoreRepository},
		{"without an attestation", sigstoreRepository, nil, "the registry has no attestation"},
		{"with that of another release", sigstoreRepository, readProvenance(t, "sigstore-2.0.0.json"), "broken"},
		{"with one of nothing", sigstoreRepository, []byte("{}"), "broken"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.registerSigstore(tt.repository, tt.build)
			r.open()
			r.settle()
			if tt.refused == "" {
				if p := r.one(logs.Published).Provenance; p.Required != tt.repository || p.Override != "" || p.Repository != sigstoreRepository {
					t.Errorf("published with %+v", p)
				}
			} else if e := r.one(logs.Refused); !strings.Contains(e.Reason, tt.refused) || !strings.Contains(e.Reason, tt.repository) || len(r.entries(logs.Published)) > 0 {
				t.Errorf("refused because %q, want %q; published %d", e.Reason, tt.refused, len(r.entries(logs.Published)))
			}
			if e := r.one(logs.PackageAdded); e.Policy != (logs.PolicyChange{New: tt.repository}) {
				t.Errorf("the package was added with the policy %+v", e.Policy)
			}
			r.sound()
		})
	}
}

// An attestation that cannot be fetched has the release wait, whatever the registry answers.
func TestPolicyWaitsForTheAttestation(t *testing.T) {
	for _, status := range []int{403, 404, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) { policyWaits(t, status) })
	}
}

func policyWaits(t *testing.T, status int) {
	r := newRig(t)
	r.registerSigstore(sigstoreRepository, readProvenance(t, "sigstore-1.3.0.json"))
	r.registry.Fail(npmtest.Fault{Path: "/-/npm/v1/attestations/", Status: status})
	r.open()
	r.settle()
	if s := r.state("sigstore", "1.3.0"); s.Kind != views.Failed || s.Next.IsZero() || len(r.entries(logs.Refused))+len(r.entries(logs.Published)) > 0 {
		t.Errorf("%d: state %+v, log:\n%s", status, s, r.kinds())
	}
	r.registry.ClearFaults()
	r.setNow(r.clock().Add(24 * time.Hour))
	r.settle()
	r.one(logs.Published)
}

// A policy that was wrong and is put right has the refused release tried again; one that is removed or changed is in the log.
func TestPolicyChanges(t *testing.T) {
	const other = "https://github.com/sigstore/other"
	r := newRig(t)
	r.registerSigstore(other, readProvenance(t, "sigstore-1.3.0.json"))
	r.open()
	r.settle()
	r.one(logs.Refused)
	r.register("sigstore", fromNpm("sigstore", "dist/util/*.js")+requireBuild(sigstoreRepository))
	r.setCatalogue()
	r.setNow(r.clock().Add(24 * time.Hour))
	r.settle()
	r.one(logs.Published)
	r.register("sigstore", fromNpm("sigstore", "dist/util/*.js"))
	r.setCatalogue()
	var changes []logs.PolicyChange
	for _, e := range r.entries(logs.PackageChanged) {
		changes = append(changes, e.Policy)
	}
	want := []logs.PolicyChange{{Old: other, New: sigstoreRepository}, {Old: sigstoreRepository}}
	if fmt.Sprint(changes) != fmt.Sprint(want) || !want[1].Weakens() {
		t.Errorf("the log has the changes %+v, want %+v", changes, want)
	}
	r.sound()
}

// An operator may publish a refused release by hand. The log says so, and why.
func TestPolicyOverride(t *testing.T) {
	r := newRig(t)
	r.registerSigstore(sigstoreRepository, nil)
	r.open()
	r.settle()
	r.one(logs.Refused)
	if err := r.bot.Add(t.Context(), "sigstore", "1.3.0"); err == nil {
		t.Error("published without a reason")
	}
	if err := r.bot.AddUnattested(t.Context(), "sigstore", "1.3.0", " \n"); err == nil {
		t.Error("published for an empty reason")
	}
	if err := r.bot.AddUnattested(t.Context(), "sigstore", "1.3.0", "built before npm had attestations"); err != nil {
		t.Fatal(err)
	}
	e := r.one(logs.Published)
	if p := e.Provenance; e.Actor != "operator" || p.Outcome != logs.AttestationMissing || p.Required != sigstoreRepository || p.Override != "built before npm had attestations" {
		t.Errorf("published by %s with %+v", e.Actor, p)
	}
	if !strings.Contains(e.News(), "the operator overrode that: built before npm had attestations") {
		t.Errorf("the news are %q", e.News())
	}
	r.sound()
}

// Imports have no attestation, so that only an operator's reason publishes them.
func TestPolicyOfImports(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"sigstore/9.0.0/a.js", "sigstore/9.1.0/a.js"} {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, name)
		if err := errors.Join(os.WriteFile(path, []byte("let a"), 0o644), os.Chtimes(path, hour(1), hour(1))); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t)
	r.register("sigstore", requireBuild(sigstoreRepository))
	r.open()
	request := ingest.ImportRequest{Package: "sigstore", Version: "8.0.0", Files: []ingest.ImportFile{importFile("a.js", "let a")}, Contents: []kvstore.Hash{kvstore.Sum([]byte("let a"))}}
	for range 2 { // the second one adds nothing to the log
		if err := r.bot.Import(t.Context(), request, strings.NewReader("let a")); err == nil || !strings.Contains(err.Error(), "--without-provenance") {
			t.Errorf("imported: %v", err)
		}
	}
	if e := r.one(logs.Refused); e.Actor != "operator" || e.Version != "8.0.0" {
		t.Errorf("refused %s by %s", e.Version, e.Actor)
	}
	tree := ingest.Tree{Dir: folder, Released: ingest.ByTimes}
	if sum, problems, err := r.importTree(tree); err != nil || sum.Published != 0 || strings.Count(problems, "the package requires an attestation of the build") != 2 {
		t.Errorf("imported %+v, %v:\n%s", sum, err, problems)
	}
	tree.Override, request.Override = "the author's own archive", "the author's own archive"
	if sum, problems, err := r.importTree(tree); err != nil || sum.Published != 2 {
		t.Errorf("imported %+v, %v:\n%s", sum, err, problems)
	}
	if err := r.bot.Import(t.Context(), request, strings.NewReader("let a")); err != nil {
		t.Error(err)
	}
	published := r.entries(logs.Published)
	if len(published) != 3 {
		t.Fatalf("%d are published:\n%s", len(published), r.kinds())
	}
	for _, e := range published {
		if p := e.Provenance; p == nil || p.Override != request.Override || p.Required != sigstoreRepository {
			t.Errorf("%s is published with %+v", e.Version, p)
		}
	}
	r.sound()
}

// A version that was refused when it was imported is published once npm has it with an attestation.
func TestPolicyAfterRefusedImport(t *testing.T) {
	r := newRig(t)
	r.registerSigstore(sigstoreRepository, readProvenance(t, "sigstore-1.3.0.json"))
	r.open()
	request := ingest.ImportRequest{Package: "sigstore", Version: "1.3.0", Files: []ingest.ImportFile{importFile("dist/util/a.js", "let a")}}
	if _, err := r.bot.MissingContents(t.Context(), request); err == nil {
		t.Fatal("the import was not refused")
	}
	r.one(logs.Refused)
	r.settle()
	r.one(logs.Published)
}

// TestPolicyOfRestored: a release that was published before its package had a policy is restored only for an operator's reason.
func TestPolicyOfRestored(t *testing.T) {
	const reason = "built before npm had attestations"
	for _, tt := range []struct {
		name, repository, override string
		build                      []byte
		refused                    bool
	}{
		{"attested", sigstoreRepository, "", readProvenance(t, "sigstore-1.3.0.json"), false},
		{"attested for another repository", sigstoreRepository + "-fork", "", readProvenance(t, "sigstore-1.3.0.json"), true},
		{"not attested", sigstoreRepository, "", nil, true},
		{"overridden", sigstoreRepository, reason, nil, false},
		{"without a policy", "", "", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.registerSigstore(tt.repository, tt.build)
			r.register("sigstore", fromNpm("sigstore", "dist/util/*.js"))
			r.open()
			r.settle()
			desk := bot.NewWithdrawalService(r.store, r.log, r.clock)
			if _, err := desk.Withdraw(t.Context(), "sigstore", "1.3.0", "malware"); err != nil {
				t.Fatal(err)
			}
			if tt.repository != "" {
				r.register("sigstore", fromNpm("sigstore", "dist/util/*.js")+requireBuild(tt.repository))
				r.setCatalogue()
			}
			policy, err := ingest.CheckRestored(r.store, "sigstore", "1.3.0", tt.override)
			if tt.refused {
				if err == nil || !strings.Contains(err.Error(), "--without-provenance") || !strings.Contains(err.Error(), tt.repository) {
					t.Errorf("restored: %v", err)
				}
				return
			}
			if err == nil {
				_, err = desk.Restore(t.Context(), "sigstore", "1.3.0", "it was the owner", policy)
			}
			if err != nil {
				t.Fatal(err)
			}
			e := r.one(logs.Restored)
			if tt.repository != "" && (e.Provenance.Required != tt.repository || e.Provenance.Override != tt.override) || strings.Contains(e.News(), reason) != (tt.override != "") {
				t.Errorf("restored with %+v: %s", e.Provenance, e.News())
			}
			r.sound()
		})
	}
}
