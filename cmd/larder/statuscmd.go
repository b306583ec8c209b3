package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages/lint"
)

// newStatus returns the command `larder status`, which prints the status of the process and of all packages, or of one package
// with its versions.
func newStatus(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show what is here, what waits, and what is stuck and why",
		Long: `Tell which packages are here and how far their releases have come: a table counts what is wrong by its cause, the
most harmful first, and then everything else. With a package's name, tell what became of each version that upstream has:
detected, processing, published, refused, failed (it is tried again), withdrawn, older than what was taken, prerelease,
ignored by a pattern or gone, with the command that gets it. --json lists those that were never tried one by one.

It asks the larder process that runs on the data folder, also a command such as squeeze or import; where none runs, it
looks itself and changes nothing.`,
		Example: `  larder status
  larder status jquery
  larder status --json | jq '.versions[] | select(.state == "failed")'`,
		Args: checkArgumentCount(0, 1),
	}
	a.addFlags(cmd, dataFlags)
	var name string
	return setReadAction(a, cmd, nil, app.OpStatus, func(args []string) (app.StatusRequest, error) {
		name = strings.Join(args, "")
		return app.StatusRequest{Package: name}, nil
	}, func(status *app.Status) error { return statusText{status}.print(a.stdout, name != "", time.Now()) })
}

// statusText prints the status for people. Of its methods, only print returns errors of writing: those of its tables.
type statusText struct{ *app.Status }

