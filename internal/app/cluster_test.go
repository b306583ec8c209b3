package app

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/notify"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/logs/cluster"
)

// Nodes answer those only that have the cluster's key.
func TestNodeTLS(t *testing.T) {
	key := func() *cluster.Key {
		k, err := cluster.OpenKey(t.TempDir(), true)
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
	ask := func(k *cluster.Key, bare bool) error {
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
	// An attacker on the network: without TLS, with an older one, and with a certificate that names a node.
	if response, err := http.Get(strings.Replace(server.URL, "https", "http", 1)); err == nil {
		if response.Body.Close(); response.StatusCode == http.StatusOK {
			t.Error("a client without TLS gets an answer")
		}
	}
	_, forged, err := key().TLS()
	if err != nil {
		t.Fatal(err)
	}
	for name, version := range map[string]uint16{"with a forged certificate": tls.VersionTLS13, "with an older TLS": tls.VersionTLS12} {
		connection, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, Certificates: forged.Certificates, MinVersion: tls.VersionTLS12, MaxVersion: version})
		if err != nil {
			continue
		}
		_, _ = io.WriteString(connection, "GET / HTTP/1.1\r\nHost: node.larder.internal\r\n\r\n")
		if text, _ := io.ReadAll(connection); strings.Contains(string(text), "hello") {
			t.Errorf("a client %s gets an answer", name)
		}
		connection.Close()
	}
}

// The next leader gets the outbox of the leader in place of its own, and nothing else.
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
	webhooks := string(durable.RowPrefixes("webhooks")[0]) + "all"
	set(from, kvstore.Durable, webhooks, "new")
	set(from, kvstore.Durable, string(durable.RowPrefixes("purge")[0])+"demo@1.0.0", "purge")
	set(from, kvstore.Queue, "t1", "squeeze")
	set(from, kvstore.Upstreams, string(kvstore.Key("jquery", "downloads")), `{"downloads": 7}`)
	set(from, kvstore.Upstreams, string(kvstore.Key("jquery", "state")), "validators")
	set(to, kvstore.Durable, webhooks, "old")
	set(to, kvstore.Durable, string(durable.RowPrefixes("purge")[0])+"old@1.0.0", "old")
	set(to, kvstore.Queue, "t2", "stays")
	demand, err := readDownloadCounts(from)
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
	if want := []string{"purge", "new", "stays", `{"downloads": 7}`}; !slices.Equal(got, want) {
		t.Errorf("the next node has %q, want %q", got, want)
	}
	if found, err := sources.ReadAllPopularityCounts(to); err != nil || found["jquery"].Downloads != 7 {
		t.Errorf("demand: %v, %v", found, err)
	}
}
