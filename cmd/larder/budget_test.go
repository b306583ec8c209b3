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

// TestImportersCompileNoPebble: the methods of Pebble's generic types are compiled in kvstore and nowhere else, although many
// packages mention its types. See handle in kvstore.
func TestImportersCompileNoPebble(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the program if that has not been done")
	}
	list := exec.Command("go", "list", "-tags", "nomsgpack", "-trimpath", "-export", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}} {{.Export}}{{end}}{{end}}", ".")
	list.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build has it, so that nothing is compiled twice
	out, err := list.Output()
	if err != nil {
		t.Fatalf("couldn't list the packages: %v", err)
	}
	symbol := []byte("github.com/cockroachdb/pebble/v2/internal/manifest.(*Annotator[") // one of many
	var compiled []string
	for line := range strings.Lines(string(out)) {
		name, archive, _ := strings.Cut(strings.TrimSpace(line), " ")
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, symbol) {
			compiled = append(compiled, name)
		}
	}
	if len(compiled) != 1 || !strings.HasSuffix(compiled[0], "/kvstore") {
		t.Errorf("Pebble's generic code is compiled in %q, want only kvstore: an exported type, or a function that is inlined, mentions a type of Pebble's", compiled)
	}
}
