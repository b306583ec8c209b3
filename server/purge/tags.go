package purge

import (
	"strings"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// TagHeaders says in which fields an answer names the release it is of, so that the operator's CDN can purge a
// release by one name instead of a thousand URLs. A tag is a token of RFC 9110, so it can stand in either field, and in
// a URL as it is. Different releases have different tags.
type TagHeaders string

// The choices. Fastly reads Surrogate-Key, most others Cache-Tag.
const (
	NoTags       TagHeaders = "none"
	CacheTag     TagHeaders = "cache-tag"
	SurrogateKey TagHeaders = "surrogate-key"
	BothTags     TagHeaders = "both"
)

// AllTag is the tag of everything that Larder tags.
const AllTag = "larder"

// VersionTag returns the tag of everything that is one release's.
func VersionTag(name, version string) string {
	return versionPrefix + token(name) + "~" + token(version)
}

const packagePrefix, versionPrefix = "pkg~", "ver~"

// Fields returns the fields of answers that are one release's; none where h is "".
func (h TagHeaders) Fields(name, version string) []answers.Field {
	r := h.Release(name, version)
	var fields []answers.Field
	if r.cacheTag {
		fields = append(fields, answers.Field{Name: cacheTagName, Value: string(r.appendTags(nil, ','))})
	}
	if r.surrogateKey {
		fields = append(fields, answers.Field{Name: surrogateKeyName, Value: string(r.appendTags(nil, ' '))})
	}
	return fields
}

const cacheTagName, surrogateKeyName = "Cache-Tag", "Surrogate-Key"

// A TaggedRelease has the header fields of a release's responses, ready to be written, with the
// name and the version of the release.
type TaggedRelease struct {
	name, version          string // tokens
	cacheTag, surrogateKey bool
}

// Release returns the release whose answers have the fields h; the zero value where that is
// none.
func (h TagHeaders) Release(name, version string) TaggedRelease {
	r := TaggedRelease{cacheTag: h == CacheTag || h == BothTags, surrogateKey: h == SurrogateKey || h == BothTags}
	if r.cacheTag || r.surrogateKey {
		r.name, r.version = token(name), token(version)
	}
	return r
}

// AppendLines appends the fields to the head of an answer as lines of HTTP/1.1, each of
// which begins a new one.
func (r TaggedRelease) AppendLines(b []byte) []byte {
	if r.cacheTag {
		b = r.appendTags(append(b, "\r\n"+cacheTagName+": "...), ',')
	}
	if r.surrogateKey {
		b = r.appendTags(append(b, "\r\n"+surrogateKeyName+": "...), ' ')
	}
	return b
}

var cacheTagBlock, surrogateKeyBlock = h2.AppendableName(strings.ToLower(cacheTagName)), h2.AppendableName(strings.ToLower(surrogateKeyName))

// AppendBlock appends the fields to a header block of HTTP/2.
func (r TaggedRelease) AppendBlock(b []byte) []byte {
	n := len(AllTag) + len(packagePrefix) + len(versionPrefix) + 2*len(r.name) + len(r.version) + len(",,~")
	if r.cacheTag {
		b = r.appendTags(h2.AppendLength(append(b, cacheTagBlock...), n), ',')
	}
	if r.surrogateKey {
		b = r.appendTags(h2.AppendLength(append(b, surrogateKeyBlock...), n), ' ')
	}
	return b
}

func (r TaggedRelease) appendTags(b []byte, separator byte) []byte {
	b = append(append(b, AllTag...), separator)
	b = append(append(append(b, packagePrefix...), r.name...), separator)
	return append(append(append(append(b, versionPrefix...), r.name...), '~'), r.version...)
}

// token encodes what separates or ends tags, and what some CDN refuses in one, as a
// URL would. Names and versions that the bot publishes have none of it.
func token(s string) string {
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

func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._+-", c) >= 0
}
