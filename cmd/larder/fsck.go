package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
)

// newFsck returns the command `larder fsck`, which checks the data folder. If the log is sound, it stores the log's checkpoint
// for the next check: in the file of --seen, or in the key folder if that exists. It returns an error if something is wrong.
func newFsck(a *cli) *cobra.Command {
	var deep, all bool
	var seenPath string
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Check the store, the log, its signatures and what is served against each other",
		Long: `Check that all of this is right: that the store can be read; that the log's tree is whole and contains both the last
signed checkpoint, whose signature is checked, and the checkpoint that the last run saw; that every content which the
log names is stored; and that what is served is what the log says, no more and no less. Each thing that is wrong is a
line, which names the entry, the row or the file; the exit code is then 1, for cron. Nothing is changed but the file in
which the checkpoint is kept for the next run, and that only if the log is sound.

With --deep files are decoded from each coding and hashed against their integrity, on all processors; on half of them
while a larder process serves. A deep check that finds nothing wrong records, in the store's folder, how many signed log
entries it has verified. The next one starts there: it checks what was published, withdrawn or changed since. --all
reads everything again. It also finds files that were damaged after they had been verified, such as by a failing disk;
without it, such a file is found when a client requests it, and not sent. Run --all after a store was copied.

It works beside the larder process that runs on the data folder, which need not stop.

A log that was written anew, key and all, is found only by comparing it with the old one: keep --seen FILE on another
disk.`,
		Example: `  larder fsck
  larder fsck --deep --seen /mnt/elsewhere/larder-seen
  larder fsck --all`,
		SuggestFor: []string{"check", "audit", "log verify"},
	}
	used := []string{"keys"}
	a.addFlags(cmd, dataFlags, used)
	cmd.Flags().BoolVar(&deep, "deep", false, "decode every coding of the files published since the last deep check, and hash the bytes")
	cmd.Flags().BoolVar(&all, "all", false, "check everything deeply, whatever earlier checks have verified")
	cmd.Flags().StringVar(&seenPath, "seen", "", "`FILE` that keeps the checkpoint; if it is not given, seen in the key folder")
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		return a.withClient(ctx, used, a.openForLongReading, func(client *app.Client) error {
			keys, err := app.OpKeyFolder.Ask(ctx, client, struct{}{}, nil)
			if err != nil {
				return err
			}
			keys = cmp.Or(keys, a.settings.KeyFolder())
			path := cmp.Or(seenPath, filepath.Join(keys, check.SeenFile))
			before, err := check.ReadSeen(path)
			if err != nil {
				return err
			}
			found := a.newFindings(*asJSON)
			summary, err := app.OpFsck.Ask(ctx, client, app.FsckRequest{Deep: deep || all, All: all, Keys: keys, Seen: before.Checkpoint}, found.add)
			found.bar.Close()
			if err != nil {
				return err
			}
			kept := false
			if summary.Sound {
				kept, err = storeCheckpoint(path, seenPath != "", summary.Checkpoint)
			}
			err = errors.Join(err, found.report(summary, describeFsck(summary, before, kept)))
			if err == nil && summary.Findings > 0 {
				err = fmt.Errorf("%s wrong", formatCount(int(summary.Findings), "thing is", "things are"))
			}
			return err
		})
	}))
}

// storeCheckpoint writes the log's checkpoint c to the file at path, for the next check, and returns kept as true. given says
// that the user chose the path. Otherwise it is in the key folder, which belongs to the signing process: if that folder is
// missing, storeCheckpoint creates nothing and returns false without an error.
func storeCheckpoint(path string, given bool, c logs.Checkpoint) (kept bool, err error) {
	if _, err := os.Stat(filepath.Dir(path)); !given && errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := (check.Seen{Checkpoint: c, Time: time.Now()}).Write(path); err != nil {
		return false, fmt.Errorf("couldn't keep the checkpoint for the next run: %w; --seen chooses another file", err)
	}
	return true, nil
}

