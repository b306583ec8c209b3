package main

import (
	"bytes"
	"os"
	"os/exec"
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
