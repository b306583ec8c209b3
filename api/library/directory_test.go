package library

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs/views"
)

func TestNearFiles(t *testing.T) {
	r := &Release{}
	for _, path := range []string{"css/bootstrap-grid.css", "css/bootstrap.css", "css/bootstrap.min.css", "js/bootstrap.bundle.js", "js/bootstrap.min.js"} {
		r.Files = append(r.Files, views.PublishedFile{Path: path})
	}
	for asked, want := range map[string]string{
		"bootstrap.min.css":     "css/bootstrap.min.css css/bootstrap.css",
		"dist/js/bootstrap.js":  "js/bootstrap.min.js",
		"bootstrp.bundel.js":    "js/bootstrap.bundle.js",
		"BOOTSTRAP.CSS":         "css/bootstrap.css css/bootstrap.min.css",
		"jquery.js":             "",
		"":                      "",
		strings.Repeat("/", 99): "",
	} {
		if got := strings.Join(NearFiles(r, asked), " "); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: %s", asked, got)
		}
	}
}

func TestNearVersions(t *testing.T) {
	versions := []views.Version{{Version: "3.1.0"}, {Version: "3.0.1"}, {Version: "3.0.0"}, {Version: "2.10.0"}, {Version: "2.1.0"}}
	for asked, want := range map[string]string{"3": "3.1.0 3.0.1 3.0.0", "v2.1": "2.10.0 2.1.0", "4.0.0": "3.1.0"} {
		if got := strings.Join(NearVersions(versions, asked), " "); got != want {
			t.Errorf("%s: %s, want %s", asked, got, want)
		}
	}
	if got := NearVersions(nil, "1"); got != nil {
		t.Errorf("of none: %q", got)
	}
}
