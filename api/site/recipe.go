package site

import (
	"bytes"
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

// recipePage is how several files of a release are loaded together.
type recipePage struct {
	Name, Version string
	Versions      []views.Version
	Tags          string // "" where nothing is chosen
	Problems      []string
	Untagged      []string // files that no tag loads
	Needs         []dependency
	Files         []recipeFile
	Kept          []string // chosen files that are not in the list
	Shown         string   // what the list is filtered by
	More          int      // files that are not in the list
}

// A recipeFile is a file that can be chosen.
type recipeFile struct {
	Path   string
	Size   int64
	Chosen bool
}

const (
	recipeFilesShown = 200
	mostChosen       = 50
)

func recipePath(l, version string) string {
	return "/recipe/" + url.PathEscape(l) + "/" + url.PathEscape(version)
}

func (s *Site) recipe(q *request, l *library.Library) (*answer, error) {
	if version := q.text("version"); version != "" {
		query := url.Values{"file": q.query["file"]}
		return &answer{status: 303, location: withQuery(recipePath(l.Name, version), query.Encode())}, nil
	}
	r, err := s.release(q, l.Name, q.segments[1])
	if err != nil {
		return nil, err
	}
	page := recipePage{Name: l.Name, Version: r.Version, Shown: q.text("filter")}
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
	if err := s.cook(q, &page, l, r, chosen); err != nil {
		return nil, err
	}
	page.offer(r, chosen)
	q.inputs.free = page.Shown != "" || len(page.Problems) > 0 || len(q.query["file"]) > 1
	return &answer{
		view: "recipe", section: "/search", title: "Tags for " + l.Name + " " + r.Version,
		description: "Choose files of " + l.Name + " " + r.Version + " and copy all their tags, in the right order and with integrity.", data: page,
	}, nil
}

// offer lists the files that can be chosen: those that a tag loads.
func (p *recipePage) offer(r *library.Release, chosen []views.PublishedFile) {
	isChosen := map[string]bool{}
	for _, f := range chosen {
		isChosen[f.Path] = true
	}
	for _, i := range filter(r, p.Shown) {
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

// cook writes the tags: style sheets, then the import map, without which no module may come, and what it lists; then classic
// scripts, the main one first; modules last, as browsers run them last anyway.
func (s *Site) cook(q *request, page *recipePage, l *library.Library, r *library.Release, chosen []views.PublishedFile) error {
	var styles, scripts, roots []library.Snippet
	var all []library.GraphModule
	imports := map[string]string{}
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
			roots = append(roots, snippet)
			g, err := s.graph(q, r, f.Path)
			if err != nil {
				return err
			}
			maps.Copy(imports, g.Imports)
			page.Problems = append(page.Problems, g.Problems...)
			if g.Pending && !slices.Contains(page.Problems, modulesPending) {
				page.Problems = append(page.Problems, modulesPending)
			}
			for _, m := range g.Modules {
				if !slices.ContainsFunc(all, func(a library.GraphModule) bool { return a.URL == m.URL }) {
					all = append(all, m)
				}
			}
		default:
			page.Untagged = append(page.Untagged, f.Path)
		}
	}
	var lines []string
	for _, s := range styles {
		lines = append(lines, s.HTML)
	}
	if len(roots) > 0 {
		lines = append(lines, importMap(imports, all))
		if len(all) > len(roots) {
			lines = append(lines, modulePreloads(all))
		}
	}
	for _, s := range append(scripts, roots...) {
		lines = append(lines, s.HTML)
	}
	if !slices.Contains(page.Problems, modulesPending) { // else some are missing
		page.Tags = strings.Join(lines, "\n")
	}
	if len(scripts) > 0 {
		about := libraryPage{Library: l, origin: newOrigin(l), Release: r}
		s.addAbout(q, &about, nil)
		page.Needs = slices.DeleteFunc(about.Dependencies, func(d dependency) bool { return d.Address == "" })
	}
	return nil
}

// loadRank is lower for files that others may need.
func loadRank(r *library.Release, file string) int {
	bare := func(p string) string { return strings.ReplaceAll(path.Base(p), ".min.", ".") }
	if bare(file) == bare(r.Default) {
		return -1
	}
	return strings.Count(file, "/")
}

// moduleName is what a library's own documentation imports it as.
func moduleName(l *library.Library) string {
	return cmp.Or(l.NPM(), l.Name)
}

// importMap returns the markup of an import map. The integrity of all modules stands in it
// (https://html.spec.whatwg.org/#import-map-integrity-metadata-map), because an import statement has no place for it.
func importMap(imports map[string]string, modules []library.GraphModule) string {
	integrity := make(map[string]string, len(modules))
	for _, m := range modules {
		integrity[m.URL] = m.Integrity
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ") // and "<" is escaped, so that nothing ends the script element
	_ = e.Encode(struct {
		Imports   map[string]string `json:"imports,omitempty"`
		Integrity map[string]string `json:"integrity"`
	}{imports, integrity}) // strings always encode
	return "<script type=\"importmap\">\n" + b.String() + "</script>"
}

// importStatement returns the markup of a module that imports another by its name.
func importStatement(name string) string {
	quoted, _ := json.Marshal(name) // a string always encodes
	return "<script type=\"module\">\n  import * as " + identifier(name) + " from " + string(quoted) + ";\n</script>"
}

// modulePreloads returns the tags that fetch modules before they are imported, and check them where a browser does not
// know integrity in import maps.
func modulePreloads(modules []library.GraphModule) string {
	lines := make([]string, len(modules))
	for i, m := range modules {
		lines[i] = `<link rel="modulepreload" href="` + html.EscapeString(m.URL) + `" integrity="` + html.EscapeString(m.Integrity) + `" crossorigin="anonymous">`
	}
	return strings.Join(lines, "\n")
}
