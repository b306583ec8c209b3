package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxPackages limits the packages that the program links, with Go's own. Each takes time to compile, bytes and initialization.
// docs/libraries.md has the share of each library; make budget limits the size of the binary.
const maxPackages = 1200

func TestLinkedPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "nomsgpack", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("couldn't list the packages: %v", err)
	}
	packages := strings.Fields(string(out))
	t.Logf("%d packages are linked", len(packages))
	if len(packages) > maxPackages || len(packages) < 100 {
		t.Errorf("%d packages are linked; at most %d are allowed", len(packages), maxPackages)
	}
}

// TestImportersCompileNoGenericLibrary: the methods of Pebble's and otter's generic types are compiled in one package each, although many
// packages mention types of that package. See handle in kvstore, and rows and bodies in server.
func TestImportersCompileNoGenericLibrary(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the program if that has not been done")
	}
	list := exec.Command("go", "list", "-tags", "nomsgpack", "-trimpath", "-export", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}} {{.Export}}{{end}}{{end}}", ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build has it, so that nothing is compiled twice
	out, err := list.Output()
	if err != nil {
		t.Fatalf("couldn't list the packages: %v", err)
	}
	symbols := map[string][]byte{ // one of many of each library, by the only package that may have it
		"/kvstore": []byte("github.com/cockroachdb/pebble/v2/internal/manifest.(*Annotator["),
		"/server":  []byte("github.com/maypok86/otter/v2.(*cache["),
	}
	compiled := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		name, archive, _ := strings.Cut(strings.TrimSpace(line), " ")
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		for of, symbol := range symbols {
			if bytes.Contains(data, symbol) {
				compiled[of] = append(compiled[of], name)
			}
		}
	}
	for of := range symbols {
		if in := compiled[of]; len(in) != 1 || !strings.HasSuffix(in[0], of) {
			t.Errorf("generic code of a library is compiled in %q, want only %s: an exported type, or a function that is inlined, mentions a type of the library", in, of)
		}
	}
}

// TestServingPackagesParseNoDocuments holds that what answers requests is not linked with parsers of what strangers wrote: only the worker
// process's packages import them.
func TestServingPackagesParseNoDocuments(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	t.Parallel()
	const own = "github.com/larder-cdn/larder/"
	parsers := []string{"github.com/yuin/goldmark", "github.com/microcosm-cc/bluemonday", "github.com/tdewolff/parse/v2", "golang.org/x/net/html", "github.com/evanw/esbuild", own + "bot/worker"}
	isParser := func(path string) bool {
		return slices.ContainsFunc(parsers, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
	}
	list := func(arguments ...string) (lines []string) {
		t.Helper()
		cmd := exec.Command("go", append([]string{"list", "-tags", "nomsgpack"}, arguments...)...)
		cmd.Dir = filepath.Join("..", "..")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	serving := []string{"./api/...", "./server/...", "./logs/tiles/...", "./internal/answers/...", "./internal/document/...", "./internal/requests/..."}
	deps := list(append([]string{"-deps"}, serving...)...)
	if len(deps) < 200 || !slices.Contains(deps, own+"api/site") {
		t.Fatalf("%d packages", len(deps))
	}
	for _, path := range deps {
		if isParser(path) {
			t.Errorf("a package that answers requests is linked with %s", path)
		}
	}
	// Ranges of versions come from package.json files of strangers. Versions were checked at publication.
	for _, file := range list("-f", `{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}} {{end}}`, "./...") {
		for _, name := range strings.Fields(file) {
			if source, err := os.ReadFile(name); err != nil || strings.Contains(string(source), "semver.NewConstraint") {
				t.Errorf("%s reads ranges of versions (%v): only bot/worker may", name, err)
			}
		}
	}
	// The reader of HTML of `larder verify` is for a command.
	for _, line := range list("-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		imports := strings.Fields(line)
		of := strings.TrimPrefix(imports[0], own)
		if of == "logs/verify" || strings.HasPrefix(of, "bot/worker") || strings.HasPrefix(of, "internal/testkit") {
			continue
		}
		for _, path := range imports[1:] {
			if isParser(path) && path != own+"bot/worker" {
				t.Errorf("%s imports %s: only package bot/worker and what is below it may", of, path)
			}
		}
	}
}
