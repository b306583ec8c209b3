package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
)

// newDoctor returns the command `larder doctor`, which prints what is wrong and the commands that repair it, and repairs
// nothing. It returns an error if something is wrong.
func newDoctor(a *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong, and name the command that repairs it",
		Long: `Check the registry, GitHub, the bucket, disk, memory limit, certificates, keys and their copy, the log and its
witnesses, the catalogue, the last backup and deep fsck, the clock, the owner of the files, and the other nodes of a
cluster. Each thing that is wrong is a line with its cause, and a line with the command that repairs it; replace the
words in capitals. After a # is what to do before or after it, where a command alone does not help.

It asks the larder process that runs on the data folder; where none runs, it looks itself and changes nothing. The exit
code is 1 if something is wrong.`,
		Example: `  larder doctor
  larder doctor --data /var/lib/larder/data --json | jq -r '.[].fix'`,
		SuggestFor: []string{"health", "diagnose", "check"},
	}
	a.addFlags(cmd, dataFlags, signingFlags[:1], []string{"tls-cert", "tls-key"}, clusterFlags[:2], []string{"allow-host"})
	asJSON := addJSONFlag(cmd)
	return withAction(cmd, a.withSettings(func(ctx context.Context, _ []string) error {
		findings, err := app.Doctor(ctx, a.settings, a.quietLogger())
		if err != nil {
			return err
		}
		if findings == nil {
			findings = []app.Finding{} // for JSON
		}
		err = a.printResponse(*asJSON, findings, func() error { return writeFindings(a.stdout, findings, a.settings.Data) })
		if err == nil && len(findings) > 0 {
			err = fmt.Errorf("%s attention", formatCount(len(findings), "thing needs", "things need"))
		}
		return err
	}))
}

// writeFindings writes for each finding a line with its cause and one with the command that repairs it. Without findings it
// writes that nothing is wrong with the folder data.
func writeFindings(w io.Writer, findings []app.Finding, data string) (err error) {
	if len(findings) == 0 {
		_, err = fmt.Fprintf(w, "Nothing is wrong with %s.\n", data)
	}
	for _, f := range findings {
		_, problem := fmt.Fprintf(w, "%s: %s\n    %s\n", f.Check, text.Plain(f.Cause), text.Plain(f.Fix))
		err = errors.Join(err, problem)
	}
	return err
}
