package site

import (
	"cmp"
	"slices"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

// comparePage is the data of the page of the changes between two releases of a library.
type comparePage struct {
	Name     string
	Versions []views.Version // published, newest first
	From, To string          // both "" if the page compares nothing

	Added, Removed, Changed, Unchanged int       // numbers of files; 0 with Diff, as the next two
	FromBytes, ToBytes                 int64     // of all files
	Changes                            []change  // on this page; nil with Diff
	Diff                               *fileDiff // of the file in the query, nil without one
	Pager                              pager
}

// A change is a file that differs between two releases.
type change struct {
	Kind     changeKind
	Path     string
	Address  string // of the page with its changed lines
	From, To int64  // sizes in bytes, 0 in the release that does not have it
}

// A changeKind is how a file differs between two releases. It is part of the name of a CSS class, and displayed.
type changeKind string

const (
	changed changeKind = "changed"
	added   changeKind = "added"
	removed changeKind = "removed"
)

// changesShown is how many files a page of changes lists.
const changesShown = 200

// comparePage returns the page that compares two versions of a library, "from" and "to" in the query: it lists the files
// that differ, or if the query names a file, the changed lines of that file. "to" defaults to the latest version, and
// "from" to the next older one than "to". If one of them is still missing, the page compares nothing. The errors for a
// missing version or file are those of readRelease and diffFile.
func (s *Site) comparePage(q *request, l *library.Library) (*pageAnswer, error) {
	page := comparePage{Name: l.Name, From: q.textParam("from"), To: q.textParam("to")}
	var err error
	if page.Versions, err = s.library.Versions(l.Name); err != nil {
		return nil, err
	}
	a := &pageAnswer{view: "compare", Section: "/search", Title: "Changes in " + l.Name, Description: "What changed between two releases of " + l.Name + ": files added, removed and changed."}
	page.To = cmp.Or(page.To, l.Version)
	page.From = cmp.Or(page.From, versionBefore(page.Versions, page.To))
	if page.From == "" || page.To == "" {
		page.From, page.To = "", ""
		a.Data = page
		return a, nil
	}
	from, err := s.readRelease(q, l.Name, page.From)
	if err != nil {
		return nil, err
	}
	to, err := s.readRelease(q, l.Name, page.To)
	if err != nil {
		return nil, err
	}
	a.Title = l.Name + " " + page.From + " → " + page.To
	if file := q.query.Get("file"); file != "" {
		if page.Diff, err = s.diffFile(q, from, to, file); err != nil {
			return nil, err
		}
		a.Title = file + " in " + a.Title
		a.Data = page
		return a, nil
	}
	page.FromBytes, page.ToBytes = from.Bytes, to.Bytes
	changes := page.compareFiles(from, to)
	page.Pager = q.newPager(len(changes), changesShown, "changes", func(n string) string { return comparePath(l.Name, page.From, page.To, n) })
	page.Changes = sliceOf(page.Pager, changes)
	for i, c := range page.Changes {
		page.Changes[i].Address = fileComparePath(l.Name, page.From, page.To, c.Path)
	}
	a.Data = page
	return a, nil
}

// versionBefore returns the next older version than version in versions, which are sorted newest first; "" for the oldest
// and for an unknown version.
func versionBefore(versions []views.Version, version string) string {
	i := slices.IndexFunc(versions, func(v views.Version) bool { return v.Version == version })
	if i < 0 || i+1 >= len(versions) {
		return ""
	}
	return versions[i+1].Version
}

// compareFiles returns the files that differ between two releases: changed ones first, then added, then removed ones, each
// by path. It adds to p's counts of added, removed, changed and unchanged files. The files of both releases must be sorted
// by path. The caller sets the addresses of the results.
func (p *comparePage) compareFiles(from, to *library.Release) []change {
	var all []change
	i, j := 0, 0
	for i < len(from.Files) || j < len(to.Files) {
		switch {
		case j == len(to.Files) || i < len(from.Files) && from.Files[i].Path < to.Files[j].Path:
			all = append(all, change{removed, from.Files[i].Path, "", from.Files[i].Size, 0})
			p.Removed++
			i++
		case i == len(from.Files) || to.Files[j].Path < from.Files[i].Path:
			all = append(all, change{added, to.Files[j].Path, "", 0, to.Files[j].Size})
			p.Added++
			j++
		default:
			if from.Files[i].Hash != to.Files[j].Hash {
				all = append(all, change{changed, to.Files[j].Path, "", from.Files[i].Size, to.Files[j].Size})
				p.Changed++
			} else {
				p.Unchanged++
			}
			i, j = i+1, j+1
		}
	}
	rank := map[changeKind]int{changed: 0, added: 1, removed: 2}
	slices.SortStableFunc(all, func(a, b change) int { return rank[a.Kind] - rank[b.Kind] })
	return all
}

// Delta returns by how many bytes and percent the release has grown or shrunk, as text (see formatDelta).
func (p comparePage) Delta() string { return formatDelta(p.FromBytes, p.ToBytes) }

// Delta returns by how many bytes and percent the file has grown or shrunk, as text (see formatDelta). For an added or
// removed file it returns the file's size after a plus or minus sign.
func (c change) Delta() string {
	switch c.Kind {
	case added:
		return "+" + formatBytes(c.To)
	case removed:
		return "−" + formatBytes(c.From)
	}
	return formatDelta(c.From, c.To)
}
