package main

import "github.com/spf13/cobra"

func newLog(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "log",
		Short:   "Look after the log of every change",
		Long:    "The log has an entry for every change of what is served, and proves it: docs/audit-log.md.",
		Example: "  larder log rotate-key",
		Args:    arguments(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRotateKey(a))
	return cmd
}
