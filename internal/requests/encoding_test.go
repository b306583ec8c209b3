package requests

import (
	"strings"
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

func TestChoose(t *testing.T) {
	br, gzip, identity := Representation{coding.Brotli, 90}, Representation{coding.Gzip, 100}, Representation{coding.Identity, 300}
	all := []Representation{identity, gzip, br}
	for _, test := range []struct {
		field string
		forms []Representation
		want  int // -1 for none
	}{
		{"gzip, deflate, br, zstd", all, 2},
		{"gzip", all, 1},
		{"br;q=0.5, gzip", all, 1},
		{"br;q=0.5, gzip;q=0.5", all, 2},
		{"br;q=0.5, gzip;q=0.5", []Representation{{coding.Gzip, 80}, br}, 0},
		{"br, gzip, identity", []Representation{br, gzip, {coding.Identity, 10}}, 2},
		{"identity, br;q=0.9", all, 0},
		{"deflate", all, 0},
		{"", all, 0},
		{"*", all, 2},
		{"*;q=0", all, -1},
		{"identity;q=0", all, -1},
		{"identity;q=0, gzip;q=0.001", all, 1},
		{"br", []Representation{gzip, identity}, 1},
		{"br", []Representation{gzip}, -1},
		{"br", nil, -1},
	} {
		if got := ParseAcceptEncoding([]string{test.field}).Choose(test.forms); got != test.want {
			t.Errorf("%q chooses %d of %v, want %d", test.field, got, test.forms, test.want)
		}
	}
	if got := ParseAcceptEncoding(nil).Choose(all); got != 0 {
		t.Errorf("without the field %v is chosen, want identity", all[got])
	}
}

func TestNothingIsAllocated(t *testing.T) {
	encoding := []string{"gzip;q=0.5, br, zstd", "identity;q=0"}
	tags := []string{`"x", W/"y"`, `"z"`}
	forms := []Representation{{coding.Brotli, 1}, {coding.Identity, 2}}
	if n := testing.AllocsPerRun(100, func() {
		ParseAcceptEncoding(encoding).Choose(forms)
		ifMatch(tags, `"z"`)
		IfNoneMatch(tags, `"y"`)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The table of whole requests is in the scripts of package server; this has what
// holds for every field.
func FuzzAcceptEncoding(f *testing.F) {
	for _, field := range []string{"gzip, deflate, br, zstd", "br;q=0.5, *;q=0", "identity;q=0", ";q=1,,gzip ; q = 1", "*", "x-gzip;Q=0.001", "br;q=9"} {
		f.Add(field, "gzip")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		a := ParseAcceptEncoding([]string{first, second})
		for c := range coding.Gzip + 1 {
			if w := a.Of(c); w < Refused || w > 2000 {
				t.Fatalf("%v has the weight %d", c, w)
			}
		}
		if b := ParseAcceptEncoding([]string{first + "," + second}); a != b {
			t.Fatalf("two lines are %v, one list of both is %v", a, b)
		}
		spaced := func(line string) string { return strings.ReplaceAll(line, ",", "\t, ") + " " }
		if b := ParseAcceptEncoding([]string{spaced(first), spaced(second)}); a != b {
			t.Fatalf("without white space %v, with it %v", a, b)
		}
		if b := ParseAcceptEncoding([]string{second, first}); a != b {
			t.Fatalf("in one order %v, in the other %v", a, b)
		}
		if b := ParseAcceptEncoding([]string{first, second, "br;q=1"}); b.Of(coding.Brotli) != 2000 {
			t.Fatalf("br at full weight became %d", b.Of(coding.Brotli))
		}
	})
}

func TestPrefer(t *testing.T) {
	for field, want := range map[string]coding.Coding{
		"":                            coding.Identity,
		"gzip, deflate, br, zstd":     coding.Brotli,
		"gzip":                        coding.Gzip,
		"br;q=0.5, gzip":              coding.Gzip,
		"br;q=0.5, gzip;q=0.5":        coding.Brotli,
		"br;q=0.5, identity;q=0.9":    coding.Identity,
		"*":                           coding.Brotli,
		"br;q=0, *":                   coding.Gzip,
		"identity;q=0":                coding.Identity,
		"*;q=0":                       coding.Identity,
		"identity;q=0, gzip;q=0.001":  coding.Gzip,
		"gzip;q=0.001, identity;q=.5": coding.Gzip, // a malformed member says nothing
	} {
		var lines []string
		if field != "" {
			lines = []string{field}
		}
		if got := ParseAcceptEncoding(lines).PreferredCoding(); got != want {
			t.Errorf("%q: %v, want %v", field, got, want)
		}
	}
}

// TestUnknownCoding holds that a coding of a damaged row is neither sent nor the end of the process.
func TestUnknownCoding(t *testing.T) {
	if w := ParseAcceptEncoding([]string{"*, br, gzip, dcz"}).Of(coding.DCZ + 1); w != Refused {
		t.Errorf("its weight is %d, want that it is refused", w)
	}
}
