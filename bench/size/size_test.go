//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/bench/internal/stage"
)

// Everything that is measured works, over a store of three libraries.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the program")
	}
	larder := stage.BuiltLarder(t)
	cache := t.TempDir()
	args := []string{"-larder", larder, "-cache", cache, "-files", "5000", "-rounds", "1"}
	m := &measurement{options: options{larder: larder, files: 5000}, folder: filepath.Join(cache, "5000-49")}
	if got := m.libraries(); got != 3 {
		t.Fatalf("%d libraries, want 3", got)
	}
	if err := run(t.Context(), append(args, "-only", "none")); err != nil {
		t.Fatal(err)
	}
	m.follow, m.rounds = 1<<40, 1
	if err := m.all(t.Context()); err != nil { // bounds are for a machine that does nothing else
		t.Fatal(err)
	}
	for _, what := range []string{"backup", "mirror"} {
		if _, err := os.Stat(filepath.Join(m.folder, what)); err == nil {
			t.Errorf("the %s is left", what)
		}
	}
	if len(m.results) != 29 {
		t.Errorf("%d measurements, want 29: %v", len(m.results), m.results)
	}
}

// A bound is the most, or the least, that is right.
func TestBounds(t *testing.T) {
	for _, test := range []struct {
		result
		met bool
	}{
		{result{value: 1, bound: 2}, true},
		{result{value: 2, bound: 2}, true},
		{result{value: 3, bound: 2}, false},
		{result{value: 1, bound: 2, least: true}, false},
		{result{value: 2, bound: 2, least: true}, true},
		{result{value: 3, bound: 2, least: true}, true},
	} {
		if test.result.met() != test.met {
			t.Errorf("%+v: met is %v", test.result, !test.met)
		}
	}
	m := &measurement{results: []result{{what: "much", value: 2, bound: 1}}}
	if err := m.report(); err == nil {
		t.Error("what is beyond its bound is no error")
	}
}
