//go:build linux

// Command sample fills a store with real packages: a sample of a catalogue's packages that come from npm, chosen by a seed,
// with their newest releases from the registry that npm is configured with. It runs the real program, `larder bot --once` and
// `larder squeeze`, and prints what was published, refused and failed, why, what it cost, and what the whole catalogue would
// cost by that measure.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

type options struct {
	larder    string
	catalogue string
	packages  int
	releases  int
	seed      uint64
	keep      string
	squeeze   time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "sample:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o := options{}
	flags := flag.NewFlagSet("sample", flag.ContinueOnError)
	flags.StringVar(&o.larder, "larder", "bin/larder", "the `program` to measure")
	flags.StringVar(&o.catalogue, "catalogue", "", "catalogue `folder or archive` to choose from (required)")
	flags.IntVar(&o.packages, "packages", 300, "packages to choose")
	flags.IntVar(&o.releases, "releases", 2, "newest releases of each")
	flags.Uint64Var(&o.seed, "seed", 1, "what the choice is made by: the same seed chooses the same packages")
	flags.StringVar(&o.keep, "keep", "", "keep catalogue, store and keys in this `folder`, and go on with what is there; by default all of it is removed")
	flags.DurationVar(&o.squeeze, "squeeze", 24*time.Hour, "how long to bring files to their best compression, at most; what all of them take is reckoned from those")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.catalogue == "" || o.packages < 1 || o.releases < 1 {
		return errors.New("name the catalogue with -catalogue; -packages and -releases are 1 or more")
	}
	if _, err := os.Stat(o.larder); err != nil {
		return fmt.Errorf("%w; `make build` makes it, -larder names another", err)
	}
	folder := o.keep
	if folder == "" {
		var err error
		if folder, err = os.MkdirTemp("", "larder-sample-"); err != nil {
			return err
		}
		defer os.RemoveAll(folder)
	}
	all, chosen, err := choose(o)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(folder, "catalogue"), chosen); err != nil {
		return err
	}
	r, err := o.measure(ctx, folder, chosen)
	if err != nil {
		return err
	}
	r.title = fmt.Sprintf("%d of %d packages that come from npm (seed %d), newest %d releases of each", len(chosen), all, o.seed, o.releases)
	r.whole = float64(all) / float64(len(chosen))
	return r.print(os.Stdout)
}

// choose returns how many packages of the catalogue come from npm, and some of them.
func choose(o options) (int, []*packages.Package, error) {
	catalogue, err := packages.Open(o.catalogue)
	if err != nil {
		return 0, nil, err
	}
	all := slices.DeleteFunc(slices.Clone(catalogue.Packages()), func(p *packages.Package) bool { return p.Autoupdate == nil || p.Autoupdate.Source != "npm" })
	if len(all) < o.packages {
		return 0, nil, fmt.Errorf("%s has %d packages that come from npm, and -packages is %d", o.catalogue, len(all), o.packages)
	}
	slices.SortFunc(all, func(a, b *packages.Package) int { return cmp.Compare(a.Name, b.Name) })
	chosen := slices.Clone(all)
	rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	return len(all), chosen[:o.packages], nil
}

func write(folder string, chosen []*packages.Package) error {
	for _, p := range chosen {
		file := filepath.Join(folder, filepath.FromSlash(packages.Path(p.Name)))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, p.JSON, 0o666)); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the program, and reads what it has stored.
func (o options) measure(ctx context.Context, folder string, chosen []*packages.Package) (*report, error) {
	meter, err := startMeter()
	if err != nil {
		return nil, err
	}
	defer meter.close()
	data := filepath.Join(folder, "data")
	r := &report{packages: len(chosen)}
	larder := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, o.larder, append(args, "--data", data)...)
		cmd.Env, cmd.Stderr = meter.env(os.Environ()), os.Stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		return cmd
	}
	// Releases that failed make the exit code 1; the report has them.
	var failed *exec.ExitError
	if err := r.time("fetched and served", larder(ctx, "bot", "--once", "--private-listen", "off", "--log-level", "error",
		"--catalogue", filepath.Join(folder, "catalogue"), "--releases", strconv.Itoa(o.releases))); err != nil && !errors.As(err, &failed) {
		return nil, err
	}
	r.received = meter.received.Load()
	store := filepath.Join(data, "store")
	if err := r.read(store); err != nil {
		return nil, err
	}
	if o.squeeze > 0 {
		r.before = r.squeezed
		while, cancel := context.WithTimeout(ctx, o.squeeze)
		defer cancel()
		if err := r.time("squeezed", larder(while, "squeeze", "--log-level", "error")); err != nil && while.Err() == nil {
			return nil, err
		}
		if err := r.read(store); err != nil {
			return nil, err
		}
	}
	answer, err := larder(ctx, "status", "--json").Output()
	if err != nil {
		return nil, fmt.Errorf("larder status: %w", err)
	}
	if err := json.Unmarshal(answer, &r.status); err != nil {
		return nil, err
	}
	r.disk, err = sizeOf(store)
	return r, err
}

// time runs a command, and notes what it and its children took.
func (r *report) time(name string, cmd *exec.Cmd) error {
	begun := time.Now()
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return err
	}
	s := step{name: name, wall: time.Since(begun), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		s.peak = usage.Maxrss << 10
	}
	r.steps = append(r.steps, s)
	if err != nil {
		return fmt.Errorf("larder %s: %w", cmd.Args[1], err)
	}
	return nil
}

// read counts what the store holds.
func (r *report) read(folder string) error {
	store, err := kvstore.Open(folder, kvstore.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer store.Close()
	r.stored = stored{}
	seen := make(map[kvstore.Hash]bool)
	for e, err := range logs.Entries(store, 0) {
		if err != nil {
			return err
		}
		if !e.Kind.Publishes() {
			continue
		}
		m, err := logs.ReadManifest(store, e.Manifest)
		if err != nil {
			return err
		}
		r.published++
		for _, f := range m.Files {
			r.files++
			r.bytes += f.Size
			if seen[f.SHA256] {
				continue
			}
			seen[f.SHA256] = true
			c, err := store.Content(f.SHA256)
			if err != nil {
				return err
			}
			r.contents++
			if c.Squeezed {
				r.squeezed += f.Size
			}
			r.distinct += f.Size
			r.brotli += smallest(c, coding.Brotli)
			r.gzip += smallest(c, coding.Gzip)
		}
	}
	return nil
}

// smallest is how many bytes a client gets that takes the coding: those of the identity where that is no larger.
func smallest(c kvstore.Content, in coding.Coding) int64 {
	length := c.Size
	for _, form := range c.Representations {
		if form.Coding == in {
			length = min(length, form.Length)
		}
	}
	return length
}

// A status is the part of `larder status --json` that the report shows.
type status struct {
	Packages []struct {
		Published, Waiting, Failed, Refused int
	} `json:"packages"`
	Problems []struct {
		Kind     string   `json:"kind"`
		Cause    string   `json:"cause"`
		Count    int      `json:"count"`
		Packages []string `json:"packages"`
	} `json:"problems"`
}
