package main

import (
	"io"
	"strings"
	"testing"
)

// TestCommandsSideBySide runs commands in several goroutines, as tests that run in parallel do. The race detector sees what they
// share.
func TestCommandsSideBySide(t *testing.T) {
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for _, test := range []struct {
				args []string
				code int
			}{
				{[]string{"--help"}, exitDone},
				{[]string{"version", "--json"}, exitDone},
				{[]string{"fsck", "--data", t.TempDir()}, exitFailed},
				{[]string{"serve", "--no-such-flag"}, exitUsage},
			} {
				if code := run(t.Context(), test.args, nil, io.Discard, io.Discard); code != test.code {
					t.Errorf("larder %q ended with %d, want %d", test.args, code, test.code)
				}
			}
		})
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
