package logs

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/text"
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
	About   *About    `json:"about,omitempty"` // before the files, see [DecodeAbout]
	Files   []File    `json:"files"`           // by path
	LeftOut []LeftOut `json:"leftOut,omitempty"`
	Notes   []string  `json:"notes,omitempty"` // what went wrong without stopping the release
	// Alike are the groups of files' paths that differ only in case or in Unicode form: what mirrors
	// to a file system that does not distinguish them has to know.
	Alike [][]string `json:"alike,omitempty"`
}

// A Source says where a release's files came from.
type Source struct {
	Type string `json:"type"` // "npm", "git", "import" or "cdnjs"
	// Name is the package's name at npm, the address of a git repository as the
	// package JSON has it, the name of an imported package (of version 0.1, the base name
	// of the folder or archive), or the URL of
	// an origin with cdnjs's API.
	Name      string `json:"name"`
	Integrity string `json:"integrity,omitempty"`
	// Tag and Commit are those of a git repository; Commit in hexadecimal digits.
	Tag    string `json:"tag,omitempty"`
	Commit string `json:"commit,omitempty"`
	// Tree is the hash of the commit's tree, whose files the release has. Manifests of version 0.1 have none: their files came from the host's
	// archive of the commit, in which files may be missing or changed.
	Tree string `json:"tree,omitempty"`
	// Signature is the outcome of verifying the registry's signature; "" where the release
	// has no registry.
	Signature Signature `json:"signature,omitzero"`
}

// A Signature is the result of verifying a registry's signature over a release's name,
// version and integrity.
type Signature struct {
	Outcome SignatureOutcome `json:"outcome"`
	Key     string           `json:"key,omitempty"` // the id of the signing key
	// The signed text, the signature and the key, for Published entries: all that [Signature.Check] needs.
	// Entries from before Larder kept them lack all three.
	Text      string `json:"text,omitempty"`      // name@version:integrity
	Sig       string `json:"sig,omitempty"`       // ECDSA with SHA-256, ASN.1 in base64
	PublicKey string `json:"publicKey,omitempty"` // the key that Key names, SubjectPublicKeyInfo in base64
}

// HasText reports whether the log has the signature itself, and not only its outcome.
func (s Signature) HasText() bool { return s.Sig != "" }

// WithoutText returns the outcome and the key's id without the signature itself. Manifests have that, because they must not
// change if a registry signs again.
func (s Signature) WithoutText() Signature { return Signature{Outcome: s.Outcome, Key: s.Key} }

// Check verifies the registry's signature Sig of Text by PublicKey; nil means that it is valid. It does not check whether
// the key is the registry's.
func (s Signature) Check() error {
	der, err := base64.StdEncoding.DecodeString(s.PublicKey)
	if err != nil {
		return errors.New("the registry's key is not in base64")
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	key, ok := parsed.(*ecdsa.PublicKey)
	if err != nil || !ok {
		return errors.New("the registry's key is no ECDSA key")
	}
	sig, err := base64.StdEncoding.DecodeString(s.Sig)
	if err != nil {
		return errors.New("the registry's signature is not in base64")
	}
	if sum := sha256.Sum256([]byte(s.Text)); !ecdsa.VerifyASN1(key, sum[:], sig) {
		return fmt.Errorf("the registry's signature is not one of %q by the key that is with it", text.Short(s.Text, 300))
	}
	return nil
}

// A SignatureOutcome is the outcome of verifying a signature.
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
	Taken    = "taken"    // the bytes that another origin has, which may have made them
	Built    = "built"    // built here for browsers; [About] says from what
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

// SumSRI returns the integrity of a file's bytes.
func SumSRI(data []byte) SRI { return sha512.Sum512(data) }

const sriPrefix = "sha512-"

// String returns the hash as Subresource Integrity has it: sha512- and the base64.
func (s SRI) String() string {
	return sriPrefix + base64.StdEncoding.EncodeToString(s[:])
}

// MarshalText implements encoding.TextMarshaler.
func (s SRI) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts only the form that String returns. With an error, it does
// not change s.
func (s *SRI) UnmarshalText(data []byte) error {
	encoded, ok := strings.CutPrefix(string(data), sriPrefix)
	if !ok {
		return fmt.Errorf("integrity %q does not begin with %q", data, sriPrefix)
	}
	sum, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || len(sum) != len(s) {
		return fmt.Errorf("integrity %q is not a base64 SHA-512", data)
	}
	copy(s[:], sum)
	return nil
}

// MaxManifest bounds a manifest, in bytes: 100,000 files take some 30 MB. An archive
// has 50,000 at most, of which some are published minified too.
const MaxManifest = 32 << 20

const (
	maxManifestItems = 150_000 // elements of its lists
	maxManifestDepth = 8
)

// Encode returns the manifest's bytes, the same for equal manifests. It sets the format of m and converts its time Released
// to UTC, also if it returns an error. A manifest over the limits is an error.
func (m *Manifest) Encode() ([]byte, error) {
	m.Format = ManifestFormat
	m.Released = m.Released.UTC()
	data, err := json.Marshal(m)
	if err == nil {
		_, err = checkManifest(data)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// checkManifest returns an error for data over [MaxManifest], and for data that would take far more memory than its bytes
// when decoded, because it nests too deeply or its lists have too many elements. It also returns the number of elements in
// all lists, or at most one more for each list. It does not check that data is valid JSON.
func checkManifest(data []byte) (items int, err error) {
	if len(data) > MaxManifest {
		return 0, fmt.Errorf("logs: a manifest of %d bytes, over the limit of %d", len(data), MaxManifest)
	}
	var depth int
	var lists [maxManifestDepth + 1]bool // whether it is in a list, by depth
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			if depth++; depth > maxManifestDepth {
				return 0, fmt.Errorf("logs: malformed manifest: it nests over %d levels", maxManifestDepth)
			}
			if lists[depth] = data[i] == '['; lists[depth] {
				items++
			}
		case '}', ']':
			depth = max(depth-1, 0) // decoding it tells what is wrong
		case ',':
			if lists[depth] {
				items++
			}
		}
	}
	if items > maxManifestItems {
		return 0, fmt.Errorf("logs: a manifest whose lists have %d elements, over the limit of %d", items, maxManifestItems)
	}
	return items, nil
}

// DecodeManifest decodes a manifest. It returns an error for unknown formats, for data over the limits, and for a file with
// a negative size. The memory that it takes is a few times that of data.
func DecodeManifest(data []byte) (*Manifest, error) {
	items, err := checkManifest(data)
	if err != nil {
		return nil, err
	}
	m := &Manifest{Files: make([]File, 0, items)} // growing it would take several times that
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("logs: malformed manifest: %w", err)
	}
	if m.Format != ManifestFormat {
		return nil, fmt.Errorf("logs: manifest format %d is not known to this release of Larder, which writes format %d", m.Format, ManifestFormat)
	}
	for _, f := range m.Files {
		if f.Size < 0 {
			return nil, fmt.Errorf("logs: malformed manifest: %q has %d bytes", f.Path, f.Size)
		}
	}
	return m, nil
}

