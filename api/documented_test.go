package api

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
)

// documentedText has what the public service documents, and tests its own server by: a target, the status, Cache-Control,
// and the shape of the body, separated by tabulators.
//
//go:embed testdata/documented.txt
var documentedText string

// TestDocumented replays these requests, with and without a slash at the end, over a connection, against a server that is
// configured as the public one.
func TestDocumented(t *testing.T) {
	shelf := testkit.NewShelf(t)
	for name, version := range map[string]string{"backbone.js": "1.1.0", "jquery": "3.7.1"} {
		shelf.Register(name, `{"name":"`+name+`","filename":"main.min.js","description":"D.","keywords":["k"],"homepage":"https://a.example/","license":"MIT","authors":[{"name":"A"}],
			"repository":{"type":"git","url":"https://github.com/a/b.git"},"autoupdate":{"source":"npm","target":"a","fileMap":[{"basePath":"","files":["*"]}]}}`)
		for _, v := range []string{"1.0.0", version} {
			shelf.Publish(name, v, "main.min.js", map[string]string{"main.min.js": v, "README": "r"})
		}
	}
	s := serviceOf(t, shelf, func(o *PublicOptions) {
		o.AssetBase, o.SiteBase, o.Name = "https://cdnjs.cloudflare.com", "https://cdnjs.com", "cdnjs"
	})
	server := httptest.NewServer(s.handler)
	defer server.Close()
	ask := func(method, target string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequest(method, server.URL+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = apiHost
		return testkit.RoundTrip(t, http.DefaultTransport, r)
	}
	for line := range strings.Lines(documentedText) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 4 {
			t.Fatalf("%q is no line of four", line)
		}
		path, query, _ := strings.Cut(fields[0], "?")
		for _, slash := range []string{"", "/"} {
			if path == "/" && slash != "" {
				continue
			}
			target := path + slash
			if query != "" {
				target += "?" + query
			}
			got, body := ask("GET", target)
			if say := strings.Join([]string{got.Status[:3], got.Header.Get("Cache-Control"), shapeOf(body)}, "\t"); say != strings.Join(fields[1:], "\t") {
				t.Errorf("%s:\n got %s\nwant %s", target, say, strings.Join(fields[1:], "\t"))
			}
			if got.Header.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("%s: other origins may not read it", target)
			}
			head, nothing := ask("HEAD", target)
			if head.StatusCode != got.StatusCode || nothing != "" || head.Header.Get("Content-Type") != got.Header.Get("Content-Type") {
				t.Errorf("HEAD %s: %s, %q", target, head.Status, nothing)
			}
			if options, nothing := ask("OPTIONS", target); options.StatusCode != 204 || nothing != "" || options.Header.Get("Access-Control-Allow-Methods") != "GET,OPTIONS" {
				t.Errorf("OPTIONS %s: %s, %q", target, options.Status, nothing)
			}
		}
	}
}

// shapeOf says of JSON which fields it has, of which types; of errors it has the whole, of other texts nothing.
func shapeOf(text string) string {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return "-"
	}
	if object, ok := v.(map[string]any); ok && object["error"] == true {
		if object["ref"] != nil {
			object["ref"] = "*"
		}
		again, _ := json.Marshal(object)
		return string(again)
	}
	return shape(v)
}

func shape(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var fields []string
		for name, value := range v {
			if strings.Contains(name, ".") || len(v) > 20 { // a file or an extension
				name = "*"
			}
			if field := name + ":" + shape(value); !slices.Contains(fields, field) {
				fields = append(fields, field)
			}
		}
		slices.Sort(fields)
		return "{" + strings.Join(slices.DeleteFunc(fields, func(f string) bool { return f == "README:string" }), " ") + "}"
	case []any:
		var all []string
		for _, e := range v {
			if one := shape(e); !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
		return "[" + strings.Join(all, "|") + "]"
	case string:
		return "string"
	case float64:
		return "number"
	case bool:
		return "boolean"
	}
	return "null"
}
