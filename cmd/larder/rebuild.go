package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/admin"
	"github.com/larder-cdn/larder/logs/views"
)

type compareRequest struct{}

func newRebuild(a *app) *cobra.Command {
	var check, asJSON bool
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Make what is served again from the log, and replace what differs",
		Long: `Make all views again from the log and the manifests: which files, integrities, versions, packages and states there
are. Each row that differs from what is in use is a line, and is replaced. States that the log knows nothing of stay:
releases that failed or wait. Where the log itself is damaged nothing is replaced; then restore a backup.

No larder process may run on the data folder, because one that serves has read what is replaced. If it is interrupted,
run it again. With --check nothing is replaced, and a process may run; the exit code is 1 where something differs.`,
		Example: `  larder rebuild --check
  larder rebuild`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().BoolVar(&check, "check", false, "tell what differs, and replace nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		differences := []views.Finding{}
		told := func(e checkEvent) {
			if e.Finding == nil {
				return
			}
			differences = append(differences, *e.Finding)
			if !asJSON {
				fmt.Fprintf(a.stdout, "%s: %s\n", e.Finding.Where, e.Finding.Problem)
			}
		}
		work := a.rebuild
		if check {
			work = a.compare
		}
		summary, err := work(ctx, told)
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(a.stdout, struct {
				views.RebuildSummary
				List []views.Finding `json:"list"`
			}{summary, differences})
		} else {
			_, err = fmt.Fprintln(a.stdout, describeRebuild(summary, check))
		}
		if err == nil && check && summary.Differences > 0 {
			err = fmt.Errorf("%s from what the log says; `larder rebuild` replaces what does", count(int(summary.Differences), "row differs", "rows differ"))
		}
		return err
	})
	return cmd
}

// compare holds the views against the log, through the process that runs if there is one.
func (a *app) compare(ctx context.Context, told func(checkEvent)) (summary views.RebuildSummary, err error) {
	err = a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
		summary, err = admin.Call[views.RebuildSummary](ctx, client, "compare", compareRequest{}, told)
		return err
	})
	return summary, err
}

// rebuild replaces what differs, where no process runs.
func (a *app) rebuild(ctx context.Context, told func(checkEvent)) (summary views.RebuildSummary, err error) {
	if _, err := admin.Dial(ctx, a.settings.data); err == nil {
		return summary, fmt.Errorf("a larder process runs on %s, and has read what would be replaced; stop it first (`larder rebuild --check` works beside it)", a.settings.data)
	}
	if err := a.settings.needStore(); err != nil {
		return summary, err
	}
	f, err := a.openForWork(a.settings.newLogger(a.stderr, slog.LevelError))
	if err != nil {
		return summary, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	return f.rebuild(ctx, false, func(e any) { told(e.(checkEvent)) })
}

// rebuild makes the views again. Unless it is to check only, nobody else may use the folder.
func (f *folder) rebuild(ctx context.Context, check bool, report func(any)) (summary views.RebuildSummary, err error) {
	scratch, remove, err := f.scratch("rebuild-")
	if err != nil {
		return summary, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	return views.Rebuild(ctx, f.store, views.RebuildOptions{Check: check, Scratch: scratch, Progress: checkProgressTo(report)},
		func(finding views.Finding) { report(checkEvent{Finding: &finding}) })
}

func describeRebuild(s views.RebuildSummary, check bool) string {
	line := fmt.Sprintf("Made %s again from %s", count(int(s.Rows), "row", "rows"), count(int(s.Entries), "log entry", "log entries"))
	if s.Differences == 0 {
		return line + "; none differs."
	}
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
	line += fmt.Sprintf("; %s (%s)", count(int(s.Differences), "differs", "differ"), strings.Join(parts, ", "))
	if check {
		return line + "."
	}
	return line + " and were replaced."
}
