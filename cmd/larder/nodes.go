package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
)

func newNodes(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the cluster: who publishes, who follows, how far behind",
		Long: `List the nodes of the cluster that the larder process on the data folder is one of, as they told of themselves in the
last day. A node does so every 30 seconds; one that has not been heard of for longer does not run, or cannot reach the
bucket.`,
		Example: `  larder nodes --data /var/lib/larder
  larder nodes --json`,
		Args: arguments(0, 0),
	}
	a.uses(cmd, dataFlags)
	asJSON := jsonFlag(cmd)
	cmd.RunE = a.configured(func(ctx context.Context, _ []string) error {
		client, err := app.Dial(ctx, a.settings.Data)
		if err != nil {
			return err
		}
		defer client.Close()
		nodes, err := app.OpNodes.Ask(ctx, client, struct{}{}, nil)
		if err != nil {
			return err
		}
		return a.print(*asJSON, nodes, func() error { return printNodes(a, nodes) })
	})
	return cmd
}

func printNodes(a *cli, nodes []app.Node) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tROLE\tSINCE\tENTRIES\tNEWEST\tBEHIND\tHEARD OF")
	for _, n := range nodes {
		behind := fmt.Sprintf("%.0f s, %d entries", n.Behind, n.Lacks)
		if n.Behind < 0 {
			behind = "has yet to catch up"
		}
		newest := "none"
		if n.Entries > 0 {
			newest = n.Newest.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s ago\n", n.Name, n.Role, n.Since.Format(time.RFC3339), n.Entries, newest, behind, time.Since(n.Heard).Round(time.Second))
	}
	err := w.Flush()
	for _, n := range nodes {
		if n.Problem != "" {
			fmt.Fprintf(a.stdout, "%s: %s\n", n.Name, n.Problem)
		}
		if n.Evidence != "" {
			fmt.Fprintf(a.stdout, "%s: the log has forked; %s there proves it\n", n.Name, n.Evidence)
		}
	}
	return err
}
