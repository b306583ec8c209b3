package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// A file is one that all servers serve.
type file struct {
	Path   string `json:"path"` // of its URL, which needs no escapes
	Type   string `json:"type"`
	Coding string `json:"coding"` // that a browser gets; "" for identity
	Length int    `json:"length"` // of the body that a browser gets
}

// release is the path's beginning that all files of a release share.
func (f file) release() (prefix, pkg, version string) {
	parts := strings.SplitN(f.Path, "/", 6) // "", ajax, libs, package, version, path
	return strings.Join(parts[:5], "/") + "/", parts[3], parts[4]
}

// exportFiles gives the peers what Larder answers with, unless an earlier run did,
// and returns the files.
func (c *corpus) exportFiles(ctx context.Context) ([]file, error) {
	if data, err := os.ReadFile(c.index()); err == nil {
		var files []file
		return files, json.Unmarshal(data, &files)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	paths, err := c.paths()
	if err != nil {
		return nil, err
	}
	progress("exporting %d files from Larder's answers, for the peers", len(paths))
	s, err := startLarder(ctx, larderOptions{program: c.larder, data: c.data(), core: anyCore})
	if err != nil {
		return nil, err
	}
	defer s.stop()
	var mu sync.Mutex
	var files []file
	next := make(chan string)
	g, ctx := errgroup.WithContext(ctx)
	for range 4 {
		g.Go(func() error {
			conn, err := dial(ctx, s.address, false)
			if err != nil {
				return err
			}
			defer conn.close()
			for p := range next {
				f, err := export(conn, p, c.peers())
				if err != nil {
					return err
				}
				mu.Lock()
				files = append(files, f)
				mu.Unlock()
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(next)
		for _, p := range paths {
			select {
			case next <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	files = ofOneType(files)
	data, err := json.Marshal(files)
	if err != nil {
		return nil, err
	}
	return files, os.WriteFile(c.index(), data, 0o666)
}

// paths lists what Larder serves, but what needs escapes in a URL, and what the
// peers would take for a coding of another file.
func (c *corpus) paths() ([]string, error) {
	store, err := kvstore.Open(filepath.Join(c.data(), "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	var paths []string
	for f, err := range views.AllFiles(store) {
		if err != nil {
			return nil, err
		}
		p := "/ajax/libs/" + f.Package + "/" + f.Version + "/" + f.Path
		if plain(p) && path.Ext(p) != ".br" && path.Ext(p) != ".gz" && path.Base(p) != "index.html" {
			paths = append(paths, p)
		}
	}
	if len(paths) == 0 {
		return nil, errors.New("the corpus has no files")
	}
	return paths, nil
}

func plain(p string) bool {
	return !strings.ContainsFunc(p, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-", r)
	})
}

// export writes a file, and its codings beside it.
func export(conn *connection, p, folder string) (file, error) {
	f := file{Path: p}
	for _, accept := range []struct{ encoding, coding, suffix string }{{"identity", "", ""}, {"gzip", "gzip", ".gz"}, {chrome, "br", ".br"}} {
		a, err := conn.ask(request{Method: http.MethodGet, Path: p}, validators{}, false, accept.encoding)
		if err != nil {
			return f, err
		}
		if a.status != http.StatusOK {
			return f, fmt.Errorf("larder answers %d to %s", a.status, p)
		}
		coding := a.header.Get("Content-Encoding")
		f.Type, f.Coding, f.Length = a.header.Get("Content-Type"), coding, len(a.body) // the last one is the browser's
		if coding != accept.coding {
			continue // there is none, or it is not smaller
		}
		modified, err := http.ParseTime(a.header.Get("Last-Modified"))
		if err != nil {
			return f, err
		}
		if err := writeFile(filepath.Join(folder, p)+accept.suffix, a.body, modified); err != nil {
			return f, err
		}
	}
	return f, nil
}

func writeFile(name string, data []byte, modified time.Time) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(name, data, 0o666); err != nil {
		return err
	}
	return os.Chtimes(name, modified, modified)
}

// ofOneType drops files whose type is not that of most with their extension:
// nginx goes by the extension alone.
func ofOneType(files []file) []file {
	count := map[[2]string]int{}
	for _, f := range files {
		count[[2]string{path.Ext(f.Path), f.Type}]++
	}
	most := map[string]string{}
	for key, n := range count {
		if has, ok := most[key[0]]; !ok || n > count[[2]string{key[0], has}] || n == count[[2]string{key[0], has}] && key[1] < has {
			most[key[0]] = key[1]
		}
	}
	kept := files[:0]
	for _, f := range files {
		if path.Ext(f.Path) != "" && most[path.Ext(f.Path)] == f.Type {
			kept = append(kept, f)
		}
	}
	return kept
}

// nearest returns the script or style sheet whose Brotli-coded body is nearest to n
// bytes, in proportion.
func nearest(files []file, n int) (file, error) {
	var best file
	distance := math.Inf(1)
	for _, f := range files {
		if extension := path.Ext(f.Path); f.Coding != "br" || f.Length == 0 || extension != ".js" && extension != ".css" {
			continue
		}
		d := math.Abs(math.Log(float64(f.Length) / float64(n)))
		if d < distance || d == distance && f.Path < best.Path {
			best, distance = f, d
		}
	}
	if best.Path == "" {
		return best, errors.New("no script and no style sheet has a Brotli coding")
	}
	return best, nil
}
