package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	packages = 12
	// bigFile is in the first release of each package, for those who read slowly.
	bigFile  = "big.bin"
	bigBytes = 2 << 20
)

// files are the paths of every release.
var files = []string{"index.js", "style.css", "data.json", "dist/one.js", "dist/two.js", readmeFile, similarFile}

// A release is what the registry, or the operator, has published. What is in its files follows from its name, so that anyone
// can tell whether a byte is right.
type release struct {
	pkg, version string
	poisoned     bool // the registry's integrity is another one: it must never be served
	acknowledged time.Time
	by           string // who acknowledged it: the bot, by serving it, or a command
	withdrawn    time.Time
	recalled     time.Time // when it had been 410 everywhere
}

func (r *release) path(file string) string {
	return "/ajax/libs/" + r.pkg + "/" + r.version + "/" + file
}

func (r *release) String() string { return r.pkg + " " + r.version }

// contents returns all files of the release.
func (r *release) contents() map[string]string {
	all := map[string]string{}
	for _, file := range r.files() {
		all[file] = string(content(r.pkg, r.version, file))
	}
	return all
}

func (r *release) files() []string {
	if r.version == "1.0.0" {
		return append(slices.Clone(files), bigFile)
	}
	return files
}

// content is what must be at a path: text of 200 bytes to 60 KB, the same in every run.
func content(pkg, version, file string) []byte {
	switch file {
	case similarFile:
		return similarContent(pkg, version)
	case readmeFile:
		return readmeContent(pkg, version)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s/%s", pkg, version, file)
	r := rand.New(rand.NewPCG(h.Sum64(), 1))
	if file == bigFile {
		b := make([]byte, 0, bigBytes)
		for len(b) < bigBytes {
			b = binary.LittleEndian.AppendUint64(b, r.Uint64())
		}
		return b
	}
	size := int(200 * math.Exp(r.Float64()*math.Log(300)))
	b := fmt.Appendf(nil, "/* %s %s %s */\n", pkg, version, file)
	for len(b) < size {
		b = fmt.Appendf(b, "export const v%d = \"%x\";\n", r.IntN(1000), r.Uint64())
	}
	return b
}

// A library is all releases, and where each has been seen to be served.
type library struct {
	mu       sync.Mutex
	releases []*release
	served   map[*release]map[string]time.Time // by the name of who serves it
}

func newLibrary() *library { return &library{served: map[*release]map[string]time.Time{}} }

func (l *library) add(r *release) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releases = append(l.releases, r)
	l.served[r] = map[string]time.Time{}
}

// confirm notes that a release is served by someone, and by that acknowledged.
func (l *library) confirm(r *release, at string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.served[r][at] = time.Now()
	if r.acknowledged.IsZero() {
		r.acknowledged, r.by = time.Now(), at
	}
}

func (l *library) acknowledge(r *release, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.acknowledged, r.by = time.Now(), by
}

func (l *library) withdraw(r *release, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.withdrawn = at
}

// recall notes that a withdrawn release has been 410 everywhere.
func (l *library) recall(r *release) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.recalled = time.Now()
}

// state returns when a release was withdrawn, and since when it is 410 everywhere.
func (l *library) state(r *release) (withdrawn, recalled time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.withdrawn, r.recalled
}

// choose returns the releases that a function chooses, newest first.
func (l *library) choose(want func(*release, map[string]time.Time) bool) []*release {
	l.mu.Lock()
	defer l.mu.Unlock()
	var chosen []*release
	for _, r := range slices.Backward(l.releases) {
		if want(r, l.served[r]) {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

// live returns the releases that all of those have been seen to serve, for so long at least, and that are not withdrawn.
func (l *library) live(since time.Duration, by ...string) []*release {
	return l.choose(func(r *release, served map[string]time.Time) bool {
		for _, name := range by {
			if at, ok := served[name]; !ok || time.Since(at) < since {
				return false
			}
		}
		return r.withdrawn.IsZero() && !r.poisoned
	})
}

// pending returns the releases that someone has yet to be seen to serve.
func (l *library) pending(by string) []*release {
	return l.choose(func(r *release, served map[string]time.Time) bool {
		_, ok := served[by]
		return !ok && r.withdrawn.IsZero() && !r.poisoned
	})
}

// writeCatalogue writes a package JSON for each package.
func writeCatalogue(folder string) error {
	var err error
	names := []string{modulesPackage}
	for i := range packages {
		names = append(names, packageName(i))
	}
	for _, name := range names {
		text, jsonErr := json.Marshal(map[string]any{
			"name": name, "filename": "index.js", "description": hostileDescription, "keywords": []string{"rehearsal"}, "license": "MIT",
			"repository":   map[string]string{"type": "git", "url": "https://example.com/" + name + ".git"},
			"autoupdate":   map[string]any{"source": "npm", "target": name, "fileMap": []any{map[string]any{"basePath": "", "files": []string{"**/*"}}}, "modules": name == modulesPackage},
			"optimization": map[string]bool{"js": false, "css": false},
		})
		place := filepath.Join(folder, "packages", name[:1])
		err = errors.Join(err, jsonErr, os.MkdirAll(place, 0o755), os.WriteFile(filepath.Join(place, name+".json"), text, 0o644))
	}
	return err
}

func packageName(i int) string { return fmt.Sprintf("rehearsed-%02d", i) }
