package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/packages/lint"
)

// olderShown is how many releases besides the latest are looked at: about what a new package starts with.
const olderShown = 10

var showFormats = []string{"text", "json", "markdown", "github"}

func newShowFiles(a *app) *cobra.Command {
	var asked string
	cmd := &cobra.Command{
		Use:   "show-files FILE",
		Short: "Show which files of the upstream's releases would be published",
		Long: `Show what the bot would publish by a package JSON, whether the package is in the catalogue or not: each file of the
latest release with its size, the minified forms that would be made, and for up to 10 other releases how many files.

The releases are fetched as the bot does it, and the same code chooses the files, so it comes out the same. Nothing of
them is run or kept. The exit code is 1 where nothing would be published, or the package JSON names a default file that
is not there.`,
		Example: `  larder show-files packages/j/jquery.json
  larder show-files --format markdown packages/j/jquery.json >> "$GITHUB_STEP_SUMMARY"`,
		Args: arguments(1, 1),
	}
	a.uses(cmd, []string{"config"}, upstreamFlags)
	formatFlag(cmd, &asked, showFormats)
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		format, err := a.formatOr(asked, "text", showFormats)
		if err != nil {
			return err
		}
		p, result, err := a.readPackage(args[0])
		if err != nil {
			return err
		}
		if p != nil {
			result.Problems = nil // they are for lint to tell
			u, err := a.newUpstreams()
			if err != nil {
				return err
			}
			defer u.close()
			if p.Autoupdate == nil {
				return fmt.Errorf("%s: it has no \"autoupdate\", so no upstream to look at; its files come with `larder import`", args[0])
			}
			preview, err := u.look(ctx, p, olderShown)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				result.Add(submission.Trouble(p, err))
			default:
				result.Add(preview.Problems()...)
				if err := writePreview(a.stdout, format, preview, result); err != nil {
					return err
				}
			}
		}
		return a.finishShow(format, p != nil, result)
	})
	return cmd
}

// finishShow tells the problems where they have not been told, and whether there was an error among them.
func (a *app) finishShow(format string, used bool, result *lint.Result) error {
	results := []*lint.Result{result}
	var err error
	switch format {
	case "text":
		err = lint.WriteText(a.stdout, results)
	case "github":
		err = lint.WriteGitHub(a.stdout, results)
	case "markdown":
		err = lint.WriteText(a.stderr, results) // standard output is the summary
	}
	if err != nil {
		return err
	}
	switch refused, _, _ := lint.Totals(results); {
	case !used:
		return errors.New("this package JSON cannot be used; `larder lint` tells more")
	case refused > 0:
		return errors.New("the bot would not publish this as it is meant")
	}
	return nil
}

func writePreview(w io.Writer, format string, p *submission.Preview, result *lint.Result) error {
	switch format {
	case "json":
		return printJSON(w, describePreview(p, result))
	case "markdown":
		return p.WriteMarkdown(w)
	}
	r := &p.Latest
	fmt.Fprintf(w, "%s %s: %s.\n", p.Package.Name, r.Name, r.Describe())
	for _, f := range r.Files {
		mark := ""
		if f.Path == r.Default {
			mark = "   <- the main file"
		}
		// What a stranger calls a file must not begin the line, where GitHub Actions would take "::" for a command.
		fmt.Fprintf(w, "%9s  %s%s\n", submission.Size(f), lint.Plain(f.Path), mark)
	}
	if len(p.Older) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nOther releases:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := range p.Older {
		older := &p.Older[i]
		files, size := older.Count()
		why := older.Refused
		if older.Err != nil {
			why = older.Err.Error()
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", older.Name, files, size, lint.Plain(cut(why, 100)))
	}
	return t.Flush()
}

// shownRelease is a release as JSON.
type shownRelease struct {
	Version string      `json:"version"`
	Files   int         `json:"files"`
	Bytes   int64       `json:"bytes"`
	Made    int         `json:"made"`
	Default string      `json:"default,omitempty"`
	Refused string      `json:"refused,omitempty"`
	Error   string      `json:"error,omitempty"`
	List    []shownFile `json:"list,omitempty"`
	LeftOut []shownFile `json:"leftOut,omitempty"`
}

type shownFile struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes,omitempty"`
	Minified bool   `json:"minified,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

func describePreview(p *submission.Preview, result *lint.Result) any {
	shown := struct {
		Package  string         `json:"package"`
		Latest   shownRelease   `json:"latest"`
		Older    []shownRelease `json:"older"`
		Problems []string       `json:"problems"`
	}{Package: p.Package.Name, Latest: describeRelease(&p.Latest), Older: []shownRelease{}, Problems: []string{}}
	for _, f := range p.Latest.Files {
		shown.Latest.List = append(shown.Latest.List, shownFile{Path: f.Path, Bytes: f.Size, Minified: f.Minified})
	}
	for _, l := range p.Latest.LeftOut {
		shown.Latest.LeftOut = append(shown.Latest.LeftOut, shownFile{Path: l.Path, Reason: l.Reason})
	}
	for i := range p.Older {
		shown.Older = append(shown.Older, describeRelease(&p.Older[i]))
	}
	for _, problem := range result.Problems {
		shown.Problems = append(shown.Problems, problem.String())
	}
	return shown
}

func describeRelease(r *submission.Release) shownRelease {
	shown := shownRelease{Version: r.Name, Files: len(r.Files), Bytes: r.Bytes(), Made: r.Made(), Default: r.Default, Refused: r.Refused}
	if r.Err != nil {
		shown.Error = r.Err.Error()
	}
	return shown
}
