package disk_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
)

// TestMakeFolder cuts the power after a folder was made.
func TestMakeFolder(t *testing.T) {
	for _, dir := range []string{"/a", "/a/b/c"} {
		memory := vfs.NewCrashableMem()
		if err := disk.MakeFolder(memory, dir); err != nil {
			t.Fatal(err)
		}
		if err := disk.MakeFolder(memory, dir); err != nil {
			t.Errorf("%s is there: %v", dir, err)
		}
		if info, err := memory.CrashClone(vfs.CrashCloneCfg{}).Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("%s after a power failure: %v, %v", dir, info, err)
		}
	}
}

func TestWholeFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	want := func(text string, mode fs.FileMode) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil || string(data) != text {
			t.Errorf("the file holds %q, want %q (%v)", data, text, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("its mode is %v, want %v (%v)", info.Mode(), mode, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("there is more than the file: %v (%v)", entries, err)
		}
	}
	if err := disk.Create(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("one", 0o600)
	if err := disk.Create(path, []byte("two"), 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	want("one", 0o600)
	if err := disk.Replace(path, []byte("three"), 0o644); err != nil {
		t.Fatal(err)
	}
	want("three", 0o644)
	if err := disk.Replace(filepath.Join(dir, "none", "file"), nil, 0o644); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
	want("three", 0o644)
}
