package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/verify"
	"github.com/larder-cdn/larder/packages/lint"
)

// pageRules are the rules that findings about a page name.
var pageRules = []lint.Rule{
	{Name: verify.RuleOutcome, About: "No log proves what the page loads"},
	{Name: verify.RuleIntegrityMissing, About: "The page does not say which bytes it expects"},
	{Name: verify.RuleIntegrityWrong, About: "The integrity in the page is not that of the file"},
	{Name: verify.RuleCORSMissing, About: "Browsers block a file of another origin whose tag has an integrity and no crossorigin"},
	{Name: verify.RuleOutdated, About: "There is a newer version"},
	{Name: verify.RuleVulnerable, About: "The version is known to be vulnerable"},
}

// writePageSARIF writes the findings about a page as SARIF, with the state of each log as a notification: its problem as an error or,
// without one, its origin, size and age as a note. version is that of this program.
func writePageSARIF(w io.Writer, r *verify.PageReport, version string) error {
	var findings []lint.SARIFFinding
	for _, ref := range r.References {
		for _, f := range ref.Findings {
			level := lint.SARIFNote
			if f.Error {
				level = lint.SARIFError
			}
			findings = append(findings, lint.SARIFFinding{Rule: f.Rule, Level: level, Message: ref.URL + ": " + f.Message, URI: filepath.ToSlash(r.Page), Line: ref.Line})
		}
	}
	var notifications []lint.SARIFNotification
	for _, l := range r.Logs {
		n := lint.SARIFNotification{Level: lint.SARIFError, Message: "the log of " + l.Server + ": " + l.Problem}
		if l.Problem == "" {
			state := fmt.Sprintf("the log %s has %s, signed and %s", l.Origin, text.Count(int(l.Size), "entry", "entries"), l.DescribeAge())
			n = lint.SARIFNotification{Level: lint.SARIFNote, Message: state}
		}
		notifications = append(notifications, n)
	}
	return lint.WriteSARIFRun(w, "larder verify", version, pageRules, findings, notifications)
}
