package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/gitlog"
)

// newLog returns the group of commands `larder log`, which read and export a log, and change its key.
func newLog(a *cli) *cobra.Command {
	return newGroup("log", "Read the log of every change, and look after it",
		"The log has an entry for every change of what is served, and proves it: docs/audit-log.md.",
		"  larder log list --package jquery\n  larder log show 17\n  larder log rotate-key",
		newLogList(a), newLogShow(a), newLogTail(a), newWatch(a), newLogExport(a), newRotateKey(a))
}

// newRotateKey returns the command `larder log rotate-key`, which has a new key created that signs the log from now on, and
// appends an entry that announces it. The old key signs too until its file is removed. The process that runs does it, else this
// one, which first creates a key for a log that has none.
func newRotateKey(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Sign the log with a new key from now on",
		Long: `Make a new key that signs the log from now on. The log names it in an entry that the present key signs, so that
clients that have pinned that one are led to the new one. Both sign until the old key's file, old-….key in the key
folder, is removed: do that once all clients had time to pin the new one, or at once where the old one has got into
wrong hands.

It speaks to the larder process that runs on the data folder; where none runs, it works alone.`,
		Example: `  larder log rotate-key
  larder log rotate-key --data /var/lib/larder/data`,
	}
	used := []string{"keys", "log-origin"}
	a.addFlags(cmd, dataFlags, used)
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		return a.withClient(ctx, used, a.openForWriting(app.WriterOptions{Existing: true, Signing: app.Signed}), func(client *app.Client) error {
			done, err := app.OpRotateKey.Ask(ctx, client, struct{}{}, nil)
			if err != nil {
				return err
			}
			// Before the client is closed, because that may fail and the key has been changed.
			return a.printResponse(*asJSON, done, func() error {
				_, err := fmt.Fprintf(a.stdout, "The log is signed with a new key, as its entry %d says:\n%s\nThe old key signs too until its file is removed: old-….key in %s.\n",
					done.Index, done.Key, done.Folder)
				return err
			})
		})
	}))
}

// logFilter has the values of the flags that select entries; "" selects all.
type logFilter struct {
	pkg, version string
	kinds, since string
}

// addFlags adds the flags that select entries to a command. They set the fields of l when the command line is parsed.
func (l *logFilter) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.pkg, "package", "", "only entries about the package `NAME`")
	f.StringVar(&l.version, "version", "", "only entries about this `VERSION` of it")
	f.StringVar(&l.kinds, "kind", "", "only entries of these `KINDS`, separated by commas: published, withdrawn, refused and others")
	f.StringVar(&l.since, "since", "", "only entries from `TIME` on: a day, a time, or how long ago, such as 24h or 7d")
}

// query returns the query for at most limit entries that the flags describe, without Before. An error is a [settings.Mistake]
// in the flags.
func (l *logFilter) query(limit int) (q logs.Query, err error) {
	q = logs.Query{Package: l.pkg, Version: l.version, Limit: limit}
	if l.version != "" && l.pkg == "" {
		return q, settings.Mistakef("--version needs --package too")
	}
	if q.Kinds, err = logs.ParseKinds(l.kinds); err != nil {
		return q, settings.Mistakef("--kind %w", err)
	}
	if l.since != "" {
		if q.Since, err = logs.ParseSince(l.since, time.Now()); err != nil {
			return q, settings.Mistakef("--since %w", err)
		}
	}
	return q, nil
}

// newLogList returns the command `larder log list`, which lists entries, newest first. It does not wait for new ones.
func newLogList(a *cli) *cobra.Command {
	var filter logFilter
	var before int64
	limit := 20
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what happened, newest first",
		Long:  "List what happened, newest first: what was detected, refused, published and withdrawn, when and why." + askedWhom,
		Example: `  larder log list
  larder log list --package jquery --kind published,withdrawn
  larder log list --since 24h --kind refused --limit 1000 --json`,
	}
	a.addFlags(cmd, dataFlags)
	filter.addFlags(cmd)
	cmd.Flags().Var(settings.CountValue(&limit, 1), "limit", "most entries to show, `N`")
	cmd.Flags().Int64Var(&before, "before", 0, "only entries before the one with the number `INDEX`")
	return setReadAction(a, cmd, nil, app.OpLogList, func([]string) (logs.Query, error) {
		q, err := filter.query(limit)
		if q.Before = before; err == nil && before < 0 {
			err = settings.Mistakef("--before must be the number of an entry")
		}
		return q, err
	}, func(page app.LogPage) error { return printLogPage(a.stdout, page, terminalWidth(a.stdout)) })
}

// printLogPage writes the entries of a page for people, each as [printEntry] does, and whether there are more, or that no entry
// matches. It returns an error of writing only if there are no entries.
func printLogPage(w io.Writer, p app.LogPage, width int) error {
	if len(p.Entries) == 0 {
		_, err := fmt.Fprintf(w, "No entry is like that; the log has %s.\n", formatCount(int(p.Size), "entry", "entries"))
		return err
	}
	for _, e := range p.Entries {
		printEntry(w, e, width)
	}
	if p.Next > 0 {
		fmt.Fprintf(w, "\nThere are more: --limit shows more at once, --before %d what follows.\n", p.Next)
	}
	return nil
}

