package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/app"
)

// newAdd returns the command `larder add`, which has releases fetched and published now. One that fails does not stop the
// others; the command returns the errors of all. After a signal it stops, and returns only that error.
func newAdd(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME[@VERSION]...",
		Short: "Fetch and publish releases now",
		Long: `Fetch and publish releases of packages in the catalogue now, instead of waiting for the bot. NAME alone gets what
the bot would get: the newest releases of a new package, whatever is newer of a known one. NAME@VERSION gets that one
release, an older one too. A release without the attestation that its package JSON requires is refused;
--without-provenance publishes it nevertheless, and the log says so and why.

--retry fetches releases again that were refused or have failed, when their cause has been fixed upstream. A failed
release is tried again by itself, and a refused one when its package JSON or its integrity upstream changes.

It speaks to the larder process that runs on the data folder, which goes by its own settings; where none runs, it works
alone with these, and signs the log if its key is there.`,
		Example: `  larder add jquery
  larder add jquery@1.12.4 htmx.org@2.0.4
  larder add --retry jquery
  larder add --catalogue ./catalogue my-library`,
		SuggestFor: []string{"retry", "fetch"},
	}
	retry := cmd.Flags().Bool("retry", false, "fetch again what was refused or failed: all such releases of NAME, or that VERSION")
	override := cmd.Flags().String("without-provenance", "", unattestedFlag)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if _, version, _ := strings.Cut(arg, "@"); *override != "" && version == "" {
				return fmt.Errorf("--without-provenance is for one release, NAME@VERSION, and not for %s", arg)
			}
		}
		return checkArgumentCount(1, -1)(cmd, args)
	}
	used := append([]string{"keys"}, botFlags...)
	a.addFlags(cmd, dataFlags, used)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		return a.withClient(ctx, used, a.openForWriting(appendingToLog), func(client *app.Client) error {
			defer a.warnUnsigned(ctx, client)
			var failures []error
			for _, arg := range args {
				name, version, _ := strings.Cut(arg, "@")
				_, err := app.OpAdd.Ask(ctx, client, app.AddRequest{Package: name, Version: version, Retry: *retry, Override: *override}, a.printEvent)
				if ctx.Err() != nil {
					return err
				}
				if err != nil && !strings.HasPrefix(err.Error(), name+":") {
					err = fmt.Errorf("%s: %w", arg, err)
				}
				if err != nil { // one that fails does not stop the others
					failures = append(failures, err)
				}
			}
			return errors.Join(failures...)
		})
	}))
}

const unattestedFlag = "publish also what lacks the attestation that the package JSON requires, for this `REASON`, which is written to the log"

// newSqueeze returns the command `larder squeeze`, which has all contents with quick encodings recompressed as well as
// possible, waits for that, and prints what it saved and what is not done.
func newSqueeze(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "squeeze",
		Short: "Bring everything to its best compression now",
		Long: `Compress every file that was published with quick codings as well as it goes, and come back when none is left. It says
first how much there is, and how long that takes at the speed measured last. The bot does the same in the background
while larder runs. A file whose encoder was killed three times stays as it is until this command tries it again.`,
		Example: "  larder squeeze",
	}
	a.addFlags(cmd, dataFlags, []string{"memory"})
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		squeezed, err := runOperation(ctx, a, []string{"memory"}, a.openForWriting(app.WriterOptions{Existing: true}), app.OpSqueeze, struct{}{}, a.printEvent)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "Squeezed %s from %s to %s.\n", formatCount(squeezed.Contents, "file content", "file contents"),
			humanize.Bytes(uint64(squeezed.Before)), humanize.Bytes(uint64(squeezed.After)))
		if squeezed.Left > 0 {
			fmt.Fprintf(a.stdout, "%s of %s came meanwhile.\n", formatCount(squeezed.Left, "file content", "file contents"), humanize.Bytes(uint64(squeezed.LeftBytes)))
		}
		if squeezed.GivenUp > 0 {
			fmt.Fprintf(a.stdout, "%s could not be squeezed, because an encoder was killed three times; a lower --memory may help.\n",
				formatCount(squeezed.GivenUp, "file content", "file contents"))
		}
		return nil
	}))
}

// printEvent prints an event of the bot to standard output as the line of [describeEvent], or nothing if it has none.
func (a *cli) printEvent(e sources.Event) {
	if line := describeEvent(e); line != "" {
		fmt.Fprintln(a.stdout, line)
	}
}

// newBackup returns the command `larder backup`, which has the backup in a folder or bucket made or brought up to date. If a
// test of it is due, it is also restored to a temporary folder, and the command returns an error if that fails.
func newBackup(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup DIR|URL",
		Short: "Bring a backup up to date while the data folder is in use",
		Long: `Bring the backup in DIR, or in a bucket s3://NAME[/PREFIX], up to the signed log: the log and its contents by their
hashes, and a record of what does not follow from the log, such as webhooks, schedules, settings of waiting rooms and
counts. The larder process that runs on the data folder goes on serving and publishing meanwhile.

Only what is new is sent. The newest 30 records are kept, and the files of a release that was erased since the oldest of
them. Once a month a backup is restored to a temporary folder as a test, which needs as much space as the store.
` + "`larder up --backup URL`" + ` does this every day.

To restore, ` + "`larder repair --from DIR`" + ` verifies the log and every file. Records are encrypted with the keys in the key
folder, which is not in the backup: keep a copy of it apart, which ` + "`larder key backup`" + ` makes.

The larder process that runs makes the backup and must be allowed to write to DIR; if none runs, the command makes it.
An interrupted backup goes on when it is made again.`,
		Example: `  larder backup /mnt/backup/larder
  larder repair --from /mnt/backup/larder --data ./data --keys ./keys       # restore`,
		Args:       checkArgumentCount(1, 1),
		SuggestFor: []string{"snapshot", "save"},
	}
	used := []string{"keys"}
	a.addFlags(cmd, dataFlags, used, []string{"bucket-endpoint"})
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) (err error) {
		target := args[0]
		if !strings.Contains(target, "://") {
			if target, err = filepath.Abs(target); err != nil { // the process that runs has another working directory
				return err
			}
		}
		request := app.BackupRequest{Target: target, Endpoint: a.settings.BucketEndpoint, Region: a.settings.BucketRegion}
		bar := newCountBar(a.stderr, "backing up", "entries")
		done, err := runOperation(ctx, a, used, a.openForLongReading, app.OpBackup, request, func(p app.EntryProgress) { bar.Show(p.Entries, p.Of) })
		bar.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "Backed up %s to %s: %s.\n", a.settings.Data, args[0], formatCount(int(done.Entries), "log entry", "log entries"))
		if done.JustTested {
			fmt.Fprintln(a.stdout, "It was restored to a temporary folder as a test.")
		} else {
			fmt.Fprintf(a.stdout, "It was last restored as a test at %s.\n", done.Tested.UTC().Format(time.DateTime))
		}
		if done.Unsigned > 0 {
			fmt.Fprintf(a.stdout, "Not in it: %s that are not signed yet; run this again when larder up has signed them, which takes a second.\n", formatCount(int(done.Unsigned), "newer log entry", "newer log entries"))
		}
		fmt.Fprintf(a.stdout, "Not in it: the keys in %s, which restoring needs; larder key backup copies them.\n", done.Keys)
		fmt.Fprintf(a.stdout, "To restore: larder repair --data DIR --keys %s --from %s\n", done.Keys, args[0])
		return nil
	}))
}
