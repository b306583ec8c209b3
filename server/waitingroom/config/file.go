package config

import (
	"crypto/sha256"
	"encoding/hex"
)

// A File is a file of waiting rooms that a process has read.
type File struct {
	Name    string
	Text    []byte
	Default bool // no setting names a file, and this is the default
	// Canonical is, for rooms that stand in a larger file, a form that only depends on their values; else nil.
	Canonical []byte
}

// Hash returns the SHA-256 hash, in hexadecimal, of the file's content. It is that of the canonical form if the file has one,
// because no release of the YAML encoder changes that.
func (f File) Hash() string {
	if f.Canonical != nil {
		return Hash(f.Canonical)
	}
	return Hash(f.Text)
}

// Hash returns the SHA-256 hash, in hexadecimal, of the text of a file of rooms.
func Hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
