package verify

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/larder-cdn/larder/internal/sarif"
	"github.com/larder-cdn/larder/internal/text"
)

var sarifRules = []sarif.Rule{
	{ID: RuleOutcome, Description: "No log proves what the page loads"},
	{ID: RuleIntegrityMissing, Description: "The page does not say which bytes it expects"},
	{ID: RuleIntegrityWrong, Description: "The integrity in the page is not that of the file"},
	{ID: RuleCORSMissing, Description: "Browsers block a file of another origin whose tag has an integrity and no crossorigin"},
	{ID: RuleOutdated, Description: "There is a newer version"},
	{ID: RuleVulnerable, Description: "The version is known to be vulnerable"},
}

// WriteSARIF writes the findings as SARIF, with the state of the logs as notifications. version is that of this program.
func (r *PageReport) WriteSARIF(w io.Writer, version string) error {
	var findings []sarif.Finding
	for _, ref := range r.References {
		for _, f := range ref.Findings {
			level := sarif.Note
			if f.Error {
				level = sarif.Error
			}
			findings = append(findings, sarif.Finding{Rule: f.Rule, Level: level, Message: ref.URL + ": " + f.Message, URI: filepath.ToSlash(r.Page), Line: ref.Line})
		}
	}
	var notifications []sarif.Notification
	for _, l := range r.Logs {
		notifications = append(notifications, l.newNotification())
	}
	return sarif.Write(w, "larder verify", version, sarifRules, findings, notifications)
}

// newNotification returns the log's age, or why nothing is proven by it, as part of a SARIF report.
func (l *SessionLog) newNotification() sarif.Notification {
	if l.Problem != "" {
		return sarif.Notification{Level: sarif.Error, Message: "the log of " + l.Server + ": " + l.Problem}
	}
	return sarif.Notification{Level: sarif.Note, Message: fmt.Sprintf("the log %s has %s, signed and %s", l.Origin, text.Count(int(l.Size), "entry", "entries"), l.DescribeAge())}
}
