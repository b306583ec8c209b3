package npm

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// npm's own attestation that it received sigstore 1.3.0, by the key that npm published then.
func TestVerifyPublication(t *testing.T) {
	const id = npmtest.FormerKeyID
	der, err := base64.StdEncoding.DecodeString(npmtest.FormerKey)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		t.Fatal(err)
	}
	npms := parsed.(*ecdsa.PublicKey)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed := time.Unix(1681839916, 0)
	same := func(data []byte) []byte { return data }
	tests := []struct {
		name, bundle, pkg, version, digest string
		change                             func([]byte) []byte
		key                                RegistryKey
		problem                            string // "" where it is right
	}{
		{"npm's", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, same, RegistryKey{ID: id, Key: npms}, ""},
		{"a key that expired later", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, same, RegistryKey{ID: id, Key: npms, Expires: signed.Add(time.Hour)}, ""},
		{"a key that had expired", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, same, RegistryKey{ID: id, Key: npms, Expires: signed.Add(-time.Hour)}, "validity"},
		{"another key under the id", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, same, RegistryKey{ID: id, Key: &other.PublicKey}, "does not match"},
		{"a key of another id", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, same, RegistryKey{ID: "SHA256:other", Key: npms}, "does not match"},
		{"a key that is not understood", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, same, RegistryKey{ID: id}, "ECDSA"},
		{"another archive", "publish-1.3.0", "sigstore", "1.3.0", sigstore200, same, RegistryKey{ID: id, Key: npms}, "digest"},
		{"another version", "publish-1.3.0", "sigstore", "1.3.1", sigstore130, same, RegistryKey{ID: id, Key: npms}, "it is not about pkg:npm/sigstore@1.3.1"},
		{"another package", "publish-1.3.0", "tuf", "1.3.0", sigstore130, same, RegistryKey{ID: id, Key: npms}, "it is not about pkg:npm/tuf@1.3.0"},
		{"of the build", "sigstore-1.3.0", "sigstore", "1.3.0", sigstore130, same, RegistryKey{ID: id, Key: npms}, ""},
		{"a changed time", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, func(data []byte) []byte {
			return bytes.Replace(data, []byte(`"integratedTime":"1681839916"`), []byte(`"integratedTime":"1681839917"`), 1)
		}, RegistryKey{ID: id, Key: npms}, ""},
		{"no bundle", "publish-1.3.0", "sigstore", "1.3.0", sigstore130, func([]byte) []byte { return []byte("{}") }, RegistryKey{ID: id, Key: npms}, "bundle"},
	}
	right := map[string]bool{"npm's": true, "a key that expired later": true}
	v, err := NewAttestationVerifier(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := v.VerifyPublication(tt.change(readAttestation(t, tt.bundle)), tt.pkg, tt.version, sha512Integrity(t, tt.digest), tt.key)
			if (err == nil) != right[tt.name] {
				t.Fatalf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("it says %q, want %q", err, tt.problem)
			}
		})
	}
	if got, err := PublishKeyID(readAttestation(t, "publish-1.3.0")); got != id || err != nil {
		t.Errorf("signed with %q, %v", got, err)
	}
	if got, err := PublishKeyID(readAttestation(t, "sigstore-1.3.0")); got != "" || err == nil {
		t.Errorf("the attestation of a build is signed with %q, %v", got, err)
	}
}
