package server

import (
	"testing"

	"github.com/larder-cdn/larder/kvstore/coding"
)

func TestParseQuality(t *testing.T) {
	for _, test := range []struct {
		in   string
		want int // -1 for malformed
	}{
		{"0", 0}, {"0.", 0}, {"0.0", 0}, {"0.000", 0}, {"0.5", 500}, {"0.25", 250}, {"0.001", 1}, {"0.999", 999},
		{"1", 1000}, {"1.", 1000}, {"1.0", 1000}, {"1.000", 1000},
		{"", -1}, {".5", -1}, {"1.001", -1}, {"1.5", -1}, {"2", -1}, {"0.1234", -1}, {"-0", -1}, {"+1", -1}, {"01", -1}, {"0,5", -1}, {"0x1", -1}, {"0.5 ", -1}, {"1e0", -1},
	} {
		got, ok := parseQuality(test.in)
		if want := test.want >= 0; ok != want || ok && got != test.want {
			t.Errorf("parseQuality(%q) = %d, %v, want %d", test.in, got, ok, test.want)
		}
	}
}

func TestPrefersJSON(t *testing.T) {
	for _, test := range []struct {
		accept string
		want   bool
	}{
		{"", false}, {"*/*", false}, {"application/json", true}, {"APPLICATION/JSON;q=0.1", true}, {"application/*", true}, {"text/*, application/json", true},
		{"text/plain, application/json", false}, {"application/json, text/plain, */*", false}, {"application/json, */*", true},
		{"application/json;q=0", false}, {"text/plain;q=0.5, application/json;q=0.6", true}, {"application/json;q=0, */*", false}, {"image/png", false},
		{"application/json;charset=utf-8;q=0.2, text/*;q=0.3", false}, {"text/html", false}, {",;,=;q", false},
	} {
		if got := prefersJSON([]string{test.accept}); got != test.want {
			t.Errorf("prefersJSON(%q) = %v, want %v", test.accept, got, test.want)
		}
	}
	if prefersJSON(nil) {
		t.Error("a request without Accept gets JSON")
	}
}

// The request scripts in testdata/negotiation.txt have the table; this has what
// holds for every field.
func FuzzAcceptEncoding(f *testing.F) {
	for _, field := range []string{"gzip, deflate, br, zstd", "br;q=0.5, *;q=0", "identity;q=0", ";q=1,,gzip ; q = 1", "*", "x-gzip;Q=0.001", "br;q=9"} {
		f.Add(field, "gzip")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		a := parseAcceptEncoding([]string{first, second})
		for c, w := range a {
			if w < refused || w > 2000 {
				t.Fatalf("%v has the weight %d", coding.Coding(c), w)
			}
		}
		if b := parseAcceptEncoding([]string{first + "," + second}); a != b {
			t.Fatalf("two lines are %v, one list of both is %v", a, b)
		}
		if b := parseAcceptEncoding([]string{second, first}); a != b {
			t.Fatalf("in one order %v, in the other %v", a, b)
		}
		if b := parseAcceptEncoding([]string{first, second, "br;q=1"}); b[coding.Brotli] != 2000 {
			t.Fatalf("br at full weight became %d", b[coding.Brotli])
		}
		prefersJSON([]string{first, second})
	})
}
