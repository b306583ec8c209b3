package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/verify"
)

// newWatch returns the command `larder log watch`, which polls the log of a Larder and prints the events since the last poll,
// until it is stopped or, with --once, only once. Only with --once does it return an error for events that need attention.
func newWatch(a *cli) *cobra.Command {
	var w verify.WatchOptions
	var once, asJSON bool
	every := 10 * time.Minute
	cmd := &cobra.Command{
		Use:   "watch --log URL",
		Short: "Report events in a log: releases, withdrawals, upstream changes, forks, silence",
		Long: `Report events in the log of a Larder, or of some packages in it: releases, releases that their authors may not have
expected, withdrawals, archives that npm has changed, a new key of the log, forks, silence, and a newest cosignature
that is over 24 hours old, because an old state may be replayed. Every entry is proven to be in the signed log, which
has only grown since the last poll; see larder verify.

Watching begins with the first poll, and reports nothing older. A file has the position of the last poll, so a restart
misses nothing. --once polls once and exits, for cron: exit code 0 if nothing is wrong, 8 after an event that needs
attention, or that of larder verify if the log cannot be proven. An event is a line; with --json, an object on a line.
Standard error says whose key is trusted on first sight, and when the server cannot be reached.

A release is unexpected if the package's release before it has proven provenance or a signature and this one has not, or
if it was built from another repository; with --repository, if its provenance does not name that repository. The server
has Atom feeds of the rest, but not of forks and silence: /logs.atom?package=NAME.`,
		Example: `  larder log watch --log https://cdn.example.com --package jquery
  larder log watch --log https://cdn.example.com --package sigstore --repository https://github.com/sigstore/sigstore-js
  larder log watch --log https://cdn.example.com --once --json`,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(settings.BaseURLValue(&w.Server), "log", "the `URL` in front of /log/ of the Larder")
	f.StringArrayVar(&w.Packages, "package", nil, "report only the package `NAME` and the log itself; repeatable")
	f.StringVar(&w.Repository, "repository", "", "`URL` of the repository that every watched release has to be built from, by its provenance")
	addKeyFlags(f, &w.Verify.Trust)
	addWitnessFlag(f, &w.Verify.Trust)
	f.Var(settings.DurationValue(&every, time.Second), "every", "interval between two polls")
	f.DurationVar(&w.Silence, "silence", 7*24*time.Hour, "time without a new entry after which silence is reported")
	f.DurationVar(&w.Timeout, "timeout", time.Minute, "time limit of a poll")
	f.BoolVar(&once, "once", false, "poll once, and exit")
	addKnownLogsFlag(f, &w.Known)
	f.StringVar(&w.State, "state", "", "`FILE` with the position of the last poll; default: one for this log and packages beside the known logs")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return withAction(cmd, withoutSettings(func(ctx context.Context, _ []string) (err error) {
		if w.Server == "" || w.Silence <= 0 || w.Timeout <= 0 {
			return settings.Mistakef("watch needs the URL of a Larder in --log, and a --silence and a --timeout over 0")
		}
		if err := errors.Join(readTrustedKeys(&w.Verify.Trust), setKnownLogs(&w.Known)); err != nil {
			return err
		}
		if w.State == "" {
			w.State = verify.WatchStateFile(filepath.Dir(w.Known), w.Server, w.Packages)
		}
		w.Verify.UserAgent = app.UserAgent()
		lines := newLineEncoder(a.stdout)
		w.OnEvent = func(e verify.WatchEvent) error {
			if asJSON {
				return lines.Encode(e)
			}
			_, err := fmt.Fprintln(a.stdout, describeWatched(e))
			return err
		}
		w.OnNotice = func(note string) { fmt.Fprintln(a.stderr, describeNote(note)) }
		watcher, err := verify.OpenWatcher(w)
		if err != nil {
			return err
		}
		if !once {
			fmt.Fprintf(a.stderr, "Looking at the log of %s every %v; each event is a line.\n", w.Server, every)
			return watcher.Run(ctx, every)
		}
		found, err := watcher.Poll(ctx)
		code := exitOf[found.Outcome]
		switch {
		case err != nil:
			return err
		case code != exitDone:
			return verdict{errors.New(found.Problem), code}
		case found.Alarms > 0:
			return verdict{fmt.Errorf("%s attention", formatCount(found.Alarms, "event needs", "events need")), exitAdvice}
		}
		return nil
	}))
}
