package worker

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/packages"
)

// The conditions by which exports and imports of a package.json are chosen.
var (
	importConditions  = []string{"browser", "import", "production", "default"}
	requireConditions = []string{"browser", "require", "production", "default"}
)

// A resolved says what an import leads to. All fields are empty if it leads to nothing.
type resolved struct {
	file     string // of the release
	disabled bool   // the browser field replaces it with an empty module
	external string // the specifier, of another package
	builtin  string // a module of Node.js that browsers lack
}

// A release is the files of a release by their paths, and the package.json files among them by folder.
type release struct {
	name     string
	files    map[string][]byte
	packages map[string]*packageJSON
}

// newRelease returns a release of the npm package called name, with its files by path, which it does not copy, and parses the
// package.json files among them. The package.json at the top must exist and be valid; invalid ones in folders are ignored.
func newRelease(name string, files map[string][]byte) (*release, error) {
	r := &release{name: name, files: files, packages: map[string]*packageJSON{}}
	for file, data := range files {
		if path.Base(file) != "package.json" {
			continue
		}
		p, err := parsePackageJSON(data)
		if err == nil {
			r.packages[path.Dir(file)] = p
		} else if file == "package.json" {
			return nil, fmt.Errorf("package.json: %w", err)
		}
	}
	if r.packages["."] == nil {
		return nil, fmt.Errorf("the release has no package.json")
	}
	return r, nil
}

// packageOf returns the nearest valid package.json in the folder of a file or above it, never nil, and the path of the folder
// that has it, "." for the top.
func (r *release) packageOf(file string) (*packageJSON, string) {
	for dir := path.Dir(file); ; dir = path.Dir(dir) {
		if p := r.packages[dir]; p != nil {
			return p, dir
		}
		if dir == "." || dir == "/" {
			return r.packages["."], "."
		}
	}
}

// resolve returns what a specifier leads to if the file importer of the release imports it: a file that exists, an empty module,
// another package, a module of Node.js, or nothing. The conditions, such as "import", select among the exports and imports of
// package.json files. URLs and paths from the root count as other packages (external).
func (r *release) resolve(importer, specifier string, conditions []string) resolved {
	p, dir := r.packageOf(importer)
	switch {
	case isRelative(specifier):
		return r.applyBrowserField(r.resolvePath(path.Join(path.Dir(importer), specifier), strings.HasSuffix(specifier, "/")))
	case strings.HasPrefix(specifier, "/"), strings.Contains(specifier, "://"), strings.HasPrefix(specifier, "data:"):
		return resolved{external: specifier}
	case strings.HasPrefix(specifier, "#"):
		if p.Imports == nil {
			return resolved{}
		}
		to, err := p.Imports.lookup(specifier, conditions)
		if err != nil {
			return resolved{}
		}
		if !isRelative(to) {
			return r.resolveBare(p, dir, to, conditions)
		}
		return r.applyBrowserField(r.resolvePath(path.Join(dir, to), false))
	}
	return r.resolveBare(p, dir, specifier, conditions)
}

// resolveBare resolves a bare specifier that a file in the folder dir imports: the name of a package, maybe with a subpath. It
// applies the browser field of p, the package.json for that file and in dir, which may disable the import or replace it, once, by
// a file or another specifier. A specifier that names the release itself leads to its file under the conditions. Any other leads
// to a module of Node.js or to another package. A file that is missing is nothing.
func (r *release) resolveBare(p *packageJSON, dir, specifier string, conditions []string) resolved {
	if p.disabled[specifier] {
		return resolved{disabled: true}
	}
	if to := p.browser[specifier]; to != "" {
		if isRelative(to) {
			return resolved{file: r.resolvePath(path.Join(dir, to), false)}
		}
		specifier = to
	}
	specifier, isFolder := strings.CutSuffix(specifier, "/") // such as buffer/, a package of npm and not the module of Node.js
	name, subpath := packages.SplitSpecifier(specifier)
	if name == r.name {
		file, err := r.resolveSubpath(subpath, conditions)
		if err != nil {
			return resolved{}
		}
		return r.applyBrowserField(file)
	}
	module, isNode := strings.CutPrefix(specifier, "node:")
	if isNode || isBuiltin(name) && !isFolder && !p.requires[name] && !r.packages["."].requires[name] {
		return resolved{builtin: module}
	}
	return resolved{external: specifier}
}

// resolveSubpath returns the path of the file, which exists, to which a subpath of the package, such as "./client", leads under
// the given conditions, such as "import". It reads exports of the package.json at the top. Without exports, or if they are null,
// it looks for a file or folder at that path, as resolvePath does. It does not apply the browser field to the file. It returns an
// error for people if there is no such file.
func (r *release) resolveSubpath(subpath string, conditions []string) (string, error) {
	p := r.packages["."]
	if p.Exports != nil && !p.Exports.isNull() {
		to, err := p.Exports.lookup(subpath, conditions)
		if err != nil {
			return "", err
		}
		if file := path.Join(to); r.files[file] != nil {
			return file, nil
		}
		return "", fmt.Errorf("the release lacks %s", to)
	}
	if file := r.resolvePath(path.Join(subpath), false); file != "" {
		return file, nil
	}
	return "", fmt.Errorf("the release has no file for it")
}

