package signing

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/transparency-dev/formats/log"
	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
)

// A Signed is a checkpoint with signatures.
type Signed struct {
	logs.Checkpoint
	// Note is the signed note (https://c2sp.org/signed-note) as it is served.
	Note []byte
}

// signCheckpoint signs a checkpoint of the log with the name origin with all keys. Unless at is zero, the keys also cosign
// it as of that time.
func signCheckpoint(origin string, c logs.Checkpoint, keys keyring, at time.Time) (Signed, error) {
	body := log.Checkpoint{Origin: origin, Size: uint64(c.Size), Hash: c.Root[:]}
	signed, err := note.Sign(&note.Note{Text: string(body.Marshal())}, keys.signers()...)
	if err != nil {
		return Signed{}, fmt.Errorf("signing: couldn't sign a checkpoint of %d entries: %w", c.Size, err)
	}
	if !at.IsZero() {
		for _, k := range keys {
			signed = append(signed, k.cosignatureLine(string(body.Marshal()), at)...)
		}
	}
	return Signed{c, signed}, nil
}

// openNote verifies and parses a signed checkpoint of the log with the name origin. At least one of the keys must have
// signed it. It returns the checkpoint and its note, in which signatures by other keys are unverified. The result has data
// itself, not a copy.
func openNote(data []byte, origin string, keys note.Verifiers) (Signed, *note.Note, error) {
	n, err := note.Open(data, keys)
	if err != nil {
		return Signed{}, nil, err
	}
	c, err := parseBody(n.Text, origin)
	if err != nil {
		return Signed{}, nil, err
	}
	return Signed{c, data}, n, nil
}

// parseBody parses the text of a checkpoint, without signatures, of the log with the name origin. It accepts only the form
// that signCheckpoint writes.
func parseBody(text, origin string) (logs.Checkpoint, error) {
	var body log.Checkpoint
	if _, err := body.Unmarshal([]byte(text)); err != nil {
		return logs.Checkpoint{}, err
	}
	if body.Origin != origin {
		return logs.Checkpoint{}, fmt.Errorf("it is that of the log %.200q, not of %q", body.Origin, origin)
	}
	if len(body.Hash) != tlog.HashSize || string(body.Marshal()) != text {
		return logs.Checkpoint{}, errors.New("its text is not that of a checkpoint")
	}
	if body.Size > logs.MaxSize {
		return logs.Checkpoint{}, fmt.Errorf("it is of %d entries, over the limit of %d", body.Size, int64(logs.MaxSize))
	}
	return logs.Checkpoint{Size: int64(body.Size), Root: tlog.Hash(body.Hash)}, nil
}

// ParseText parses the text of a checkpoint, without signatures, of the log with the name origin, which another program may have
// written: extension lines after the first three (https://c2sp.org/tlog-checkpoint) are ignored.
func ParseText(text, origin string) (logs.Checkpoint, error) {
	lines := strings.SplitAfter(text, "\n")
	if extension := lines[min(3, len(lines)):]; slices.Contains(extension[:max(0, len(extension)-1)], "\n") {
		return logs.Checkpoint{}, errors.New("an extension line is empty")
	}
	return parseBody(strings.Join(lines[:min(3, len(lines))], ""), origin)
}

// signatureLines returns signatures as the lines of a note.
func signatureLines(sigs []note.Signature) []byte {
	var lines []byte
	for _, s := range sigs {
		lines = fmt.Appendf(lines, "— %s %s\n", s.Name, s.Base64)
	}
	return lines
}

// isSignedBy reports whether a note has a valid signature by the key that v verifies.
func isSignedBy(data []byte, v note.Verifier) bool {
	_, err := note.Open(data, note.VerifierList(v))
	return err == nil
}

// A key is a key that signs checkpoints, in several forms.
type key struct {
	private      string // as https://c2sp.org/signed-note has them
	public       string
	secret       ed25519.PrivateKey
	signer       note.Signer
	verifier     note.Verifier
	cosignatures note.Verifier
}

// newKey generates a key. Its name is the log's origin.
func newKey(origin string) (*key, error) {
	private, _, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return nil, err
	}
	return parseKey([]byte(private))
}

// parseKey parses a private key in the form of https://c2sp.org/signed-note, with spaces around it ignored. A key whose hash
// does not match its secret is an error.
func parseKey(data []byte) (*key, error) {
	k := &key{private: string(bytes.TrimSpace(data))}
	var err error
	if k.signer, err = note.NewSigner(k.private); err != nil {
		return nil, errors.New("it does not contain a private key for signed notes")
	}
	// NewSigner has verified that there are five parts, of which the last is the secret.
	secret, err := base64.StdEncoding.DecodeString(strings.SplitN(k.private, "+", 5)[4])
	if err != nil {
		return nil, err
	}
	k.secret = ed25519.NewKeyFromSeed(secret[1:])
	public := k.secret.Public().(ed25519.PublicKey)
	if k.public, err = note.NewEd25519VerifierKey(k.signer.Name(), public); err != nil {
		return nil, err
	}
	if k.verifier, err = note.NewVerifier(k.public); err != nil {
		return nil, err
	}
	if k.cosignatures, err = cosignature.NewVerifierForCosignatureV1(k.public); err != nil {
		return nil, err
	}
	if k.verifier.KeyHash() != k.signer.KeyHash() {
		return nil, errors.New("its hash does not match its secret")
	}
	return k, nil
}

// hashText returns the key's hash in hexadecimal digits. It differs between keys of the same origin.
func (k *key) hashText() string { return fmt.Sprintf("%08x", k.signer.KeyHash()) }

// A keyring has the keys that sign, the newest first.
type keyring []*key

// signers returns a signer for each key.
func (r keyring) signers() []note.Signer {
	signers := make([]note.Signer, len(r))
	for i, k := range r {
		signers[i] = k.signer
	}
	return signers
}

// verifiers returns verifiers of the signatures by the keys.
func (r keyring) verifiers() note.Verifiers {
	verifiers := make([]note.Verifier, len(r))
	for i, k := range r {
		verifiers[i] = k.verifier
	}
	return note.VerifierList(verifiers...)
}

// maxOrigin bounds an origin, in bytes. ML-DSA cosignatures have a byte for its length.
const maxOrigin = 255

// CheckOrigin returns an error if origin is not a valid name for a log: empty, over 255 bytes, not UTF-8, or with a space, a
// + or a character that is not printed. The error begins with "must be".
func CheckOrigin(origin string) error {
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) || r == '+' }
	if origin == "" || len(origin) > maxOrigin || !utf8.ValidString(origin) || strings.ContainsFunc(origin, bad) {
		return fmt.Errorf("must be a name such as cdn.example.com/log: up to %d bytes, no spaces and no +", maxOrigin)
	}
	return nil
}

// randomOrigin returns the name of a new log for which the operator gives none: larder.local/ and 8 random hexadecimal
// digits.
func randomOrigin() string {
	return fmt.Sprintf("larder.local/%08x", mathrand.Uint32())
}
