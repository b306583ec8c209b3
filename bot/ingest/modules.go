package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// The limits of what a build of modules returns. A build fits into a manifest and into the release's folder for modules, whatever the
// package contains, and the same archive always gives the same result.
const (
	maxImports    = 20_000  // in all files
	maxSpecifier  = 500     // bytes of a specifier, a subpath or a path
	maxNames      = 1 << 20 // bytes of all specifiers, subpaths and paths
	maxProblem    = 500     // bytes of the reason why there are no modules
	maxGlobals    = 20      // names of globals in one script
	maxSkippedAll = 2 * worker.MaxSubpaths
)

// A ModulesRelease names what modules are built from.
type ModulesRelease struct {
	// Owner is the release, for whose jobs alone a worker process is used.
	Owner string
	// Package is the package's name on npm.
	Package string
	// Subpaths are those that modules are built for; all that the package exports if empty.
	Subpaths []string
	Archive  archive.Source
	// Acquire waits until a build may take so many bytes here and in a child, which the caller gives back with leave. If it is nil, BuildModules
	// does not wait.
	Acquire func(here, child int64) (leave func(), err error)
	// Published reports whether the release publishes another file at a path; nil if that is known to be false.
	Published func(path string) bool
}

// BuildModules builds the modules of a release in a child process of the pool. It returns the record for the log (subpaths, imports,
// skipped ones) and the files of the modules, which it stores nowhere. If the release has no modules, record.Problem says why,
// files is nil, and the error is nil; so it is also if the child crashes, exceeds its limits of memory or processor time, or
// returns a result that is not allowed. Only if another attempt may succeed there is an error, and the record is nil: the archive
// cannot be read, r.Acquire fails, ctx ends, or [worker.IsTransient] reports true for the child's error.
func BuildModules(ctx context.Context, pool *worker.Pool, r ModulesRelease) (*logs.Modules, []worker.ModuleFile, error) {
	record := new(logs.Modules)
	record.Program, record.Version, record.Options = worker.ModuleBuilder()
	size, err := readBuildInput(ctx, r.Archive, nil)
	if err != nil {
		return nil, nil, err
	}
	if size > worker.MaxModulesInput {
		record.Problem = fmt.Sprintf("its scripts have over %d bytes, the limit for building modules", worker.MaxModulesInput)
		return record, nil, nil
	}
	if r.Acquire != nil {
		leave, err := r.Acquire(parentMemory(size), worker.Memory(worker.BuildModules, size/3*4))
		if err != nil {
			return nil, nil, err
		}
		defer leave()
	}
	files := map[string][]byte{}
	if _, err := readBuildInput(ctx, r.Archive, files); err != nil {
		return nil, nil, err
	}
	subpaths := slices.Sorted(slices.Values(r.Subpaths))
	request, err := json.Marshal(worker.ModulesRequest{Package: r.Package, Subpaths: subpaths, Files: files})
	if err != nil {
		return nil, nil, err
	}
	var result worker.ModulesResult
	answer, err := pool.Do(ctx, r.Owner, worker.BuildModules, request)
	if err == nil {
		err = json.Unmarshal(answer, &result)
	}
	if err == nil {
		err = checkResult(result, files)
	}
	if ctx.Err() != nil || worker.IsTransient(err) {
		return nil, nil, fmt.Errorf("couldn't build modules: %w", errors.Join(ctx.Err(), err))
	}
	if err != nil {
		record.Problem = text.Short(err.Error(), maxProblem)
		return record, nil, nil
	}
	record.Skipped = map[string]string{}
	for _, s := range result.Skipped {
		record.Skipped[s.Subpath] = text.Short(s.Reason, maxProblem)
	}
	if len(result.Modules) == 0 {
		record.Problem = "none of what the package exports can be built"
		if len(result.Skipped) > 0 {
			record.Problem = record.Skipped[result.Skipped[0].Subpath]
		}
		return record, nil, nil
	}
	for _, f := range result.Files {
		if r.Published != nil && r.Published(f.Path) {
			record.Problem = fmt.Sprintf("the package JSON publishes another file at %s", f.Path)
			return record, nil, nil
		}
	}
	record.Subpaths, record.Imports, record.Dynamic, record.Inputs = map[string]string{}, map[string][]string{}, map[string][]string{}, map[string]kvstore.Hash{}
	for _, m := range result.Modules {
		record.Subpaths[m.Subpath] = m.Path
	}
	for _, f := range result.Files {
		if path.Ext(f.Path) == worker.ModuleExtension {
			record.Imports[f.Path] = append([]string{}, f.Imports...)
		}
		if len(f.Dynamic) > 0 {
			record.Dynamic[f.Path] = f.Dynamic
		}
	}
	for _, name := range result.Inputs {
		record.Inputs[name] = kvstore.Sum(files[name])
	}
	record.Globals = result.Globals
	return record, result.Files, nil
}

