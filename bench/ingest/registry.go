package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
)

// A registry is an npm registry on loopback that keeps what it gives out in a
// folder and gets what is missing from the registry that npm is configured
// with, one thing at a time. With it the network is not what is measured.
type registry struct {
	server  *httptest.Server
	folder  string
	client  *npm.Client
	closing func()

	fetched atomic.Int64 // things that were not in the folder
}

// packument is what is kept of a package: what an installer needs.
type packument struct {
	Name     string             `json:"name"`
	DistTags map[string]string  `json:"dist-tags"`
	Versions map[string]release `json:"versions"`
	Time     map[string]string  `json:"time"`
}

type release struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Dist    dist   `json:"dist"`
}

type dist struct {
	Tarball   string `json:"tarball"` // upstream's in the folder, this registry's in answers
	Integrity string `json:"integrity,omitempty"`
	Shasum    string `json:"shasum,omitempty"`
}

func startRegistry(folder string) (*registry, error) {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return nil, err
	}
	config, err := npm.LoadConfig(".")
	if err != nil {
		return nil, err
	}
	getter, err := fetch.New(fetch.Options{Concurrency: 1})
	if err != nil {
		return nil, err
	}
	r := &registry{folder: folder, client: npm.NewClient(config, getter, npm.Options{}), closing: getter.Close}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/tarballs/{name}/{version}", r.serveTarball)
	mux.HandleFunc("GET /", r.servePackument)
	r.server = httptest.NewServer(mux)
	return r, nil
}

func (r *registry) close() {
	r.server.Close()
	r.closing()
}

// env is the environment in which npm's configuration is this registry alone.
func (r *registry) env(empty string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(strings.ToLower(v), "npm_config_") {
			env = append(env, v)
		}
	}
	return append(env,
		"npm_config_registry="+r.server.URL+"/",
		"npm_config_userconfig="+filepath.Join(empty, "userconfig"),
		"npm_config_globalconfig="+filepath.Join(empty, "globalconfig"))
}

func (r *registry) servePackument(w http.ResponseWriter, q *http.Request) {
	p, err := r.packument(q.Context(), strings.TrimPrefix(q.URL.Path, "/"))
	if err != nil {
		fail(w, err)
		return
	}
	for version, v := range p.Versions {
		v.Dist.Tarball = r.server.URL + "/-/tarballs/" + url.PathEscape(p.Name) + "/" + url.PathEscape(version)
		p.Versions[version] = v
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(p)
}

func (r *registry) serveTarball(w http.ResponseWriter, q *http.Request) {
	name, version := q.PathValue("name"), q.PathValue("version")
	path := filepath.Join(r.folder, url.PathEscape(name), url.PathEscape(version)+".tgz")
	if err := r.ensure(path, func(f *os.File) error { return r.fetchTarball(q.Context(), name, version, f) }); err != nil {
		fail(w, err)
		return
	}
	http.ServeFile(w, q, path)
}

func fail(w http.ResponseWriter, err error) {
	status := http.StatusBadGateway
	if errors.Is(err, npm.ErrNotFound) {
		status = http.StatusNotFound
	}
	http.Error(w, err.Error(), status)
}

// packument reads what is kept of a package, and gets it if there is nothing.
func (r *registry) packument(ctx context.Context, name string) (*packument, error) {
	path := filepath.Join(r.folder, url.PathEscape(name), "packument.json")
	if err := r.ensure(path, func(f *os.File) error { return r.fetchPackument(ctx, name, f) }); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := new(packument)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%s is damaged, remove it: %w", path, err)
	}
	return p, nil
}

func (r *registry) fetchPackument(ctx context.Context, name string, f *os.File) error {
	upstream, _, err := r.client.Packument(ctx, name, npm.Validators{})
	if err != nil {
		return err
	}
	p := packument{Name: name, DistTags: upstream.DistTags, Versions: map[string]release{}, Time: map[string]string{}}
	for version, v := range upstream.Versions {
		p.Versions[version] = release{Name: name, Version: version, Dist: dist{Tarball: v.Tarball, Integrity: v.Integrity, Shasum: v.Shasum}}
	}
	for version, t := range upstream.Time {
		p.Time[version] = t.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return json.NewEncoder(f).Encode(p)
}

func (r *registry) fetchTarball(ctx context.Context, name, version string, f *os.File) error {
	p, err := r.packument(ctx, name)
	if err != nil {
		return err
	}
	v, ok := p.Versions[version]
	if !ok {
		return npm.ErrNotFound
	}
	return r.client.Tarball(ctx, npm.Version{
		Package: name, Version: version,
		Tarball: v.Dist.Tarball, Integrity: v.Dist.Integrity, Shasum: v.Dist.Shasum,
	}, f)
}

// ensure makes the file at path with write unless it is there, whole or not at all.
func (r *registry) ensure(path string, write func(*os.File) error) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "partial-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	r.fetched.Add(1)
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
