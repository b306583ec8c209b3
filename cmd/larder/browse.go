package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/admin"
)

const askedWhom = `

It asks the larder process that runs on the data folder; where none runs, it looks itself and changes nothing.`

const whichAddress = `

Addresses begin with --asset-base as the running process has it, else with the address of that process. Where none
runs, they begin with --asset-base or where --listen says that it would be.`

// assetFlags are the settings that say under which address files are reached, for commands that show addresses.
var assetFlags = []string{"asset-base", "listen"}

// look has a command ask an operation that only reads.
func look[Result any](ctx context.Context, a *app, operation string, request any) (answer Result, err error) {
	err = a.reach(ctx, assetFlags, a.settings.openFolderReadOnly, func(client *admin.Client) (err error) {
		answer, err = admin.Call[Result, any](ctx, client, operation, request, nil)
		return err
	})
	return answer, err
}

func newSearch(a *app) *cobra.Command {
	var asJSON bool
	limit := 20
	cmd := &cobra.Command{
		Use:   "search WORDS...",
		Short: "Find libraries by name, description and keywords",
		Long: `Find libraries by their names, descriptions, keywords and authors, best first, as the search of the site and of the
API does: a slip of the pen, a missing dash or half a name do no harm.` + askedWhom,
		Example: `  larder search date picker
  larder search --limit 3 --json jquery | jq -r '.results[].name'`,
		Args: arguments(1, -1),
	}
	a.uses(cmd, dataFlags, assetFlags)
	cmd.Flags().Var(countValue(&limit, 1), "limit", "most libraries to show, `N`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		request := searchRequest{Text: strings.Join(args, " "), Limit: limit}
		answer, err := look[searchAnswer](ctx, a, "search", request)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(a.stdout, answer)
		}
		return answer.print(a.stdout, request.Text, widthOf(a.stdout))
	})
	return cmd
}

// print writes what was found for people, on lines of so many columns.
func (s searchAnswer) print(w io.Writer, text string, width int) error {
	if s.Total == 0 {
		_, err := fmt.Fprintf(w, "Nothing matches %q; `larder status` lists what is here.\n", text)
		return err
	}
	const gap = 2
	nameWidth, versionWidth := len("NAME"), len("LATEST")
	for _, l := range s.Results {
		nameWidth = max(nameWidth, runewidth.StringWidth(l.Name))
		versionWidth = max(versionWidth, runewidth.StringWidth(l.Version))
	}
	left := width
	if width > 0 {
		left = max(width-nameWidth-versionWidth-2*gap, leastCut)
	}
	table := tabwriter.NewWriter(w, 0, 8, gap, ' ', 0)
	fmt.Fprintln(table, "NAME\tLATEST\tDESCRIPTION")
	for _, l := range s.Results {
		fmt.Fprintf(table, "%s\t%s\t%s\n", l.Name, orDash(l.Version), cut(plain(l.Description), left))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if s.Available > s.Total {
		fmt.Fprintf(w, "\n%s more; --limit shows them.\n", humanize.Comma(int64(s.Available-s.Total)))
	}
	return nil
}

func newInfo(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info NAME[@VERSION]",
		Short: "Tell all about a library, or list the files of a release",
		Long: `Tell all about a library: its latest version, where it comes from, which versions are served and which of the newest
could not be published. With a version, list the files of that release with their sizes in each coding.` + askedWhom + whichAddress,
		Example: `  larder info jquery
  larder info jquery@3.7.1
  larder info --json jquery | jq -r '.versions[].version'`,
		Args: arguments(1, 1),
	}
	a.uses(cmd, dataFlags, assetFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		name, version, err := nameAndVersion(args[0])
		if err != nil {
			return err
		}
		answer, err := look[info](ctx, a, "info", infoRequest{name, version})
		switch {
		case err != nil:
			return err
		case answer.Release != nil && asJSON:
			return printJSON(a.stdout, answer.Release)
		case answer.Release != nil:
			return answer.Release.print(a.stdout)
		case asJSON:
			return printJSON(a.stdout, answer.Library)
		}
		return answer.Library.print(a.stdout, widthOf(a.stdout), time.Now())
	})
	return cmd
}

