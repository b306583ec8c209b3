// Command ingest compares Larder with the C commands that compress files ahead
// of time: brotli -q 11, gzip -9 and zopfli, over the same real files, side by
// side on the same machine.
//
// By default it runs the whole program: releases of the starter catalogue's
// packages are fetched once from the npm registry that npm is configured with
// and kept in a cache; then a fresh data folder is filled from that cache over
// loopback and squeezed, with the clock running. The C commands get, as files,
// the distinct contents that Larder has compressed, one process a file and as
// many at once as there are cores. What is the same in several releases counts
// once on both sides; without that the C commands would take longer.
//
// With -corpus it compares the encoders alone, over the files of a folder.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
)

type options struct {
	larder   string
	packages string
	releases int
	cache    string
	corpus   string
	sample   int
	zopfli   int
	jobs     int
	json     string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ingest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	flag.StringVar(&o.larder, "larder", "bin/larder", "the `program` to measure")
	flag.StringVar(&o.packages, "packages", "", "`names` of starter packages, separated by commas (default all)")
	flag.IntVar(&o.releases, "releases", 10, "newest releases of each package")
	flag.StringVar(&o.cache, "cache", "", "`folder` that keeps what the registry gave (default in the user's cache folder)")
	flag.StringVar(&o.corpus, "corpus", "", "compare the encoders alone, over the files of a `folder`")
	flag.IntVar(&o.sample, "sample", 1, "compare one in `N` contents; the C commands' time is scaled up by bytes")
	flag.IntVar(&o.zopfli, "zopfli", 8, "zopfli gets one in `N` of those, being slow; 0 for none")
	flag.IntVar(&o.jobs, "jobs", runtime.GOMAXPROCS(0), "C commands, or encoders, at once")
	flag.StringVar(&o.json, "json", "", "also write the results to a `file`")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if o.sample < 1 || o.zopfli < 0 || o.jobs < 1 || o.releases < 1 {
		return errors.New("-sample, -jobs and -releases are 1 or more, -zopfli 0 or more")
	}
	if err := installed(o.zopfli > 0); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "larder-ingest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	report := &report{Cores: o.jobs, System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	if o.corpus != "" {
		err = compareEncoders(ctx, o, report)
	} else {
		err = compareIngest(ctx, o, tmp, report)
	}
	if err != nil {
		return err
	}
	report.print(os.Stdout)
	if o.json == "" {
		return nil
	}
	data, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(data, '\n'), 0o666)
}

// cacheFolder is where what the registry gave is kept.
func cacheFolder(o options) (string, error) {
	if o.cache != "" {
		return o.cache, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the cache, name one with -cache: %w", err)
	}
	return filepath.Join(dir, "larder-bench"), nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, strings.TrimSuffix(format, "\n")+"\n", args...)
}
