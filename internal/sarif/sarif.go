// Package sarif writes findings about lines of files in SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), for tools that
// display them beside the lines. It writes the parts of the format that Larder needs: a library for it would bring a second schema
// validator into the program. The package must not know what is checked.
package sarif

import (
	"encoding/json"
	"io"
	"slices"
)

// A Rule is a kind of finding.
type Rule struct{ ID, Description string }

// A Level says how bad a finding is.
type Level string

// The levels.
const (
	Note    Level = "note"
	Warning Level = "warning"
	Error   Level = "error"
)

// A Finding is about a line of a file. Line and Column count from 1; a Column of 0 stands for the whole line.
type Finding struct {
	Rule         string // its ID
	Level        Level
	Message      string
	URI          string // of the file
	Line, Column int
}

// A Notification is about the run, and not about a line of a file.
type Notification struct {
	Level   Level
	Message string
}

type (
	document struct {
		Schema  string `json:"$schema"`
		Version string `json:"version"`
		Runs    []run  `json:"runs"`
	}
	run struct {
		Tool struct {
			Driver driver `json:"driver"`
		} `json:"tool"`
		ColumnKind  string       `json:"columnKind"`
		Invocations []invocation `json:"invocations,omitempty"`
		Results     []result     `json:"results"`
	}
	driver struct {
		Name           string `json:"name"`
		Version        string `json:"version,omitempty"`
		InformationURI string `json:"informationUri"`
		Rules          []rule `json:"rules"`
	}
	rule struct {
		ID               string  `json:"id"`
		ShortDescription message `json:"shortDescription"`
	}
	message struct {
		Text string `json:"text"`
	}
	invocation struct {
		ExecutionSuccessful        bool           `json:"executionSuccessful"`
		ToolExecutionNotifications []notification `json:"toolExecutionNotifications"`
	}
	notification struct {
		Level   Level   `json:"level"`
		Message message `json:"message"`
	}
	result struct {
		RuleID    string     `json:"ruleId"`
		RuleIndex int        `json:"ruleIndex"`
		Level     Level      `json:"level"`
		Message   message    `json:"message"`
		Locations []location `json:"locations"`
	}
	location struct {
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

// Write writes the findings of one run of a tool, such as "larder lint". version is that of this program.
func Write(w io.Writer, tool, version string, rules []Rule, findings []Finding, notifications []Notification) error {
	r := run{ColumnKind: "unicodeCodePoints", Results: []result{}}
	r.Tool.Driver = driver{Name: tool, Version: version, InformationURI: "https://github.com/larder-cdn/larder", Rules: []rule{}}
	for _, known := range rules {
		r.Tool.Driver.Rules = append(r.Tool.Driver.Rules, rule{known.ID, message{known.Description}})
	}
	for _, f := range findings {
		var at location
		at.PhysicalLocation.ArtifactLocation.URI = f.URI
		at.PhysicalLocation.Region.StartLine, at.PhysicalLocation.Region.StartColumn = f.Line, f.Column
		index := slices.IndexFunc(rules, func(known Rule) bool { return known.ID == f.Rule })
		r.Results = append(r.Results, result{f.Rule, index, f.Level, message{f.Message}, []location{at}})
	}
	if len(notifications) > 0 {
		made := invocation{ExecutionSuccessful: true}
		for _, n := range notifications {
			made.ToolExecutionNotifications = append(made.ToolExecutionNotifications, notification{n.Level, message{n.Message}})
		}
		r.Invocations = []invocation{made}
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document{"https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json", "2.1.0", []run{r}})
}
