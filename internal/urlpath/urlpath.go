// Package urlpath decodes names and file paths in percent-encoded paths of URLs: of requests to this server, and of files at other CDNs.
//
// Guarantees: a part is decoded once, after the path was split; nothing in it leads out of what it names; what is not encoded is read without an
// allocation. The package must not know what the names mean.
package urlpath

import (
	"errors"
	"net/url"
	"strings"
	"unicode/utf8"
)

var (
	// ErrMalformed says that a path could mean something else to a store, a proxy or a file
	// system than it means here.
	ErrMalformed = errors.New("the path is malformed")
	// ErrEmpty says that a part of a path is missing.
	ErrEmpty = errors.New("a part of the path is empty")
)

// DecodeName decodes a segment of a raw path that is a name: of a package, a version or a room. It decodes after the path was
// split, so that an encoded slash never moves the border between two segments; "+" is itself (RFC 3986). A name is valid UTF-8
// without slash, backslash and control characters, and neither "." nor "..". The error is [ErrEmpty] or [ErrMalformed].
func DecodeName(segment string) (string, error) {
	name, found, err := decode(segment)
	switch {
	case err != nil:
		return "", err
	case name == "":
		return "", ErrEmpty
	case found&(never|notInNames) != 0, name == ".", name == "..", found&notASCII != 0 && !utf8.ValidString(name):
		return "", ErrMalformed
	}
	return name, nil
}

// DecodeFile decodes the part of a raw path that is the path of a file in a release. It may have any byte but NUL and the
// backslash. None of its segments is empty, "." or "..", whether its slashes are encoded or not. The error is [ErrEmpty] or
// [ErrMalformed].
func DecodeFile(part string) (string, error) {
	file, found, err := decode(part)
	if err != nil {
		return "", err
	}
	if found&never != 0 {
		return "", ErrMalformed
	}
	empty := false
	for rest, more := file, true; more; {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		if len(segment) <= len("..") {
			if segment == "." || segment == ".." {
				return "", ErrMalformed
			}
			empty = empty || segment == ""
		}
	}
	if empty {
		return "", ErrEmpty
	}
	return file, nil
}

// A class is a set of kinds of bytes.
type class uint8

const (
	never      class = 1 << iota // NUL separates the parts of the store's keys, and some servers take a backslash for a slash
	notInNames                   // a slash, a control character
	notASCII
	percent
)

var classes = func() (of [256]class) {
	for c := range byte(' ') {
		of[c] = notInNames
	}
	for c := 0x80; c < len(of); c++ {
		of[c] = notASCII
	}
	of['/'], of[0x7f], of['%'] = notInNames, notInNames, percent
	of[0], of['\\'] = never, never
	return of
}()

// classesOf returns the classes of the bytes in s.
func classesOf(s string) (found class) {
	for i := range len(s) {
		found |= classes[s[i]]
	}
	return found
}

// decode percent-decodes a part of a path, and returns the classes of its bytes, encoded and decoded. The error is [ErrMalformed].
func decode(part string) (decoded string, found class, err error) {
	if found = classesOf(part); found&percent == 0 {
		return part, found, nil
	}
	if decoded, err = url.PathUnescape(part); err != nil {
		return "", 0, ErrMalformed
	}
	return decoded, found | classesOf(decoded), nil
}
