package site

import (
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

// OfFiles returns the address of the page about what is at a path below /ajax/libs/: a folder, a file, or nothing. The
// path is as it came, percent-encoded.
func OfFiles(siteBase, path string) string { return siteBase + "/files/" + path }

// filesPath returns the address of a file's page, or of a folder's.
func filesPath(l, version, file string) string {
	p := "/files/" + url.PathEscape(l) + "/" + url.PathEscape(version)
	if file == "" {
		return p
	}
	for part := range strings.SplitSeq(file, "/") {
		p += "/" + url.PathEscape(part)
	}
	return p
}

// A crumb leads to a folder above.
type crumb struct{ Name, Address string }

// folderPage is what a folder of a release holds.
type folderPage struct {
	Name, Version string
	Versions      []views.Version
	Folder        string // "" for the release
	Crumbs        []crumb
	Count         int
	Bytes         int64
	Entries       []folderEntry
	Pager         pager
}

// A folderEntry is a file or a folder in it.
type folderEntry struct {
	Name, Address string
	Files         int // of a folder, 0 for a file
	Size          int64
	Main          bool
}

// folderShown is how many entries a page of a folder has.
const folderShown = 200

// showFiles shows a folder or a file of a release.
func (s *Site) showFiles(q *request, l *library.Library) (*answer, error) {
	r, err := s.release(q, l.Name, q.segments[1])
	if err != nil {
		return nil, err
	}
	at := ""
	if len(q.segments) > 2 {
		at = q.segments[2]
	}
	if version := q.text("version"); version != "" { // of the version picker
		return &answer{status: http.StatusSeeOther, location: filesPath(l.Name, version, at)}, nil
	}
	if f, ok := r.Find(at); ok {
		return s.showFile(q, r, f)
	}
	page := folderPage{Name: l.Name, Version: r.Version, Folder: at, Crumbs: crumbs(r, at)}
	if page.Versions, err = s.library.Versions(l.Name); err != nil {
		return nil, err
	}
	entries := page.list(r)
	if len(entries) == 0 && at != "" {
		return nil, &noFileError{r, at}
	}
	self := filesPath(l.Name, r.Version, at)
	page.Pager = newPager(len(entries), folderShown, q.page(), "entries", func(n string) string { return withQuery(self, encode("page", n)) })
	q.inputs.free = page.Pager.Page != q.page()
	page.Entries = part(page.Pager, entries)
	a := &answer{view: "folder", section: "/search", title: "Files of " + l.Name + " " + r.Version, description: "The files of " + l.Name + " " + r.Version + ", by folder.", data: page}
	if at != "" {
		a.title = at + " in " + l.Name + " " + r.Version
	}
	return a, nil
}

// list returns what is in the folder, folders first, and counts it.
func (p *folderPage) list(r *library.Release) []folderEntry {
	prefix := ""
	if p.Folder != "" {
		prefix = p.Folder + "/"
	}
	var folders, files []folderEntry
	for _, f := range r.Files {
		rest, ok := strings.CutPrefix(f.Path, prefix)
		if !ok {
			continue
		}
		p.Count++
		p.Bytes += f.Size
		name, _, below := strings.Cut(rest, "/")
		if !below {
			files = append(files, folderEntry{Name: name, Address: filesPath(r.Library, r.Version, f.Path), Size: f.Size, Main: f.Path == r.Default})
			continue
		}
		if n := len(folders); n == 0 || folders[n-1].Name != name { // those of one folder are together
			folders = append(folders, folderEntry{Name: name, Address: filesPath(r.Library, r.Version, prefix+name)})
		}
		folders[len(folders)-1].Files++
		folders[len(folders)-1].Size += f.Size
	}
	return append(folders, files...)
}

// crumbs lead from the release to what is above a path.
func crumbs(r *library.Release, at string) []crumb {
	var above []crumb
	if at == "" {
		return nil
	}
	above = append(above, crumb{"Files", filesPath(r.Library, r.Version, "")})
	for i, c := range at {
		if c == '/' {
			above = append(above, crumb{path.Base(at[:i]), filesPath(r.Library, r.Version, at[:i])})
		}
	}
	return above
}

// A noFileError says that a release has nothing at a path.
type noFileError struct {
	release *library.Release
	path    string
}

func (e *noFileError) Error() string {
	return fmt.Sprintf("%s %s has no file %s", e.release.Library, e.release.Version, e.path)
}

// near returns the files that may have been meant.
func (e *noFileError) near() []crumb {
	var links []crumb
	for _, file := range library.NearFiles(e.release, e.path) {
		links = append(links, crumb{file, filesPath(e.release.Library, e.release.Version, file)})
	}
	return links
}

// filePage is one file: what there is to know of it, and its source.
type filePage struct {
	fileRow
	Name, Version string
	Versions      []views.Version
	Crumbs        []crumb
	Use           string // address of its tags
	Compare       string // address of what changed in it since the version before, or ""
	Previous      string

	Lines     []template.HTML // what is shown of its source
	First     int             // number of the first one
	Count     int             // of all lines
	Long      bool            // some are cut off
	Plain     bool            // they have no colours until a worker has rendered them
	Shortened bool            // the end of a long file is missing
	Refused   string          // why no source is shown, "" where it is
	Pager     pager
}

func (s *Site) showFile(q *request, r *library.Release, f views.PublishedFile) (*answer, error) {
	row, err := s.newFileRow(q, r, f)
	if err != nil {
		return nil, err
	}
	row.Path = f.Path
	page := filePage{fileRow: row, Name: r.Library, Version: r.Version, Crumbs: crumbs(r, f.Path)}
	page.Use = withQuery(versionPath(r.Library, r.Version), encode("file", f.Path)) + "#use"
	if page.Versions, err = s.library.Versions(r.Library); err != nil {
		return nil, err
	}
	if page.Previous = before(page.Versions, r.Version); page.Previous != "" {
		page.Compare = withQuery("/compare/"+url.PathEscape(r.Library), encode("from", page.Previous, "to", r.Version, "file", f.Path))
	}
	source, err := s.source(f)
	var refused *noSourceError
	switch {
	case errors.As(err, &refused):
		page.Refused = refused.why
	case err != nil:
		return nil, err
	default:
		if err := s.addLines(q, r, f, &page, source); err != nil {
			return nil, err
		}
	}
	return &answer{
		view: "file", section: "/search", title: f.Path + " in " + r.Library + " " + r.Version,
		description: "The source of " + f.Path + " in " + r.Library + " " + r.Version + ", its sizes and its integrity.", data: page,
	}, nil
}

// Number is that of the i-th line that is shown.
func (p filePage) Number(i int) int { return p.First + i }
