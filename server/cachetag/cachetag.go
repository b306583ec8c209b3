// Package cachetag names what an answer is about, in the header fields that the
// caches of CDNs index their copies by. Whoever withdraws a release tells the CDN one
// name instead of a thousand URLs.
//
// A tag is a token of RFC 9110, so it can stand in either field, and in a URL as it
// is. Different releases have different tags.
package cachetag

import "strings"

// Headers says in which fields the tags are sent.
type Headers string

// The choices. Fastly reads Surrogate-Key, most others Cache-Tag.
const (
	None         Headers = "none"
	CacheTag     Headers = "cache-tag"
	SurrogateKey Headers = "surrogate-key"
	Both         Headers = "both"
)

// All is the tag of everything that Larder tags.
const All = "larder"

// Package returns the tag of everything that is a package's.
func Package(name string) string { return pkg + token(name) }

// Version returns the tag of everything that is one release's.
func Version(name, version string) string { return ver + token(name) + "~" + token(version) }

const pkg, ver = "pkg~", "ver~"

// A Field is one header field; its name is canonical as net/http wants it.
type Field struct{ Name, Value string }

// Fields returns the fields of answers that are one release's; none where h is "".
func (h Headers) Fields(name, version string) []Field {
	r := h.Release(name, version)
	var fields []Field
	if r.cacheTag {
		fields = append(fields, Field{cacheTagName, string(r.appendTags(nil, ','))})
	}
	if r.surrogateKey {
		fields = append(fields, Field{surrogateKeyName, string(r.appendTags(nil, ' '))})
	}
	return fields
}

const cacheTagName, surrogateKeyName = "Cache-Tag", "Surrogate-Key"

// A Release is a release whose answers have fields, ready to be written. It keeps the
// name and the version that it was made from.
type Release struct {
	name, version          string // tokens
	cacheTag, surrogateKey bool
}

// Release returns the release whose answers have the fields h; the zero value where that is
// none.
func (h Headers) Release(name, version string) Release {
	r := Release{cacheTag: h == CacheTag || h == Both, surrogateKey: h == SurrogateKey || h == Both}
	if r.cacheTag || r.surrogateKey {
		r.name, r.version = token(name), token(version)
	}
	return r
}

// AppendLines appends the fields to the head of an answer as lines of HTTP/1.1, each of
// which begins a new one.
func (r Release) AppendLines(b []byte) []byte {
	if r.cacheTag {
		b = r.appendTags(append(b, "\r\n"+cacheTagName+": "...), ',')
	}
	if r.surrogateKey {
		b = r.appendTags(append(b, "\r\n"+surrogateKeyName+": "...), ' ')
	}
	return b
}

func (r Release) appendTags(b []byte, separator byte) []byte {
	b = append(append(b, All...), separator)
	b = append(append(append(b, pkg...), r.name...), separator)
	return append(append(append(append(b, ver...), r.name...), '~'), r.version...)
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
