// Package testkit has what the tests of several packages share: releases to publish and a runner for scripts of requests
// (releases.go, script.go), shelves of libraries for everything that people browse (shelf.go), the log's schema
// (entries.go), a witness (witness.go), a break-in (tamper.go) and the world that the demonstrations happen in (world.go).
// Its subpackages are the upstreams on loopback: an npm registry, git's own server and GitHub's API.
//
// It is for tests and the demonstrations in docs only; no other code may import it.
package testkit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// A Release is one version of a package and its files by path.
type Release struct {
	Package, Version string
	Files            map[string][]byte
	// Withdrawn is the reason why it is not served any more, "" where it is.
	Withdrawn string
}

// Released is when all releases were published upstream, where a test can choose.
var Released = time.Date(2024, 2, 29, 12, 30, 45, 0, time.UTC)

// bigScript is the size of the largest script, in bytes.
const bigScript = 5 << 17

// Releases returns what the scripts expect to be published.
func Releases() []Release {
	return []Release{
		{
			Package: "demo", Version: "1.0.0",
			Files: map[string][]byte{
				"demo.js":           script(4 << 10),
				"demo.min.js.map":   []byte(`{"version":3,"names":[],"mappings":"` + strings.Repeat("AAAA;", 200) + `"}`),
				"demo.css":          []byte(strings.Repeat(".demo { color: rebeccapurple; }\n", 100)),
				"big.js":            script(bigScript),
				"noise.bin":         noise(300 << 10),
				"font.woff2":        noise(2000),
				"image.png":         noise(500),
				"tiny.txt":          []byte("0123456789"),
				"empty.txt":         {},
				"LICENSE":           []byte("Permission is hereby granted.\n"),
				"deep/er/UPPER.JS":  script(2 << 10),
				"odd/a b.js":        []byte("space"),
				"odd/a+b.js":        []byte("plus"),
				"odd/a@b~c!$&'.js":  []byte("signs"),
				"odd/ünïcødé-文.js":  []byte("unicode"),
				"odd/100%.js":       []byte("percent"),
				"odd/%41.js":        []byte("percent 41"),
				"odd/A.js":          []byte("letter"),
				"odd/who?what#1.js": []byte("question"),
				"odd/...dots...js":  []byte("dots"),
				"odd/semi;colon.js": []byte("semicolon"),
				"active/page.html":  []byte("<!doctype html><title>Demo</title>" + strings.Repeat("<p>Demo</p>\n", 1<<16)),
				"active/mark.svg":   []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`),
				"active/feed.XML":   []byte("<feed/>"),
				"active/page.xhtml": []byte(`<html xmlns="http://www.w3.org/1999/xhtml"/>`),
				"active/feed.rss":   []byte("<rss/>"),
			},
		},
		{Package: "demo", Version: "1.0.1-beta.1+build.2", Files: map[string][]byte{"demo.js": script(4 << 10)}},
		{Package: "demo", Version: "0.9.0", Files: map[string][]byte{"demo.js": script(1 << 10)}, Withdrawn: "it stole cookies"},
	}
}

// script is text that compresses, n bytes of it, without a period that an
// encoder could make too much of.
func script(n int) []byte { return []byte(longScript()[:n]) }

// longScript is made once: tests ask for a part of it thousands of times.
var longScript = sync.OnceValue(func() string {
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("function return const let if else for while of in new this typeof await async class extends export import default null true false undefined")
	var b strings.Builder
	for b.Len() < bigScript {
		fmt.Fprintf(&b, "%s value%d = %s(%d);\n", words[r.IntN(len(words))], r.IntN(1000), words[r.IntN(len(words))], r.IntN(100))
	}
	return b.String()
})

// noise does not compress.
func noise(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b) // never fails
	return b
}

// isNoise reports whether the beginning of data does not compress.
func isNoise(data []byte) bool {
	head := data[:min(len(data), 4<<10)]
	coded, err := coding.Encode(coding.Gzip, coding.Quick, head)
	return err == nil && len(head) == 4<<10 && !coding.Worthwhile(len(head), len(coded))
}

// Publish publishes the releases in a store the way the bot does, in quick codings.
func Publish(store *kvstore.Store, releases []Release) error {
	log, err := logs.Open(store)
	if err != nil {
		return err
	}
	for _, r := range releases {
		if err := publish(store, log, r); err != nil {
			return fmt.Errorf("testkit: %s %s: %w", r.Package, r.Version, err)
		}
		if r.Withdrawn != "" {
			if err := Withdraw(store, log, r); err != nil {
				return fmt.Errorf("testkit: %s %s: %w", r.Package, r.Version, err)
			}
		}
	}
	return nil
}

func publish(store *kvstore.Store, log *logs.Log, r Release) error {
	manifest := r.manifest()
	for _, data := range r.Files {
		if err := put(store, data); err != nil {
			return err
		}
	}
	encoded, err := manifest.Encode()
	if err != nil {
		return err
	}
	if err := put(store, encoded); err != nil {
		return err
	}
	return apply(log, manifest, logs.Entry{Kind: logs.Published, Manifest: kvstore.Sum(encoded)})
}

// Withdraw withdraws a release that was published.
func Withdraw(store *kvstore.Store, log *logs.Log, r Release) error {
	v, err := views.LookupVersion(store, r.Package, r.Version)
	if err != nil {
		return err
	}
	return apply(log, r.manifest(), logs.Entry{Kind: logs.Withdrawn, Manifest: v.Manifest, Reason: r.Withdrawn})
}

func apply(log *logs.Log, manifest *logs.Manifest, e logs.Entry) error {
	e.Package, e.Version, e.Released, e.Time, e.Actor = manifest.Package, manifest.Version, Released, Released, "operator"
	return log.Update(func(tx *logs.Tx) error { return views.Record(tx, views.Change{Entry: e, Manifest: manifest}) })
}

func (r Release) manifest() *logs.Manifest {
	m := &logs.Manifest{Package: r.Package, Version: r.Version, Released: Released, Source: logs.Source{Type: "import", Name: r.Package}}
	for path, data := range r.Files {
		m.Files = append(m.Files, logs.File{Path: path, Size: int64(len(data)), SHA256: kvstore.Sum(data), SRI: logs.SumSRI(data), Origin: logs.Upstream})
	}
	return m
}

func put(store *kvstore.Store, data []byte) error {
	coded, err := encode(data)
	if err != nil {
		return err
	}
	return store.PutContent(kvstore.Sum(data), int64(len(data)), false, coded)
}

// encoded has the codings of each content that encode has encoded, by hash. Tests publish the same releases in many stores.
var encoded sync.Map

func encode(data []byte) ([]kvstore.Coded, error) {
	hash := kvstore.Sum(data)
	if coded, ok := encoded.Load(hash); ok {
		return coded.([]kvstore.Coded), nil
	}
	var coded []kvstore.Coded
	for _, c := range []coding.Coding{coding.Brotli, coding.Gzip} {
		if isNoise(data) {
			break // the encoders would take long to find that out
		}
		b, err := coding.Encode(c, coding.Quick, data)
		if err != nil {
			return nil, err
		}
		if coding.Worthwhile(len(data), len(b)) {
			coded = append(coded, kvstore.Coded{Coding: c, Bytes: b})
		}
	}
	if coded == nil {
		return []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}, nil
	}
	encoded.Store(hash, coded)
	return coded, nil
}
