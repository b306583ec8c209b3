//go:build linux

// Command background measures how long requests for hot files take while the same process does its other work on the same
// processors: publishing, recompression, a check of everything, and the compactions that follow from them.
//
// Each round has a data folder of its own, and measures the undisturbed process first. Requests are sent at a fixed rate, and
// each is timed from the moment at which it was due, so a server that stalls cannot hide it (Gil Tene, "How NOT to Measure
// Latency"). The load generator is on the same processors, in a process of its own that runs as soon as it wakes up, since the clients of
// a real site do not wait for its processors. What it waits nevertheless is in every figure.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/bench/internal/stage"
	"github.com/larder-cdn/larder/internal/chart"
	"github.com/larder-cdn/larder/internal/priority"
)

const (
	hotFiles    = 20
	connections = 32
	// Releases to publish are written before anything is measured: as many as one process can publish in a second, each with so many files.
	releasesPerSecond, filesOfRelease = 6, 200
)

type options struct {
	larder   string
	rounds   int
	duration time.Duration
	rate     int
	chart    string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == loadArgument {
		if err := runLoad(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "background:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.larder, "larder", "bin/larder", "the `program` to measure")
	flag.IntVar(&o.rounds, "rounds", 5, "`N` rounds, each with a new data folder")
	flag.DurationVar(&o.duration, "duration", 10*time.Second, "how long each kind of work is measured in a round")
	flag.IntVar(&o.rate, "rate", 1000, "requests per second")
	flag.StringVar(&o.chart, "chart", "", "write the latencies as SVG to `FILE`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "background:", err)
		os.Exit(1)
	}
}

// A work is what the process does beside serving while it is measured.
type work struct {
	name string
	do   func(*site, context.Context) // until the context ends
}

var works = []work{
	{"nothing else", (*site).doNothing},
	{"fsck --all", (*site).checkAll},
	{"publishing and recompression", (*site).publishAll},
	{"recompression", (*site).doNothing}, // of what was published just before
	{"all of it", (*site).doAll},
}

func run(ctx context.Context, o options) error {
	if o.rounds < 1 || o.rate < connections || o.duration < time.Second {
		return fmt.Errorf("-rounds is 1 or more, -rate %d or more, -duration 1s or more", connections)
	}
	larder, err := filepath.Abs(o.larder)
	if err == nil {
		_, err = os.Stat(larder)
	}
	if err != nil {
		return fmt.Errorf("%w; `make build` makes it, -larder names another", err)
	}
	o.larder = larder
	latencies := make([][]time.Duration, len(works)) // of all rounds
	tails := make([][]float64, len(works))           // the 99th percentile over that of the undisturbed process, by round
	for round := range o.rounds {
		measured, err := o.measureRound(ctx)
		if err != nil {
			return err
		}
		for i, m := range measured {
			latencies[i] = append(latencies[i], m...)
			tails[i] = append(tails[i], float64(percentile(m, 0.99))/float64(percentile(measured[0], 0.99)))
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
	}
	fmt.Printf("%d requests per second for files of 5 to 80 KB in memory, %d rounds of %v\n\n", o.rate, o.rounds, o.duration)
	fmt.Printf("| beside serving | requests | median | 99 %% | 99.9 %% | 99 %%, undisturbed = 1: median of the rounds | least to most |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for i, w := range works {
		l, t := latencies[i], slices.Sorted(slices.Values(tails[i]))
		fmt.Printf("| %s | %d | %s | %s | %s | %.2f | %.2f to %.2f |\n", w.name, len(l), milliseconds(l, 0.5), milliseconds(l, 0.99), milliseconds(l, 0.999), t[len(t)/2], t[0], t[len(t)-1])
	}
	if o.chart == "" {
		return nil
	}
	return drawLatencies(o.chart, latencies)
}

// measureRound fills a new data folder, and measures the latencies of each work.
func (o options) measureRound(ctx context.Context) (measured [][]time.Duration, err error) {
	s, err := o.startSite(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for _, w := range works {
		working, end := context.WithCancel(ctx)
		var done sync.WaitGroup
		done.Go(func() { w.do(s, working) })
		m, err := s.measure(ctx, o.rate, o.duration)
		end()
		done.Wait()
		if err := errors.Join(err, s.failed()); err != nil {
			return nil, fmt.Errorf("beside %s: %w", w.name, err)
		}
		measured = append(measured, m)
	}
	return measured, nil
}

// A site is a process of Larder with hot files.
type site struct {
	larder, folder, address string
	env                     []string
	stops                   []func()
	releases, published     int // to publish, and started

	mu  sync.Mutex
	err error
}

// startSite publishes the hot files, compresses them as well as it goes, and starts the process.
func (o options) startSite(ctx context.Context) (s *site, err error) {
	folder, err := os.MkdirTemp("", "larder-background-")
	if err != nil {
		return nil, err
	}
	s = &site{larder: o.larder, folder: folder}
	s.stops = append(s.stops, func() { os.RemoveAll(folder) })
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	nothing := httptest.NewServer(http.NotFoundHandler()) // the packages are not in any registry
	s.stops = append(s.stops, nothing.Close)
	s.env = append(os.Environ(), "NPM_CONFIG_REGISTRY="+nothing.URL)
	for _, name := range []string{"hot", "other"} {
		if err := writePackage(s.catalogue(), name); err != nil {
			return nil, err
		}
	}
	source := filepath.Join(folder, "hot")
	for i := range hotFiles {
		if err := writeScript(filepath.Join(source, fmt.Sprintf("%d.js", i)), 5000+i*4000); err != nil {
			return nil, err
		}
	}
	s.releases = max(2, 2*releasesPerSecond*int(o.duration.Seconds())) // for both kinds of work that publish
	for n := range s.releases {
		for i := range filesOfRelease {
			if err := writeScript(filepath.Join(s.release(n+1), fmt.Sprintf("%d.js", i)), 20_000); err != nil {
				return nil, err
			}
		}
	}
	err = cmp.Or(s.command(ctx, "import", "hot", "1.0.0", source, "--catalogue", s.catalogue()), s.command(ctx, "squeeze"))
	if err != nil {
		return nil, err
	}
	ready := filepath.Join(folder, "ready")
	up := exec.Command(s.larder, "up", "--data", s.data(), "--catalogue", s.catalogue(), "--listen", "127.0.0.1:0", "--private-listen", "off", "--log-level", "error", "--ready-file", ready, "--vulnerabilities", "off")
	up.Env, up.Stderr = s.env, os.Stderr
	stop, err := stage.Start(up)
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, stop)
	s.address, err = stage.AwaitURL(ctx, up.Process, ready)
	return s, err
}

func (s *site) data() string      { return filepath.Join(s.folder, "data") }
func (s *site) catalogue() string { return filepath.Join(s.folder, "catalogue") }

// release is the folder with the files of a release to publish.
func (s *site) release(n int) string { return filepath.Join(s.folder, fmt.Sprintf("other-%d", n)) }

func (s *site) close() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
}

// command runs a command of Larder on the data folder.
func (s *site) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, s.larder, append(args, "--data", s.data(), "--log-level", "error")...)
	cmd.Env = s.env
	if said, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("larder %s: %w: %s", args[0], err, said)
	}
	return nil
}

