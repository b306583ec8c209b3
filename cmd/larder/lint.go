package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// lintFormats are the ways in which problems can be told.
var lintFormats = []string{"text", "table", "json", "sarif", "github"}

func newLint(a *app) *cobra.Command {
	var options struct {
		format       string
		offline, fix bool
		isNew        bool
	}
	cmd := &cobra.Command{
		Use:   "lint FILE|FOLDER...",
		Short: "Check package JSON files",
		Long: `Check package JSON files on their way into a catalogue: against the schema, for where they lie, for their licence, for
another package with the same upstream, and for how they are written; then whether their upstream exists, whether enough
people use it, and whether its newest release has the files that they name. --offline leaves the upstream alone.

Each problem is a line that begins with file:line:column, and the line it is about; for a folder a table follows.
In GitHub Actions problems are annotations. The exit code is 1 where one of them is an error, 0 where all are warnings.

Duplicates are looked for in the catalogue that the file lies in, or the one given with --catalogue.`,
		Example: `  larder lint packages/j/jquery.json
  larder lint --new --fix packages/m/my-library.json
  larder lint --offline .          # a whole catalogue, without a network`,
		Args: arguments(1, -1),
	}
	a.uses(cmd, []string{"config"}, upstreamFlags, []string{"catalogue"})
	cmd.Flags().BoolVar(&options.offline, "offline", false, "do not ask any upstream")
	cmd.Flags().BoolVar(&options.isNew, "new", false, "the files are not in the catalogue yet: what old packages may lack is an error")
	cmd.Flags().BoolVar(&options.fix, "fix", false, "lay files out, put their properties in order and move them to where they belong")
	formatFlag(cmd, &options.format, lintFormats)
	cmd.RunE = a.configured(func(ctx context.Context, names []string) error {
		format, err := a.formatOr(options.format, "text", lintFormats)
		if err != nil {
			return err
		}
		files, err := lint.Files(names)
		if err != nil {
			return err
		}
		table := len(files) > 1 || files[0] != names[0]
		if options.fix {
			if files, err = a.fix(files, format); err != nil {
				return err
			}
		}
		results, err := a.lint(files, lint.Options{New: options.isNew})
		if err != nil {
			return err
		}
		if !options.offline {
			if err := a.lintUpstream(ctx, results); err != nil {
				return err
			}
		}
		if err := writeResults(a.stdout, format, results, table); err != nil {
			return err
		}
		if refused, _, _ := lint.Totals(results); refused > 0 {
			return fmt.Errorf("%d of %s refused", refused, count(len(files), "file", "files"))
		}
		return nil
	})
	return cmd
}

// formatFlag gives a command the flag that chooses how its findings are told.
func formatFlag(cmd *cobra.Command, target *string, formats []string) {
	cmd.Flags().StringVar(target, "format", "", "`FORMAT` of what is found: "+strings.Join(formats, ", ")+"; where it is not given, text, or github in GitHub Actions")
}

// formatOr returns the format that was asked for, or what is usual here.
func (a *app) formatOr(asked, otherwise string, formats []string) (string, error) {
	if asked == "" {
		if slices.Contains(a.environ, "GITHUB_ACTIONS=true") {
			return "github", nil
		}
		return otherwise, nil
	}
	if !slices.Contains(formats, asked) {
		return "", usageError{fmt.Errorf("--format: must be one of %s", strings.Join(formats, ", "))}
	}
	return asked, nil
}

// fix puts files right and returns their names afterwards. What it did it tells on standard error, for standard output
// may be for a program.
func (a *app) fix(files []string, format string) ([]string, error) {
	var failures []error
	fixed := make([]string, 0, len(files))
	for _, file := range files {
		f, err := lint.Fix(file)
		if err != nil {
			failures = append(failures, err)
		}
		if len(f.Done) > 0 {
			fmt.Fprintf(a.stderr, "%s: %s\n", plain(file), strings.Join(f.Done, ", "))
		}
		if f.Left != "" {
			fmt.Fprintf(a.stderr, "%s: left as it is: %s\n", plain(file), plain(f.Left))
		}
		fixed = append(fixed, f.To)
	}
	return fixed, errors.Join(failures...)
}

// lint checks files without asking anybody.
func (a *app) lint(files []string, o lint.Options) ([]*lint.Result, error) {
	linters := make(map[string]*lint.Linter) // by the catalogue's folder
	linter := func(folder string) (*lint.Linter, error) {
		if a.settings.given("catalogue") {
			folder = a.settings.catalogue
		}
		if l := linters[folder]; l != nil {
			return l, nil
		}
		o := o
		if folder != "" {
			catalogue, err := packages.Open(folder)
			if err != nil {
				return nil, err
			}
			o.Catalogue = catalogue
		}
		linters[folder] = lint.New(o)
		return linters[folder], nil
	}
	results := make([]*lint.Result, 0, len(files))
	for _, file := range files {
		shown := filepath.ToSlash(file)
		data, err := lint.Read(file)
		if err != nil {
			results = append(results, lint.Unreadable(shown, err.Error()))
			continue
		}
		place, folder := lint.Place(file)
		l, err := linter(folder)
		if err != nil {
			return nil, err
		}
		results = append(results, l.Check(shown, place, data))
	}
	return results, nil
}

// lintedAtOnce is how many upstreams are asked at the same time.
const lintedAtOnce = 4

// lintUpstream adds what the upstreams of the packages tell. What could not be found out, but need not, goes to standard
// error, each such thing once.
func (a *app) lintUpstream(ctx context.Context, results []*lint.Result) error {
	u, err := a.newUpstreams()
	if err != nil {
		return err
	}
	defer u.close()
	unknown := make([][]string, len(results))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lintedAtOnce)
	for i, r := range results {
		if r.Package == nil || r.Package.Autoupdate == nil {
			continue
		}
		g.Go(func() error {
			preview, err := u.look(ctx, r.Package, 0)
			if err != nil {
				r.Add(submission.Trouble(r.Package, err))
				return ctx.Err()
			}
			r.Add(preview.Problems()...)
			var problems []packages.Problem
			problems, unknown[i] = u.popularity.Check(ctx, r.Package)
			r.Add(problems...)
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	said := make(map[string]bool)
	for _, notes := range unknown {
		for _, note := range notes {
			if !said[note] {
				said[note] = true
				fmt.Fprintf(a.stderr, "larder: not checked: %s\n", plain(note))
			}
		}
	}
	return nil
}

// writeResults tells what was found. The table is for more files than one.
func writeResults(w io.Writer, format string, results []*lint.Result, table bool) error {
	switch format {
	case "json":
		return lint.WriteJSON(w, results)
	case "sarif":
		return lint.WriteSARIF(w, version(), results)
	case "table":
		return lint.WriteTable(w, results)
	case "github":
		if err := lint.WriteGitHub(w, results); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, lint.Summary(results))
		return err
	}
	if err := lint.WriteText(w, results); err != nil || !table {
		return err
	}
	if slices.ContainsFunc(results, func(r *lint.Result) bool { return len(r.Problems) > 0 }) {
		fmt.Fprintln(w)
	}
	return lint.WriteTable(w, results)
}

// readPackage reads the one package JSON that a command is about, whose problems are told where it cannot be used.
func (a *app) readPackage(file string) (*packages.Package, *lint.Result, error) {
	data, err := lint.Read(file)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = errors.New("no such file")
		}
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	r := lint.New(lint.Options{}).Check(filepath.ToSlash(file), "", data)
	return r.Package, r, nil
}
