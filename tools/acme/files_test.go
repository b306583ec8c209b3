package acme_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/server"
	"github.com/letsencrypt/pebble/v2/wfe"
)

func TestDamagedFolder(t *testing.T) {
	w := newWorld(t)
	first := w.start(w.tlsALPN())
	first.issue()
	first.stop()
	found := 0
	walk(t, w.folder, func(name string, _ fs.FileInfo) {
		if strings.HasSuffix(name, ".crt") {
			found++
			if err := os.WriteFile(name, []byte("half a certif"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	if found != 1 {
		t.Fatalf("%d certificates in the folder", found)
	}
	o := w.tlsALPN()
	o.Domains, o.Folder = []string{w.domain}, w.folder
	o.Directory = authority.server.URL + wfe.DirectoryPath
	_, err := server.NewCertificateManager(o)
	if err == nil || !strings.Contains(err.Error(), w.folder) || !strings.Contains(err.Error(), "move that folder away") {
		t.Errorf("the error is %v", err)
	}
}

func checkModes(t *testing.T, folder string) {
	t.Helper()
	walk(t, folder, func(name string, info fs.FileInfo) {
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may read %s: %v", name, info.Mode())
		}
	})
}

func walk(t *testing.T, folder string, see func(string, fs.FileInfo)) {
	t.Helper()
	err := filepath.Walk(folder, func(name string, info fs.FileInfo, err error) error {
		if err == nil {
			see(name, info)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