// resolvePath returns the file of the release that an import of a path loads, as Node.js and bundlers do: the file at the path,
// maybe with an extension added, or else the main file of the folder at the path, by its package.json or called index. If
// isFolder is true, only the folder counts. It returns "" if no such file exists. It applies neither exports nor replacements of
// the browser field.
func (r *release) resolvePath(at string, isFolder bool) string {
	if file := r.findFile(at, fileExtensions); file != "" && !isFolder {
		return file
	}
	if p := r.packages[at]; p != nil {
		for _, entry := range p.entry {
			to := path.Join(at, entry)
			if file := cmp.Or(r.findFile(to, fileExtensions), r.findIndex(to)); file != "" {
				return file
			}
		}
	}
	return r.findIndex(at)
}

// The extensions that an import of a file, and one of a folder with a file called index, may leave out.
var (
	fileExtensions  = []string{"", ".js", ".css", ".json", ".mjs", ".cjs"}
	indexExtensions = []string{".js", ".json", ".mjs", ".cjs"}
)

// findFile returns the path of the file at a path with the first of the extensions; "" if no such file exists.
func (r *release) findFile(at string, extensions []string) string {
	i := slices.IndexFunc(extensions, func(extension string) bool { return r.files[at+extension] != nil })
	if i < 0 {
		return ""
	}
	return at + extensions[i]
}

// findIndex returns the path of the file called index with a known extension in a folder; "" if no such file exists.
func (r *release) findIndex(folder string) string {
	return r.findFile(path.Join(folder, "index"), indexExtensions)
}

// applyBrowserField returns what an import of a file leads to: the file, or what the browser field of its package.json has in its
// place, which is a file, an empty module, or nothing if that file is missing. If file is "", it leads to nothing.
func (r *release) applyBrowserField(file string) resolved {
	if file == "" {
		return resolved{}
	}
	p, dir := r.packageOf(file)
	relative := file
	if dir != "." {
		relative = strings.TrimPrefix(file, dir+"/")
	}
	withoutExtension := strings.TrimSuffix(relative, path.Ext(relative))
	for _, key := range []string{"./" + relative, relative, "./" + withoutExtension, withoutExtension} {
		if p.disabled[key] {
			return resolved{disabled: true}
		}
		if to := p.browser[key]; to != "" {
			return resolved{file: r.resolvePath(path.Join(dir, to), false)}
		}
	}
	return resolved{file: file}
}

// selectSubpaths returns the subpaths that the package exports as scripts, sorted, and how many more it exports. If it exports
// more than MaxSubpaths, selectSubpaths leaves out those that only patterns match, which may be all, and then, while there are
// still too many, all those with the most segments at once; in the end maybe all but ".". Only if "." is not exported it keeps
// those with one segment, however many they are; the caller checks that.
func (r *release) selectSubpaths() (selected []string, others int) {
	selected = r.exportedSubpaths(true)
	all := len(selected)
	if all > MaxSubpaths {
		selected = r.exportedSubpaths(false)
	}
	for len(selected) > MaxSubpaths {
		most := 0
		for _, subpath := range selected {
			most = max(most, strings.Count(subpath, "/"))
		}
		if most == 1 && selected[0] != "." {
			break // nothing would be left
		}
		selected = slices.DeleteFunc(selected, func(subpath string) bool { return strings.Count(subpath, "/") == most })
	}
	return selected, all - len(selected)
}

// exportedSubpaths returns the subpaths that the package.json exports as scripts, sorted. If its exports have no subpaths, it
// returns ".". It leaves out those whose file is missing, except ".". If patterns is true, it replaces each pattern by the
// subpaths that match files; otherwise it leaves patterns out.
func (r *release) exportedSubpaths(patterns bool) []string {
	p := r.packages["."]
	if p.Exports == nil || !p.Exports.hasSubpathKeys() {
		return []string{"."}
	}
	found := map[string]bool{}
	for i, key := range p.Exports.Keys {
		to := p.Exports.Items[i].matchConditions(importConditions)
		before, after, pattern := strings.Cut(key, "*")
		if !pattern {
			found[key] = found[key] || isScript(to)
			continue
		}
		if !patterns {
			continue
		}
		toBefore, toAfter, _ := strings.Cut(path.Join(to), "*")
		for file := range r.files {
			if len(file) > len(toBefore)+len(toAfter) && strings.HasPrefix(file, toBefore) && strings.HasSuffix(file, toAfter) && to != "" && isScript(file) {
				name := before + file[len(toBefore):len(file)-len(toAfter)] + after
				found[name] = true
			}
		}
	}
	maps.DeleteFunc(found, func(subpath string, script bool) bool {
		_, err := r.resolveSubpath(subpath, importConditions) // a narrower key may exclude it
		return !script || err != nil && subpath != "."
	})
	return slices.Sorted(maps.Keys(found))
}

// isScript reports whether a path has the extension of a script: .js, .mjs or .cjs.
func isScript(file string) bool {
	return slices.Contains([]string{".js", ".mjs", ".cjs"}, path.Ext(file))
}

// isRelative reports whether a specifier is relative to the file that imports it, such as "./a" or "..".
func isRelative(specifier string) bool {
	return specifier == "." || specifier == ".." || strings.HasPrefix(specifier, "./") || strings.HasPrefix(specifier, "../")
}

// builtins are the modules of Node.js (module.builtinModules), without those that start with an underscore.
var builtins = strings.Fields(`assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns domain
	events fs http http2 https inspector module net os path perf_hooks process punycode querystring readline repl stream string_decoder sys
	timers tls trace_events tty url util v8 vm wasi worker_threads zlib`)

// isBuiltin reports whether Node.js has a module with a name, such as "fs".
func isBuiltin(name string) bool { return slices.Contains(builtins, name) }
