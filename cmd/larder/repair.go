package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/check"
)

// newRepair returns the command `larder repair`, which has the data folder repaired from its own files and from other sources,
// by the process that runs on it or by this one. It returns an error if something could not be repaired.
func newRepair(a *cli) *cobra.Command {
	var from []string
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Repair the store: contents, encodings, what is served, and the end of the log",
		Long: `Read the complete store, and repair what is damaged or missing. Each finding is a line, which says whether it was
repaired. The log stays the same log: everything must agree with the last signed checkpoint in the key folder.

  what is served      made again from the log and its manifests
  damaged encodings   made again from a sound one by the bot, later
  lost contents       from a source, by their hash; upstream's files also by fetching and making the release again
  the log's lost end  from another Larder, a backup or the bucket

Sources are used in the order of --from:

  --from URL          another Larder, as it serves: its log and its files
  --from DIR          the folder of a backup, or of another store; no process may run on it
  --from BACKUP       the target of scheduled backups: s3://NAME[/PREFIX] or file:///DIR
  --from bucket       the bucket of a cluster; a node uses its own bucket last by default
  --from upstream     the npm registry and the git repositories that releases were published from

Where tables, the MANIFEST or the write-ahead log are damaged, repair reads every file of the store and builds a new
store of what is intact, beside the damaged one. Repair checks the new store like fsck --all does, and puts it in
place. The damaged one stays in the data folder as store.damaged-TIME; a start removes it after a month. So the disk
needs room for a second store. Where the whole data folder is lost, but not the key folder, this builds the store
from URL, DIR or bucket.

If no source has some of the signed log entries, repair lists these and replaces nothing. With --accept-loss it goes on
without them: the log gets a new origin and a new key, which clients that verify must pin. Its first entry lists what
was lost. The old key's files are kept in the key folder.

What cannot be repaired is listed by the path of its URL, and the exit code is 1. If repair is interrupted, run it
again. It works beside the larder process that runs on the data folder, which restarts its role afterwards. Stop that
process for --accept-loss, or where the message says so. Use fsck to check without replacing anything.`,
		Example: `  larder repair
  larder repair --from /mnt/backup/larder --from upstream
  larder repair --from https://cdn.example.com`,
		SuggestFor: []string{"rebuild", "reindex", "fix", "heal"},
	}
	used := []string{"keys", "allow-host", "memory", "github-url", "bucket", "bucket-endpoint"}
	a.addFlags(cmd, dataFlags, used)
	cmd.Flags().StringArrayVar(&from, "from", nil, "take what is lost from `SOURCE`: a URL of another Larder, a folder, bucket or upstream; may be given several times")
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "where no source has some of the signed log entries: go on without them, as another log")
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		q := app.RepairRequest{AcceptLoss: acceptLoss}
		for _, source := range from {
			if source != app.FromUpstream && source != app.FromBucket && !strings.Contains(source, "://") {
				path, err := filepath.Abs(source)
				if err != nil {
					return err
				}
				source = path
			}
			q.From = append(q.From, source)
		}
		found := a.newFindings(*asJSON)
		var step string
		bar := newCountBar(a.stderr, "", "entries")
		result, err := app.Repair(ctx, a.settings, q, a.quietLogger(), func(e app.RepairEvent) {
			if p := e.Progress; p != nil {
				if step != p.Step {
					bar.Close()
					step, bar = p.Step, newCountBar(a.stderr, p.Step, "entries")
				}
				bar.Show(p.Done, p.Of)
			}
			if e.Finding != nil {
				bar.Close()
				found.add(app.FsckEvent{Finding: e.Finding})
			}
		})
		bar.Close()
		if err != nil {
			return err
		}
		if err := found.print(describeRepair(result), struct {
			app.RepairResult
			List []check.Finding `json:"list"`
		}{result, found.list}); err != nil {
			return err
		}
		return result.Err()
	}))
}

// describeRepair returns lines for people about what a repair fetched and from where, what it repaired or built anew, and which
// log follows one that was lost.
func describeRepair(r app.RepairResult) []string {
	var lines []string
	if r.Finished != "" {
		lines = append(lines, strings.ToUpper(r.Finished[:1])+r.Finished[1:]+".")
	}
	for _, s := range r.Sources {
		cost := ""
		if s.Requests > 0 {
			cost = fmt.Sprintf(", in %s, %s", formatCount(int(s.Requests), "request", "requests"), humanize.Bytes(uint64(s.Received)))
		}
		lines = append(lines, fmt.Sprintf("From %s: %s, %s of %s%s.", text.Plain(s.Name), formatCount(int(s.Entries), "log entry", "log entries"),
			formatCount(int(s.Contents), "content", "contents"), humanize.Bytes(uint64(s.Bytes)), cost))
	}
	if r.Damaged > 0 {
		lines = append(lines, fmt.Sprintf("%s had damaged encodings, which the bot makes again.", formatCount(int(r.Damaged), "content", "contents")))
	}
	if r.Damage == "" {
		lines = append(lines, describeViews(r.Summary))
	} else {
		lines = append(lines, describeBuilt(r)...)
	}
	if next := r.Succession; next != nil {
		lines = append(lines, fmt.Sprintf("The log %s lost its %s for good. It goes on as %s, with the key\n  %s\nwhich clients that verify must pin; the files of the old key are in %s.",
			next.Former, next.Lost, next.Origin, next.Key, next.Kept))
	}
	return lines
}

// describeBuilt returns lines for people about the new store that a repair built in place of a damaged or missing one: what it has and
// why it was built, where the damaged one is kept, if anywhere, and which rows that are in no log were lost. It leaves out r.Lost. The
// caller has checked that r.Damage is not "".
func describeBuilt(r app.RepairResult) (lines []string) {
	lines = append(lines, fmt.Sprintf("Built a new store with %s, %s and %s in %s, because %s.", formatCount(int(r.Entries), "log entry", "log entries"),
		formatCount(int(r.Releases), "release", "releases"), formatCount(int(r.Files), "file", "files"), time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond), text.Plain(r.Damage)))
	if r.Kept != "" {
		lines = append(lines, fmt.Sprintf("The damaged store is kept in %s: remove it once all is well.", r.Kept))
	}
	if len(r.NotCarried) > 0 {
		lines = append(lines, "Not in the log, and lost: "+text.Plain(strings.Join(r.NotCarried, "; "))+".")
	}
	return lines
}

// describeViews returns a line for people about the rows of views that a repair derived again from the log: how many, and which
// differed and were replaced.
func describeViews(s check.Summary) string {
	line := fmt.Sprintf("Made %s again from %s", formatCount(int(s.Rows), "row", "rows"), formatCount(int(s.Entries), "log entry", "log entries"))
	differ := describeRows(s)
	if differ == "" {
		return line + "; none differs."
	}
	var replaced int64
	for _, v := range s.Views {
		replaced += v.Missing + v.Differing + v.Unexplained
	}
	return fmt.Sprintf("%s, and replaced %s (%s).", line, formatCount(int(replaced), "that differs", "that differ"), differ)
}
