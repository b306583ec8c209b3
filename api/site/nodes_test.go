package site

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs/cluster"
)

func TestNodes(t *testing.T) {
	shelf := testkit.NewShelf(t)
	now := time.Now()
	members := []cluster.Member{
		{Name: "https://one:9443", Role: "leader", Entries: 120, Since: now, Heard: now},
		{Name: "<two>", Role: "follower", Entries: 100, Lacks: 20, Behind: 12, Since: now, Heard: now.Add(-75 * time.Second), Problem: "the <bucket> is behind", Evidence: "fork-1.json"},
		{Name: "four", Role: "former leader", Heard: now.Add(-2 * time.Minute)},
		{Name: "three", Role: "follower", Behind: -1, Heard: now},
	}
	var failure error
	s := newSite(t, shelf, func(o *Options) {
		o.Nodes = func(context.Context) ([]cluster.Member, error) { return members, failure }
	})
	shows := func(wants ...string) {
		t.Helper()
		w := get(t, s, "/nodes")
		body := w.Body.String() // which checkPage reads
		checkPage(t, w)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("the page lacks %q", want)
			}
		}
	}
	shows("https://one:9443", ">leader<", "&lt;two&gt;", "12 s, 20 entries", "1 min 15 s ago", "the &lt;bucket&gt; is behind", "its file fork-1.json proves it", "has yet to catch up", ">former leader<", "2 min ago", "<strong>four</strong>: no report since")
	failure, members = errors.New("it does not answer"), members[:1]
	shows("only this node is shown: it does not answer", "https://one:9443")
	if w := get(t, newSite(t, shelf, nil), "/nodes"); w.Code != http.StatusNotFound {
		t.Errorf("without a cluster: %d", w.Code)
	}
}
