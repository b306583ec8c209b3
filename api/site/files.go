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

// FilesPageURL returns the URL of the page about a path below /ajax/libs/ (LIBRARY/VERSION/FILE), which is percent-encoded
// as the client sent it. siteBase has no slash at its end. That page displays a folder or a file, or says that the path
// does not exist.
func FilesPageURL(siteBase, path string) string { return siteBase + "/files/" + path }

// filesPath returns the path of the page of a file or folder in a version of the library l; "" for file stands for the top
// folder. It percent-encodes each segment.
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

// A crumb is a link of a page, for example to a folder above.
type crumb struct{ Name, Address string }

// folderPage is the data of the page of a folder of a release.
type folderPage struct {
	Name, Version string
	Versions      []views.Version
	Folder        string        // path, "" for the top folder
	Crumbs        []crumb       // to the folders above
	Count         int           // of all files below the folder
	Bytes         int64         // of all files below the folder
	Entries       []folderEntry // on this page
	Pager         pager
}

// A folderEntry is a file or a folder directly in a folder.
type folderEntry struct {
	Name, Address string
	Files         int   // how many are below a folder, 0 for a file
	Size          int64 // of a file, or of all files below a folder
	Main          bool  // it is the main file
}

// folderShown is how many entries a page of a folder has.
const folderShown = 200

// filesPage returns the page of the folder or file of a release that the request's path names, the top folder by default.
// If the query has a version, which the version picker submits, it returns a redirect to the same path in that version. The
// errors are those of readRelease, a [*noFileError] if the release has nothing at the path, and those of filePage.
func (s *Site) filesPage(q *request, l *library.Library) (*pageAnswer, error) {
	r, err := s.readRelease(q, l.Name, q.segments[1])
	if err != nil {
		return nil, err
	}
	at := ""
	if len(q.segments) > 2 {
		at = q.segments[2]
	}
	if version := q.textParam("version"); version != "" { // of the version picker
		return &pageAnswer{status: http.StatusSeeOther, location: filesPath(l.Name, version, at)}, nil
	}
	if f, ok := r.Find(at); ok {
		return s.filePage(q, r, f)
	}
	page := folderPage{Name: l.Name, Version: r.Version, Folder: at, Crumbs: newCrumbs(r, at)}
	if page.Versions, err = s.library.Versions(l.Name); err != nil {
		return nil, err
	}
	entries := page.listEntries(r)
	if len(entries) == 0 && at != "" {
		return nil, &noFileError{r, at}
	}
	self := filesPath(l.Name, r.Version, at)
	page.Pager = q.newPager(len(entries), folderShown, "entries", func(n string) string { return withQuery(self, encodeQuery("page", n)) })
	page.Entries = sliceOf(page.Pager, entries)
	a := &pageAnswer{view: "folder", Section: "/search", Title: "Files of " + l.Name + " " + r.Version, Description: "The files of " + l.Name + " " + r.Version + ", by folder.", Data: page}
	if at != "" {
		a.Title = at + " in " + l.Name + " " + r.Version
	}
	return a, nil
}

// listEntries returns the files and folders directly in the folder p.Folder of release r: first the folders, then the
// files, each in the order of r.Files, which must be sorted by path. It adds the number and bytes of all files below the
// folder to p.Count and p.Bytes. It returns nil if no file is below the folder.
func (p *folderPage) listEntries(r *library.Release) []folderEntry {
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

// newCrumbs returns links to the top folder of the release, called Files, and to each folder above the file or folder at a
// path, outermost first; nil for the path "".
func newCrumbs(r *library.Release, at string) []crumb {
	if at == "" {
		return nil
	}
	above := []crumb{{"Files", filesPath(r.Library, r.Version, "")}}
	for i, c := range at {
		if c == '/' {
			above = append(above, crumb{path.Base(at[:i]), filesPath(r.Library, r.Version, at[:i])})
		}
	}
	return above
}

// A noFileError says that a release has no file or folder at a path.
type noFileError struct {
	release *library.Release
	path    string
}

// Error says which release has no file at which path.
func (e *noFileError) Error() string {
	return fmt.Sprintf("%s %s has no file %s", e.release.Library, e.release.Version, e.path)
}

// suggestFiles returns links to the pages of up to three files of the release that the visitor may have meant, nearest
// first.
func (e *noFileError) suggestFiles() []crumb {
	var links []crumb
	for _, file := range library.NearFiles(e.release, e.path) {
		links = append(links, crumb{file, filesPath(e.release.Library, e.release.Version, file)})
	}
	return links
}

// filePage is the data of the page of one file: its sizes, its integrity and its source.
type filePage struct {
	fileRow
	Name, Version string
	Versions      []views.Version
	Crumbs        []crumb
	Use           string // address of the page with its tags
	Compare       string // address of the page with the lines that changed since Previous; "" without Previous
	Previous      string // the next older published version, "" for none
	source
}

// source is the part of a file's source that a page displays.
type source struct {
	Lines     []template.HTML // on this page
	First     int             // number of the first of Lines, from 1 on; 0 for an empty file
	Count     int             // how many lines the source has, without a part that is cut off
	Long      bool            // some lines are cut, or ellipses
	Plain     bool            // the lines have no colours until a worker has highlighted them
	Shortened bool            // the end of a long source is cut off
	Refused   string          // a sentence that says why no source is displayed, "" if it is
	Pager     pager
}

// filePage returns the page of the file f of release r with its sizes, integrity and a part of its source: as plain text
// until a worker has highlighted it, which is recorded in q.inputs. If the source cannot be displayed, the page says why.
// The error is one of reading or rendering.
func (s *Site) filePage(q *request, r *library.Release, f views.PublishedFile) (*pageAnswer, error) {
	row, err := s.newFileRow(q, r, f)
	if err != nil {
		return nil, err
	}
	row.Path = f.Path
	page := filePage{fileRow: row, Name: r.Library, Version: r.Version, Crumbs: newCrumbs(r, f.Path)}
	page.Use = withQuery(versionPath(r.Library, r.Version), encodeQuery("file", f.Path)) + "#use"
	if page.Versions, err = s.library.Versions(r.Library); err != nil {
		return nil, err
	}
	if page.Previous = versionBefore(page.Versions, r.Version); page.Previous != "" {
		page.Compare = fileComparePath(r.Library, page.Previous, r.Version, f.Path)
	}
	source, err := s.readSource(f)
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
	return &pageAnswer{
		view: "file", Section: "/search", Title: f.Path + " in " + r.Library + " " + r.Version,
		Description: "The source of " + f.Path + " in " + r.Library + " " + r.Version + ", its sizes and its integrity.", Data: page,
	}, nil
}

// LineNumber returns the number in the file of the i-th line on the page, counted from 0.
func (p filePage) LineNumber(i int) int { return p.First + i }
