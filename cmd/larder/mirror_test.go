package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// TestMirrorCrash kills a mirror at random points of its catch-up, and starts it again until it has all. It ends equal to
// its source: the log, what fsck --deep finds, and every URL. LARDER_TEST_CRASHES is how often; `make follow` sets it.
func TestMirrorCrash(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes by the dozen")
	}
	t.Parallel()
	kills, _ := testCount(t, "CRASHES", 3)
	m := &mirrorCrasher{T: t, random: rand.New(rand.NewPCG(2, uint64(kills))), env: os.Environ()}
	source := filepath.Join(t.TempDir(), "data")
	paths := m.stock(source)
	m.source = m.serve("serve", "--data", source)

	// One that is left alone says how long there is to kill the others.
	m.data = filepath.Join(t.TempDir(), "data")
	start := time.Now()
	m.catchUp(0)
	whole := time.Since(start)
	m.equal(source, paths)
	for done := 0; done < kills; {
		m.data = filepath.Join(t.TempDir(), "data")
		for i := range 10 {
			if done == kills {
				break
			}
			start = time.Now()
			if !m.catchUp(time.Duration(1 + m.random.Int64N(int64(whole)))) {
				if i == 0 {
					whole = time.Since(start) // so that most kills hit, also if the machine has less to do by now
				}
				break
			}
			done++
		}
		m.catchUp(0)
		m.equal(source, paths)
	}
}

type mirrorCrasher struct {
	*testing.T
	random *rand.Rand
	env    []string
	source string // its URL
	data   string
}

// stock makes a source, and returns the paths of its files, served or not.
func (m *mirrorCrasher) stock(data string) (paths []string) {
	m.Helper()
	if err := os.MkdirAll(data, 0o700); err != nil {
		m.Fatal(err)
	}
	store, err := kvstore.Open(filepath.Join(data, "store"), kvstore.Options{})
	if err != nil {
		m.Fatal(err)
	}
	var releases []testkit.Release
	for n := range 60 {
		r := testkit.Release{Package: fmt.Sprintf("lib%d", n%7), Version: fmt.Sprintf("1.%d.0", n), Files: map[string][]byte{"LICENSE": []byte("MIT")}}
		for f := range 8 {
			path := fmt.Sprintf("part/%d.js", f)
			r.Files[path] = []byte(strings.Repeat(fmt.Sprintf("let a%d = %d;\n", n, f), 200))
			paths = append(paths, "/ajax/libs/"+r.Package+"/"+r.Version+"/"+path)
		}
		if n%11 == 3 {
			r.Withdrawn = "malware"
		}
		releases = append(releases, r)
	}
	if err := testkit.Publish(store, releases); err != nil {
		m.Fatal(err)
	}
	log, err := logs.Open(store)
	if err != nil {
		m.Fatal(err)
	}
	err = log.Update(func(tx *logs.Tx) error { // one comes back
		v, err := views.LookupVersion(store, "lib3", "1.3.0")
		if err != nil {
			return err
		}
		manifest, err := logs.ReadManifest(store, v.Manifest)
		if err != nil {
			return err
		}
		return views.Record(tx, views.Change{Manifest: manifest, Entry: logs.Entry{
			Kind: logs.Restored, Time: testkit.Released, Actor: "operator", Package: "lib3", Version: "1.3.0", Manifest: v.Manifest, Reason: "a mistake",
		}})
	})
	if err != nil {
		m.Fatal(err)
	}
	if err := store.Close(); err != nil {
		m.Fatal(err)
	}
	return paths
}

// serve starts a process that serves until the test ends, and returns its URL.
func (m *mirrorCrasher) serve(args ...string) string {
	m.Helper()
	ready := filepath.Join(m.TempDir(), "ready")
	cmd := exec.Command("larder", append(args, "--listen", "127.0.0.1:0", "--private-listen", "off", "--rooms", "off", "--ready-file", ready)...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = m.env, &said
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // it is told to end
	}()
	m.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		<-ended
	})
	for {
		data, err := os.ReadFile(ready)
		if err == nil {
			return strings.TrimSpace(string(data))
		}
		select {
		case <-ended:
			m.Fatalf("larder %s: %s", args[0], &said)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// catchUp runs a mirror until it has all, and kills it after a while, if that is not 0. It reports whether it was killed.
func (m *mirrorCrasher) catchUp(kill time.Duration) bool {
	m.Helper()
	cmd := exec.Command("larder", "mirror", m.source, "--once", "--data", m.data, "--private-listen", "off")
	cmd.Env = m.env
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	if kill > 0 {
		timer := time.AfterFunc(kill, func() { cmd.Process.Kill() })
		defer timer.Stop()
	}
	err := cmd.Wait()
	if err == nil {
		return false
	}
	if status, ok := err.(*exec.ExitError); ok && kill > 0 && !status.Exited() {
		return true
	}
	m.Fatalf("larder mirror: %v\n%s", err, &said)
	return false
}

// equal fails the test unless the mirror has what the source has.
func (m *mirrorCrasher) equal(source string, paths []string) {
	m.Helper()
	cmd := exec.Command("larder", "fsck", "--all", "--data", m.data)
	cmd.Env = m.env
	if out, err := cmd.CombinedOutput(); err != nil {
		m.Fatalf("larder fsck: %v\n%s", err, out)
	}
	keys := func(data string) string { return filepath.Join(filepath.Dir(data), "keys", "checkpoint") }
	got, err := os.ReadFile(keys(m.data))
	if err != nil {
		m.Fatal(err)
	}
	want, err := os.ReadFile(keys(source))
	if err != nil {
		m.Fatal(err)
	}
	if string(got) != string(want) {
		m.Errorf("the checkpoint is\n%s\nwant\n%s", got, want)
	}
	m.Run("urls", func(t *testing.T) {
		c := *m
		c.T = t
		mirror := c.serve("mirror", m.source, "--data", m.data)
		for _, path := range append(paths, "/log/checkpoint", "/log/keys", "/log/tile/entries/000.p/70", "/libraries/lib1") {
			status, body := c.get(mirror + path)
			wantStatus, wantBody := c.get(m.source + path)
			if path == "/libraries/lib1" { // which says where it is
				body, wantBody = "", ""
			}
			if status != wantStatus || body != wantBody {
				t.Errorf("%s: %d %.60q, want %d %.60q", path, status, body, wantStatus, wantBody)
			}
		}
	})
}

func (m *mirrorCrasher) get(url string) (int, string) {
	m.Helper()
	response, err := http.Get(url)
	if err != nil {
		m.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		m.Fatal(err)
	}
	return response.StatusCode, string(body)
}
