package site

import (
	"context"
	"errors"
	"html/template"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/rendering"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// This file shows what strangers wrote: as plain text here, and otherwise as a worker has rendered it.

// mostSource bounds a file whose source is shown, in bytes.
const mostSource = 4 << 20

// languages are the extensions of files that a worker colours, with the one that stands for all of a language.
var languages = map[string]string{
	".js": ".js", ".mjs": ".js", ".cjs": ".js", ".ts": ".js", ".mts": ".js", ".cts": ".js", ".jsx": ".js", ".tsx": ".js", ".json": ".js", ".map": ".js",
	".css": ".css", ".scss": ".css", ".less": ".css",
}

// addLines adds to the page of file f one part of the lines of its source, by the page number in the request. A worker
// highlights them if the language is known and the file not too large; otherwise, and until it has, they are plain text. A
// source over document.MaxSource is cut, and p.Shortened set. Pending lines are recorded in q.inputs. A page number beyond
// the end means the last page; q.inputs.arbitrary is set then, so that the page is not cached. An error is one of rendering
// or of the store.
func (s *Site) addLines(q *request, r *library.Release, f views.PublishedFile, p *filePage, source string) error {
	p.Shortened = len(source) > document.MaxSource
	source = text.Cut(source, document.MaxSource)
	p.Count = strings.Count(source, "\n")
	if source != "" && !strings.HasSuffix(source, "\n") {
		p.Count++
	}
	self := filesPath(p.Name, p.Version, f.Path)
	p.Pager = newPager(p.Count, document.MaxLines, q.pageNumber(), "lines", func(n string) string { return withQuery(self, encodeQuery("page", n)) + "#source" })
	q.inputs.arbitrary = q.inputs.arbitrary || p.Pager.Page != q.pageNumber()
	p.First = p.Pager.First
	first := max(0, p.First-1)
	if language := languages[strings.ToLower(path.Ext(f.Path))]; language != "" && !p.Shortened && source != "" {
		result, ok, err := s.getRendered(q, rendering.Document{
			Kind: document.Source, Key: document.SourceKey(r.Owner(), f.Hash, language, first), Owner: r.Owner(),
			Request: func(context.Context) (document.Request, error) {
				source, err := s.readSource(f)
				return document.Request{Kind: document.Source, Name: language, Text: source, First: first, Lines: document.MaxLines}, err
			},
		})
		if err != nil {
			return err
		}
		if ok {
			for line := range strings.Lines(result.Markup) {
				p.Lines = append(p.Lines, template.HTML(strings.TrimSuffix(line, "\n"))) //nolint:gosec // document.Decode has checked it
			}
			p.Long = result.Cut
			return nil
		}
		p.Plain = q.inputs.isUnrendered
	}
	p.addPlainLines(source, first)
	return nil
}

// addPlainLines adds to the page the lines of source as plain text, from the one with index first (from 0) on,
// document.MaxLines at most. If it cuts a line, or all of them together are too long so that it replaces the rest by
// ellipses, it sets p.Long.
func (p *filePage) addPlainLines(source string, first int) {
	n, room := 0, document.MaxMarkup
	for line := range strings.Lines(source) {
		if n++; n <= first {
			continue
		}
		if n > first+document.MaxLines {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		p.Long = p.Long || len(line) > document.LongestLine
		markup := template.HTMLEscapeString(text.Short(line, document.LongestLine))
		if room -= len(markup); room < 0 {
			markup, p.Long = "…", true
		}
		p.Lines = append(p.Lines, template.HTML(markup)) //nolint:gosec // it is escaped
	}
}

// A noSourceError says why a file is not shown.
type noSourceError struct{ why string }

// Error returns the sentence by which the page says why it does not display the file.
func (e *noSourceError) Error() string { return e.why }

// readSource returns the text of a file, or a *noSourceError if a page cannot display it: it is over 4 MiB, no text, or
// erased.
func (s *Site) readSource(f views.PublishedFile) (string, error) {
	if f.Size > mostSource {
		return "", &noSourceError{"It is over " + formatBytes(mostSource) + ", too large for a page."}
	}
	data, err := s.library.File(f.Hash)
	if errors.Is(err, kvstore.ErrNotFound) {
		return "", &noSourceError{"It has been erased."}
	}
	if err != nil {
		return "", err
	}
	if !utf8.Valid(data) || slices.Contains(data, 0) {
		return "", &noSourceError{"It is not text."}
	}
	return string(data), nil
}

// A readme is the introduction that upstream has written.
type readme struct {
	File  string
	HTML  template.HTML // "" where the text is shown
	Text  string
	Cut   bool
	Plain bool // until it is rendered
}

// newReadme returns the README of a release as a page displays it: rendered by a worker, or as plain text, cut to
// document.MaxReadme bytes, if it is not Markdown, too large, refused, or not rendered yet. file is its name, source its
// text, and cut says that source is incomplete. Relative links to files that the release does not have lead to repository, a
// URL.
func (s *Site) newReadme(q *request, r *library.Release, repository, file, source string, cut bool) (*readme, error) {
	shown := &readme{File: file, Cut: cut || len(source) > document.MaxReadme}
	shown.Text = text.Cut(source, document.MaxReadme)
	d, ok := s.readmeDocument(r, repository, file, source)
	if !ok {
		return shown, nil
	}
	result, ok, err := s.getRendered(q, d)
	if err != nil {
		return nil, err
	}
	if ok {
		shown.HTML, shown.Text = template.HTML(result.Markup), "" //nolint:gosec // document.Decode has checked it
	} else {
		shown.Plain = q.inputs.isUnrendered
	}
	return shown, nil
}

// readmeDocument returns the request to render a README, see newReadme, for the renderer and its cache. The result is false
// if the page displays it as plain text: it is not Markdown, empty, or too large.
func (s *Site) readmeDocument(r *library.Release, repository, file, source string) (rendering.Document, bool) {
	ext := strings.ToLower(path.Ext(file))
	if ext != ".md" && ext != ".markdown" || len(source) > document.MaxReadme || source == "" {
		return rendering.Document{}, false
	}
	name, version := r.Library, r.Version
	return rendering.Document{
		Kind: document.Readme, Key: document.ReadmeKey(r.Manifest, repository), Owner: r.Owner(),
		Request: func(ctx context.Context) (document.Request, error) {
			r, err := s.library.Release(ctx, name, version)
			if err != nil {
				return document.Request{}, err
			}
			about, err := s.library.About(r)
			if err != nil {
				return document.Request{}, err
			}
			q := document.Request{Kind: document.Readme, Name: file, Text: about.Readme, Library: r.Library, Version: r.Version, Repository: repository}
			for _, f := range r.Files {
				q.Files = append(q.Files, f.Path)
			}
			return q, nil
		},
	}, true
}

// Part returns a background task for processes that publish. It has a worker render the README and read the dependency
// ranges of each release that is published after the call to Part. If it cannot read the log, it logs that and ends. Other
// processes render documents when a page displays them, because a mirror copies logs of many releases.
func (s *Site) Part() parts.Part {
	from := s.library.LogSize()
	return parts.Part{Name: "documents of new releases", Run: parts.RunUntilDone(func(ctx context.Context) {
		for next := from; ctx.Err() == nil; {
			entries, after, err := s.library.NextEntries(ctx, next, logs.Query{Kinds: logs.Publications})
			if err != nil {
				if ctx.Err() == nil { // a damaged entry, which the log's own readers report
					s.logger.Error("site: documents of new releases are rendered when their pages are requested", "err", err)
				}
				return
			}
			for _, e := range entries {
				if err := s.renderDocuments(ctx, e); err != nil && ctx.Err() == nil {
					s.logger.Warn("site: couldn't render the documents of a release; its page does when it is requested", "package", e.Package, "version", e.Version, "err", err)
				}
			}
			next = after
		}
	})}
}

// renderDocuments has a worker render the README of the release that log entry e publishes, and read its dependency ranges,
// and waits for both. Before, it waits until the index of libraries has the entry. A release that is no longer published is
// skipped, and a document that the worker refuses is no error.
func (s *Site) renderDocuments(ctx context.Context, e logs.Indexed) error {
	if err := s.library.Wait(ctx, e.Index+1); err != nil {
		return err
	}
	l, err := s.library.Library(ctx, e.Package)
	if err != nil {
		return err
	}
	r, err := s.library.Release(ctx, e.Package, e.Version)
	if errors.Is(err, library.ErrNoVersion) || errors.As(err, new(*library.WithdrawnError)) {
		return nil // by now
	}
	if err != nil {
		return err
	}
	about, err := s.library.About(r)
	if err != nil {
		return err
	}
	if _, _, err := library.ReadWanted(ctx, r.Owner(), about, s.options.Renderer.DocumentsNow().Ranges); err != nil {
		return err
	}
	d, ok := s.readmeDocument(r, newOrigin(l).RepositoryLink, about.ReadmeFile, about.Readme)
	if !ok {
		return nil
	}
	_, err = s.options.Renderer.Render(ctx, d)
	if errors.As(err, new(*document.RefusedError)) {
		return nil // the renderer has reported it
	}
	return err
}
