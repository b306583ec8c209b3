package worker

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestInstalled builds all packages that npm has installed in the folder LARDER_TEST_MODULES, twice with different numbers of processors, and holds
// that both builds have the same bytes. It prints the time and the size of each.
func TestInstalled(t *testing.T) {
	folder := os.Getenv("LARDER_TEST_MODULES")
	if folder == "" {
		t.Skip("LARDER_TEST_MODULES names no node_modules folder; make modules sets it")
	}
	var total time.Duration
	var files, size int
	for _, pattern := range []string{"*/package.json", "@*/*/package.json"} {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, manifest := range found {
			q := readInstalled(t, filepath.Dir(manifest))
			start := time.Now()
			first, err := buildModules(q)
			used := time.Since(start)
			before := runtime.GOMAXPROCS(1)
			second, secondErr := buildModules(q)
			runtime.GOMAXPROCS(before)
			if (err == nil) != (secondErr == nil) || len(first.Files) != len(second.Files) {
				t.Fatalf("%s: %d files, %v; then %d, %v", q.Package, len(first.Files), err, len(second.Files), secondErr)
			}
			bytesOf := 0
			for i, f := range first.Files {
				if f.Path != second.Files[i].Path || !bytes.Equal(f.Data, second.Files[i].Data) {
					t.Errorf("%s: %s differs between two builds", q.Package, f.Path)
				}
				bytesOf += len(f.Data)
			}
			total, files, size = total+used, files+len(first.Files), size+bytesOf
			t.Logf("%s: %d modules, %d files, %d bytes, %s, %v", q.Package, len(first.Modules), len(first.Files), bytesOf, used.Round(time.Millisecond), err)
		}
	}
	t.Logf("in all %d files, %d bytes, %s", files, size, total.Round(time.Millisecond))
}

// readInstalled returns a request for all modules of a package in a folder.
func readInstalled(t *testing.T, folder string) ModulesRequest {
	q := ModulesRequest{Files: map[string][]byte{}}
	source := os.DirFS(folder)
	err := fs.WalkDir(source, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "node_modules" {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !IsModuleInput(path) {
			return err
		}
		q.Files[path], err = fs.ReadFile(source, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Name string }
	_ = json.Unmarshal(q.Files["package.json"], &manifest)
	q.Package = manifest.Name
	return q
}
