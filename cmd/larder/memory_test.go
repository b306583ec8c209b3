package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
)

// TestMemoryLimit asks the real program for far more files than its cache holds, and looks at what memory it takes. Left
// alone it takes more than GOMEMLIMIT allows in the end; with that it stays below, and with one that it cannot keep to it
// serves all the same.
func TestMemoryLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("publishes 60 MB")
	}
	t.Parallel()
	const cache, limit = 32 * settings.Mebibyte, 60 * settings.Mebibyte
	data := t.TempDir()
	files := stockNoise(t, data, 1000, 60_000)
	for _, test := range []struct {
		env     string
		check   func(most int64) bool
		problem string
	}{
		{"", func(most int64) bool { return most > limit }, "so the limit is not tested"},
		{"GOMEMLIMIT=60MiB", func(most int64) bool { return most < limit*21/20 }, "which is over the limit"},
		{"GOMEMLIMIT=8MiB", func(int64) bool { return true }, ""},
	} {
		t.Run(cmp.Or(test.env, "no limit"), func(t *testing.T) {
			s := startServe(t, data, []string{test.env, "LARDER_STORE_CACHE=8MiB"}, "--cache", strconv.Itoa(cache))
			var most int64
			for range 4 {
				s.load(files, 750)
				most = max(most, s.metric("go_memstats_sys_bytes")-s.metric("go_memstats_heap_released_bytes"))
			}
			t.Logf("%d MB, %d MB with what Go does not manage", most/1e6, s.metric("process_resident_memory_bytes")/1e6)
			if !test.check(most) {
				t.Errorf("it takes %d MB, %s", most/1e6, test.problem)
			}
			if kept := s.metric(`larder_assets_cache_bytes{cache="bodies"}`); kept < cache/2 {
				t.Errorf("only %d bytes are kept", kept)
			}
		})
	}
}

// stockNoise publishes n files of size bytes that do not compress, and returns them by path.
func stockNoise(t *testing.T, data string, n, size int) map[string][]byte {
	t.Helper()
	store, err := kvstore.Open(filepath.Join(data, "store"), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	noise := rand.NewChaCha8([32]byte{})
	files := make(map[string][]byte, n)
	release := testkit.Release{Package: "noise", Version: "1.0.0", Files: map[string][]byte{}}
	for i := range n {
		body := make([]byte, size)
		_, _ = noise.Read(body) // never fails
		path := fmt.Sprintf("%d.bin", i)
		release.Files[path], files["/ajax/libs/noise/1.0.0/"+path] = body, body
	}
	if err := testkit.Publish(store, []testkit.Release{release}); err != nil {
		t.Fatal(err)
	}
	return files
}

// A serving is a `larder serve` that runs.
type serving struct {
	*testing.T
	public, private string
}

func startServe(t *testing.T, data string, environ []string, args ...string) *serving {
	t.Helper()
	s := &serving{T: t}
	ctx, cancel := context.WithCancel(context.Background())
	args = append([]string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--private-listen", "127.0.0.1:0"}, args...)
	cmd := exec.CommandContext(ctx, "larder", args...) // testscript.Main has put it there
	cmd.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool {
		return strings.HasPrefix(pair, "GOMEMLIMIT=") || strings.HasPrefix(pair, "GOGC=")
	})
	cmd.Env = append(cmd.Env, environ...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("larder serve: %v", err)
		}
	})
	lines := bufio.NewScanner(stdout)
	for s.public == "" && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "Larder serves "); ok {
			s.public, _, _ = strings.Cut(rest, " ")
		}
	}
	if s.public == "" {
		t.Fatal("larder serve did not say where")
	}
	go io.Copy(io.Discard, stdout) //nolint:errcheck // it ends with the process
	out, err := exec.Command("larder", "status", "--json", "--data", data).Output()
	if err != nil {
		t.Fatal(err)
	}
	var status struct{ Process app.Process }
	if err := json.Unmarshal(out, &status); err != nil {
		t.Fatal(err)
	}
	s.private = "http://" + status.Process.Private
	return s
}

// load asks n times for one of the files, with several clients at once.
func (s *serving) load(files map[string][]byte, n int) {
	s.Helper()
	const clientCount = 8
	transport := &http.Transport{MaxIdleConnsPerHost: clientCount}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	paths := make(chan string)
	var clients sync.WaitGroup
	for range clientCount {
		clients.Go(func() {
			for path := range paths {
				r, err := client.Get(s.public + path)
				if err != nil {
					s.Error(err)
					continue
				}
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err != nil || r.StatusCode != http.StatusOK || !bytes.Equal(body, files[path]) {
					s.Errorf("%s: %s, %d bytes, %v", path, r.Status, len(body), err)
				}
			}
		})
	}
	sent := 0
	for sent < n {
		for path := range files { // in another order each time
			if sent++; sent > n {
				break
			}
			paths <- path
		}
	}
	close(paths)
	clients.Wait()
}

// metric returns the value of one of the process's metrics.
func (s *serving) metric(name string) int64 {
	s.Helper()
	r, err := http.Get(s.private + "/metrics")
	if err != nil {
		s.Fatal(err)
	}
	defer r.Body.Close()
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				s.Fatal(err)
			}
			return int64(value)
		}
	}
	s.Fatalf("there is no metric %s", name)
	return 0
}

// The real program has the limit that its settings come to, or the one that it is given.
func TestMemoryLimitIsSet(t *testing.T) {
	t.Parallel()
	const storeCache = 8 * settings.Mebibyte
	budget := (32+24+48+256)*settings.Mebibyte + kvstore.Options{CacheBytes: storeCache}.HeapBytes()
	for _, test := range []struct {
		env  string
		want int64
	}{{"", budget}, {"GOMEMLIMIT=", budget}, {"GOMEMLIMIT=96MiB", 96 * settings.Mebibyte}} {
		t.Run(cmp.Or(test.env, "no limit"), func(t *testing.T) {
			s := startServe(t, t.TempDir(), []string{test.env, "LARDER_SENDING=24MiB", "LARDER_STORE_CACHE=" + strconv.Itoa(storeCache)}, "--cache", "32MiB", "--memory", "48MiB")
			if got := s.metric("go_gc_gomemlimit_bytes"); got != test.want {
				t.Errorf("the limit is %d bytes, want %d", got, test.want)
			}
		})
	}
}
