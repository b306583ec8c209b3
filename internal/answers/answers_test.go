package answers

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/coding"
)

func ask(method string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, "/", nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

func TestCaching(t *testing.T) {
	for _, tt := range []struct {
		caching          Caching
		control, expires string // "later" for a time
	}{
		{Caching{}, "no-store", ""},
		{NoStore, "no-store", ""},
		{Revalidated, "no-cache", ""},
		{Uncached, "no-cache, no-store, must-revalidate", "0"},
		{CacheFor(10 * time.Second), "public, max-age=10", ""},
		{CacheFor(time.Hour).WithExpires(), "public, max-age=3600", "later"},
		{CacheImmutable(Forever), "public, max-age=30672000, immutable", ""},
		{CacheImmutable(Forever).WithExpires(), "public, max-age=30672000, immutable", "later"},
	} {
		h := http.Header{}
		tt.caching.SetHeader(h)
		if h.Get("Cache-Control") != tt.control || (h.Get("Pragma") != "") != (tt.expires == "0") {
			t.Errorf("%v", h)
		}
		date, _ := http.ParseTime(h.Get("Date"))
		expires, err := http.ParseTime(h.Get("Expires"))
		if tt.expires != "later" && h.Get("Expires") != tt.expires || tt.expires == "later" && (err != nil || expires.Sub(date) != tt.caching.age) {
			t.Errorf("%s: %v", tt.control, h)
		}
	}
}

// TestBody asks for a body in each coding, and then again with its tag.
func TestBody(t *testing.T) {
	text := []byte(strings.Repeat("larder ", 1000))
	body := NewBody(Plain, text)
	tags := map[string]string{}
	for accept, want := range map[string]coding.Coding{"": coding.Identity, "gzip": coding.Gzip, "gzip, br": coding.Brotli, "*;q=0": coding.Identity} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			w := httptest.NewRecorder()
			body.Send(w, ask(method, "Accept-Encoding", accept), http.StatusOK)
			got, err := coding.Decode(want, w.Body.Bytes(), int64(len(text)))
			if method == http.MethodHead {
				got, err = text, nil
				if w.Body.Len() > 0 {
					t.Error("HEAD has a body")
				}
			}
			if w.Code != http.StatusOK || err != nil || !bytes.Equal(got, text) || w.Header().Get("Vary") != "Accept-Encoding" || w.Header().Get("Content-Type") != Plain {
				t.Errorf("%s in %q: %d %v (%v)", method, accept, w.Code, w.Header(), err)
			}
			tag := w.Header().Get("Etag")
			if before, ok := tags[want.String()]; ok && before != tag {
				t.Errorf("the tag of %v is %s, and was %s", want, tag, before)
			}
			tags[want.String()] = tag
			w = httptest.NewRecorder()
			body.Send(w, ask(method, "Accept-Encoding", accept, "If-None-Match", `"x", W/`+tag), http.StatusOK)
			if w.Code != http.StatusNotModified || w.Header().Get("Etag") != tag || w.Header().Get("Content-Type") != "" || w.Header().Get("Content-Length") != "" || w.Body.Len() > 0 {
				t.Errorf("again: %d %v", w.Code, w.Header())
			}
		}
	}
	if len(tags) != 3 || tags["br"] == tags["gzip"] || tags["br"] == tags["identity"] {
		t.Errorf("the tags %v are not different", tags)
	}
	w := httptest.NewRecorder()
	body.Send(w, ask(http.MethodGet, "If-None-Match", "*"), http.StatusNotFound)
	if w.Code != http.StatusNotFound || w.Header().Get("Etag") != "" || w.Body.Len() == 0 {
		t.Errorf("as a failure: %d %v", w.Code, w.Header())
	}
}

// What is not worth its coding is sent as it is, and under the same tag.
func TestIncompressible(t *testing.T) {
	noise := make([]byte, 4<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // never fails
	body := NewBody("application/octet-stream", noise)
	plain, coded := httptest.NewRecorder(), httptest.NewRecorder()
	body.Send(plain, ask(http.MethodGet), http.StatusOK)
	body.Send(coded, ask(http.MethodGet, "Accept-Encoding", "br"), http.StatusOK)
	tag := plain.Header().Get("Etag")
	if coded.Header().Get("Content-Encoding") != "" || coded.Header().Get("Etag") != tag || !bytes.Equal(coded.Body.Bytes(), noise) {
		t.Errorf("it is sent with %v, the other with %v", coded.Header(), plain.Header())
	}
	again := httptest.NewRecorder()
	if body.Send(again, ask(http.MethodGet, "Accept-Encoding", "br", "If-None-Match", tag), http.StatusOK); again.Code != http.StatusNotModified {
		t.Errorf("again: %d", again.Code)
	}
}

func TestFailure(t *testing.T) {
	entry := int64(7)
	f := &Failure{Status: http.StatusGone, Message: `Gone: <b> & "c"`, Retry: 5, Entry: &entry, Ref: "R", Fields: []Field{{"Allow", Methods}}}
	const asJSON = `{"error":true,"status":410,"message":"Gone: <b> & \"c\"","ref":"R","logEntry":7}`
	for _, tt := range []struct {
		name              string
		send              func(http.ResponseWriter)
		contentType, body string
		vary              string
	}{
		{"JSON", func(w http.ResponseWriter) { f.SendJSON(w, ask(http.MethodGet)) }, JSON, asJSON, ""},
		{"head of JSON", func(w http.ResponseWriter) { f.SendJSON(w, ask(http.MethodHead)) }, JSON, "", ""},
		{"text", func(w http.ResponseWriter) { f.Send(w, false, nil) }, Plain, f.Message + "\n", "Accept"},
		{"head of text", func(w http.ResponseWriter) { f.Send(w, true, nil) }, Plain, "", "Accept"},
		{"JSON for a client that likes it", func(w http.ResponseWriter) {
			w.Header().Set("Vary", "Accept-Encoding")
			f.Send(w, false, []string{JSON})
		}, JSON, asJSON + "\n", "Accept-Encoding, Accept"},
		{"page", func(w http.ResponseWriter) { f.SendPage(w, ask(http.MethodGet), NewBody(HTML, []byte("<h1>"))) }, HTML, "<h1>", ""},
	} {
		w := httptest.NewRecorder()
		SetFields(w.Header(), Field{"Etag", `"x"`}, Field{"Last-Modified", "then"}, Field{"Content-Encoding", "br"})
		tt.send(w)
		h := w.Header()
		if w.Code != f.Status || h.Get("Content-Type") != tt.contentType || w.Body.String() != tt.body || h.Get("Content-Length") == "" || h.Get("Vary") != tt.vary {
			t.Errorf("%s: %d %v %s", tt.name, w.Code, h, w.Body)
		}
		if h.Get("Cache-Control") != "no-store" || h.Get("Retry-After") != "5" || h.Get("Allow") != Methods || h.Get("Etag")+h.Get("Last-Modified")+h.Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", tt.name, h)
		}
	}
}
