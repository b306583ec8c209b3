package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/mattn/go-runewidth"

	"github.com/larder-cdn/larder/internal/text"
)

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
		if got := cutText(tt.text, tt.width); got != tt.want {
			t.Errorf("%d: %q, want %q", tt.width, got, tt.want)
		}
	}
}

func TestWrap(t *testing.T) {
	words := []string{"3.7.1", "3.7.0", "3.6.4", "3.6.3"}
	if got, want := wrapWords(words, 0), []string{"3.7.1, 3.7.0, 3.6.4, 3.6.3"}; !slices.Equal(got, want) {
		t.Errorf("one line: %q", got)
	}
	if got, want := wrapWords(words, 20), []string{"3.7.1, 3.7.0, 3.6.4,", "3.6.3"}; !slices.Equal(got, want) {
		t.Errorf("20 columns: %q", got)
	}
	if got := wrapWords(nil, 20); strings.Join(got, "") != "" {
		t.Errorf("nothing: %q", got)
	}
}

func FuzzCut(f *testing.F) {
	f.Add("\x1b[2J\u202e\xff", 30)
	f.Fuzz(func(t *testing.T, said string, width int) {
		if got := cutText(text.Plain(said), width); got != text.Plain(got) || width > 0 && runewidth.StringWidth(got) > max(width, leastCut) {
			t.Errorf("%q", got)
		}
	})
}
