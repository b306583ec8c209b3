package lint

import (
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// WriteSARIF writes the rules and the problems in SARIF 2.1.0. version is that of this program.
func WriteSARIF(w io.Writer, version string, results []*Result) error {
	var findings []SARIFFinding
	for _, r := range results {
		for _, p := range r.Problems {
			level := SARIFWarning
			if p.Severity == packages.Error {
				level = SARIFError
			}
			findings = append(findings, SARIFFinding{Rule: p.Rule, Level: level, Message: p.Message, URI: fileReference(r.File), Line: p.Line, Column: p.Column})
		}
	}
	return WriteSARIFRun(w, "larder lint", version, Rules(), findings, nil)
}

// fileReference returns the name of a file as a URI reference (RFC 3986): relative, or with the scheme file.
func fileReference(file string) string {
	file = path.Clean(file)
	if !utf8.ValidString(file) {
		file = strings.ToValidUTF8(file, "\uFFFD")
	}
	u := url.URL{Path: file}
	if path.IsAbs(file) {
		u.Scheme = "file"
	}
	return u.String()
}

// A SARIFLevel says how bad a finding is.
type SARIFLevel string

// The levels.
const (
	SARIFNote    SARIFLevel = "note"
	SARIFWarning SARIFLevel = "warning"
	SARIFError   SARIFLevel = "error"
)

// A SARIFFinding is about a line of a file. Line and Column count from 1; a Column of 0 stands for the whole line.
type SARIFFinding struct {
	Rule         string // its name
	Level        SARIFLevel
	Message      string
	URI          string // of the file
	Line, Column int
}

// A SARIFNotification is about the run, and not about a line of a file.
type SARIFNotification struct {
	Level   SARIFLevel
	Message string
}

type (
	sarifDocument struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		ColumnKind  string            `json:"columnKind"`
		Invocations []sarifInvocation `json:"invocations,omitempty"`
		Results     []sarifResult     `json:"results"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string       `json:"id"`
		ShortDescription sarifMessage `json:"shortDescription"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifInvocation struct {
		ExecutionSuccessful        bool                `json:"executionSuccessful"`
		ToolExecutionNotifications []sarifNotification `json:"toolExecutionNotifications"`
	}
	sarifNotification struct {
		Level   SARIFLevel   `json:"level"`
		Message sarifMessage `json:"message"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     SARIFLevel      `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		PhysicalLocation struct {
			ArtifactLocation struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
			Region struct {
				StartLine   int `json:"startLine"`
				StartColumn int `json:"startColumn,omitempty"`
			} `json:"region"`
		} `json:"physicalLocation"`
	}
)

// WriteSARIFRun writes the findings of one run of a tool in SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), for
// tools that display them beside the lines. It writes the parts of the format that Larder needs: a library for it would bring a
// second schema validator into the program. The tool is named as the command, such as "larder lint". version is that of this
// program.
func WriteSARIFRun(w io.Writer, tool, version string, rules []Rule, findings []SARIFFinding, notifications []SARIFNotification) error {
	r := sarifRun{ColumnKind: "unicodeCodePoints", Results: []sarifResult{}}
	r.Tool.Driver = sarifDriver{Name: tool, Version: version, InformationURI: "https://github.com/larder-cdn/larder", Rules: []sarifRule{}}
	for _, known := range rules {
		r.Tool.Driver.Rules = append(r.Tool.Driver.Rules, sarifRule{known.Name, sarifMessage{known.About}})
	}
	for _, f := range findings {
		var at sarifLocation
		at.PhysicalLocation.ArtifactLocation.URI = f.URI
		at.PhysicalLocation.Region.StartLine, at.PhysicalLocation.Region.StartColumn = f.Line, f.Column
		index := slices.IndexFunc(rules, func(known Rule) bool { return known.Name == f.Rule })
		r.Results = append(r.Results, sarifResult{f.Rule, index, f.Level, sarifMessage{f.Message}, []sarifLocation{at}})
	}
	if len(notifications) > 0 {
		made := sarifInvocation{ExecutionSuccessful: true}
		for _, n := range notifications {
			made.ToolExecutionNotifications = append(made.ToolExecutionNotifications, sarifNotification{n.Level, sarifMessage{n.Message}})
		}
		r.Invocations = []sarifInvocation{made}
	}
	return text.WriteJSON(w, sarifDocument{"https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json", "2.1.0", []sarifRun{r}})
}
