package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/kvstore"
)

// The flags that commands share, by what they are for. Settings that few operators change have no flag with these commands:
// they are lines of the configuration file, or environment variables.
var (
	dataFlags  = []string{"config", "data", "log-format", "log-level"}
	serveFlags = []string{"profile", "listen", "tls-cert", "tls-key", "acme-domain", "acme-directory", "http-listen", "max-connections", "trusted-proxies", "forwarded-header", "proxy-protocol", "cache", "drain", "lame-duck", "ready-file", "private-listen",
		"asset-base", "site-base", "purge-hook", "rooms", "vulnerabilities", "access-log"}
	botFlags     = []string{"catalogue", "releases", "memory", "allow-host"}
	signingFlags = []string{"keys", "log-origin", "witness"}
	clusterFlags = []string{"bucket", "bucket-endpoint", "node-url", "backup", "backup-every"}
)

// commonFlags are the flags that the help of the commands that serve has without --help-all.
var commonFlags = []string{"config", "data", "profile", "listen", "tls-cert", "tls-key", "acme-domain", "trusted-proxies", "cache", "private-listen", "asset-base", "access-log", "catalogue", "releases",
	"memory", "allow-host", "keys", "backup", "help", "help-all"}

// addShortHelp has the help of cmd list only the common flags and those that belong to no setting, and adds the flag
// --help-all, with which the help lists all flags.
func (a *cli) addShortHelp(cmd *cobra.Command) {
	cmd.Flags().BoolFunc("help-all", "help with all flags", func(string) error {
		cmd.Flags().Lookup("help-all").Changed = true
		return pflag.ErrHelp // with which cobra prints the help and ends the command
	})
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		all := c.Flags().Changed("help-all")
		c.Flags().VisitAll(func(f *pflag.Flag) {
			f.Hidden = !all && a.settings.Flags.Lookup(f.Name) != nil && !slices.Contains(commonFlags, f.Name)
		})
		help(c, args)
		if !all {
			fmt.Fprintf(c.OutOrStdout(), "\nMore flags: %s --help-all. Every setting: docs/configuration.md.\n", c.CommandPath())
		}
	})
}

const environmentNote = `

Total memory is about --cache, --memory and 768 MiB, garbage included; GOMEMLIMIT replaces that limit.
docs/configuration.md has measurements.`

// newUp returns the command `larder up`, which serves the data folder and fills it with the bot, until it is stopped.
func newUp(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Serve and fill, everything in one process",
		Long: `Serve the files that are here at once, and fetch what the catalogue names while it runs. It prints the address first,
then what it publishes. A second start serves the existing files and continues.

Ctrl-C or SIGTERM stops it in order: clients have --drain to finish, and a release that is being published is
completed or absent. A second Ctrl-C ends it at once, which does no harm.` + environmentNote,
		Example: `  larder up
  larder up --data /var/lib/larder --listen :443 --tls-cert cert.pem --tls-key key.pem
  larder up --catalogue ./catalogue --releases 3
  LARDER_LISTEN=:8000 larder up --config larder.yaml
  larder up --bucket s3://larder --bucket-endpoint https://s3.eu-central-1.amazonaws.com --node-url https://10.0.0.5:8443`,
	}
	a.addFlags(cmd, dataFlags, serveFlags, botFlags, []string{"interval", "feed", "fallback", "fallback-key"}, signingFlags, clusterFlags)
	a.addShortHelp(cmd)
	return withAction(cmd, a.withSettings(a.runServer(app.Server{Serve: true, Fill: true})))
}

// newServe returns the command `larder serve`, which serves the data folder until it is stopped. It fetches no releases by
// itself, but other commands can publish through it.
func newServe(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve what is here, and fetch only what is asked for",
		Long: `Serve the files that are here. Nothing is fetched by itself; ` + "`larder add` and `larder import`" + ` publish through this
process, and the flags about catalogue, releases, memory and allowed hosts are for them.` + environmentNote,
		Example: `  larder serve --data /var/lib/larder --listen :8080
  larder serve --private-listen off`,
	}
	a.addFlags(cmd, dataFlags, serveFlags, botFlags, signingFlags, clusterFlags)
	a.addShortHelp(cmd)
	return withAction(cmd, a.withSettings(a.runServer(app.Server{Serve: true})))
}