// print writes the status for people: the process and what is wrong with it, counts by cause, and a table, which is of the
// versions of a package if one is true, else of all packages. now is for relative times.
func (s statusText) print(w io.Writer, one bool, now time.Time) error {
	if p := s.Process; p != nil {
		fmt.Fprintf(w, "larder %s runs as process %d since %s", p.Version, p.PID, p.Started.Local().Format(time.DateTime))
		if p.Address != "" {
			fmt.Fprintf(w, " and serves %s", p.Address)
		}
		fmt.Fprintln(w, ".")
	}
	if s.Degraded != "" {
		fmt.Fprintf(w, "Larder runs read-only and serves what it can read: %s.\n", s.Degraded)
	}
	if s.Behind != "" {
		fmt.Fprintf(w, "The store lacks the last changes that it had, none of which was signed, and waiting rooms recover: %s.\n", s.Behind)
	}
	if s.Unsigned != "" {
		fmt.Fprintf(w, "The log's newest entries are not signed, so they cannot be verified: %s.\n", s.Unsigned)
	}
	fmt.Fprint(w, s.Following.Describe(), s.Fallback.Describe())
	for _, dispute := range s.Disputes {
		fmt.Fprintf(w, "The log is disputed: %s.\n", dispute)
	}
	for _, c := range s.Certificates {
		if c.Problem != "" {
			fmt.Fprintf(w, "The certificate of %s: %s.\n", c.Domain, lint.Plain(c.Problem))
		}
	}
	for _, lack := range s.Unprotected {
		fmt.Fprintf(w, "Child processes that read strangers' files go without %s.\n", lack)
	}
	s.printLogPush(w, now)
	s.printCatalogue(w, now)
	fmt.Fprint(w, s.Feed.Describe())
	if len(s.Packages) == 0 && s.Degraded != "" {
		return nil // rows may be missing, so nothing is said about them
	}
	if len(s.Packages) == 0 {
		hint := "`larder up` fetches what its catalogue names, `larder add` one package"
		if s.Following != nil || s.Node != nil {
			hint = "what is published elsewhere comes here by itself"
		}
		_, err := fmt.Fprintf(w, "Nothing is here yet; %s.\n", hint)
		return err
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\nCOUNT\tWHAT\tPACKAGES\tWHY, AND WHAT HELPS")
	for _, l := range s.Lines() {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s%s\n",
			humanize.Comma(int64(l.Count)), l.What, l.Packages, lint.Plain(l.Why), formatNextAttempt(l.Next, now))
	}
	if one {
		s.printVersions(table, now)
	} else {
		fmt.Fprintln(table, "\nPACKAGE\tNEWEST\tPUBLISHED\tWAITING\tFAILED\tREFUSED\tWITHDRAWN")
		for _, p := range s.Packages {
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", p.Name, cmp.Or(p.Newest, "-"), p.Published, p.Waiting, p.Failed, p.Refused, p.Withdrawn)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	s.printUpstream(w)
	s.printPurges(w, now)
	return nil
}

// printVersions writes the rows of a table with the state of each version of a package, and the command that gets it; versions
// that were never tried share a row for each state. The columns are separated by tabs. Without versions it writes nothing.
func (s statusText) printVersions(table io.Writer, now time.Time) {
	if len(s.Versions) == 0 {
		return
	}
	fmt.Fprintln(table, "\nVERSION\tSTATE\tSINCE\tWHY, AND THE COMMAND THAT GETS IT")
	for _, v := range s.FoldedVersions() {
		since, why := "", lint.Plain(firstLine(v.Reason))+formatNextAttempt(v.Next, now)
		if v.Kind == "detected" && why == "" {
			why = "it waits for its turn"
		}
		if !v.Updated.IsZero() {
			since = v.Updated.Local().Format(time.DateTime)
		}
		if v.Command != "" {
			why = strings.TrimPrefix(why+"; `"+v.Command+"`", "; ")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", v.Version, v.Kind, since, why)
	}
}

// printUpstream prints, each after an empty line, notes about packages' upstreams, the packages that the catalogue no longer
// has, and the releases that upstream has changed or removed since they were published.
func (s statusText) printUpstream(w io.Writer) {
	for _, p := range s.Packages {
		for _, note := range p.Notes {
			fmt.Fprintf(w, "\n%s: %s\n", p.Name, note)
		}
		if p.Removed {
			fmt.Fprintf(w, "\n%s: the catalogue has it no more; what is published stays, and nothing follows\n", p.Name)
		}
	}
	for _, c := range s.Changed {
		fmt.Fprintf(w, "\n%s %s: %s (noticed %s)\n", c.Package, c.Version, c.Reason, c.Since.Local().Format(time.DateTime))
	}
}

// printPurges prints the withdrawn releases that the cache in front may still have, because the purge hook has not been called
// successfully, and when it is called again.
func (s statusText) printPurges(w io.Writer, now time.Time) {
	for _, j := range s.Purges {
		problem := "the purge hook has not been called yet"
		if j.Problem != "" {
			problem = "couldn't call the purge hook: " + j.Problem + formatNextAttempt(j.Next, now)
		}
		fmt.Fprintf(w, "\n%s %s is withdrawn, but a cache in front may still have it: %s\n", j.Package, j.Version, problem)
	}
}

// printLogPush prints how many entries of the log were pushed to GitHub, and why pushing fails or waits. It prints nothing if
// the log is not pushed.
func (s statusText) printLogPush(w io.Writer, now time.Time) {
	l := s.LogPush
	if l == nil {
		return
	}
	has := "an unknown number"
	if l.Entries >= 0 {
		has = humanize.Comma(l.Entries)
	}
	fmt.Fprintf(w, "The log is pushed to %s, which has %s of %s.\n", l.Repository, has, formatCount(int(l.Of), "entry", "entries"))
	if l.Problem != "" {
		fmt.Fprintf(w, "Pushing it fails since %s: %s%s\n", l.Since.Local().Format(time.DateTime), l.Problem, formatNextAttempt(l.Next, now))
	}
	if l.Waiting.After(now) {
		fmt.Fprintf(w, "GitHub takes more requests %s.\n", humanize.RelTime(l.Waiting, now, "ago", "from now"))
	}
}

// printCatalogue prints the commit of the catalogue, why it cannot be read, and its refused files. Without a catalogue it
// prints nothing.
func (s statusText) printCatalogue(w io.Writer, now time.Time) {
	c := s.Catalogue
	if c == nil {
		return
	}
	if c.Commit != "" {
		fmt.Fprintf(w, "The catalogue is commit %.12s of %s.\n", c.Commit, c.Source)
	}
	if c.Problem != "" {
		stays := "the last valid one stays"
		if c.Changed.IsZero() {
			stays = "no catalogue is in use yet"
		}
		fmt.Fprintf(w, "The catalogue cannot be read since %s, and %s: %s\n", humanize.RelTime(c.Since, now, "ago", "from now"), stays, c.Problem)
	}
	for _, refused := range c.Refused {
		fmt.Fprintf(w, "A file of the catalogue is refused, and its package stays what it was: %s\n", lint.Plain(firstLine(refused.Reason)))
	}
}

// firstLine returns s up to the first "\n", without that.
func firstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}

// formatNextAttempt returns " (tried again 3 hours from now)", or " (to be tried again)" if next is not after now, for the end
// of a sentence; "" if next is zero.
func formatNextAttempt(next, now time.Time) string {
	switch {
	case next.IsZero():
		return ""
	case next.After(now):
		return fmt.Sprintf(" (tried again %s)", humanize.RelTime(next, now, "ago", "from now"))
	}
	return " (to be tried again)"
}

// formatCount returns n with a noun: one if n is 1, else many, such as "1,234 files".
func formatCount(n int, one, many string) string { return text.Count(n, one, many) }
