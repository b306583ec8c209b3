package download

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
)

// A tar archive that cannot be ended does not end its gzip stream either: a client must not take it for complete.
func TestIncompleteTarHasNoEnd(t *testing.T) {
	var b bytes.Buffer
	a := newArchiver(tarGzip, &b).(tarArchiver)
	if err := a.tar.WriteHeader(&tar.Header{Name: "a", Size: 5}); err != nil {
		t.Fatal(err)
	}
	if a.Close() == nil {
		t.Fatal("an archive without its last file was ended")
	}
	r, err := gzip.NewReader(&b)
	if err == nil {
		_, err = io.ReadAll(r)
	}
	if err == nil {
		t.Error("the gzip stream is complete")
	}
}

func TestModified(t *testing.T) {
	zone := time.FixedZone("", 2*60*60)
	for _, test := range []struct{ released, want time.Time }{
		{time.Time{}, earliest},
		{time.Unix(0, 0), earliest},
		{earliest.Add(-1), earliest},
		{time.Date(2024, 2, 29, 14, 30, 45, 999, zone), time.Date(2024, 2, 29, 12, 30, 45, 0, time.UTC)},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), latest},
	} {
		if got := fileTime(test.released); got != test.want {
			t.Errorf("what was released at %v has the time %v, want %v", test.released, got, test.want)
		}
	}
}

func TestExtractable(t *testing.T) {
	for path, want := range map[string]bool{
		"a": true, "a/b.js": true, ".a/..b": true, "...": true, "C:/x": true, "ü\n": true,
		"": false, ".": false, "..": false, "../a": false, "a/../b": false, "/a": false, "a//b": false, "a/": false, "./a": false,
		`a\b`: false, `..\a`: false, "a\x00": false, "\xff": false,
	} {
		if got := isExtractable(path); got != want {
			t.Errorf("%q is extractable: %v, want %v", path, got, want)
		}
	}
}
