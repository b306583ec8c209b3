package packages

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/larder-cdn/larder/packages/glob"
)

const (
	// MaxFileSize is the size in bytes over which a package JSON is refused. The
	// largest one of the public catalogue has a few thousand.
	MaxFileSize = 1 << 20
	// maxProblems bounds what is reported of one file.
	maxProblems = 50
	// maxGlobs bounds the globs of one package, and so what selecting its files
	// costs. The public catalogue has at most 15.
	maxGlobs = 100
)

// Parse reads a package JSON. The base name of file, a slash-separated path that
// also appears in messages, has to be the package's name and ".json"; an empty
// file is for data without one and skips that check.
//
// The error is an [*Invalid] with everything that is wrong. What is merely not
// good is in the package's Warnings. The package keeps data.
func Parse(file string, data []byte) (*Package, error) {
	c := &check{file: file, data: data}
	p := c.parse()
	c.sort()
	if c.failed {
		return nil, &Invalid{File: file, Problems: c.problems}
	}
	p.File, p.JSON, p.Warnings = file, data, c.problems
	return p, nil
}

// CheckNew returns what is wrong with the package only if it is new in a catalogue: an error if it has no autoupdate, which
// says where its releases come from. It returns nil if nothing is wrong.
func (p *Package) CheckNew() []Problem {
	if p.Autoupdate != nil {
		return nil
	}
	c := &check{file: p.File, data: p.JSON}
	at := max(0, bytes.IndexByte(p.JSON, '{'))
	c.add(Error, "autoupdate", at, []string{"autoupdate"}, describeMissing("autoupdate", schemaAt([]string{"autoupdate"})))
	return c.problems
}

// check collects the problems of one file.
type check struct {
	file     string
	data     []byte
	root     *node
	problems []Problem
	failed   bool
	more     int // problems over maxProblems
}

// add records a problem of the value at a location, which starts at the byte offset of the file. An Error marks the file as
// failed. Beyond the limit of problems it only counts them.
func (c *check) add(severity Severity, rule string, offset int, location []string, message string) {
	if severity == Error {
		c.failed = true
	}
	if c.countIfFull() {
		return
	}
	line, column := LineColumn(c.data, offset)
	c.problems = append(c.problems, Problem{
		Line: line, Column: column, Property: formatLocation(location), Message: message, Severity: severity, Rule: rule,
	})
}

// refuse records an error of the value at a location.
func (c *check) refuse(rule, message string, location ...string) {
	c.add(Error, rule, c.root.find(location...).at, location, message)
}

// countIfFull reports whether the file has too many problems to record another one, and counts the one that is not recorded.
func (c *check) countIfFull() bool {
	if len(c.problems) < maxProblems {
		return false
	}
	c.more++
	return true
}

