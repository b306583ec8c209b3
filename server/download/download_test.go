package download_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/download"
)

const (
	demoTarGzip = "/download/demo/1.0.0.tar.gz"
	demoZip     = "/download/demo/1.0.0.zip"
)

func TestOptions(t *testing.T) {
	store := openStore(t)
	registry := prometheus.NewRegistry()
	newHandler(t, download.Options{Store: store, Registerer: registry})
	if _, err := download.New(download.Options{Store: store, Registerer: registry}); err == nil {
		t.Error("the same metrics twice are no error")
	}
}

var crossOrigin = map[string]string{
	"Access-Control-Allow-Origin": "*", "Timing-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin", "X-Content-Type-Options": "nosniff",
}

// wantHeaders wants these header fields and those of crossOrigin, and no others.
func wantHeaders(t *testing.T, r *http.Response, want map[string]string) {
	t.Helper()
	all := maps.Clone(crossOrigin)
	maps.Copy(all, want)
	for name, value := range all {
		if got := strings.Join(r.Header[http.CanonicalHeaderKey(name)], ", "); got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	for name, lines := range r.Header {
		if _, ok := all[name]; !ok {
			t.Errorf("there is also %s: %q", name, lines)
		}
	}
}

func TestHeaders(t *testing.T) {
	h := newHandler(t, download.Options{Store: openStore(t, testkit.Releases()...)})
	for target, contentType := range map[string]string{demoTarGzip: "application/gzip", demoZip: "application/zip"} {
		t.Run(target, func(t *testing.T) {
			head := get(h, "HEAD", target)
			wantStatus(t, head, 200)
			tag := head.Header.Get("Etag")
			if len(tag) < 20 || tag[0] != '"' {
				t.Errorf("the entity tag is %s, want a strong one", tag)
			}
			want := map[string]string{
				"Content-Type":        contentType,
				"Content-Disposition": `attachment; filename="demo-` + strings.TrimPrefix(target, "/download/demo/") + `"`,
				"Cache-Control":       "public, max-age=30672000, immutable",
				"Last-Modified":       "Thu, 29 Feb 2024 12:30:45 GMT",
				"Accept-Ranges":       "none",
				"Etag":                tag,
			}
			wantHeaders(t, head, want)
			if b := body(t, head); len(b) > 0 {
				t.Errorf("HEAD has a body of %d bytes", len(b))
			}
			// Neither coding nor ranges change anything.
			for _, header := range [][]string{
				nil, {"Accept-Encoding", "gzip, br"}, {"Accept-Encoding", "identity;q=0"}, {"Range", "bytes=0-9"}, {"Range", "bytes=0-9", "If-Range", tag}, {"Accept", "text/html"},
			} {
				r := get(h, "GET", target, header...)
				wantStatus(t, r, 200)
				wantHeaders(t, r, want)
				readers[target[len("/download/demo/1.0.0"):]](t, body(t, r))
			}
		})
	}
	if a, b := get(h, "HEAD", demoZip).Header.Get("Etag"), get(h, "HEAD", demoTarGzip).Header.Get("Etag"); a == b {
		t.Errorf("both formats have the entity tag %s", a)
	}
}

func TestSmallArchivesHaveALength(t *testing.T) {
	h := newHandler(t, download.Options{Store: openStore(t, testkit.Releases()...)})
	r := get(h, "GET", "/download/demo/1.0.1-beta.1+build.2.zip")
	if got, want := r.Header.Get("Content-Length"), strconv.Itoa(len(body(t, r))); got != want {
		t.Errorf("Content-Length is %q, want %s", got, want)
	}
}

func TestConditions(t *testing.T) {
	h := newHandler(t, download.Options{Store: openStore(t, testkit.Releases()...)})
	tag := get(h, "HEAD", demoZip).Header.Get("Etag")
	other := get(h, "HEAD", demoTarGzip).Header.Get("Etag")
	const at, before = "Thu, 29 Feb 2024 12:30:45 GMT", "Thu, 29 Feb 2024 12:30:44 GMT"
	for _, test := range []struct {
		header []string
		want   int
	}{
		{[]string{"If-None-Match", tag}, 304},
		{[]string{"If-None-Match", "W/" + tag}, 304},
		{[]string{"If-None-Match", `"a", ` + tag}, 304},
		{[]string{"If-None-Match", `"a"`, "If-None-Match", tag}, 304},
		{[]string{"If-None-Match", "*"}, 304},
		{[]string{"If-None-Match", other}, 200},
		{[]string{"If-None-Match", other, "If-Modified-Since", at}, 200},
		{[]string{"If-None-Match", strings.Trim(tag, `"`)}, 200},
		{[]string{"If-Modified-Since", at}, 304},
		{[]string{"If-Modified-Since", before}, 200},
		{[]string{"If-Modified-Since", "yesterday"}, 200},
		{[]string{"If-Match", tag}, 200},
		{[]string{"If-Match", "*"}, 200},
		{[]string{"If-Match", "W/" + tag}, 412},
		{[]string{"If-Match", other, "If-None-Match", tag}, 412},
		{[]string{"If-Match", tag, "If-Unmodified-Since", before}, 200},
		{[]string{"If-Unmodified-Since", at}, 200},
		{[]string{"If-Unmodified-Since", before}, 412},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			r := get(h, method, demoZip, test.header...)
			if r.StatusCode != test.want {
				t.Errorf("%s with %q: the status is %d, want %d", method, test.header, r.StatusCode, test.want)
			}
			if r.StatusCode == 304 {
				wantHeaders(t, r, map[string]string{"Etag": tag, "Cache-Control": "public, max-age=30672000, immutable"})
			}
		}
	}
}

