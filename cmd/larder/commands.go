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

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/logs/views"
)

func newAdd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME[@VERSION]...",
		Short: "Fetch and publish releases now",
		Long: `Fetch and publish releases of packages in the catalogue now, instead of waiting for the bot. NAME alone gets what
the bot would get: the newest releases of a new package, whatever is newer of a known one. NAME@VERSION gets that one
release, an older one too.

It speaks to the larder process that runs on the data folder, which goes by its own settings; where none runs, it works
alone with these, and signs the log if its key is there.`,
		Example: `  larder add jquery
  larder add jquery@1.12.4 htmx.org@2.0.4
  larder add --catalogue ./catalogue my-library`,
		Args: arguments(1, -1),
	}
	used := append([]string{"keys"}, botFlags...)
	a.uses(cmd, dataFlags, used)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		return a.reach(ctx, used, a.openToAppend, func(client *admin.Client) error {
			defer a.tellUnsigned(ctx, client)
			var failures []error
			for _, arg := range args {
				name, version, _ := strings.Cut(arg, "@")
				_, err := admin.Call[any](ctx, client, "add", addRequest{name, version}, a.printEvent)
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
	return cmd
}

func newImport(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import NAME VERSION SOURCE",
		Short: "Publish a release from a folder or an archive",
		Long: `Publish a release from files that are here: SOURCE is a folder, or a .tar.gz, .tgz, .tar or .zip archive. The same
rules hold as for a release from upstream: the package has to be in the catalogue, its file map selects the files, and
a version that is published is never changed.

It speaks to the larder process that runs on the data folder, which goes by its own settings; where none runs, it works
alone with these, and signs the log if its key is there.`,
		Example: `  larder import my-library 1.0.0 ./dist
  larder import jquery 1.0.1 jquery-1.0.1.tar.gz`,
		Args: arguments(3, 3),
	}
	used := []string{"keys", "catalogue", "memory"}
	a.uses(cmd, dataFlags, used)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		source, err := filepath.Abs(args[2]) // the process that runs stands in another folder
		if err != nil {
			return err
		}
		if _, err := os.Stat(source); err != nil {
			return fmt.Errorf("%w; SOURCE is a folder or an archive", err)
		}
		return a.reach(ctx, used, a.openToAppend, func(client *admin.Client) error {
			defer a.tellUnsigned(ctx, client)
			_, err := admin.Call[any](ctx, client, "import", importRequest{args[0], args[1], source}, a.printEvent)
			return err
		})
	})
	return cmd
}

func newSqueeze(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "squeeze",
		Short: "Bring everything to its best compression now",
		Long: `Compress every file that was published with quick codings as well as it goes, and come back when none is left. The
bot does the same in the background while larder runs.`,
		Example: "  larder squeeze",
		Args:    arguments(0, 0),
	}
	a.uses(cmd, dataFlags, []string{"memory"})
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		return a.reach(ctx, []string{"memory"}, a.openExisting, func(client *admin.Client) error {
			squeezed, err := admin.Call[bot.SqueezeSummary](ctx, client, "squeeze", squeezeRequest{}, a.printEvent)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "Squeezed %s from %s to %s.\n", count(squeezed.Contents, "file content", "file contents"),
				humanize.Bytes(uint64(squeezed.Before)), humanize.Bytes(uint64(squeezed.After)))
			return nil
		})
	})
	return cmd
}

func newFsck(a *app) *cobra.Command {
	var request checkRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check the store, the log and what is served against each other",
		Long: `Check that the log's tree is whole, that every content it names is stored, and that what is served is what the log
says, no more and no less. Each thing that is wrong is a line; the exit code is then 1. Nothing is changed.

It works beside the larder process that runs on the data folder, which need not stop.`,
		Example: `  larder fsck
  larder fsck --deep        # decodes and hashes every stored file too`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().BoolVar(&request.Deep, "deep", false, "decode every coding of every content and hash the bytes again")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			bar := a.newCheckBar()
			findings := []views.Finding{}
			summary, err := admin.Call[views.CheckSummary](ctx, client, "fsck", request, bar.collect(&findings, asJSON))
			bar.close()
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(a.stdout, struct {
					views.CheckSummary
					List []views.Finding `json:"list"`
				}{summary, findings})
			} else {
				_, err = fmt.Fprintln(a.stdout, describeCheck(summary))
			}
			if err == nil && summary.Findings > 0 {
				err = fmt.Errorf("fsck found %d things wrong", summary.Findings)
			}
			return err
		})
	})
	return cmd
}

// printEvent tells a person what the bot does for a command.
func (a *app) printEvent(e bot.Event) {
	if line := describe(e); line != "" {
		fmt.Fprintln(a.stdout, line)
	}
}