// newBot returns the command `larder bot`, which fills the data folder without serving it, until it is stopped or, with --once,
// in a single pass.
func newBot(a *cli) *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "bot",
		Short: "Fill the data folder without serving it",
		Long: `Fetch what the catalogue names and keep up with upstream, without serving. With --once, look at every package once,
publish what is new and come back; the exit code is 1 where a release failed for a reason that may pass.`,
		Example: `  larder bot --once && larder squeeze
  larder bot --interval 15m`,
	}
	a.addFlags(cmd, dataFlags, botFlags, []string{"profile", "interval", "feed", "private-listen"}, signingFlags)
	a.addShortHelp(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "look at every package once, then end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withSettings(a.runServer(app.Server{Fill: true, Once: once}))(cmd, args)
	}
	return cmd
}

// runServer returns the action of a command that runs the server s until it is stopped or its single pass is done. It completes
// s with the settings, a logger and functions that print the address, hints and the progress of the bot. If s.Once is set, it
// turns off the private address, unless --private-listen is set.
func (a *cli) runServer(s app.Server) func(context.Context, []string) error {
	return func(ctx context.Context, _ []string) error {
		if err := a.settings.CheckEndpoint(); err != nil {
			return err
		}
		if s.Once && !a.settings.IsSet("private-listen") {
			a.settings.PrivateListen = settings.Off // no monitoring requests a command that ends
		}
		out := newTerminal(a.stderr)
		least := slog.LevelInfo
		if out.Interactive {
			least = slog.LevelWarn // the bars tell the rest
		}
		shown := newBotProgress(out)
		defer shown.Close()
		s.Intervals = a.intervals
		s.Settings, s.Logger, s.Events = a.settings, a.settings.NewLogger(out, least), shown.Event
		s.Serving = func(address string, example func() (string, error)) {
			hint := func(w io.Writer, path string) {
				fmt.Fprintf(w, "Try: curl --compressed %s%s\n", address, path)
			}
			if example == nil {
				fmt.Fprintf(a.stdout, "Larder serves on %s what it can read of %s; `larder status` says what is wrong.\n", address, a.settings.Data)
				return
			}
			fmt.Fprintf(a.stdout, "Larder serves %s from %s.\n", address, a.settings.Data)
			fmt.Fprintf(a.stdout, "Open %s/ in a browser to find libraries and copy their tags.\n", address)
			path, err := example()
			switch {
			case err == nil:
				hint(a.stdout, path)
			case !errors.Is(err, kvstore.ErrNotFound):
				s.Logger.Warn("couldn't look up a file to try; `larder fsck` checks the store", "err", err)
			case s.Mirror != nil:
				fmt.Fprintln(a.stdout, "This mirror has yet to catch up with its source; releases are served as they arrive.")
			case a.settings.Bucket != "":
				fmt.Fprintln(a.stdout, "This node has yet to catch up with its bucket; until then it answers 503.")
			case s.Fill:
				fmt.Fprintln(a.stdout, "Nothing is here yet; releases are served as soon as they are published.")
				shown.AfterFirst(func() {
					w := a.stdout
					if out.Interactive {
						w = out // above the bars
					}
					if path, err := example(); err == nil {
						hint(w, path)
					}
				})
			default:
				fmt.Fprintln(a.stdout, "Nothing is here yet; `larder add` and `larder import` publish releases.")
			}
		}
		s.Filled = func(done sources.Summary) { fmt.Fprintln(a.stdout, describeSummary(done)) }
		s.Stopping = func() {
			if out.Interactive {
				fmt.Fprintln(out, "Stopping; Ctrl-C once more ends it at once.")
			}
			s.Logger.Info("stopping")
		}
		return s.Run(ctx)
	}
}
