package npm_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
)

// endless is a text again and again, without an end.
type endless struct{ text string }

func (e endless) Read(p []byte) (int, error) { return copy(p, e.text), nil }

func TestChanges(t *testing.T) {
	tests := []struct {
		name  string
		body  io.Reader
		since string
		last  string
		names string
		wrong string // part of the error
	}{
		{"numbers", strings.NewReader(`{"results":[{"seq":8,"id":"a","changes":[{"rev":"1-a"}]},{"seq":9,"id":"@b/c","deleted":true}],"last_seq":9}`), "7", "9", "a @b/c", ""},
		{"what only the server understands", strings.NewReader(`{"pending":0,"last_seq":[3,"x"],"results":[{"id":"a","seq":"3-g1AA"}]}`), "2-g1AA", "3-g1AA", "a", ""},
		{"nothing", strings.NewReader("\n\n" + `{"results":[],"last_seq":"7-x"}`), "7-x", "7-x", "", ""},
		{"now", strings.NewReader(`{"results":[{"seq":8,"id":"a"}],"last_seq":9}`), "", "9", "", ""},
		{"it breaks off", strings.NewReader(`{"results":[{"seq":8,"id":"a"},{"seq":9,"i`), "7", "8", "a", "it ends too early"},
		{"no sequence", strings.NewReader(`{"results":[{"id":"a"}],"last_seq":9}`), "7", "", "", `malformed packument at "results.seq": no sequence`},
		{"no last sequence", strings.NewReader(`{"results":[]}`), "7", "", "", "missing"},
		{"a page", strings.NewReader("<!doctype html>"), "7", "", "", "invalid character"},
		{"other JSON", strings.NewReader(`{"results":{"a":1},"last_seq":9}`), "7", "", "", "not an array"},
		{"an endless line", io.MultiReader(strings.NewReader(`{"results":[{"seq":8,"id":"a"},{"seq":9,"id":"`), endless{"aaaaaaaa"}), "7", "8", "a", "more than 65536 bytes"},
		{"an endless key", io.MultiReader(strings.NewReader(`{"`), endless{"aaaaaaaa"}), "7", "", "", "more than 65536 bytes"},
		{"endless white space", endless{"\n\n\n\n\n\n\n\n"}, "7", "", "", "more than 65536 bytes"},
		{"a sequence that is a book", strings.NewReader(`{"results":[],"last_seq":"` + strings.Repeat("9", 5000) + `"}`), "7", "", "", "no sequence"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var asked string
			client := changesClient(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r.URL.String()
				_, _ = io.Copy(w, tt.body) // a client that has enough goes
			})
			var names []string
			last, err := client("/registry", tt.since, func(name string) { names = append(names, name) })
			if last != tt.last || strings.Join(names, " ") != tt.names {
				t.Errorf("got %q and %q, want %q and %q", last, names, tt.last, tt.names)
			}
			if got := fmt.Sprint(err); (err != nil) != (tt.wrong != "") || !strings.Contains(got, tt.wrong) {
				t.Errorf("the error is %v, want %q", err, tt.wrong)
			}
			want := "/registry/_changes?feed=longpoll&include_docs=false&limit=1000&since=" + tt.since + "&timeout=30000"
			if tt.since == "" {
				want = "/registry/_changes?include_docs=false&limit=1000&since=now"
			}
			if asked != want {
				t.Errorf("asked for %s, want %s", asked, want)
			}
		})
	}
}

// A server that sends more than was asked for is read to a bound, and goes on from there.
func TestTooManyChanges(t *testing.T) {
	client := changesClient(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"results":[`)
		for i := 1; ; i++ {
			if _, err := fmt.Fprintf(w, `{"seq":%d,"id":"stranger"},`, i); err != nil {
				return
			}
		}
	})
	names := 0
	last, err := client("/_changes", "0", func(string) { names++ })
	if err != nil || last != "100000" || names != 100_000 {
		t.Errorf("%d names to %s, %v", names, last, err)
	}
}

func TestChangesOfAServerThatFails(t *testing.T) {
	client := changesClient(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	_, err := client("/_changes", "0", nil)
	if _, ok := fetch.RetryAt(err); !ok {
		t.Errorf("the error is %v", err)
	}
}

// A feed that knows nothing but since and limit, as npm's own does, is followed from now on.
func TestChangesOfAPlainFeed(t *testing.T) {
	var refused []string
	client := changesClient(t, func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.URL.Query() {
			if name != "limit" && name != "since" || values[0] == "now" {
				refused = append(refused, r.URL.RawQuery)
				http.Error(w, `{"error":"Bad Request"}`, http.StatusBadRequest)
				return
			}
		}
		switch r.URL.Path {
		case "/registry":
			fmt.Fprint(w, `{"db_name":"registry","engine":"npm-replicate","doc_count":3,"update_seq":41}`)
		case "/registry/_changes":
			fmt.Fprintf(w, `{"results":[{"seq":42,"id":"a","changes":[{"rev":"1-a"}]}],"last_seq":42}`)
		}
	})
	none := func(name string) { t.Errorf("%s is taken", name) }
	if last, err := client("/registry", "", none); last != "41" || err != nil {
		t.Errorf("it begins with %q: %v", last, err)
	}
	var names []string
	last, err := client("/registry", "41", func(name string) { names = append(names, name) })
	if last != "42" || err != nil || strings.Join(names, " ") != "a" || len(refused) != 1 {
		t.Errorf("%q to %q, %v; refused: %q", names, last, err, refused)
	}
}

// changesClient asks a server of its own.
func changesClient(t *testing.T, handler http.HandlerFunc) func(path, since string, take func(string)) (string, error) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	getter, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(getter.Close)
	config, err := npm.LoadConfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client := npm.NewClient(config, getter, npm.Options{})
	return func(path, since string, take func(string)) (string, error) {
		return client.Changes(context.Background(), server.URL+path, since, take)
	}
}