// print writes all about a library for people, on lines of so many columns.
func (l *libraryInfo) print(w io.Writer, width int, now time.Time) error {
	if l.Version == "" {
		fmt.Fprintf(w, "%s, nothing published yet\n", l.Name)
	} else {
		fmt.Fprintf(w, "%s %s%s\n", l.Name, l.Version, on(l.Released))
	}
	if l.Description != "" {
		fmt.Fprintln(w, plain(l.Description))
	}
	fmt.Fprintln(w)
	var source string
	switch {
	case l.Autoupdate != nil:
		source = l.Autoupdate.Source + " " + l.Autoupdate.Target
	default:
		source = "`larder import` only"
	}
	versions := make([]string, len(l.Versions))
	for i, v := range l.Versions {
		versions[i] = v.Version
	}
	const indent = 13 // the longest name of a field and two spaces
	for _, field := range []struct {
		name  string
		lines []string
	}{
		{"main file", []string{l.Filename}},
		{"address", []string{l.Latest}},
		{"integrity", []string{l.SRI}},
		{"license", []string{l.License}},
		{"homepage", []string{l.Homepage}},
		{"repository", []string{l.Repository}},
		{"author", []string{l.Author}},
		{"keywords", wrap(l.Keywords, max(0, width-indent))},
		{"releases by", []string{source}},
		{"versions", wrap(versions, max(0, width-indent))},
	} {
		name := field.name
		for _, line := range field.lines {
			if line = plain(line); line != "" {
				fmt.Fprintf(w, "%-*s%s\n", indent, name, line)
			}
			name = ""
		}
	}
	if len(l.Problems) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\nNOT PUBLISHED\tSTATE\tREASON")
	for _, s := range l.Problems {
		fmt.Fprintf(table, "%s\t%s\t%s%s\n", s.Version, s.Kind, plain(s.Reason), again(s.Next, now))
	}
	return table.Flush()
}

// print writes a release's files for people.
func (r *releaseInfo) print(w io.Writer) error {
	fmt.Fprintf(w, "%s %s%s, %s, %s (log entry %d)\n\n", r.Name, r.Version, on(r.Released),
		count(len(r.Files), "file", "files"), humanize.Bytes(uint64(r.Bytes)), r.Entry)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "SIZE\tGZIP\tBROTLI\tFILE")
	size := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return humanize.Comma(n)
	}
	for _, f := range r.Files {
		main := ""
		if f.Path == r.Filename {
			main = " (main)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s%s\n", humanize.Comma(f.Size), size(f.Gzip), size(f.Brotli), plain(f.Path), main)
	}
	return table.Flush()
}

func newTag(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tag NAME[@VERSION] [FILE...]",
		Short: "Print the tag that loads a file, with its integrity",
		Long: `Print the HTML that loads files in a page: <script> for scripts, with type="module" for those that say that they are
modules, <link rel="stylesheet"> for style sheets. Each has the file's integrity, so that a browser takes no other
bytes. Without FILE it is for the library's main file. NAME alone is for the latest version, which the tag then names:
what a page loads never changes by itself.` + askedWhom + whichAddress,
		Example: `  larder tag jquery
  larder tag bootstrap@5.3.3 css/bootstrap.min.css js/bootstrap.bundle.min.js
  larder tag --json jquery | jq -r '.[0].integrity'`,
		Args: arguments(1, -1),
	}
	a.uses(cmd, dataFlags, assetFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		snippets, err := lookForSnippets(ctx, a, args)
		if err != nil {
			return err
		}
		var failures []error
		for _, s := range snippets {
			if s.Tag == "" {
				failures = append(failures, fmt.Errorf("no tag loads %s by itself; `larder url %s %[1]s` tells its address", plain(s.File), args[0]))
			}
		}
		switch {
		case failures != nil:
			return errors.Join(failures...)
		case asJSON:
			return printJSON(a.stdout, snippets)
		}
		for _, s := range snippets {
			fmt.Fprintln(a.stdout, s.Tag)
		}
		return nil
	})
	return cmd
}

func newURL(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "url NAME[@VERSION] [FILE...]",
		Short: "Print the address of a file",
		Long: `Print the addresses of files, without FILE that of the library's main file. NAME alone is for the latest version, which
the address then names.` + askedWhom + whichAddress,
		Example: `  larder url jquery
  curl --compressed "$(larder url jquery@3.7.1 jquery.js)"
  larder url --json bootstrap css/bootstrap.min.css`,
		Args: arguments(1, -1),
	}
	a.uses(cmd, dataFlags, assetFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with the integrity and the tag of each")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		snippets, err := lookForSnippets(ctx, a, args)
		switch {
		case err != nil:
			return err
		case asJSON:
			return printJSON(a.stdout, snippets)
		}
		for _, s := range snippets {
			fmt.Fprintln(a.stdout, s.URL)
		}
		return nil
	})
	return cmd
}

// lookForSnippets reads NAME[@VERSION] [FILE...] and asks for what belongs to it.
func lookForSnippets(ctx context.Context, a *app, args []string) ([]snippet, error) {
	name, version, err := nameAndVersion(args[0])
	if err != nil {
		return nil, err
	}
	return look[[]snippet](ctx, a, "snippets", snippetRequest{name, version, args[1:]})
}

func nameAndVersion(arg string) (name, version string, err error) {
	name, version, versioned := strings.Cut(arg, "@")
	if name == "" || versioned && version == "" {
		return "", "", usageError{fmt.Errorf("%q is not NAME or NAME@VERSION", arg)}
	}
	return name, version, nil
}

// on tells the day of a release, where that is known.
func on(released time.Time) string {
	if released.IsZero() {
		return ""
	}
	return ", released on " + released.UTC().Format(time.DateOnly)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
