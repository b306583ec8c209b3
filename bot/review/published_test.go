package review

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/fetch"
)

func TestPublishedBy(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/libraries/slider?fields=version":
			fmt.Fprint(w, `{"version":"1.0.0+b 1"}`)
		case "/libraries/slider/1.0.0+b%201?fields=rawFiles,files,sri":
			fmt.Fprint(w, `{"rawFiles":["a.js","a.txt"],"files":["a.js"],"sri":{"a.js":"sha512-x"}}`)
		case "/libraries/empty?fields=version":
			fmt.Fprint(w, `{}`)
		case "/libraries/broken?fields=version":
			fmt.Fprint(w, `<html>`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer api.Close()
	client, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	published, err := PublishedBy(client, api.URL+"/")
	if err != nil {
		t.Fatal(err)
	}
	got, err := published(t.Context(), "slider")
	if want := (&Published{"1.0.0+b 1", map[string]string{"a.js": "sha512-x", "a.txt": ""}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"empty", "none"} {
		if got, err := published(t.Context(), name); got != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := published(t.Context(), "broken"); err == nil || !strings.Contains(err.Error(), "not that of the API") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "cdn.example", "https://user:pw@cdn.example"} {
		if _, err := PublishedBy(client, bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
