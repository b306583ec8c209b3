package packages

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// valid returns a package JSON for a package of that name.
func valid(name string) string {
	return fmt.Sprintf(`{"name":%q,"filename":"a.js","description":"A test.","keywords":["test"],`+
		`"repository":{"type":"git","url":"https://github.com/owner/test.git"}}`, name)
}

// writeFiles lays out files, by slash-separated path, in a new folder.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func writeArchive(t *testing.T, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, content, 0o666); err != nil {
		t.Fatal(err)
	}
	return file
}

func tarGz(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zw := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w, err := zw.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// names returns what the catalogue holds: packages, then "!" and refused files.
func names(c *Catalogue) string {
	var all []string
	for _, p := range c.Packages() {
		all = append(all, p.Name)
	}
	for _, p := range c.Problems() {
		all = append(all, "!"+p.File)
	}
	return strings.Join(all, " ")
}

func TestOpen(t *testing.T) {
	layout := map[string]string{
		"README.md":                "hello",
		"package.json":             valid("package"),
		"packages/a/alpha.json":    valid("alpha"),
		"packages/b/Beta.json":     valid("Beta"),
		"packages/b/bad.json":      "{",
		"packages/g/big.json":      strings.Repeat(" ", MaxFileSize+1),
		"packages/g/notes.txt":     "x",
		"packages/.hidden/no.json": valid("no"),
		"packages/h/.no.json":      valid("no"),
	}
	const want = "Beta alpha !packages/b/bad.json !packages/g/big.json"
	within := make(map[string]string)
	for name, content := range layout {
		within["packages-master/"+name] = content
	}
	dir := writeFiles(t, layout)
	for name, test := range map[string]struct{ source, want string }{
		"folder":                 {dir, want},
		"the packages folder":    {filepath.Join(dir, "packages"), "Beta alpha !b/bad.json !g/big.json"},
		"one letter":             {filepath.Join(dir, "packages", "a"), "alpha"},
		"flat folder":            {writeFiles(t, map[string]string{"a.json": valid("a"), "b.json": valid("b"), "c.txt": ""}), "a b"},
		"tar.gz":                 {writeArchive(t, "c.tar.gz", tarGz(t, layout)), want},
		"tgz of a forge":         {writeArchive(t, "c.tgz", tarGz(t, within)), want},
		"zip":                    {writeArchive(t, "c.zip", zipped(t, layout)), want},
		"zip of a forge":         {writeArchive(t, "c.zip", zipped(t, within)), want},
		"zip without the folder": {writeArchive(t, "c.zip", zipped(t, map[string]string{"x.json": valid("x")})), "x"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Open(test.source)
			if err != nil {
				t.Fatal(err)
			}
			if got := names(c); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestOpenFails(t *testing.T) {
	for name, test := range map[string]struct{ source, want string }{
		"missing":       {filepath.Join(t.TempDir(), "none"), "no such file"},
		"empty folder":  {t.TempDir(), "holds no package"},
		"not a package": {writeFiles(t, map[string]string{"a.txt": ""}), "holds no package"},
		"not an archive": {
			writeArchive(t, "c.tar.gz", []byte("hello")), "c.tar.gz",
		},
		"half an archive": {
			writeArchive(t, "c.tar.gz", tarGz(t, map[string]string{"packages/a/a.json": valid("a")})[:100]), "c.tar.gz",
		},
		"a name that climbs": {
			writeArchive(t, "c.tar.gz", tarGz(t, map[string]string{"../a.json": valid("a")})), "..",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Open(test.source)
			if err == nil {
				t.Fatalf("opened: %s", names(c))
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v does not say %q", err, test.want)
			}
		})
	}
}

func TestOpenFollowsNoLinks(t *testing.T) {
	outside := writeFiles(t, map[string]string{"secret.json": valid("secret"), "d/deep.json": valid("deep")})
	dir := writeFiles(t, map[string]string{"packages/a/alpha.json": valid("alpha")})
	for link, target := range map[string]string{
		"packages/a/secret.json": filepath.Join(outside, "secret.json"),
		"packages/a/again.json":  "alpha.json",
		"packages/d":             filepath.Join(outside, "d"),
		"packages/loop":          "..",
	} {
		if err := os.Symlink(target, filepath.Join(dir, filepath.FromSlash(link))); err != nil {
			t.Skip("no symbolic links here: ", err)
		}
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(c); got != "alpha" {
		t.Errorf("got %s", got)
	}
	// The folder that the operator names may itself be a link.
	link := filepath.Join(t.TempDir(), "catalogue")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if c, err = Open(link); err != nil || names(c) != "alpha" {
		t.Errorf("through a link: %v", err)
	}
}

func TestOpenUnreadableFile(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"packages/a/alpha.json": valid("alpha"), "packages/b/beta.json": valid("beta"), "packages/c/c.json": valid("c"),
	})
	if err := os.Chmod(filepath.Join(dir, "packages", "a", "alpha.json"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "packages", "c"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "packages", "c"), 0o777) })
	if f, err := os.Open(filepath.Join(dir, "packages", "a", "alpha.json")); err == nil {
		f.Close()
		t.Skip("this user reads everything")
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(c), "beta !packages/a/alpha.json !packages/c"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheSameNameTwice(t *testing.T) {
	c, err := Open(writeFiles(t, map[string]string{
		"packages/a/alpha.json": valid("alpha"), "packages/b/alpha.json": valid("alpha"), "packages/a/Alpha.json": valid("Alpha"),
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(c), "Alpha alpha !packages/b/alpha.json"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	want := `packages/b/alpha.json:1:1: error: "alpha" is also the package of packages/a/alpha.json; remove one of the files`
	if got := c.Problems()[0].Error(); got != want {
		t.Errorf("got %s", got)
	}
}

func TestMisplacedFile(t *testing.T) {
	c, err := Open(writeFiles(t, map[string]string{"packages/x/alpha.json": valid("alpha")}))
	if err != nil {
		t.Fatal(err)
	}
	p, ok := c.Get("alpha")
	if !ok || len(p.Warnings) != 1 || p.Warnings[0].Message != "the file belongs at packages/a/alpha.json" {
		t.Errorf("got %+v", p)
	}
}

// TestPublicCatalogue loads the public catalogue's package JSONs where they lie
// beside the checkout, and pins what is refused and why.
func TestPublicCatalogue(t *testing.T) {
	source := publicCatalogue(t)
	c, err := Open(source)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]int{}
	for _, file := range c.Problems() {
		for _, p := range file.Problems {
			if p.Severity == Error {
				reasons[reason(p)]++
			}
		}
	}
	warnings, withoutAutoupdate := 0, 0
	for _, p := range c.Packages() {
		warnings += len(p.Warnings)
		if p.Autoupdate == nil {
			withoutAutoupdate++
		}
		if len(p.CheckNew()) > 0 != (p.Autoupdate == nil) {
			t.Errorf("%s: CheckNew says %v", p.Name, p.CheckNew())
		}
	}
	if len(c.Packages()) != 4097 || len(c.Problems()) != 21 || warnings != 18 || withoutAutoupdate != 196 {
		t.Errorf("%d packages, %d refused, %d warnings, %d without autoupdate",
			len(c.Packages()), len(c.Problems()), warnings, withoutAutoupdate)
	}
	want := map[string]int{
		"no repository":            13,
		"name is not the file's":   6,
		"a property appears twice": 2,
	}
	if !maps.Equal(reasons, want) {
		t.Errorf("refused: %v, want %v", reasons, want)
	}
}

func reason(p Problem) string {
	switch {
	case p.Property == "repository" && strings.Contains(p.Message, "is missing"):
		return "no repository"
	case p.Property == "name" && strings.Contains(p.Message, "the file is called"):
		return "name is not the file's"
	case strings.Contains(p.Message, "appears twice in the same object"):
		return "a property appears twice"
	default:
		return p.String()
	}
}

func publicCatalogue(t testing.TB) string {
	t.Helper()
	source := filepath.Join("..", "..", "shared", "data", "cdnjs-packages.tar.gz")
	if _, err := os.Stat(source); err != nil {
		t.Skipf("the public catalogue is not beside the checkout: %v", err)
	}
	return source
}

func BenchmarkOpenPublicCatalogue(b *testing.B) {
	source := publicCatalogue(b)
	for b.Loop() {
		if _, err := Open(source); err != nil {
			b.Fatal(err)
		}
	}
}
