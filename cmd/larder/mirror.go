package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/verify"
)

// newMirror returns the command `larder mirror`, which follows another Larder, or reads a bundle and what replaces it, and
// serves that. With --once it ends when it has caught up, and serves nothing.
func newMirror(a *cli) *cobra.Command {
	var m app.Mirror
	var once bool
	cmd := &cobra.Command{
		Use:   "mirror URL|FILE",
		Short: "Follow another Larder's signed log, and serve what it serves",
		Long: `Take over all that the Larder at URL has published, and everything that follows, and serve it from here. Nothing that
URL sends is trusted: its log must be signed with --key and continue what was seen before, and every file must have the
hash that the log says. Without --key the key counts that was seen first; it is printed, and remembered in --keys. With
--root, only the keys count that the offline root key lists; a stolen key that it has ended is refused. The newest list
is remembered in --keys as key-list, from where the mirror's own clients get it.

A release is withdrawn, restored and erased here as it is there. A mirror publishes and signs nothing, and can be
mirrored in turn. A source that lies is refused, and verified data is still served. With --once, catch up and exit.

Every hour the source cosigns its log, and a mirror copies that. When the newest cosignature is over 24 hours old, the
mirror reports that what it serves may be out of date (log, metrics, status, /readyz), and goes on. A bundle may be of
any age, which is printed, unless --max-age is given.

FILE is a bundle that ` + "`larder bundle`" + ` has written, for a Larder without a network. Without --once, the mirror also takes
what replaces FILE.` + environmentNote,
		Example: `  larder mirror https://cdn.example.com
  larder mirror https://cdn.example.com --key log.pub --data /var/lib/mirror --listen :8080
  larder mirror https://cdn.example.com --only 'jquery' --only 'd3@7.*' --once
  larder mirror /media/usb/larder.tar --key log.pub --once`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags, serveFlags, []string{"keys"})
	a.addShortHelp(cmd)
	f := cmd.Flags()
	addKeyFlags(f, &m.Trust)
	addWitnessFlag(f, &m.Trust)
	f.StringArrayVar(&m.Only, "only", nil, "take over only these releases: a pattern `PACKAGE[@VERSION]`; the log has the others without their files; repeatable")
	f.Var(settings.DurationValue(&m.Trust.MaxAge, 1), "max-age", "refuse a bundle whose newest cosignature is older than this")
	f.BoolVar(&once, "once", false, "catch up, then end, without serving")
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) && strings.HasPrefix(unknown.GetSpecifiedName(), "fallback") {
			return fmt.Errorf("--%s: a mirror has what its source has and asks no other origin: leave that out here, and give it to `larder up` at the source", unknown.GetSpecifiedName())
		}
		return c.Root().FlagErrorFunc()(c, err)
	})
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		if err := readTrustedKeys(&m.Trust); err != nil {
			return err
		}
		if m.From = args[0]; !verify.IsURL(m.From) {
			if _, err := os.Stat(m.From); err != nil {
				return settings.Mistakef("%q is not the URL of a Larder, such as https://cdn.example.com, and no bundle either: %w", m.From, err)
			}
		}
		if verify.IsURL(m.From) && m.Trust.MaxAge > 0 {
			return settings.Mistakef("--max-age is for a bundle: a mirror of a URL alerts when the newest cosignature is over 24 hours old, and goes on")
		}
		return a.runMirror(ctx, m, once)
	}))
}

// runMirror runs a process that follows the source of m and serves that until it is stopped. once says to end when it has
// caught up, without serving. It prints to standard output which key of the source it trusts, again if that changes, and when
// it has caught up; until then a bar on standard error shows the progress. It sets m.Following in its copy of m.
func (a *cli) runMirror(ctx context.Context, m app.Mirror, once bool) error {
	bar := newCountBar(a.stderr, "taking over", "entries")
	defer bar.Close()
	var reported app.FollowState
	m.Following = func(s app.FollowState) {
		if s.Key != reported.Key {
			how := "which is remembered from an earlier run"
			switch {
			case m.Trust.Key != "":
				how = "given with --key, or its successor"
			case m.Trust.Root != "":
				how = "which the root key lists"
			case s.FirstUse:
				how = "the first that the source has sent: compare it with the one that its operator publishes"
			}
			fmt.Fprintf(a.stdout, "Trusting the key %s, %s.\n", s.Key, how)
		}
		if s.Ready && !s.Current.Equal(reported.Current) && (!reported.Ready || once) {
			bar.Close()
			fmt.Fprintf(a.stdout, "Caught up with %s: %d log entries are here; %d files were fetched, %d bytes.\n", s.Source, s.Entries, s.Files, s.Bytes)
			fmt.Fprintf(a.stdout, "Its checkpoint: %s.\n", verify.DescribeAge(s.Cosigned, time.Now()))
			if len(s.Packages) > 0 {
				fmt.Fprintf(a.stdout, "The bundle has the files of %s alone; other releases are here without theirs.\n", text.Plain(strings.Join(s.Packages, ", ")))
			}
		} else if s.Entries < s.Of {
			bar.Show(s.Entries, s.Of)
		}
		reported = s
	}
	return a.runServer(app.Server{Serve: !once, Once: once, Mirror: &m})(ctx, nil)
}
