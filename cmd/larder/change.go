package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
)

// newUpgrade returns the command `larder upgrade`, which has a new process take over from the one that runs on the data folder,
// and waits for that. It is an error if none runs, or if the old one goes on.
func newUpgrade(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Have the program that is installed now take over from the process that runs",
		Long: `Have a new process take over from the one that runs on the data folder: put the new program in the place of the old one,
then upgrade. The new process starts with the same arguments and environment, reads the configuration again, and checks
everything but the store; meanwhile, and for up to --drain of the process that runs, that one serves. Then it closes the
store, the new one opens it, and connections that come in between wait. No request is refused, and no answer is cut off
that is done within --drain. Where the new process cannot serve, the old one goes on. SIGUSR2 does the same.`,
		Example: `  install larder /usr/local/bin/larder && larder upgrade --data /var/lib/larder`,
	}
	a.addFlags(cmd, dataFlags)
	var from app.Process
	return setResponseAction(a, cmd, func(ctx context.Context, _ []string) (to app.Process, err error) {
		from, to, err = app.Upgrade(ctx, a.settings.Data)
		return to, err
	}, func(to app.Process) error {
		_, err := fmt.Fprintf(a.stdout, "Process %d (larder %s) has taken over from process %d (larder %s).\n",
			to.PID, to.Version, from.PID, from.Version)
		return err
	})
}

// newReload returns the command `larder reload`, which has the process that runs on the data folder read its configuration
// again, and prints which settings have changed. It is an error if none runs, or if there is a mistake; then nothing changes.
func newReload(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have the process that runs read its configuration again",
		Long: `Have the process that runs on the data folder read the configuration file, waiting rooms and certificates again, and
poll its catalogue. If there is a mistake, nothing changes, and the message names the line. Settings that only a restart
of the process changes are listed. For most others the process opens its store again, while connections wait; log-level,
lame-duck, drain, private-hosts, certificates, rooms and the catalogue need no restart. SIGHUP does the same.`,
		Example: `  larder reload --data /var/lib/larder`,
	}
	a.addFlags(cmd, dataFlags)
	return setResponseAction(a, cmd, func(ctx context.Context, _ []string) (app.Reloaded, error) {
		return app.Reload(ctx, a.settings.Data)
	}, func(done app.Reloaded) error {
		if len(done.Changed) == 0 {
			fmt.Fprintln(a.stdout, "Reloaded the configuration; no setting has changed. The catalogue is polled now.")
			return nil
		}
		fmt.Fprintf(a.stdout, "Reloaded the configuration. Changed: %s.\n", strings.Join(done.Changed, ", "))
		if len(done.Restart) > 0 {
			fmt.Fprintf(a.stdout, "Only a restart of the process changes these: %s.\n", strings.Join(done.Restart, ", "))
		}
		return nil
	})
}
