package download

import (
	"errors"
	"net/url"
	"strings"
)

// Prefix is where whole releases are: Prefix + package + "/" + version + ".tar.gz"
// or ".zip".
const Prefix = "/download/"

// maxRequestLine bounds the request line in bytes, as for assets.
const maxRequestLine = 8 << 10

var (
	errMalformed  = errors.New("the path is malformed")
	errNoEndpoint = errors.New("the path has not the form of an archive's")
	errNoPackage  = errors.New("there is no such package")
	errNoVersion  = errors.New("the package has no such version")
)

// A target is the archive that a request names.
type target struct {
	pkg, version string
	format       format
}

// top is the folder in the archive that holds everything.
func (t target) top() string { return t.pkg + "-" + t.version }

// filename is what the archive is called where it is saved.
func (t target) filename() string { return t.top() + t.format.suffix() }

// rawPath returns the path as it came, percent-encoded. URL.EscapedPath is not
// always that: it encodes the decoded path anew where the client left bytes
// unencoded that it should not have, and every "%2F" is a "/" then.
func rawPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath() // what came is how it would encode it
}

// parseTarget reads the path of a request target as it came, percent-encoded. It
// decodes once, after splitting. The suffix is cut off once, from the right: what is
// left of it is the version, whatever that ends in.
//
// A path that could mean something else to a proxy or a file system, or that no
// key of the store can hold, is errMalformed; one of another form is errNoEndpoint.
func parseTarget(escaped string) (target, error) {
	rest, ok := strings.CutPrefix(escaped, Prefix)
	if !ok {
		return target{}, errNoEndpoint
	}
	var segments []string
	for segment := range strings.SplitSeq(rest, "/") {
		segment, err := url.PathUnescape(segment)
		if err != nil || isDots(segment) || strings.ContainsAny(segment, "/\\\x00") {
			return target{}, errMalformed
		}
		segments = append(segments, segment)
	}
	if len(segments) != 2 {
		return target{}, errNoEndpoint
	}
	for _, f := range formats {
		version, ok := strings.CutSuffix(segments[1], f.suffix())
		switch {
		case !ok:
			continue
		case isDots(version):
			return target{}, errMalformed
		case version == "" || segments[0] == "":
			return target{}, errNoEndpoint
		}
		return target{pkg: segments[0], version: version, format: f}, nil
	}
	return target{}, errNoEndpoint
}

func isDots(segment string) bool { return segment == "." || segment == ".." }
