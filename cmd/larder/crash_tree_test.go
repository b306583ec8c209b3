package main

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/logs/views"
)

// TestCrashInATree kills the real process while it imports a tree, runs the import again each time, and looks in the end
// whether all is there, once, with its date and its integrity. `make crash` has it do so 50 times over 1,000 releases.
func TestCrashInATree(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes by the dozen")
	}
	t.Parallel()
	kills, releases := 3, 50
	if _, whole := testCount(t, "CRASHES", 0); whole {
		kills, releases = 50, 1000
	}
	c := &treeCrasher{
		crasher: crasher{T: t, random: rand.New(rand.NewPCG(15, uint64(kills))), env: os.Environ(), published: map[string]bool{}},
		dates:   map[string]time.Time{}, sris: map[string]map[string]string{},
	}
	c.plant(releases)

	// One import that is left alone says how long there is to kill the others.
	c.begin()
	start := time.Now()
	c.importTree(0)
	window := 2 * time.Since(start) / time.Duration(kills) // it is killed within
	c.whole()

	c.begin()
	for done, of := 0, kills; done < kills; {
		if !c.importTree(1 + time.Duration(c.random.Int64N(int64(window)))) {
			c.whole()
			c.begin()
			of, window = kills-done, window/2
			continue
		}
		done++
		c.check()
		// The kills are to be spread over the releases, however fast the machine is.
		if c.count()*of < releases*(of-(kills-done)) {
			window = window * 4 / 3
		} else {
			window = max(window*3/4, 20*time.Millisecond)
		}
	}
	t.Logf("%d of %d releases were published when it was killed last", c.count(), releases)
	c.importTree(0)
	c.whole()
	c.importTree(0) // and nothing is left to do
	c.whole()
}

type treeCrasher struct {
	crasher
	tree  string
	dates map[string]time.Time         // by "package/version"
	sris  map[string]map[string]string // by "package/version", then by path
}

// plant makes a tree of ten packages, the list of its integrities and the file of its dates.
func (c *treeCrasher) plant(releases int) {
	c.Helper()
	c.catalogue, c.tree = c.TempDir(), c.TempDir()
	write := func(data []byte, name ...string) {
		path := filepath.Join(append([]string{c.tree}, name...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			c.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			c.Fatal(err)
		}
	}
	dates := map[string]string{}
	for i := range releases {
		name, version := fmt.Sprintf("lib%d", i%10), fmt.Sprintf("1.%d.0", i/10)
		id := name + "/" + version
		files := map[string]string{
			"main.js":       fmt.Sprintf("function f() { return %q }\n%s", id, strings.Repeat("f();\n", 200)),
			"main.min.js":   fmt.Sprintf("function f(){return %q}", id),
			"css/style.css": fmt.Sprintf("/* %s */\n%s", name, strings.Repeat("a { color: red }\n", 100)),
			"shared.txt":    strings.Repeat("the same in every package\n", 100),
			"words.txt":     c.words(1000),
		}
		c.sris[id] = map[string]string{}
		for path, data := range files {
			write([]byte(data), "libs", name, version, path)
			sum := sha512.Sum512([]byte(data))
			c.sris[id][path] = "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
		}
		c.dates[id] = time.Date(2015, 1, 1, i, 0, 0, 0, time.UTC)
		dates[id] = c.dates[id].Format(time.RFC3339)
	}
	for i := range 10 {
		name := fmt.Sprintf("lib%d", i)
		write(fmt.Appendf(nil, `{"name": %q, "description": "A test.", "keywords": ["test"], "filename": "main.js",
			"repository": {"type": "git", "url": "https://example.com/lib.git"}}`, name), "catalogue", name+".json")
	}
	for name, value := range map[string]any{"sri.json": c.sris, "dates.json": dates} {
		data, err := json.Marshal(value)
		if err != nil {
			c.Fatal(err)
		}
		write(data, name)
	}
	c.catalogue = filepath.Join(c.tree, "catalogue")
}

// begin takes a new data folder, whose log is signed.
func (c *treeCrasher) begin() {
	c.Helper()
	c.data = c.TempDir()
	c.ingest(0)
}

func (c *treeCrasher) importTree(kill time.Duration) bool {
	c.Helper()
	return c.run(kill, "import", "--tree", filepath.Join(c.tree, "libs"), "--catalogue", c.catalogue,
		"--sri", filepath.Join(c.tree, "sri.json"), "--released", filepath.Join(c.tree, "dates.json"))
}

// count is how many releases are published.
func (c *treeCrasher) count() int {
	c.Helper()
	store := c.open()
	defer store.Close()
	n := 0
	for i := range 10 {
		all, err := views.Versions(store, fmt.Sprintf("lib%d", i))
		if err != nil {
			c.Fatal(err)
		}
		n += len(all)
	}
	return n
}

// whole checks that all of the tree is there.
func (c *treeCrasher) whole() {
	c.Helper()
	c.check()
	if got := c.count(); got != len(c.dates) {
		c.Errorf("%d releases, want %d", got, len(c.dates))
	}
	store := c.open()
	defer store.Close()
	c.signed(store)
	for id, released := range c.dates {
		name, version, _ := strings.Cut(id, "/")
		v, err := views.LookupVersion(store, name, version)
		if err != nil || !v.Released.Equal(released) || v.Files != len(c.sris[id]) {
			c.Errorf("%s: %+v, %v; want it released at %s", id, v, err, released)
			continue
		}
		for path, want := range c.sris[id] {
			got, err := views.LookupSRI(store, name, version, path)
			if err != nil || got.String() != want {
				c.Errorf("%s/%s is %s, %v; want %s", id, path, got, err, want)
			}
			f, err := views.LookupFile(store, name, version, path)
			if err != nil {
				c.Fatal(err)
			}
			data, err := store.Identity(f.Hash)
			if sum := sha512.Sum512(data); err != nil || "sha512-"+base64.StdEncoding.EncodeToString(sum[:]) != want {
				c.Errorf("the bytes of %s/%s are not those of the list: %v", id, path, err)
			}
		}
	}
}
