package packages_test

import (
	"reflect"
	"testing"

	"github.com/larder-cdn/larder/packages"
)

func TestAlike(t *testing.T) {
	const composed, decomposed = "caf\u00e9.js", "cafe\u0301.js"
	for _, tt := range []struct {
		name  string
		paths []string
		want  [][]string
	}{
		{"none", []string{"a.js", "b.js", "a/b.js", "ab.js"}, nil},
		{"case", []string{"a.js", "b.js", "A.js"}, [][]string{{"A.js", "a.js"}}},
		{"case of a folder", []string{"Lib/a.js", "lib/a.js", "lib/b.js"}, [][]string{{"Lib/a.js", "lib/a.js"}}},
		{"form", []string{decomposed, composed}, [][]string{{decomposed, composed}}},
		{"both", []string{composed, "CAFE\u0301.JS", "cafe.js"}, [][]string{{"CAFE\u0301.JS", composed}}},
		{"one path twice", []string{"a.js", "a.js"}, nil},
		{"one of two twice", []string{"a.js", "A.js", "a.js"}, [][]string{{"A.js", "a.js"}}},
		{"several", []string{"z.js", "y.js", "Z.js", "Y.js", "y.JS"}, [][]string{{"Y.js", "y.JS", "y.js"}, {"Z.js", "z.js"}}},
		{"letters beyond ASCII", []string{"\u00dc.js", "\u00fc.js", "\u03a3.js", "\u03c2.js", "\u03c3.js"}, [][]string{{"\u00dc.js", "\u00fc.js"}, {"\u03a3.js", "\u03c2.js", "\u03c3.js"}}},
		{"no UTF-8", []string{"\xff.js", "\xfe.js"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := packages.Alike(tt.paths); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
