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
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/parts"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// This file displays documents that strangers wrote: as plain text, or as a worker has rendered them.

// mostSource is the size in bytes of the largest file whose source a page displays.
const mostSource = 4 << 20

// languages maps the extensions of files that a worker highlights to the extension that stands for the whole language.
var languages = map[string]string{
	".js": ".js", ".mjs": ".js", ".cjs": ".js", ".ts": ".js", ".mts": ".js", ".cts": ".js", ".jsx": ".js", ".tsx": ".js", ".json": ".js", ".map": ".js",
	".css": ".css", ".scss": ".css", ".less": ".css",
}

// addLines adds to p, the page of file f, the lines of source on the part that the page number in the request selects. A
// worker highlights them. They are plain text if the language is unknown, the source over document.MaxSource, which is cut
// and sets p.Shortened, or the worker refuses it; also while they are pending, which is recorded in q.inputs. A page number
// beyond the end means the last page, and sets q.inputs.arbitrary, so that the page is not cached. An error is one of
// rendering or of the store.
func (s *Site) addLines(q *request, r *library.Release, f views.PublishedFile, p *filePage, source string) error {
	p.Shortened = len(source) > document.MaxSource
	source = text.Cut(source, document.MaxSource)
	p.Count = strings.Count(source, "\n")
	if source != "" && !strings.HasSuffix(source, "\n") {
		p.Count++
	}
	self := filesPath(p.Name, p.Version, f.Path)
	p.Pager = q.newPager(p.Count, document.MaxLines, "lines", func(n string) string { return withQuery(self, encodeQuery("page", n)) + "#source" })
	p.First = p.Pager.First
	first := max(0, p.First-1)
	if language := languages[strings.ToLower(path.Ext(f.Path))]; language != "" && !p.Shortened && source != "" {
		result, ok, err := s.getRendered(q, library.RenderRequest{
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

// addPlainLines appends to p.Lines the lines of source as escaped plain text, without line ends, from the one with index
// first (from 0) on, at most document.MaxLines. It cuts lines over document.LongestLine. Once all lines together exceed
// document.MaxMarkup, the others become ellipses. In both cases it sets p.Long.
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

// A noSourceError says, in a sentence for the page, why a page does not display a file.
type noSourceError struct{ why string }

// Error returns the sentence by which the page says why it does not display the file.
func (e *noSourceError) Error() string { return e.why }

// readSource returns the text of a file from the store. It returns a [*noSourceError] if a page cannot display it: it is
// over 4 MiB, not UTF-8, has a NUL byte, or has been erased. Other errors are those of the store.
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

// A readme is the README of a release as a page displays it.
type readme struct {
	File  string
	HTML  template.HTML // "" if the page displays Text
	Text  string        // "" if the page displays HTML
	Cut   bool          // the text is incomplete
	Plain bool          // it is plain text until it is rendered
}

// newReadme returns the README of a release as a page displays it: rendered by a worker, or as plain text, cut to
// document.MaxReadme bytes, if it is not Markdown, too large, refused, or pending, which is recorded in q.inputs. file is
// its name, source its text, and cut says that source is incomplete. Relative links to files that the release does not have
// lead to repository, a URL or "".
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

// readmeDocument returns the request to render a README, see newReadme, for the renderer and its cache. When the renderer
// gets to it, the request reads the README from the store again. The result is false if the page displays it as plain text:
// its name does not end in .md or .markdown, or source is empty or over document.MaxReadme bytes.
func (s *Site) readmeDocument(r *library.Release, repository, file, source string) (library.RenderRequest, bool) {
	ext := strings.ToLower(path.Ext(file))
	if ext != ".md" && ext != ".markdown" || len(source) > document.MaxReadme || source == "" {
		return library.RenderRequest{}, false
	}
	name, version := r.Library, r.Version
	return library.RenderRequest{
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
// ranges of each release that is published after the call to Part. It logs a release for which that fails and goes on. If
// it cannot read the log, it logs that and ends. Other processes render documents when a page displays them, because a
// mirror copies logs of many releases.
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

// renderDocuments waits until the index of libraries has log entry e. Then it has a worker read the dependency ranges of
// the release that e publishes, and render its README, and waits for both. If reading the ranges fails, it returns that
// error and does not render the README. It skips a release that is no longer published. A document that the worker refuses
// is no error.
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
