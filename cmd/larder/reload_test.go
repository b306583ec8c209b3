package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
		out, err := exec.Command("larder", "reload", "--json", "--data", data).Output()
		var done struct {
			Changed   []string
			Restarted bool
		}
		if err = errors.Join(err, json.Unmarshal(out, &done)); err != nil || done.Restarted || !slices.Equal(done.Changed, changed) {
			t.Errorf("a reload that changes %q: %s %v", changed, out, err)
		}
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
