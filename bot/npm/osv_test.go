package npm

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/fetch"
)

// Vulnerabilities follows the pages of a response, and refuses what is none.
func TestVulnerabilities(t *testing.T) {
	getter, err := fetch.New(fetch.Options{}) // whose time limits are long enough for a large response on a busy machine
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(getter.Close)
	c := &Client{fetch: getter}
	var queries []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/query" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		queries = append(queries, string(body))
		switch query := string(body); {
		case strings.Contains(query, "moved"):
			http.Redirect(w, r, "http://198.51.100.1/", http.StatusTemporaryRedirect)
		case strings.Contains(query, "broken"):
			io.WriteString(w, "<html>")
		case strings.Contains(query, "endless"):
			io.WriteString(w, `{"next_page_token":"more"}`)
		case strings.Contains(query, "large"):
			io.WriteString(w, `{"vulns":["`+strings.Repeat("x", maxOSVResponse*2/3)+`"],"next_page_token":"more"}`)
		case strings.Contains(query, "second"):
			io.WriteString(w, `{"vulns":[{"id":"GHSA-2"}]}`)
		default:
			io.WriteString(w, `{"vulns":[{"id":"GHSA-1"}],"next_page_token":"second"}`)
		}
	}))
	defer api.Close()
	records, err := c.Vulnerabilities(t.Context(), api.URL+"/", "@glass/jar")
	if got, _ := json.Marshal(records); err != nil || string(got) != `[{"id":"GHSA-1"},{"id":"GHSA-2"}]` {
		t.Errorf("records are %s, %v", got, err)
	}
	if want := `{"package":{"ecosystem":"npm","name":"@glass/jar"},"page_token":""}`; queries[0] != want {
		t.Errorf("the query is %s, want %s", queries[0], want)
	}
	for _, name := range []string{"moved", "broken", "endless", "large"} {
		if _, err := c.Vulnerabilities(t.Context(), api.URL, name); err == nil || !strings.Contains(err.Error(), "vulnerabilities of npm package "+name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if len(queries) != 2+2+maxOSVPages+2 {
		t.Errorf("%d requests were sent", len(queries))
	}
}

// A package is public if it comes from npm's own registry, and npm has no credentials for that.
func TestIsPublic(t *testing.T) {
	company := setting{key: "@company:registry", values: []string{"https://npm.company.example"}}
	token := setting{key: "//" + strings.TrimPrefix(publicRegistry(), "https://") + ":_authToken", values: []string{"secret"}}
	other := setting{key: "//npm.company.example/:_authToken", values: []string{"secret"}}
	for _, test := range []struct {
		settings []setting
		name     string
		want     bool
	}{
		{nil, "jar", true},
		{nil, "@company/jar", true},
		{nil, "../jar", false},
		{[]setting{company, other}, "jar", true},
		{[]setting{company, other}, "@glass/jar", true},
		{[]setting{company, other}, "@company/jar", false},
		{[]setting{company}, "@company/jar", false},
		{[]setting{token}, "jar", false},
		{[]setting{token}, "@glass/jar", false},
		{[]setting{{key: "registry", values: []string{"https://npm.company.example"}}}, "jar", false},
	} {
		config, err := newConfig(test.settings)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Client{config: config}).IsPublic(test.name); got != test.want {
			t.Errorf("with %v, %s is public: %t", test.settings, test.name, got)
		}
	}
}
