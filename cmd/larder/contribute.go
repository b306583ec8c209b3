package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/terminal"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages/lint"
)

func newNew(a *cli) *cobra.Command {
	var name, into string
	var printed bool
	cmd := &cobra.Command{
		Use:   "new NPM-NAME",
		Short: "Write the package JSON of an npm package",
		Long: `Write a package JSON for an npm package from its latest release: what it is from what its author says of it, which
files and which main file from what the release really holds. It lies where a catalogue keeps it. A file that is there
already is never overwritten.

Look it over before you submit it: what had to be guessed is told.`,
		Example: `  larder new htmx.org
  larder new @popperjs/core --name popper.js --into ../catalogue`,
		Args: arguments(1, 1),
	}
	a.uses(cmd, []string{"config"}, upstreamFlags)
	cmd.Flags().StringVar(&name, "name", "", "`NAME` of the package in the catalogue; where it is not given, that of the npm package, with - between scope and name")
	cmd.Flags().StringVar(&into, "into", ".", "`FOLDER` of the catalogue")
	cmd.Flags().BoolVar(&printed, "print", false, "print it instead of writing a file")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		u, err := app.OpenUpstreams(a.settings, a.quiet())
		if err != nil {
			return err
		}
		defer u.Close()
		draft, err := u.Draft(ctx, args[0], name)
		if err != nil {
			return err
		}
		p := draft.Preview.Package
		if printed {
			for _, note := range draft.Notes {
				fmt.Fprintf(a.stderr, "larder: %s\n", text.Plain(note))
			}
			_, err := a.stdout.Write(draft.JSON())
			return err
		}
		file := filepath.Join(into, filepath.FromSlash(draft.File()))
		if err := lint.Create(file, draft.JSON()); errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s is there already and stays as it is; --name gives the package another name, --print shows what would be written", file)
		} else if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "Wrote %s.\n%s %s: %s.\n", file, p.Name, draft.Preview.Latest.Name, draft.Preview.Latest.Describe())
		for _, note := range draft.Notes {
			fmt.Fprintf(a.stdout, "  - %s\n", text.Plain(note))
		}
		results, err := lint.CheckFiles([]string{file}, a.catalogueGiven(), lint.Options{New: true})
		if err != nil {
			return err
		}
		results[0].Add(draft.Preview.Problems()...)
		if err := lint.WriteText(a.stdout, results); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "See all files with: larder show-files %s\n", file)
		return nil
	})
	return cmd
}

// olderShown is how many releases besides the latest are looked at: about what a new package starts with.
const olderShown = 10

var showFormats = []string{"text", "json", "markdown", "github"}

func newShowFiles(a *cli) *cobra.Command {
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
		result, err := readPackage(args[0])
		if err != nil {
			return err
		}
		p := result.Package
		if p != nil {
			result.Problems = nil // they are for lint to tell
			u, err := app.OpenUpstreams(a.settings, a.quiet())
			if err != nil {
				return err
			}
			defer u.Close()
			if p.Autoupdate == nil {
				return fmt.Errorf("%s: it has no \"autoupdate\", so no upstream to look at; its files come with `larder import`", args[0])
			}
			preview, err := u.Look(ctx, p, olderShown)
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
func (a *cli) finishShow(format string, used bool, result *lint.Result) error {
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
		return printJSON(w, p.AsJSON(result.Problems))
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
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", older.Name, files, size, lint.Plain(terminal.Cut(why, 100)))
	}
	return t.Flush()
}

func newReview(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "review",
		Short: "Look at the pull requests of a catalogue on GitHub",
		Long: `Look at each pull request of a catalogue on GitHub, and say beside the lines what is wrong: what larder lint says,
which files would be published and which tags load them, and in what that differs from what is published. It is told of
pull requests by a webhook (POST /hooks/review), and asks for them at the start and each hour.

Nothing of a submission is checked out or run. It needs no data folder: what is to be done, GitHub knows. With
--site-base it compares with what the Larder there has published. larder up does the same with --review-repository.

The secret of the webhook is in --hook-secret-file or LARDER_HOOK_SECRET. Only a GitHub App may write check runs, so
give it one with --github-app; with a token in LARDER_GITHUB_TOKEN or GITHUB_TOKEN it writes commit statuses, which show
no lines. docs/review.md tells what either has to be allowed.`,
		Example: `  larder review --review-repository example/catalogue --hook-secret-file hook-secret \
    --github-app 123456 --github-app-key-file app.pem --listen :8082
  larder review --review-repository example/catalogue --site-base https://cdn.example.com`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, []string{"config"}, reviewFlags, []string{"hook-secret-file", "listen", "tls-cert", "tls-key", "max-connections", "drain", "ready-file", "private-listen",
		"catalogue", "catalogue-interval", "site-base", "asset-base"}, upstreamFlags)
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		return app.ReviewServer{
			Settings: a.settings,
			Logger:   a.settings.NewLogger(terminal.New(a.stderr), slog.LevelInfo),
			Serving: func(address string) {
				fmt.Fprintf(a.stdout, "Larder looks at the pull requests of %s; GitHub is to tell of them at %s%s.\n", a.settings.ReviewRepository, address, app.ReviewPath)
			},
		}.Run(ctx)
	})
	return cmd
}
