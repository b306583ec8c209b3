package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
)

// BenchmarkMirror measures the catch-up of a mirror from nothing, over loopback, by its own processor time; the source's is
// not in it. BenchmarkRsync copies the same files, uncompressed, from a folder into another.
func BenchmarkMirror(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "larder")
	if out, err := exec.Command("go", "build", "-tags", "nomsgpack", "-o", binary, ".").CombinedOutput(); err != nil {
		b.Fatalf("go build: %v\n%s", err, out)
	}
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
	ready := filepath.Join(b.TempDir(), "ready")
	serving := exec.Command(binary, "serve", "--data", source, "--listen", "127.0.0.1:0", "--private-listen", "off", "--rooms", "off", "--ready-file", ready)
	if err := serving.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		serving.Process.Signal(os.Interrupt)
		serving.Wait() //nolint:errcheck // it is told to end
	})
	var url []byte
	for url == nil {
		if url, err = os.ReadFile(ready); err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	var spent time.Duration
	for b.Loop() {
		data := filepath.Join(b.TempDir(), "data")
		cmd := exec.Command(binary, "mirror", strings.TrimSpace(string(url)), "--once", "--data", data, "--private-listen", "off")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("larder mirror: %v\n%s", err, out)
		}
		spent += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		os.RemoveAll(filepath.Dir(data))
	}
	told(b, spent, len(releases), files, size)
}

func BenchmarkRsync(b *testing.B) {
	rsync, err := exec.LookPath("rsync")
	if err != nil {
		b.Skip("there is no rsync here")
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
