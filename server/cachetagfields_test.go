package server

import (
	"reflect"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/answers"
)

func TestCacheTagFields(t *testing.T) {
	tag := answers.Field{Name: "Cache-Tag", Value: "larder,pkg~htmx.org,ver~htmx.org~2.0.0-rc.1+b"}
	key := answers.Field{Name: "Surrogate-Key", Value: "larder pkg~htmx.org ver~htmx.org~2.0.0-rc.1+b"}
	for h, want := range map[CacheTags][]answers.Field{
		false: nil, true: {tag, key},
	} {
		if got := h.Fields("htmx.org", "2.0.0-rc.1+b"); !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v, want %v", h, got, want)
		}
		var lines strings.Builder
		lines.WriteString("HTTP/1.1 200 OK")
		for _, f := range want {
			lines.WriteString("\r\n" + f.Name + ": " + f.Value)
		}
		release := h.release("htmx.org", "2.0.0-rc.1+b")
		if got := string(release.appendLines([]byte("HTTP/1.1 200 OK"))); got != lines.String() {
			t.Errorf("%v: %q, want %q", h, got, lines.String())
		}
	}
}

func FuzzVersionCacheTag(f *testing.F) {
	f.Add("a", "1", "a", "1.0")
	f.Add("a~b", "1", "a", "b~1")
	f.Add("a, b", "1\n", "ä", "")
	f.Fuzz(func(t *testing.T, name, version, otherName, otherVersion string) {
		tag, other := VersionCacheTag(name, version), VersionCacheTag(otherName, otherVersion)
		if (tag == other) != (name == otherName && version == otherVersion) {
			t.Errorf("%q %q is %q, and %q %q is %q", name, version, tag, otherName, otherVersion, other)
		}
		if i := strings.IndexFunc(tag, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}*`, r) }); i >= 0 {
			t.Errorf("%q has %q", tag, tag[i])
		}
	})
}
