package ingest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// printBuild has this program print the hash of a build.
const printBuild = "print-build"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == worker.Argument {
		worker.RunChild()
	}
	if len(os.Args) > 1 && os.Args[1] == printBuild {
		fmt.Println(hashBuild(len(os.Args) > 2))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// jar is a package with two subpaths that share code, of both kinds of modules.
var jar = map[string]string{
	"package.json": `{"name":"jar","exports":{".":"./index.js","./lid":"./lid.mjs"}}`,
	"index.js":     `exports.shared = require("./shared.js"); exports.react = require("react")`,
	"lid.mjs":      `import shared from "./shared.js"; import "./lid.css"; export const lid = () => [shared, import("./later.mjs")]`,
	"shared.js":    `module.exports = { shared: "the state" }`,
	"later.mjs":    `export default 1`, "lid.css": "a { color: red }",
}

// newArchive returns an archive with these files, sorted by name, or in the reverse order.
func newArchive(files map[string]string, reversed bool) archive.Source {
	var entries []archive.Entry
	for name, text := range files {
		entries = append(entries, archive.Entry{Name: name, Size: int64(len(text))})
	}
	slices.SortFunc(entries, func(a, b archive.Entry) int {
		if reversed {
			a, b = b, a
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return archive.List(entries, func(i int) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(files[entries[i].Name])), nil
	})
}

// newPool returns a pool of this program's processes.
func newPool(o worker.Options) *worker.Pool {
	o.Program, _ = os.Executable()
	o.Size = 1
	return worker.NewPool(o)
}

// jarHash is the hash of the modules of jar on every machine. It changes with esbuild's version and with worker's moduleOptions,
// never without.
const jarHash = "4f37b16b929a62f1fd23519dd86a68dc9258b2f1e4ca5962556c65a57c9f2245"

// hashBuild returns a hash of the modules of jar, or why they were not built.
func hashBuild(reversed bool) string {
	pool := newPool(worker.Options{Timeout: time.Minute})
	defer pool.Close()
	record, files, err := BuildModules(context.Background(), pool, ModulesRelease{Package: "jar", Archive: newArchive(jar, reversed)})
	if err != nil || len(files) == 0 {
		return fmt.Sprintf("%+v, %v", record, err)
	}
	all, err := json.Marshal([]any{record, files})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", sha256.Sum256(all))
}

// TestSameEverywhere holds that a build has the same bytes on every machine, in another folder, with another environment and number of processors, and with
// another order of files in the archive.
func TestSameEverywhere(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got := hashBuild(false); got != jarHash {
		t.Errorf("here: %s, want %s", got, jarHash)
	}
	for _, environ := range []string{"GOMAXPROCS=1 TZ=Asia/Tokyo LANG=tr_TR.UTF-8", "GOMAXPROCS=7 TZ=UTC LANG=C NODE_ENV=development"} {
		folder := t.TempDir()
		cmd := exec.Command(program, printBuild, "reversed")
		cmd.Dir, cmd.Env = folder, append(strings.Fields(environ), "HOME="+folder, "TMPDIR="+folder)
		out, err := cmd.CombinedOutput()
		if got := string(bytes.TrimSpace(out)); got != jarHash || err != nil {
			t.Errorf("%s: %s, %v; want %s", environ, got, err, jarHash)
		}
	}
}

// TestBuildIsBounded holds that a package which takes too much gets no modules, for a reason that is recorded.
func TestBuildIsBounded(t *testing.T) {
	t.Parallel()
	const manifest = `{"exports":{".":"./index.js","./other":"./other.js"}}`
	large := "export default [" + strings.Repeat("{},", 300_000) + "]"
	for _, tt := range []struct {
		name    string
		options worker.Options
		files   map[string]string
		want    string
	}{
		{"memory", worker.Options{Memory: 64 << 20}, map[string]string{"index.js": large}, "it needed more than 64 MiB of memory"},
		{"input", worker.Options{}, map[string]string{"index.js": strings.Repeat(" ", worker.MaxModulesInput+1)}, "over 33554432 bytes"},
		{"depth of code", worker.Options{}, map[string]string{"index.js": strings.Repeat("{", 100_000)}, "index.js: "},
		{"depth of styles", worker.Options{}, map[string]string{"index.js": `import "./a.css"`, "a.css": strings.Repeat("a{", 10_000)}, "a.css: "},
		{"depth of exports", worker.Options{}, map[string]string{"package.json": `{"exports":` + strings.Repeat(`{"default":`, 50) + `"./index.js"` + strings.Repeat("}", 51)}, "over 20 levels"},
		{"published already", worker.Options{}, map[string]string{"index.js": "export{}"}, "publishes another file at esm/index.mjs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "memory" && (runtime.GOOS != "linux" || raceEnabled) {
				t.Skip("only Linux limits memory, and not as closely that of the race detector")
			}
			pool := newPool(tt.options)
			defer pool.Close()
			files := map[string]string{"package.json": manifest}
			maps.Copy(files, tt.files)
			waited := false
			record, built, err := BuildModules(t.Context(), pool, ModulesRelease{
				Package: "jar", Archive: newArchive(files, false), Published: func(path string) bool { return tt.name == "published already" },
				Acquire: func(here, child int64) (func(), error) { waited = true; return func() {}, nil },
			})
			if waited != (tt.name != "input") {
				t.Errorf("it waited for memory: %v", waited)
			}
			if err != nil || !strings.Contains(record.Problem, tt.want) || len(built) > 0 || record.Subpaths != nil || record.Inputs != nil {
				t.Errorf("%d files, %+v, %v; want %q", len(built), record, err, tt.want)
			}
		})
	}
}

