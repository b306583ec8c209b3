package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/gitlog"
	"github.com/larder-cdn/larder/logs/transcript"
)

// logFilter is what the flags say that entries are to be about.
type logFilter struct {
	pkg, version string
	kinds, since string
}

func (l *logFilter) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.pkg, "package", "", "only entries about the package `NAME`")
	f.StringVar(&l.version, "version", "", "only entries about this `VERSION` of it")
	f.StringVar(&l.kinds, "kind", "", "only entries of these `KINDS`, separated by commas: published, withdrawn, refused and others")
	f.StringVar(&l.since, "since", "", "only entries from `TIME` on: a day, a time, or how long ago, such as 24h or 7d")
}

func (l *logFilter) query(limit int) (q logQuery, err error) {
	q = logQuery{Package: l.pkg, Version: l.version, Limit: limit}
	if l.version != "" && l.pkg == "" {
		return q, usageError{errors.New("--version needs --package too")}
	}
	if q.Kinds, err = logs.ParseKinds(l.kinds); err != nil {
		return q, usageError{fmt.Errorf("--kind %w", err)}
	}
	if l.since != "" {
		if q.Since, err = logs.ParseSince(l.since, time.Now()); err != nil {
			return q, usageError{fmt.Errorf("--since %w", err)}
		}
	}
	return q, nil
}

func newLogList(a *app) *cobra.Command {
	var filter logFilter
	var before int64
	var asJSON bool
	limit := 20
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List what happened, newest first",
		Long:  "List what happened, newest first: what was detected, refused, published and withdrawn, when and why." + askedWhom,
		Example: `  larder log list
  larder log list --package jquery --kind published,withdrawn
  larder log list --since 24h --kind refused --limit 1000 --json`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	filter.addTo(cmd)
	cmd.Flags().Var(countValue(&limit, 1), "limit", "most entries to show, `N`")
	cmd.Flags().Int64Var(&before, "before", 0, "only entries before the one with the number `INDEX`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		q, err := filter.query(limit)
		if err != nil {
			return err
		}
		if q.Before = before; before < 0 {
			return usageError{errors.New("--before must be the number of an entry")}
		}
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			page, err := admin.Call[logPage, any](ctx, client, "log-list", q, nil)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(a.stdout, page)
			}
			return page.print(a.stdout, widthOf(a.stdout))
		})
	})
	return cmd
}

// print writes entries for people, on lines of so many columns.
func (p logPage) print(w io.Writer, width int) error {
	if len(p.Entries) == 0 {
		_, err := fmt.Fprintf(w, "No entry is like that; the log has %s.\n", count(int(p.Size), "entry", "entries"))
		return err
	}
	for _, e := range p.Entries {
		e.print(w, width)
	}
	if p.Next > 0 {
		fmt.Fprintf(w, "\nThere are more: --limit shows more at once, --before %d what follows.\n", p.Next)
	}
	return nil
}

// print writes the entry on a line of so many columns.
func (e logEntry) print(w io.Writer, width int) {
	text := e.Package
	if e.Version != "" {
		text += " " + e.Version
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	head := fmt.Sprintf("%6d  %s  %-16s  ", e.Index, e.Time.Local().Format(time.DateTime), e.Kind)
	left := width
	if width > 0 {
		left = max(width-len(head), leastCut)
	}
	fmt.Fprintf(w, "%s%s\n", head, cut(plain(text), left))
}

func newLogShow(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show INDEX",
		Short: "Tell all about one entry",
		Long: `Tell all that an entry says, and what the contents say that it names: what was done to each file of a release, how a
package JSON changed, a long reason in full.` + askedWhom,
		Example: `  larder log show 17
  larder log show 17 --json | jq .documents.manifest.files`,
		Args: arguments(1, 1),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		index, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil || index < 0 {
			return usageError{fmt.Errorf("%q is not the number of an entry; `larder log list` has them", args[0])}
		}
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			e, err := admin.Call[logDetails, any](ctx, client, "log-show", logShowRequest{index}, nil)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(a.stdout, e)
			}
			return transcript.Write(a.stdout, logs.Indexed{Index: e.Index, Entry: e.Entry}, e.Documents)
		})
	})
	return cmd
}

func newLogTail(a *app) *cobra.Command {
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
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	filter.addTo(cmd)
	cmd.Flags().Var(countValue(&limit, 0), "limit", "most entries to begin with, `N`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, an entry on each line")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		q, err := filter.query(max(limit, 1))
		if err != nil {
			return err
		}
		client, err := admin.Dial(ctx, a.settings.data)
		if errors.Is(err, admin.ErrNoProcess) {
			return fmt.Errorf("no larder process runs on %s, so nothing happens there; `larder log list` tells what happened", a.settings.data)
		}
		if err != nil {
			return err
		}
		show := func(e logEntry) { e.print(a.stdout, widthOf(a.stdout)) }
		if asJSON {
			lines := json.NewEncoder(a.stdout)
			lines.SetEscapeHTML(false)
			show = func(e logEntry) { _ = lines.Encode(e) }
		}
		page, err := admin.Call[logPage, any](ctx, client, "log-list", q, nil)
		if err != nil {
			return err
		}
		for i := min(limit, len(page.Entries)) - 1; i >= 0; i-- {
			show(page.Entries[i])
		}
		_, err = admin.Call[any](ctx, client, "log-follow", logFollowRequest{q, page.Size - 1}, show)
		if ctx.Err() != nil {
			return nil // that is how it ends
		}
		return err
	})
	return cmd
}

func newLogExport(a *app) *cobra.Command {
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
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().StringVar(&dir, "git", "", "the repository, `DIR`")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		if dir == "" {
			return usageError{errors.New("say where to with --git DIR")}
		}
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			repository, err := gitlog.Open(dir)
			if err != nil {
				return err
			}
			bar := a.newEntryBar("exporting")
			added, err := exportTo(ctx, client, repository, bar.show)
			bar.close()
			if err == nil || added > 0 {
				fmt.Fprintf(a.stdout, "Added %s to %s, which has %s now.\n", count(added, "entry", "entries"), dir, upTo(repository.Position()))
			}
			return err
		})
	})
	return cmd
}

// exportTo adds what a repository lacks, and tells how many entries it has then, and of how many. What was added before
// something failed stays.
func exportTo(ctx context.Context, client *admin.Client, repository *gitlog.Repository, shown func(has, of int64)) (added int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	_, err = admin.Call[any](ctx, client, "log-export", logExportRequest{repository.Position()}, func(c exportedChange) {
		if ctx.Err() != nil {
			return
		}
		if err := repository.Add(c.Change); err != nil {
			cancel(err)
			return
		}
		added++
		shown(c.Index+1, c.Of)
	})
	if failed := repository.Flush(); failed != nil {
		return 0, errors.Join(err, failed)
	}
	return added, err
}

func upTo(p gitlog.Position) string {
	if p.Index < 0 {
		return "none"
	}
	return "all up to " + strconv.FormatInt(p.Index, 10)
}
