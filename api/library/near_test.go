package library_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
)

// TestNear suggests names that are spelt like one that does not exist.
func TestNear(t *testing.T) {
	shelf := testkit.NewShelf(t)
	for _, name := range strings.Fields("axios react react-dom reactive Chart.js chartist bootstrap bootstrap-vue vue vuex node-forge d3 three.js jquery nprogress") {
		shelf.Register(name, strings.ReplaceAll(plainJSON, "plain", name))
		shelf.Publish(name, "1.0.0", "a.js", map[string]string{"a.js": name})
	}
	popular := map[string]float64{"react": 9, "axios": 8, "react-dom": 7, "bootstrap": 6}
	x := shelf.Index(library.Options{Popularity: func(l *library.Library) float64 { return popular[l.Name] }})
	for _, tt := range []struct{ name, want string }{
		{"nope", ""},
		{"reactt", "react"}, // react-dom begins otherwise
		{"reac", "react react-dom reactive"},
		{"raect", "react"},
		{"chart", "Chart.js chartist"},
		{"chrats", ""},
		{"boostrap", "bootstrap"},
		{"bootstrap-vue-next", "bootstrap bootstrap-vue"},
		{"vuee", "vue vuex"},
		{"jqeury", "jquery"},
		{"x", ""},
		{"", ""},
		{strings.Repeat("react", 100), ""},
	} {
		near, err := x.Near(t.Context(), tt.name, 5)
		if got := strings.Join(names(near), " "); err != nil || got != tt.want {
			t.Errorf("%.20s: %s, %v; want %s", tt.name, got, err, cmp.Or(tt.want, "nothing"))
		}
	}
	if near, err := x.Near(t.Context(), "reac", 1); err != nil || fmt.Sprint(names(near)) != "[react]" {
		t.Errorf("one of several: %v, %v", names(near), err)
	}
}
