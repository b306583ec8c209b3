package lint

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/larder-cdn/larder/packages"
)

// WriteGitHub writes each problem as a workflow command of GitHub Actions, which shows it beside the line:
//
//	::error file=packages/x/x.json,line=3,col=5,title=unknown-property::message
//
// (https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
func WriteGitHub(w io.Writer, results []*Result) error {
	out := bufio.NewWriter(w)
	for _, r := range results {
		for _, p := range r.Problems {
			command := "warning"
			if p.Severity == packages.Error {
				command = "error"
			}
			fmt.Fprintf(out, "::%s file=%s,line=%d,col=%d,title=%s::%s\n",
				command, escapeProperty(r.File), p.Line, p.Column, escapeProperty(p.Rule), escapeData(p.Message))
		}
	}
	return out.Flush()
}

// The escapes of @actions/core: nothing that a stranger wrote ends the line, or the property.
var (
	dataEscapes     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	propertyEscapes = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func escapeData(s string) string     { return dataEscapes.Replace(s) }
func escapeProperty(s string) string { return propertyEscapes.Replace(s) }
