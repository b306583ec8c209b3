package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/api/admin"
)

func newStatus(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Tell what is here, what waits, and what is stuck and why",
		Long: `Tell which packages are here and how far their releases have come. With a package's name, tell the state of each
of its versions: detected, processing, published, refused, failed (it is tried again) or withdrawn.

It asks the larder process that runs on the data folder; where none runs, it looks itself and changes nothing.`,
		Example: `  larder status
  larder status jquery
  larder status --json | jq '.versions[] | select(.state == "failed")'`,
		Args: arguments(0, 1),
	}
	a.uses(cmd, dataFlags)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = a.configured(func(ctx context.Context, args []string) error {
		var request statusRequest
		if len(args) == 1 {
			request.Package = args[0]
		}
		return a.reach(ctx, nil, a.settings.openFolderReadOnly, func(client *admin.Client) error {
			answer, err := admin.Call[status, any](ctx, client, "status", request, nil)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.stdout, answer)
			}
			return answer.print(a.stdout, request.Package != "", time.Now())
		})
	})
	return cmd
}

func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// print writes the status for people: of one package with all its versions, or of all with what is in trouble.
func (s *status) print(w io.Writer, one bool, now time.Time) error {
	if p := s.Process; p != nil {
		fmt.Fprintf(w, "larder %s runs as process %d since %s", p.Version, p.PID, p.Started.Local().Format(time.DateTime))
		if p.Address != "" {
			fmt.Fprintf(w, " and serves %s", p.Address)
		}
		fmt.Fprintln(w, ".")
	}
	if s.Unsigned != "" {
		fmt.Fprintf(w, "The log is not signed any more, and nobody can verify what is served: %s.\n", s.Unsigned)
	}
	s.LogPush.print(w, now)
	s.printCatalogue(w, now)
	if len(s.Packages) == 0 {
		_, err := fmt.Fprintln(w, "Nothing is here yet; `larder up` fetches what its catalogue names, `larder add` one package.")
		return err
	}
	s.printSums(w)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if one {
		s.printUpstream(w, now)
		s.printPurges(w, now)
		fmt.Fprintln(table, "\nVERSION\tSTATE\tSINCE\tREASON")
		for _, v := range s.Versions {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s%s\n", v.Version, v.Kind, v.Updated.Local().Format(time.DateTime), v.Reason, again(v.Next, now))
		}
		return table.Flush()
	}
	fmt.Fprintln(table, "\nPACKAGE\tNEWEST\tPUBLISHED\tWAITING\tFAILED\tREFUSED")
	for _, p := range s.Packages {
		newest := p.Newest
		if newest == "" {
			newest = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\n", p.Name, newest, p.Published, p.Waiting, p.Failed, p.Refused)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	s.printUpstream(w, now)
	s.printPurges(w, now)
	for _, v := range s.Versions {
		fmt.Fprintf(w, "\n%s %s: %s: %s%s", v.Package, v.Version, v.Kind, v.Reason, again(v.Next, now))
	}
	if len(s.Versions) > 0 {
		fmt.Fprintln(w)
	}
	return nil
}

func (s *status) printSums(w io.Writer) {
	var sum packageStatus
	for _, p := range s.Packages {
		sum.Published += p.Published
		sum.Waiting += p.Waiting
		sum.Failed += p.Failed
		sum.Refused += p.Refused
	}
	fmt.Fprintf(w, "%s, %s published, %d waiting, %d failed, %d refused; %s not yet at the best compression.\n",
		count(len(s.Packages), "package", "packages"), count(sum.Published, "release", "releases"),
		sum.Waiting, sum.Failed, sum.Refused, count(s.Unsqueezed, "file content", "file contents"))
}

// printUpstream tells of packages whose upstream did not answer, and of releases that it has changed or removed since
// they were published.
func (s *status) printUpstream(w io.Writer, now time.Time) {
	for _, p := range s.Packages {
		if p.Problem != "" {
			fmt.Fprintf(w, "\n%s: couldn't ask upstream: %s%s\n", p.Name, p.Problem, again(p.Next, now))
		}
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

// printPurges tells of withdrawals that the cache in front may not know of.
func (s *status) printPurges(w io.Writer, now time.Time) {
	for _, j := range s.Purges {
		problem := "the purge hook is to be called"
		if j.Problem != "" {
			problem = "couldn't call the purge hook: " + j.Problem + again(j.Next, now)
		}
		fmt.Fprintf(w, "\n%s %s is withdrawn, but a cache in front may still have it: %s\n", j.Package, j.Version, problem)
	}
}

// again tells when something is tried again.
func again(next, now time.Time) string {
	switch {
	case next.IsZero():
		return ""
	case next.After(now):
		return fmt.Sprintf(" (tried again %s)", humanize.RelTime(next, now, "ago", "from now"))
	default:
		return " (to be tried again)"
	}
}

// count is a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(int64(n)) + " " + many
}
