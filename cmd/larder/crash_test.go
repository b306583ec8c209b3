package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// TestCrash kills the real process at random points of an ingest, starts it
// again, and holds store, log and views against each other: a release is absent
// or whole, and one that was said to be published stays so. LARDER_TEST_CRASHES
// is how often; `make crash` sets it.
func TestCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes by the dozen")
	}
	t.Parallel()
	kills, whole := testCount(t, "CRASHES", 6)
	c := &crasher{T: t, registry: npmtest.New(t), random: rand.New(rand.NewPCG(1, uint64(kills)))}
	c.stock(whole)
	ingests := min(8, kills-kills/3) // that are killed in one data folder; the other kills are of squeezing

	// One ingest that is left alone says how long there is to kill the others.
	c.data = t.TempDir()
	start := time.Now()
	c.ingest(0)
	ingest := time.Since(start)
	c.check()
	c.complete()

	start = time.Now()
	c.squeeze(0)
	squeeze := time.Since(start)
	c.check()

	for done := 0; done < kills; {
		c.data = t.TempDir()
		c.published = make(map[string]bool)
		for i := range ingests { // of one data folder, then it is left to finish
			if done == kills {
				break
			}
			start = time.Now()
			if !c.ingest(time.Duration(1 + c.random.Int64N(int64(ingest)))) { // it was done before it could be killed
				if i == 0 {
					ingest = time.Since(start) // so that most kills hit, also if the machine has less to do by now
				}
				break
			}
			done++
			c.check()
		}
		c.ingest(0)
		for i := range 2 {
			if done == kills {
				break
			}
			start = time.Now()
			if c.squeeze(time.Duration(1 + c.random.Int64N(int64(squeeze)))) {
				done++
				c.check()
			} else if i == 0 {
				squeeze = time.Since(start)
			}
		}
		c.squeeze(0)
		c.check()
		c.complete()
	}
}

type crasher struct {
	*testing.T
	registry  *npmtest.Registry
	random    *rand.Rand
	data      string
	catalogue string
	env       []string
	files     map[string]map[string]string // what was released: "package version" to path to data
	published map[string]bool              // what the process said it published
	logged    chan struct{}                // receives when a process logs, if something waits for that
}

// stock fills registry and catalogue with packages whose releases share files. In the short form of a test there are fewer of them,
// since each release starts processes.
func (c *crasher) stock(whole bool) {
	c.Helper()
	c.catalogue = c.TempDir()
	c.files = make(map[string]map[string]string)
	c.published = make(map[string]bool)
	c.env = registryEnviron(c.T, c.registry)
	versions, parts := 2, 4
	if whole {
		versions, parts = 5, 12
	}
	for p := range 4 {
		name := fmt.Sprintf("lib%d", p)
		json := fmt.Sprintf(`{"name": %q, "description": "A test.", "keywords": ["test"], "filename": "main.js",
			"repository": {"type": "git", "url": "https://example.com/lib.git"},
			"autoupdate": {"source": "npm", "target": %q, "fileMap": [{"basePath": "dist", "files": ["**/*"]}]}}`, name, name)
		if err := os.WriteFile(filepath.Join(c.catalogue, name+".json"), []byte(json), 0o644); err != nil {
			c.Fatal(err)
		}
		for v := range versions {
			version := fmt.Sprintf("1.%d.0", v)
			files := map[string]string{
				"dist/shared.txt":  strings.Repeat("the same in every package\n", 500),
				"dist/package.css": fmt.Sprintf("/* %s */\n%s", name, strings.Repeat("a { color: red }\n", 300)),
				"dist/main.js":     fmt.Sprintf("function f() { return %d }\n%s", v, strings.Repeat("f();\n", 400)),
			}
			for i := range parts {
				files[fmt.Sprintf("dist/part/%d.txt", i)] = fmt.Sprintf("%s %s %d\n%s", name, version, i, c.words(1000))
			}
			c.files[name+" "+version] = files
			c.registry.Add(name, version, time.Date(2026, 1, 1, v, p, 0, 0, time.UTC), files)
		}
	}
}

func (c *crasher) words(n int) string {
	var b strings.Builder
	for range n / 5 {
		fmt.Fprintf(&b, "%04x ", c.random.IntN(1<<16))
	}
	return b.String()
}