func TestFailures(t *testing.T) {
	store := openStore(t, testkit.Releases()...)
	register(t, store, "registered")
	imported := store.NewBatch() // without a package JSON; that the row cannot be read does not matter
	imported.Set(kvstore.Versions, kvstore.Key("imported", "1.0.0"), []byte("malformed"))
	if err := errors.Join(imported.Commit(), imported.Close()); err != nil {
		t.Fatal(err)
	}
	h := newHandler(t, download.Options{Store: store})
	const hour, never = "public, max-age=3600", "no-store"
	for _, test := range []struct {
		method, target string
		status         int
		message, cache string
	}{
		{"GET", "/download/none/1.0.0.zip", 404, "Library not found", hour},
		{"GET", "/download/dem/1.0.0.zip", 404, "Library not found", hour},
		{"GET", "/download/%FF/%FF.zip", 400, "malformed", never},
		{"GET", "/download/demo/9.9.9.zip", 404, "Version not found", hour},
		{"HEAD", "/download/demo/9.9.9.tar.gz", 404, "Version not found", hour},
		{"GET", "/download/demo/1.0.0.zip.zip", 404, "Version not found", hour},
		{"GET", "/download/registered/1.0.0.zip", 404, "Version not found", hour},
		{"GET", "/download/imported/2.0.0.zip", 404, "Version not found", hour},
		{"GET", "/download/demo/1.0.0", 404, "Endpoint not found", hour},
		{"GET", "/download/demo/1.0.0.rar", 404, "Endpoint not found", hour},
		{"GET", "/download/", 404, "Endpoint not found", hour},
		{"GET", "/download/demo/../demo/1.0.0.zip", 400, "malformed", never},
		{"GET", "/download/demo%2f1.0.0.zip", 400, "malformed", never},
		{"GET", "/download/demo%00/1.0.0.zip", 400, "malformed", never},
		{"GET", "/download/demo/0.9.0.zip", 410, "Version withdrawn: it stole cookies", never},
		{"HEAD", "/download/demo/0.9.0.tar.gz", 410, "Version withdrawn: it stole cookies", never},
		{"POST", demoZip, 405, "GET, HEAD or OPTIONS", never},
		{"DELETE", "/download/none/1.0.0.zip", 405, "GET, HEAD or OPTIONS", never},
		{"GET", demoZip + "?" + strings.Repeat("a", 8<<10), 414, "8192 bytes", never},
	} {
		t.Run(test.method+" "+test.target[:min(len(test.target), 40)], func(t *testing.T) {
			r := get(h, test.method, test.target, "If-None-Match", "*")
			wantStatus(t, r, test.status)
			want := map[string]string{"Content-Type": "application/json", "Content-Length": r.Header.Get("Content-Length"), "Cache-Control": test.cache}
			if test.cache == hour {
				want["Expires"], want["Date"] = r.Header.Get("Expires"), r.Header.Get("Date")
				date, _ := http.ParseTime(want["Date"])
				if at, err := http.ParseTime(want["Expires"]); err != nil || at.Sub(date) != time.Hour || time.Until(at) < 55*time.Minute {
					t.Errorf("it expires at %q (%v), want in an hour", want["Expires"], err)
				}
			}
			if test.status == 405 {
				want["Allow"] = "GET, HEAD, OPTIONS"
			}
			wantHeaders(t, r, want)
			if test.method == "HEAD" {
				return
			}
			checkError(t, body(t, r), test.status, test.message)
		})
	}
}

// checkError wants the API's shape of an error.
func checkError(t *testing.T, data []byte, status int, message string) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatalf("%q is no JSON: %v", data, err)
	}
	if text, _ := got["message"].(string); len(got) != 3 || got["error"] != true || got["status"] != float64(status) || !strings.Contains(text, message) {
		t.Errorf("the error is %s, want %d and %q", data, status, message)
	}
}

