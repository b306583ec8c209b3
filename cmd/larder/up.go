package main

import (
	"github.com/spf13/cobra"
)

const environmentNote = `

Memory in all is about --cache, --sending, --memory, 256 MiB, and --store-cache with 128 MiB for writing. Garbage is
collected so that it adds nothing to that; GOMEMLIMIT, if set, is a limit of your own in place of that one.
docs/configuration.md has measurements.`

func newUp(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Serve and fill, everything in one process",
		Long: `Serve the files that are here at once, and fetch what the catalogue names while it runs. It prints the address first,
then what it publishes. A second start serves what is there and continues.

Ctrl-C or SIGTERM ends it in order: clients have --drain to take what is being sent, what is being published is
finished or was never there. A second Ctrl-C ends it at once, which does no harm.` + environmentNote,
		Example: `  larder up
  larder up --data /var/lib/larder --listen :443 --tls-cert cert.pem --tls-key key.pem
  larder up --catalogue ./catalogue --releases 3
  LARDER_LISTEN=:8000 larder up --config larder.yaml`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags, serveFlags, botFlags, []string{"interval", "catalogue-interval", "hook-secret-file"}, signingFlags, githubFlags, reviewFlags, []string{"downloads-url"})
	cmd.RunE = a.configured(a.daemon(duties{serve: true, fill: true}))
	return cmd
}

func newServe(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve what is here, and fetch only what is asked for",
		Long: `Serve the files that are here. Nothing is fetched by itself; ` + "`larder add` and `larder import`" + ` publish through this
process, and the flags about catalogue, releases, downloads, memory and allowed hosts are for them.` + environmentNote,
		Example: `  larder serve --data /var/lib/larder --listen :8080
  larder serve --private-listen off`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags, serveFlags, botFlags, signingFlags)
	cmd.RunE = a.configured(a.daemon(duties{serve: true}))
	return cmd
}

func newBot(a *app) *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "bot",
		Short: "Fill the data folder without serving it",
		Long: `Fetch what the catalogue names and keep up with upstream, without serving. With --once, look at every package once,
publish what is new and come back; the exit code is 1 where a release failed for a reason that may pass.`,
		Example: `  larder bot --once && larder squeeze
  larder bot --interval 15m`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags, botFlags, []string{"interval", "catalogue-interval", "private-listen"}, signingFlags, githubFlags)
	cmd.Flags().BoolVar(&once, "once", false, "look at every package once, then end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.configured(a.daemon(duties{fill: true, once: once}))(cmd, args)
	}
	return cmd
}
