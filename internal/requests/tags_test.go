package requests

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	const current = `"now"`
	for _, test := range []struct {
		field        string
		strong, weak bool // whether current is found
	}{
		{`"now"`, true, true},
		{`W/"now"`, false, true},
		{`w/"now"`, false, false},
		{"*", true, true},
		{" *\t", true, true},
		{`*, "now"`, false, false},
		{`"x", "y,z",,	"now" , "w"`, true, true},
		{`"x", W/"now"`, false, true},
		{`W/"now", "now"`, true, true},
		{`"other"`, false, false},
		{`now`, false, false},
		{`"now`, false, false},
		{`"x" "now"`, false, false},
		{`x, "now"`, false, false},
		{`"now" "x"`, false, false},
		{"\"\x7f\", \"now\"", false, false},
		{`""`, false, false},
		{"", false, false},
	} {
		lines := []string{test.field}
		if got := ifMatch(lines, current); got != test.strong {
			t.Errorf("match(%s) = %v, want %v", test.field, got, test.strong)
		}
		if got := IfNoneMatch(lines, current); got != !test.weak {
			t.Errorf("NoneMatch(%s) = %v, want %v", test.field, got, !test.weak)
		}
	}
	if !ifMatch(nil, current) || !IfNoneMatch(nil, current) {
		t.Error("a field that is absent does not hold")
	}
	if two := []string{`"x"`, `"now"`}; !ifMatch(two, current) || IfNoneMatch(two, current) {
		t.Error("the second line is not read")
	}
}

func FuzzEntityTags(f *testing.F) {
	for _, field := range []string{`"now"`, `W/"now"`, "*", `"a", "b`, `,,"",W/""`, "\"\x7f\""} {
		f.Add(field, `"x"`)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		const current = `"now"`
		lines := []string{first, second}
		if ifMatch(lines, current) && IfNoneMatch(lines, current) {
			t.Fatal("a match is strong and not weak")
		}
		if !ifMatch([]string{first, second, current}, current) {
			t.Fatal("a tag on a line of its own is not found")
		}
		for list := first; ; {
			tag, rest, ok := CutTag(list)
			if !ok {
				break
			}
			if !strings.Contains(first, tag.String()) || len(rest) >= len(list) {
				t.Fatalf("%q gives the tag %v and leaves %q", list, tag, rest)
			}
			if strings.ContainsAny(tag.Opaque, "\r\n\x00") {
				t.Fatalf("the tag %q would split the header", tag.Opaque)
			}
			list = rest
		}
	})
}
