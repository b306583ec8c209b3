package site

import (
	"context"
	"errors"
	"html/template"
	"net/url"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// A fileDiff is the difference of one file between two releases. At most one of Same, Refused and HTML is set.
type fileDiff struct {
	Path           string
	Kind           changeKind
	From, To       string        // addresses of its pages in both releases, "" if a release does not have it
	HTML           template.HTML // lines of the unified diff
	Added, Removed int           // numbers of lines
	Same           bool          // the file is the same in both; Kind is changed nonetheless
	Refused        string        // a sentence that says why HTML is missing, "" if it is not
	Cut            bool          // HTML lacks some lines
}

// fileComparePath returns the path and query of the page that compares the file at a path in the versions from and to of the
// library l.
func fileComparePath(l, from, to, file string) string {
	return withQuery("/compare/"+url.PathEscape(l), encodeQuery("from", from, "to", to, "file", file))
}

// diffFile returns the difference of the file at a path between two releases, as lines that a worker has rendered. Or it
// says that the file is the same in both, or why the lines cannot be displayed: a file is no text, has been erased, is over
// document.MaxSource, or the worker has refused them or not rendered them yet. The latter is recorded in q.inputs. It
// returns a [*noFileError] if neither release has the file.
func (s *Site) diffFile(q *request, from, to *library.Release, file string) (*fileDiff, error) {
	d := &fileDiff{Path: file, Kind: changed}
	before, inFrom := from.Find(file)
	after, inTo := to.Find(file)
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
	if max(before.Size, after.Size) > document.MaxSource {
		d.Refused = "It is over " + formatBytes(document.MaxSource) + ", too large to be compared on a page."
		return d, nil
	}
	var sides [2]*views.PublishedFile
	var hashes [2]kvstore.Hash
	for i, side := range []struct {
		views.PublishedFile
		there bool
	}{{before, inFrom}, {after, inTo}} {
		if !side.there {
			continue
		}
		_, err := s.readSource(side.PublishedFile)
		var refused *noSourceError
		if errors.As(err, &refused) {
			d.Refused = refused.why
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		sides[i], hashes[i] = &side.PublishedFile, side.Hash
	}
	result, ok, err := s.getRendered(q, library.RenderRequest{
		Kind: document.Comparison, Key: document.ComparisonKey(to.Owner(), hashes[0], hashes[1]), Owner: to.Owner(),
		Request: func(context.Context) (document.Request, error) {
			var texts [2]string
			for i, side := range sides {
				if side == nil {
					continue
				}
				var err error
				if texts[i], err = s.readSource(*side); err != nil {
					return document.Request{}, err
				}
			}
			return document.Request{Kind: document.Comparison, Name: file, Text: texts[0], After: texts[1]}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	switch {
	case ok:
		d.HTML, d.Added, d.Removed, d.Cut = template.HTML(result.Markup), result.Added, result.Removed, result.Cut //nolint:gosec // document.Decode has checked it
	case q.inputs.isUnrendered:
		d.Refused = "The comparison is being made. Please reload this page in a moment."
	default:
		d.Refused = "The two cannot be compared on a page."
	}
	return d, nil
}
