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
	key, ok := strings.CutPrefix(escaped, Prefix)
	if !ok {
		return target{}, errNoFile
	}
	if strings.IndexByte(key, '%') < 0 {
		return split(key)
	}
	return decode(key)
}

// decode is split for a key that is percent-encoded.
func decode(key string) (target, error) {
	pkg, rest, _ := strings.Cut(key, "/")
	version, path, _ := strings.Cut(rest, "/")
	for _, part := range []*string{&pkg, &version, &path} {
		decoded, err := url.PathUnescape(*part)
		if err != nil {
			return target{}, errMalformed
		}
		*part = decoded
	}
	if strings.IndexByte(pkg, '/') >= 0 || strings.IndexByte(version, '/') >= 0 {
		return target{}, errMalformed
	}
	return split(pkg + "/" + version + "/" + path)
}

// special is what is no part of a name. NUL separates the parts of the store's keys.
var special = [256]bool{'/': true, '\\': true, 0: true}

// split checks a key, and returns the target that has it.
func split(key string) (target, error) {
	var ends [2]int // of package and version
	segments, begin, empty := 0, 0, false
	for i := 0; i <= len(key); i++ {
		for i < len(key) && !special[key[i]] {
			i++
		}
		if i < len(key) && key[i] != '/' {
			return target{}, errMalformed
		}
		segment := key[begin:i]
		if segment == "." || segment == ".." {
			return target{}, errMalformed
		}
		empty = empty || segment == ""
		if segments < len(ends) {
			ends[segments] = i
		}
		segments++
		begin = i + 1
	}
	if empty || segments <= len(ends) {
		return target{}, errNoFile
	}
	return target{pkg: key[:ends[0]], version: key[ends[0]+1 : ends[1]], path: key[ends[1]+1:], key: key}, nil
}

// clone returns a target that shares no memory with the request.
func (t target) clone() target {
	t.key = strings.Clone(t.key)
	if n := len(t.pkg) + 1 + len(t.version) + 1; n+len(t.path) == len(t.key) { // else it names no file
		t.pkg, t.version, t.path = t.key[:len(t.pkg)], t.key[len(t.pkg)+1:n-1], t.key[n:]
	}
	return t
}
