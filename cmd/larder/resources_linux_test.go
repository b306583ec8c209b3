package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// resources skips the test unless `make resources` has asked for it: it takes minutes, and needs root.
func resources(t *testing.T) {
	t.Helper()
	if testVariable("RESOURCES") == "" {
		t.Skip("make resources does this")
	}
	if os.Geteuid() != 0 {
		t.Skip("it needs root")
	}
}

// startFilling is `larder up` on a catalogue of packages, started by a shell that does this first. The log goes to a file.
func startFilling(t *testing.T, data, log, first string, packages int) (url string, private given, cmd *exec.Cmd) {
	t.Helper()
	catalogue := t.TempDir()
	for i := range packages {
		text := strings.ReplaceAll(faultPackage, `"demo"`, fmt.Sprintf(`"p%d"`, i))
		text = strings.ReplaceAll(strings.ReplaceAll(text, "*.txt", "*"), "small.txt", "a.js")
		if err := os.WriteFile(filepath.Join(catalogue, fmt.Sprintf("p%d.json", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	private = openSocket(t, plainSocket)
	private.name = privateSocket
	cmd = larderOn([]given{private}, "up", "--data", data, "--catalogue", catalogue, "--listen", "127.0.0.1:0", "--interval", "10s", "--releases", "100")
	cmd.Args[2] = first + "; exec 2>>" + log + "; " + cmd.Args[2]
	url, _ = startSaying(t, cmd, "Larder serves ")
	return url, private, cmd
}

// script is a JavaScript file that is like no other one, of about so many bytes.
func script(random *rand.Rand, size int) string {
	var b strings.Builder
	for b.Len() < size {
		fmt.Fprintf(&b, "export function f%d(value, other) {\n  return value * %d + other.p%d; // %x\n}\n", random.Int32(), random.Int32N(1000), random.Int32N(100), random.Uint64())
	}
	return b.String()
}

// TestControlGroup has the real program fill and serve inside of a control group of 512 MiB, with 64 clients that ask for many
// more files than fit into that. It is not killed, and says what it made of the limit.
func TestControlGroup(t *testing.T) {
	resources(t)
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	var group string
	for line := range strings.Lines(string(groups)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && parts[1] == "memory" {
			group = filepath.Join("/sys/fs/cgroup/memory", parts[2], fmt.Sprintf("larder-test-%d", os.Getpid()))
		}
	}
	if group == "" {
		t.Skip("there are no control groups of version 1 here")
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.Remove(group) }) // once the process has ended
	const limit = 512 << 20
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte(strconv.Itoa(limit)), 0o600); err != nil {
		t.Skip(err)
	}
	reads := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(group, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}

	const packages, releases = 4, 3
	random := rand.New(rand.NewPCG(1, 2))
	registry := npmtest.New(t)
	registry.Setenv(t)
	for i := range packages {
		for v := range releases {
			registry.Add(fmt.Sprintf("p%d", i), fmt.Sprintf("1.%d.0", v), time.Now().Add(time.Duration(v-releases)*time.Hour), map[string]string{
				"a.js": script(random, 20_000), "b.js": script(random, 400_000), "c.css": strings.ReplaceAll(script(random, 50_000), "function", "class"), "d.js": script(random, 800_000),
			})
		}
	}
	data := t.TempDir()
	files := stockNoise(t, data, 20_000, 30_000)
	log := filepath.Join(t.TempDir(), "log")
	url, private, cmd := startFilling(t, data, log, "echo $$ >"+filepath.Join(group, "cgroup.procs"), packages)
	var paths []string
	for path := range files {
		paths = append(paths, path)
	}
	done := make(chan struct{})
	var clients sync.WaitGroup
	var asked, failed atomic.Int64
	for n := range 64 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 3))
			transport := &http.Transport{DisableCompression: true}
			defer transport.CloseIdleConnections()
			for {
				select {
				case <-done:
					return
				default:
				}
				path := paths[random.IntN(len(paths))]
				asked.Add(1)
				if err := askOnce(transport, url+path, files[path]); err != nil && failed.Add(1) == 1 {
					t.Logf("the first that failed: %v", err)
				}
			}
		})
	}
	published := fmt.Sprintf("%d of %d releases", packages*releases, packages*releases)
	state := func() (released, backlog int) {
		for line := range strings.Lines(metricsOf(t, private)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, _ := strconv.ParseFloat(value, 64)
			switch name {
			case `larder_bot_events_total{kind="published"}`:
				released = int(n)
			case "larder_bot_squeeze_backlog":
				backlog = int(n)
			}
		}
		return released, backlog
	}
	begun := time.Now()
	for {
		released, backlog := state()
		if released >= packages*releases && (backlog == 0 || time.Since(begun) > time.Minute) {
			break
		}
		if ended(cmd.Process.Pid) {
			t.Fatalf("the process has ended: %s", tail(t, log))
		}
		if time.Since(begun) > 20*time.Minute {
			t.Fatalf("%d of %s, %d files to be squeezed: %s", released, published, backlog, tail(t, log))
		}
		time.Sleep(200 * time.Millisecond)
	}
	close(done)
	clients.Wait()
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var chose string
	for lines := bufio.NewScanner(bytes.NewReader(said)); lines.Scan(); {
		if strings.Contains(lines.Text(), "bounded by its control group") {
			chose = lines.Text()
		}
	}
	if !strings.Contains(chose, "limit="+strconv.Itoa(limit)) || !strings.Contains(chose, "level=INFO") {
		t.Errorf("it does not say what it chose: %q", chose)
	}
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	control := reads("memory.oom_control")
	if strings.Contains(control, "oom_kill ") && !strings.Contains(control, "oom_kill 0") { // older kernels do not count
		t.Errorf("processes of the group were killed: %q", control)
	}
	for _, bad := range []string{"was killed", "signal: killed"} {
		if bytes.Contains(said, []byte(bad)) {
			t.Errorf("the log says %q: %s", bad, tail(t, log))
		}
	}
	_, backlog := state()
	t.Logf("%s in %v, %d left to squeeze, %d requests; %s; most in use %s, %q", published, time.Since(begun).Round(time.Second), backlog, asked.Load(), chose, reads("memory.max_usage_in_bytes"), control)
}

