package submission

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/packages"
)

// The extensions of files that pages load, first those that load others.
var (
	loaders = []string{"js", "css", "mjs"}
	kinds   = append(slices.Clone(loaders), "wasm", "svg", "png", "jpg", "jpeg", "gif", "webp", "avif", "ico", "woff2", "woff", "ttf", "eot", "otf")
)

// buildFolders are the folders in which libraries have files that are built for pages, the likeliest first.
var buildFolders = []string{"dist", "build", "umd", "browser", "bundles", "bundle", "_bundles", "cdn", "out", "output", "release", "public", "min", "lib", "js", "css", "src"}

// chooseFiles chooses which files of a release a draft publishes: those of the kinds that pages load, and their source maps, in the folder where
// libraries have built files or in several that are named after kinds. It returns the folder with one glob, and the paths below it that the glob
// selects; both are empty if there are no such files.
func chooseFiles(files []string) (packages.FileSet, []string) {
	base := chooseBase(files)
	folders := kindFolders(files)
	if !slices.Contains(folders, strings.TrimSuffix(base, "/")) {
		folders = nil
	}
	prefix := "**/"
	if len(folders) > 1 {
		// A style sheet in css/ loads what is in fonts/ beside it.
		base, prefix = "", "{"+strings.Join(folders, ",")+"}/**/"
	}
	var here []string
	for _, f := range files {
		name, ok := strings.CutPrefix(f, base)
		folder, _, _ := strings.Cut(f, "/")
		if ok && fs.ValidPath(name) && (len(folders) < 2 || slices.Contains(folders, folder)) {
			here = append(here, name)
		}
	}
	if base == "" && len(folders) < 2 {
		// At the top are also the sources, the tests and what is for developers.
		prefix = ""
	}
	present := map[string]bool{}
	maps := false
	for _, name := range here {
		if prefix == "" && strings.Contains(name, "/") || isHidden(name) {
			continue
		}
		extension := strings.TrimPrefix(path.Ext(name), ".")
		if slices.Contains(kinds, extension) {
			present[extension] = true
		}
		maps = maps || strings.HasSuffix(name, ".js.map") || strings.HasSuffix(name, ".css.map") || strings.HasSuffix(name, ".mjs.map")
	}
	var extensions []string
	for _, kind := range kinds {
		if present[kind] {
			extensions = append(extensions, kind)
		}
	}
	if len(extensions) == 0 {
		return packages.FileSet{}, nil
	}
	glob := prefix + "*.@(" + strings.Join(extensions, "|") + ")"
	if len(extensions) == 1 {
		glob = prefix + "*." + extensions[0]
	}
	if maps {
		glob += "?(.map)"
	}
	set := packages.FileSet{BasePath: strings.TrimSuffix(base, "/"), Files: []string{glob}}
	var published []string
	for _, name := range here {
		extension := strings.TrimPrefix(path.Ext(strings.TrimSuffix(name, ".map")), ".")
		if present[extension] && !isHidden(name) && (prefix != "" || !strings.Contains(name, "/")) {
			published = append(published, name)
		}
	}
	return set, published
}

// kindFolders returns the top folders that are named after the kind of their files, such as css and fonts, and have files that pages load.
func kindFolders(files []string) []string {
	var found []string
	for _, folder := range []string{"css", "js", "fonts", "font", "webfonts", "images", "img"} {
		if slices.ContainsFunc(files, func(f string) bool {
			return strings.HasPrefix(f, folder+"/") && !isHidden(f) && slices.Contains(kinds, strings.TrimPrefix(path.Ext(f), "."))
		}) {
			found = append(found, folder)
		}
	}
	return found
}

// chooseBase returns the folder to publish from, "" for the top one or with a slash at its end. It is the likeliest of buildFolders that has scripts
// or style sheets; but if the top folder has some that configure no tools, it comes before lib, js, css and src. Else it is the top folder if that has
// any, else the top-level folder with the most of them, else "".
func chooseBase(files []string) string {
	loads := func(name string) bool {
		return slices.Contains(loaders, strings.TrimPrefix(path.Ext(name), ".")) && !isHidden(name)
	}
	for i, home := range buildFolders {
		if home == "lib" && slices.ContainsFunc(files, func(f string) bool { return !strings.Contains(f, "/") && loads(f) && !isConfiguration(f) }) {
			return "" // from here on folders are as likely to hold sources
		}
		if slices.ContainsFunc(files, func(f string) bool { return strings.HasPrefix(f, buildFolders[i]+"/") && loads(f) }) {
			return home + "/"
		}
	}
	if slices.ContainsFunc(files, func(f string) bool { return !strings.Contains(f, "/") && loads(f) }) {
		return ""
	}
	// Some other folder: the one with the most files that load others.
	counts := map[string]int{}
	for _, f := range files {
		if folder, _, ok := strings.Cut(f, "/"); ok && loads(f) {
			counts[folder]++
		}
	}
	best := ""
	for folder, n := range counts {
		if best == "" || n > counts[best] || n == counts[best] && folder < best {
			best = folder
		}
	}
	if best == "" {
		return ""
	}
	return best + "/"
}

