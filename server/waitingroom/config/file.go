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

// Hash identifies the content of the file. It is that of the canonical form if there is one, which no release of the YAML encoder changes.
func (f File) Hash() string {
	if f.Canonical != nil {
		return Hash(f.Canonical)
	}
	return Hash(f.Text)
}

// Hash identifies the text of a file of rooms.
func Hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
