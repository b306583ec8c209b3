// Larder serves the files of front-end packages: it fetches releases from upstream, compresses them ahead of time,
// publishes each at once or not at all, and serves them over HTTP.
//
// This package has the commands: their flags, and their output on the terminal. Package app has the parts of a process, and
// package settings what can be configured. This package has no rules about packages, storage or HTTP.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
)

// Exit codes. A usage error is a mistake in the command line or the configuration: running the same again cannot help.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// main runs the command line. A process that the bot has started as a worker runs its jobs instead.
func main() {
	if app.RunIfWorker(os.Args) {
		return
	}
	os.Exit(mainWith(app.ClusterIntervals{}))
}

// mainWith runs the command line of the process until it is done or a signal ends it, and returns the exit code. intervals are
// those of a cluster node; the zero value has the defaults.
func mainWith(intervals app.ClusterIntervals) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGABRT)
	defer stop()
	// The first signal asks for an orderly end. From then on signals do what they do to any process: a second one
	// ends it at once, which the store survives.
	context.AfterFunc(ctx, stop)
	a := newCLI(os.Environ(), os.Stdout, os.Stderr)
	a.intervals = intervals
	return a.run(ctx, os.Args[1:])
}

// newVersion returns the command `larder version`.
func newVersion(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit, date and Go",
		Example: "  larder version\n  larder version --json",
	}
	asJSON := addJSONFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		b := app.ThisBuild()
		return a.printResponse(*asJSON, b, func() error {
			_, err := fmt.Fprintln(a.stdout, b)
			return err
		})
	}
	return cmd
}
