//go:build linux

// Command size measures Larder over a store as large as the public service's: 7 million files in 200,000 releases of 4,100
// libraries, published by the code that the bot uses. The files are small, so that what is measured is how Larder copes
// with their number.
//
// It runs the real program: how long that takes to start, to find files, to search, to make pages, to tell its status, to
// check the store, to copy it, and how fast a mirror follows. Each has a bound, the one that docs/operating.md promises;
// what takes longer fails the run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

type options struct {
	larder string
	cache  string // folder that keeps the store between runs
	files  int
	only   string
	rounds int
	follow time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o := options{}
	flags := flag.NewFlagSet("size", flag.ContinueOnError)
	flags.StringVar(&o.larder, "larder", "bin/larder", "the `program` to measure")
	flags.StringVar(&o.cache, "cache", filepath.Join(os.TempDir(), "larder-bench-size"), "`folder` that keeps the store between runs; 10 GB, and as much again while the backup and the mirror are there")
	flags.IntVar(&o.files, "files", 7_000_000, "files in the store; the bounds are for up to 7 million")
	flags.IntVar(&perLibrary, "releases", perLibrary, "releases of each library: -releases 1 -files 210000 is 6,000 libraries")
	flags.StringVar(&o.only, "only", "", "measure only these `parts`, separated by commas: start, serving, fsck, mirror; none only fills the store")
	flags.IntVar(&o.rounds, "rounds", 5, "how often the program is started")
	flags.DurationVar(&o.follow, "follow", 3*time.Minute, "how long the mirror may catch up")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || perLibrary < 1 || o.files < perRelease*perLibrary || o.rounds < 1 {
		return fmt.Errorf("no arguments are expected, -files is %d or more, and -releases and -rounds 1 or more", perRelease*perLibrary)
	}
	var err error
	if o.larder, err = filepath.Abs(o.larder); err != nil {
		return err
	}
	if _, err := os.Stat(o.larder); err != nil {
		return fmt.Errorf("%w; `make build` makes it, -larder names another", err)
	}
	m := &measurement{options: o, folder: filepath.Join(o.cache, fmt.Sprintf("%d-%d", o.files, perLibrary))}
	if err := fill(ctx, m.folder, o.files); err != nil {
		return err
	}
	fmt.Printf("%d files in %d releases of %d libraries, %.1f GB\n", o.files/perRelease*perRelease, o.files/perRelease, m.libraries(), float64(sizeOf(m.folder))/1e9)
	if err := m.all(ctx); err != nil {
		return err
	}
	return m.report()
}

// A result is one measurement and what it may be.
type result struct {
	what         string
	value, bound float64
	unit         string
	least        bool // the bound is the least that it may be
	note         string
}

func (r *result) met() bool { return r.least == (r.value >= r.bound) || r.value == r.bound }

func (m *measurement) report() error {
	var missed []string
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tmeasured\tbound\t")
	for i := range m.results {
		r, relation := &m.results[i], "at most"
		if r.least {
			relation = "at least"
		}
		verdict := r.note
		if !r.met() {
			missed, verdict = append(missed, r.what), strings.TrimSpace("MISSED "+r.note)
		}
		fmt.Fprintf(table, "%s\t%.4g %s\t%s %g\t%s\n", r.what, r.value, r.unit, relation, r.bound, verdict)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if missed != nil {
		return fmt.Errorf("beyond the bound: %s", strings.Join(missed, ", "))
	}
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
