package site

import (
	"cmp"
	"encoding/json"
	"html"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

// recipePage is the data of the page with the tags of several files of a release.
type recipePage struct {
	Name, Version string
	Versions      []views.Version
	Tags          string // "" if no file with a tag is chosen, or imports are pending
	Problems      []string
	Untagged      []string     // chosen files that no tag loads
	Needs         []dependency // published here, of a release of which classic scripts are chosen
	Files         []recipeFile // the list from which visitors choose
	Kept          []string     // chosen files that are not in the list, sorted
	Shown         string       // the filter of the list, "" for none
	More          int          // how many files the filter selects that are not in the list
}

// A recipeFile is a file that a visitor can choose.
type recipeFile struct {
	Path   string
	Size   int64
	Chosen bool
}

const (
	recipeFilesShown = 200 // files in the list
	mostChosen       = 50  // files for which a page makes tags
)

// recipePath returns the path of the page on which visitors choose files of a version of the library l and get their tags.
func recipePath(l, version string) string {
	return "/recipe/" + url.PathEscape(l) + "/" + url.PathEscape(version)
}

// recipePage returns the page on which a visitor chooses files of a release and copies the tags that load them. The query
// has the paths of the chosen files. It uses the first 50 of them and ignores more; those that the release does not have
// become problems on the page. If the query has a version, which the version picker submits, it returns a redirect to the
// page of that version with the same chosen files, without the filter.
func (s *Site) recipePage(q *request, l *library.Library) (*pageAnswer, error) {
	if version := q.textParam("version"); version != "" {
		query := url.Values{"file": q.query["file"]}
		return &pageAnswer{status: 303, location: withQuery(recipePath(l.Name, version), query.Encode())}, nil
	}
	r, err := s.readRelease(q, l.Name, q.segments[1])
	if err != nil {
		return nil, err
	}
	page := recipePage{Name: l.Name, Version: r.Version, Shown: q.textParam("filter")}
	if page.Versions, err = s.library.Versions(l.Name); err != nil {
		return nil, err
	}
	var chosen []views.PublishedFile
	for _, name := range q.query["file"] {
		f, ok := r.Find(name)
		switch {
		case !ok:
			page.Problems = append(page.Problems, r.Library+" "+r.Version+" has no file "+name+".")
		case len(chosen) < mostChosen && !slices.ContainsFunc(chosen, func(c views.PublishedFile) bool { return c.Path == f.Path }):
			chosen = append(chosen, f)
		}
		if len(page.Problems) > mostChosen {
			break
		}
	}
	if err := s.addTags(q, &page, l, r, chosen); err != nil {
		return nil, err
	}
	page.addChoices(r, chosen)
	q.inputs.arbitrary = page.Shown != "" || len(page.Problems) > 0 || len(q.query["file"]) > 1
	return &pageAnswer{
		view: "recipe", Section: "/search", Title: "Tags for " + l.Name + " " + r.Version,
		Description: "Choose files of " + l.Name + " " + r.Version + " and copy all their tags, in the right order and with integrity.", Data: page,
	}, nil
}

// addChoices lists in p.Files up to 200 of the files of a release that a tag can load and that the filter p.Shown selects,
// in the order of filterFiles, marks the chosen ones, and adds the number of the rest to p.More. p.Kept gets the paths of
// the chosen files that are not in the list.
func (p *recipePage) addChoices(r *library.Release, chosen []views.PublishedFile) {
	isChosen := map[string]bool{}
	for _, f := range chosen {
		isChosen[f.Path] = true
	}
	for _, i := range filterFiles(r, p.Shown) {
		f := &r.Files[i]
		switch {
		case library.KindOf(f.Path, f.Module) == library.Other:
		case len(p.Files) == recipeFilesShown:
			p.More++
		default:
			p.Files = append(p.Files, recipeFile{f.Path, f.Size, isChosen[f.Path]})
			delete(isChosen, f.Path)
		}
	}
	p.Kept = slices.Sorted(maps.Keys(isChosen))
}

// addTags adds to the page the tags of the chosen files in the order that browsers need: style sheets, the import map
// (which must precede all modules) and tags that preload modules, classic scripts (main first), module scripts. It adds
// problems with the modules, chosen files without a tag, and for classic scripts the release's dependencies, by addAbout.
// There are no tags while a worker still reads what modules import. It sorts chosen in place.
func (s *Site) addTags(q *request, page *recipePage, l *library.Library, r *library.Release, chosen []views.PublishedFile) error {
	var styles, scripts, roots []library.Snippet
	var modules []views.PublishedFile
	slices.SortStableFunc(chosen, func(a, b views.PublishedFile) int {
		return cmp.Or(loadRank(r, a.Path)-loadRank(r, b.Path), cmp.Compare(a.Path, b.Path))
	})
	for _, f := range chosen {
		snippet := library.NewSnippet(q.assetBase, r.Library, r.Version, f)
		switch snippet.Kind {
		case library.Stylesheet:
			styles = append(styles, snippet)
		case library.Script:
			scripts = append(scripts, snippet)
		case library.Module:
			specifier, _, err := s.library.BuiltModule(l, r, f.Path)
			if err != nil {
				return err
			}
			if specifier != "" {
				snippet.HTML = importStatement(specifier)
			}
			roots, modules = append(roots, snippet), append(modules, f)
		default:
			page.Untagged = append(page.Untagged, f.Path)
		}
	}
	var lines []string
	for _, s := range styles {
		lines = append(lines, s.HTML)
	}
	pending := false
	if len(roots) > 0 {
		g, err := s.importGraph(q, r, modules)
		if err != nil {
			return err
		}
		page.Problems = append(page.Problems, g.Problems...)
		lines = append(lines, importMap(g.ImportMap))
		if len(g.Modules) > len(roots) {
			lines = append(lines, modulePreloads(g.Modules))
		}
		pending = g.Pending
	}
	for _, s := range append(scripts, roots...) {
		lines = append(lines, s.HTML)
	}
	if pending {
		page.Problems = append(page.Problems, modulesPending)
	} else {
		page.Tags = strings.Join(lines, "\n")
	}
	if len(scripts) > 0 {
		about := libraryPage{Library: l, origin: newOrigin(l), Release: r}
		s.addAbout(q, &about, nil)
		page.Needs = slices.DeleteFunc(about.Dependencies, func(d dependency) bool { return d.Address == "" })
	}
	return nil
}

// loadRank returns a number by which files of a release are sorted in the order of loading: -1 for files that have the main
// file's name, apart from .min and folder, because others may need them, and else the number of folders in the path.
func loadRank(r *library.Release, file string) int {
	bare := func(p string) string { return strings.ReplaceAll(path.Base(p), ".min.", ".") }
	if bare(file) == bare(r.Default) {
		return -1
	}
	return strings.Count(file, "/")
}

// importMap returns the HTML of a script element with the import map m. The map has the integrity of all modules
// (https://html.spec.whatwg.org/#import-map-integrity-metadata-map), because an import statement cannot have one.
func importMap(m library.ImportMap) string {
	text, _ := json.MarshalIndent(m, "", "  ") // strings always encode, and "<" is escaped, so that nothing ends the script element
	return "<script type=\"importmap\">\n" + string(text) + "\n</script>"
}

// importStatement returns the HTML of a module script that imports everything of the module with the specifier name into a
// variable, which is called as newIdentifier says.
func importStatement(name string) string {
	quoted, _ := json.Marshal(name) // a string always encodes
	return "<script type=\"module\">\n  import * as " + newIdentifier(name) + " from " + string(quoted) + ";\n</script>"
}

// modulePreloads returns the HTML of link elements, one a line, by which browsers load the modules early, in their order.
// They have the integrity of the modules, for browsers that do not support it in import maps.
func modulePreloads(modules []library.GraphModule) string {
	lines := make([]string, len(modules))
	for i, m := range modules {
		lines[i] = `<link rel="modulepreload" href="` + html.EscapeString(m.URL) + `" integrity="` + html.EscapeString(m.Integrity) + `" crossorigin="anonymous">`
	}
	return strings.Join(lines, "\n")
}