func metricsOf(t *testing.T, private given) string {
	t.Helper()
	answer, err := http.Get("http://" + private.at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// tail is the end of a file.
func tail(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text[max(0, len(text)-3000):]
}

// TestFullDisk gives the real program a disk of its own, which other programs fill: first below what must be free for a write,
// then to the last byte, while the program publishes. Once there is space it goes on by itself within a minute.
func TestFullDisk(t *testing.T) {
	resources(t)
	for name, test := range map[string]struct {
		leave   int64
		upgrade bool // while the disk is full
		stop    bool // instead
	}{
		"below the floor":              {128 << 20, false, false},
		"to the last byte":             {0, false, false},
		"below the floor, an upgrade":  {128 << 20, true, false},
		"to the last byte, an upgrade": {0, true, false},
		"to the last byte, a stop":     {0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			disk := filepath.Join(t.TempDir(), "disk")
			if err := os.Mkdir(disk, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=600m"); err != nil {
				t.Skipf("no disk can be mounted: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			random := rand.New(rand.NewPCG(1, 2))
			registry := npmtest.New(t)
			registry.Setenv(t)
			released := 0
			release := func(n int) (last string) {
				for range n {
					last = fmt.Sprintf("1.%d.0", released)
					registry.Add("p0", last, time.Now().Add(time.Duration(released-1000)*time.Hour), map[string]string{"a.js": script(random, 100_000)})
					released++
				}
				return "/ajax/libs/p0/" + last + "/a.js"
			}
			first := release(1)
			log := filepath.Join(t.TempDir(), "log")
			url, private, cmd := startFilling(t, filepath.Join(disk, "data"), log, ":", 1)
			serves := func(path string) bool {
				answer, err := http.Get(url + path)
				if err != nil {
					return false // it may begin again
				}
				answer.Body.Close()
				return answer.StatusCode == http.StatusOK
			}
			ready := func(query string) (bool, string) {
				answer, err := http.Get("http://" + private.at + "/readyz" + query)
				if err != nil {
					return false, err.Error()
				}
				defer answer.Body.Close()
				text, _ := io.ReadAll(answer.Body)
				return answer.StatusCode == http.StatusOK, strings.TrimSpace(string(text))
			}
			waitFor(t, first, func() bool { return serves(first) })

			var stat syscall.Statfs_t
			if err := syscall.Statfs(disk, &stat); err != nil {
				t.Fatal(err)
			}
			filler, err := os.Create(filepath.Join(disk, "of another program"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.CopyN(filler, zeros{}, int64(stat.Bavail)*stat.Bsize-test.leave)
			if test.leave == 0 {
				_, err = io.Copy(filler, zeros{})
				if err == nil {
					t.Error("the disk is not full")
				}
			} else if err != nil {
				t.Fatal(err)
			}
			filler.Close()
			last := release(5)
			waitFor(t, "that /readyz says it", func() bool {
				ok, text := ready("?publish")
				return !ok && (strings.Contains(text, "disk low") || strings.Contains(text, "read-only"))
			})
			ok, text := ready("")
			if !ok {
				t.Errorf("a full disk takes the site away from a load balancer: %s", text)
			}
			t.Logf("/readyz: %s", text)
			waitFor(t, "that the log says it", func() bool {
				text, err := os.ReadFile(log)
				return err == nil && bytes.Contains(text, []byte("the disk is full"))
			})
			if test.upgrade {
				s := &onSocket{t: t, pid: cmd.Process.Pid}
				t.Cleanup(s.stop)
				s.upgrade(filepath.Join(disk, "data"))
			}
			if test.stop {
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
				waitFor(t, "that it ends", func() bool { return ended(cmd.Process.Pid) })
				if err := os.Remove(filler.Name()); err != nil {
					t.Fatal(err)
				}
				out, err := exec.Command("larder", "status", "--data", filepath.Join(disk, "data")).CombinedOutput()
				if err != nil {
					t.Errorf("the data folder cannot be opened: %v: %s; the process: %s", err, out, tail(t, log))
				}
				return
			}
			if !serves(first) {
				t.Errorf("a full disk keeps it from serving: %s", tail(t, log))
			}
			if serves(last) {
				t.Error("a release was published on a full disk")
			}
			if err := os.Remove(filler.Name()); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			waitFor(t, last, func() bool { return serves(last) })
			waitFor(t, "readiness", func() bool { ok, _ := ready("?publish"); return ok })
			took := time.Since(begun)
			t.Logf("%v after there is space, everything goes on", took.Round(100*time.Millisecond))
			if took > time.Minute {
				t.Errorf("it took %v: %s", took, tail(t, log))
			}
			if !test.upgrade && ended(cmd.Process.Pid) {
				t.Errorf("the process has ended: %s", tail(t, log))
			}
		})
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
