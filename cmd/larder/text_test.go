package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/mattn/go-runewidth"
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
		if got := plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestErrorsAreText: an error that names a file cannot be a command to a terminal, or to a workflow of GitHub Actions.
func TestErrorsAreText(t *testing.T) {
	for _, name := range []string{"a\x1b[2J", "a\n::error::x", "##[error]x", "a\r::error::x"} {
		for _, command := range []string{"lint", "show-files"} {
			var out, errs strings.Builder
			if code := run(t.Context(), []string{command, "--", name}, nil, &out, &errs); code == exitDone {
				t.Errorf("%s %q: done", command, name)
			}
			if got := out.String() + errs.String(); strings.ContainsAny(got, "\x1b\r") || strings.Contains("\n"+got, "\n::") || strings.Contains(got, "##[") {
				t.Errorf("%s %q: %q", command, name, got)
			}
		}
	}
}

func TestCut(t *testing.T) {
	long := "A description that goes on and on and on"
	for _, tt := range []struct {
		text  string
		width int
		want  string
	}{
		{long, 0, long},
		{long, 30, "A description that goes on an…"},
		{long, 3, "A description that …"},
		{long, len(long), long},
		{strings.Repeat("日", 20), 21, strings.Repeat("日", 10) + "…"},
	} {
		if got := cut(tt.text, tt.width); got != tt.want {
			t.Errorf("%d: %q, want %q", tt.width, got, tt.want)
		}
	}
}

func TestWrap(t *testing.T) {
	words := []string{"3.7.1", "3.7.0", "3.6.4", "3.6.3"}
	if got, want := wrap(words, 0), []string{"3.7.1, 3.7.0, 3.6.4, 3.6.3"}; !slices.Equal(got, want) {
		t.Errorf("one line: %q", got)
	}
	if got, want := wrap(words, 20), []string{"3.7.1, 3.7.0, 3.6.4,", "3.6.3"}; !slices.Equal(got, want) {
		t.Errorf("20 columns: %q", got)
	}
	if got := wrap(nil, 20); strings.Join(got, "") != "" {
		t.Errorf("nothing: %q", got)
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("\x1b[2J\u202e\xff", 30)
	f.Fuzz(func(t *testing.T, text string, width int) {
		if got := cut(plain(text), width); strings.ContainsFunc(got, unprintable) || width > 0 && runewidth.StringWidth(got) > max(width, leastCut) {
			t.Errorf("%q", got)
		}
	})
}
