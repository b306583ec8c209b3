package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/larder-cdn/larder/bot/audit"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/verify"
)

// newAudit returns the command `larder audit`, which compares the releases in another Larder's log with their upstream, and
// publishes signed statements of the outcome in the folder public in that of --dir, which also has the auditor's secret key.
func newAudit(a *cli) *cobra.Command {
	var o audit.FollowOptions
	var every time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit URL",
		Short: "Compare what another Larder publishes with npm, and sign what was found",
		Long: `Follow the log of the Larder at URL, compare each release in it with npm or its git repository, file by file, and
publish a signed statement of what was found. An operator can put anything into a log; a client that trusts an
auditor learns of it: larder verify --auditor STATEMENT#KEY.

--dir is the auditor's own folder, one for each log: its key audit.key, which must stay secret, its state, and the
folder public, for any web server: statement.txt is the newest statement, SIZE.txt the one for each checkpoint, and
audit.pub the verifier key. A release that cannot be compared is named in the statement, and compared again the next
time, unless it has no upstream.

Without --every, audit once; the exit code is 0, 6 if a release differs, or that of larder verify if the log cannot be
proven.`,
		Example: `  larder audit https://cdn.example.com --dir ./audit --name auditor.example.org/larder --key log.pub --every 24h
  larder verify --auditor ./audit/public/statement.txt#./audit/public/audit.pub https://cdn.example.com/ajax/libs/jquery/3.7.1/jquery.min.js`,
		Args: checkArgumentCount(1, 1),
	}
	a.addFlags(cmd, []string{"config", "allow-host", "sigstore-root", "github-url"})
	f := cmd.Flags()
	f.StringVar(&o.Folder, "dir", "", "the auditor's own `FOLDER`")
	f.StringVar(&o.Name, "name", "", "the `NAME` of a new auditor's key: a host that is yours, and what you like behind it")
	addKeyFlags(f, &o.Verify.Trust)
	f.Var(settings.DurationValue(&every, time.Second), "every", "how long to wait between two audits")
	f.DurationVar(&o.OpenTimeout, "timeout", time.Minute, "how long the server may take to show its log")
	f.BoolVar(&asJSON, "json", false, "print JSON, a result on each line")
	return withAction(cmd, a.withSettings(func(ctx context.Context, args []string) error {
		if o.Folder == "" {
			return settings.Mistakef("--dir is missing: name a folder for the auditor's key, state and statements, such as --dir ./audit")
		}
		if o.OpenTimeout <= 0 {
			return settings.Mistakef("--timeout must be over 0, such as 1m")
		}
		if err := settings.BaseURLValue(&o.Server).Set(args[0]); err != nil {
			return settings.Mistakef("%q: %w", args[0], err)
		}
		if err := readTrustedKeys(&o.Verify.Trust); err != nil {
			return err
		}
		return a.runAudit(ctx, o, every, asJSON)
	}))
}

// runAudit audits the log that o names once or, if every is over 0, at that interval until ctx ends, and returns nil then. It
// prints a result for each audit, as a line of JSON if asJSON is set, else after the auditor's key and each release with a
// problem. After a single audit that found a difference or could not prove the log, it returns a [verdict] with the exit code.
func (a *cli) runAudit(ctx context.Context, o audit.FollowOptions, every time.Duration, asJSON bool) error {
	upstream, end, err := app.OpenAuditor(a.settings, a.quietLogger())
	if err != nil {
		return err
	}
	defer end()
	o.Upstream, o.Verify.UserAgent = upstream, app.UserAgent()
	if !asJSON {
		o.Report = func(finding verify.AuditFinding, outcome verify.Outcome) {
			if finding.Problem != "" {
				fmt.Fprintf(a.stdout, "%s: entry %d, %s: %s\n", outcome, finding.Entry, text.Plain(finding.Package+" "+finding.Version), text.Plain(finding.Problem))
			}
		}
	}
	follower, err := audit.OpenFollower(o)
	if err != nil {
		return err
	}
	if !asJSON {
		fmt.Fprintf(a.stdout, "The auditor's key is %s\nServe the folder %s, and give clients --auditor URL-OF-%s#KEY\n",
			follower.Key(), filepath.Join(o.Folder, audit.AuditPublicFolder), audit.AuditStatement)
	}
	lines := newLineEncoder(a.stdout)
	report := func(r audit.AuditResult) {
		if asJSON {
			_ = lines.Encode(r)
		} else {
			writeAuditResult(a.stdout, r)
		}
	}
	if every > 0 {
		return follower.Run(ctx, every, report)
	}
	found, err := follower.Poll(ctx)
	if err != nil {
		return err
	}
	report(found)
	switch {
	case found.Outcome != verify.Proven:
		return verdict{fmt.Errorf("the log was not audited to its end: %s", found.Problem), exitOf[found.Outcome]}
	case len(found.Differences) > 0:
		return verdict{fmt.Errorf("%s not what upstream has", formatCount(len(found.Differences), "release is", "releases are")), exitOf[verify.Differs]}
	}
	return nil
}
