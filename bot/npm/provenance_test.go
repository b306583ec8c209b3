package npm

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs/verify"
)

// The bundles are npm's own, of its package sigstore.
const (
	sigstore130 = "76176ffa33808b54602c7c35de5c6e9a4deb96066dba6533f50ac234f4f1f4c6b3527515dc17c06fbe2860030f410eee69ea20079bd3a2c6f3dcf3b329b10751"
	sigstore200 = "46d4e2f74c4877316640000a6fdf8a8b59f1e0847667973e9859f774dd31b8f1e0937813b777fb66a2ac67d50540fe34640966eee9fc2ccca387082b4c85cd3c"
)

func sha512Integrity(t testing.TB, digits string) string {
	t.Helper()
	sum, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return "sha512-" + base64.StdEncoding.EncodeToString(sum)
}

func readAttestation(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestVerifyBuild(t *testing.T) {
	same := func(data []byte) []byte { return data }
	replaced := func(old, new string) func([]byte) []byte {
		return func(data []byte) []byte {
			if !bytes.Contains(data, []byte(old)) {
				t.Fatalf("the bundle has no %s", old)
			}
			return bytes.Replace(data, []byte(old), []byte(new), 1)
		}
	}
	tests := []struct {
		name, bundle, pkg, version, digest string
		change                             func([]byte) []byte
		build                              verify.Build
		problem                            string
	}{
		{"npm's", "sigstore-1.3.0", "sigstore", "1.3.0", sigstore130, same, verify.Build{
			Repository: "https://github.com/sigstore/sigstore-js", Commit: "dae8bd8eb433a4147b4655c00fe73e0f22bc0fb1",
			Workflow: "https://github.com/sigstore/sigstore-js/.github/workflows/release.yml@refs/heads/main",
		}, ""},
		{"a later predicate", "sigstore-2.0.0", "sigstore", "2.0.0", sigstore200, same, verify.Build{
			Repository: "https://github.com/sigstore/sigstore-js", Commit: "f0b49a04e5a62250e0f60fb128004a73110fe311",
			Workflow: "https://github.com/sigstore/sigstore-js/.github/workflows/release.yml@refs/heads/main",
		}, ""},
		{"another archive", "sigstore-1.3.0", "sigstore", "1.3.0", sigstore200, same, verify.Build{}, "digest"},
		{"another version", "sigstore-1.3.0", "sigstore", "1.3.1", sigstore130, same, verify.Build{}, "it is not about pkg:npm/sigstore@1.3.1"},
		{"another package", "sigstore-1.3.0", "@sigstore/bundle", "1.3.0", sigstore130, same, verify.Build{}, "it is not about pkg:npm/%40sigstore/bundle@1.3.0"},
		{"npm's own, of the publication", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, same, verify.Build{}, "certificate"},
		{"a changed payload", "sigstore-1.3.0", "sigstore", "1.3.0", sigstore130, replaced(`"payload":"eyJ`, `"payload":"eyI`), verify.Build{}, ""},
		{"a changed time", "sigstore-1.3.0", "sigstore", "1.3.0", sigstore130, replaced(`"integratedTime":"1681839912"`, `"integratedTime":"1681839913"`), verify.Build{}, ""},
		{"no bundle", "sigstore-1.3.0", "sigstore", "1.3.0", sigstore130, func([]byte) []byte { return []byte("{}") }, verify.Build{}, ""},
		{"too large", "sigstore-1.3.0", "sigstore", "1.3.0", sigstore130, func([]byte) []byte { return make([]byte, verify.MaxAttestation+1) }, verify.Build{}, "over 262144 bytes"},
	}
	v, err := NewAttestationVerifier(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			build, err := v.VerifyBuild(tt.change(readAttestation(t, tt.bundle)), tt.pkg, tt.version, sha512Integrity(t, tt.digest))
			if build != tt.build || (err == nil) != (tt.build != verify.Build{}) {
				t.Fatalf("%+v, %v; want %+v", build, err, tt.build)
			}
			if err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("it says %q, want %q", err, tt.problem)
			}
		})
	}
	if _, err := v.VerifyBuild(readAttestation(t, "sigstore-1.3.0"), "sigstore", "1.3.0", "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk="); err == nil || !strings.Contains(err.Error(), "no SHA-512") {
		t.Errorf("with a SHA-1: %v", err)
	}
}

// What another root does not vouch for is not verified.
func TestOtherTrustedRoot(t *testing.T) {
	ca := bytes.Index(sigstoreRoot, []byte(`"tlogs"`))
	if ca < 0 {
		t.Fatal("the root has no logs")
	}
	v, err := NewAttestationVerifier(bytes.Replace(sigstoreRoot, []byte(`"tlogs"`), []byte(`"notLogs"`), 1))
	if err == nil {
		if _, err = v.VerifyBuild(readAttestation(t, "sigstore-1.3.0"), "sigstore", "1.3.0", sha512Integrity(t, sigstore130)); err == nil {
			t.Error("verified by a root without logs")
		}
	}
	if _, err := NewAttestationVerifier([]byte("no root")); err == nil {
		t.Error("a root of nothing was taken")
	}
}

func TestParseAttestations(t *testing.T) {
	response := `{"attestations":[{"predicateType":"https://github.com/npm/attestation/tree/main/specs/publish/v0.1","bundle":{"a":1}},{"predicateType":"https://slsa.dev/provenance/v1","bundle":{"b": 2}}]}`
	if got, err := ParseAttestations([]byte(response)); err != nil || string(got.Build) != `{"b": 2}` || string(got.Publish) != `{"a":1}` {
		t.Errorf("%s, %s, %v", got.Build, got.Publish, err)
	}
	if got, err := ParseAttestations([]byte(`{"attestations":[]}`)); err != nil || got.Build != nil || got.Publish != nil {
		t.Errorf("of none: %s, %v", got, err)
	}
	if _, err := ParseAttestations([]byte(`[`)); err == nil {
		t.Error("malformed was taken")
	}
}

func FuzzVerifyAttestations(f *testing.F) {
	v, err := NewAttestationVerifier(nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"sigstore-1.3.0", "sigstore-2.0.0", "publish-1.3.0"} {
		f.Add(readAttestation(f, name))
	}
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`))
	want := sha512Integrity(f, sigstore130)
	f.Fuzz(func(t *testing.T, data []byte) {
		if build, err := v.VerifyBuild(data, "sigstore", "1.3.0", want); err == nil && build.Commit != "dae8bd8eb433a4147b4655c00fe73e0f22bc0fb1" {
			t.Errorf("another build was proven: %+v", build)
		}
	})
}