// TestTransientErrors holds that a busy machine, which ends a build or has no process for it, does not decide that a release has no modules.
func TestTransientErrors(t *testing.T) {
	t.Parallel()
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	busy := errors.New("busy")
	for name, tt := range map[string]struct {
		ctx     context.Context
		options worker.Options
		acquire func(here, child int64) (func(), error)
		want    error
	}{
		"stopped":      {stopped, worker.Options{}, nil, context.Canceled},
		"out of time":  {t.Context(), worker.Options{Timeout: 1}, nil, nil},
		"not acquired": {t.Context(), worker.Options{}, func(int64, int64) (func(), error) { return nil, busy }, busy},
	} {
		pool := newPool(tt.options)
		record, _, err := BuildModules(tt.ctx, pool, ModulesRelease{Package: "jar", Archive: newArchive(jar, false), Acquire: tt.acquire})
		if err == nil || record != nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: %+v, %v", name, record, err)
		}
		pool.Close()
	}
}

// TestCheckResult holds the limits of what a worker returns, which a hostile package may have taken over.
func TestCheckResult(t *testing.T) {
	long := strings.Repeat("a", maxSpecifier+1)
	file := func(path string) worker.ModuleFile { return worker.ModuleFile{Path: path} }
	of := func(n int, f func(i int) worker.ModuleFile) (r worker.ModulesResult) {
		for i := range n {
			r.Files = append(r.Files, f(i))
		}
		return r
	}
	for want, r := range map[string]worker.ModulesResult{
		"":                        {Files: []worker.ModuleFile{file("esm/index.mjs")}, Inputs: []string{"index.js"}},
		"over the limits of 2000": of(worker.MaxModulesFiles+1, func(i int) worker.ModuleFile { return file(fmt.Sprintf("esm/%d.mjs", i)) }),
		`a file at "dist/a.js"`:   of(1, func(int) worker.ModuleFile { return file("dist/a.js") }),
		`a file at "esm/../a.js"`: of(1, func(int) worker.ModuleFile { return file("esm/../a.js") }),
		`a file at "esm/a\nb"`:    of(1, func(int) worker.ModuleFile { return file("esm/a\nb") }),
		`a file at "esm/a.mjs"`:   of(2, func(int) worker.ModuleFile { return file("esm/a.mjs") }),
		`a file at "esm/aaaa`:     of(1, func(int) worker.ModuleFile { return file("esm/" + long) }),
		"an import of over 500":   of(1, func(int) worker.ModuleFile { return worker.ModuleFile{Path: "esm/a.mjs", Imports: []string{long}} }),
		"would have": of(1, func(int) worker.ModuleFile {
			return worker.ModuleFile{Path: "esm/a.mjs", Data: make([]byte, packages.MaxFile+1)}
		}),
		"20001 imports": of(1, func(int) worker.ModuleFile {
			return worker.ModuleFile{Path: "esm/a.mjs", Dynamic: slices.Repeat([]string{"a"}, maxImports+1)}
		}),
		"67108865 bytes": of(64, func(i int) worker.ModuleFile {
			return worker.ModuleFile{Path: fmt.Sprintf("esm/%d.mjs", i), Data: make([]byte, 1<<20+i/63)}
		}),
		"names have": of(worker.MaxModulesFiles, func(i int) worker.ModuleFile {
			return worker.ModuleFile{Path: fmt.Sprintf("esm/%d.mjs", i), Imports: []string{long[1:], long[2:]}}
		}),
		`lacks "esm/index.mjs"`:  {Modules: []worker.Module{{Subpath: ".", Path: "esm/index.mjs"}}},
		"a subpath has over 500": {Skipped: []worker.SkippedSubpath{{Subpath: long}}},
		`has read "/etc/passwd"`: {Inputs: []string{"/etc/passwd"}},
		`globals of "a.js"`:      {Globals: map[string][]string{"a.js": {"process"}}},
		`globals of "index.js"`:  {Globals: map[string][]string{"index.js": {long}}},
	} {
		if err := checkResult(r, map[string][]byte{"index.js": nil}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
