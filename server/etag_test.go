package server

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

func tags() (current, older, other, identity string) {
	content := kvstore.Sum([]byte("content"))
	tag := func(content kvstore.Hash, c coding.Coding, coded string) string {
		return string(appendETag(nil, content, kvstore.Representation{Coding: c, Sum: kvstore.Sum([]byte(coded))}))
	}
	return tag(content, coding.Brotli, "now"), tag(content, coding.Brotli, "before"),
		tag(kvstore.Sum([]byte("other")), coding.Brotli, "now"), tag(content, coding.Identity, "content")
}

func TestTag(t *testing.T) {
	current, _, _, identity := tags()
	// The same on every node and in every release of Larder: caches have them.
	if want := `"7XACtDnprIRfIjV9giusFA.br.7V65o34tgjE"`; current != want {
		t.Errorf("the tag is %s, want %s", current, want)
	}
	if want := `"7XACtDnprIRfIjV9giusFA.id.7XACtDnprIQ"`; identity != want {
		t.Errorf("the tag is %s, want %s", identity, want)
	}
}

func TestMatchWeak(t *testing.T) {
	current, older, other, identity := tags()
	gzip := strings.Replace(older, ".br.", ".gz.", 1)
	for _, test := range []struct {
		field string
		want  string // "" for no match
	}{
		{current, current},
		{"W/" + current, "W/" + current},
		{"*", current},
		{" * ", current},
		{older, older},
		{"W/" + older, "W/" + older},
		{older + ", " + current, current},
		{"W/" + current + "," + current, current},
		{`"x",` + older, older},
		{`"x", "y,z", ` + current, current},
		{"  ,, " + current + "\t,", current},
		{other, ""},
		{identity, ""},
		{gzip, ""},
		{"", ""},
		{strings.Trim(current, `"`), ""},
		{current[:len(current)-1], ""},
		{current[:len(current)-2] + `"`, ""},
		{older[:len(older)-2] + `!"`, ""},
		{"w/" + current, ""},
		{`"x" ` + current, ""},
		{current + ` "x"`, ""},
		{`x, ` + current, ""},
		{"*, " + current, ""},
	} {
		got, ok := matchWeak([]string{test.field}, current)
		if got != test.want || ok != (test.want != "") {
			t.Errorf("matchWeak(%s) = %s, %v, want %s", test.field, got, ok, test.want)
		}
	}
	// Identity has one form, so an older one cannot be.
	if tag, ok := matchWeak([]string{identity[:len(identity)-3] + `AA"`}, identity); ok {
		t.Errorf("the tag %s matches %s", tag, identity)
	}
}

func FuzzMatchWeak(f *testing.F) {
	current, older, _, _ := tags()
	for _, field := range []string{current, older, "W/" + current, "*", `"a", "b`, `,,"",W/""`, `"` + "\x7f" + `"`} {
		f.Add(field)
	}
	f.Fuzz(func(t *testing.T, field string) {
		tag, ok := matchWeak([]string{field}, current)
		if ok && tag != current && (!strings.Contains(field, tag) || !isOlderEncoding(strings.TrimPrefix(tag, "W/"), current) && tag != "W/"+current) {
			t.Fatalf("matchWeak answers with %q, which the client did not send", tag)
		}
		if strings.ContainsAny(tag, "\r\n\x00") {
			t.Fatalf("the tag %q would split the header", tag)
		}
		if !requests.IfNoneMatch([]string{field}, current) && !ok {
			t.Fatal("a match without older forms is none with them")
		}
	})
}