// describeFsck returns lines for people: what a check covered, which views differ from the log, and whether the log is sound
// and with what it was compared. before is the checkpoint that the last check stored, with its time; kept says whether that of
// this check was stored.
func describeFsck(s check.Summary, before check.Seen, kept bool) []string {
	lines := []string{fmt.Sprintf("Checked %s, %s, %s in %s, %s; %s; %d wrong.", formatCount(int(s.Entries), "log entry", "log entries"),
		formatCount(int(s.Releases), "release", "releases"), formatCount(int(s.Files), "file", "files"), formatCount(int(s.Contents), "content", "contents"),
		formatCount(int(s.Rows), "row of views", "rows of views"), formatCount(int(s.Orphans), "leftover", "leftovers"), s.Findings)}
	if s.Since > 0 {
		lines = append(lines, fmt.Sprintf("An earlier deep check has verified the first %s; --all checks these again.", formatCount(int(s.Since), "entry", "entries")))
	}
	if s.Unrecorded != "" {
		lines = append(lines, "The next deep check cannot start where this one ended, because that could not be recorded: "+text.Plain(s.Unrecorded)+".")
	}
	if differ := describeRows(s); differ != "" {
		lines = append(lines, fmt.Sprintf("Views differ from the log (%s): run `larder repair`.", differ))
	}
	if s.KeyMissing && s.Findings == 1 {
		return append(lines, "Nothing else is wrong, but the log was not compared with what was signed: --keys names the folder with its key.")
	}
	if !s.Sound {
		return append(lines, "The log is not sound.")
	}
	var contains []string
	if s.Origin != "" {
		contains = append(contains, fmt.Sprintf("the %s signed as %s", formatCount(int(s.Signed), "entry", "entries"), text.Plain(s.Origin)))
	}
	if s.Seen > 0 {
		contains = append(contains, fmt.Sprintf("the %s seen on %s", formatCount(int(s.Seen), "entry", "entries"), before.Time.Local().Format(time.DateTime)))
	}
	line := "The log is sound by itself: nothing was signed, and nothing seen before"
	if contains != nil {
		line = "The log is sound, and contains " + strings.Join(contains, " and ")
	}
	if !kept {
		line += "; there is no key folder to keep its checkpoint in, --seen names another place"
	}
	return append(lines, line+".")
}

// describeRows returns how many rows of each view are missing, wrong or too many, as a list for a sentence: "3 of VIEW missing,
// 1 of VIEW wrong"; "" if none is.
func describeRows(s check.Summary) string {
	var parts []string
	for _, v := range s.Views {
		for _, n := range []struct {
			rows int64
			are  string
		}{{v.Missing, "missing"}, {v.Differing, "wrong"}, {v.Unexplained, "too many"}} {
			if n.rows > 0 {
				parts = append(parts, fmt.Sprintf("%s of %s %s", humanize.Comma(n.rows), v.View, n.are))
			}
		}
	}
	return strings.Join(parts, ", ")
}

// findings collects a check's findings. Unless the output is JSON, it also prints each one when it comes. On a terminal a
// progress bar on standard error shows how far the check is.
type findings struct {
	cli    *cli
	asJSON bool
	bar    *progressBar
	list   []check.Finding
}

// newFindings returns an empty collection of a check's findings, which prints to a.stdout. asJSON says that it prints nothing
// until the check is done. The caller closes its bar.
func (a *cli) newFindings(asJSON bool) *findings {
	return &findings{cli: a, asJSON: asJSON, bar: newCountBar(a.stderr, "checking", "entries"), list: []check.Finding{}}
}

// add handles an event of a check: it draws the progress, or it collects a finding and, unless the output is JSON, prints it on
// a line.
func (l *findings) add(e app.FsckEvent) {
	if p := e.Progress; p != nil {
		decoded := ""
		if p.Decoded > 0 {
			decoded = humanize.Bytes(uint64(p.Decoded)) + " decoded"
		}
		l.bar.ShowWith(p.Entries, p.Of, decoded)
	}
	f := e.Finding
	if f == nil {
		return
	}
	l.list = append(l.list, *f)
	if l.asJSON {
		return
	}
	l.bar.Close() // the next progress brings it back
	repaired := ""
	if f.Repaired {
		repaired = "; repaired"
	}
	fmt.Fprintf(l.cli.stdout, "%s %s: %s%s\n", f.Kind, text.Plain(f.Where), text.Plain(f.Problem), repaired)
}

// report prints the end of the output: lines or, for JSON, the complete output, which is the summary s with all findings as
// "list".
func (l *findings) report(s check.Summary, lines []string) error {
	return l.print(lines, struct {
		check.Summary
		List []check.Finding `json:"list"`
	}{s, l.list})
}

// print prints whole as JSON if the output is JSON, else lines.
func (l *findings) print(lines []string, whole any) error {
	if l.asJSON {
		return printJSON(l.cli.stdout, whole)
	}
	_, err := fmt.Fprintln(l.cli.stdout, strings.Join(lines, "\n"))
	return err
}
