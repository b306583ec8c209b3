package logs

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// ManifestFormat is the version of the manifests' JSON schema that this package
// writes.
const ManifestFormat = 1

// A Manifest lists what one release publishes. It is itself a content of the
// store, named by the hash in the release's Published entry.
type Manifest struct {
	Format   int       `json:"format"`
	Package  string    `json:"package"`
	Version  string    `json:"version"`
	Released time.Time `json:"released"` // when upstream published it; Last-Modified of its files
	Source   Source    `json:"source"`
	// Default is the path of the release's main file: the package's filename,
	// or the most similar one where the release lacks that; "" for none.
	Default string    `json:"default,omitempty"`
	Files   []File    `json:"files"` // by path
	LeftOut []LeftOut `json:"leftOut,omitempty"`
	Notes   []string  `json:"notes,omitempty"` // what went wrong without stopping the release
}

// A Source says where a release's files came from.
type Source struct {
	Type string `json:"type"` // "npm", "git" or "import"
	// Name is the package's name at npm, the address of a git repository as the
	// package JSON has it, or the base name of an imported folder or archive.
	Name      string `json:"name"`
	Integrity string `json:"integrity,omitempty"`
	// Tag and Commit are those of a git repository; Commit in hexadecimal digits.
	Tag    string `json:"tag,omitempty"`
	Commit string `json:"commit,omitempty"`
	// Signature is what became of the registry's signature; "" where the release
	// has no registry.
	Signature Signature `json:"signature,omitzero"`
}

// A Signature is what became of a registry's signature over a release's name,
// version and integrity.
type Signature struct {
	Outcome SignatureOutcome `json:"outcome"`
	Key     string           `json:"key,omitempty"` // the id of the key that it was made with
}

// A SignatureOutcome is what looking for a signature came to.
type SignatureOutcome string

// The outcomes.
const (
	SignatureVerified SignatureOutcome = "verified" // it is right
	SignatureMissing  SignatureOutcome = "missing"  // the registry publishes keys and has not signed this release
	SignatureNoKeys   SignatureOutcome = "no-keys"  // the registry publishes no keys
	SignatureInvalid  SignatureOutcome = "invalid"  // it is wrong, or its key is; such a release is refused
)

// The values of File.Origin.
const (
	Upstream = "upstream" // the bytes that upstream published
	Minified = "minified" // made here from the file that From names
)

// A File is one published file.
type File struct {
	Path   string       `json:"path"`
	Size   int64        `json:"size"`
	SHA256 kvstore.Hash `json:"sha256"`
	SRI    SRI          `json:"sri"`
	Origin string       `json:"origin"`
	From   string       `json:"from,omitempty"`
	// Module says that a .js file is an ES module by what is in it, which a classic
	// script's tag cannot load. Of other files nothing is said.
	Module bool `json:"module,omitempty"`
}

// LeftOut is a file of the release that the package JSON selects but that is
// not published.
type LeftOut struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// SRI is the SHA-512 of a file's own bytes; its text form is that of Subresource
// Integrity (https://www.w3.org/TR/SRI/#integrity-metadata).
type SRI [sha512.Size]byte

// SumSRI hashes a file's bytes.
func SumSRI(data []byte) SRI { return sha512.Sum512(data) }

const sriPrefix = "sha512-"

func (s SRI) String() string {
	return sriPrefix + base64.StdEncoding.EncodeToString(s[:])
}

// MarshalText implements encoding.TextMarshaler.
func (s SRI) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *SRI) UnmarshalText(text []byte) error {
	encoded, ok := strings.CutPrefix(string(text), sriPrefix)
	if !ok {
		return fmt.Errorf("integrity %q does not begin with %q", text, sriPrefix)
	}
	sum, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || len(sum) != len(s) {
		return fmt.Errorf("integrity %q is not a base64 SHA-512", text)
	}
	copy(s[:], sum)
	return nil
}

// Encode returns the manifest's bytes, the same for equal manifests.
func (m *Manifest) Encode() ([]byte, error) {
	m.Format = ManifestFormat
	m.Released = m.Released.UTC()
	return json.Marshal(m)
}

// DecodeManifest is the inverse of Manifest.Encode; it refuses formats that it
// does not know.
func DecodeManifest(data []byte) (*Manifest, error) {
	m := new(Manifest)
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("logs: malformed manifest: %w", err)
	}
	if m.Format != ManifestFormat {
		return nil, fmt.Errorf("logs: manifest format %d is not known to this release of Larder, which writes format %d", m.Format, ManifestFormat)
	}
	return m, nil
}

// ReadManifest reads the manifest that a Published entry names.
func ReadManifest(store *kvstore.Store, h kvstore.Hash) (*Manifest, error) {
	data, err := store.Identity(h)
	if err != nil {
		return nil, fmt.Errorf("logs: couldn't read manifest %s: %w", h, err)
	}
	return DecodeManifest(data)
}
