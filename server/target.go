package server

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// Prefix is where assets are: Prefix + package + "/" + version + "/" + path.
const Prefix = "/ajax/libs/"

// maxRequestLine bounds the request line in bytes: method, target and version.
// A longer one is answered with 414 (RFC 9110 §15.5.15).
const maxRequestLine = 8 << 10

var (
	errNoFile    = errors.New("the path names no file")
	errMalformed = errors.New("the path is malformed")
)

// A target is the file that a request names.
type target struct {
	pkg, version, path string
	// key is the three joined by slashes. It is unambiguous, because neither
	// of the first two holds one.
	key string
}

// Route returns a handler that answers assets' paths with assets, and the others
// with rest. Unlike http.ServeMux it leaves every path as it is.
//
// What only resembles an asset's path is for assets too, which answers 404 or 400:
// an encoded prefix, slashes too many, or dots that lead there. The failures of a
// site that gets its URLs slightly wrong are then like all failures of assets: a
// script may see them and no cache keeps them for long.
func Route(assets, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if resemblesAsset(r.URL.Path) {
			assets.ServeHTTP(w, r)
		} else {
			rest.ServeHTTP(w, r)
		}
	})
}

func resemblesAsset(decoded string) bool {
	if strings.HasPrefix(decoded, Prefix) {
		return true
	}
	clean := path.Clean("/" + decoded)
	return clean == "/ajax" || strings.HasPrefix(clean, "/ajax/")
}

// rawPath returns the path as it came, percent-encoded. URL.EscapedPath is not
// always that: it encodes the decoded path anew where the client left bytes
// unencoded that it should not have, and every "%2F" is a "/" then.
func rawPath(u *url.URL) string {
	if u.RawPath != "" {
		return u.RawPath
	}
	return u.EscapedPath() // what came is how it would encode it
}

// parseTarget reads the path of a request target as it came, percent-encoded.
// It decodes once, after splitting, so that an encoded slash never moves the
// border between package, version and path. "+" is itself (RFC 3986).
//
// A path that could mean something outside of its version to a store, a proxy or
// a file system is errMalformed; one that has too few parts is errNoFile.
func parseTarget(escaped string) (target, error) {
	rest, ok := strings.CutPrefix(escaped, Prefix)
	if !ok {
		return target{}, errNoFile
	}
	pkg, rest, _ := strings.Cut(rest, "/")
	version, path, _ := strings.Cut(rest, "/")
	t := target{pkg: pkg, version: version, path: path, key: escaped[len(Prefix):]}
	if strings.IndexByte(escaped, '%') >= 0 {
		var err error
		if t, err = t.decode(); err != nil {
			return target{}, err
		}
	}
	return t, t.check()
}

func (t target) decode() (target, error) {
	for _, part := range []*string{&t.pkg, &t.version, &t.path} {
		decoded, err := url.PathUnescape(*part)
		if err != nil {
			return target{}, errMalformed
		}
		*part = decoded
	}
	t.key = t.pkg + "/" + t.version + "/" + t.path
	return t, nil
}

// clone returns a target that shares no memory with the request.
func (t target) clone() target {
	t.key = strings.Clone(t.key)
	if n := len(t.pkg) + 1 + len(t.version) + 1; n+len(t.path) == len(t.key) { // else it names no file
		t.pkg, t.version, t.path = t.key[:len(t.pkg)], t.key[len(t.pkg)+1:n-1], t.key[n:]
	}
	return t
}

func (t target) check() error {
	// NUL separates the parts of the store's keys.
	if strings.ContainsAny(t.key, "\\\x00") {
		return errMalformed
	}
	if isDots(t.pkg) || isDots(t.version) {
		return errMalformed
	}
	if strings.IndexByte(t.pkg, '/') >= 0 || strings.IndexByte(t.version, '/') >= 0 {
		return errMalformed
	}
	empty := t.pkg == "" || t.version == ""
	for rest, more := t.path, true; more; {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		if isDots(segment) {
			return errMalformed
		}
		empty = empty || segment == ""
	}
	if empty {
		return errNoFile
	}
	return nil
}

func isDots(segment string) bool { return segment == "." || segment == ".." }
