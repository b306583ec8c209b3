// Package document defines what pages request from the renderer of documents that strangers wrote, and the form of the results.
//
// The renderer runs in a worker process, because hostile documents can make parsers of Markdown, HTML and source take any amount of memory and
// time. [Decode] accepts a result only in the form that the renderer writes, so a document that takes over its renderer cannot add an element,
// script or link to a page that an honest renderer could not.
//
// The package must not know parsers, and its own work is linear in the size of its input.
package document

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
)

// Version is the version of the renderer. It changes whenever the result for the same document changes.
const Version = 2

// A Kind is what a document is rendered as.
type Kind string

// The kinds.
const (
	Readme     Kind = "readme"     // Markdown, as markup
	Source     Kind = "source"     // lines of a script or style sheet, highlighted
	Comparison Kind = "comparison" // the lines in which two texts differ
	Imports    Kind = "imports"    // what a module imports
	Ranges     Kind = "ranges"     // the versions that dependencies may have
)

// The bounds of a document's input and output, in bytes.
const (
	MaxReadme       = 128 << 10
	MaxSource       = 1 << 20 // also of each text of a comparison, and of a module
	MaxReadmeMarkup = 512 << 10
	MaxMarkup       = 2 << 20 // of the other kinds
)

// MaxInput returns the limit of an input of the kind, in bytes.
func (k Kind) MaxInput() int64 {
	if k == Readme {
		return MaxReadme
	}
	return MaxSource
}

// MaxOutput returns the limit of an output of the kind, in bytes.
func (k Kind) MaxOutput() int {
	if k == Readme {
		return MaxReadmeMarkup
	}
	return MaxMarkup
}

// The bounds of what a result has. Decode refuses more: for each line and import, pages do some work.
const (
	MaxLines   = 2000 // of source
	MaxImports = 2000 // of a module
)

// LongestLine limits a line of source, in bytes. Longer lines are cut.
const LongestLine = 4000

// A Request is a document to render.
type Request struct {
	Kind Kind
	// Name is the name of the file. Its extension determines the language.
	Name string
	// Text is the document. In a comparison it is the older text, and After the newer one.
	Text, After string
	// First is the number of the first line of source to render, counted from 0, and Lines limits how many follow, up to MaxLines.
	First, Lines int
	// Library and Version name the release of a README, and Files are its paths in byte order. Repository is the address of its repository, ""
	// for none. Links of the README lead there.
	Library, Version, Repository string
	Files                        []string
	// Ranges are those of dependencies.
	Ranges []string
}

// A Key identifies the result for a document: it is a hash of the inputs and the renderer's version.
type Key [sha256.Size]byte

// NewKey returns the key of the result of rendering inputs as a kind of document.
func NewKey(k Kind, inputs ...string) Key {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d", k, Version)
	for _, input := range inputs {
		_ = binary.Write(h, binary.BigEndian, int64(len(input))) // a hash takes all
		h.Write([]byte(input))
	}
	return Key(h.Sum(nil))
}

// ReadmeKey returns the key of the README of the release with that manifest, whose links lead to that repository.
func ReadmeKey(manifest kvstore.Hash, repository string) Key {
	return NewKey(Readme, manifest.String(), repository)
}

// SourceKey returns the key of the highlighted lines of a file from line first on, counted from 0. Like the keys below it contains the
// owner, which is the release: a release that takes over its worker determines only what is cached under its own keys.
func SourceKey(owner string, content kvstore.Hash, language string, first int) Key {
	return NewKey(Source, owner, content.String(), language, strconv.Itoa(first))
}

// ComparisonKey returns the key of the comparison of two contents. The hash of a missing content is zero.
func ComparisonKey(owner string, before, after kvstore.Hash) Key {
	return NewKey(Comparison, owner, before.String(), after.String())
}

// ImportsKey returns the key of the imports of a module.
func ImportsKey(owner string, content kvstore.Hash) Key {
	return NewKey(Imports, owner, content.String())
}

