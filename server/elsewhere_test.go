package server_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/server"
)

// Only a file of a version that is not known is looked for elsewhere, on the lane and behind it.
func TestElsewhere(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "here"})
	s.Publish("a", "0.9.0", "a.js", map[string]string{"a.js": "bad"})
	s.Withdraw("a", "0.9.0", "malware")
	var asked atomic.Int32
	elsewhere := func(_ *http.Request, pkg, version, path string) ([]byte, *answers.Failure) {
		asked.Add(1)
		switch version {
		case "2.0.0":
			return []byte("from elsewhere: " + pkg + " " + path), nil
		case "3.0.0":
			s.Publish("a", "3.0.0", "a.js", map[string]string{"a.js": "published meanwhile"})
			return nil, nil
		case "4.0.0": // withdrawn meanwhile, say
			return nil, nil
		}
		return nil, &answers.Failure{Status: http.StatusBadGateway, Message: "No."}
	}
	assets, err := server.New(server.Options{Store: s.Store, Elsewhere: elsewhere})
	if err != nil {
		t.Fatal(err)
	}
	for _, lane := range []bool{false, true} {
		o := server.HTTPOptions{}
		if lane {
			o.Lane = assets
		}
		served := server.NewHTTPServer(assets, o)
		listener, err := server.OpenSocket(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func(l net.Listener) { defer close(done); served.Serve(l) }(listener)
		base := "http://" + listener.Addr().String() + "/ajax/libs/a/"
		for _, c := range []struct {
			path, body, caching string
			status              int
			asks                int32
		}{
			{"1.0.0/a.js", "here", "immutable", 200, 0},
			{"1.0.0/b.js", "", "max-age=10", 404, 0},
			{"0.9.0/a.js", "", "no-store", 410, 0},
			{"2.0.0/dir/b.css", "from elsewhere: a dir/b.css", "no-store", 200, 1},
			{"3.0.0/a.js", "published meanwhile", "immutable", 200, 1},
			{"4.0.0/a.js", "", "max-age=10", 404, 1},
			{"5.0.0/a.js", "", "no-store", 502, 1},
			{"1.0.0/a.js", "here", "immutable", 200, 0},
		} {
			if lane && c.path == "3.0.0/a.js" {
				c.asks = 0
			}
			before := asked.Load()
			response, err := http.Get(base + c.path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil || response.StatusCode != c.status || c.body != "" && string(body) != c.body || !strings.Contains(response.Header.Get("Cache-Control"), c.caching) {
				t.Errorf("lane %v, %s: %d %q, %v, %v", lane, c.path, response.StatusCode, body, response.Header, err)
			}
			if n := asked.Load() - before; n != c.asks {
				t.Errorf("lane %v, %s: asked elsewhere %d times, want %d", lane, c.path, n, c.asks)
			}
			if c.status == 200 && response.Header.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("%s: %v", c.path, response.Header)
			}
		}
		response, err := http.Head(base + "2.0.0/a.js")
		if err != nil || response.StatusCode != 200 || response.ContentLength != int64(len("from elsewhere: a a.js")) {
			t.Errorf("HEAD: %v, %v", response, err)
		}
		served.Close()
		<-done
	}
}

// A hit takes no memory where other origins are asked, either.
func TestElsewhereCostsAHitNothing(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "here"})
	allocated := func(e server.Elsewhere) float64 {
		assets, err := server.New(server.Options{Store: s.Store, Elsewhere: e})
		if err != nil {
			t.Fatal(err)
		}
		q := httptest.NewRequest(http.MethodGet, "/ajax/libs/a/1.0.0/a.js", nil)
		w := &nothing{http.Header{}}
		return testing.AllocsPerRun(100, func() { assets.ServeHTTP(w, q) })
	}
	without := allocated(nil)
	with := allocated(func(*http.Request, string, string, string) ([]byte, *answers.Failure) {
		t.Error("a hit asks elsewhere")
		return nil, nil
	})
	if with > without && !raceEnabled { // under which pools drop some of what they get
		t.Errorf("%v allocations, %v without", with, without)
	}
}

type nothing struct{ header http.Header }

func (n *nothing) Header() http.Header         { return n.header }
func (n *nothing) Write(p []byte) (int, error) { return len(p), nil }
func (n *nothing) WriteHeader(int)             {}
