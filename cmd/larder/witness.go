package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/logs/verify"
)

// newWitness returns the command `larder witness`, which runs a server that cosigns the checkpoints of other logs, until it is
// stopped.
func newWitness(a *cli) *cobra.Command {
	w := app.WitnessServer{Settings: a.settings}
	cmd := &cobra.Command{
		Use:   "witness",
		Short: "Cosign other logs, so that they cannot show different histories",
		Long: `Cosign the checkpoints of logs (https://c2sp.org/tlog-witness). A log submits a checkpoint with the proof that it has
only grown since the last one that was cosigned; the witness never signs one of another history. Logs that are given by
URL are also polled every ten seconds. Any log in C2SP's format can be witnessed.

--keys is the witness's own folder: its keys, and what it has signed, without which it would sign another history, so
keep both together, on one machine. Contradicting checkpoints of a log are stored there as evidence.`,
		Example: `  larder witness --name witness.example.org/larder --keys ./witness --log https://cdn.example.com --listen :8083
  larder witness --name witness.example.org/larder --keys ./witness --log log.pub --log other.pub`,
	}
	a.addFlags(cmd, []string{"config", "keys", "listen", "tls-cert", "tls-key", "max-connections", "drain", "ready-file", "private-listen", "private-hosts", "log-level", "log-format"})
	cmd.Flags().StringVar(&w.Name, "name", "", "the `NAME` of a new witness's keys: a host that is yours, and what you like behind it")
	cmd.Flags().StringArrayVar(&w.Logs, "log", nil, "a log that is witnessed: its verifier `KEY`, a file with it, or the URL of a Larder; repeatable")
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) (err error) {
		if !a.settings.IsSet("keys") || len(w.Logs) == 0 {
			return settings.Mistakef("a witness needs a folder of its own, with --keys, and a --log that it witnesses")
		}
		for i, log := range w.Logs {
			if !verify.IsURL(log) {
				if w.Logs[i], err = verify.ReadKey(log); err != nil {
					return settings.Mistakef("--log: %w", err)
				}
			}
		}
		w.Logger = a.settings.NewLogger(newTerminal(a.stderr), slog.LevelInfo)
		w.Serving = func(address string, keys []string) {
			fmt.Fprintf(a.stdout, "The witness answers at %s\nGive one of its keys to `larder up --witness %s#KEY`, and to those who verify:\n%s\n", address, address, strings.Join(keys, "\n"))
		}
		return w.Run(ctx)
	}))
}
