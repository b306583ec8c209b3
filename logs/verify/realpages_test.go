package verify_test

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs/verify"
)

// TestRealPages: pages that people have written give no false alarm. All hosts that they name are declared as their own, so nothing in
// them may be unproven; and every script of the report is one that Chromium loads.
func TestRealPages(t *testing.T) {
	paths, err := filepath.Glob("testdata/realpages/*.html")
	if err != nil || len(paths) < 30 {
		t.Fatalf("%d pages, %v", len(paths), err)
	}
	s := newPageServer(t)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s.pages = append(s.pages, generatedPage{data: strings.ReplaceAll(string(data), "https://", "http://"), contentType: "text/html"}) // the server has no certificates
	}
	requests := s.browse(t)
	scripts := 0
	for n, path := range paths {
		var own []string
		for _, r := range s.verify(t, n).References {
			if u, err := url.Parse(r.URL); err == nil && u.Host != "" {
				own = append(own, u.Scheme+"://"+u.Host+"/")
			}
		}
		report := s.verify(t, n, own...)
		if report.Outcome != verify.Own && report.Outcome != verify.Nothing {
			t.Errorf("%s is %s", path, report.Outcome)
		}
		for _, r := range report.References {
			if r.Outcome != verify.Own {
				t.Errorf("%s, line %d: %s %s is %s: %s", path, r.Line, r.Kind, r.URL, r.Outcome, r.Problem)
			}
			for _, f := range r.Findings {
				if f.Error {
					t.Errorf("%s, line %d: %s: %s", path, r.Line, r.URL, f.Message)
				}
			}
			if r.Kind != verify.ClassicScript && r.Kind != verify.ModuleScript {
				continue
			}
			scripts++
			if !slices.Contains(requests[n], r.URL) {
				t.Errorf("%s, line %d: Chromium does not load %s", path, r.Line, r.URL)
			}
		}
	}
	t.Logf("%d pages with %d scripts", len(paths), scripts)
	if scripts < len(paths) {
		t.Error("that is too few to compare")
	}
}
