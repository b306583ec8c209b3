package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// keptStores are data folders with their keys and catalogue, as released versions left them: VERSION.tar.gz. They are kept
// for good, because operators have such folders.
const keptStores = "testdata/kept"

// TestKept has this larder take over what each released version left.
func TestKept(t *testing.T) {
	kept, err := filepath.Glob(filepath.Join(keptStores, "*.tar.gz"))
	if err != nil || len(kept) == 0 {
		t.Fatalf("no kept stores: %v", err)
	}
	for _, file := range kept {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".tar.gz"), func(t *testing.T) {
			keptScript(t, "check.txtar", file)
		})
	}
}

// TestKeep makes the folder that is kept of a release, LARDER_TEST_KEEP=v0.1.0. One that is there is never made again.
func TestKeep(t *testing.T) {
	version := testVariable("KEEP")
	if version == "" {
		t.Skip("LARDER_TEST_KEEP names no version")
	}
	file := filepath.Join(keptStores, version+".tar.gz")
	if _, err := os.Stat(file); err == nil {
		t.Fatalf("%s is kept already", file)
	}
	keptScript(t, "make.txtar", file)
}

func keptScript(t *testing.T, script, file string) {
	kept, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	p := scriptParams()
	p.Files = []string{filepath.Join(keptStores, script)}
	setup := p.Setup
	p.Setup = func(env *testscript.Env) error {
		env.Setenv("KEPT", kept)
		return setup(env)
	}
	testscript.Run(t, p)
}
