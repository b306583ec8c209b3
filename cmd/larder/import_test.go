package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/internal/app"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages/archive"
)

// importForms are the forms in which a release can be imported. Each writes files to a path.
var importForms = map[string]func(path string, files map[string]string) error{
	"folder": func(path string, files map[string]string) error {
		for name, data := range files {
			file := filepath.Join(path, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
				return err
			}
		}
		return nil
	},
	"tar": func(path string, files map[string]string) error { return writeFile(path, files, writeTar) },
	"tgz": func(path string, files map[string]string) error {
		return writeFile(path, files, func(to io.Writer, files map[string]string) error {
			w := gzip.NewWriter(to)
			if err := writeTar(w, files); err != nil {
				return err
			}
			return w.Close()
		})
	},
	"zip": func(path string, files map[string]string) error { return writeFile(path, files, writeZip) },
}

func writeFile(path string, files map[string]string, write func(io.Writer, map[string]string) error) error {
	var data bytes.Buffer
	if err := write(&data, files); err != nil {
		return err
	}
	return os.WriteFile(path, data.Bytes(), 0o600)
}

func writeTar(to io.Writer, files map[string]string) error {
	w := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name])), Mode: 0o644}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			return err
		}
	}
	return w.Close()
}

func writeZip(to io.Writer, files map[string]string) error {
	w := zip.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := w.Create(name)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(f, files[name]); err != nil {
			return err
		}
	}
	return w.Close()
}

// An importedRelease is a release that the test has imported in one form at one place.
type importedRelease struct{ release, form, place, pkg, version string }

