package esm

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

// newRelease returns a release of the npm package with that name. Its own package.json must be valid; others are ignored if they are not.
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

// packageOf returns the nearest package.json above a file, and its folder.
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

// resolve returns what a specifier in a file leads to, by the conditions.
func (r *release) resolve(importer, specifier string, conditions []string) resolved {
	p, dir := r.packageOf(importer)
	switch {
	case isRelative(specifier):
		return r.replaceFile(r.find(path.Join(path.Dir(importer), specifier), strings.HasSuffix(specifier, "/")))
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
		return r.replaceFile(r.find(path.Join(dir, to), false))
	}
	return r.resolveBare(p, dir, specifier, conditions)
}

// resolveBare resolves a bare specifier that a file in the folder dir imports: the name of a package, maybe with a subpath. It applies the browser
// field of p, the package.json for that file. The result is a file if the specifier names the release itself, else a module of Node.js or another
// package.
func (r *release) resolveBare(p *packageJSON, dir, specifier string, conditions []string) resolved {
	if p.disabled[specifier] {
		return resolved{disabled: true}
	}
	if to := p.browser[specifier]; to != "" {
		if isRelative(to) {
			return resolved{file: r.find(path.Join(dir, to), false)}
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
		return r.replaceFile(file)
	}
	module, isNode := strings.CutPrefix(specifier, "node:")
	if isNode || isBuiltin(name) && !isFolder && !p.requires[name] && !r.packages["."].requires[name] {
		return resolved{builtin: module}
	}
	return resolved{external: specifier}
}

// resolveSubpath returns the file that a subpath of the package, such as "./client", leads to.
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
	if file := r.find(path.Join(subpath), false); file != "" {
		return file, nil
	}
	return "", fmt.Errorf("the release has no file for it")
}

// find returns the file that a path without an extension, or of a folder, stands for; "" if no such file exists.
func (r *release) find(at string, isFolder bool) string {
	if file := r.findFile(at); file != "" && !isFolder {
		return file
	}
	if p := r.packages[at]; p != nil {
		for _, entry := range p.entry {
			to := path.Join(at, entry)
			if file := cmp.Or(r.findFile(to), r.findIndex(to)); file != "" {
				return file
			}
		}
	}
	return r.findIndex(at)
}

// findFile returns the file at a path, or at the path with an extension; "" if no such file exists.
func (r *release) findFile(at string) string {
	for _, extension := range []string{"", ".js", ".css", ".json", ".mjs", ".cjs"} {
		if r.files[at+extension] != nil {
			return at + extension
		}
	}
	return ""
}

// findIndex returns the main file of a folder without a package.json; "" if no such file exists.
func (r *release) findIndex(folder string) string {
	for _, extension := range []string{".js", ".json", ".mjs", ".cjs"} {
		if file := path.Join(folder, "index"+extension); r.files[file] != nil {
			return file
		}
	}
	return ""
}

// replaceFile applies the browser field to a file.
func (r *release) replaceFile(file string) resolved {
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
			return resolved{file: r.find(path.Join(dir, to), false)}
		}
	}
	return resolved{file: file}
}

// selectSubpaths returns the subpaths that the package exports as scripts, sorted, and how many others it exports. If it exports more than
// MaxSubpaths, those that patterns match are left out, and then those with the most segments.
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

// exportedSubpaths returns the subpaths that the package JSON exports as scripts, sorted. If its exports have no subpaths, it returns ".".
// If patterns is true, it replaces each pattern by the subpaths that match files; otherwise it leaves patterns out.
func (r *release) exportedSubpaths(patterns bool) []string {
	p := r.packages["."]
	if p.Exports == nil || !p.Exports.isSubpaths() {
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

// isScript reports whether a file is a script by its extension.
func isScript(file string) bool {
	return slices.Contains([]string{".js", ".mjs", ".cjs"}, path.Ext(file))
}

// isRelative reports whether a specifier is relative to the file that imports it.
func isRelative(specifier string) bool {
	return specifier == "." || specifier == ".." || strings.HasPrefix(specifier, "./") || strings.HasPrefix(specifier, "../")
}

// builtins are the modules of Node.js (module.builtinModules), without those that start with an underscore.
var builtins = strings.Fields(`assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns domain
	events fs http http2 https inspector module net os path perf_hooks process punycode querystring readline repl stream string_decoder sys
	timers tls trace_events tty url util v8 vm wasi worker_threads zlib`)

// isBuiltin reports whether Node.js has a module with that name.
func isBuiltin(name string) bool { return slices.Contains(builtins, name) }
