package main

import (
	"context"
	"fmt"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/logs/verify"
)

// exitAdvice is the exit code if everything is proven but the page has another problem.
const exitAdvice = 8

// verifyPage verifies what the web page at the URL or path at loads, and prints the report. If something is not proven or wrong,
// it returns a [verdict] with the exit code.
func (a *cli) verifyPage(ctx context.Context, v verification, at string) error {
	session, done, err := a.newSession(v)
	if err != nil {
		return err
	}
	defer done()
	imports, end := app.OpenImports()
	defer end()
	o := verify.PageOptions{Server: v.server, Imports: imports, Own: v.own}
	if v.osv != "" {
		if o.Advisories, err = verify.ReadAdvisories(ctx, session.Options, v.osv); err != nil {
			return fmt.Errorf("--osv: %w", err)
		}
	}
	report, err := session.VerifyPage(ctx, at, o)
	if err != nil {
		return err
	}
	switch {
	case v.sarif:
		err = report.WriteSARIF(a.stdout, app.Version())
	case v.asJSON:
		err = printJSON(a.stdout, report)
	default:
		writePageReport(a.stdout, report)
	}
	if err != nil {
		return err
	}
	code := exitOf[report.Outcome]
	if code == exitDone && report.Errors > 0 {
		code = exitAdvice
	}
	if code != exitDone {
		return verdict{fmt.Errorf("%s with the page", formatCount(report.Errors, "thing is wrong", "things are wrong")), code}
	}
	return nil
}
