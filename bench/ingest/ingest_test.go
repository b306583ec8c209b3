package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

func TestRegistryKeepsWhatItGave(t *testing.T) {
	upstream := npmtest.New(t)
	upstream.Add("@scope/pkg", "1.0.0", time.Unix(1e9, 0), map[string]string{"dist/a.js": "var a"})
	upstream.Setenv(t)
	folder := t.TempDir()

	get := func(r *registry, path string) string {
		t.Helper()
		response, err := http.Get(r.server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s: %s", path, response.Status, body)
		}
		return string(body)
	}
	var before string
	for _, want := range []int64{2, 0} {
		r, err := startRegistry(folder)
		if err != nil {
			t.Fatal(err)
		}
		if p := get(r, "/@scope%2fpkg"); !strings.Contains(p, r.server.URL+"/-/tarballs/@scope%2Fpkg/1.0.0") {
			t.Errorf("the packument does not point here: %s", p)
		}
		tarball := get(r, "/-/tarballs/@scope%2Fpkg/1.0.0")
		if before != "" && tarball != before {
			t.Error("the tarball has changed")
		}
		before = tarball
		if got := r.fetched.Load(); got != want {
			t.Errorf("%d things fetched, want %d", got, want)
		}
		r.close()
	}
}

func TestReadCorpus(t *testing.T) {
	folder := t.TempDir()
	for name, data := range map[string]string{"a": "same", "b": "same", "c": "other", "empty": ""} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	c, err := readCorpus(folder)
	if err != nil {
		t.Fatal(err)
	}
	if c.files != 3 || c.bytes != 13 || len(c.contents) != 2 || total(c.contents) != 9 {
		t.Errorf("%d files of %d bytes, %d contents of %d", c.files, c.bytes, len(c.contents), total(c.contents))
	}
	coded := sizes{c.contents[0].hash: 100} // larger than the content, and none for the other
	if got := coded.sent(c.contents); got != 9 {
		t.Errorf("%d bytes sent, want both as they are", got)
	}
}

func TestMeasureStopsAtFailure(t *testing.T) {
	contents := []content{{file: filepath.Join(t.TempDir(), "missing"), size: 1}}
	_, _, err := measure(context.Background(), "missing", contents, 2, func(_ context.Context, c content) (int64, error) {
		_, err := os.ReadFile(c.file)
		return 0, err
	})
	if !os.IsNotExist(err) {
		t.Errorf("error %v", err)
	}
}
