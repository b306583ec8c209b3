package text

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPathParts(t *testing.T) {
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
		{"", ErrEmptyPathPart, ErrEmptyPathPart},
		{"a/b", ErrMalformedPath, "a/b"},
		{"a%2Fb", ErrMalformedPath, "a/b"},
		{"a//b", ErrMalformedPath, ErrEmptyPathPart},
		{"a/", ErrMalformedPath, ErrEmptyPathPart},
		{"a%2f", ErrMalformedPath, ErrEmptyPathPart},
		{"/a", ErrMalformedPath, ErrEmptyPathPart},
		{".", ErrMalformedPath, ErrMalformedPath},
		{"..", ErrMalformedPath, ErrMalformedPath},
		{"%2e", ErrMalformedPath, ErrMalformedPath},
		{"%2E.", ErrMalformedPath, ErrMalformedPath},
		{"a/../b", ErrMalformedPath, ErrMalformedPath},
		{"a/..%2fb", ErrMalformedPath, ErrMalformedPath},
		{"a//..", ErrMalformedPath, ErrMalformedPath},
		{`a\b`, ErrMalformedPath, ErrMalformedPath},
		{"a%5Cb", ErrMalformedPath, ErrMalformedPath},
		{"a\x00", ErrMalformedPath, ErrMalformedPath},
		{"a%00", ErrMalformedPath, ErrMalformedPath},
		{"%", ErrMalformedPath, ErrMalformedPath},
		{"%2", ErrMalformedPath, ErrMalformedPath},
		{"%zz", ErrMalformedPath, ErrMalformedPath},
		{"a%0Ab", ErrMalformedPath, "a\nb"},
		{"a%7F", ErrMalformedPath, "a\x7f"},
		{"a\tb", ErrMalformedPath, "a\tb"},
		{"%FF", ErrMalformedPath, "\xff"},
		{"\xff", ErrMalformedPath, "\xff"},
	} {
		for _, read := range []struct {
			as   string
			from func(string) (string, error)
			want any
		}{{"a name", DecodePathName, tt.name}, {"a file", DecodePathFile, tt.file}} {
			got, err := read.from(tt.part)
			if want, ok := read.want.(error); ok && (!errors.Is(err, want) || got != "") || !ok && (err != nil || got != read.want) {
				t.Errorf("%q as %s is %q (%v), want %q", tt.part, read.as, got, err, read.want)
			}
		}
	}
}

func FuzzPathParts(f *testing.F) {
	for _, part := range []string{"jquery.js", "a%20b%2Bc", "%2e%2e", "a/..%2fb", "a%5c", "%00", "%", "\xff/ü", "%252e%252e", "a//b", ".", ""} {
		f.Add(part)
	}
	f.Fuzz(func(t *testing.T, part string) {
		decoded, broken := url.PathUnescape(part)
		file, err := DecodePathFile(part)
		switch {
		case err != nil:
			if err != ErrMalformedPath && err != ErrEmptyPathPart || file != "" {
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
		name, nameErr := DecodePathName(part)
		if nameErr == nil && (err != nil || name != file || strings.ContainsAny(name, "/\n\x7f") || !utf8.ValidString(name)) {
			t.Fatalf("the name of %q is %q, and the file %q (%v)", part, name, file, err)
		}
	})
}
