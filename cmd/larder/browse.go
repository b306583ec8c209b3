package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
)

const askedWhom = `

It asks the larder process that runs on the data folder; where none runs, it looks itself and changes nothing.`

const whichAddress = `

Addresses begin with --asset-base as the running process has it, else with the address of that process. Where none
runs, they begin with --asset-base or where --listen says that it would be.`

// assetFlags are the settings that say under which address files are reached, for commands that show addresses.
var assetFlags = []string{"asset-base", "listen"}

// newSearch returns the command `larder search`, which lists the libraries that match words, best first.
func newSearch(a *cli) *cobra.Command {
	limit := 20
	cmd := &cobra.Command{
		Use:   "search WORDS...",
		Short: "Find libraries by name, description and keywords",
		Long: `Find libraries by their names, descriptions, keywords and authors, best first, as the search of the site and of the
API does: a slip of the pen, a missing dash or half a name do no harm.` + askedWhom,
		Example: `  larder search font awesome
  larder search --limit 3 --json jquery | jq -r '.results[].name'`,
		Args: checkArgumentCount(1, -1),
	}
	a.addFlags(cmd, dataFlags, assetFlags)
	cmd.Flags().Var(settings.CountValue(&limit, 1), "limit", "most libraries to show, `N`")
	var query string
	return setReadAction(a, cmd, assetFlags, app.OpSearch, func(args []string) (library.SearchRequest, error) {
		query = strings.Join(args, " ")
		return library.SearchRequest{Text: query, Limit: limit}, nil
	}, func(found library.Found) error { return printFound(a.stdout, found, query, terminalWidth(a.stdout)) })
}

// printFound writes the libraries that a search found as a table for people, and how many more there are. query is the search's
// text, for the message that nothing matches. width is the terminal's columns, to which descriptions are cut, but to no less
// than leastCut; 0 cuts nothing.
func printFound(w io.Writer, s library.Found, query string, width int) error {
	if s.Total == 0 {
		_, err := fmt.Fprintf(w, "Nothing matches %q; `larder status` lists what is here.\n", query)
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
		fmt.Fprintf(table, "%s\t%s\t%s\n", l.Name, cmp.Or(l.Version, "-"), cutText(text.Plain(l.Description), left))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if s.Available > s.Total {
		fmt.Fprintf(w, "\n%s more; --limit shows them.\n", humanize.Comma(int64(s.Available-s.Total)))
	}
	return nil
}

// newInfo returns the command `larder info`, which shows a library, or the files of a release if a version is given.
func newInfo(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info NAME[@VERSION]",
		Short: "Show a library, or list the files of a release",
		Long: `Show a library: its latest version, where it comes from, which versions are served and which of the newest
could not be published. With a version, list the files of that release with their sizes in each coding.` + askedWhom + whichAddress,
		Example: `  larder info jquery
  larder info jquery@3.7.1
  larder info --json jquery | jq -r '.versions[].version'`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, dataFlags, assetFlags)
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		name, version, err := parseNameAndVersion(args[0])
		if err != nil {
			return err
		}
		answer, err := runReadOperation(ctx, a, assetFlags, app.OpInfo, library.InfoRequest{Library: name, Version: version})
		if err != nil {
			return err
		}
		if r := answer.Release; r != nil {
			return a.printResponse(*asJSON, r, func() error { return printRelease(a.stdout, r) })
		}
		return a.printResponse(*asJSON, answer.Library, func() error { return printAbout(a.stdout, answer.Library, terminalWidth(a.stdout), time.Now()) })
	}))
}

