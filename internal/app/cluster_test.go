package app

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs/cluster"
)

// Nodes answer those only that have the cluster's key.
func TestNodeTLS(t *testing.T) {
	key := func() *cluster.SideKey {
		k, err := cluster.OpenSideKey(t.TempDir(), true)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	own := key()
	listen, _, err := own.TLS()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	server.TLS = listen
	server.StartTLS()
	defer server.Close()
	ask := func(k *cluster.SideKey, bare bool) error {
		_, config, err := k.TLS()
		if err != nil {
			t.Fatal(err)
		}
		if bare {
			config.Certificates = nil
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		response, err := client.Get(server.URL)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
		return err
	}
	if err := ask(own, false); err != nil {
		t.Errorf("a node: %v", err)
	}
	if err := ask(own, true); err == nil {
		t.Error("a client without a certificate gets an answer")
	}
	if err := ask(key(), false); err == nil {
		t.Error("a node of another cluster gets an answer")
	}
}

// What the node that writes has to do arrives at the next one, in the place of what that has, and nothing else does.
func TestOutboxTravels(t *testing.T) {
	from, to := testkit.NewShelf(t).Store, testkit.NewShelf(t).Store
	set := func(s *kvstore.Store, ns kvstore.Namespace, key, value string) {
		t.Helper()
		b := s.NewBatch()
		defer b.Close()
		b.Set(ns, []byte(key), []byte(value))
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	webhooks := string(durable.Prefixes("webhooks")[0]) + "all"
	set(from, kvstore.Durable, webhooks, "new")
	set(from, kvstore.Queue, "p1", "purge")
	set(from, kvstore.Queue, "t1", "squeeze")
	set(from, kvstore.Upstreams, string(kvstore.Key("jquery", "downloads")), `{"downloads": 7}`)
	set(from, kvstore.Upstreams, string(kvstore.Key("jquery", "state")), "validators")
	set(to, kvstore.Durable, webhooks, "old")
	set(to, kvstore.Queue, "p2", "old")
	set(to, kvstore.Queue, "t2", "stays")
	demand, err := readDemand(from)
	if err != nil {
		t.Fatal(err)
	}
	data, err := notify.Snapshot(from, demand)
	if err != nil {
		t.Fatal(err)
	}
	if err := notify.Replace(to, data, func(*kvstore.Batch) {}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ns := range []kvstore.Namespace{kvstore.Durable, kvstore.Queue, kvstore.Upstreams} {
		for item, err := range to.Scan(ns, kvstore.Range{}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(item.Value))
		}
	}
	if want := []string{"new", "purge", "stays", `{"downloads": 7}`}; !slices.Equal(got, want) {
		t.Errorf("the next node has %q, want %q", got, want)
	}
	if found, err := bot.ReadDemand(to); err != nil || found["jquery"].Downloads != 7 {
		t.Errorf("demand: %v, %v", found, err)
	}
}
