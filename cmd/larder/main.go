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

// main runs the command line and ends the process with its exit code. A process that a bot has started as a worker runs its
// jobs instead.
func main() {
	if app.RunIfWorker(os.Args) {
		return
	}
	os.Exit(mainWith(app.ClusterIntervals{}))
}

// mainWith runs the command line of the process with its environment and output, and returns the exit code. The first SIGINT,
// SIGTERM, SIGQUIT or SIGABRT cancels the context of the command, which then ends in order. A later one ends the process at
// once. intervals are those of a cluster node; 0 in a field is the default.
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

// newVersion returns the command `larder version`, which prints what this program was built from: version, commit, date, Go
// version and platform.
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
