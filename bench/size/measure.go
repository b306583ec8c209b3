//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

type measurement struct {
	options
	folder  string
	results []result
}

func (m *measurement) libraries() int { return (m.files/perRelease + perLibrary - 1) / perLibrary }
func (m *measurement) data() string   { return filepath.Join(m.folder, "data") }

func (m *measurement) wanted(what string) bool {
	return m.only == "" || slices.Contains(strings.Split(m.only, ","), what)
}

func (m *measurement) add(what string, value, bound float64, unit, note string) {
	m.results = append(m.results, result{what: what, value: value, bound: bound, unit: unit, note: note})
	progress("%s: %.4g %s", what, value, unit)
}

func (m *measurement) all(ctx context.Context) error {
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"start", m.start}, {"serving", m.serving}, {"fsck", m.fsck}, {"mirror", m.mirror},
	} {
		if !m.wanted(part.name) {
			continue
		}
		progress("%s", part.name)
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// A larder is the program that runs.
type larder struct {
	cmd     *exec.Cmd
	said    bytes.Buffer
	ended   chan struct{}
	begun   time.Time
	base    string
	private string
	client  http.Client
}

// serve starts the program over a data folder.
func (m *measurement) serve(ctx context.Context) (*larder, error) {
	public, private := freeAddress(), freeAddress()
	l := &larder{ended: make(chan struct{}), base: "http://" + public, private: "http://" + private}
	l.cmd = exec.CommandContext(ctx, m.larder, "serve", "--data", m.data(), "--listen", public, "--private-listen", private, "--log-level", "error")
	l.cmd.Stdout, l.cmd.Stderr = &l.said, &l.said
	l.begun = time.Now()
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(l.ended)
		_ = l.cmd.Wait()
	}()
	return l, nil
}

func (l *larder) stop() {
	_ = l.cmd.Process.Signal(syscall.SIGTERM)
	<-l.ended
}

// get asks for a page, or a file, and returns how long the whole answer took.
func (l *larder) get(ctx context.Context, path, accept string) (body []byte, took time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.base+path, nil)
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Accept", accept)
	begun := time.Now()
	answer, err := l.client.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, answer.Status)
	}
	return body, time.Since(begun), err
}

