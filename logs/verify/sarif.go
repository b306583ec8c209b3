package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/larder-cdn/larder/internal/text"
)

// The parts of SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/) that a page's findings need.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		Results     []sarifResult     `json:"results"`
	}
	// A sarifInvocation has the state of the logs, which is not about a line of the page.
	sarifInvocation struct {
		ExecutionSuccessful        bool                `json:"executionSuccessful"`
		ToolExecutionNotifications []sarifNotification `json:"toolExecutionNotifications"`
	}
	sarifNotification struct {
		Level   string    `json:"level"`
		Message sarifText `json:"message"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		PhysicalLocation struct {
			ArtifactLocation struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
			Region struct {
				StartLine int `json:"startLine"`
			} `json:"region"`
		} `json:"physicalLocation"`
	}
)

var sarifRules = []sarifRule{
	{RuleOutcome, sarifText{"No log proves what the page loads"}},
	{RuleIntegrityMissing, sarifText{"The page does not say which bytes it expects"}},
	{RuleIntegrityWrong, sarifText{"The integrity in the page is not that of the file"}},
	{RuleCORSMissing, sarifText{"Browsers block a file of another origin whose tag has an integrity and no crossorigin"}},
	{RuleOutdated, sarifText{"There is a newer version"}},
	{RuleVulnerable, sarifText{"The version is known to be vulnerable"}},
}

// WriteSARIF writes the findings as SARIF, for tools that display them beside the page's lines. version is that of this
// program.
func (r *PageReport) WriteSARIF(w io.Writer, version string) error {
	run := sarifRun{Results: []sarifResult{}}
	run.Tool.Driver = sarifDriver{"larder verify", version, sarifRules}
	for _, ref := range r.References {
		for _, f := range ref.Findings {
			found := sarifResult{RuleID: f.Rule, Level: "note", Message: sarifText{ref.URL + ": " + f.Message}}
			if f.Error {
				found.Level = "error"
			}
			var at sarifLocation
			at.PhysicalLocation.ArtifactLocation.URI = filepath.ToSlash(r.Page)
			at.PhysicalLocation.Region.StartLine = ref.Line
			found.Locations = []sarifLocation{at}
			run.Results = append(run.Results, found)
		}
	}
	invocation := sarifInvocation{ExecutionSuccessful: true, ToolExecutionNotifications: []sarifNotification{}}
	for _, l := range r.Logs {
		invocation.ToolExecutionNotifications = append(invocation.ToolExecutionNotifications, l.notification())
	}
	run.Invocations = []sarifInvocation{invocation}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}})
}

// notification returns the log's age, or why nothing is proven by it, as part of a SARIF report.
func (l *SessionLog) notification() sarifNotification {
	if l.Problem != "" {
		return sarifNotification{"error", sarifText{"the log of " + l.Server + ": " + l.Problem}}
	}
	return sarifNotification{"note", sarifText{fmt.Sprintf("the log %s has %s, signed and %s", l.Origin, text.Count(int(l.Size), "entry", "entries"), l.DescribeAge())}}
}
