package urlpath

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParts(t *testing.T) {
	for _, tt := range []struct {
		part       string
		name, file any // what is read, or the error
	}{
		{"jquery", "jquery", "jquery"},
		{"a%62c", "abc", "abc"},
		{"1.0.0+2%2B3", "1.0.0+2+3", "1.0.0+2+3"},
		{"%C3%BC%20%25", "ü %", "ü %"},
		{"ü", "ü", "ü"},
		{"%252e%252e", "%2e%2e", "%2e%2e"},
		{"1%3F2%23", "1?2#", "1?2#"},
		{"...", "...", "..."},
		{"..a", "..a", "..a"},
		{"", ErrEmpty, ErrEmpty},
		{"a/b", ErrMalformed, "a/b"},
		{"a%2Fb", ErrMalformed, "a/b"},
		{"a//b", ErrMalformed, ErrEmpty},
		{"a/", ErrMalformed, ErrEmpty},
		{"a%2f", ErrMalformed, ErrEmpty},
		{"/a", ErrMalformed, ErrEmpty},
		{".", ErrMalformed, ErrMalformed},
		{"..", ErrMalformed, ErrMalformed},
		{"%2e", ErrMalformed, ErrMalformed},
		{"%2E.", ErrMalformed, ErrMalformed},
		{"a/../b", ErrMalformed, ErrMalformed},
		{"a/..%2fb", ErrMalformed, ErrMalformed},
		{"a//..", ErrMalformed, ErrMalformed},
		{`a\b`, ErrMalformed, ErrMalformed},
		{"a%5Cb", ErrMalformed, ErrMalformed},
		{"a\x00", ErrMalformed, ErrMalformed},
		{"a%00", ErrMalformed, ErrMalformed},
		{"%", ErrMalformed, ErrMalformed},
		{"%2", ErrMalformed, ErrMalformed},
		{"%zz", ErrMalformed, ErrMalformed},
		{"a%0Ab", ErrMalformed, "a\nb"},
		{"a%7F", ErrMalformed, "a\x7f"},
		{"a\tb", ErrMalformed, "a\tb"},
		{"%FF", ErrMalformed, "\xff"},
		{"\xff", ErrMalformed, "\xff"},
	} {
		for _, read := range []struct {
			as   string
			from func(string) (string, error)
			want any
		}{{"a name", DecodeName, tt.name}, {"a file", DecodeFile, tt.file}} {
			got, err := read.from(tt.part)
			if want, ok := read.want.(error); ok && (!errors.Is(err, want) || got != "") || !ok && (err != nil || got != read.want) {
				t.Errorf("%q as %s is %q (%v), want %q", tt.part, read.as, got, err, read.want)
			}
		}
	}
}

func FuzzParts(f *testing.F) {
	for _, part := range []string{"jquery.js", "a%20b%2Bc", "%2e%2e", "a/..%2fb", "a%5c", "%00", "%", "\xff/ü", "%252e%252e", "a//b", ".", ""} {
		f.Add(part)
	}
	f.Fuzz(func(t *testing.T, part string) {
		decoded, broken := url.PathUnescape(part)
		file, err := DecodeFile(part)
		switch {
		case err != nil:
			if err != ErrMalformed && err != ErrEmpty || file != "" {
				t.Fatalf("the file of %q is %q: %v", part, file, err)
			}
		case broken != nil || file != decoded:
			t.Fatalf("the file of %q is %q, and decoded once that is %q (%v)", part, file, decoded, broken)
		case strings.ContainsAny(file, "\x00\\"):
			t.Fatalf("the file %q holds what it must not", file)
		default:
			for segment := range strings.SplitSeq(file, "/") {
				if segment == "" || segment == "." || segment == ".." {
					t.Fatalf("the file %q has the segment %q", file, segment)
				}
			}
		}
		name, nameErr := DecodeName(part)
		if nameErr == nil && (err != nil || name != file || strings.ContainsAny(name, "/\n\x7f") || !utf8.ValidString(name)) {
			t.Fatalf("the name of %q is %q, and the file %q (%v)", part, name, file, err)
		}
	})
}