// until asks again and again until the answer is as it should be, and returns how long after the start that was.
func (l *larder) until(ctx context.Context, path string, ok func(body []byte) bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		body, _, err := l.get(ctx, path, "*/*")
		if err == nil && ok(body) {
			return time.Since(l.begun), nil
		}
		select {
		case <-l.ended:
			return 0, fmt.Errorf("the program has ended: %s", l.said.String())
		case <-ctx.Done():
			return 0, fmt.Errorf("%s is not answered as it should be: %w, %w: %s", path, err, ctx.Err(), body)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// start measures from the start of the program to the first file, and until all libraries can be found.
func (m *measurement) start(ctx context.Context) error {
	// The first start signs the log, and writes out what filling has left in the log of the store.
	l, err := m.serve(ctx)
	if err != nil {
		return err
	}
	_, err = l.until(ctx, "/stats", m.complete)
	l.stop()
	if err != nil {
		return err
	}
	for _, system := range []string{"remembers", "has forgotten"} {
		var file, search []float64
		for round := range m.rounds {
			if system == "has forgotten" {
				if err := forget(m.data()); err != nil {
					return err
				}
			}
			l, err := m.serve(ctx)
			if err != nil {
				return err
			}
			first, err := l.until(ctx, pathOf(m.files/perRelease*perRelease/(m.rounds+1)*round), func([]byte) bool { return true })
			all := first
			if err == nil {
				all, err = l.until(ctx, "/stats", m.complete)
			}
			l.stop()
			if err != nil {
				return err
			}
			file, search = append(file, first.Seconds()), append(search, all.Seconds())
		}
		slices.Sort(file)
		slices.Sort(search)
		of := "the system " + system + " the store's files"
		m.add("start to the first file", file[len(file)/2], 1, "s", of)
		m.add("start to all libraries in search", search[len(search)/2], 20, "s", of)
	}
	return nil
}

// complete reports whether what /stats says is all libraries.
func (m *measurement) complete(body []byte) bool {
	var stats struct {
		Libraries int `json:"libraries"`
	}
	return json.Unmarshal(body, &stats) == nil && stats.Libraries == m.libraries()
}

// serving measures what a running Larder answers, one request after the other.
func (m *measurement) serving(ctx context.Context) error {
	l, err := m.serve(ctx)
	if err != nil {
		return err
	}
	defer l.stop()
	if _, err := l.until(ctx, "/stats", m.complete); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	name := func() string { return library(random.IntN(m.libraries() - 1)) }
	version := func() string { return versionOf(random.IntN(perLibrary)) }
	for _, q := range []struct {
		what, accept string
		times        int
		bound        float64 // p99, in ms
		path         func() string
	}{
		{"a file", "*/*", 5000, 5, func() string { return pathOf(random.IntN(m.files / perRelease * perRelease)) }},
		{"a search", "application/json", 500, 50, func() string {
			return "/libraries?limit=10&search=" + url.QueryEscape(first[random.IntN(len(first))]+" "+second[random.IntN(len(second))])
		}},
		{"a search's page", "text/html", 200, 60, func() string { return "/search?q=" + first[random.IntN(len(first))] }},
		{"a library's page", "text/html", 200, 60, func() string { return "/library/" + name() }},
		{"a version's page", "text/html", 200, 60, func() string { return "/library/" + name() + "/" + version() }},
		{"a library's history", "text/html", 200, 60, func() string { return "/history/" + name() }},
		{"a release's history", "text/html", 200, 60, func() string { return "/history/" + name() + "/" + version() }},
		{"a page of the log", "text/html", 50, 60, func() string { return "/history?before=" + strconv.Itoa(random.IntN(m.files/perRelease)) }},
		{"the API's library", "application/json", 200, 40, func() string { return "/libraries/" + name() }},
		{"all libraries of the API", "application/json", 5, 500, func() string { return "/libraries" }},
		{"the home page", "text/html", 50, 60, func() string { return "/" }},
		{"the statistics", "text/html", 20, 200, func() string { return "/statistics" }},
	} {
		took := make([]time.Duration, 0, q.times)
		for range q.times {
			path := q.path()
			_, d, err := l.get(ctx, path, q.accept)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		slices.Sort(took)
		ms := func(quantile float64) float64 { return took[int(quantile*float64(len(took)-1))].Seconds() * 1e3 }
		m.add(q.what+", p99", ms(0.99), q.bound, "ms", fmt.Sprintf("p50 %.2g ms", ms(0.5)))
	}
	if err := m.timed(ctx, "larder status", 5, "status", "--data", m.data()); err != nil {
		return err
	}
	backup := filepath.Join(m.folder, "backup")
	defer os.RemoveAll(backup)
	if err := errors.Join(os.RemoveAll(backup), m.timed(ctx, "larder backup", 300, "backup", backup, "--data", m.data())); err != nil {
		return err
	}
	m.add("memory", float64(peak(l.cmd.Process.Pid))/1e6, 1500, "MB", "peak, resident")
	return nil
}

func (m *measurement) fsck(ctx context.Context) error {
	return errors.Join(
		m.timed(ctx, "larder fsck", 600, "fsck", "--data", m.data()),
		m.timed(ctx, "larder fsck --all", 1200, "fsck", "--all", "--data", m.data()),
		m.timed(ctx, "larder fsck --deep, again", 10, "fsck", "--deep", "--data", m.data()))
}

// timed runs a command to its end.
func (m *measurement) timed(ctx context.Context, what string, bound float64, args ...string) error {
	begun := time.Now()
	said, err := exec.CommandContext(ctx, m.larder, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", what, err, said)
	}
	m.add(what, time.Since(begun).Seconds(), bound, "s", "")
	return nil
}

// mirror measures how fast a mirror follows, for as long as it may.
func (m *measurement) mirror(ctx context.Context) error {
	l, err := m.serve(ctx)
	if err != nil {
		return err
	}
	defer l.stop()
	if _, err := l.until(ctx, "/log/checkpoint", func([]byte) bool { return true }); err != nil {
		return err
	}
	folder := filepath.Join(m.folder, "mirror")
	defer os.RemoveAll(folder)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, m.larder, "mirror", l.base, "--once", "--data", folder, "--log-level", "error")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	begun := time.Now()
	enough := time.AfterFunc(m.follow, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	said, err := cmd.CombinedOutput()
	took := time.Since(begun).Seconds()
	if enough.Stop() && err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	store, err := kvstore.Open(filepath.Join(folder, "store"), kvstore.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	log, err := logs.Open(store)
	if err != nil {
		return err
	}
	files := float64(log.Checkpoint().Size) * float64(perRelease)
	m.results = append(m.results, result{what: "a mirror's catch-up", value: files / took, bound: 1000, unit: "files/s", least: true,
		note: fmt.Sprintf("all of it in %.0f minutes", float64(m.files)/files*took/60)})
	return nil
}

// freeAddress is one on which no process listens. It is not reserved until it is used.
func freeAddress() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // there is no loopback
	}
	defer l.Close()
	return l.Addr().String()
}

// peak returns the most memory that a process had, in bytes.
func peak(pid int) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kilobytes, _ := strconv.ParseInt(fields[0], 10, 64)
	return kilobytes << 10
}

func sizeOf(folder string) (n int64) {
	_ = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// forget has the system forget what it remembers of a folder's files.
func forget(folder string) error {
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	})
}
