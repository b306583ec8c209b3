package browsertest

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// TestLinks follows each link of each page to its address and to its place on the page there.
func TestLinks(t *testing.T) {
	t.Parallel()
	instance, _ := open(t)
	answers := map[string]*http.Response{}
	places := map[string]map[string]bool{} // of a page, the ids
	links := map[string][]*url.URL{}
	get := func(address string) *http.Response {
		if answers[address] != nil {
			return answers[address]
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "text/html,*/*;q=0.8")
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		answers[address] = w
		if !strings.HasPrefix(w.Header.Get("Content-Type"), "text/html") || strings.Contains(address, "/ajax/") {
			return w
		}
		doc, err := html.Parse(w.Body)
		if err != nil {
			t.Fatalf("%s: %v", address, err)
		}
		places[address] = map[string]bool{}
		for n := range doc.Descendants() {
			for _, a := range n.Attr {
				switch {
				case a.Key == "id":
					places[address][a.Val] = true
				case a.Key == "href", a.Key == "src":
					if to, err := w.Request.URL.Parse(a.Val); err != nil {
						t.Errorf("%s: %v", address, err)
					} else if base := to.Scheme + "://" + to.Host; base == instance.address || base == instance.private {
						links[address] = append(links[address], to)
					}
				}
			}
		}
		return w
	}
	for _, p := range pages {
		base := instance.address
		if strings.HasPrefix(p.path, "/rooms") {
			base = instance.private
		}
		get(base + p.path)
		for _, to := range links[base+p.path] {
			place := to.Fragment
			to.Fragment = ""
			if to.Path == "/logs/stream" || to.Path == "/rooms.stream" {
				continue // they do not end
			}
			if w := get(to.String()); w.StatusCode >= 400 && to.String() != base+p.path { // but the page itself may be a failure
				t.Errorf("%s leads to %s, which answers %d", p.name, to, w.StatusCode)
			} else if ids := places[to.String()]; ids != nil && place != "" && !ids[place] {
				t.Errorf("%s leads to %s#%s, and there is no such place", p.name, to, place)
			}
		}
	}
	if len(answers) < 2*len(pages) {
		t.Errorf("the pages lead to %d addresses", len(answers))
	}
}
