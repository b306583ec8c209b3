package server

import (
	"encoding/base64"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server/negotiate"
)

// codings is how many codings there are; they are numbered from 0.
const codings = int(coding.Gzip) + 1

// An entity tag is `"CONTENT.CODING.CODED"`: 16 bytes of the content's SHA-256,
// the coding, and 8 bytes of the SHA-256 of the coded bytes. So it is strong (RFC
// 9110 §8.8.1), every node gives the same, and a tag of an older coded form can
// be told from that of another content.
const (
	tagContentBytes = 16
	tagCodedBytes   = 8
)

var tagEncoding = base64.RawURLEncoding

// tagLength is that of every tag.
const tagLength = len(`"`) + (tagContentBytes*8+5)/6 + len(".id.") + (tagCodedBytes*8+5)/6 + len(`"`)

// appendTag appends the tag of a content in the representation r.
func appendTag(b []byte, content kvstore.Hash, r kvstore.Representation) []byte {
	name := [codings]string{coding.Identity: ".id.", coding.Brotli: ".br.", coding.Gzip: ".gz."}[r.Coding]
	b = tagEncoding.AppendEncode(append(b, '"'), content[:tagContentBytes])
	b = tagEncoding.AppendEncode(append(b, name...), r.Sum[:tagCodedBytes])
	return append(b, '"')
}

// isOlderForm reports whether tag names the same content in the same coding as
// current, in whatever bytes. Identity has one form only.
func isOlderForm(tag, current string) bool {
	i := strings.LastIndexByte(current, '.') + 1
	if len(tag) != len(current) || tag[:i] != current[:i] || strings.HasSuffix(current[:i], ".id.") {
		return false
	}
	if tag[len(tag)-1] != '"' {
		return false
	}
	_, err := tagEncoding.DecodeString(tag[i : len(tag)-1])
	return err == nil
}

// matchWeak looks for current in an If-None-Match field by weak comparison, and
// for older coded forms of the same. It returns the tag that the answer carries:
// current where the client has it, else the tag as the client sent it, because
// that is the one by which a cache finds what it may refresh (RFC 9111 §4.3.4).
func matchWeak(lines []string, current string) (tag string, ok bool) {
	if negotiate.IsAny(lines) {
		return current, true
	}
	for _, list := range lines {
		for {
			named, rest, more := negotiate.NextTag(list)
			if !more {
				break
			}
			switch {
			case named.Opaque == current && !named.Weak:
				return current, true
			case tag == "" && (named.Opaque == current || isOlderForm(named.Opaque, current)):
				tag = named.String()
			}
			list = rest
		}
	}
	return tag, tag != ""
}
