package npmtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
)

// keysPath is where registries publish their keys.
const keysPath = "/-/npm/v1/keys"

// A Key is one that a registry signs packages with.
type Key struct {
	ID string
	// Expires is when it does, as the registry says it; "" for never.
	Expires string

	private *ecdsa.PrivateKey
	public  string
}

// NewKey makes a key, which is not published yet.
func NewKey(t testing.TB) *Key {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	return &Key{ID: "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:]), private: private, public: base64.StdEncoding.EncodeToString(der)}
}

// PublishKeys makes these the keys that the registry publishes.
func (r *Registry) PublishKeys(keys ...*Key) {
	type published struct {
		Expires any    `json:"expires"`
		KeyID   string `json:"keyid"`
		KeyType string `json:"keytype"`
		Scheme  string `json:"scheme"`
		Key     string `json:"key"`
	}
	list := []published{}
	for _, k := range keys {
		p := published{KeyID: k.ID, KeyType: "ecdsa-sha2-nistp256", Scheme: "ecdsa-sha2-nistp256", Key: k.public}
		if k.Expires != "" {
			p.Expires = k.Expires
		}
		list = append(list, p)
	}
	data, err := json.Marshal(map[string]any{"keys": list})
	if err != nil {
		panic(fmt.Sprintf("npmtest: %v", err))
	}
	r.SetKeys(data)
}

// SetKeys answers with these bytes where keys are published; nil for none.
func (r *Registry) SetKeys(data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = data
}

// Signed signs the version with these keys, over the integrity that its packument states.
func Signed(keys ...*Key) Option { return func(r *release) { r.keys = keys } }

func sign(keys []*Key, name, version string, dist map[string]any) []map[string]string {
	integrity, ok := dist["integrity"].(string)
	if !ok {
		sum, err := hex.DecodeString(dist["shasum"].(string))
		if err != nil || len(sum) != sha1.Size {
			panic(fmt.Sprintf("npmtest: %s %s has no hash to sign", name, version))
		}
		integrity = "sha1-" + base64.StdEncoding.EncodeToString(sum)
	}
	hash := sha256.Sum256([]byte(name + "@" + version + ":" + integrity))
	var all []map[string]string
	for _, k := range keys {
		sig, err := ecdsa.SignASN1(rand.Reader, k.private, hash[:])
		if err != nil {
			panic(fmt.Sprintf("npmtest: %v", err))
		}
		all = append(all, map[string]string{"keyid": k.ID, "sig": base64.StdEncoding.EncodeToString(sig)})
	}
	return all
}

// attestationsPath is where registries have attestations, in front of NAME@VERSION.
const attestationsPath = "/-/npm/v1/attestations/"

// provenanceType is the type of statements about a build.
const provenanceType = "https://slsa.dev/provenance/v1"

// Attested has the registry list an attestation of the version's provenance, and answer with this Sigstore bundle. Beside it
// is a broken attestation of the publication.
func Attested(bundle []byte) Option { return AttestedWith(bundle, []byte("{}")) }

// AttestedWith is Attested with the bundle of the registry's own attestation of the publication; nil for none.
func AttestedWith(bundle, publish []byte) Option {
	return func(r *release) { r.bundle, r.publish = bundle, publish }
}

// attestations is the response with the bundles of a version.
func attestations(bundle, publish []byte) []byte {
	all := []any{}
	if publish != nil {
		all = append(all, map[string]any{"predicateType": "https://github.com/npm/attestation/tree/main/specs/publish/v0.1", "bundle": json.RawMessage(publish)})
	}
	all = append(all, map[string]any{"predicateType": provenanceType, "bundle": json.RawMessage(bundle)})
	data, err := json.Marshal(map[string]any{"attestations": all})
	if err != nil {
		panic(fmt.Sprintf("npmtest: %v", err))
	}
	return data
}
