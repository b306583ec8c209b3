package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/klauspost/compress/gzip"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/usage"
)

var quiet = slog.New(slog.DiscardHandler)

const (
	assetBase = "https://assets.example"
	siteBase  = "https://site.example"
	apiHost   = "api.example"
)

const jqueryJSON = `{
  "name": "jquery", "filename": "jquery.min.js", "description": "The <b>DOM</b> & more.",
  "keywords": ["dom", "ajax"], "homepage": "https://jquery.example/", "license": "MIT",
  "repository": {"type": "git", "url": "https://github.com/jquery/jquery.git"},
  "authors": [{"name": "A. Author", "email": "a@example.com", "url": "https://a.example/"}, {"name": "B. Author"}],
  "autoupdate": {"source": "npm", "target": "jquery", "fileMap": [{"basePath": "dist", "files": ["*"]}], "ignoreVersions": ["*-alpha*"]},
  "optimization": {"js": false}
}`

func plainJSON(name, description string) string {
	return `{"name":"` + name + `","description":"` + description + `","keywords":["` + name + `"],"repository":{"type":"git","url":"https://git.example/` + name + `.git"}}`
}

// stock publishes what the tests ask for.
func stock(shelf *testkit.Shelf) {
	shelf.Register("jquery", jqueryJSON)
	for _, v := range []string{"1.9.0", "1.10.0", "4.0.0-beta.2", "4.0.0-beta", "3.7.1", "3.7.0", "1.2", "v1.3", "r20", "r100"} {
		shelf.Publish("jquery", v, "jquery.min.js", map[string]string{
			"jquery.js": "long " + v, "jquery.min.js": "min " + v, "jquery.min.map": "{}", "LICENSE": "free", "README.md": "#", "UPPER.JS": "up",
			"sub/folder.js/none": "none", "sub/.css": "dot",
		})
	}
	shelf.Register("bare", plainJSON("bare", "Nothing is published."))
	shelf.Register("mainless", plainJSON("mainless", "It has no main file."))
	shelf.Publish("mainless", "1.0.0", "", map[string]string{"a.css": "a"})
	shelf.Register("odd", plainJSON("odd", "It has odd names."))
	shelf.Publish("odd", "1.0.0+build.1", "a b#?%41.js", map[string]string{"a b#?%41.js": "odd", "ünïcødé/文.js": "unicode", "A.js": "letter"})
	shelf.Register("gone", plainJSON("gone", "One version was withdrawn."))
	shelf.Publish("gone", "1.0.0", "gone.js", map[string]string{"gone.js": "1"})
	shelf.Publish("gone", "2.0.0", "gone.js", map[string]string{"gone.js": "2"})
	shelf.Withdraw("gone", "2.0.0", `it stole <cookies> & "more"`)
	shelf.Refuse("gone", "3.0.0", "a bomb")
	shelf.SetState(views.State{Package: "gone", Version: "4.0.0", Kind: views.Failed, Reason: "time out", Updated: testkit.Released, Attempts: 2, Next: testkit.Released.Add(time.Hour)})
	shelf.Register("font-awesome", plainJSON("font-awesome", "Icons."))
	shelf.Publish("font-awesome", "6.0.0", "css/all.min.css", map[string]string{"css/all.min.css": "icons"})
	shelf.Register("hidden", `{"name":"hidden","description":"Not for search.","keywords":["hidden"],"repository":{"type":"git","url":"https://git.example/hidden.git"},`+
		`"autoupdate":{"source":"git","target":"https://git.example/hidden.git","fileMap":[{"basePath":"","files":["*"]}],"excludeFromSearch":true}}`)
}

// A service answers requests over a stocked shelf, and looks at every answer.
type service struct {
	t       testing.TB
	shelf   *testkit.Shelf
	index   *library.Index
	public  *public
	handler http.Handler
	log     *bytes.Buffer
}

func newService(t testing.TB, change ...func(*PublicOptions)) *service {
	t.Helper()
	shelf := testkit.NewShelf(t)
	stock(shelf)
	return serviceOf(t, shelf, change...)
}

func serviceOf(t testing.TB, shelf *testkit.Shelf, change ...func(*PublicOptions)) *service {
	t.Helper()
	s := &service{t: t, shelf: shelf, index: shelf.Index(library.Options{
		Popularity: func(l *library.Library) float64 { return map[string]float64{"odd": 9}[l.Name] },
		GitHub: func(name string) (library.GitHubCounts, bool) {
			return library.GitHubCounts{Stars: 59000, Forks: 20000, Subscribers: 3000}, name == "jquery" || name == "backbone.js"
		},
	}), log: new(bytes.Buffer)}
	o := PublicOptions{Library: s.index, Usage: usage.Open(usage.Options{Store: shelf.Store}), AssetBase: assetBase, SiteBase: siteBase, APIHost: apiHost, Logger: jsonLogger(s.log)}
	for _, c := range change {
		c(&o)
	}
	s.public = newPublic(o)
	s.handler = s.public.newHandler()
	return s
}

// A reply is an answer with its coding undone.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) get(name string) string { return r.header.Get(name) }