// repeat calls f until the context ends or f fails.
func (s *site) repeat(ctx context.Context, f func() error) {
	for ctx.Err() == nil {
		if err := f(); err != nil {
			s.mu.Lock()
			s.err = errors.Join(s.err, err)
			s.mu.Unlock()
			return
		}
	}
}

// failed returns why work ended early.
func (s *site) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// checkAll decodes and hashes every file, again and again.
func (s *site) checkAll(ctx context.Context) {
	s.repeat(ctx, func() error { return s.command(ctx, "fsck", "--all") })
}

// publishAll publishes one release after the other. The process recompresses their files meanwhile.
func (s *site) publishAll(ctx context.Context) {
	s.repeat(ctx, func() error {
		s.published++
		if s.published > s.releases {
			return fmt.Errorf("all %d releases are published", s.releases)
		}
		return s.command(ctx, "import", "other", fmt.Sprintf("1.0.%d", s.published), s.release(s.published))
	})
}

func (s *site) doNothing(context.Context) {}

func (s *site) doAll(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { s.checkAll(ctx) })
	all.Go(func() { s.publishAll(ctx) })
	all.Wait()
}

// loadArgument is the only argument of a process that generates load.
const loadArgument = "generate-load"

// A load is what a process that generates load reads, in JSON.
type load struct {
	Address  string
	Rate     int // requests per second
	Duration time.Duration
}

// measure has another process request hot files at a rate. It returns how long each took from the moment at which it was due.
func (s *site) measure(ctx context.Context, rate int, duration time.Duration) (latencies []time.Duration, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	input, err := json.Marshal(load{s.address, rate, duration})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, loadArgument)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return latencies, json.Unmarshal(output, &latencies)
}