// isConfiguration reports whether the name of a top file contains .config. (rollup.config.js), or begins with Gruntfile, gulpfile or
// test, in this case. Others, such as karma.conf.js and a.test.js, do not count.
func isConfiguration(name string) bool {
	return strings.Contains(name, ".config.") || strings.HasPrefix(name, "Gruntfile") || strings.HasPrefix(name, "gulpfile") || strings.HasPrefix(name, "test")
}

// isHidden reports whether a name or a folder of it begins with a dot.
func isHidden(name string) bool { return strings.HasPrefix(name, ".") || strings.Contains(name, "/.") }

// chooseMain returns the name of the default file of a draft, in its minified form even if no such file is published: the published file that
// package.json names for content delivery networks, whatever its kind, else the one with the best score by its name and by package.json's other
// entries. It returns "" if the one with the best score is neither a script nor a style sheet. published, paths below base, is not empty.
func chooseMain(target string, m *packageJSON, base string, published []string) string {
	for _, entry := range []rawText{m.Unpkg, m.JSDelivr} {
		if name := findEntry(entry.text(), base, published); name != "" {
			return minifiedName(name)
		}
	}
	var wanted []string
	for _, entry := range []rawText{m.Browser, m.Main, m.Style, m.Module} {
		if name := findEntry(entry.text(), base, published); name != "" {
			wanted = append(wanted, name)
		}
	}
	called := strings.ToLower(target[strings.LastIndexByte(target, '/')+1:])
	score := func(name string) int {
		s := mainScore(name, called)
		if i := slices.Index(wanted, name); i >= 0 {
			s += 14 - i
		}
		return s
	}
	best := slices.MaxFunc(published, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(a), score(b)), -cmp.Compare(len(a), len(b)), -cmp.Compare(a, b))
	})
	if score(best) < -500 {
		return ""
	}
	return minifiedName(best)
}

// findEntry returns the published path, below base, of the file that an entry of package.json names, also without ".js" or "/index.js" at its end; ""
// if it is not published.
func findEntry(entry, base string, published []string) string {
	if entry == "" {
		return ""
	}
	entry = strings.TrimPrefix(path.Clean("/"+entry), "/")
	if base != "" {
		var ok bool
		if entry, ok = strings.CutPrefix(entry, base+"/"); !ok {
			return ""
		}
	}
	for _, candidate := range []string{entry, entry + ".js", entry + "/index.js"} {
		if slices.Contains(published, candidate) {
			return candidate
		}
	}
	return ""
}

// minifiedName returns the name of the minified form of a .js or .css file, and any other name, such as one that is minified already, unchanged.
func minifiedName(name string) string {
	extension := path.Ext(name)
	stem := strings.TrimSuffix(name, extension)
	if extension != ".js" && extension != ".css" || strings.HasSuffix(stem, ".min") || strings.HasSuffix(stem, "-min") {
		return name
	}
	return stem + ".min" + extension
}

// wordScores are the scores of words in the path of a main file.
var wordScores = func() map[string]int {
	scores := make(map[string]int)
	for word := range strings.FieldsSeq("umd iife global browser bundle prod production") {
		scores[word] = 12
	}
	for word := range strings.FieldsSeq("cjs commonjs node server esm es es6 mjs module common test tests dev development ssr types worker debug") {
		scores[word] = -14
	}
	return scores
}()

// mainScore returns how likely a file is the main one of a library with a name; less than -500 if pages do not load such files.
func mainScore(name, called string) int {
	stem := strings.ToLower(path.Base(name))
	extension := path.Ext(stem)
	kind, ok := map[string]int{".js": 4, ".css": 3, ".mjs": 0}[extension]
	if !ok {
		return -1000
	}
	s := kind - 3*strings.Count(name, "/")
	stem = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(stem, extension), ".min"), "-min")
	bare := strings.TrimSuffix(strings.TrimSuffix(called, ".js"), ".css")
	switch {
	case stem == bare || stem == called:
		s += 30
	case strings.HasPrefix(stem, bare+"."), strings.HasPrefix(stem, bare+"-"):
		s += 15
	case stem == "index", stem == "main":
		s += 8
	}
	for _, word := range strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune("./-_", r) }) {
		s += wordScores[word]
	}
	return s
}
