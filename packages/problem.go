package packages

import (
	"fmt"
	"strings"
)

// Severity tells whether a [Problem] keeps a file from being used.
type Severity int

const (
	// Error is a broken rule: the file is refused.
	Error Severity = iota
	// Warning is something to improve: the file is used as it is.
	Warning
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// Problem is one thing to change in a package JSON.
type Problem struct {
	// Line and Column say where in the file, both from 1. Column counts
	// characters, not bytes.
	Line, Column int
	// Property is the place in the document, such as
	// "autoupdate.fileMap[0].files[2]"; "" is the document itself.
	Property string
	// Message says what is wrong and how to put it right.
	Message string
	// Severity is Error or Warning.
	Severity Severity
	// Rule names the rule that is broken in a word, such as "unknown-property",
	// the same in every file; for sorting, counting and for other programs.
	Rule string
}

// ProblemAt returns a problem about the value at location in data, a package JSON,
// for rules that are checked elsewhere. A location is property names and indices
// of arrays, from the outside in; where it leads nowhere, the problem is about
// the innermost value on the way there.
func ProblemAt(data []byte, severity Severity, rule, message string, location ...string) Problem {
	c := &check{data: data, root: new(node)}
	if root, err := index(data); err == nil {
		c.root = root
	}
	c.add(severity, rule, c.root.find(location...).at, location, message)
	return c.problems[0]
}

// String returns the problem as "line:column: severity: message".
func (p Problem) String() string {
	return fmt.Sprintf("%d:%d: %s: %s", p.Line, p.Column, p.Severity, p.Message)
}

// Invalid is the error for a package JSON that is refused.
type Invalid struct {
	// File is the file's name as it was given.
	File string
	// Problems are in the file's order. At least one is an Error; warnings
	// found on the way are among them.
	Problems []Problem
}

// Error returns every problem on a line of its own, each beginning with
// "file:line:column".
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = e.File + ":" + p.String()
	}
	return strings.Join(lines, "\n")
}
