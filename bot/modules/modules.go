// Package modules has worker processes build ES modules for browsers from releases of npm packages, and records how.
//
// It guarantees that what it returns fits into a manifest and into the release's folder for modules, whatever the package contains, and that
// the same archive always gives the same result.
//
// The package must not know stores, nor who asks for the modules.
package modules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages/archive"
)

// The limits of what a build returns.
const (
	maxFiles      = 4 * worker.MaxSubpaths
	maxBytes      = 64 << 20 // of all files
	maxImports    = 20_000   // in all files
	maxSpecifier  = 500      // bytes of a specifier, a subpath or a path
	maxNames      = 1 << 20  // bytes of all specifiers, subpaths and paths
	maxProblem    = 500      // bytes of the reason why there are no modules
	maxSkippedAll = 2 * worker.MaxSubpaths
)

// A Release names what modules are built from.
type Release struct {
	// Owner is the release, for whose jobs alone a worker process is used.
	Owner string
	// Package is the package's name on npm.
	Package string
	// Subpaths are those that modules are built for; all that the package exports if empty.
	Subpaths []string
	Archive  archive.Source
}

// InputSize returns the size in bytes of the files that a build of the archive's modules gets.
func InputSize(ctx context.Context, src archive.Source) (size int64, err error) {
	err = archive.Walk(ctx, src, archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
		if e.Skipped == "" && worker.ReadsModuleInput(e.Name) {
			size += e.Size
		}
		return nil
	})
	return size, err
}

// Build builds the modules of a release in a child of the pool. If they cannot be built, the record says why, and there are no files. The
// error is about reading the archive or starting the child.
func Build(ctx context.Context, pool *worker.Pool, r Release) (*logs.Modules, []worker.ModuleFile, error) {
	record := new(logs.Modules)
	record.Program, record.Version, record.Options = worker.ModuleBuilder()
	files, err := readFiles(ctx, r.Archive)
	if tooLarge := new(inputError); errors.As(err, &tooLarge) {
		record.Problem = err.Error()
		return record, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	subpaths := slices.Sorted(slices.Values(r.Subpaths))
	result, err := runBuild(ctx, pool, r.Owner, worker.ModulesRequest{Package: r.Package, Subpaths: subpaths, Files: files})
	if err == nil {
		err = check(result, files)
	}
	if ctx.Err() != nil || errors.As(err, new(*worker.StartError)) {
		return nil, nil, errors.Join(ctx.Err(), err)
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
	record.Subpaths, record.Imports, record.Dynamic, record.Inputs = map[string]string{}, map[string][]string{}, map[string][]string{}, map[string]kvstore.Hash{}
	for _, m := range result.Modules {
		record.Subpaths[m.Subpath] = m.Path
	}
	for _, f := range result.Files {
		if len(f.Imports) > 0 {
			record.Imports[f.Path] = f.Imports
		}
		if len(f.Dynamic) > 0 {
			record.Dynamic[f.Path] = f.Dynamic
		}
	}
	for _, name := range result.Inputs {
		record.Inputs[name] = kvstore.Sum(files[name])
	}
	return record, result.Files, nil
}

// Requested returns the subpaths that have been requested of a build, for building the same again.
func Requested(record *logs.Modules) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(record.Subpaths)), maps.Keys(record.Skipped))
	slices.Sort(all)
	return slices.DeleteFunc(all, func(subpath string) bool { return subpath == worker.ModulePatterns })
}

// An inputError says that an archive has too much to build modules from.
type inputError struct{ size int64 }

func (e *inputError) Error() string {
	return fmt.Sprintf("its scripts have over %d bytes, the limit for building modules", worker.MaxModulesInput)
}

// readFiles returns the files of an archive that a build may need.
func readFiles(ctx context.Context, src archive.Source) (map[string][]byte, error) {
	files, size := map[string][]byte{}, int64(0)
	err := archive.Walk(ctx, src, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		if e.Skipped != "" || !worker.ReadsModuleInput(e.Name) {
			return nil
		}
		if size += e.Size; size > worker.MaxModulesInput {
			return &inputError{size}
		}
		data, err := io.ReadAll(r)
		files[e.Name] = data
		return err
	})
	return files, err
}

// runBuild runs a build in a child, a second time if a signal from outside ended the child.
func runBuild(ctx context.Context, pool *worker.Pool, owner string, q worker.ModulesRequest) (result worker.ModulesResult, err error) {
	data, err := json.Marshal(q)
	if err != nil {
		return result, err
	}
	out, err := pool.Do(ctx, owner, worker.BuildModules, data)
	var crash *worker.CrashError
	if errors.As(err, &crash) && crash.Killed && ctx.Err() == nil {
		out, err = pool.Do(ctx, owner, worker.BuildModules, data)
	}
	if err != nil {
		return result, err
	}
	return result, json.Unmarshal(out, &result)
}

// check returns an error unless a result is within the limits of a build: a hostile package may have taken over the child.
func check(r worker.ModulesResult, inputs map[string][]byte) error {
	if len(r.Files) > maxFiles || len(r.Modules) > worker.MaxSubpaths || len(r.Skipped) > maxSkippedAll {
		return fmt.Errorf("the build has %d files and %d modules, over the limits of %d and %d", len(r.Files), len(r.Modules), maxFiles, worker.MaxSubpaths)
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
		size += len(f.Data)
		imports += len(f.Imports) + len(f.Dynamic)
		if slices.ContainsFunc(slices.Concat(f.Imports, f.Dynamic), func(s string) bool { return s == "" || isLong(s) }) {
			return fmt.Errorf("%s has an import of over %d bytes", f.Path, maxSpecifier)
		}
	}
	if size > maxBytes || imports > maxImports {
		return fmt.Errorf("the build has %d bytes and %d imports, over the limits of %d and %d", size, imports, maxBytes, maxImports)
	}
	for _, s := range r.Skipped {
		if isLong(s.Subpath) {
			return fmt.Errorf("a subpath has over %d bytes", maxSpecifier)
		}
	}
	for _, m := range r.Modules {
		if isLong(m.Subpath) {
			return fmt.Errorf("a subpath has over %d bytes", maxSpecifier)
		}
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
	if names > maxNames {
		return fmt.Errorf("the build's names have %d bytes, over the limit of %d", names, maxNames)
	}
	return nil
}
