package server

import (
	"fmt"
	"strings"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// CacheTags reports whether responses name the release that they are about in the fields Cache-Tag and Surrogate-Key (which
// Fastly reads), so that the operator's CDN can purge a release by one name instead of a thousand URLs. A tag is a token of RFC
// 9110, so it can stand in either field, and in a URL as it is. Different releases have different tags.
type CacheTags bool

// allTag is the tag of everything that Larder tags.
const allTag = "larder"

// VersionCacheTag returns the cache tag of all responses about one release, by which a CDN can purge them.
func VersionCacheTag(name, version string) string {
	return versionTagPrefix + encodeTagToken(name) + "~" + encodeTagToken(version)
}

const packageTagPrefix, versionTagPrefix = "pkg~", "ver~"

// Fields returns the header fields with the cache tags of responses about one release; none if h is false.
func (h CacheTags) Fields(name, version string) []answers.Field {
	if !h {
		return nil
	}
	r := h.release(name, version)
	return []answers.Field{{Name: cacheTagName, Value: string(r.appendTags(nil, ','))}, {Name: surrogateKeyName, Value: string(r.appendTags(nil, ' '))}}
}

const cacheTagName, surrogateKeyName = "Cache-Tag", "Surrogate-Key"

// A releaseTags writes the header fields of a release's responses. It has name and version of the release as tokens; the zero value has no
// fields.
type releaseTags struct{ name, version string }

// release returns the writer of cache-tag fields for one release; the zero value, which writes none, if h is false.
func (h CacheTags) release(name, version string) releaseTags {
	if !h {
		return releaseTags{}
	}
	return releaseTags{encodeTagToken(name), encodeTagToken(version)}
}

// appendLines appends the cache-tag fields to b, the head of a response, as lines of HTTP/1.1, each preceded by a line break. The zero value appends
// nothing.
func (r releaseTags) appendLines(b []byte) []byte {
	if r == (releaseTags{}) {
		return b
	}
	b = r.appendTags(append(b, "\r\n"+cacheTagName+": "...), ',')
	return r.appendTags(append(b, "\r\n"+surrogateKeyName+": "...), ' ')
}

var cacheTagBlock, surrogateKeyBlock = h2.AppendableName(strings.ToLower(cacheTagName)), h2.AppendableName(strings.ToLower(surrogateKeyName))

// appendBlock appends the cache-tag fields to b, a header block of HTTP/2. The zero value appends nothing.
func (r releaseTags) appendBlock(b []byte) []byte {
	if r == (releaseTags{}) {
		return b
	}
	n := len(allTag) + len(packageTagPrefix) + len(versionTagPrefix) + 2*len(r.name) + len(r.version) + len(",,~")
	b = r.appendTags(h2.AppendLength(append(b, cacheTagBlock...), n), ',')
	return r.appendTags(h2.AppendLength(append(b, surrogateKeyBlock...), n), ' ')
}

// appendTags appends three tags to b with separator between them: that of everything, that of the package, and that of the release.
func (r releaseTags) appendTags(b []byte, separator byte) []byte {
	b = append(append(b, allTag...), separator)
	b = append(append(append(b, packageTagPrefix...), r.name...), separator)
	return append(append(append(append(b, versionTagPrefix...), r.name...), '~'), r.version...)
}

// encodeTagToken percent-encodes the characters of s that separate or end tags, or that some CDN refuses in a tag. Names and versions
// that the bot publishes have no such characters.
func encodeTagToken(s string) string {
	if !strings.ContainsFunc(s, func(c rune) bool { return c > 0x7f || !isPlainInTag(byte(c)) }) {
		return s
	}
	var b strings.Builder
	for _, c := range []byte(s) {
		if isPlainInTag(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// isPlainInTag reports whether a byte stands for itself in a cache tag: an ASCII letter or digit, or one of . _ + -
func isPlainInTag(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._+-", c) >= 0
}
