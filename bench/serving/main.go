// Command serving compares Larder's asset serving with nginx and Caddy: the same
// real files, the same header fields, side by side on the loopback of one machine,
// one core for the server and another one for the load.
//
// Larder is filled through its own `larder add` (or `larder import`, with
// -corpus); the peers get the bodies that Larder answers with, as the .br and .gz
// files that nginx's brotli_static and gzip_static and Caddy's precompressed want.
// Before anything is timed, every answer that will be asked for is asked of every
// server and compared; a difference ends the run.
//
// What is measured, how, and how to read it: docs/benchmarks.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

type options struct {
	larder   string
	cache    string // folder that keeps the corpus between runs
	corpus   string // folder of files to take instead of real releases
	only     string
	quick    bool
	headline bool
	http2    bool // of the headline
	rounds   int
	duration time.Duration
	files    int
	memory   string // of Larder's cache in the mix
	json     string
	plot     string
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == bareArgument {
		fmt.Fprintln(os.Stderr, "serving:", runBare(os.Stdin))
		os.Exit(1)
	}
	// The load generator of our own is this program again, on the other core.
	if len(os.Args) == 2 && os.Args[1] == leanArgument {
		debug.SetGCPercent(-1) // it allocates next to nothing once it runs
		if err := runLean(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "serving: lean:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "serving:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("serving", flag.ContinueOnError)
	flags.StringVar(&o.larder, "larder", "bin/larder", "the `program` to measure")
	flags.StringVar(&o.cache, "cache", filepath.Join(os.TempDir(), "larder-bench-serving"), "`folder` that keeps the files between runs; a few GB")
	flags.StringVar(&o.corpus, "corpus", "", "serve the files of a `folder` instead of releases from the npm registry that npm is configured with")
	flags.StringVar(&o.only, "only", "", "run only scenarios whose name contains one of these `words`, separated by commas")
	flags.BoolVar(&o.quick, "quick", false, "a few seconds, to see that everything works; the numbers mean nothing")
	flags.BoolVar(&o.headline, "headline", false, "measure what share of cdnjs's traffic this machine serves, load included")
	flags.BoolVar(&o.http2, "h2", false, "with -headline, over HTTP/2 and TLS")
	flags.IntVar(&o.rounds, "rounds", 3, "rounds; in each, every server has its turn")
	flags.DurationVar(&o.duration, "duration", 2*time.Second, "how long a turn takes")
	flags.IntVar(&o.files, "files", 100_000, "files in the mix")
	flags.StringVar(&o.memory, "mix-cache", "64MiB", "Larder's --cache in the mix; smaller than the mix's files")
	flags.StringVar(&o.json, "json", "", "also write the results to a `file`")
	flags.StringVar(&o.plot, "plot", "", "also draw the ratios to FILE.png and FILE.svg, given `FILE`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.rounds < 1 || o.files < 1 || o.duration < 100*time.Millisecond {
		return o, errors.New("-rounds and -files are 1 or more, -duration 100ms or more")
	}
	if o.quick {
		o.rounds, o.duration, o.files = 1, 200*time.Millisecond, min(o.files, 2000)
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if runtime.GOOS != "linux" {
		return errors.New("servers are pinned to a core and watched in /proc, which needs Linux")
	}
	if o.larder, err = filepath.Abs(o.larder); err != nil {
		return err
	}
	if _, err := os.Stat(o.larder); err != nil {
		return fmt.Errorf("%w; `make build` makes it, -larder names another", err)
	}
	if err := installed(o.headline); err != nil {
		return err
	}
	if runtime.NumCPU() < 2 {
		return errors.New("this machine has one core; server and load need one each")
	}
	raiseOpenFiles()
	tmp, err := os.MkdirTemp("", "larder-serving-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	b, err := prepare(ctx, o, tmp)
	if err != nil {
		return err
	}
	if o.headline {
		return b.measureHeadline(ctx)
	}
	if err := b.measureAll(ctx); err != nil {
		return err
	}
	return b.report.write(os.Stdout, o)
}

// wanted reports whether -only lets a scenario run.
func (b *bench) wanted(name string) bool {
	if b.only == "" {
		return true
	}
	for word := range strings.SplitSeq(b.only, ",") {
		if word = strings.TrimSpace(word); word != "" && strings.Contains(name, word) {
			return true
		}
	}
	return false
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
