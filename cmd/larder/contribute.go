package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// newNew returns the command `larder new`, which writes a package JSON for an npm package to a new file in a catalogue, and
// prints its problems, which are no error. With --print it only prints the package JSON.
func newNew(a *cli) *cobra.Command {
	var name, into string
	var printed bool
	cmd := &cobra.Command{
		Use:   "new NPM-NAME",
		Short: "Write the package JSON of an npm package",
		Long: `Write a package JSON for an npm package, at its place in a catalogue, from the metadata and the files of its latest
release. An existing file is never overwritten.

Review it before you submit it: the output says what was guessed.`,
		Example: `  larder new htmx.org
  larder new @popperjs/core --name popper.js --into ../catalogue`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, []string{"config"}, upstreamFlags)
	cmd.Flags().StringVar(&name, "name", "", "`NAME` of the package in the catalogue; default: that of the npm package, with - between scope and name")
	cmd.Flags().StringVar(&into, "into", ".", "`FOLDER` of the catalogue")
	cmd.Flags().BoolVar(&printed, "print", false, "print it instead of writing a file")
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		u, err := app.OpenUpstreams(a.settings, a.quietLogger())
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
		results, err := lint.CheckFiles([]string{file}, a.catalogueForDuplicates(), lint.Options{New: true})
		if err != nil {
			return err
		}
		results[0].Add(draft.Preview.Problems()...)
		if err := lint.WriteText(a.stdout, results); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "See all files with: larder show-files %s\n", file)
		return nil
	}))
}

// olderShown is how many releases besides the latest are looked at: about what a new package starts with.
const olderShown = 10

// newShowFiles returns the command `larder show-files`, which fetches the latest releases of a package and prints which files
// the bot would publish by a package JSON. It returns an error if the bot would not publish them as intended.
func newShowFiles(a *cli) *cobra.Command {
	var asked, publishedFile, summaryFile string
	cmd := &cobra.Command{
		Use:   "show-files FILE",
		Short: "Show which files of the upstream's releases would be published, and which tags load them",
		Long: `Show what the bot would publish by a package JSON, whether the package is in the catalogue or not: each file of the
latest release with its size, the minified files and modules that would be made, the tags by which pages load them, and
the number of files of up to 10 other releases. With --published, also the difference from the published version of the
package JSON.

The releases are fetched as the bot does it, and the same code chooses the files, so the result is the same. Nothing of
them is run or kept. The exit code is 1 where nothing would be published, or the package JSON names a default file that
is not there.`,
		Example: `  larder show-files packages/j/jquery.json
  git show main:packages/j/jquery.json > old.json && larder show-files --published old.json packages/j/jquery.json`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, []string{"config", "asset-base"}, upstreamFlags)
	addFormatFlag(cmd, &asked, "text", "json", "github")
	cmd.Flags().StringVar(&publishedFile, "published", "", "`FILE` with the published version of the package JSON, to show the difference")
	cmd.Flags().StringVar(&summaryFile, "summary", "", "append a summary in Markdown to `FILE`, such as $GITHUB_STEP_SUMMARY")
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		format := a.chooseFormat(asked)
		result, err := readPackage(args[0])
		if err != nil {
			return err
		}
		p := result.Package
		if p == nil {
			return a.finishShowFiles(format, result)
		}
		result.Problems = nil // lint reports those of the file itself
		if p.Autoupdate == nil {
			return fmt.Errorf("%s: it has no \"autoupdate\", so no upstream to look at; its files come with `larder import`", args[0])
		}
		published, err := a.readPublished(publishedFile)
		if err != nil {
			return err
		}
		u, err := app.OpenUpstreams(a.settings, a.quietLogger())
		if err != nil {
			return err
		}
		defer u.Close()
		preview, err := u.Preview(ctx, p, published, a.settings.AssetBase, olderShown)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			result.Add(submission.ProblemOf(p, err))
			return a.finishShowFiles(format, result)
		}
		result.Add(preview.Problems()...)
		if format == "json" {
			err = printJSON(a.stdout, preview.AsJSON(result.Problems))
		} else {
			err = preview.WriteText(a.stdout)
		}
		if err == nil && summaryFile != "" {
			err = appendSummary(summaryFile, preview)
		}
		if err != nil {
			return err
		}
		return a.finishShowFiles(format, result)
	}))
}

// readPublished reads the published version of a package JSON from a file. It returns nil and no error if file is "". If the
// version is invalid, so that nothing is published by it, it prints why to standard error, and returns nil and no error, too.
func (a *cli) readPublished(file string) (*packages.Package, error) {
	if file == "" {
		return nil, nil
	}
	data, err := lint.Read(file)
	if err != nil {
		return nil, fmt.Errorf("couldn't read the published version of the package JSON, --published %s: %w", file, err)
	}
	p, err := packages.Parse("", data)
	if err != nil {
		fmt.Fprintf(a.stderr, "larder: the published version of the package JSON cannot be used, so there is no difference to show: %s\n", text.Plain(err.Error()))
		return nil, nil
	}
	return p, nil
}

// appendSummary appends the preview of a release in Markdown to a file, which it creates if it is missing.
func appendSummary(file string, preview *submission.Preview) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("couldn't open the file of --summary: %w", err)
	}
	return errors.Join(preview.WriteMarkdown(f), f.Close())
}

// finishShowFiles prints the problems of result to standard output, except in the format json: its output has them already if
// there is a preview, and otherwise they are not printed. It returns an error if the package JSON is invalid or one of the
// problems is an error.
func (a *cli) finishShowFiles(format string, result *lint.Result) error {
	results := []*lint.Result{result}
	var err error
	switch format {
	case "text":
		err = lint.WriteText(a.stdout, results)
	case "github":
		err = lint.WriteGitHub(a.stdout, results)
	}
	if err != nil {
		return err
	}
	switch refused, _, _ := lint.Totals(results); {
	case result.Package == nil:
		return errors.New("this package JSON cannot be used; `larder lint` tells more")
	case refused > 0:
		return errors.New("the bot would not publish this as it is meant")
	}
	return nil
}
