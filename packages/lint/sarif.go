package lint

import (
	"encoding/json"
	"io"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/packages"
)

// The parts of SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/) that a list of problems
// needs. A library for it would bring a second schema validator into the program; a test holds this to
// the standard's own schema.
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
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
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
		RuleIndex int             `json:"ruleIndex"`
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
				StartLine   int `json:"startLine"`
				StartColumn int `json:"startColumn"`
			} `json:"region"`
		} `json:"physicalLocation"`
	}
)

// WriteSARIF writes a SARIF 2.1.0 log of one run. version is this program's.
func WriteSARIF(w io.Writer, version string, results []*Result) error {
	var run sarifRun
	run.Tool.Driver = sarifDriver{Name: "larder lint", Version: version, InformationURI: "https://github.com/larder-cdn/larder"}
	run.ColumnKind = "unicodeCodePoints"
	run.Results = []sarifResult{}
	index := make(map[string]int)
	for i, rule := range Rules() {
		index[rule.Name] = i
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{ID: rule.Name, ShortDescription: sarifText{rule.About}})
	}
	for _, r := range results {
		for _, p := range r.Problems {
			result := sarifResult{RuleID: p.Rule, RuleIndex: -1, Level: "warning", Message: sarifText{p.Message}, Locations: make([]sarifLocation, 1)}
			if i, ok := index[p.Rule]; ok {
				result.RuleIndex = i
			}
			if p.Severity == packages.Error {
				result.Level = "error"
			}
			at := &result.Locations[0].PhysicalLocation
			at.ArtifactLocation.URI = reference(r.File)
			at.Region.StartLine, at.Region.StartColumn = p.Line, p.Column
			run.Results = append(run.Results, result)
		}
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(sarifLog{
		Schema:  "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		Version: "2.1.0", Runs: []sarifRun{run},
	})
}

// reference writes a file's name as a URI reference (RFC 3986): relative, or of the scheme file.
func reference(file string) string {
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