// RangesKey returns the key of the meaning of version ranges.
func RangesKey(owner string, ranges []string) Key {
	return NewKey(Ranges, append([]string{owner}, ranges...)...)
}

// A Result is a rendered document.
type Result struct {
	Kind Kind
	// Markup is the markup of a README, of lines of source with a line feed after each, or of a comparison.
	Markup string
	// Added and Removed count the lines of a comparison. Cut says that Markup is not complete.
	Added, Removed int
	Cut            bool
	// Imports are the imports of a module.
	Imports []Import
	// Ranges are the parsed ranges, in the order of the request.
	Ranges []Range
}

// An Import is one import of a module.
type Import struct {
	Specifier string
	Dynamic   bool // by a call of import, which may never happen
}

// A RefusedError is the error of a document that can never be rendered.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "the document cannot be rendered: " + e.Reason }

// Encode returns the encoded result, or an error if it is too long. It leaves out imports whose specifier has a line feed.
func (r Result) Encode() ([]byte, error) {
	body := r.Markup
	switch r.Kind {
	case Ranges:
		body = encodeRanges(r.Ranges)
	case Imports:
		var b strings.Builder
		for _, i := range r.Imports {
			if strings.ContainsAny(i.Specifier, "\n") {
				continue
			}
			b.WriteString(map[bool]string{false: "s ", true: "d "}[i.Dynamic] + i.Specifier + "\n")
		}
		body = b.String()
	}
	if len(body) > r.Kind.MaxOutput() {
		return nil, fmt.Errorf("the result has %d bytes, over the limit of %d", len(body), r.Kind.MaxOutput())
	}
	return fmt.Appendf(nil, "%s %d %d %t\n%s", r.Kind, r.Added, r.Removed, r.Cut, body), nil
}

// maxHead bounds the first line of an encoded result.
const maxHead = 100

// Decode decodes the result of rendering a kind of document, and refuses what the renderer does not write.
func Decode(kind Kind, data []byte) (Result, error) {
	head, body, ok := strings.Cut(string(data[:min(len(data), kind.MaxOutput()+maxHead)]), "\n")
	r := Result{Kind: kind}
	malformed := func(why string) (Result, error) {
		return Result{}, fmt.Errorf("malformed result of rendering a %s: %s", kind, why)
	}
	if !ok || len(data) > len(head)+1+kind.MaxOutput() {
		return malformed("too long")
	}
	fields := strings.Split(head, " ")
	if len(fields) != 4 || fields[0] != string(kind) {
		return malformed("not a result of this kind")
	}
	added, err1 := strconv.ParseUint(fields[1], 10, 31)
	removed, err2 := strconv.ParseUint(fields[2], 10, 31)
	cut, err3 := strconv.ParseBool(fields[3])
	if err := errors.Join(err1, err2, err3); err != nil {
		return malformed("not a result of this kind")
	}
	r.Added, r.Removed, r.Cut = int(added), int(removed), cut
	if kind == Ranges {
		var err error
		if r.Ranges, err = decodeRanges(body); err != nil {
			return malformed(err.Error())
		}
		return r, nil
	}
	if kind == Imports {
		for line := range strings.Lines(body) {
			line = strings.TrimSuffix(line, "\n")
			form, specifier, ok := strings.Cut(line, " ")
			if !ok || form != "s" && form != "d" {
				return malformed("not a list of imports")
			}
			if len(r.Imports) == MaxImports {
				return malformed(fmt.Sprintf("over %d imports", MaxImports))
			}
			r.Imports = append(r.Imports, Import{specifier, form == "d"})
		}
		return r, nil
	}
	if kind == Source && strings.Count(body, "\n") > MaxLines {
		return malformed(fmt.Sprintf("over %d lines", MaxLines))
	}
	if err := checkMarkup(kind, body); err != nil {
		return malformed(err.Error())
	}
	r.Markup = body
	return r, nil
}