// runLoad generates load as in says, and writes the latencies to out.
func runLoad(in io.Reader, out io.Writer) error {
	var l load
	if err := json.NewDecoder(in).Decode(&l); err != nil {
		return err
	}
	if err := priority.RaiseForRequests(); err != nil {
		return err
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}}
	for i := range hotFiles { // open connections, and have each file in memory
		if err := l.get(client, i); err != nil {
			return err
		}
	}
	step := time.Second * connections / time.Duration(l.Rate)
	latencies, errs := make([][]time.Duration, connections), make([]error, connections)
	var all sync.WaitGroup
	start := time.Now()
	for c := range connections {
		all.Go(func() {
			for due := start.Add(step * time.Duration(c) / connections); due.Sub(start) < l.Duration && errs[c] == nil; due = due.Add(step) {
				time.Sleep(time.Until(due))
				errs[c] = l.get(client, rand.IntN(hotFiles))
				latencies[c] = append(latencies[c], time.Since(due))
			}
		})
	}
	all.Wait()
	return errors.Join(errors.Join(errs...), json.NewEncoder(out).Encode(slices.Concat(latencies...)))
}

// get requests a hot file.
func (l load) get(client *http.Client, file int) error {
	r, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s/ajax/libs/hot/1.0.0/%d.js", l.Address, file), nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept-Encoding", "br")
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Encoding") != "br" {
		return fmt.Errorf("%s answers %s with the encoding %q", r.URL, response.Status, response.Header.Get("Content-Encoding"))
	}
	return nil
}

// writePackage adds a package to the catalogue that takes all scripts as they are.
func writePackage(catalogue, name string) error {
	data, err := json.Marshal(map[string]any{
		"name": name, "filename": "0.js", "description": "Files of a benchmark.", "keywords": []string{"benchmark"}, "license": "MIT",
		"repository":   map[string]string{"type": "git", "url": "https://example.com/benchmark.git"},
		"autoupdate":   map[string]any{"source": "npm", "target": name, "fileMap": []any{map[string]any{"basePath": "", "files": []string{"*.js"}}}},
		"optimization": map[string]bool{"js": false, "css": false},
	})
	folder := filepath.Join(catalogue, "packages", name[:1])
	return cmp.Or(err, os.MkdirAll(folder, 0o777), os.WriteFile(filepath.Join(folder, name+".json"), data, 0o666))
}

// writeScript writes a script that compresses about as well as real ones.
func writeScript(file string, size int) error {
	var text strings.Builder
	for text.Len() < size {
		fmt.Fprintf(&text, "function f%d(a, b) { return a.v%d + b.v%d * %d; }\n", rand.IntN(10_000), rand.IntN(300), rand.IntN(300), rand.IntN(100_000))
	}
	return cmp.Or(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(text.String()), 0o666))
}

// percentile returns the latency below which a share of the requests are.
func percentile(latencies []time.Duration, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(latencies))
	return sorted[min(len(sorted)-1, int(float64(len(sorted))*share))]
}

func milliseconds(latencies []time.Duration, share float64) string {
	return fmt.Sprintf("%.2f ms", percentile(latencies, share).Seconds()*1000)
}

// drawLatencies draws the latency of each work by percentile. The further right, the rarer: each mark is ten times as rare.
func drawLatencies(file string, latencies [][]time.Duration) error {
	const most, step = 3.0, 0.02 // 99.9 %, in powers of ten of the rest
	c := chart.Chart{
		Title: "Latency of hot files while the process does other work",
		X:     chart.Axis{Title: "percent of the requests", Max: most, Marks: []chart.Mark{{At: 0, Text: "0 %"}, {At: 1, Text: "90 %"}, {At: 2, Text: "99 %"}, {At: 3, Text: "99.9 %"}}},
		Y:     chart.Axis{Title: "milliseconds"},
	}
	var words []string
	for i, w := range works {
		l := chart.Line{Name: w.name, Step: step}
		sorted := slices.Sorted(slices.Values(latencies[i]))
		for x := 0.0; x <= most; x += step {
			at := min(len(sorted)-1, int(float64(len(sorted))*(1-math.Pow(10, -x))))
			l.Values = append(l.Values, sorted[at].Seconds()*1000)
		}
		c.Y.Max = max(c.Y.Max, l.Values[len(l.Values)-1])
		c.Lines = append(c.Lines, l)
		words = append(words, fmt.Sprintf("%s %s", w.name, milliseconds(latencies[i], 0.99)))
	}
	c.Y.Step = chart.Step(c.Y.Max, 0)
	c.Summary = "99 percent of the requests take less than: " + strings.Join(words, ", ") + "."
	return os.WriteFile(file, c.File(), 0o666)
}
