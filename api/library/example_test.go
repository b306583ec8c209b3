package library_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
)

// Example must find a file in every store that serves one: no main file is needed, and no index is running.
func TestExample(t *testing.T) {
	shelf := testkit.NewShelf(t)
	check := func(want string) {
		t.Helper()
		path, err := library.Example(shelf.Store)
		if want == "" && !errors.Is(err, kvstore.ErrNotFound) || want != "" && (err != nil || path != want) {
			t.Errorf("got %q and %v, want %q", path, err, want)
		}
	}
	check("")
	shelf.Register("plain", plainJSON)
	check("")
	shelf.Publish("plain", "1.0.0", "", map[string]string{"b.js": "no main file", "c.js": "nor here"})
	check("/ajax/libs/plain/1.0.0/b.js")
	shelf.Register("Chart.js", chartJSON)
	check("/ajax/libs/plain/1.0.0/b.js")
	shelf.Publish("Chart.js", "1.10.0", "chart.min.js", map[string]string{"a.js": "first", "chart.min.js": "ten"})
	check("/ajax/libs/Chart.js/1.10.0/chart.min.js")
	shelf.Withdraw("Chart.js", "1.10.0", "a test")
	check("/ajax/libs/plain/1.0.0/b.js")
	shelf.Withdraw("plain", "1.0.0", "a test")
	check("")
}

// A store has more packages in front of the published one than Example examines for a main file.
func TestExampleBehindManyPackages(t *testing.T) {
	shelf := testkit.NewShelf(t)
	for n := range 1001 {
		name := fmt.Sprintf("a%04d", n)
		shelf.Register(name, fmt.Sprintf(`{"name":%q,"description":"Waits.","keywords":["a"],"repository":{"type":"git","url":"https://git.example/a.git"}}`, name))
	}
	shelf.Register("plain", plainJSON)
	shelf.Publish("plain", "1.0.0", "main.js", map[string]string{"main.js": "it is served"})
	if path, err := library.Example(shelf.Store); err != nil || path != "/ajax/libs/plain/1.0.0/main.js" {
		t.Errorf("got %q and %v", path, err)
	}
}
