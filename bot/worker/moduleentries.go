package worker

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// An entry is an entry point.
type entry struct {
	subpath string
	file    string // of the release
	text    string // of the module that esbuild gets as the entry point
}

// ownFilePrefix starts the specifiers of the release's files in the texts of entry points. The names of packages do not start
// with it.
const ownFilePrefix = "./"

// addEntry appends the entry point for a subpath, such as "./client", to b.entries. If the subpath leads to no script, or an
// earlier entry point has the same module path, addEntry records the subpath as skipped, which is not an error. It returns
// only errTooMuchExported.
func (b *builder) addEntry(subpath string) error {
	file, err := b.release.resolveSubpath(subpath, importConditions)
	at := b.release.applyBrowserField(file)
	lower := strings.ToLower(modulePath(subpath)) // esbuild refuses to write files whose paths differ only in case
	switch {
	case strings.Contains(subpath, "*") || !fs.ValidPath(modulePath(subpath)) || !strings.HasPrefix(modulePath(subpath), ModulesFolder+"/"): // esbuild would look for files that a pattern matches
		b.skipSubpath(subpath, "it does not name a file")
	case err != nil:
		b.skipSubpath(subpath, err.Error())
	case at.file == "":
		b.skipSubpath(subpath, "the package has nothing for browsers there")
	case !isScript(at.file):
		b.skipSubpath(subpath, at.file+" is not a script")
	case slices.ContainsFunc(b.entries, func(e *entry) bool { return strings.ToLower(modulePath(e.subpath)) == lower }):
		b.skipSubpath(subpath, "another subpath has a module with the same path, perhaps in other case")
	default:
		text, err := b.namedExportsText(at.file)
		if err != nil {
			return err
		}
		b.entries = append(b.entries, &entry{subpath: subpath, file: at.file, text: text + b.defaultExportText(at.file)})
	}
	return nil
}

// esExports returns whether the ES module in a file has a default export, and the modules that it re-exports with `export *`. It
// leaves names empty, because esbuild finds them.
func (b *builder) esExports(file string) *fileExports {
	return b.loadExports(b.esCache, file, importConditions, readESModule)
}

// commonJSExports returns the names that the CommonJS module in a file exports, and the modules whose exports it re-exports.
func (b *builder) commonJSExports(file string) *fileExports {
	return b.loadExports(b.commonJSCache, file, requireConditions, readCommonJS)
}

// loadExports returns the exports of a file from cache. If they are missing there, it finds them in the text of the file with read,
// resolves the specifiers of the modules that the file re-exports by the conditions of a package.json's exports, and adds the result to
// cache. It is never nil, and callers do not change it. loadExports takes no lock, so one goroutine calls it.
func (b *builder) loadExports(cache map[string]*fileExports, file string, conditions []string, read func(source []byte) fileExports) *fileExports {
	if e := cache[file]; e != nil {
		return e
	}
	e := read(b.release.files[file])
	for _, specifier := range e.from {
		e.others = append(e.others, b.release.resolve(file, specifier, conditions))
	}
	cache[file] = &e
	return &e
}

// errTooMuchExported is the error if entry points export more than maxExported.
var errTooMuchExported = fmt.Errorf("the names that the modules export have over %d bytes", maxExported)

// collectExports returns the names that a file of the release exports, and the specifiers of other packages whose exports it
// re-exports, directly or through other files of the release. Names may be repeated, packages are not. exportsOf returns the
// exports of one file: it is esExports, which gives no names, or commonJSExports. collectExports adds the bytes of all names and
// specifiers to b.exported, the total of all calls, and returns errTooMuchExported and nothing else once that exceeds
// maxExported.
func (b *builder) collectExports(file string, exportsOf func(file string) *fileExports) (names, packages []string, err error) {
	seen := map[string]bool{file: true}
	external := map[string]bool{}
	for queue := []string{file}; len(queue) > 0; queue = queue[1:] {
		e := exportsOf(queue[0])
		for _, name := range e.names {
			b.exported += len(name) + 1
		}
		for _, to := range e.others {
			b.exported += len(to.external) + 1
			if to.file != "" && !seen[to.file] {
				seen[to.file] = true
				queue = append(queue, to.file)
			} else if to.external != "" && !external[to.external] {
				external[to.external] = true
				packages = append(packages, to.external)
			}
		}
		if b.exported > maxExported {
			return nil, nil, errTooMuchExported
		}
		names = append(names, e.names...)
	}
	return names, packages, nil
}

