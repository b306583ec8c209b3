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
	pool := worker.NewPool(worker.Options{Program: program, Size: 1, Timeout: MinifyTimeout})
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
