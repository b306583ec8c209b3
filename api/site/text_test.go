package site

import (
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

func TestFormats(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.00 kB", 9_994: "9.99 kB", 9_995: "10.0 kB", 99_950: "100 kB", 285_314: "285 kB", 999_499: "999 kB", 999_500: "1.00 MB",
		1_234_567: "1.23 MB", 5_000_000_000: "5.00 GB", 7_000_000_000_000_000: "7000 TB", -2000: "−2.00 kB",
	} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -123: "-123", -1234: "-1,234"} {
		if got := formatNumber(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	for _, tt := range []struct {
		from, to int64
		want     string
	}{{5, 5, "same size"}, {0, 10, "+10 B"}, {100, 150, "+50 B (+50 %)"}, {1000, 995, "−5 B (−0.5 %)"}, {100, 0, "−100 B (−100 %)"}} {
		if got := formatDelta(tt.from, tt.to); got != tt.want {
			t.Errorf("from %d to %d is %q, want %q", tt.from, tt.to, got, tt.want)
		}
	}
	if got := string(escapeBidi([]byte("a\u202eb\u2069\u200f“é”"))); got != "a\ufffdb\ufffd\u200f“é”" {
		t.Errorf("what turns text becomes %+q", got)
	}
	if text.Count(1, "file", "files") != "1 file" || text.Count(2000, "file", "files") != "2,000 files" {
		t.Error("counts")
	}
	if formatDate(time.Time{}) != "" || formatDate(time.Unix(0, 0)) != "" || formatMoment(time.Time{}) != "" {
		t.Error("a time that is not known is shown")
	}
}

func TestLinks(t *testing.T) {
	for raw, want := range map[string]string{
		"https://a.example": "https://a.example", "http://a.example/b?c#d": "http://a.example/b?c#d", " HTTPS://a.example ": "https://a.example",
		"": "", "a.example": "", "//a.example": "", "/a": "", "javascript:alert(1)": "", "JavaScript://a.example/%0aalert(1)": "", "data:text/html,x": "", "ftp://a.example": "",
		"https://user@a.example": "", "https://": "", "https://a.example/\x00": "", "https://a.example/" + strings.Repeat("a", 4000): "",
	} {
		if got := text.WebLink(raw); got != want {
			t.Errorf("%.40q leads to %q, want %q", raw, got, want)
		}
	}
	for raw, want := range map[string]string{
		"git+https://github.com/a/b.git": "https://github.com/a/b", "git@github.com:a/b.git": "https://github.com/a/b", "https://git.example/a/b.git": "https://git.example/a/b",
		"git+https://git.example/a": "https://git.example/a", "git://git.example/a": "", "javascript:alert(1)": "",
	} {
		if got := repositoryLink(&library.Library{Repository: &packages.Repository{URL: raw}}); got != want {
			t.Errorf("the repository %s is at %q, want %q", raw, got, want)
		}
	}
	if got := repositoryLink(&library.Library{}); got != "" {
		t.Errorf("no repository is at %q", got)
	}
}

func TestIdentifier(t *testing.T) {
	for name, want := range map[string]string{
		"vue": "vue", "chart.js": "chart", "lodash-es": "lodashEs", "@scope/some_thing": "some_thing", "d3": "d3", "3d": "d", "": "library", "文": "library", "class": "library", "a.b-c": "aBC", "$": "$",
	} {
		if got := newIdentifier(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
	}
}

func TestImportMap(t *testing.T) {
	const url = "https://a.example/b&c.mjs"
	got := importMap(library.ImportMap{Imports: map[string]string{`</script><b>`: url}, Integrity: map[string]string{url: "sha512-I"}}) + importStatement(`</script><b>`)
	if strings.Count(got, "</script>") != 2 || strings.Contains(got, "<b>") {
		t.Errorf("a name ends the script: %s", got)
	}
}

func TestDocs(t *testing.T) {
	page, err := newDocsReference([]byte(`{
		"info": {"title": "Jars"},
		"tags": [{"name": "Unused"}, {"name": "Jars", "description": "All."}],
		"paths": {
			"/z/{library}": {"get": {"tags": ["Jars"], "parameters": [{"$ref": "#/components/parameters/L"}, {"name": "fields", "in": "query", "example": "a b", "schema": {"type": "string"}}],
				"responses": {"200": {"description": "One.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Jar"}}}}, "404": {"$ref": "#/components/responses/None"}}}},
			"/a/{library}/{version}/{x}": {"get": {"responses": {}}},
			"/picture": {"get": {"responses": {"200": {"content": {"image/png": {}}}}}},
			"/elsewhere": {"get": {"responses": {"301": {}, "404": {"$ref": "#/components/responses/None"}}}}
		},
		"components": {
			"parameters": {"L": {"name": "library", "in": "path", "required": true, "schema": {"type": "string"}}},
			"responses": {"None": {"description": "None."}},
			"schemas": {
				"Jar": {"type": "object", "required": ["lid"], "properties": {"lid": {"type": "string", "nullable": true}, "all": {"type": "array", "items": {"$ref": "#/components/schemas/Jar"}},
					"by": {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}}, "either": {"oneOf": [{"type": "string"}, {"$ref": "#/components/schemas/Loop"}]}}},
				"Loop": {"allOf": [{"$ref": "#/components/schemas/Loop"}]}
			}
		}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Groups) != 2 || page.Groups[0].Name != "Jars" || page.Groups[1].Name != "Routes" {
		t.Fatalf("groups %+v", page.Groups)
	}
	if n := len(page.Groups[1].Operations); n != 1 {
		t.Errorf("of what only browsers want, %d routes are shown", n-1)
	}
	one := page.Groups[0].Operations[0]
	example := &library.Library{Name: "a b", Version: "1"}
	if got := one.fillPath(example); got != "/z/a%20b?fields=a+b" {
		t.Errorf("the example is %s", got)
	}
	if got := page.Groups[1].Operations[0].fillPath(example); got != "/a/a%20b/1/{x}" {
		t.Errorf("the example is %s", got)
	}
	if one.Parameters[0].Name != "library" || !one.Parameters[0].Required || one.Responses[0].Schema != "/docs/schemas#schema-jar" || one.Failures[0].Description != "None." || one.FailureStatuses() != "404" {
		t.Errorf("the operation is %+v", one)
	}
	var properties []string
	for _, p := range page.Schemas[0].Properties {
		properties = append(properties, p.Name+": "+p.Type+" "+p.Schema)
	}
	want := "lid: string or null , all: array of Jar /docs/schemas#schema-jar, by: object of integer (int64) , either: string or Loop "
	if got := strings.Join(properties, ", "); got != want {
		t.Errorf("the properties are %q, want %q", got, want)
	}
	for _, broken := range []string{"", "null", "[]", `{"paths": []}`, `{"paths": {"/a": 1}}`, `{"components": {"schemas": {"A": {"properties": 3}}}}`} {
		if page, err := newDocsReference([]byte(broken)); err == nil && len(page.Groups) > 0 {
			t.Errorf("%s is a document", broken)
		}
	}
	if got := splitCode("a `b` c"); len(got) != 3 || !got[1].Code || got[1].Text != "b" {
		t.Errorf("prose %+v", got)
	}
}

// TestSearchTextOf tests what an unknown address is searched for: not a version, but a name that begins with a digit.
func TestSearchTextOf(t *testing.T) {
	for path, want := range map[string]string{
		"/libraries/jquery/3.7.1": "jquery", "/jquery/v3": "jquery", "/jquery/v3.7/index.html": "jquery", "/3d-force-graph": "3d-force-graph", "/video.js/8": "video.js",
		"/v-tooltip": "v-tooltip", "/libraries": "", "/%zz": "", "/": "", "/1.0.0-beta.1": "",
	} {
		if got := searchTextOf(path); got != want {
			t.Errorf("%s is searched for as %q, want %q", path, got, want)
		}
	}
}
