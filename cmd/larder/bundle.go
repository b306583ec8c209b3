package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/logs/verify"
)

// newBundle returns the command `larder bundle`, which has the signed log and its files written into one new file. If that is
// interrupted, FILE.unfinished stays, and the next run resumes it. A FILE that exists is an error.
func newBundle(a *cli) *cobra.Command {
	var q app.BundleRequest
	cmd := &cobra.Command{
		Use:   "bundle FILE",
		Short: "Write the signed log and its files into one file, for a mirror without a network",
		Long: `Write FILE, a tar archive with the log's signed checkpoint, its entries and the files of the releases. A Larder
without a network takes it with ` + "`larder mirror FILE --key KEY --once`" + `, which verifies every byte.

With --since, FILE has what follows the first SIZE log entries: as many as the mirror has, which it prints when it has
caught up. With --package, FILE has the whole log, but only the files of these releases.

FILE appears when it is complete. Until then it is FILE.unfinished; if the command is interrupted, run it again, and it
goes on there. The larder process that runs writes it and must be allowed to; if none runs, the command does.`,
		Example: `  larder bundle /media/usb/larder.tar
  larder bundle /media/usb/larder.tar --since 12345 --package jquery --package 'd3@7.*'`,
		Args:       checkArgumentCount(1, 1),
		SuggestFor: []string{"export", "pack"},
	}
	used := []string{"keys"}
	a.addFlags(cmd, dataFlags, used)
	f := cmd.Flags()
	f.Int64Var(&q.Since, "since", 0, "write what follows the first `SIZE` log entries")
	f.StringArrayVar(&q.Packages, "package", nil, "write the files of these releases only: a pattern `PACKAGE[@VERSION]`; repeatable")
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) (err error) {
		if q.File, err = filepath.Abs(args[0]); err != nil { // the process that runs has another working directory
			return err
		}
		bar := newCountBar(a.stderr, "writing", "entries")
		done, err := runOperation(ctx, a, used, a.openForLongReading, app.OpBundle, q, func(p app.EntryProgress) { bar.Show(p.Entries, p.Of) })
		bar.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "Wrote %s: %s, from %d to %d, and %s; %s.\n", args[0], formatCount(int(done.Size-done.Since), "log entry", "log entries"), done.Since, done.Size,
			formatCount(int(done.Contents), "content", "contents"), humanize.Bytes(uint64(done.Bytes)))
		if done.DeltasMissing > 0 {
			fmt.Fprintf(a.stdout, "It lacks %s, which could not be read; `larder fsck --deep` says why.\n", formatCount(int(done.DeltasMissing), "delta between versions", "deltas between versions"))
		}
		fmt.Fprintf(a.stdout, "Its checkpoint: %s.\n", verify.DescribeAge(done.Cosigned, time.Now()))
		fmt.Fprintf(a.stdout, "The next bundle follows it with --since %d.\n", done.Size)
		return nil
	}))
}