// ingest runs one pass of the bot and kills it after a while, if that is not 0.
// It reports whether it was killed, and fails the test where it failed by itself.
func (c *crasher) ingest(kill time.Duration) bool {
	c.Helper()
	return c.run(kill, "bot", "--once", "--catalogue", c.catalogue, "--private-listen", "off")
}

// squeeze is ingest for squeezing.
func (c *crasher) squeeze(kill time.Duration) bool {
	c.Helper()
	return c.run(kill, "squeeze")
}

func (c *crasher) run(kill time.Duration, args ...string) bool {
	c.Helper()
	cmd := exec.Command("larder", append(args, "--data", c.data, "--log-format", "json")...)
	cmd.Env = c.env
	stderr, err := cmd.StderrPipe()
	if err != nil {
		c.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	if kill > 0 {
		timer := time.AfterFunc(kill, func() { cmd.Process.Kill() })
		defer timer.Stop()
	}
	var said bytes.Buffer
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		said.Write(append(lines.Bytes(), '\n'))
		select {
		case c.logged <- struct{}{}:
		default:
		}
		var line struct{ Msg, Package, Version string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		if line.Msg == "published" {
			c.published[line.Package+" "+line.Version] = true
		}
		if strings.HasPrefix(line.Msg, "the log is not signed") || strings.HasPrefix(line.Msg, "another key signed") {
			c.Errorf("after a kill: %s", lines.Bytes())
		}
	}
	err = cmd.Wait()
	if err == nil {
		return false
	}
	if status, ok := err.(*exec.ExitError); ok && kill > 0 && !status.Exited() {
		return true
	}
	c.Fatalf("larder %s: %v\n%s", args[0], err, &said)
	return false
}

// check has larder check its own data folder, and looks for what was published.
func (c *crasher) check() {
	c.Helper()
	if !c.stored() {
		return
	}
	cmd := exec.Command("larder", "fsck", "--all", "--data", c.data)
	cmd.Env = c.env
	if out, err := cmd.CombinedOutput(); err != nil {
		if (bytes.Contains(out, []byte("holds no store yet")) || bytes.Contains(out, []byte("there is no store in"))) && len(c.published) == 0 {
			return // killed while the store was being made
		}
		c.Fatalf("larder fsck: %v\n%s", err, out)
	}
	store := c.open()
	defer store.Close()
	for id := range c.published {
		name, version, _ := strings.Cut(id, " ")
		if _, err := views.LookupVersion(store, name, version); err != nil {
			c.Errorf("%s was published and is gone: %v", id, err)
		}
	}
}

// stored reports whether the process lived long enough to make a store.
func (c *crasher) stored() bool {
	found, _ := filepath.Glob(filepath.Join(c.data, "store", "*"))
	return len(found) > 0
}

func (c *crasher) open() *kvstore.Store {
	c.Helper()
	store, err := kvstore.Open(filepath.Join(c.data, "store"), kvstore.Options{})
	if err != nil {
		c.Fatal(err)
	}
	return store
}

// signed checks that the last signed checkpoint is that of the log as it is.
func (c *crasher) signed(store *kvstore.Store) {
	c.Helper()
	have, err := logs.ReadCheckpoint(store)
	if err != nil {
		c.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(c.data+"-keys", "checkpoint"))
	if err != nil {
		c.Fatal(err)
	}
	if want := fmt.Sprintf("\n%d\n%s\n\n", have.Size, have.Root); !strings.Contains(string(data), want) {
		c.Errorf("the last signed checkpoint is\n%s, want%s", data, want)
	}
}

// complete checks that all that upstream has is there, byte for byte.
func (c *crasher) complete() {
	c.Helper()
	store := c.open()
	defer store.Close()
	c.signed(store)
	for id, files := range c.files {
		name, version, _ := strings.Cut(id, " ")
		for source, want := range files {
			path := strings.TrimPrefix(source, "dist/")
			f, err := views.LookupFile(store, name, version, path)
			if err != nil {
				c.Errorf("%s %s: %v", id, path, err)
				continue
			}
			if got, err := store.Identity(f.Hash); err != nil || string(got) != want {
				c.Errorf("%s %s is %.40q, %v; want %.40q", id, path, got, err, want)
			}
		}
	}
}