// sort sorts the problems by their place in the file, and appends one that says how many more there are beyond the limit.
func (c *check) sort() {
	slices.SortStableFunc(c.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if c.more > 0 {
		more := Problem{Severity: Warning, Rule: "limit",
			Message: fmt.Sprintf("%d more problems are not shown; correct the ones above first", c.more)}
		more.Line, more.Column = LineColumn(c.data, len(c.data))
		if c.failed {
			more.Severity = Error
		}
		c.problems = append(c.problems, more)
	}
}

// parse checks the file in all ways, and adds the problems to c. It returns nil if the file is not JSON in UTF-8, is too large
// or too deep, or does not follow the schema. It returns a package with other errors, too: c.failed says that it has some.
func (c *check) parse() *Package {
	if !c.checkEncoding() {
		return nil
	}
	var document any
	if err := json.Unmarshal(c.data, &document); err != nil {
		offset, message := explainSyntax(c.data, err)
		c.add(Error, "syntax", offset, nil, message)
		return nil
	}
	root, err := indexJSON(c.data)
	if err != nil {
		message := "the document could not be read: " + err.Error()
		if errors.Is(err, errTooDeep) {
			message = fmt.Sprintf("the document is nested more than %d levels deep; a package needs six", maxDepth)
		}
		c.add(Error, "limit", 0, nil, message)
		return nil
	}
	c.root = root
	root.findDuplicates(func(location []string, duplicate *node) {
		c.add(Error, "repeated", duplicate.keyAt, location,
			quote(duplicate.key)+" appears twice in the same object; remove one of them")
	})
	if err := compiledSchema().Validate(document); err != nil {
		var invalid *jsonschema.ValidationError
		if !errors.As(err, &invalid) {
			c.add(Error, "schema", root.at, nil, "the document could not be checked: "+err.Error())
		} else {
			c.addSchemaErrors(invalid)
		}
		return nil
	}
	p := &Package{Optimization: Optimization{JS: true, CSS: true, PNG: true, JPG: true}}
	if err := json.Unmarshal(c.data, p); err != nil {
		c.add(Error, "schema", root.at, nil, "the document could not be read: "+err.Error())
		return nil
	}
	c.checkName(p)
	c.checkFilename(p)
	c.compileAutoupdate(p)
	c.checkProvenance(p)
	return p
}

// checkEncoding reports whether the file is UTF-8 of an acceptable size, not empty, and without a byte order mark and NUL. If
// not, it records an error; it sets c.data to nil if the file is too large.
func (c *check) checkEncoding() bool {
	message, at := "", 0
	switch {
	case len(c.data) > MaxFileSize:
		message = fmt.Sprintf("the file has %d bytes, over the limit of %d; a package JSON needs a few thousand", len(c.data), MaxFileSize)
		c.data = nil // so that no line ends are looked for in it
	case len(bytes.TrimSpace(c.data)) == 0:
		message = "the file is empty; write a package JSON"
	case bytes.HasPrefix(c.data, []byte("\xef\xbb\xbf")):
		message = "the file begins with a byte order mark; save it as UTF-8 without one"
	case bytes.HasPrefix(c.data, []byte("\xfe\xff")), bytes.HasPrefix(c.data, []byte("\xff\xfe")), bytes.IndexByte(c.data, 0) >= 0:
		message = "the file is not UTF-8 text, perhaps UTF-16; save it as UTF-8"
	case !utf8.Valid(c.data):
		for at < len(c.data) {
			r, size := utf8.DecodeRune(c.data[at:])
			if r == utf8.RuneError && size <= 1 {
				break
			}
			at += size
		}
		message = fmt.Sprintf("byte 0x%02x is not UTF-8; save the file as UTF-8", c.data[at])
	default:
		return true
	}
	c.add(Error, "encoding", at, nil, message)
	return false
}

// checkName records an error if the package does not have the name of its file. It does nothing if the file's name is not
// known.
func (c *check) checkName(p *Package) {
	if c.file == "" {
		return
	}
	if base := path.Base(c.file); base != p.Name+".json" {
		c.refuse("name", fmt.Sprintf("\"name\" is %s but the file is called %s; call the file %s or correct the name",
			quote(p.Name), quote(base), quote(p.Name+".json")), "name")
	}
}

// checkFilename records a warning if the package names no default file, and an error if its path cannot be that of a
// published file.
func (c *check) checkFilename(p *Package) {
	location := []string{"filename"}
	if p.Filename == "" {
		c.add(Warning, "filename", c.root.at, location, describeMissing("filename", schemaAt(location)))
		return
	}
	if !isValidFilePath(p.Filename) {
		c.refuse("filename", fmt.Sprintf("\"filename\" is %s, which is not the path of a published file; write it relative to the package, without \"..\", for example \"js/app.min.js\"",
			quote(p.Filename)), location...)
	}
}

// isValidFilePath reports whether name is a relative path with slashes, without "..", backslashes and control characters.
func isValidFilePath(name string) bool {
	return name != "." && fs.ValidPath(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '\\' || unicode.IsControl(r)
	})
}

