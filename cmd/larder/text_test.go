package main

import (
	"strings"
	"testing"
)

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
