package coding

import "fmt"

// A Coding is one of the content codings a file is stored in (RFC 9110 §8.4.1).
// Its number is part of the store's format.
type Coding uint8

const (
	Identity Coding = 0 // the file's own bytes
	Brotli   Coding = 1 // RFC 7932
	Gzip     Coding = 2 // RFC 1952
)

// All lists the codings in which a file is compressed ahead of time.
var All = []Coding{Brotli, Gzip}

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
	switch name {
	case "identity":
		return Identity, true
	case "br":
		return Brotli, true
	case "gzip":
		return Gzip, true
	}
	return Identity, false
}

// Worthwhile reports whether a coded form of the given length is kept beside
// an identity of the given length.
func Worthwhile(identity, coded int) bool {
	return coded+identity/64 < identity
}