// buildModules builds the ES modules that the package JSON asks for, stores them, and adds them to the manifest, with a record of
// how they were built in About.Modules. It does nothing if the package JSON asks for none, and for a release that is not from
// npm. If the release's files cannot be built, the release is published all the same, and a note says why. An error means that
// another attempt may succeed; then the release is not published now. processFiles has run before, because a module must not
// replace a file of the manifest.
func (a *assembly) buildModules(ctx context.Context) error {
	u := a.pkg.Autoupdate
	if u == nil || u.Modules == nil || a.Source.Type != "npm" {
		return nil
	}
	owner := ReleaseID(a.pkg.Name, a.version)
	record, files, err := BuildModules(ctx, a.minifiers, ModulesRelease{
		Owner: owner, Package: a.Source.Name, Subpaths: u.Modules.Subpaths, Archive: a.Archive,
		Acquire: func(here, child int64) (func(), error) {
			return a.options.Budget.AcquireFile(ctx, owner, a.pendingRelease.fresh, here, child)
		},
		Published: func(path string) bool {
			return slices.ContainsFunc(a.manifest.Files, func(f logs.File) bool { return f.Path == path })
		},
	})
	if err != nil {
		return err
	}
	if record.Problem != "" {
		a.addNote("no modules were built: %s", record.Problem)
	}
	for _, sentence := range record.DescribeSkipped(maxNotes) {
		a.addNote("%s", sentence)
	}
	if sentence := record.DescribeGlobals(); sentence != "" {
		a.addNote("%s", sentence)
	}
	for _, f := range files {
		if err := a.addFile(ctx, logs.File{Path: f.Path, Origin: logs.Built}, f.Data); err != nil {
			return err
		}
	}
	if a.manifest.About == nil {
		a.manifest.About = new(logs.About)
	}
	a.manifest.About.Modules = record
	return nil
}

// parentMemory returns how many bytes of memory a build takes in this process, the parent of the child, if its input files have size bytes
// together: these files, the request and the largest response to it (see worker.MaxResponseSize), both with their files in base64, and the
// files of the response. The memory of the child comes besides.
func parentMemory(size int64) int64 {
	request := size / 3 * 4
	response := int64(worker.MaxResponseSize(worker.BuildModules, int(request)))
	return size + request + response + response/4*3
}

// readBuildInput walks an archive and returns how many bytes its files have together that a build of modules may need, by their
// extensions. Entries that are no regular files do not count. If into is not nil, it also reads these files into memory, and stores
// their contents there by their paths in the archive. With an error, the results are incomplete.
func readBuildInput(ctx context.Context, src archive.Source, into map[string][]byte) (size int64, err error) {
	err = archive.Walk(ctx, src, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		if e.Skipped != "" || !worker.IsModuleInput(e.Name) {
			return nil
		}
		size += e.Size
		if into == nil {
			return nil
		}
		data, err := io.ReadAll(r)
		into[e.Name] = data
		return err
	})
	return size, err
}

// checkResult returns an error unless a child's result is consistent and within the limits of a build: a hostile package may have
// taken over the child. inputs has the files that the child received, by path. It checks paths, names, numbers and sizes, but
// neither the contents of the files nor the reasons in r.Skipped.
func checkResult(r worker.ModulesResult, inputs map[string][]byte) error {
	if len(r.Files) > worker.MaxModulesFiles || len(r.Modules) > worker.MaxSubpaths || len(r.Skipped) > maxSkippedAll {
		return fmt.Errorf("the build has %d files and %d modules, over the limits of %d and %d", len(r.Files), len(r.Modules), worker.MaxModulesFiles, worker.MaxSubpaths)
	}
	paths, size, imports, names := map[string]bool{}, 0, 0, 0
	isLong := func(name string) bool {
		names += len(name)
		return len(name) > maxSpecifier
	}
	for _, f := range r.Files {
		if !strings.HasPrefix(f.Path, worker.ModulesFolder+"/") || !fs.ValidPath(f.Path) || isLong(f.Path) || paths[f.Path] || strings.ContainsFunc(f.Path, func(c rune) bool { return c < ' ' || c == '\\' }) {
			return fmt.Errorf("the build has a file at %q", text.Short(f.Path, 100))
		}
		paths[f.Path] = true
		if size += len(f.Data); len(f.Data) > packages.MaxFile {
			return fmt.Errorf("%s would have %d bytes, over the limit of %d", f.Path, len(f.Data), packages.MaxFile)
		}
		imports += len(f.Imports) + len(f.Dynamic)
		if slices.ContainsFunc(slices.Concat(f.Imports, f.Dynamic), func(s string) bool { return s == "" || isLong(s) }) {
			return fmt.Errorf("%s has an import of over %d bytes", f.Path, maxSpecifier)
		}
	}
	if size > worker.MaxModulesOutput || imports > maxImports {
		return fmt.Errorf("the build has %d bytes and %d imports, over the limits of %d and %d", size, imports, worker.MaxModulesOutput, maxImports)
	}
	if slices.ContainsFunc(r.Skipped, func(s worker.SkippedSubpath) bool { return isLong(s.Subpath) }) ||
		slices.ContainsFunc(r.Modules, func(m worker.Module) bool { return isLong(m.Subpath) }) {
		return fmt.Errorf("a subpath has over %d bytes", maxSpecifier)
	}
	for _, m := range r.Modules {
		if !paths[m.Path] {
			return fmt.Errorf("the build lacks %q", text.Short(m.Path, 100))
		}
	}
	for _, name := range r.Inputs {
		if _, ok := inputs[name]; !ok {
			return fmt.Errorf("the build has read %q", text.Short(name, 100))
		}
		names += len(name)
	}
	for script, globals := range r.Globals {
		if _, ok := inputs[script]; !ok || len(globals) > maxGlobals || slices.ContainsFunc(globals, isLong) {
			return fmt.Errorf("the build reports globals of %q", text.Short(script, 100))
		}
		names += len(script)
	}
	if names > maxNames {
		return fmt.Errorf("the build's names have %d bytes, over the limit of %d", names, maxNames)
	}
	return nil
}
