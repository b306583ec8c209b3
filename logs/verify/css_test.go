package verify

import (
	"strings"
	"testing"
)

func TestStyleReferences(t *testing.T) {
	tests := []struct{ text, imports, urls string }{
		{"", "", ""},
		{"@import 'a.css';", "a.css", ""},
		{`@import "a.css" screen and (min-width: 1px);@import url(b.css);@import url( "c.css" ) print;`, "a.css b.css c.css", ""},
		{"@IMPORT/**/url(a.css)", "a.css", ""},
		{`@\69mport 'a.css'`, "a.css", ""},
		{"@charset 'utf-8'; @import 'a.css'", "a.css", ""},
		{"/* @import 'a.css' */ b { }", "", ""},
		{"a { content: \"@import 'a.css'; url(b)\" }", "", ""},
		{"a { background: url(b.png), URL( 'c.png' ) }", "", "b.png c.png"},
		{`a { background: url(a\29 b.png) } c { d: u\72l(e) }`, "", "a)b.png e"},
		{"@font-face { src: url(a.eot); src: url(a.eot?#iefix) format('x'), url(\"a.woff2\") }", "", "a.eot a.eot?#iefix a.woff2"},
		{"a { b: myurl(c) } #url { } .x-url(d) {}", "", ""},
		{"@import; url(a)", "", "a"},
		{"@media print { @import 'a.css' }", "a.css", ""},
		{"@import 'a\\\nb.css'", "ab.css", ""},
		{"url(", "", ""},
		{"@import '", "", ""},
		{"a { b: 'c\rd } e { f: url(g) }", "", "g"},
		{"a { b: 'c\fd } @import 'e.css'", "e.css", ""},
		{"a { b: 'c\\\r\nurl(d)' }", "", ""},
		{"\\", "", ""},
		{"a\\", "", ""},
		{"/*", "", ""},
	}
	for _, tt := range tests {
		imports, urls := styleReferences(tt.text)
		if got := strings.TrimSpace(strings.Join(imports, " ")); got != tt.imports {
			t.Errorf("%q imports %q, want %q", tt.text, got, tt.imports)
		}
		if got := strings.TrimSpace(strings.Join(urls, " ")); got != tt.urls {
			t.Errorf("%q loads %q, want %q", tt.text, got, tt.urls)
		}
	}
}

// A style sheet is a stranger's: reading it ends, and makes no more of it than there is.
func FuzzStyleReferences(f *testing.F) {
	for _, seed := range []string{"@import 'a.css';", "a { b: url(c\\29 d) }", "/* \\", "@\\0import url('a", "\\\n", "@import\xff'\\\xff'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		imports, urls := styleReferences(text)
		base := &webURL{scheme: "https", host: "a.example", path: "/b.css"}
		n := 0
		for _, to := range append(imports, urls...) {
			n += len(to)
			_, _ = parseWebURL(to, base)
		}
		if n > 3*len(text) || len(imports)+len(urls) > len(text) { // an escape of one byte may stand for three
			t.Errorf("%d bytes in %d addresses of %d bytes", n, len(imports)+len(urls), len(text))
		}
	})
}
