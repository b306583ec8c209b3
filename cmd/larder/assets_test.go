package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// TestAssets runs the scripts of the asset contract against the real program,
// which has fetched the files from a registry itself.
func TestAssets(t *testing.T) {
	t.Parallel()
	registry := npmtest.New(t)
	for _, r := range testkit.Releases() {
		files := make(map[string]string)
		for path, data := range r.Files {
			files["files/"+path] = string(data)
		}
		registry.Add(r.Package, r.Version, testkit.Released, files)
	}
	dir := t.TempDir()
	catalogue := filepath.Join(dir, "demo.json")
	if err := os.WriteFile(catalogue, []byte(`{"name": "demo", "description": "A test.", "keywords": ["test"], "filename": "demo.js",
		"repository": {"type": "git", "url": "https://example.com/demo.git"}, "optimization": {"js": false, "css": false},
		"autoupdate": {"source": "npm", "target": "demo", "fileMap": [{"basePath": "files", "files": ["**", "**/.*"]}]}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	larder := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "larder", args...) // testscript.Main has put it there
		cmd.Env = registryEnviron(t, registry)
		return cmd
	}
	if out, err := larder(t.Context(), "bot", "--once", "--data", data, "--catalogue", dir, "--private-listen", "off").CombinedOutput(); err != nil {
		t.Fatalf("larder bot --once: %v\n%s", err, out)
	}
	withdraw(t, filepath.Join(data, "store"))

	ctx, cancel := context.WithCancel(context.Background())
	serve := larder(ctx, "serve", "--data", data, "--listen", "127.0.0.1:0", "--private-listen", "off")
	serve.Cancel = func() error { return serve.Process.Signal(os.Interrupt) }
	serve.WaitDelay = time.Minute
	stdout, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := serve.Wait(); err != nil && serve.ProcessState.ExitCode() != 0 {
			t.Errorf("larder serve: %v", err)
		}
	})
	var url string
	lines := bufio.NewScanner(stdout)
	for url == "" && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "Larder serves "); ok {
			url, _, _ = strings.Cut(rest, " ")
		}
	}
	if url == "" {
		t.Fatal("larder serve did not say where")
	}
	go func() {
		for lines.Scan() {
		}
	}()
	testkit.Run(t, url, os.DirFS("../../server/testdata"))
}

// withdraw withdraws what the scripts expect to be withdrawn.
func withdraw(t *testing.T, dir string) {
	t.Helper()
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range testkit.Releases() {
		if r.Withdrawn == "" {
			continue
		}
		if err := testkit.Withdraw(store, log, r); err != nil {
			t.Fatal(err)
		}
	}
}
