package main

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/app"
)

func TestFindingsAreWritten(t *testing.T) {
	for want, findings := range map[string][]app.Finding{
		"Nothing is wrong with ./data.\n":            nil,
		"disk: it is full\n    df -h\na: b\n    c\n": {{Check: "disk", Cause: "it is full", Fix: "df -h"}, {Check: "a", Cause: "b", Fix: "c"}},
	} {
		var out strings.Builder
		if err := writeFindings(&out, findings, "./data"); err != nil || out.String() != want {
			t.Errorf("%q, %v; want %q", out.String(), err, want)
		}
	}
}
