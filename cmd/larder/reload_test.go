package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReloadWithoutRestart reloads what changes while the role goes on: certificates, rooms, hosts, time limits and the log level. Each is in
// force when the command returns.
func TestReloadWithoutRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	t.Parallel()
	dir, data := t.TempDir(), t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair := func(name string) {
		t.Helper()
		if err := makeCertificate(path(name+".pem"), path(name+".key")); err != nil {
			t.Fatal(err)
		}
	}
	configure := func(certificate, more string) {
		write("larder.yaml", "tls-cert: "+path(certificate+".pem")+"\ntls-key: "+path(certificate+".key")+"\nrooms: "+path("rooms.yaml")+"\n"+more)
	}
	room := func(total string) string {
		return "- {name: shop, path: /shop, total_active_users: " + total + ", new_users_per_minute: 5}\n"
	}
	stockNoise(t, data, 1, 1000)
	pair("one")
	pair("two")
	write("rooms.yaml", room("10"))
	configure("one", "")
	p := startOn(t, data, nil, "--private-listen", "off", "--config", path("larder.yaml"))

	presents := func(certificate string) {
		t.Helper()
		c, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		want, err := tls.LoadX509KeyPair(path(certificate+".pem"), path(certificate+".key"))
		if err != nil {
			t.Fatal(err)
		}
		if !c.ConnectionState().PeerCertificates[0].Equal(want.Leaf) {
			t.Errorf("it presents another certificate than %s", certificate)
		}
	}
	limit := func(want string) {
		t.Helper()
		if out, err := exec.Command("larder", "room", "status", "shop", "--json", "--data", data).CombinedOutput(); err != nil || !strings.Contains(string(out), `"total_active_users": `+want) {
			t.Errorf("the room has another limit than %s: %s %v", want, out, err)
		}
	}
	reload := func(changed ...string) {
		t.Helper()
		reloadLive(t, data, changed...)
	}
	presents("one")
	pair("one") // renewed
	write("rooms.yaml", room("20"))
	reload("rooms")
	presents("one")
	limit("20")
	configure("two", "drain: 7s\nlame-duck: 0s\nlog-level: error\nprivate-hosts: [ops.example]\n")
	reload("tls-cert", "tls-key", "drain", "private-hosts")
	presents("two")
	limit("20")

	// Nothing changes if one file is invalid.
	write("rooms.yaml", room("thirty"))
	configure("one", "")
	if out, err := exec.Command("larder", "reload", "--data", data).CombinedOutput(); err == nil || !strings.Contains(string(out), "rooms.yaml:1") {
		t.Errorf("a reload with an invalid rooms file: %s", out)
	}
	presents("two")
	limit("20")
}

// reloadLive reloads settings that need no other run of the role.
func reloadLive(t *testing.T, data string, changed ...string) {
	t.Helper()
	out, err := exec.Command("larder", "reload", "--json", "--data", data).Output()
	var done struct {
		Changed   []string
		Restarted bool
	}
	if err = errors.Join(err, json.Unmarshal(out, &done)); err != nil || done.Restarted || !slices.Equal(done.Changed, changed) {
		t.Errorf("a reload that changes %q: %s %v", changed, out, err)
	}
}

// TestReloadOfLimits lowers and raises the limits of connections and memory while the process serves, without another run of the role.
func TestReloadOfLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	t.Parallel()
	data, config := t.TempDir(), filepath.Join(t.TempDir(), "larder.yaml")
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := stockNoise(t, data, 40, 50_000)
	configure("")
	p := startServe(t, data, nil, "--config", config)
	const cached = `larder_assets_cache_bytes{cache="bodies"}`
	if p.load(files, len(files)); p.metric(cached) < 1_900_000 {
		t.Errorf("the cache has %d bytes of 2 MB", p.metric(cached))
	}
	connect := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", strings.TrimPrefix(p.public, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	get := func(c net.Conn) {
		t.Helper()
		fmt.Fprint(c, "GET /ajax/libs/noise/1.0.0/0.bin HTTP/1.1\r\nHost: larder.example\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
		if err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%+v, %v", r, err)
		}
	}
	idle := connect()
	get(idle)

	configure("max-connections: 1\ncache: 1MiB\nsending: 2MiB\n")
	reloadLive(t, data, "max-connections", "cache", "sending")
	if _, err := idle.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("beyond a lower limit, an idle connection is read with %v, want %v", err, io.EOF)
	}
	for deadline := time.Now().Add(time.Minute); p.metric(cached) > 1<<20; {
		if time.Now().After(deadline) {
			t.Fatalf("the cache has %d bytes, more than its new size", p.metric(cached))
		}
		time.Sleep(50 * time.Millisecond)
	}

	configure("max-connections: 100\ncache: 64MiB\nsending: 2MiB\n")
	reloadLive(t, data, "max-connections", "cache")
	if p.load(files, len(files)); p.metric(cached) < 1_900_000 {
		t.Errorf("the cache that has grown has %d bytes of 2 MB", p.metric(cached))
	}
	connections := []net.Conn{connect(), connect(), connect()} // all stay open
	for range 2 {
		for _, c := range connections {
			get(c)
		}
	}
}
