package signing

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// ReadFolder reads the last signed checkpoint from a key folder, which a Signer may
// have open meanwhile, and verifies it as anybody would who has the verifier key that
// is there. Where nobody has made a key, it returns an error that is fs.ErrNotExist
// and no key.
func ReadFolder(dir string) (_ Signed, key string, err error) {
	// The key is read first: a checkpoint that is signed with a newer one is signed
	// with this one too.
	public, err := os.ReadFile(filepath.Join(dir, publicFile))
	if err != nil {
		return Signed{}, "", fmt.Errorf("signing: couldn't read the verifier key: %w", err)
	}
	key = strings.TrimSpace(string(public))
	verifier, err := note.NewVerifier(key)
	if err != nil || string(public) != written(verifier, key) {
		return Signed{}, key, fmt.Errorf("signing: %s does not hold a verifier key", filepath.Join(dir, publicFile))
	}
	path := filepath.Join(dir, checkpointFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return Signed{}, key, fmt.Errorf("signing: couldn't read the last signed checkpoint: %w", err)
	}
	signed, n, err := open(data, verifier.Name(), note.VerifierList(verifier))
	if err == nil {
		if err = strict(n); err == nil {
			return signed, key, nil
		}
	}
	if unknown := (*note.UnverifiedNoteError)(nil); errors.As(err, &unknown) {
		err = errors.New("it is not signed with the key in " + publicFile)
	}
	return Signed{}, key, fmt.Errorf("signing: %s: %w", path, err)
}

// written is a verifier key's file as it is written.
func written(v note.Verifier, key string) string {
	_, data, _ := strings.Cut(strings.TrimPrefix(key, v.Name()+"+"), "+")
	return fmt.Sprintf("%s+%08x+%s\n", v.Name(), v.KeyHash(), data)
}

// strict returns an error where a signature has bits that nobody reads, and which are
// not as they are written.
func strict(n *note.Note) error {
	for _, s := range append(n.Sigs[:len(n.Sigs):len(n.Sigs)], n.UnverifiedSigs...) {
		if _, err := base64.StdEncoding.Strict().DecodeString(s.Base64); err != nil {
			return fmt.Errorf("a signature of %s is not as it was written: %w", s.Name, err)
		}
	}
	return nil
}
