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

// get requests a page or a file of the public address, and returns how long the complete response took.
func (l *larder) get(ctx context.Context, path, accept string) (body []byte, took time.Duration, err error) {
	return l.getAt(ctx, l.base+path, accept)
}

// getAt is get for any address.
func (l *larder) getAt(ctx context.Context, address, accept string) (body []byte, took time.Duration, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
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
		err = fmt.Errorf("%s: %s", address, answer.Status)
	}
	return body, time.Since(begun), err
}

// until requests a path of the public address until the response is as it should be, and returns how long after the start that was.
func (l *larder) until(ctx context.Context, path string, ok func(body []byte) bool) (time.Duration, error) {
	return l.untilAt(ctx, l.base+path, ok)
}

// untilAt is until for any address.
func (l *larder) untilAt(ctx context.Context, address string, ok func(body []byte) bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		body, _, err := l.getAt(ctx, address, "*/*")
		if err == nil && ok(body) {
			return time.Since(l.begun), nil
		}
		select {
		case <-l.ended:
			return 0, fmt.Errorf("the program has ended: %s", l.said.String())
		case <-ctx.Done():
			return 0, fmt.Errorf("%s does not respond as it should: %w, %w: %s", address, err, ctx.Err(), body)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// start measures from the start of the program to the first file, until /readyz is 200, and until all libraries can be
// found, with the processor time and the memory that a start takes.
func (m *measurement) start(ctx context.Context) error {
	// The first start signs the log, and writes out what filling has left in the log of the store.
	if _, err := m.startOnce(ctx, 0); err != nil {
		return err
	}
	bounds := [...]float64{1, 20, 20, 40, 1500}
	if m.files <= 210_000 {
		bounds = [...]float64{1, 2, 2, 4, 300} // of 6,000 libraries
	}
	for _, system := range []string{"remembers", "has forgotten"} {
		var rounds [len(bounds)][]float64
		for round := range m.rounds {
			if system == "has forgotten" {
				if err := forget(m.data()); err != nil {
					return err
				}
			}
			values, err := m.startOnce(ctx, round)
			if err != nil {
				return err
			}
			for i, v := range values {
				rounds[i] = append(rounds[i], v)
			}
		}
		of := "the system " + system + " the store's files"
		for i, what := range []string{"start to the first file", "start to ready", "start to all libraries in search", "processor time of a start", "memory of a start"} {
			unit := "s"
			if i == 4 {
				unit = "MB"
			}
			slices.Sort(rounds[i])
			m.add(what, rounds[i][len(rounds[i])/2], bounds[i], unit, of)
		}
	}
	return nil
}

// startOnce starts and stops the program. It returns the seconds to the first file, until it is ready and until all
// libraries can be found, its processor time in seconds and its peak memory in MB. Each round requests another file.
func (m *measurement) startOnce(ctx context.Context, round int) (values [5]float64, err error) {
	l, err := m.serve(ctx)
	if err != nil {
		return values, err
	}
	defer l.stop()
	for i, wait := range []func() (time.Duration, error){
		func() (time.Duration, error) {
			return l.until(ctx, pathOf(m.files/perRelease*perRelease/(m.rounds+1)*round), func([]byte) bool { return true })
		},
		func() (time.Duration, error) {
			return l.untilAt(ctx, l.private+"/readyz", func([]byte) bool { return true })
		},
		func() (time.Duration, error) { return l.until(ctx, "/stats", m.complete) },
	} {
		took, err := wait()
		if err != nil {
			return values, err
		}
		values[i] = took.Seconds()
	}
	values[4] = float64(peak(l.cmd.Process.Pid)) / 1e6
	l.stop()
	values[3] = (l.cmd.ProcessState.UserTime() + l.cmd.ProcessState.SystemTime()).Seconds()
	return values, nil
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
	if err := errors.Join(os.RemoveAll(backup), m.timed(ctx, "larder backup", 3600, "backup", backup, "--data", m.data())); err != nil {
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
