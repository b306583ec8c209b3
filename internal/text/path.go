package text

import (
	"errors"
	"net/url"
	"strings"
	"unicode/utf8"
)

var (
	// ErrMalformedPath says that a path could mean something else to a store, a proxy or a file
	// system than it means here.
	ErrMalformedPath = errors.New("the path is malformed")
	// ErrEmptyPathPart says that a part of a path is missing.
	ErrEmptyPathPart = errors.New("a part of the path is empty")
)

// DecodePathName decodes a segment of a raw path that is a name: of a package, a version or a room. It decodes after the path was
// split, so that an encoded slash never moves the border between two segments; "+" is itself (RFC 3986). A name is valid UTF-8
// without slash, backslash and control characters, and neither "." nor "..". The error is [ErrEmptyPathPart] or [ErrMalformedPath].
func DecodePathName(segment string) (string, error) {
	name, found, err := decodePathPart(segment)
	switch {
	case err != nil:
		return "", err
	case name == "":
		return "", ErrEmptyPathPart
	case found&(never|notInNames) != 0, name == ".", name == "..", found&notASCII != 0 && !utf8.ValidString(name):
		return "", ErrMalformedPath
	}
	return name, nil
}

// DecodePathFile decodes the part of a raw path that is the path of a file in a release, without a slash in front. It may have any byte
// but NUL and the backslash. None of its segments is empty, "." or "..", whether its slashes are encoded or not. The error is
// [ErrEmptyPathPart] or [ErrMalformedPath].
func DecodePathFile(part string) (string, error) {
	file, found, err := decodePathPart(part)
	if err != nil {
		return "", err
	}
	if found&never != 0 {
		return "", ErrMalformedPath
	}
	empty := false
	for rest, more := file, true; more; {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		if len(segment) <= len("..") {
			if segment == "." || segment == ".." {
				return "", ErrMalformedPath
			}
			empty = empty || segment == ""
		}
	}
	if empty {
		return "", ErrEmptyPathPart
	}
	return file, nil
}

// A pathClass is a set of kinds of bytes.
type pathClass uint8

const (
	never      pathClass = 1 << iota // NUL separates the parts of the store's keys, and some servers take a backslash for a slash
	notInNames                       // a slash, a control character
	notASCII
	percent
)

var pathClasses = func() (of [256]pathClass) {
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

// pathClassesOf returns the classes of the bytes in s.
func pathClassesOf(s string) (found pathClass) {
	for i := range len(s) {
		found |= pathClasses[s[i]]
	}
	return found
}

// decodePathPart percent-decodes a part of a path, and returns the classes of its bytes, encoded and decoded. The error is [ErrMalformedPath].
func decodePathPart(part string) (decoded string, found pathClass, err error) {
	if found = pathClassesOf(part); found&percent == 0 {
		return part, found, nil
	}
	if decoded, err = url.PathUnescape(part); err != nil {
		return "", 0, ErrMalformedPath
	}
	return decoded, found | pathClassesOf(decoded), nil
}
