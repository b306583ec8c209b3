package site

import (
	"path"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

// A glance is the content of the box at the top of a release's page, next to the tag to copy.
type glance struct {
	Main      *fileRow          // the file that the tag loads
	Upgrades  []library.Upgrade // sizes of the deltas from other versions
	Checked   bool              // the release was checked for known vulnerabilities
	Proven    bool              // its provenance is verified
	Safe      string            // newest stable version not known to be vulnerable or deprecated; "" for none, or if it is this one
	SafeKnown bool              // vulnerabilities and deprecations were both checked; otherwise Safe may have some
}

// newGlance returns the content of the summary box of a release's page, from the facts that the page already has: which
// checks were made, and the newest safe version if that is another one. page.Marks, Built and Versions must be set before.
// main is the file that the page's tag loads. The caller adds the upgrades.
func (s *Site) newGlance(page *libraryPage, main *fileRow) *glance {
	g := &glance{Main: main, Checked: page.Marks.KnowsVulnerable, Proven: page.Built != nil && page.Built.Repository != ""}
	g.SafeKnown = g.Checked && page.Marks.KnowsDeprecated
	if g.Safe = page.Marks.Safe(library.VersionNames(page.Versions)); g.Safe == page.Release.Version {
		g.Safe = ""
	}
	return g
}

// minifiedOf returns the minified form, beside it, of the script or style sheet f of release r; or f itself if the release
// has none, or f is minified or of another type.
func minifiedOf(r *library.Release, f views.PublishedFile) views.PublishedFile {
	if m, ok := r.Find(library.MinifiedPath(f.Path)); ok {
		return m
	}
	return f
}

// companionOf returns the file of release r that best complements the chosen one: a .js file for a style sheet, otherwise a
// style sheet. Its name, without folder, extension and .min, is the chosen file's, that with .bundle added, the part of it
// before its first dot, or the library's. It prefers them in the order .bundle, same, part, library, and minified files. ok
// is false if the release has none.
func companionOf(r *library.Release, chosen views.PublishedFile) (found views.PublishedFile, ok bool) {
	want := ".css"
	if path.Ext(chosen.Path) == want {
		want = ".js"
	}
	own, name := companionName(chosen.Path), companionName(r.Library+".js")
	best := 0
	for _, f := range r.Files {
		if !strings.HasSuffix(f.Path, want) {
			continue
		}
		base := companionName(f.Path)
		score := 0
		switch base {
		case own + ".bundle": // has what the script needs besides
			score = 50
		case own:
			score = 40
		case firstPart(own):
			score = 30
		case name, firstPart(name):
			score = 20
		default:
			continue
		}
		if strings.HasSuffix(f.Path, ".min"+want) {
			score += 5
		}
		if score -= min(4, strings.Count(f.Path, "/")); score > best {
			found, best, ok = f, score, true
		}
	}
	return found, ok
}

// companionName returns the name of the file at the path p in lower case, without folder, extension and ".min". Files with
// the same companionName belong together.
func companionName(p string) string {
	base := strings.ToLower(path.Base(p))
	base = strings.TrimSuffix(base, path.Ext(base))
	return strings.TrimSuffix(base, ".min")
}

// firstPart returns a name up to its first dot, such as bootstrap for bootstrap.bundle; the whole name if it has no dot.
func firstPart(name string) string {
	part, _, _ := strings.Cut(name, ".")
	return part
}

// pairTags returns the HTML of the tags, one a line, that load the chosen script, module or style sheet and its companion
// (see companionOf), style sheet first. It returns "" if the file has no companion or no tag can load it.
func pairTags(q *request, r *library.Release, chosen views.PublishedFile) string {
	if k := library.KindOf(chosen.Path, chosen.Module); k == library.Other {
		return ""
	}
	other, ok := companionOf(r, chosen)
	if !ok {
		return ""
	}
	tags := []string{library.NewSnippet(q.assetBase, r.Library, r.Version, chosen).HTML, library.NewSnippet(q.assetBase, r.Library, r.Version, other).HTML}
	if path.Ext(other.Path) == ".css" {
		tags[0], tags[1] = tags[1], tags[0]
	}
	return strings.Join(tags, "\n")
}
