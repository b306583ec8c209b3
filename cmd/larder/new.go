package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

func newNew(a *app) *cobra.Command {
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
		u, err := a.newUpstreams()
		if err != nil {
			return err
		}
		defer u.close()
		draft, err := submission.NewDraft(ctx, u.sources["npm"], args[0], name)
		if err != nil {
			return err
		}
		p := draft.Preview.Package
		if printed {
			for _, note := range draft.Notes {
				fmt.Fprintf(a.stderr, "larder: %s\n", plain(note))
			}
			_, err := a.stdout.Write(draft.JSON())
			return err
		}
		file := filepath.Join(into, filepath.FromSlash(packages.Path(p.Name)))
		if err := lint.Create(file, draft.JSON()); errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s is there already and stays as it is; --name gives the package another name, --print shows what would be written", file)
		} else if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "Wrote %s.\n%s %s: %s.\n", file, p.Name, draft.Preview.Latest.Name, draft.Preview.Latest.Describe())
		for _, note := range draft.Notes {
			fmt.Fprintf(a.stdout, "  - %s\n", plain(note))
		}
		results, err := a.lint([]string{file}, lint.Options{New: true})
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