// printAbout writes a library's fields and versions for people, and below these which of the newest versions failed or were
// refused. It wraps lists at width, the terminal's columns; a width up to 13, such as 0, is no wrapping. now is for the times
// of next attempts. It returns errors of writing only if there are such failed or refused versions.
func printAbout(w io.Writer, l *library.About, width int, now time.Time) error {
	if l.Version == "" {
		fmt.Fprintf(w, "%s, nothing published yet\n", l.Name)
	} else {
		fmt.Fprintf(w, "%s %s%s\n", l.Name, l.Version, formatReleaseDate(l.Released))
	}
	if l.Description != "" {
		fmt.Fprintln(w, text.Plain(l.Description))
	}
	fmt.Fprintln(w)
	source := "`larder import` only"
	if l.Autoupdate != nil {
		source = l.Autoupdate.Source + " " + l.Autoupdate.Target
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
		{"keywords", wrapWords(l.Keywords, max(0, width-indent))},
		{"source", []string{source}},
		{"versions", wrapWords(versions, max(0, width-indent))},
	} {
		name := field.name
		for _, line := range field.lines {
			if line = text.Plain(line); line != "" {
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
		fmt.Fprintf(table, "%s\t%s\t%s%s\n", s.Version, s.Kind, text.Plain(s.Reason), formatNextAttempt(s.Next, now))
	}
	return table.Flush()
}

// printRelease writes a line about a release and a table of its files for people, with their sizes in bytes in each encoding, "-" for an encoding
// that is not stored. The column UPGRADE is there if a file has upgrades. It returns errors of writing the table.
func printRelease(w io.Writer, r *library.AboutRelease) error {
	fmt.Fprintf(w, "%s %s%s, %s, %s (log entry %d)\n\n", r.Name, r.Version, formatReleaseDate(r.Released),
		formatCount(len(r.Files), "file", "files"), humanize.Bytes(uint64(r.Bytes)), r.Entry)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	upgrades := slices.ContainsFunc(r.Files, func(f library.AboutFile) bool { return f.Upgrades != nil })
	heading := "SIZE\tGZIP\tBROTLI\t"
	if upgrades {
		heading += "UPGRADE\t"
	}
	fmt.Fprintln(table, heading+"FILE")
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
		fmt.Fprintf(table, "%s\t%s\t%s\t", humanize.Comma(f.Size), size(f.Gzip), size(f.Brotli))
		if upgrades {
			fmt.Fprintf(table, "%s\t", describeUpgrades(f.Upgrades))
		}
		fmt.Fprintf(table, "%s%s\n", text.Plain(f.Path), main)
	}
	return table.Flush()
}

// describeUpgrades returns, for each other version of a file that a browser may have, how many bytes it then downloads for this
// one, such as "1,234 from 1.0.0, 2,345 from 0.9.0"; "-" if upgrades is empty.
func describeUpgrades(upgrades []library.Upgrade) string {
	var all []string
	for _, u := range upgrades {
		all = append(all, humanize.Comma(u.Bytes)+" from "+u.From)
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

// newTag returns the command `larder tag`, which prints the HTML that loads files of a release or, by its flags, only their
// URLs or an import map. If no tag can load one of the files, it prints nothing and returns an error, but not with --url.
func newTag(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tag NAME[@VERSION] [FILE...]",
		Short: "Print the tag that loads a file, with its integrity",
		Long: `Print the HTML that loads files in a page: <script> for scripts, with type="module" for those that say that they are
modules, <link rel="stylesheet"> for style sheets. Each has the file's integrity, so that a browser takes no other
bytes. Without FILE it is for the library's main file. NAME alone is for the latest version, which the tag then names:
what a page loads never changes by itself. With --url it is the files' addresses alone.

With --modules it is the import map of the modules that Larder built from the release, for a package JSON with
"modules": all of them, or those for the given SUBPATHs, with all that they import, in exact versions, with integrity.` + askedWhom + whichAddress,
		Example: `  larder tag jquery
  larder tag bootstrap@5.3.3 css/bootstrap.min.css js/bootstrap.bundle.min.js
  curl --compressed "$(larder tag --url jquery@3.7.1 jquery.js)"
  larder tag --modules react-dom ./client
  larder tag --json jquery | jq -r '.[0].integrity'`,
		Args:       checkArgumentCount(1, -1),
		SuggestFor: []string{"url"},
	}
	a.addFlags(cmd, dataFlags, assetFlags)
	url := cmd.Flags().Bool("url", false, "print the addresses of the files alone")
	modules := cmd.Flags().Bool("modules", false, "print an import map of the modules that were built from the release")
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		name, version, err := parseNameAndVersion(args[0])
		if err != nil {
			return err
		}
		if *modules {
			return a.printModules(ctx, library.ModulesRequest{Library: name, Version: version, Subpaths: args[1:]}, *asJSON)
		}
		snippets, err := runReadOperation(ctx, a, assetFlags, app.OpSnippets, library.SnippetRequest{Library: name, Version: version, Files: args[1:]})
		if err != nil {
			return err
		}
		var failures []error
		for _, s := range snippets {
			if s.Tag == "" && !*url {
				failures = append(failures, fmt.Errorf("no tag loads %s by itself; `larder tag --url %s %[1]s` tells its address", text.Plain(s.File), args[0]))
			}
		}
		if failures != nil {
			return errors.Join(failures...)
		}
		return a.printResponse(*asJSON, snippets, func() error {
			for _, s := range snippets {
				if *url {
					fmt.Fprintln(a.stdout, s.URL)
					continue
				}
				fmt.Fprintln(a.stdout, s.Tag)
				for _, note := range s.Notes {
					fmt.Fprintln(a.stderr, describeNote(note))
				}
			}
			return nil
		})
	}))
}

// printModules prints the import map of the modules that q selects as HTML, for `larder tag --modules`, and its problems to
// standard error. If asJSON is set, it prints both to standard output as JSON.
func (a *cli) printModules(ctx context.Context, q library.ModulesRequest, asJSON bool) error {
	found, err := runReadOperation(ctx, a, assetFlags, app.OpModules, q)
	if err != nil {
		return err
	}
	return a.printResponse(asJSON, found, func() error {
		markup, err := json.MarshalIndent(found.ImportMap, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "<script type=\"importmap\">\n%s\n</script>\n", markup)
		for _, problem := range found.Problems {
			fmt.Fprintln(a.stderr, describeNote(problem))
		}
		return nil
	})
}

// parseNameAndVersion splits NAME or NAME@VERSION at the first @. version is "" for NAME. An empty name, as in @scope/name, or
// an empty version after @ is a [settings.Mistake].
func parseNameAndVersion(arg string) (name, version string, err error) {
	name, version, versioned := strings.Cut(arg, "@")
	if name == "" || versioned && version == "" {
		return "", "", settings.Mistakef("%q is not NAME or NAME@VERSION", arg)
	}
	return name, version, nil
}

// formatReleaseDate returns ", released on YYYY-MM-DD", the day in UTC, for the end of a sentence; "" if the time is zero.
func formatReleaseDate(released time.Time) string {
	if released.IsZero() {
		return ""
	}
	return ", released on " + released.UTC().Format(time.DateOnly)
}
