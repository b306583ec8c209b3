package download

import (
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/cachetag"
)

// An answer is what the headers say of an archive, known before it is made.
type answer struct {
	tag         string
	released    time.Time // to the second; zero where upstream does not say
	contentType string
	disposition string
	tags        []cachetag.Field
}

func newAnswer(t target, v views.Version, tags cachetag.Headers) answer {
	// 16 bytes of the manifest's hash, which covers every byte of every file,
	// the format, and the form that the archive has in it.
	const manifestBytes = 16
	return answer{
		tag:         `"` + base64.RawURLEncoding.EncodeToString(v.Manifest[:manifestBytes]) + t.format.suffix() + "." + archiveForm + `"`,
		released:    v.Released.UTC().Truncate(time.Second),
		contentType: t.format.contentType(),
		disposition: disposition(t.filename()),
		tags:        tags.Fields(t.pkg, t.version),
	}
}

// crossOrigin goes with every answer, failures included: without it a script
// cannot even see why it failed.
func crossOrigin(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Timing-Allow-Origin", "*")
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	h.Set("X-Content-Type-Options", "nosniff")
}

func (a answer) setFields(w http.ResponseWriter) {
	h := w.Header()
	crossOrigin(h)
	h.Set("Content-Type", a.contentType)
	h.Set("Content-Disposition", a.disposition)
	h.Set("Etag", a.tag)
	if !a.released.IsZero() {
		h.Set("Last-Modified", a.released.Format(http.TimeFormat))
	}
	h.Set("Cache-Control", cacheForever)
	h.Set("Accept-Ranges", "none")
	a.setTags(h)
}

func (a answer) setTags(h http.Header) {
	for _, f := range a.tags {
		h.Set(f.Name, f.Value)
	}
}

// sendNotModified repeats what a cache may have to update, and nothing that
// describes the body it does not have (RFC 9110 §15.4.5).
func (a answer) sendNotModified(w http.ResponseWriter) outcome {
	h := w.Header()
	crossOrigin(h)
	h.Set("Etag", a.tag)
	h.Set("Cache-Control", cacheForever)
	a.setTags(h)
	w.WriteHeader(http.StatusNotModified)
	return outNotModified
}

// preflight answers OPTIONS as assets do: every release may be read by everyone.
func preflight(w http.ResponseWriter) outcome {
	h := w.Header()
	crossOrigin(h)
	h.Set("Allow", allowedMethods)
	h.Set("Access-Control-Allow-Methods", allowedMethods)
	h.Set("Access-Control-Allow-Headers", "*")
	h.Set("Access-Control-Max-Age", "86400")
	h.Set("Cache-Control", noStore)
	w.WriteHeader(http.StatusNoContent)
	return outPreflight
}

// unchangedSince evaluates If-Modified-Since (RFC 9110 §13.1.3).
func (a answer) unchangedSince(lines []string) bool {
	since, ok := parseDate(lines)
	return ok && !a.released.IsZero() && !a.released.After(since)
}

// changedSince evaluates If-Unmodified-Since (RFC 9110 §13.1.4).
func (a answer) changedSince(lines []string) bool {
	since, ok := parseDate(lines)
	return ok && a.released.After(since)
}

// parseDate reads an HTTP date (RFC 9110 §5.6.7). A field that is absent,
// repeated or malformed is ignored.
func parseDate(lines []string) (time.Time, bool) {
	if len(lines) != 1 {
		return time.Time{}, false
	}
	t, err := http.ParseTime(lines[0])
	return t, err == nil
}

// disposition has a client save the archive under that name (RFC 6266). Names and
// versions that the bot publishes are plain; what others published may not be, and
// then "filename" is an approximation and "filename*" (RFC 8187) the name. In
// either, what a file system could take for more than a name is an underscore.
func disposition(filename string) string {
	const hex = "0123456789ABCDEF"
	var plain, extended strings.Builder
	exact := true
	for _, r := range strings.ToValidUTF8(filename, "_") {
		if r < ' ' || 0x7f <= r && r < 0xa0 || strings.ContainsRune(`/\:*?"<>|`, r) {
			r = '_'
		}
		if r > 0x7e || r == '%' { // some clients decode "%" in either
			exact = false
			plain.WriteByte('_')
		} else {
			plain.WriteRune(r)
		}
		for _, b := range []byte(string(r)) {
			if isAttrChar(b) {
				extended.WriteByte(b)
			} else {
				extended.Write([]byte{'%', hex[b>>4], hex[b&15]})
			}
		}
	}
	d := `attachment; filename="` + plain.String() + `"`
	if !exact {
		d += "; filename*=UTF-8''" + extended.String()
	}
	return d
}

// isAttrChar reports whether RFC 8187 §3.2.1 lets a byte stand for itself.
func isAttrChar(b byte) bool {
	return '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z' || strings.IndexByte("!#$&+-.^_`|~", b) >= 0
}