// decode decodes the body into what is returned.
func decode[T any](t testing.TB, r reply) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(r.body))
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %.300s", err, r.body)
	}
	return v
}

func newRequest(method, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Add(name, value)
		}
	}
	return r
}

func jsonLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(w, nil)) }

func serve(h http.Handler, r *http.Request) reply {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return reply{w.Code, w.Result().Header, w.Body.String()}
}

// ask sends a request, and holds the answer against what the contract says of every answer, and against the OpenAPI
// document.
func (s *service) ask(method, target string, headers ...string) reply {
	s.t.Helper()
	r := newRequest(method, target, headers...)
	got := serve(s.handler, r)
	var reader io.Reader
	switch coding := got.get("Content-Encoding"); coding {
	case "br":
		reader = brotli.NewReader(strings.NewReader(got.body))
	case "gzip":
		var err error
		if reader, err = gzip.NewReader(strings.NewReader(got.body)); err != nil {
			s.t.Fatal(err)
		}
	}
	if reader != nil {
		text, err := io.ReadAll(reader)
		if err != nil {
			s.t.Fatal(err)
		}
		got.body = string(text)
	}
	for _, problem := range problems(r, got) {
		s.t.Errorf("%s %s: %s", method, target, problem)
	}
	return got
}

func (s *service) get(target string, headers ...string) reply {
	s.t.Helper()
	return s.ask("GET", target, headers...)
}

// problems returns what is wrong with an answer whatever was asked.
func problems(r *http.Request, got reply) (all []string) {
	problem := func(text string) { all = append(all, text) }
	if got.get("Access-Control-Allow-Origin") != "*" {
		problem("scripts of other sites may not read it")
	}
	if r.Method == "OPTIONS" {
		return all
	}
	control, expires := got.get("Cache-Control"), got.get("Expires")
	if control == notCached.Control() {
		if expires != "0" || got.get("Pragma") != "no-cache" {
			problem("it must not be cached, but Expires is " + expires + " and Pragma " + got.get("Pragma"))
		}
	} else {
		seconds, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(control, "public, max-age="), ", immutable"))
		date, errDate := http.ParseTime(got.get("Date"))
		until, errExpires := http.ParseTime(expires)
		if err != nil || errDate != nil || errExpires != nil || until.Sub(date) != time.Duration(seconds)*time.Second {
			problem("Cache-Control is " + control + ", Date " + got.get("Date") + ", Expires " + expires)
		}
	}
	if got.status == http.StatusNotModified || got.status == http.StatusMovedPermanently {
		if got.body != "" {
			problem("it has a body")
		}
		return all
	}
	if got.get("Content-Type") == "application/json" && r.Method != "HEAD" {
		if !json.Valid([]byte(got.body)) {
			problem("it is no JSON: " + got.body)
		}
	}
	if got.status >= 400 && r.Method != "HEAD" {
		var e struct {
			Error   bool
			Status  int
			Message string
		}
		if err := json.Unmarshal([]byte(got.body), &e); err != nil || !e.Error || e.Status != got.status || e.Message == "" || got.get("Content-Type") != "application/json" {
			problem("it is not in the shape of errors: " + got.body)
		}
	}
	if err := documented(r, got); err != nil {
		problem("the OpenAPI document: " + err.Error())
	}
	return all
}

var document = func() *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromData(openAPIDocument)
	if err != nil {
		panic(err)
	}
	return doc
}()

// documented holds an answer against the document, where that has the route.
func documented(r *http.Request, got reply) error {
	path := r.URL.EscapedPath()
	if r.Method != "GET" || len(path) > 1 && strings.HasSuffix(path, "//") {
		return nil
	}
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	item := document.Paths.Find(templateOf(path))
	if item == nil {
		return nil
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: routeOf(item)},
		Status:                 got.status,
		Header:                 got.header,
		Options:                &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	if t := got.get("Content-Type"); !strings.HasPrefix(t, "application/json") {
		input.Options.ExcludeResponseBody = true // texts and pictures have no schema
	}
	input.SetBodyBytes([]byte(got.body))
	return openapi3filter.ValidateResponse(context.Background(), input)
}

// templateOf returns the path in the document that a path belongs to, itself where it has no parameters.
func templateOf(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case parts[0] == "libraries" && len(parts) == 2:
		return "/libraries/{library}"
	case parts[0] == "libraries" && len(parts) == 3:
		return "/libraries/{library}/{version}"
	case parts[0] == "logs" && len(parts) == 2 && parts[1] != "stream":
		return "/logs/{library}"
	case parts[0] == "logs" && len(parts) == 3:
		return "/logs/{library}/{version}"
	case parts[0] == "packages" && len(parts) == 2:
		return "/packages/{library}"
	case parts[0] == "packages" && len(parts) == 3:
		return "/packages/{library}/" + parts[2]
	case parts[0] == "packages" && len(parts) == 4:
		return "/packages/{library}/" + parts[2] + "/{version}"
	}
	return path
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %#v, want %#v", what, got, want)
	}
}

func sri(content string) string { return logs.SumSRI([]byte(content)).String() }
