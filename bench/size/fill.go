//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// What a store is made of. The public service had 4,100 libraries with 200,000 releases of 7 million files in all.
const (
	perRelease = 35 // files
	// changing is in how many releases of a library each file has another content.
	changing = 5
	// atOnce is how many releases a commit publishes.
	atOnce = 200
)

// perLibrary is how many releases a library has.
var perLibrary = 49

// fill publishes releases in a folder until there are that many files, by the code that the bot uses. A fifth of the files
// of each release are new, the others are those of the release before.
func fill(ctx context.Context, folder string, files int) error {
	if _, err := os.Stat(filepath.Join(folder, "filled")); err == nil {
		return nil
	}
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(filepath.Join(folder, "data"), 0o700)); err != nil {
		return err
	}
	store, err := kvstore.Open(filepath.Join(folder, "data", "store"), kvstore.Options{})
	if err != nil {
		return err
	}
	if err := errors.Join(publish(ctx, store, files/perRelease), store.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "filled"), nil, 0o666)
}

func publish(ctx context.Context, store *kvstore.Store, releases int) error {
	log, err := logs.Open(store)
	if err != nil {
		return err
	}
	for from := 0; from < releases; from += atOnce {
		if err := ctx.Err(); err != nil {
			return err
		}
		if from%(50*atOnce) == 0 {
			progress("published %d of %d releases", from, releases)
		}
		err := log.Update(func(tx *logs.Tx) error {
			for release := from; release < min(releases, from+atOnce); release++ {
				if err := publishOne(tx, store, release); err != nil {
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

func publishOne(tx *logs.Tx, store *kvstore.Store, release int) error {
	name, version := library(release/perLibrary), versionOf(release%perLibrary)
	released := time.Date(2020, 1, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(release%perLibrary) * 30 * 24 * time.Hour)
	entry := logs.Entry{Time: released, Actor: "operator", Package: name}
	if release%perLibrary == 0 {
		words := rand.New(rand.NewPCG(uint64(release), 1))
		keywords := strings.Fields(vocabulary(words, 1+words.IntN(8)))
		keywords = append(keywords, strings.SplitN(name, "-", 2)[0])
		slices.Sort(keywords)
		data, err := json.Marshal(map[string]any{
			"name": name, "description": vocabulary(words, 5+words.IntN(15)), "filename": "module-00.min.js", "keywords": slices.Compact(keywords),
			"license": "MIT", "authors": []any{map[string]string{"name": vocabulary(words, 2)}}, "repository": map[string]string{"type": "git", "url": "https://github.com/" + vocabulary(words, 1) + "/" + name + ".git"},
			"autoupdate": map[string]any{"source": "npm", "target": name, "fileMap": []any{map[string]any{"basePath": "", "files": []string{"**/*.js"}}}},
		})
		if err != nil {
			return err
		}
		entry.Kind, entry.PackageJSON = logs.PackageAdded, kvstore.Sum(data)
		if err := errors.Join(put(store, data), views.Record(tx, views.Change{Entry: entry, PackageJSON: data})); err != nil {
			return err
		}
		entry.PackageJSON = kvstore.Hash{}
	}
	m := &logs.Manifest{Package: name, Version: version, Released: released, Source: logs.Source{Type: "import", Name: name}}
	for i := range perRelease {
		f, data := content(release, i)
		if release%perLibrary == 0 || changes(release, i) {
			if err := put(store, data); err != nil {
				return err
			}
		}
		m.Files = append(m.Files, f)
	}
	data, err := m.Encode()
	if err != nil {
		return err
	}
	entry.Kind, entry.Version, entry.Released, entry.Manifest = logs.Published, version, released, kvstore.Sum(data)
	return errors.Join(put(store, data), views.Record(tx, views.Change{Entry: entry, Manifest: m}))
}

func put(store *kvstore.Store, data []byte) error {
	return store.PutContent(kvstore.Sum(data), int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}})
}

// changes reports whether that file of a release is another one than the release before had.
func changes(release, i int) bool { return (release%perLibrary+i)%changing == 0 }

// content returns the i-th file of a release, some 300 bytes.
func content(release, i int) (logs.File, []byte) {
	last := release
	for last%perLibrary != 0 && !changes(last, i) {
		last--
	}
	var b strings.Builder
	for line := range 6 {
		fmt.Fprintf(&b, "export const value%d = %q; // of module %d\n", line, library(last/perLibrary)+"@"+versionOf(last%perLibrary), i)
	}
	data := []byte(b.String())
	return logs.File{Path: fileOf(i), Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data), Origin: logs.Upstream}, data
}

// vocabulary returns n words that are as frequent as words of descriptions are: a few in nearly all of them, most of 12,000 in hardly any.
func vocabulary(r *rand.Rand, n int) string {
	zipf := rand.NewZipf(r, 1.07, 8, 12_000-1)
	list := make([]string, n)
	for i := range list {
		word := zipf.Uint64()
		letters := rand.New(rand.NewPCG(word, 2))
		for range 1 + letters.IntN(4) {
			list[i] += string("bcdfghjklmnprstvwxz"[letters.IntN(19)]) + string("aeiou"[letters.IntN(5)])
		}
	}
	return strings.Join(list, " ")
}

// Names of libraries are two words and a number, so that searches find some and not all.
var (
	first  = strings.Fields("angular async audio backbone base calendar canvas chart code color cookie data date dom drag editor event fetch file font form geo grid html icon image input json key lazy")
	second = strings.Fields("animate bind box cache core draw effect engine flow form grid helper kit list loader map mask menu modal motion observer picker player query router scroll select slider state table tree ui view")
)

func library(n int) string {
	return fmt.Sprintf("%s-%s-%d", first[n%len(first)], second[n/len(first)%len(second)], n/(len(first)*len(second)))
}

func versionOf(n int) string { return fmt.Sprintf("%d.%d.%d", 1+n/20, n/4%5, n%4) }

func fileOf(i int) string { return fmt.Sprintf("dist/components/module-%02d.min.js", i) }

// pathOf returns where a file is served.
func pathOf(n int) string {
	release := n / perRelease
	return "/ajax/libs/" + library(release/perLibrary) + "/" + versionOf(release%perLibrary) + "/" + fileOf(n%perRelease)
}
