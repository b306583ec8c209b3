package main

import "github.com/spf13/cobra"

func newLog(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "log",
		Short:   "Read the log of every change, and look after it",
		Long:    "The log has an entry for every change of what is served, and proves it: docs/audit-log.md.",
		Example: "  larder log list --package jquery\n  larder log verify --deep\n  larder log rotate-key",
		Args:    arguments(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLogList(a), newLogShow(a), newLogTail(a), newLogVerify(a), newLogExport(a), newRotateKey(a))
	return cmd
}
