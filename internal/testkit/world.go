package testkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// World is the program
//
//	world DIR TOKEN RELEASES
//
// It is a GitHub with its API, its git repositories and its webhooks, and an npm registry, both those of the project's tests.
// GitHub has an empty repository, example/catalogue, and takes TOKEN. The registry has a release for each folder
// RELEASES/{name}@{version}. DIR/environment has what a shell needs to know of both. It ends with SIGTERM.
func World() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatal("usage: world DIR TOKEN RELEASES")
	}
	if err := world(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal("world: ", err)
	}
}

func world(dir, token, releases string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	program, err := exec.LookPath("git")
	if err != nil {
		return err
	}
	hub := githubtest.New(token)
	hub.Folder = filepath.Join(dir, "repositories")
	git := &cgi.Handler{Path: program, Args: []string{"-c", "http.receivepack=true", "http-backend"}, Env: []string{
		"GIT_PROJECT_ROOT=" + hub.Folder, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + dir,
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, ".git/") {
			hub.ServeHTTP(w, r)
			return
		}
		git.ServeHTTP(w, r)
		if strings.HasSuffix(r.URL.Path, "/git-receive-pack") && r.Method == http.MethodPost {
			hub.Notice() // it was pushed to: webhooks are told, pull requests move on
		}
	}))
	defer server.Close()
	hub.Web = server.URL
	if err := hub.Add("example/catalogue", filepath.Join(hub.Folder, "example", "catalogue.git"), "main"); err != nil {
		return err
	}
	registry := npmtest.Start()
	defer registry.Close()
	if err := publishFolders(registry, releases); err != nil {
		return err
	}
	npm := filepath.Join(dir, "npm")
	if err := os.MkdirAll(npm, 0o700); err != nil {
		return err
	}
	var lines strings.Builder
	for _, pair := range append(registry.Env(npm), "github="+server.URL) {
		name, value, _ := strings.Cut(pair, "=")
		fmt.Fprintf(&lines, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
	file := filepath.Join(dir, "environment")
	if err := errors.Join(os.WriteFile(file+".new", []byte(lines.String()), 0o600), os.Rename(file+".new", file)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	return nil
}

// publishFolders publishes the folders NAME@VERSION in releases, a day apart.
func publishFolders(registry *npmtest.Registry, releases string) error {
	entries, err := os.ReadDir(releases)
	if err != nil {
		return err
	}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, e := range entries {
		name, version, ok := strings.Cut(e.Name(), "@")
		if !ok || !e.IsDir() {
			continue
		}
		files := map[string]string{}
		root := os.DirFS(filepath.Join(releases, e.Name()))
		err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := fs.ReadFile(root, path)
			files[path] = string(data)
			return err
		})
		if err != nil {
			return err
		}
		registry.Add(name, version, at, files)
		at = at.AddDate(0, 0, 1)
	}
	return nil
}
