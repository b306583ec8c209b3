package sources

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore"
)

// TestRecordOfAnOlderVersion reads the upstream of a package from a store of version 0.1.0, which has the versions in the same row, and writes it with a row
// of their own.
func TestRecordOfAnOlderVersion(t *testing.T) {
	dir := t.TempDir()
	unpackKept(t, dir)
	store, err := kvstore.Open(filepath.Join(dir, "data", "store"), kvstore.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	row := func(key []byte) []byte {
		data, err := store.Get(kvstore.Upstreams, key)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	before, err := LookupUpstream(store, "demo")
	if err != nil || len(before.Seen) < 4 || !bytes.Contains(row(kvstore.Key("demo")), []byte(`"seen"`)) {
		t.Fatalf("%+v, %v", before, err)
	}
	r := NewRecords(RecordsOptions{Store: store, Logger: slog.New(slog.DiscardHandler), Interval: time.Hour, Changed: func(string) {}, Now: time.Now})
	if err := r.Set(r.Known("demo")); err != nil {
		t.Fatal(err)
	}
	after, err := LookupUpstream(store, "demo")
	if err != nil || !slices.Equal(after.Seen, before.Seen) || len(after.Tried) != len(before.Tried) || after.Filled != before.Filled {
		t.Errorf("%+v, %v; want %+v", after, err, before)
	}
	if bytes.Contains(row(kvstore.Key("demo")), []byte(`"seen"`)) || !bytes.Contains(row(upstreamVersionsKey("demo")), []byte(`"seen"`)) {
		t.Error("the versions are not in a row of their own")
	}
}

// TestDamagedVersions tests that nothing is kept of a record whose versions are damaged, so that the next poll is not conditional.
func TestDamagedVersions(t *testing.T) {
	store, err := kvstore.Open("store", kvstore.Options{FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r := NewRecords(RecordsOptions{Store: store, Logger: slog.New(slog.DiscardHandler), Interval: time.Hour, Changed: func(string) {}, Now: time.Now})
	u := r.Known("demo")
	u.Validators.ETag, u.Seen = `"1"`, []string{"1.0.0"}
	if err := r.Set(u); err != nil {
		t.Fatal(err)
	}
	if u := r.Known("demo"); u.Validators.ETag == "" || len(u.Seen) != 1 {
		t.Fatalf("stored: %+v", u)
	}
	b := store.NewBatch()
	b.Set(kvstore.Upstreams, upstreamVersionsKey("demo"), []byte("{"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if u := r.Known("demo"); u.Validators.ETag != "" || u.Package != "demo" {
		t.Errorf("damaged: %+v", u)
	}
}

// unpackKept unpacks the data folder of version 0.1.0.
func unpackKept(t *testing.T, dir string) {
	t.Helper()
	file, err := os.Open("../../cmd/larder/testdata/kept/v0.1.0.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(zip); ; {
		h, err := files.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(name, 0o700)
		} else if h.Typeflag == tar.TypeReg {
			var data []byte
			if data, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(name, data, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
