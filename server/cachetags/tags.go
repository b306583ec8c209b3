// Package cachetags names the release that a response is about in header fields, by which a CDN in front purges it.
package cachetags

import (
	"strings"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// Headers reports whether responses name the release that they are about in the fields Cache-Tag and Surrogate-Key (which
// Fastly reads), so that the operator's CDN can purge a release by one name instead of a thousand URLs. A tag is a token of RFC
// 9110, so it can stand in either field, and in a URL as it is. Different releases have different tags.
type Headers bool

// AllTag is the tag of everything that Larder tags.
const AllTag = "larder"

// VersionTag returns the cache tag of all responses about one release, by which a CDN can purge them.
func VersionTag(name, version string) string {
	return versionPrefix + encodeToken(name) + "~" + encodeToken(version)
}

const packagePrefix, versionPrefix = "pkg~", "ver~"

// Fields returns the header fields with the cache tags of responses about one release; none if h is false.
func (h Headers) Fields(name, version string) []answers.Field {
	if !h {
		return nil
	}
	r := h.Release(name, version)
	return []answers.Field{{Name: cacheTagName, Value: string(r.appendTags(nil, ','))}, {Name: surrogateKeyName, Value: string(r.appendTags(nil, ' '))}}
}

const cacheTagName, surrogateKeyName = "Cache-Tag", "Surrogate-Key"

// A Release writes the header fields of a release's responses. It has name and version of the release as tokens; the zero value has no
// fields.
type Release struct{ name, version string }

// Release returns the writer of cache-tag fields for one release; the zero value, which writes none, if h is false.
func (h Headers) Release(name, version string) Release {
	if !h {
		return Release{}
	}
	return Release{encodeToken(name), encodeToken(version)}
}

// AppendLines appends the cache-tag fields to b, the head of a response, as lines of HTTP/1.1, each preceded by a line break. The zero value appends
// nothing.
func (r Release) AppendLines(b []byte) []byte {
	if r == (Release{}) {
		return b
	}
	b = r.appendTags(append(b, "\r\n"+cacheTagName+": "...), ',')
	return r.appendTags(append(b, "\r\n"+surrogateKeyName+": "...), ' ')
}

var cacheTagBlock, surrogateKeyBlock = h2.AppendableName(strings.ToLower(cacheTagName)), h2.AppendableName(strings.ToLower(surrogateKeyName))

// AppendBlock appends the cache-tag fields to b, a header block of HTTP/2. The zero value appends nothing.
func (r Release) AppendBlock(b []byte) []byte {
	if r == (Release{}) {
		return b
	}
	n := len(AllTag) + len(packagePrefix) + len(versionPrefix) + 2*len(r.name) + len(r.version) + len(",,~")
	b = r.appendTags(h2.AppendLength(append(b, cacheTagBlock...), n), ',')
	return r.appendTags(h2.AppendLength(append(b, surrogateKeyBlock...), n), ' ')
}

// appendTags appends three tags to b with separator between them: that of everything, that of the package, and that of the release.
func (r Release) appendTags(b []byte, separator byte) []byte {
	b = append(append(b, AllTag...), separator)
	b = append(append(append(b, packagePrefix...), r.name...), separator)
	return append(append(append(append(b, versionPrefix...), r.name...), '~'), r.version...)
}

// encodeToken percent-encodes the characters of s that separate or end tags, or that some CDN refuses in a tag. Names and versions
// that the bot publishes have no such characters.
func encodeToken(s string) string {
	odd := func(c rune) bool { return c > 0x7f || !isPlain(byte(c)) }
	if strings.IndexFunc(s, odd) < 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range []byte(s) {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// isPlain reports whether a byte stands for itself in a cache tag: an ASCII letter or digit, or one of . _ + -
func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._+-", c) >= 0
}
