// Package document is the language between the pages and the renderer of what strangers wrote: what the renderer is asked for, what
// it answers, and in which form.
//
// The renderer runs in a worker process, because parsers of Markdown, HTML and source can be made to take any amount of memory and
// time. [Decode] accepts its answer only in the form that it is to have, so a renderer that a document has taken over adds no element, script
// or link to a page that an honest one could not.
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

// Version is that of the renderer. A change of what it makes of the same document needs another one.
const Version = 2

// A Kind is what a document is rendered as.
type Kind string

// The kinds.
const (
	Readme     Kind = "readme"     // Markdown as markup
	Source     Kind = "source"     // lines of a program or style sheet, coloured
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

// MaxInput returns the largest input of a kind, in bytes.
func (k Kind) MaxInput() int64 {
	if k == Readme {
		return MaxReadme
	}
	return MaxSource
}

// MaxOutput returns the largest output of a kind, in bytes.
func (k Kind) MaxOutput() int {
	if k == Readme {
		return MaxReadmeMarkup
	}
	return MaxMarkup
}

// LongestLine is how many bytes of a line of source are shown.
const LongestLine = 4000

// A Request is a document to render.
type Request struct {
	Kind Kind
	// Name is the file's name, which tells its language.
	Name string
	// Text is the document, or the one before; After is the other one of a comparison.
	Text, After string
	// First is the first line of source that is wanted, from 0, and Lines is how many are, at most.
	First, Lines int
	// Library and Version are the release that a README is of, Files its paths in byte order, and Repository the address of its repository,
	// "" for none: links lead there.
	Library, Version, Repository string
	Files                        []string
	// Ranges are those of dependencies.
	Ranges []string
}

// A Key names what comes of a document: its inputs and the renderer's version.
type Key [sha256.Size]byte

// NewKey returns the key of what a kind makes of inputs.
func NewKey(k Kind, inputs ...string) Key {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d", k, Version)
	for _, input := range inputs {
		_ = binary.Write(h, binary.BigEndian, int64(len(input))) // a hash takes all
		h.Write([]byte(input))
	}
	return Key(h.Sum(nil))
}

// ReadmeKey returns the key of the README of the release with that manifest.
func ReadmeKey(manifest kvstore.Hash, repository string) Key {
	return NewKey(Readme, manifest.String(), repository)
}

// SourceKey returns the key of the lines of a file from one on, which is counted from 0. Like the keys below it contains the owner, which is
// the release: a release that takes over its worker determines what is cached under its own keys only.
func SourceKey(owner string, content kvstore.Hash, language string, first int) Key {
	return NewKey(Source, owner, content.String(), language, strconv.Itoa(first))
}

// ComparisonKey returns the key of the comparison of two contents. The hash of what is not there is zero.
func ComparisonKey(owner string, before, after kvstore.Hash) Key {
	return NewKey(Comparison, owner, before.String(), after.String())
}

// ImportsKey returns the key of what a module imports.
func ImportsKey(owner string, content kvstore.Hash) Key {
	return NewKey(Imports, owner, content.String())
}

// RangesKey returns the key of what ranges mean.
func RangesKey(owner string, ranges []string) Key {
	return NewKey(Ranges, append([]string{owner}, ranges...)...)
}

// A Result is what comes of a document.
type Result struct {
	Kind Kind
	// Markup is that of a README, of the lines of source with a line feed after each, or of a comparison.
	Markup string
	// Added and Removed count the lines of a comparison, and Cut says that some of it is cut off.
	Added, Removed int
	Cut            bool
	// Imports are those of a module.
	Imports []Import
	// Ranges are those of the request, in its order.
	Ranges []Range
}

// An Import is what a module imports.
type Import struct {
	Specifier string
	Dynamic   bool // by a call of import, which may never happen
}

// A RefusedError says that a document cannot be rendered, also later.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "it cannot be rendered: " + e.Reason }

// Encode writes a result.
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
		return nil, fmt.Errorf("%d bytes came of it, over the limit of %d", len(body), r.Kind.MaxOutput())
	}
	return fmt.Appendf(nil, "%s %d %d %t\n%s", r.Kind, r.Added, r.Removed, r.Cut, body), nil
}

// maxHead bounds the first line of an encoded result.
const maxHead = 100

// Decode reads a result of a kind, and refuses what is not in the form that the renderer writes.
func Decode(kind Kind, data []byte) (Result, error) {
	head, body, ok := strings.Cut(string(data[:min(len(data), kind.MaxOutput()+maxHead)]), "\n")
	r := Result{Kind: kind}
	malformed := func(why string) (Result, error) {
		return Result{}, fmt.Errorf("the renderer's answer about a %s is malformed: %s", kind, why)
	}
	if !ok || len(data) > len(head)+1+kind.MaxOutput() {
		return malformed("it is too long")
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
			specifier, dynamic := strings.CutPrefix(line, "d ")
			if !dynamic {
				if specifier, ok = strings.CutPrefix(line, "s "); !ok {
					return malformed("not a list of imports")
				}
			}
			r.Imports = append(r.Imports, Import{specifier, dynamic})
		}
		return r, nil
	}
	if err := checkMarkup(kind, body); err != nil {
		return malformed(err.Error())
	}
	r.Markup = body
	return r, nil
}
