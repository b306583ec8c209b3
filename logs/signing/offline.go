package signing

import (
	"golang.org/x/mod/sumdb/note"
)

// NewKey generates a key pair for signed notes (https://c2sp.org/signed-note) that is used outside of a key folder, such as
// that of an auditor. Both keys are in the form of the specification; nothing is stored. The error for an invalid name
// begins with "must be".
func NewKey(name string) (private, public string, err error) {
	if err := CheckOrigin(name); err != nil {
		return "", "", err
	}
	k, err := newKey(name)
	if err != nil {
		return "", "", err
	}
	return k.private, k.public, nil
}

// ParseKey parses the private key of a pair that [NewKey] has generated, and returns a signer and the verifier key.
func ParseKey(private []byte) (note.Signer, string, error) {
	k, err := parseKey(private)
	if err != nil {
		return nil, "", err
	}
	return k.signer, k.public, nil
}
