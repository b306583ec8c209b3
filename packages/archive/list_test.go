package archive_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/packages/archive"
)

// walked returns the entries of a source with their bytes.
func walked(t *testing.T, source archive.Source) (string, error) {
	t.Helper()
	var got []string
	err := archive.Walk(t.Context(), source, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		data, err := io.ReadAll(r)
		got = append(got, e.Name+":"+e.Skipped+":"+string(data))
		return err
	})
	return strings.Join(got, " "), err
}

func TestList(t *testing.T) {
	lost := errors.New("lost")
	contents := map[int]string{0: "one", 2: "three"}
	list := func(entries ...archive.Entry) archive.Source {
		return archive.List(entries, func(i int) (io.ReadCloser, error) {
			if data, ok := contents[i]; ok {
				return io.NopCloser(strings.NewReader(data)), nil
			}
			return nil, lost
		})
	}
	got, err := walked(t, list(archive.Entry{Name: "./a", Size: 3}, archive.Entry{Name: "b", Skipped: "symbolic link"}, archive.Entry{Name: "c/d", Size: 5}))
	if want := "a::one b:symbolic link: c/d::three"; got != want || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := walked(t, list(archive.Entry{Name: "a", Size: 3}, archive.Entry{Name: "b", Size: 1})); !errors.Is(err, lost) || !strings.Contains(err.Error(), `the content of "b"`) {
		t.Errorf("a content that cannot be read: %v", err)
	}
	for want, entries := range map[string][]archive.Entry{
		"truncated":                {{Name: "a", Size: 4}},
		"larger than it says":      {{Name: "a", Size: 2}},
		`".." in the name`:         {{Name: "x/../../a", Size: 3}},
		"the same name twice":      {{Name: "a", Size: 3}, {Name: "a", Skipped: "symbolic link"}},
		"over 1073741824 bytes":    {{Name: "a", Size: 1 << 40}},
		"more than 100 folders de": {{Name: strings.Repeat("a/", 100) + "a", Size: 3}},
	} {
		var refused *archive.RefusedError
		if _, err := walked(t, list(entries...)); !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestSingleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.js")
	for _, data := range []string{"", "a()"} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.OpenFile(path); !errors.Is(err, archive.ErrNotArchive) {
			t.Errorf("%q is an archive: %v", data, err)
		}
		if got, err := walked(t, archive.SingleFile(path)); got != "a.js::"+data || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// An archive that cannot be read must not be published as a file.
func TestArchivesOfOtherForms(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	for form, data := range map[string]string{"xz": "\xfd7zXZ\x00\x00", "bzip2": "BZh91AY", "zstd": "\x28\xb5\x2f\xfd\x04", "7z": "7z\xbc\xaf\x27\x1c", "rar": "Rar!\x1a\x07\x01"} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.OpenFile(path); err == nil || errors.Is(err, archive.ErrNotArchive) || !strings.Contains(err.Error(), "compressed with "+form) {
			t.Errorf("%s: %v", form, err)
		}
	}
}
