package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/events"
	"github.com/larder-cdn/larder/internal/app"
)

func newAdd(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME[@VERSION]...",
		Short: "Fetch and publish releases now",
		Long: `Fetch and publish releases of packages in the catalogue now, instead of waiting for the bot. NAME alone gets what
the bot would get: the newest releases of a new package, whatever is newer of a known one. NAME@VERSION gets that one
release, an older one too. A release without the attestation that its package JSON requires is refused;
--without-provenance publishes it nevertheless, and the log says so and why.

It speaks to the larder process that runs on the data folder, which goes by its own settings; where none runs, it works
alone with these, and signs the log if its key is there.`,
		Example: `  larder add jquery
  larder add jquery@1.12.4 htmx.org@2.0.4
  larder add --catalogue ./catalogue my-library`,
	}
	override := cmd.Flags().String("without-provenance", "", unattestedFlag)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			if _, version, _ := strings.Cut(arg, "@"); *override != "" && version == "" {
				return fmt.Errorf("--without-provenance is for one release, NAME@VERSION, and not for %s", arg)
			}
		}
		return arguments(1, -1)(cmd, args)
	}
	a.fetches(cmd, false, override)
	return cmd
}

// unattestedFlag describes --without-provenance.
const unattestedFlag = "publish also what lacks the attestation that the package JSON requires, for this `REASON`, which the log has"

func newRetry(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry NAME[@VERSION]...",
		Short: "Fetch refused and failed releases again",
		Long: `Fetch releases again now that were refused or have failed, when what was wrong with them has been put right upstream.
NAME alone is all of them of that package; NAME@VERSION is that one. A failed release is tried again by itself, and a
refused one when its package JSON or its integrity upstream changes.`,
		Example: `  larder retry jquery
  larder retry jquery@1.12.4`,
		Args: arguments(1, -1),
	}
	a.fetches(cmd, true, new(string))
	return cmd
}

// fetches has a command fetch the releases that its arguments name. override is that of an [app.AddRequest].
func (a *cli) fetches(cmd *cobra.Command, retry bool, override *string) {
	used := append([]string{"keys"}, botFlags...)
	a.uses(cmd, dataFlags, used)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		return a.reach(ctx, used, a.writing(appending), func(client *app.Client) error {
			defer a.tellUnsigned(ctx, client)
			var failures []error
			for _, arg := range args {
				name, version, _ := strings.Cut(arg, "@")
				_, err := app.OpAdd.Ask(ctx, client, app.AddRequest{Package: name, Version: version, Retry: retry, Override: *override}, a.printEvent)
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
	})
}

func newSqueeze(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "squeeze",
		Short: "Bring everything to its best compression now",
		Long: `Compress every file that was published with quick codings as well as it goes, and come back when none is left. It says
first how much there is, and how long that takes at the speed measured last. The bot does the same in the background
while larder runs. A file whose encoder was killed three times stays as it is until this command tries it again.`,
		Example: "  larder squeeze",
		Args:    arguments(0, 0),
	}
	a.uses(cmd, dataFlags, []string{"memory"})
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		return a.reach(ctx, []string{"memory"}, a.writing(app.WriterOptions{Existing: true}), func(client *app.Client) error {
			squeezed, err := app.OpSqueeze.Ask(ctx, client, struct{}{}, a.printEvent)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "Squeezed %s from %s to %s.\n", count(squeezed.Contents, "file content", "file contents"),
				humanize.Bytes(uint64(squeezed.Before)), humanize.Bytes(uint64(squeezed.After)))
			if squeezed.Left > 0 {
				fmt.Fprintf(a.stdout, "%s of %s came meanwhile.\n", count(squeezed.Left, "file content", "file contents"), humanize.Bytes(uint64(squeezed.LeftBytes)))
			}
			if squeezed.GivenUp > 0 {
				fmt.Fprintf(a.stdout, "%s could not be squeezed, because an encoder was killed three times; a lower --memory may help.\n",
					count(squeezed.GivenUp, "file content", "file contents"))
			}
			return nil
		})
	})
	return cmd
}

// printEvent tells a person what the bot does for a command.
func (a *cli) printEvent(e events.Event) {
	if line := describeEvent(e); line != "" {
		fmt.Fprintln(a.stdout, line)
	}
}

func newBackup(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the data folder while it is in use",
		Long: `Make DIR a copy of the data folder as it is now: files, log, views, states and queue, whole and of one moment, while
the larder process that runs on the data folder goes on serving and publishing. DIR must be empty or not exist; it
appears when it is complete, and is a data folder itself: to restore, start on it.

If DIR is on the same file system, files that never change are hard links, which takes a moment and no space. Changes in
one folder do not show in the other, but both are lost with the disk, so copy the backup to another one. On another file
system everything is copied.

The key folder is not in it, so that a restored backup cannot sign a fork of the log: keep a copy of it apart, and
name it with --keys when you start on the backup.

The larder process that runs makes the backup and must be allowed to write to DIR; if none runs, the command makes it.`,
		Example: `  larder backup /mnt/backup/larder-2026-01-02
  larder up --data /mnt/backup/larder-2026-01-02 --keys ./keys       # restore`,
		Args: arguments(1, 1),
	}
	used := []string{"keys"}
	a.uses(cmd, dataFlags, used)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		dir, err := filepath.Abs(args[0]) // the process that runs has another working directory
		if err != nil {
			return err
		}
		return a.reach(ctx, used, a.readingLong, func(client *app.Client) error {
			bar := newByteBar(a.stderr, "copying")
			done, err := app.OpBackup.Ask(ctx, client, app.BackupRequest{Dir: dir}, func(p app.BackupProgress) { bar.Show(p.Bytes, p.Of) })
			bar.Close()
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "Backed up %s to %s: %s in %s, %s.\n", a.settings.Data, args[0], humanize.Bytes(uint64(done.Bytes)),
				count(done.Files, "file", "files"), count(int(done.Entries), "log entry", "log entries"))
			if done.Linked > 0 {
				fmt.Fprintf(a.stdout, "%s of it are hard links, on the same disk as the original: bring a copy elsewhere.\n", humanize.Bytes(uint64(done.Linked)))
			}
			keys := done.Keys
			if keys == "" {
				if keys, err = a.settings.KeyFolder(); err != nil {
					return err
				}
			}
			if _, err := os.Stat(keys); err == nil {
				fmt.Fprintf(a.stdout, "Not in it are the keys that sign the log, in %s: keep a copy of them apart.\n", keys)
			}
			fmt.Fprintf(a.stdout, "To restore, start on it: larder up --data %s --keys %s\n", args[0], keys)
			fmt.Fprintln(a.stdout, "Once the log has been signed with more entries than that, what starts on it only serves them, until `larder repair` has brought the others: only the newest backup goes on by itself.")
			for _, left := range done.Unfinished {
				fmt.Fprintf(a.stdout, "Beside it is %s, which another backup is writing, or left when it was killed; remove it if none is.\n", left)
			}
			return nil
		})
	})
	return cmd
}
