package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/text"
)

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		s                 string
		n                 int
		cut, runes, short string
	}{
		{"", 0, "", "", ""},
		{"abc", 0, "", "", "…"},
		{"abc", 3, "abc", "abc", "abc"},
		{"abcdef", 4, "abcd", "abcd", "a…"},
		{"ab cdef", 6, "ab cde", "ab cde", "ab…"},
		{"größe", 3, "gr", "grö", "…"},
		{"größe", 4, "grö", "größ", "g…"},
		{"文字文字", 7, "文字", "文字文字", "文…"},
		{"\x80\x80\x80\x80\x80\x80\x80\x80", 7, "\x80\x80\x80", "\x80\x80\x80\x80\x80\x80\x80", "…"},
	} {
		if got := text.Cut(tt.s, tt.n); got != tt.cut {
			t.Errorf("%q cut to %d bytes is %q, want %q", tt.s, tt.n, got, tt.cut)
		}
		if got := text.CutRunes(tt.s, tt.n); got != tt.runes {
			t.Errorf("%q cut to %d characters is %q, want %q", tt.s, tt.n, got, tt.runes)
		}
		if got := text.Short(tt.s, tt.n); got != tt.short {
			t.Errorf("%q in %d bytes is %q, want %q", tt.s, tt.n, got, tt.short)
		}
	}
}

func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "plain, größe": "plain, größe", "a\nb\tc\r": "a b c ", "\x1b[31mred": " [31mred", "a\u202eb\u2028c": "a b c", "\xffa\xfe\xfe": " a  ",
	} {
		if got := text.Line(s, ' '); got != want {
			t.Errorf("%q on a line is %q, want %q", s, got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, tt := range []struct{ name, known, want string }{
		{"upp", "serve up", "up"},
		{"sevre", "serve verify", "serve"},
		{"lissten", "data listen", "listen"},
		{"sesion_duration", "name session_duration", "session_duration"},
		{"fileName", "name filename", "filename"},
		{"uri", "url type", "url"},
		{"abcd", "abcx abc", "abc"},
		{"pth", "path", "path"},
		{"aa", "a b", "a"},
		{"x", "X y", "X"},
		{"1.3.1", "1.3.0 1.1.1 1.2.0", "1.1.1"},
		{"größe", "grösse Größ", "Größ"},
		{"x", "y", ""},
		{"to", "ox", ""},
		{"mitisc", "mit isc", ""},
		{"relaesess", "releases", ""},
		{"frobnicate", "serve up", ""},
		{"", "a", ""},
		{strings.Repeat("a", 1<<20), "a", ""},
	} {
		got, ok := text.Nearest(tt.name, strings.Fields(tt.known))
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%.20q is taken for %q, want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("größe", 3)
	f.Add("a\xff\x80", 2)
	f.Fuzz(func(t *testing.T, s string, n int) {
		if n < 0 {
			return
		}
		if cut := text.Cut(s, n); len(cut) > n || !strings.HasPrefix(s, cut) || len(s) > n && len(cut) <= n-utf8.UTFMax && utf8.ValidString(s) {
			t.Errorf("%q cut to %d bytes is %q", s, n, cut)
		} else if utf8.ValidString(s) && !utf8.ValidString(cut) {
			t.Errorf("%q cut to %d bytes is %q, which splits a character", s, n, cut)
		}
		if short := text.Short(s, n); len(short) > max(n, len("…")) {
			t.Errorf("%q in %d bytes is %q", s, n, short)
		}
		if runes := text.CutRunes(s, n); utf8.RuneCountInString(runes) > n || !strings.HasPrefix(s, runes) {
			t.Errorf("the first %d characters of %q are %q", n, s, runes)
		}
	})
}
