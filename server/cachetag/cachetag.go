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
func Package(name string) string { return "pkg~" + token(name) }

// Version returns the tag of everything that is one release's.
func Version(name, version string) string { return "ver~" + token(name) + "~" + token(version) }

// A Field is one header field; its name is canonical as net/http wants it.
type Field struct{ Name, Value string }

// Fields returns the fields of answers that are one release's; none where h is "".
func (h Headers) Fields(name, version string) []Field {
	tags := []string{All, Package(name), Version(name, version)}
	var fields []Field
	if h == CacheTag || h == Both {
		fields = append(fields, Field{"Cache-Tag", strings.Join(tags, ",")})
	}
	if h == SurrogateKey || h == Both {
		fields = append(fields, Field{"Surrogate-Key", strings.Join(tags, " ")})
	}
	return fields
}

// token encodes what separates or ends tags, and what some CDN refuses in one, as a
// URL would. Names and versions that the bot publishes have none of it.
func token(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for _, c := range []byte(s) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._+-", c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