// printEntry writes a log entry on a line, which it cuts to width columns, but to no less than leastCut columns of the text
// behind index, local time and kind. 0 is no limit. Errors of writing are ignored.
func printEntry(w io.Writer, e logs.Indexed, width int) {
	what := e.Package
	if e.Version != "" {
		what += " " + e.Version
	}
	if e.Reason != "" {
		what += ": " + e.Reason
	}
	head := fmt.Sprintf("%6d  %s  %-16s  ", e.Index, e.Time.Local().Format(time.DateTime), e.Kind)
	left := width
	if width > 0 {
		left = max(width-len(head), leastCut)
	}
	fmt.Fprintf(w, "%s%s\n", head, cutText(text.Plain(what), left))
}

// newLogShow returns the command `larder log show`, which prints the entry with an index and the contents that it names.
func newLogShow(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show INDEX",
		Short: "Show one entry",
		Long: `Tell all that an entry says, and what the contents say that it names: what was done to each file of a release, how a
package JSON changed, a long reason in full.` + askedWhom,
		Example: `  larder log show 17
  larder log show 17 --json | jq .documents.manifest.files`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags)
	return setReadAction(a, cmd, nil, app.OpLogShow, func(args []string) (q app.LogShowRequest, err error) {
		if q.Index, err = strconv.ParseInt(args[0], 10, 64); err != nil || q.Index < 0 {
			err = settings.Mistakef("%q is not the number of an entry; `larder log list` has them", args[0])
		}
		return q, err
	}, func(e app.LogDetails) error { return gitlog.WriteText(a.stdout, e.Indexed, e.Documents) })
}

// newLogTail returns the command `larder log tail`, which prints the last entries and then each new one, until it is stopped.
// The process that runs on the data folder sends them: it is an error if none runs, or if that process ends.
func newLogTail(a *cli) *cobra.Command {
	var filter logFilter
	var asJSON bool
	limit := 10
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Tell what happens, as it happens",
		Long: `Tell what happened last, and go on with what happens, until it is stopped with Ctrl-C or the larder process ends that
runs on the data folder. It needs that process: where none runs, nothing happens.`,
		Example: `  larder log tail
  larder log tail --kind refused,withdrawn --limit 0 --json`,
	}
	a.addFlags(cmd, dataFlags)
	filter.addFlags(cmd)
	cmd.Flags().Var(settings.CountValue(&limit, 0), "limit", "most entries to begin with, `N`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, an entry on each line")
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		q, err := filter.query(max(limit, 1))
		if err != nil {
			return err
		}
		client, err := app.Dial(ctx, a.settings.Data)
		if errors.Is(err, app.ErrNoProcess) {
			return fmt.Errorf("no larder process runs on %s, so nothing happens there; `larder log list` tells what happened", a.settings.Data)
		}
		if err != nil {
			return err
		}
		show := func(e logs.Indexed) { printEntry(a.stdout, e, terminalWidth(a.stdout)) }
		if asJSON {
			lines := newLineEncoder(a.stdout)
			show = func(e logs.Indexed) { _ = lines.Encode(e) }
		}
		page, err := app.OpLogList.Ask(ctx, client, q, nil)
		if err != nil {
			return err
		}
		for i := min(limit, len(page.Entries)) - 1; i >= 0; i-- {
			show(page.Entries[i])
		}
		_, err = app.OpLogFollow.Ask(ctx, client, app.LogFollowRequest{Query: q, After: page.Size - 1}, show)
		if ctx.Err() != nil {
			return nil // that is how it ends
		}
		return err
	}))
}

// newLogExport returns the command `larder log export`, which adds the entries of the log that a bare git repository lacks to
// it, as a commit each. It creates the repository if it is missing.
func newLogExport(a *cli) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "export --git DIR",
		Short: "Write the log into a git repository",
		Long: `Write the log into a bare git repository, in the layout of cdnjs's own repository of logs:
packages/{letter}/{package}/{version}/{stage}.log, one commit for each entry, with its time. DIR is made where it does
not exist; a later run adds what has happened since, so it can be pushed anywhere after each.

The repository is for reading: it proves nothing, but each commit names the hash that its entry has in the log.` + askedWhom,
		Example: `  larder log export --git ./logs.git
  git -C ./logs.git log --stat -- packages/j/jquery
  git -C ./logs.git push git@github.com:example/logs.git main`,
	}
	a.addFlags(cmd, dataFlags)
	cmd.Flags().StringVar(&dir, "git", "", "the repository, `DIR`")
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		if dir == "" {
			return settings.Mistakef("say where to with --git DIR")
		}
		return a.withClient(ctx, nil, a.openForLongReading, func(client *app.Client) error {
			repository, err := gitlog.Open(dir)
			if err != nil {
				return err
			}
			bar := newCountBar(a.stderr, "exporting", "entries")
			added, err := app.ExportLog(ctx, client, repository, bar.Show)
			bar.Close()
			if err == nil || added > 0 {
				fmt.Fprintf(a.stdout, "Added %s to %s, which has %s now.\n", formatCount(added, "entry", "entries"), dir, repository.Position())
			}
			return err
		})
	}))
}