// namedExportsText returns the statements of an entry point that re-export all named exports of an ES module: an `export *` from
// its file, and one from each other package that the file re-exports, directly or not. The latter are needed because esbuild
// leaves an `export *` from another package in the output only if it is in the entry point itself. It adds the bytes of these
// packages' specifiers to b.exported. The only error is errTooMuchExported, with which the text has no meaning.
func (b *builder) namedExportsText(file string) (string, error) {
	_, packages, err := b.collectExports(file, b.esExports)
	var text strings.Builder
	fmt.Fprintf(&text, "export * from %s;\n", quote(ownFilePrefix+file))
	for _, name := range packages {
		fmt.Fprintf(&text, "export * from %s;\n", quote(name))
	}
	return text.String(), err
}

// defaultExportText returns the statement of an entry point that re-exports the default export of a file, "" if the file has
// none. A script that cannot be split into tokens completely counts as having one.
func (b *builder) defaultExportText(file string) string {
	if !b.esExports(file).hasDefault {
		return ""
	}
	return "export { default } from " + quote(ownFilePrefix+file) + ";\n"
}

// findEntry returns the entry point with a subpath, such as "./client", among those in b.entries. It is nil if addEntry has added
// none, or if it has been removed since because it cannot be built.
func (b *builder) findEntry(subpath string) *entry {
	i := slices.IndexFunc(b.entries, func(e *entry) bool { return e.subpath == subpath })
	if i < 0 {
		return nil
	}
	return b.entries[i]
}

// rewriteCommonJSEntries replaces the text of each entry point whose file is a CommonJS module by commonJSEntryText, so that its
// module exports names as in Node.js. It takes the format of a file from m, esbuild's report of a first build, or else from its
// extension and package.json. The only error is errTooMuchExported, before which some texts may have been replaced.
func (b *builder) rewriteCommonJSEntries(m metafile) error {
	for _, e := range b.entries {
		p, _ := b.release.packageOf(e.file)
		format := m.Inputs[fromRelease+":"+e.file].Format
		isModule := format == "esm" || format == "" && path.Ext(e.file) != ".cjs" && (p.isModule || path.Ext(e.file) == ModuleExtension)
		if isModule {
			continue
		}
		text, err := b.commonJSEntryText(e.file)
		if err != nil {
			return err
		}
		e.text = text
	}
	return nil
}

// commonJSEntryText returns the text of the entry point for a CommonJS module. The text requires the file. It exports by name
// what readCommonJS finds, which is about what Node.js exports, up to maxExports names, and the value of the module as
// "module.exports". As the default it exports the value too, or the value's member "default" if __esModule says that the module
// was compiled from an ES module. It also re-exports the other packages that the file re-exports. commonJSEntryText adds the
// bytes of the exported names and of these packages' specifiers to b.exported. The only error is errTooMuchExported, with which
// the text has no meaning, and after which the release has no modules.
func (b *builder) commonJSEntryText(file string) (string, error) {
	names, packages, err := b.collectExports(file, b.commonJSExports)
	var text strings.Builder
	fmt.Fprintf(&text, "var value = require(%s);\nexport default value?.__esModule && \"default\" in value ? value.default : value;\nexport { value as \"module.exports\" };\n", quote(ownFilePrefix+file))
	for i, name := range sortUnique(names) {
		if name != "default" && name != "module.exports" && i < maxExports {
			fmt.Fprintf(&text, "var e%d = value?.[%s];\nexport { e%[1]d as %[2]s };\n", i, quote(name))
		}
	}
	for _, name := range sortUnique(packages) {
		fmt.Fprintf(&text, "export * from %s;\n", quote(name))
	}
	return text.String(), err
}

// requireShim returns the text of a CommonJS module that replaces another package in calls of require. Its value is what require
// returns for that package in Node.js: the value that an ES module exports as "module.exports", or else an object with its
// exports.
func requireShim(specifier string) string {
	return `var { exports } = require(` + quote(specifier) + `);
if ("module.exports" in exports) module.exports = exports["module.exports"];
else {
  module.exports = Object.defineProperty({}, "__esModule", { value: true });
  for (let name of Reflect.ownKeys(exports)) if (typeof name === "string") Object.defineProperty(module.exports, name, { enumerable: true, get: () => exports[name] });
}`
}

// importShim returns the text of an ES module that imports another package and exports its namespace object as "exports". The
// text of requireShim requires it.
func importShim(specifier string) string {
	return `import * as exports from ` + quote(specifier) + `; export { exports };`
}
