package packages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Severity says whether a [Problem] keeps a file from being used.
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

// MarshalText implements [encoding.TextMarshaler]: it returns what String returns.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Problem is one thing to change in a package JSON.
type Problem struct {
	// Line and Column say where in the file, both from 1. Column counts
	// characters, not bytes.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Property is the place in the document, such as
	// "autoupdate.fileMap[0].files[2]"; "" is the document itself.
	Property string `json:"property,omitempty"`
	// Severity is Error or Warning.
	Severity Severity `json:"severity"`
	// Rule names the rule that is broken in a word, such as "unknown-property",
	// the same in every file; for sorting, counting and for other programs.
	Rule string `json:"rule"`
	// Message says what is wrong and how to put it right.
	Message string `json:"message"`
}

// ProblemAt returns a problem about the value at location in data, a package JSON,
// for rules that are checked elsewhere. A location is property names and indices
// of arrays, from the outside in; where it leads nowhere, the problem is about
// the innermost value on the way there.
func ProblemAt(data []byte, severity Severity, rule, message string, location ...string) Problem {
	c := &check{data: data, root: new(node)}
	if root, err := indexJSON(data); err == nil {
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

// maxDepth bounds how deeply a document may be nested. A package JSON needs six.
const maxDepth = 32

var errTooDeep = errors.New("too deep")

// node is a value of a JSON document with its place in the file. The tree is as
// large as the document, whatever the document is.
type node struct {
	key        string // the property's name, "" for entries of arrays
	keyAt      int    // offset of the property's name; of the value in arrays
	keyEnd     int    // offset after the property's name, 0 in arrays
	at, end    int    // offsets of the value
	children   []*node
	properties map[string]*node // nil for anything but objects
	twice      []*node          // properties whose name an earlier one has
}

// indexJSON parses JSON into a tree of the positions of its values. It reads the first value in data and nothing after it. The
// error is errTooDeep or that of the decoder.
func indexJSON(data []byte) (*node, error) {
	ix := indexer{data: data, decoder: json.NewDecoder(bytes.NewReader(data))}
	root := new(node)
	if err := ix.readValue(root, 0); err != nil {
		return nil, err
	}
	root.keyAt = root.at
	return root, nil
}

type indexer struct {
	data    []byte
	decoder *json.Decoder
}

// nextTokenOffset returns at which byte the next token starts, without reading it.
func (ix *indexer) nextTokenOffset() int {
	at := int(ix.decoder.InputOffset())
	for at < len(ix.data) && strings.IndexByte(" \t\r\n,:", ix.data[at]) >= 0 {
		at++
	}
	return at
}

// readValue reads a value, with all in it, into n.
func (ix *indexer) readValue(n *node, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	n.at = ix.nextTokenOffset()
	token, err := ix.decoder.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		n.properties = make(map[string]*node)
		for ix.decoder.More() {
			if err := ix.readProperty(n, depth); err != nil {
				return err
			}
		}
	case json.Delim('['):
		for ix.decoder.More() {
			child := &node{keyAt: ix.nextTokenOffset()}
			n.children = append(n.children, child)
			if err := ix.readValue(child, depth+1); err != nil {
				return err
			}
		}
	default:
		n.end = int(ix.decoder.InputOffset())
		return nil
	}
	_, err = ix.decoder.Token() // the closing bracket
	n.end = int(ix.decoder.InputOffset())
	return err
}

// readProperty reads a property, its name and its value, and adds it to the object n; also to n.twice if n has one of that
// name.
func (ix *indexer) readProperty(n *node, depth int) error {
	child := &node{keyAt: ix.nextTokenOffset()}
	key, err := ix.decoder.Token()
	if err != nil {
		return err
	}
	child.key, child.keyEnd = fmt.Sprint(key), int(ix.decoder.InputOffset())
	if n.properties[child.key] != nil {
		n.twice = append(n.twice, child)
	} else {
		n.properties[child.key] = child
	}
	n.children = append(n.children, child)
	return ix.readValue(child, depth+1)
}

// find returns the value at location, or the innermost one on the way there.
func (n *node) find(location ...string) *node {
	for _, step := range location {
		child := n.properties[step]
		if i, err := strconv.Atoi(step); err == nil && n.properties == nil && 0 <= i && i < len(n.children) {
			child = n.children[i]
		}
		if child == nil {
			return n
		}
		n = child
	}
	return n
}

// findDuplicates calls yield for every property in the tree whose name an earlier property of the same object has, with its
// location.
func (n *node) findDuplicates(yield func(location []string, duplicate *node)) {
	var walk func(n *node, location []string)
	walk = func(n *node, location []string) {
		for _, duplicate := range n.twice {
			yield(append(slices.Clone(location), duplicate.key), duplicate)
		}
		for i, child := range n.children {
			step := child.key
			if n.properties == nil {
				step = strconv.Itoa(i)
			}
			walk(child, append(location, step))
		}
	}
	walk(n, nil)
}

// LineColumn returns the line and column, both from 1, of the byte at offset, or
// of the end of data if offset is beyond it. Columns count characters.
func LineColumn(data []byte, offset int) (line, column int) {
	before := data[:min(offset, len(data))]
	line = bytes.Count(before, []byte("\n")) + 1
	return line, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
}

// formatLocation returns a location in a package JSON in words: autoupdate.fileMap[0].files; "" for the document. The schema says
// which steps are indices; where the schema has no list, an index is written like a name (foo.0). It cuts
// names to 80 bytes.
func formatLocation(location []string) string {
	var b strings.Builder
	s := schemaAt(nil)
	for _, step := range location {
		switch {
		case s != nil && s.Items2020 != nil:
			b.WriteString("[" + step + "]")
			s = s.Items2020
			continue
		case b.Len() > 0:
			b.WriteByte('.')
		}
		b.WriteString(shorten(step))
		if s != nil {
			s = s.Properties[step]
		}
	}
	return b.String()
}
