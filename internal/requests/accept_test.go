package requests

import (
	"strings"
	"testing"
)

func TestPrefersJSON(t *testing.T) {
	for _, test := range []struct {
		accept string
		want   bool
	}{
		{"", false}, {"*/*", false}, {"application/json", true}, {"APPLICATION/JSON;q=0.1", true}, {"application/*", true}, {"text/*, application/json", true},
		{"text/plain, application/json", false}, {"application/json, text/plain, */*", false}, {"application/json, */*", true},
		{"application/json;q=0", false}, {"text/plain;q=0.5, application/json;q=0.6", true}, {"application/json;q=0, */*", false}, {"image/png", false},
		{"application/json;charset=utf-8;q=0.2, text/*;q=0.3", false}, {"text/html", false}, {strings.Repeat("a/b,", 1000) + "application/json", false}, {",;,=;q", false},
	} {
		if got := PrefersJSON([]string{test.accept}); got != test.want {
			t.Errorf("PrefersJSON(%q) = %v, want %v", test.accept, got, test.want)
		}
	}
	if PrefersJSON(nil) {
		t.Error("a request without Accept gets JSON")
	}
}

func FuzzAccept(f *testing.F) {
	for _, field := range []string{"application/json, */*;q=0.5", "text/*;q=0,application/*", ",;,=;q"} {
		f.Add(field, "text/plain")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		if a, b := PrefersJSON([]string{first, second}), PrefersJSON([]string{first + "," + second}); a != b {
			t.Fatalf("two lines are %v, one list of both is %v", a, b)
		}
		if PrefersJSON([]string{first, second, "text/plain;q=1"}) && !PrefersJSON([]string{first, second}) {
			t.Fatal("JSON is preferred because text is accepted too")
		}
	})
}
