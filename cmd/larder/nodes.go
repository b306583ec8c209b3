package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
)

// newNodes returns the command `larder nodes`, which lists the nodes of the cluster.
func newNodes(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of the cluster: who publishes, who follows, how far behind",
		Long: `List the nodes of this data folder's cluster by their reports of the last day. Nodes report every 30 seconds; one that
has been silent for over 90 seconds does not run, or cannot reach the bucket. A former leader was the leader before it
fell silent, or before another node took over.`,
		Example: `  larder nodes --data /var/lib/larder
  larder nodes --json`,
		Args: checkArgumentCount(0, 0),
	}
	a.addFlags(cmd, dataFlags)
	asJSON := addJSONFlag(cmd)
	cmd.RunE = a.withSettings(func(ctx context.Context, _ []string) error {
		client, err := app.Dial(ctx, a.settings.Data)
		if err != nil {
			return err
		}
		defer client.Close()
		nodes, err := app.OpNodes.Ask(ctx, client, struct{}{}, nil)
		if err != nil {
			return err
		}
		return a.printResponse(*asJSON, nodes, func() error { return writeNodes(a.stdout, nodes, time.Now()) })
	})
	return cmd
}
