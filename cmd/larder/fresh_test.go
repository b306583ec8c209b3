package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// slowRegistry is a registry whose tarballs, but for those of version 9.0.0, are as slow as slow says: so a backlog stays.
type slowRegistry struct {
	*npmtest.Registry
	slow atomic.Bool
	held atomic.Int64 // tarballs that were asked for
	end  chan struct{}
}

func (r *slowRegistry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if strings.HasSuffix(request.URL.Path, ".tgz") && !strings.HasSuffix(request.URL.Path, "-9.0.0.tgz") && r.slow.Load() {
		r.held.Add(1)
		select {
		case <-time.After(time.Second):
		case <-request.Context().Done():
			return
		case <-r.end:
		}
	}
	r.Registry.ServeHTTP(w, request)
}

// TestFresh has a process with a long backlog of releases, and tells it of new ones by the webhook and by the change feed.
// It measures how long it takes until a client gets a file of them. `make fresh` does it with a backlog of 40,000.
func TestFresh(t *testing.T) {
	t.Parallel()
	backlog, events, releases := 600, 6, 10 // of a package
	if n, whole := testCount(t, "BACKLOG", 0); whole {
		backlog, events, releases = n, 40, 40
	}
	registry := &slowRegistry{Registry: npmtest.New(t), end: make(chan struct{})}
	registry.slow.Store(true)
	front := httptest.NewServer(registry)
	defer front.Close()
	defer close(registry.end)
	dir := t.TempDir()
	registry.URL = front.URL
	const secret = "0123456789abcdef"
	catalogue := filepath.Join(dir, "catalogue", "packages", "p")
	if err := os.MkdirAll(catalogue, 0o700); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"dist/demo.js": "export function demo(argument) {\n  return argument + 1;\n}\n"}
	release := func(name, version string, at time.Time) {
		registry.Add(name, version, at, files)
	}
	begun := time.Now()
	for i := range backlog / releases {
		name := fmt.Sprintf("p%d", i)
		for v := range releases {
			release(name, fmt.Sprintf("1.%d.0", v), begun.Add(time.Duration(v-releases)*24*time.Hour))
		}
		text := strings.ReplaceAll(`{"name": "NAME", "description": "A test.", "keywords": ["test"], "filename": "demo.js",
			"repository": {"type": "git", "url": "https://example.com/NAME.git"},
			"autoupdate": {"source": "npm", "target": "NAME", "fileMap": [{"basePath": "dist", "files": ["*.js"]}]}}`, "NAME", name)
		if err := os.WriteFile(filepath.Join(catalogue, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	ready := filepath.Join(dir, "ready")
	cmd := exec.Command("larder", "up", "--data", filepath.Join(dir, "data"), "--catalogue", filepath.Join(dir, "catalogue"), "--ready-file", ready, "--log-level", "error",
		"--listen", "127.0.0.1:0", "--private-listen", "off", "--feed", front.URL, "--releases", strconv.Itoa(releases))
	cmd.Env = append(registryEnviron(t, registry.Registry), "LARDER_HOOK_SECRET="+secret)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := <-ended; err != nil {
			t.Errorf("larder up: %v\n%s", err, out.String())
		}
	}()
	patiently := func(what string, until func() bool) time.Duration {
		t.Helper()
		asked := time.Now()
		for !until() {
			if len(ended) > 0 {
				t.Fatalf("%s: the process has ended", what)
			}
			if time.Since(asked) > 15*time.Minute {
				t.Fatalf("%s: not within a quarter of an hour", what)
			}
			time.Sleep(5 * time.Millisecond)
		}
		return time.Since(asked)
	}
	var address string
	patiently("the start", func() bool {
		text, err := os.ReadFile(ready)
		address = strings.TrimSpace(string(text))
		return err == nil
	})
	patiently("downloads that wait", func() bool { return registry.held.Load() >= 4 })
	patiently("the feed", func() bool { return registry.Count("/_changes") > 0 })
	if backlog > 1000 {
		patiently("the whole backlog", func() bool { return registry.Count("/p") >= backlog/releases })
	}
	prepared := time.Since(begun)

	times := map[string][]time.Duration{}
	for i := range events {
		// Some are of packages at the end of the backlog, which have not one release yet.
		name := fmt.Sprintf("p%d", (i*7919+backlog/releases-1)%(backlog/releases))
		by := "hook"
		told := time.Now()
		if i%2 == 0 {
			by = "feed"
			release(name, "9.0.0", told)
		} else {
			registry.Quietly(func() { release(name, "9.0.0", told) })
			payload := fmt.Sprintf(`{"packages": [%q]}`, name)
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write([]byte(payload))
			r, err := http.NewRequest(http.MethodPost, address+"/hooks/release", strings.NewReader(payload))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusAccepted {
				t.Fatalf("the hook answered %d", answer.StatusCode)
			}
		}
		patiently(name+" by the "+by, func() bool {
			answer, err := http.Get(address + "/ajax/libs/" + name + "/9.0.0/demo.js")
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			_, _ = io.Copy(io.Discard, answer.Body)
			return answer.StatusCode == http.StatusOK
		})
		times[by] = append(times[by], time.Since(told))
	}
	done := registry.held.Load()
	for _, by := range []string{"hook", "feed"} {
		all := times[by]
		slices.Sort(all)
		t.Logf("backlog of %d releases (%d downloads begun, %v after the start), event by %s to served: %d events, median %v, longest %v",
			backlog, done, prepared.Round(time.Second), by, len(all), all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
	if done >= int64(backlog) {
		t.Errorf("there was no backlog: %d downloads were begun", done)
	}
}