// compileAutoupdate compiles the globs of autoupdate into the package, for [Package.Select] and [Package.IgnoresVersion], and
// records problems of globs, folders and modules. It compiles nothing if there are too many globs.
func (c *check) compileAutoupdate(p *Package) {
	if p.Autoupdate == nil {
		return
	}
	globs := len(p.Autoupdate.IgnoreVersions)
	for _, set := range p.Autoupdate.FileMap {
		globs += len(set.Files)
	}
	if globs > maxGlobs {
		c.refuse("limit", fmt.Sprintf(
			"\"autoupdate\" has %d globs, over the limit of %d; say more with each, for example \"**/*.@(js|css)\"", globs, maxGlobs), "autoupdate")
		return
	}
	c.checkModules(p.Autoupdate)
	for i, set := range p.Autoupdate.FileMap {
		entry := []string{"autoupdate", "fileMap", strconv.Itoa(i)}
		base, ok := newBase(set.BasePath)
		if !ok {
			c.refuse("base-path", fmt.Sprintf("\"basePath\" is %s, which leaves the release; name a folder inside it, without \"..\"",
				quote(set.BasePath)), append(slices.Clone(entry), "basePath")...)
		}
		s := selector{base: base}
		for j, pattern := range set.Files {
			location := append(slices.Clone(entry), "files", strconv.Itoa(j))
			if g := c.compileGlob(pattern, location); g != nil {
				s.globs = append(s.globs, g)
			}
			if strings.HasPrefix(pattern, "/") {
				c.add(Warning, "glob", c.root.find(location...).at, location, fmt.Sprintf(
					"the glob %s begins with a slash and selects nothing; globs are relative to \"basePath\", so write %s",
					quote(pattern), quote(strings.TrimLeft(pattern, "/"))))
			}
		}
		p.selectors = append(p.selectors, s)
	}
	for i, pattern := range p.Autoupdate.IgnoreVersions {
		if g := c.compileGlob(pattern, []string{"autoupdate", "ignoreVersions", strconv.Itoa(i)}); g != nil {
			p.ignored = append(p.ignored, g)
		}
	}
}

// checkModules removes a.Modules if the package JSON turns modules off. It records an error for modules of releases that are
// not from npm, whose package.json need not be that of what was built.
func (c *check) checkModules(a *Autoupdate) {
	if a.Modules == nil {
		return
	}
	if a.Modules.off {
		a.Modules = nil
		return
	}
	if a.Source != "npm" {
		c.refuse("modules", "\"modules\" are built from what is on npm; set the source of \"autoupdate\" to \"npm\", or remove \"modules\"", "autoupdate", "modules")
	}
}

// checkProvenance records an error for a provenance policy of a package whose releases are not from npm, because these have
// no attestation.
func (c *check) checkProvenance(p *Package) {
	if p.Provenance != nil && p.Autoupdate != nil && p.Autoupdate.Source != "npm" {
		c.refuse("provenance", "\"provenance\" requires an attestation of each release, and only releases from npm have one; set the source of \"autoupdate\" to \"npm\", or remove \"provenance\"", "provenance")
	}
}

// compileGlob compiles a pattern; nil, with a problem at the location, if it is invalid.
func (c *check) compileGlob(pattern string, location []string) *glob.Glob {
	g, err := glob.Compile(pattern)
	if err != nil {
		c.refuse("glob", "this glob cannot be used: "+strings.TrimPrefix(err.Error(), "glob: "), location...)
		return nil
	}
	return g
}

//go:embed schema.json
var schemaJSON []byte

// Schema returns the JSON Schema (draft 2020-12) of a package JSON, for editors
// and for people. Its examples appear in the messages of problems.
func Schema() []byte { return bytes.Clone(schemaJSON) }

// compiledSchema returns the schema ready for use; it is part of the program, so
// one that does not compile is a programming error.
var compiledSchema = sync.OnceValue(func() *jsonschema.Schema {
	const address = "urn:larder:package"
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemaJSON))
	if err != nil {
		panic("packages: schema.json: " + err.Error())
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(address, document); err != nil {
		panic("packages: schema.json: " + err.Error())
	}
	return compiler.MustCompile(address)
})

// schemaAt returns the part of the schema for the value at a location, nil if the schema does not describe it.
func schemaAt(location []string) *jsonschema.Schema {
	s := compiledSchema()
	for _, step := range location {
		if s.Items2020 != nil {
			s = s.Items2020
		} else {
			s = s.Properties[step]
		}
		if s == nil {
			return nil
		}
	}
	return s
}

// parentPropertyOf returns the property in which a property with that name belongs, such as "autoupdate" for "target"; "" if none, or
// more than one, can have it.
func parentPropertyOf(name string) string {
	var homes []string
	for property, s := range compiledSchema().Properties {
		if s.Items2020 != nil {
			s = s.Items2020
		}
		if _, ok := s.Properties[name]; ok {
			homes = append(homes, property)
		}
	}
	if len(homes) != 1 {
		return ""
	}
	return homes[0]
}
