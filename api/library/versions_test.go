package library_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
)

func TestVersion(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("plain", plainJSON)
	shelf.Publish("plain", "1.0.0", "a.js", map[string]string{"a.js": "a", "b.js": "b"})
	shelf.Publish("plain", "2.0.0", "a.js", map[string]string{"a.js": "a"})
	shelf.Withdraw("plain", "2.0.0", "a mistake")
	x := shelf.Index(library.Options{})
	v, err := x.Version(t.Context(), "plain", "1.0.0")
	if err != nil || v.Version != "1.0.0" || v.Files != 2 {
		t.Errorf("%+v %v", v, err)
	}
	if _, err := x.Version(t.Context(), "nothing", "1.0.0"); !errors.Is(err, library.ErrNoLibrary) {
		t.Errorf("an unknown library: %v", err)
	}
	for _, version := range []string{"3.0.0", "", "..", "\x00"} {
		if _, err := x.Version(t.Context(), "plain", version); !errors.Is(err, library.ErrNoVersion) {
			t.Errorf("version %q: %v", version, err)
		}
	}
	var withdrawn *library.WithdrawnError
	if _, err := x.Version(t.Context(), "plain", "2.0.0"); !errors.As(err, &withdrawn) {
		t.Errorf("a withdrawn version: %v", err)
	}
}

func TestReleases(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("plain", plainJSON)
	for _, version := range []string{"1.9.0", "1.10.0", "2.0.0", "1.0.0"} {
		shelf.Publish("plain", version, "a.js", map[string]string{"a.js": version})
	}
	shelf.Withdraw("plain", "1.9.0", "a mistake")
	x := shelf.Index(library.Options{})
	var versions []string
	for r, err := range x.Releases(t.Context(), "plain") {
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Files) != 1 || r.Files[0].Path != "a.js" {
			t.Errorf("%s has the files %v", r.Version, r.Files)
		}
		versions = append(versions, r.Version)
	}
	if want := []string{"2.0.0", "1.10.0", "1.0.0"}; !reflect.DeepEqual(versions, want) {
		t.Errorf("releases %q, want %q", versions, want)
	}
	for _, name := range []string{"", "nothing", "a\x00b"} {
		for r, err := range x.Releases(t.Context(), name) {
			t.Errorf("%q has %v, %v", name, r, err)
		}
	}
	for range x.Releases(t.Context(), "plain") {
		break // which must let go of the store
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for r, err := range x.Releases(gone, "plain") {
		if r != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("after the end: %v, %v", r, err)
		}
	}
}
