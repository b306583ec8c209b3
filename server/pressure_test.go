package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server"
)

// However many ask for a file that nobody asked for before, it is read once.
func TestStampedeOnColdFileReadsOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		registry := prometheus.NewRegistry()
		_, url := start(t, server.Options{Store: fixture(t), Registerer: registry}, server.HTTPOptions{})
		address := url[len("http://"):]
		const clients = 1000
		ready, begin := make(chan bool, clients), make(chan struct{})
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				conn, err := net.Dial("tcp", address)
				ready <- err == nil
				if err != nil {
					return
				}
				defer conn.Close()
				<-begin
				fmt.Fprint(conn, "GET /ajax/libs/demo/1.0.0/noise.bin HTTP/1.1\r\n"+browser+"\r\n")
				r, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if n, err := io.Copy(io.Discard, r.Body); n != 300<<10 || err != nil || r.StatusCode != http.StatusOK {
					t.Errorf("%s, %d bytes and %v", r.Status, n, err)
				}
			})
		}
		for range clients {
			if !<-ready {
				t.Error("one cannot connect")
			}
		}
		close(begin)
		all.Wait()
		for _, cache := range []string{"rows", "bodies"} {
			if n := counter(t, registry, "larder_assets_cache_load_seconds", "cache", cache); n != 1 {
				t.Errorf("%s were loaded %v times for %d requests, want once", cache, n, clients)
			}
		}
	})
}

// What is published or withdrawn is so for the next request of a connection that has been
// answered before.
func TestLogIsFollowedAtOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		one := release("1.0.0", "a.js", text)
		store := openStore(t, []testkit.Release{one})
		assets, url := start(t, server.Options{Store: store}, server.HTTPOptions{})
		conn, err := net.Dial("tcp", url[len("http://"):])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		answers := bufio.NewReader(conn)
		want := func(version string, status int) {
			t.Helper()
			fmt.Fprintf(conn, "GET /ajax/libs/lib/%s/a.js HTTP/1.1\r\n%s\r\n", version, browser)
			r, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != status {
				t.Errorf("%s: %s and %v, want %d", version, r.Status, err, status)
			}
		}
		want("1.0.0", 200)
		want("2.0.0", 404)
		if err := testkit.Publish(store, []testkit.Release{release("2.0.0", "a.js", text)}); err != nil {
			t.Fatal(err)
		}
		want("2.0.0", 200)
		log, err := logs.Open(store)
		if err != nil {
			t.Fatal(err)
		}
		one.Withdrawn = "the author asked for it"
		if err := testkit.Withdraw(store, log, one); err != nil {
			t.Fatal(err)
		}
		assets.Forget("lib", "1.0.0")
		want("1.0.0", 410)
		want("2.0.0", 200)
	})
}