// register adds a package of which nothing is published.
func register(t *testing.T, store *kvstore.Store, name string) {
	t.Helper()
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(`{"name":"` + name + `"}`)
	if err := store.PutContent(kvstore.Sum(text), int64(len(text)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: text}}); err != nil {
		t.Fatal(err)
	}
	err = log.Update(func(tx *logs.Tx) error {
		e := logs.Entry{Kind: logs.PackageAdded, Time: testkit.Released, Actor: "operator", Package: name, PackageJSON: kvstore.Sum(text)}
		return views.Record(tx, views.Change{Entry: e, PackageJSON: text})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPreflight(t *testing.T) {
	h := newHandler(t, download.Options{Store: openStore(t)})
	r := get(h, "OPTIONS", demoZip, "Origin", "https://a.example", "Access-Control-Request-Method", "GET")
	wantStatus(t, r, 204)
	wantHeaders(t, r, map[string]string{
		"Allow": "GET, HEAD, OPTIONS", "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS", "Access-Control-Allow-Headers": "*",
		"Access-Control-Max-Age": "86400", "Cache-Control": "no-store",
	})
}

// damage changes every stored coding of a content.
func damage(t *testing.T, store *kvstore.Store, data []byte) {
	t.Helper()
	h := kvstore.Sum(data)
	b := store.NewBatch()
	defer b.Close()
	n := 0
	for item, err := range store.Scan(kvstore.Blobs, kvstore.Range{Prefix: h[:]}) {
		if err != nil {
			t.Fatal(err)
		}
		value := bytes.Clone(item.Value)
		value[len(value)/2] ^= 1
		b.Set(kvstore.Blobs, bytes.Clone(item.Key), value)
		n++
	}
	if err := b.Commit(); err != nil || n == 0 {
		t.Fatalf("%d codings damaged: %v", n, err)
	}
}

func shorten(t *testing.T, store *kvstore.Store, data []byte) {
	t.Helper()
	replace(t, store, data, data[:len(data)/2])
}

func lengthen(t *testing.T, store *kvstore.Store, data []byte) {
	t.Helper()
	replace(t, store, data, append(bytes.Clone(data), '!'))
}

func alter(t *testing.T, store *kvstore.Store, data []byte) {
	t.Helper()
	replace(t, store, data, bytes.ToUpper(data))
}

// replace puts other bytes in a content's place, with checksums that hold.
func replace(t *testing.T, store *kvstore.Store, data, by []byte) {
	t.Helper()
	remove(t, store, data)
	coded, err := coding.Encode(coding.Gzip, coding.Quick, by)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.PutContent(kvstore.Sum(data), int64(len(data)), true, []kvstore.Coded{{Coding: coding.Gzip, Bytes: coded}}); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, store *kvstore.Store, data []byte) {
	t.Helper()
	h := kvstore.Sum(data)
	b := store.NewBatch()
	defer b.Close()
	b.Delete(kvstore.Contents, h[:])
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

var text = []byte(strings.Repeat("a line of text that compresses well, number after number\n", 100))

// early and late are releases of which nothing, or something, has been sent when the
// text's turn comes.
var (
	early = testkit.Release{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"a.js": text, "z.bin": noise(300 << 10)}}
	late  = testkit.Release{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"a.bin": noise(300 << 10), "z.js": text}}
)

func noise(n int) []byte {
	b, state := make([]byte, n), uint64(1)
	for i := range b {
		state = state*6364136223846793005 + 1442695040888963407
		b[i] = byte(state >> 56)
	}
	return b
}

func TestBadContents(t *testing.T) {
	for name, test := range map[string]struct {
		release testkit.Release
		spoil   func(*testing.T, *kvstore.Store, []byte)
		outcome string
		says    string
	}{
		"damaged, first":    {early, damage, "failed", "the store is damaged"},
		"damaged, last":     {late, damage, "broken", "the store is damaged"},
		"shortened, first":  {early, shorten, "failed", "decodes to other bytes"},
		"shortened, last":   {late, shorten, "broken", "decodes to other bytes"},
		"altered, first":    {early, alter, "failed", "decodes to other bytes"},
		"altered, last":     {late, alter, "broken", "decodes to other bytes"},
		"lengthened, first": {early, lengthen, "failed", "decodes to more bytes"},
		"lengthened, last":  {late, lengthen, "broken", "decodes to more bytes"},
		// What is missing is noticed before anything is sent.
		"missing, first": {early, remove, "failed", "not found"},
		"missing, last":  {late, remove, "failed", "not found"},
	} {
		for suffix := range readers {
			t.Run(name+suffix, func(t *testing.T) {
				store := openStore(t, test.release)
				_, lines := logged()
				logger := settings.New().NewLogger(lines, slog.LevelInfo) // it bounds what repeats
				registry := prometheus.NewRegistry()
				h := newHandler(t, download.Options{Store: store, Logger: logger, Registerer: registry})
				test.spoil(t, store, text)
				s := httptest.NewServer(h)
				defer s.Close()
				for range 3 {
					r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(s.URL + "/download/lib/1.0.0" + suffix)
					if err != nil {
						t.Fatal(err)
					}
					data, err := io.ReadAll(r.Body)
					r.Body.Close()
					if test.outcome == "broken" {
						if !errors.Is(err, io.ErrUnexpectedEOF) {
							t.Errorf("%d bytes arrived with status %d, then %v; want %v", len(data), r.StatusCode, err, io.ErrUnexpectedEOF)
						}
						continue
					}
					wantStatus(t, r, 503)
					for field, want := range map[string]string{"Retry-After": "5", "Cache-Control": "no-store", "Etag": "", "Last-Modified": "", "Content-Disposition": "", "Accept-Ranges": "", "Access-Control-Allow-Origin": "*"} {
						if got := r.Header.Get(field); got != want {
							t.Errorf("%s is %q, want %q", field, got, want)
						}
					}
					checkError(t, data, 503, "Try again later.")
				}
				s.Close() // when all handlers have ended
				if n := count(t, registry, suffix[1:], test.outcome); n != 3 {
					t.Errorf("%v requests were %s, want 3", n, test.outcome)
				}
				log := lines.String()
				if n := strings.Count(log, "\n"); n != 1 {
					t.Errorf("three failures are logged in %d lines:\n%s", n, log)
				}
				if !strings.Contains(log, test.says) || !strings.Contains(log, "version=1.0.0") {
					t.Errorf("the log does not say which release it is and that %q: %s", test.says, log)
				}
			})
		}
	}
}

func TestBadManifest(t *testing.T) {
	sum := func(data string) (kvstore.Hash, logs.SRI) {
		return kvstore.Sum([]byte(data)), logs.SumSRI([]byte(data))
	}
	hash, sri := sum("data")
	file := func(path string) logs.File {
		return logs.File{Path: path, Size: 4, SHA256: hash, SRI: sri, Origin: logs.Upstream}
	}
	for name, m := range map[string]logs.Manifest{
		"leaves its folder": {Package: "bad", Version: "1.0.0", Files: []logs.File{file("../../.bashrc")}},
		"twice":             {Package: "bad", Version: "1.0.0", Files: []logs.File{file("a"), file("b"), file("a")}},
		"of another size":   {Package: "bad", Version: "1.0.0", Files: []logs.File{{Path: "a", Size: 5, SHA256: hash, SRI: sri, Origin: logs.Upstream}}},
		"of another":        {Package: "other", Version: "1.0.0", Files: []logs.File{file("a")}},
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t)
			log, err := logs.Open(store)
			if err != nil {
				t.Fatal(err)
			}
			encoded, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			for _, data := range [][]byte{encoded, []byte("data")} {
				if err := store.PutContent(kvstore.Sum(data), int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
					t.Fatal(err)
				}
			}
			err = log.Update(func(tx *logs.Tx) error {
				e := logs.Entry{Kind: logs.Published, Package: "bad", Version: "1.0.0", Time: testkit.Released, Actor: "operator", Manifest: kvstore.Sum(encoded)}
				recorded := m
				recorded.Package = "bad"
				return views.Record(tx, views.Change{Entry: e, Manifest: &recorded})
			})
			if err != nil {
				t.Fatal(err)
			}
			h := newHandler(t, download.Options{Store: store})
			wantStatus(t, get(h, "GET", "/download/bad/1.0.0.tar.gz"), 503)
			wantStatus(t, get(h, "GET", "/download/bad/1.0.0.zip"), 503)
		})
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	h := newHandler(t, download.Options{Store: openStore(t, testkit.Releases()...), Registerer: registry})
	get(h, "GET", demoZip)
	get(h, "GET", demoZip)
	get(h, "HEAD", demoTarGzip)
	get(h, "GET", demoTarGzip, "If-None-Match", "*")
	get(h, "GET", "/download/demo/2.zip")
	get(h, "GET", "/download/demo")
	get(h, "GET", "/download/demo/0.9.0.zip")
	get(h, "PUT", demoZip)
	get(h, "OPTIONS", demoZip)
	for _, test := range []struct {
		format, outcome string
		want            float64
	}{
		{"zip", "sent", 2}, {"tar.gz", "sent", 0}, {"tar.gz", "head", 1}, {"tar.gz", "not_modified", 1},
		{"zip", "not_found", 1}, {"none", "not_found", 1}, {"zip", "withdrawn", 1}, {"none", "refused", 1}, {"none", "preflight", 1},
	} {
		if got := count(t, registry, test.format, test.outcome); got != test.want {
			t.Errorf("%v requests for %s were %s, want %v", got, test.format, test.outcome, test.want)
		}
	}
}
