// Larder serves the files of front-end packages: it fetches releases from upstream, compresses them ahead of time,
// publishes each at once or not at all, and answers for them over HTTP.
//
// This package wires the others together: commands, flags and configuration, what a person sees on the terminal, and
// the order in which things start and stop. It holds no rule about packages, storage or HTTP.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/larder-cdn/larder/bot/worker"
)

// Exit codes. A usage error is a mistake in the command line or the configuration: running the same again cannot help.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		worker.Main() // a child of the bot's, for heavy work on strangers' bytes
		return
	}
	os.Exit(mainWith(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

func mainWith(args, environ []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal asks for an orderly end. From then on signals do what they do to any process: a second one
	// ends it at once, which the store survives.
	context.AfterFunc(ctx, stop)
	return run(ctx, args, environ, stdout, stderr)
}
