package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

const (
	perRelease   = 35 // files
	perPackage   = 50 // releases
	coldContents = 500
	coldBudget   = time.Second
)

// measureColdStart measures how long it takes from the start of `larder up` over a
// large store to its first answer: with what the system remembers of the store's
// files, and with none of it.
func measureColdStart(ctx context.Context, o options) error {
	folder := filepath.Join(o.cache, fmt.Sprintf("cold-start-%d", o.rows))
	data, filled := filepath.Join(folder, "data"), filepath.Join(folder, "filled")
	if _, err := os.Stat(filled); err != nil {
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
		if err := fillRows(ctx, filepath.Join(data, "store"), o.rows); err != nil {
			return err
		}
		if err := os.WriteFile(filled, nil, 0o666); err != nil {
			return err
		}
	}
	catalogue := filepath.Join(folder, "catalogue")
	if err := writePackage(catalogue, "unknown", "unknown"); err != nil {
		return err
	}
	// The first start writes out what filling left in the log of the store.
	if _, err := coldStartOnce(ctx, o, data, catalogue, 0); err != nil {
		return err
	}
	fmt.Printf("larder up over %d files, %d releases, to the first answer (budget %v)\n", o.rows, o.rows/perRelease, coldBudget)
	for _, state := range []string{"remembered by the system", "forgotten by the system"} {
		var port, first, next, peak []float64
		for round := range max(5, o.rounds) {
			if state == "forgotten by the system" {
				if err := forget(data); err != nil {
					return err
				}
			}
			s, err := coldStartOnce(ctx, o, data, catalogue, round)
			if err != nil {
				return err
			}
			port, first, next, peak = append(port, s.port.Seconds()), append(first, s.first.Seconds()), append(next, s.next.Seconds()), append(peak, float64(s.peak))
		}
		verdict := "met"
		if median(first) > coldBudget.Seconds() {
			verdict = "MISSED"
		}
		fmt.Printf("store %s: connected after %.0f ms, first answer after %.0f ms (%s), nine other packages' after %.0f ms; peak memory by then %.0f MB\n",
			state, 1e3*median(port), 1e3*median(first), verdict, 1e3*median(next), median(peak)/1e6)
	}
	return nil
}

type coldSample struct {
	port, first, next time.Duration // since the start
	peak              int64
}

func coldStartOnce(ctx context.Context, o options, data, catalogue string, round int) (s coldSample, err error) {
	address, err := freeAddress()
	if err != nil {
		return s, err
	}
	cmd := exec.Command(o.larder, "up", "--data", data, "--catalogue", catalogue, "--listen", address, "--private-listen", "off", "--log-level", "error")
	cmd.Env = append(os.Environ(), "npm_config_registry=http://127.0.0.1:9/") // nothing is to be fetched
	start := time.Now()
	larder, err := launch(ctx, "larder", cmd, address, anyCore, false)
	if err != nil {
		return s, err
	}
	defer larder.stop()
	s.port = time.Since(start)
	conn, err := dial(ctx, address, false)
	if err != nil {
		return s, err
	}
	defer conn.close()
	for i := range 10 {
		row := (o.rows/10*i + round*12_345) % (o.rows / perRelease * perRelease)
		a, err := conn.ask(request{Method: http.MethodGet, Path: rowPath(row)}, validators{}, false, chrome)
		if err != nil {
			return s, err
		}
		if a.status != http.StatusOK {
			return s, fmt.Errorf("%s: status %d", rowPath(row), a.status)
		}
		if s.next = time.Since(start); i == 0 {
			s.first = s.next
		}
	}
	s.peak = larder.process.peak()
	return s, nil
}

// fillRows publishes releases until there are so many files, by the same code as
// the bot. There are few contents, which many files share.
func fillRows(ctx context.Context, folder string, rows int) error {
	progress("publishing %d files in %s", rows, folder)
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return err
	}
	store, err := kvstore.Open(folder, kvstore.Options{})
	if err != nil {
		return err
	}
	err = publishRows(ctx, store, rows)
	return errors.Join(err, store.Close())
}

func publishRows(ctx context.Context, store *kvstore.Store, rows int) error {
	log, err := logs.Open(store)
	if err != nil {
		return err
	}
	contents := make([]logs.File, coldContents)
	for i := range contents {
		data := fmt.Appendf(nil, "export const module = %d;\n", i)
		contents[i] = logs.File{Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data), Origin: logs.Upstream}
		if err := putPlain(store, data); err != nil {
			return err
		}
	}
	const atOnce = 200 // releases in a commit
	released := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	releases := rows / perRelease
	for from := 0; from < releases; from += atOnce {
		if err := ctx.Err(); err != nil {
			return err
		}
		if from%(50*atOnce) == 0 {
			progress("%d of %d releases", from, releases)
		}
		err := log.Update(func(tx *logs.Tx) error {
			for release := from; release < min(releases, from+atOnce); release++ {
				if err := publishRow(tx, store, release, contents, released); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func publishRow(tx *logs.Tx, store *kvstore.Store, release int, contents []logs.File, released time.Time) error {
	pkg, version := rowRelease(release)
	entry := logs.Entry{Time: released, Actor: "operator", Package: pkg}
	if release%perPackage == 0 {
		data := fmt.Appendf(nil, `{"name":%q,"filename":"module-0.min.js"}`, pkg)
		entry.Kind, entry.PackageJSON = logs.PackageAdded, kvstore.Sum(data)
		if err := errors.Join(putPlain(store, data), views.Record(tx, views.Change{Entry: entry, PackageJSON: data})); err != nil {
			return err
		}
		entry.PackageJSON = kvstore.Hash{}
	}
	m := &logs.Manifest{Package: pkg, Version: version, Released: released, Source: logs.Source{Type: "import", Name: pkg}}
	for i := range perRelease {
		f := contents[(release*perRelease+i)%len(contents)]
		f.Path = rowFile(i)
		m.Files = append(m.Files, f)
	}
	data, err := m.Encode()
	if err != nil {
		return err
	}
	entry.Kind, entry.Version, entry.Released, entry.Manifest = logs.Published, version, released, kvstore.Sum(data)
	return errors.Join(putPlain(store, data), views.Record(tx, views.Change{Entry: entry, Manifest: m}))
}

func putPlain(store *kvstore.Store, data []byte) error {
	return store.PutContent(kvstore.Sum(data), int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}})
}

func rowRelease(release int) (pkg, version string) {
	n := release % perPackage
	return fmt.Sprintf("library-%d", release/perPackage), fmt.Sprintf("%d.%d.%d", n/20, n/4%5, n%4)
}

func rowFile(i int) string { return fmt.Sprintf("dist/components/module-%02d.min.js", i) }

func rowPath(row int) string {
	pkg, version := rowRelease(row / perRelease)
	return "/ajax/libs/" + pkg + "/" + version + "/" + rowFile(row%perRelease)
}

// forget has the system forget what it remembers of a folder's files.
func forget(folder string) error {
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return dropPages(f)
	})
}