// Contents has the method of a [kvstore.Store] that reads a content's own bytes by its hash.
type Contents interface {
	Identity(h kvstore.Hash) ([]byte, error)
}

// ReadManifest reads and decodes the manifest with the hash h, which a Published entry names.
func ReadManifest(store Contents, h kvstore.Hash) (*Manifest, error) {
	return readDocument(store, h, "manifest", DecodeManifest)
}

// readDocument reads the content with the hash h, which an entry names, and decodes it. kind is what the content is, for errors.
func readDocument[T any](store Contents, h kvstore.Hash, kind string, decode func([]byte) (*T, error)) (*T, error) {
	data, err := store.Identity(h)
	if err != nil {
		return nil, fmt.Errorf("logs: couldn't read %s %s: %w", kind, h, err)
	}
	return decode(data)
}

// A FileTree is the Merkle tree over the files of a manifest, in their order, hashed as in
// RFC 6962. The record of a file is
//
//	SHA-256, 32 bytes || SHA-512, 64 bytes || size, 8 bytes big-endian || path
type FileTree struct {
	size   int64
	stored []tlog.Hash // as tlog numbers them
}

// NewFileTree returns the Merkle tree over the records of a release's files, in the order given.
func NewFileTree(files []File) *FileTree {
	t := &FileTree{stored: make([]tlog.Hash, 0, 2*len(files))}
	for _, f := range files {
		hashes, err := tlog.StoredHashesForRecordHash(t.size, f.leafHash(), t)
		if err != nil {
			panic(err) // the hashes before are all there
		}
		t.stored = append(t.stored, hashes...)
		t.size++
	}
	return t
}

// ReadHashes implements [tlog.HashReader], from the hashes in memory.
func (t *FileTree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	return readHashes(indexes, func(index int64) (tlog.Hash, error) {
		if index >= int64(len(t.stored)) {
			return tlog.Hash{}, errors.New("logs: a manifest has no such file")
		}
		return t.stored[index], nil
	})
}

// Size returns the number of files.
func (t *FileTree) Size() int64 { return t.size }

// Root returns the hash of the tree.
func (t *FileTree) Root() kvstore.Hash {
	root, err := tlog.TreeHash(t.size, t)
	if err != nil {
		panic(err)
	}
	return kvstore.Hash(root)
}

// Prove returns the proof that the tree has the file at an index, in the order of the manifest. [FilePlace.Check] verifies
// it.
func (t *FileTree) Prove(index int64) (tlog.RecordProof, error) {
	return tlog.ProveRecord(t.size, index, t)
}

// Root returns the root of the tree of the manifest's files, which the entry of the publication states.
func (m *Manifest) Root() kvstore.Hash { return NewFileTree(m.Files).Root() }

// A FilePlace says where a file is in the tree of a published entry.
type FilePlace struct {
	Index int64            `json:"index"` // in the order of the manifest
	Of    int64            `json:"of"`    // files
	Proof tlog.RecordProof `json:"proof"`
}

// Check returns an error unless the proof shows that a tree of p.Of files with this root has the file f at p.Index. It does
// not check a tree of more files than a manifest may have, which is an error.
func (p FilePlace) Check(root kvstore.Hash, f File) error {
	if p.Of > maxManifestItems { // package tlog does not come to an end with sizes near the largest integer
		return fmt.Errorf("logs: a tree of %d files, and %d are the most", p.Of, maxManifestItems)
	}
	return tlog.CheckRecord(p.Proof, p.Of, tlog.Hash(root), p.Index, f.leafHash())
}

// leafHash returns the hash of the file's record in the tree.
func (f File) leafHash() tlog.Hash {
	data := append([]byte(nil), f.SHA256[:]...)
	data = append(data, f.SRI[:]...)
	data = binary.BigEndian.AppendUint64(data, uint64(f.Size))
	return tlog.RecordHash(append(data, f.Path...))
}

// FileProofFormat is the version of the form of [FileProof].
const FileProofFormat = 1

// A FileProof leads from a file to the leaf of the log: it is the extra data, in JSON, of
// the file's proof as in https://c2sp.org/tlog-proof.
type FileProof struct {
	Format int    `json:"format"`
	Entry  string `json:"entry"` // the bytes of the entry that published the release
	Path   string `json:"path"`  // of the file in the release
	FilePlace
}
