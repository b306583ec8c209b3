package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/logs/cluster"
)

// newNodes returns the command `larder nodes`, which lists the nodes of the cluster by their reports of the last day.
func newNodes(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the cluster: who publishes, who follows, how far behind",
		Long: `List the nodes of this data folder's cluster by their reports of the last day. Nodes report every 30 seconds; one that
has been silent for over 90 seconds does not run, or cannot reach the bucket. A former leader was the leader before it
fell silent, or before another node took over.`,
		Example: `  larder nodes --data /var/lib/larder
  larder nodes --json`,
	}
	a.addFlags(cmd, dataFlags)
	return setReadAction(a, cmd, nil, app.OpNodes, func([]string) (none struct{}, err error) { return none, nil },
		func(nodes []app.Node) error { return writeNodes(a.stdout, nodes, time.Now()) })
}

// writeNodes writes a table of the nodes of a cluster, with ages as of now. Below it, it writes a line for each node that is
// silent, has a problem or has evidence that the log has forked. It returns only errors of writing the table.
func writeNodes(to io.Writer, nodes []cluster.Member, now time.Time) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tROLE\tSINCE\tENTRIES\tNEWEST\tBEHIND\tLAST REPORT")
	for _, n := range nodes {
		behind, newest := fmt.Sprintf("%.0f s, %d entries", n.Behind, n.Lacks), "none"
		switch {
		case n.Behind < 0:
			behind = "has yet to catch up"
		case n.Role == cluster.Former:
			behind = "unknown"
		}
		if n.Entries > 0 {
			newest = n.Newest.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s ago\n", n.Name, n.Role, n.Since.Format(time.RFC3339), n.Entries, newest, behind, now.Sub(n.Heard).Round(time.Second))
	}
	err := w.Flush()
	for _, n := range nodes {
		if n.Silent(now) {
			fmt.Fprintf(to, "%s: no report since %s; it does not run, or does not reach the bucket\n", n.Name, n.Heard.Format(time.RFC3339))
		}
		if n.Problem != "" {
			fmt.Fprintf(to, "%s: %s\n", n.Name, n.Problem)
		}
		if n.Evidence != "" {
			fmt.Fprintf(to, "%s: the log has forked; %s there proves it\n", n.Name, n.Evidence)
		}
	}
	return err
}
