package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages/lint"
)

// upstreamFlags are the settings of commands that look at upstreams without a bot.
var upstreamFlags = []string{"downloads-url", "github-url", "allow-host", "log-format", "log-level"}

// newLint returns the command `larder lint`, which checks package JSON files and, without --offline, their upstreams, and
// prints the problems. With --fix it corrects and moves the files first. It returns an error if a file has a problem that is
// not just a warning.
func newLint(a *cli) *cobra.Command {
	var asked string
	var offline, fix, isNew bool
	cmd := &cobra.Command{
		Use:   "lint FILE|FOLDER...",
		Short: "Check package JSON files",
		Long: `Check package JSON files on their way into a catalogue: against the schema, for where they lie, for their licence, for
another package with the same upstream, and for how they are written; then whether their upstream exists, whether enough
people use it, and whether its newest release has the files that they name and gives the modules that they ask for.
--offline leaves the upstream alone.

Each problem is a line that begins with file:line:column, and the line it is about; for a folder a table follows.
In GitHub Actions problems are annotations. The exit code is 1 where one of them is an error, 0 where all are warnings.

Duplicates are looked for in the catalogue that the file lies in, or the one given with --catalogue.`,
		Example: `  larder lint packages/j/jquery.json
  larder lint --new --fix packages/m/my-library.json
  larder lint --offline .          # a whole catalogue, without a network`,
		Args: checkArgumentCount(1, -1),
	}
	a.addFlags(cmd, []string{"config"}, upstreamFlags, []string{"catalogue"})
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask any upstream")
	cmd.Flags().BoolVar(&isNew, "new", false, "the files are not in the catalogue yet: what old packages may lack is an error")
	cmd.Flags().BoolVar(&fix, "fix", false, "lay files out, put their properties in order and move them to where they belong")
	addFormatFlag(cmd, &asked, "text", "table", "json", "sarif", "github")
	return withAction(cmd, a.withSettings(func(ctx context.Context, names []string) error {
		files, err := lint.Files(names)
		if err != nil {
			return err
		}
		table := len(files) > 1 || files[0] != names[0]
		if fix {
			if files, err = a.fixFiles(files); err != nil {
				return err
			}
		}
		results, err := lint.CheckFiles(files, a.catalogueForDuplicates(), lint.Options{New: isNew})
		if err != nil {
			return err
		}
		if !offline {
			if err := a.lintUpstream(ctx, results); err != nil {
				return err
			}
		}
		if err := writeResults(a.stdout, a.chooseFormat(asked), results, table); err != nil {
			return err
		}
		if refused, _, _ := lint.Totals(results); refused > 0 {
			return fmt.Errorf("%d of %s refused", refused, formatCount(len(files), "file", "files"))
		}
		return nil
	}))
}

// addFormatFlag adds the flag --format, which chooses one of the output formats, to a command. target receives its value, "" if the
// flag is empty or not given, for which [cli.chooseFormat] chooses.
func addFormatFlag(cmd *cobra.Command, target *string, formats ...string) {
	usage := "output `FORMAT`: " + strings.Join(formats, ", ") + "; default: text, or github in GitHub Actions"
	value := settings.ChoiceValue(target, formats...)
	cmd.Flags().Func("format", usage, func(s string) error {
		if s == "" { // as in scripts that choose a format only sometimes
			*target = ""
			return nil
		}
		return value.Set(s)
	})
}

// chooseFormat returns the output format: asked, or if that is "", github in GitHub Actions, else text.
func (a *cli) chooseFormat(asked string) string {
	if asked == "" && slices.Contains(a.environ, "GITHUB_ACTIONS=true") {
		return "github"
	}
	return cmp.Or(asked, "text")
}

// fixFiles corrects package JSON files on the disk, and may move them. It returns their names afterwards, in the same order. It
// prints the changes, and what it leaves as it is, to standard error, because a program may read standard output. A file that
// fails does not stop the others; the error has all failures.
func (a *cli) fixFiles(files []string) ([]string, error) {
	var failures []error
	fixed := make([]string, 0, len(files))
	for _, file := range files {
		f, err := lint.Fix(file)
		if err != nil {
			failures = append(failures, err)
		}
		if len(f.Done) > 0 {
			fmt.Fprintf(a.stderr, "%s: %s\n", text.Plain(file), strings.Join(f.Done, ", "))
		}
		if f.Left != "" {
			fmt.Fprintf(a.stderr, "%s: left as it is: %s\n", text.Plain(file), text.Plain(f.Left))
		}
		fixed = append(fixed, f.To)
	}
	return fixed, errors.Join(failures...)
}

// lintUpstream requests the upstreams of the packages in results, and adds the problems that these reveal to results. It prints
// which counts could not be found out to standard error. An error says that the upstreams cannot be requested at all, or that
// ctx has ended.
func (a *cli) lintUpstream(ctx context.Context, results []*lint.Result) error {
	u, err := app.OpenUpstreams(a.settings, a.quietLogger())
	if err != nil {
		return err
	}
	defer u.Close()
	unknown, err := u.Lint(ctx, results)
	for _, note := range unknown {
		fmt.Fprintf(a.stderr, "larder: not checked: %s\n", text.Plain(note))
	}
	return err
}

// writeResults writes the results of lint in a format; one that it does not know is text. table adds a table of the rules that
// the files break to the format text.
func writeResults(w io.Writer, format string, results []*lint.Result, table bool) error {
	switch format {
	case "json":
		return lint.WriteJSON(w, results)
	case "sarif":
		return lint.WriteSARIF(w, app.Version(), results)
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

// catalogueForDuplicates returns the folder of the catalogue in which duplicates are searched: the setting catalogue or, if
// that is not set, "", which stands for the catalogue in which each file lies.
func (a *cli) catalogueForDuplicates() string {
	if !a.settings.IsSet("catalogue") {
		return ""
	}
	return a.settings.Catalogue
}

// readPackage reads and checks the package JSON in a regular file, by itself: it searches no catalogue for duplicates. The
// result has the problems, and a nil Package if the package JSON is invalid. The error says that the file cannot be read.
func readPackage(file string) (*lint.Result, error) {
	data, err := lint.Read(file)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = errors.New("no such file")
		}
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return lint.New(lint.Options{}).Check(filepath.ToSlash(file), "", data), nil
}