// TestImportIsTheSameEverywhere imports the same releases as a folder and as each form of archive, on the leader, through a
// follower and without a process, and compares the manifests.
func TestImportIsTheSameEverywhere(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	c := newCrew(t)
	c.write("catalogue/packages/h/hand.json", `{"name": "hand", "description": "A test.", "keywords": ["test"], "filename": "hand.js",
		"repository": {"type": "git", "url": "https://example.com/hand.git"}}`)
	leader := c.machine("one", nil)
	leader.start()
	leader.writes()
	follower := c.machine("two", leader, followerFiles...)
	follower.start()
	c.answers(leader.publish(), 200, leader, follower)
	offline := c.machine("offline", nil)
	places := map[string]*machine{"leader": leader, "follower": follower, "offline": offline}

	releases := []struct {
		name, pkg string
		files     map[string]string
		flags     []string
		want      string
	}{
		{"one file", "demo", map[string]string{"demo.js": "demo()"}, nil, "demo.js"},
		{"one file of a package without file map", "hand", map[string]string{"hand.js": "hand()"}, nil, "hand.js"},
		{"one subfolder", "hand", map[string]string{"hand-1.0/hand.js": "hand()", "hand-1.0/css/hand.css": "a { color: red }"}, nil, "hand-1.0/css/hand.css hand-1.0/hand.js"},
		{"a folder named package", "hand", map[string]string{"package/hand.js": "hand()", "package/package.json": "{}"}, nil, "package/hand.js package/package.json"},
		{"files and folders", "hand", map[string]string{"README.md": "read me", "a/b/c.js": "c()", "a/same.js": "c()", "empty.css": ""}, nil, "README.md a/b/c.js a/same.js empty.css"},
		{"what npm pack makes", "hand", map[string]string{"package/hand.js": "hand()", "package/package.json": "{}"}, []string{"--npm"}, "hand.js package.json"},
	}
	single := filepath.Join(c.dir, "sources", "single", "demo.js")
	c.write("sources/single/demo.js", "demo()")
	var imported []importedRelease
	for place, m := range places {
		version := fmt.Sprintf("7.1.%d", len(imported))
		if out, code := m.command("import", "demo", version, single, "--catalogue", c.catalogue); code != exitDone {
			t.Errorf("a single file at %s: exit code %d: %s", place, code, out)
			continue
		}
		imported = append(imported, importedRelease{"one file", "single file", place, "demo", version})
	}
	for _, release := range releases {
		for form, write := range importForms {
			if form == "folder" && release.flags != nil {
				continue // npm pack makes archives
			}
			source := filepath.Join(c.dir, "sources", strings.ReplaceAll(release.name, " ", "-"), form)
			if err := os.MkdirAll(filepath.Dir(source), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := write(source, release.files); err != nil {
				t.Fatal(err)
			}
			for place, m := range places {
				version := fmt.Sprintf("7.0.%d", len(imported))
				args := append([]string{"import", release.pkg, version, source}, release.flags...)
				if place == "offline" {
					args = append(args, "--catalogue", c.catalogue)
				}
				if out, code := m.command(args...); code != exitDone {
					t.Errorf("%s as %s at %s: exit code %d: %s", release.name, form, place, code, out)
					continue
				}
				imported = append(imported, importedRelease{release.name, form, place, release.pkg, version})
			}
		}
	}
	for place, m := range places {
		c.importBroken(place, m)
	}
	c.answers(leader.publish(), 200, follower)
	follower.end(os.Interrupt)
	leader.end(os.Interrupt)
	for place, m := range places {
		if left, err := filepath.Glob(filepath.Join(m.data, "tmp", "*", "import-*")); err != nil || len(left) > 0 {
			t.Errorf("the temporary folder of the %s has %v, %v", place, left, err)
		}
		if out, code := m.command("fsck", "--all"); code != exitDone {
			t.Errorf("fsck of the %s: %s", place, out)
		}
	}

	first := map[string]string{}
	for _, i := range imported {
		m := places[i.place]
		if i.place == "follower" {
			m = leader // the store that has all
		}
		encoded, paths := c.readManifest(m.data, i.pkg, i.version)
		for _, release := range releases {
			if release.name == i.release && paths != release.want {
				t.Errorf("%s as %s at %s has the files %s, want %s", i.release, i.form, i.place, paths, release.want)
			}
		}
		if first[i.release] == "" {
			first[i.release] = encoded
		}
		if encoded != first[i.release] {
			t.Errorf("%s as %s at %s has the manifest\n%s\nand elsewhere\n%s", i.release, i.form, i.place, encoded, first[i.release])
		}
	}
}

// readManifest returns the manifest of a release without its version and date, and its paths. No process has the store open.
func (c *crew) readManifest(data, pkg, version string) (encoded, paths string) {
	c.Helper()
	store, err := kvstore.Open(filepath.Join(data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		c.Fatal(err)
	}
	defer store.Close()
	v, err := views.LookupVersion(store, pkg, version)
	if err != nil {
		c.Fatalf("%s %s: %v", pkg, version, err)
	}
	m, err := logs.ReadManifest(store, v.Manifest)
	if err != nil {
		c.Fatal(err)
	}
	var all []string
	for _, f := range m.Files {
		if f.Origin == logs.Upstream {
			all = append(all, f.Path)
		}
	}
	m.Version, m.Released = "0", time.Unix(0, 0).UTC()
	bytes, err := m.Encode()
	if err != nil {
		c.Fatal(err)
	}
	return string(bytes), strings.Join(all, " ")
}

// importBroken imports releases whose contents do not arrive as the list says, and then one that does.
func (c *crew) importBroken(place string, m *machine) {
	c.Helper()
	right := place + "()" // no other place has this content
	version := "8.0." + map[string]string{"leader": "0", "follower": "1", "offline": "2"}[place]
	broken := errors.New("the disk of the client is broken")
	for _, test := range []struct {
		name, want string
		second     io.Reader // the bytes at the second reading
	}{
		{"an interrupted upload", broken.Error(), iotest.ErrReader(broken)},
		{"other bytes", "run the same command again", strings.NewReader(strings.ToUpper(right))},
		{"sound", "", strings.NewReader(right)},
	} {
		next := []io.Reader{strings.NewReader(right), test.second}
		source := archive.List([]archive.Entry{{Name: "hand.js", Size: int64(len(right))}}, func(int) (io.ReadCloser, error) {
			r := next[0]
			next = next[1:]
			return io.NopCloser(r), nil
		})
		err := m.importSource("hand", version, source)
		if (err == nil) != (test.want == "") || err != nil && (!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "hand "+version+" was not imported: ")) {
			c.Errorf("%s at the %s: %v", test.name, place, err)
		}
	}
}

// importSource imports as the command does.
func (m *machine) importSource(pkg, version string, source archive.Source) error {
	m.Helper()
	a := newCLI(os.Environ(), io.Discard, io.Discard)
	a.settings.Data, a.settings.Catalogue = m.data, m.catalogue
	return a.withClient(m.Context(), nil, a.openForWriting(appendingToLog), func(client *app.Client) error {
		return ingest.SendRelease(m.Context(), app.Importer(client, nil), pkg, version, "", source)
	})
}
