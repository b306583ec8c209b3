package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/kvstore"
)

// BenchmarkMirror measures the catch-up of a mirror from nothing, over loopback, by its own processor time; the source's is
// not in it. BenchmarkRsync copies the same files, uncompressed, from a folder into another. `make bench-mirror` runs both,
// and [BenchmarkMirrorLag].
func BenchmarkMirror(b *testing.B) {
	binary := built(b)
	source := filepath.Join(b.TempDir(), "data")
	if err := os.MkdirAll(source, 0o700); err != nil {
		b.Fatal(err)
	}
	releases, files, size := mirrored()
	store, err := kvstore.Open(filepath.Join(source, "store"), kvstore.Options{})
	if err == nil {
		err = testkit.Publish(store, releases)
	}
	if err == nil {
		err = store.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	url := servingFor(b, binary, "serve", "--data", source)
	var spent time.Duration
	for b.Loop() {
		data := filepath.Join(b.TempDir(), "data")
		cmd := exec.Command(binary, "mirror", url, "--once", "--data", data, "--private-listen", "off")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("larder mirror: %v\n%s", err, out)
		}
		spent += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		os.RemoveAll(filepath.Dir(data))
	}
	told(b, spent, len(releases), files, size)
}

// BenchmarkMirrorLag publishes ten releases a second at a source, an iteration each, and measures how long after that a
// mirror, which follows it as usual, serves them.
func BenchmarkMirrorLag(b *testing.B) {
	source := lardertest.New(b)
	source.Register("lib", `{"name":"lib"}`)
	mirror := servingFor(b, built(b), "mirror", source.URL, "--data", filepath.Join(b.TempDir(), "data"))
	type release struct {
		path      string
		published time.Time
	}
	releases := make(chan release, 1<<16)
	var lags []time.Duration
	var watching sync.WaitGroup
	watching.Go(func() {
		for r := range releases { // they come in this order
			for {
				response, err := http.Get(mirror + r.path)
				if err != nil {
					b.Error(err)
					break
				}
				response.Body.Close()
				if response.StatusCode == http.StatusOK {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			lags = append(lags, time.Since(r.published))
		}
	})
	tick := time.NewTicker(time.Second / 10)
	defer tick.Stop()
	all, _, _ := mirrored()
	for n := 0; b.Loop(); n++ {
		<-tick.C
		files := map[string]string{}
		for path, data := range all[n%len(all)].Files {
			files[path] = fmt.Sprintf("// %d\n%s", n, data)
		}
		version := fmt.Sprintf("1.%d.0", n)
		source.Publish("lib", version, "dist/0.js", files)
		releases <- release{"/ajax/libs/lib/" + version + "/dist/0.js", time.Now()}
	}
	close(releases)
	watching.Wait()
	slices.Sort(lags)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(lags[len(lags)/2].Seconds(), "s-median")
	b.ReportMetric(lags[len(lags)*99/100].Seconds(), "s-99th")
	b.ReportMetric(lags[len(lags)-1].Seconds(), "s-longest")
}

// built is the real program.
func built(b *testing.B) string {
	b.Helper()
	binary := filepath.Join(b.TempDir(), "larder")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// servingFor starts a process that serves until the benchmark ends, and returns its URL.
func servingFor(b *testing.B, binary string, args ...string) string {
	b.Helper()
	ready := filepath.Join(b.TempDir(), "ready")
	cmd := exec.Command(binary, append(args, "--listen", "127.0.0.1:0", "--private-listen", "off", "--rooms", "off", "--ready-file", ready)...)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait() //nolint:errcheck // it is told to end
	})
	for {
		if url, err := os.ReadFile(ready); err == nil {
			return strings.TrimSpace(string(url))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func BenchmarkRsync(b *testing.B) {
	rsync, err := exec.LookPath("rsync")
	if err != nil {
		b.Skip("there is no rsync here (apt-get install rsync)")
	}
	from := b.TempDir()
	releases, files, size := mirrored()
	for _, r := range releases {
		for path, data := range r.Files {
			name := filepath.Join(from, r.Package, r.Version, path)
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(name, data, 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	var spent time.Duration
	for b.Loop() {
		to := b.TempDir()
		cmd := exec.Command(rsync, "-a", from+"/", to)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("rsync: %v\n%s", err, out)
		}
		spent += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		os.RemoveAll(to)
	}
	told(b, spent, len(releases), files, size)
}

func told(b *testing.B, spent time.Duration, entries, files int, size int64) {
	seconds := spent.Seconds() / float64(b.N)
	b.ReportMetric(float64(entries)/seconds, "entries/cpu-s")
	b.ReportMetric(float64(files)/seconds, "files/cpu-s")
	b.ReportMetric(float64(size)/1e6/seconds, "MB/cpu-s")
	b.ReportMetric(0, "B/op")
}

// mirrored are 300 releases of 20 files, 12 KB each: text that compresses to about a third, as scripts do.
func mirrored() (releases []testkit.Release, files int, size int64) {
	random := rand.New(rand.NewPCG(3, 4))
	words := strings.Fields("function return const let if else for while of in new this typeof await async class extends import export default null true false undefined")
	for n := range 300 {
		r := testkit.Release{Package: fmt.Sprintf("lib%d", n%20), Version: fmt.Sprintf("1.%d.0", n), Files: map[string][]byte{}}
		for f := range 20 {
			var text bytes.Buffer
			for text.Len() < 12<<10 {
				fmt.Fprintf(&text, "%s value%d = %s(%d);\n", words[random.IntN(len(words))], random.IntN(1<<20), words[random.IntN(len(words))], random.IntN(1<<20))
			}
			r.Files[fmt.Sprintf("dist/%d.js", f)] = text.Bytes()
			files++
			size += int64(text.Len())
		}
		releases = append(releases, r)
	}
	return releases, files, size
}
