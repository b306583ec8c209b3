package ingest

import (
	"os"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/packages"
)

// TestMinifyingIsBounded holds that a release whose files take the minifier long has no more of them minified.
func TestMinifyingIsBounded(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pool := worker.NewPool(worker.Options{Program: program, Size: 1, Timeout: worker.Timeout})
	t.Cleanup(pool.Close)
	a := &assembly{pipeline: &pipeline{minifiers: pool}, pendingRelease: pendingRelease{pkg: &packages.Package{Name: "jar"}, version: "1.0.0"}}
	small, err := a.minify(t.Context(), worker.MinifyJS, []byte("var jar = 1 ;"))
	if err != nil || len(small) == 0 || a.minifying == 0 {
		t.Errorf("%q after %v: %v", small, a.minifying, err)
	}
	a.minifying = maxMinifying
	if _, err := a.minify(t.Context(), worker.MinifyJS, []byte("var jar = 1 ;")); err == nil || !strings.Contains(err.Error(), "limit for one release") {
		t.Errorf("after the limit: %v", err)
	}
}

// TestBusyMachineDecidesNothing holds that a release is tried again later if the machine ended the minifier, or what finds the format of a script,
// or could not start it. A file that the minifier refuses is published without a minified form.
func TestBusyMachineDecidesNothing(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		options worker.Options
		fails   bool
	}{
		"out of time": {worker.Options{Program: program, Timeout: 1}, true}, "no process": {worker.Options{Program: "/nonexistent/larder"}, true}, "refused": {worker.Options{Program: program}, false},
	} {
		tt.options.Size = 1
		pool := worker.NewPool(tt.options)
		t.Cleanup(pool.Close)
		a := &assembly{pipeline: &pipeline{minifiers: pool}, pendingRelease: pendingRelease{pkg: &packages.Package{Name: "jar"}, version: "1.0.0"}}
		if _, err := a.isModule(t.Context(), "jar@1.0.0", "jar.js", []byte("export default =")); (err != nil) != tt.fails {
			t.Errorf("%s: the format: %v", name, err)
		}
		if _, err := a.minify(t.Context(), worker.MinifyJS, []byte("var =")); err == nil || worker.IsTransient(err) != tt.fails {
			t.Errorf("%s: the minified form: %v", name, err)
		}
	}
}
