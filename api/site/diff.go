package site

import (
	"errors"
	"net/url"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/text"
)

// A fileDiff is what changed in one file.
type fileDiff struct {
	Path           string
	Kind           changeKind
	From, To       string     // addresses of its pages, "" where it is not there
	Lines          []diffLine // of the unified diff
	Added, Removed int
	Same           bool
	Refused        string // why it is not shown, "" where it is
	Cut            bool   // some of it is cut off
}

const (
	mostCompared   = 1 << 20 // bytes of each of two files that are compared
	diffLinesShown = 5000
)

func fileComparePath(l, from, to, file string) string {
	return withQuery("/compare/"+url.PathEscape(l), encode("from", from, "to", to, "file", file))
}

// diff compares a file in two releases.
func (s *Site) diff(from, to *library.Release, file string) (*fileDiff, error) {
	d := &fileDiff{Path: file, Kind: changed}
	before, inFrom := from.Find(file)
	after, inTo := to.Find(file)
	var texts [2]string
	switch {
	case !inFrom && !inTo:
		return nil, &noFileError{to, file}
	case !inFrom:
		d.Kind = added
	case !inTo:
		d.Kind = removed
	case before.Hash == after.Hash:
		d.Same = true
	}
	if inFrom {
		d.From = filesPath(from.Library, from.Version, file)
	}
	if inTo {
		d.To = filesPath(to.Library, to.Version, file)
	}
	if d.Same {
		return d, nil
	}
	for i, there := range []bool{inFrom, inTo} {
		f := before
		if i == 1 {
			f = after
		}
		if !there {
			continue
		}
		if f.Size > mostCompared {
			d.Refused = "It is over " + formatBytes(mostCompared) + ", too large to be compared on a page."
			return d, nil
		}
		source, err := s.source(f)
		var refused *noSourceError
		if errors.As(err, &refused) {
			d.Refused = refused.why
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		texts[i] = source
	}
	d.read(text.Diff(texts[0], texts[1]))
	return d, nil
}

// read takes the hunks apart.
func (d *fileDiff) read(hunks string) {
	for _, line := range diffLines(hunks) {
		switch line.Kind {
		case "added":
			d.Added++
		case "removed":
			d.Removed++
		}
		if len(d.Lines) == diffLinesShown {
			d.Cut = true
			continue
		}
		if len(line.Text) > longestLine {
			line.Text, d.Cut = text.Short(line.Text, longestLine), true
		}
		d.Lines = append(d.Lines, line)
	}
}
