package lint

import (
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/text"
)

// WriteSARIF writes the rules and the problems in SARIF 2.1.0. version is that of this program.
func WriteSARIF(w io.Writer, version string, results []*Result) error {
	var findings []SARIFFinding
	for _, r := range results {
		for _, p := range r.Problems {
			findings = append(findings, SARIFFinding{
				Rule: p.Rule, Level: SARIFLevel(p.Severity.String()), Message: p.Message, URI: fileReference(r.File), Line: p.Line, Column: p.Column,
			})
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

// A SARIFLevel says how bad a finding is: it is one of these, or the name of a [packages.Severity].
type SARIFLevel string

// The levels that other tools use.
const (
	SARIFNote  SARIFLevel = "note"
	SARIFError SARIFLevel = "error"
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

// An object is a JSON object of the SARIF format.
type object map[string]any

// WriteSARIFRun writes the findings of one run of a tool in SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), for
// tools that display them beside the lines. It writes the parts of the format that Larder needs: a library for it would bring a
// second schema validator into the program. The tool is named as the command, such as "larder lint". version is that of this
// program.
func WriteSARIFRun(w io.Writer, tool, version string, rules []Rule, findings []SARIFFinding, notifications []SARIFNotification) error {
	message := func(text string) object { return object{"text": text} }
	described, results, notified := []object{}, []object{}, []object{}
	for _, known := range rules {
		described = append(described, object{"id": known.Name, "shortDescription": message(known.About)})
	}
	for _, f := range findings {
		region := object{"startLine": f.Line}
		if f.Column > 0 {
			region["startColumn"] = f.Column
		}
		at := object{"artifactLocation": object{"uri": f.URI}, "region": region}
		results = append(results, object{
			"ruleId":    f.Rule,
			"ruleIndex": slices.IndexFunc(rules, func(known Rule) bool { return known.Name == f.Rule }),
			"level":     f.Level,
			"message":   message(f.Message),
			"locations": []object{{"physicalLocation": at}},
		})
	}
	for _, n := range notifications {
		notified = append(notified, object{"level": n.Level, "message": message(n.Message)})
	}
	driver := object{"name": tool, "informationUri": "https://github.com/larder-cdn/larder", "rules": described}
	if version != "" {
		driver["version"] = version
	}
	run := object{"tool": object{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
	if len(notified) > 0 {
		run["invocations"] = []object{{"executionSuccessful": true, "toolExecutionNotifications": notified}}
	}
	const schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
	return text.WriteJSON(w, struct { // the version should come first
		Version string   `json:"version"`
		Schema  string   `json:"$schema"`
		Runs    []object `json:"runs"`
	}{"2.1.0", schema, []object{run}})
}
