package text

import (
	"strings"
	"testing"
)

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "",
		"Date  picker":                     "Date  picker",
		"naïve 日本語":                        "naïve 日本語",
		"two\nlines":                       "two lines",
		"\x1b[31mred\x1b]0;title\a":        "[31mred ]0;title",
		"\u202egnp.exe":                    "gnp.exe",
		"a\u2028b":                         "a b",
		"half a character \xe6":            "half a character \ufffd",
		"clear \u009b2J and a\tnew page\f": "clear 2J and a new page",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("\x1b[2J\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		if got := Plain(text); strings.ContainsFunc(got, Unprintable) {
			t.Errorf("%q", got)
		}
	})
}
