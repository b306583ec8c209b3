package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/verify"
)

// exitAdvice is the exit code where all is proven, and something about the page is wrong all the same.
const exitAdvice = 8

// verifyPage verifies what a page loads.
func (a *cli) verifyPage(ctx context.Context, v verification, at string) error {
	session, done, err := a.session(v)
	if err != nil {
		return err
	}
	defer done()
	imports, end, err := app.OpenImports()
	if err != nil {
		return err
	}
	defer end()
	o := verify.PageOptions{Server: v.server, Imports: imports}
	if v.osv != "" {
		if o.Advisories, err = verify.ReadAdvisories(ctx, session.Options, v.osv); err != nil {
			return fmt.Errorf("--osv: %w", err)
		}
	}
	report, err := session.Page(ctx, at, o)
	if err != nil {
		return err
	}
	switch {
	case v.sarif:
		err = report.WriteSARIF(a.stdout, app.Version())
	case v.asJSON:
		err = printJSON(a.stdout, report)
	default:
		printPage(a.stdout, report)
	}
	if err != nil {
		return err
	}
	code := exitOf[report.Outcome]
	if code == exitDone && report.Errors > 0 {
		code = exitAdvice
	}
	if code != exitDone {
		return verdict{failure{fmt.Errorf("%s with the page", count(report.Errors, "thing is wrong", "things are wrong"))}, code}
	}
	return nil
}

// printPage describes what was found of a page.
func printPage(w io.Writer, r *verify.PageReport) {
	for _, ref := range r.References {
		fmt.Fprintf(w, "%s: line %d: %s %s", ref.Outcome, ref.Line, ref.Kind, text.Plain(ref.URL))
		if ref.Outcome == verify.Proven {
			fmt.Fprintf(w, ", by the log %s", text.Plain(ref.Log))
		}
		fmt.Fprintln(w)
		for _, f := range ref.Findings {
			level := "note"
			if f.Error {
				level = "wrong"
			}
			fmt.Fprintf(w, "  %s: %s\n", level, text.Plain(f.Message))
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", text.Plain(note))
	}
	fmt.Fprintln(w, "The page could be served with these headers, after a look at them:")
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		fmt.Fprintf(w, "  %s: %s\n", name, text.Plain(r.Headers[name]))
	}
}
