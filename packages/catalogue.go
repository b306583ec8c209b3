package packages

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/packages/archive"
)

// maxFiles bounds the files of a catalogue; the public one has 6195.
const maxFiles = 50_000

//go:embed starter
var starterFS embed.FS

// Catalogue is a set of packages, each from a file of its own. It does not change
// and is safe for concurrent use.
type Catalogue struct {
	packages []*Package // sorted by name
	byName   map[string]*Package
	problems []*Invalid // sorted by file

	popularity Popularity
}

// Starter returns the catalogue that is embedded in the program: a few well-known libraries. It is parsed once.
func Starter() *Catalogue { return starter() }

var starter = sync.OnceValue(func() *Catalogue {
	files, err := readFolder(starterFS, "starter")
	if err != nil {
		panic("packages: the embedded catalogue: " + err.Error())
	}
	return newCatalogue(files)
})

// Open reads the catalogue at source: a folder, or a .tar.gz, .tgz or .zip archive of one; "" and "starter" are the catalogue
// inside the program (a folder of that name is "./starter"). It also reads the file [PopularityFile] beside the packages, if
// there is one.
//
// A catalogue keeps its files as packages/{first character}/{name}.json, see [Path]. If there is no folder called packages,
// every .json file is taken, so that a folder of a few files works as well. Hidden files and folders and symbolic links are
// left out.
//
// A file that is refused is among the catalogue's Problems; the error is only for a source that cannot be read at all, or
// that has no package file.
func Open(source string) (*Catalogue, error) {
	if source == "" || source == "starter" {
		return Starter(), nil
	}
	if strings.Contains(source, "://") {
		return nil, fmt.Errorf("catalogue %s: nothing is fetched for this; give a clone of it, which is a folder", source)
	}
	info, err := os.Stat(source)
	if err != nil {
		return nil, fmt.Errorf("catalogue: %w; give a folder, a .tar.gz or .zip archive, or %q", err, "starter")
	}
	var files []file
	var wanted *file
	if info.IsDir() {
		var root *os.Root
		if root, err = os.OpenRoot(source); err != nil {
			return nil, fmt.Errorf("catalogue: %w", err)
		}
		defer root.Close()
		if files, err = readFolder(root.FS(), "."); err == nil {
			wanted = findPopularity(root.FS())
		}
	} else {
		files, wanted, err = readArchive(source)
	}
	if err != nil {
		return nil, fmt.Errorf("catalogue %s: %w", source, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("catalogue %s: it holds no package; a catalogue keeps them as packages/{first letter}/{name}.json", source)
	}
	c := newCatalogue(files)
	if wanted != nil {
		c.addPopularity(*wanted)
	}
	return c, nil
}

// Packages returns all packages, sorted by name. The slice must not be changed.
func (c *Catalogue) Packages() []*Package { return c.packages }

// Get returns the package with that name.
func (c *Catalogue) Get(name string) (*Package, bool) {
	p, ok := c.byName[name]
	return p, ok
}

// FindNPM returns the package whose releases come from the npm package npm. If there are several, it prefers the one with the
// same name as that, or else the first by name.
func (c *Catalogue) FindNPM(npm string) (found *Package, ok bool) {
	for _, p := range c.packages {
		if p.Autoupdate != nil && p.Autoupdate.Source == "npm" && p.Autoupdate.Target == npm && (found == nil || p.Name == npm) {
			found = p
		}
	}
	return found, found != nil
}

// Mentions reports whether the catalogue has the package with that name, or a file
// for it that is refused.
func (c *Catalogue) Mentions(name string) bool {
	return c.byName[name] != nil || slices.ContainsFunc(c.problems, func(i *Invalid) bool { return i.packageName() == name })
}

// packageName returns the base name of the refused file without .json, which is the name that its package should have.
func (i *Invalid) packageName() string { return strings.TrimSuffix(path.Base(i.File), ".json") }

// Keeping returns a copy of the catalogue with the former package in place of each refused file, unless the catalogue has a
// package of that name. before returns the former package with a name, and whether there is one. The Problems stay.
func (c *Catalogue) Keeping(before func(name string) (*Package, bool)) *Catalogue {
	kept := &Catalogue{packages: slices.Clone(c.packages), byName: maps.Clone(c.byName), problems: c.problems, popularity: c.popularity}
	for _, i := range c.problems {
		p, ok := before(i.packageName())
		if ok && kept.byName[p.Name] == nil {
			kept.byName[p.Name] = p
			kept.packages = append(kept.packages, p)
		}
	}
	slices.SortFunc(kept.packages, func(a, b *Package) int { return cmp.Compare(a.Name, b.Name) })
	return kept
}

// Problems returns the files that were refused, sorted by name. The slice must not
// be changed.
func (c *Catalogue) Problems() []*Invalid { return c.problems }

// file is a package JSON or the popularity file of a catalogue, or why it could not be read.
type file struct {
	name     string // slash-separated, relative to the catalogue
	data     []byte
	refuse   string
	modified time.Time // of the popularity file; zero where unknown
}

// newCatalogue parses the files of a catalogue, which it sorts by name. A file that is invalid, or whose package an earlier
// file has, becomes one of the Problems.
func newCatalogue(files []file) *Catalogue {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	c := &Catalogue{byName: make(map[string]*Package, len(files))}
	for _, f := range files {
		p, err := f.parse()
		if err == nil {
			if first := c.byName[p.Name]; first != nil {
				err = newInvalid(f.name, "duplicate", "name", fmt.Sprintf("%q is also the package of %s; remove one of the files", p.Name, first.File))
			}
		}
		if problem, refused := errors.AsType[*Invalid](err); refused {
			c.problems = append(c.problems, problem)
			continue
		}
		c.byName[p.Name] = p
		c.packages = append(c.packages, p)
	}
	slices.SortFunc(c.packages, func(a, b *Package) int { return cmp.Compare(a.Name, b.Name) })
	return c
}

// parse parses a file of a catalogue. The package has a warning if the file is below packages/, but not at the package's
// [Path]. The error is an *Invalid.
func (f file) parse() (*Package, error) {
	if f.refuse != "" {
		return nil, newInvalid(f.name, "unreadable", "", f.refuse)
	}
	p, err := Parse(f.name, f.data)
	if err != nil {
		return nil, err
	}
	if want := Path(p.Name); strings.HasPrefix(f.name, "packages/") && f.name != want {
		p.Warnings = append(p.Warnings, Problem{Line: 1, Column: 1, Severity: Warning, Rule: "path",
			Message: "the file belongs at " + want})
	}
	return p, nil
}

// newInvalid returns the error for a file with one problem, at the start of the file.
func newInvalid(file, rule, property, message string) *Invalid {
	return &Invalid{File: file, Problems: []Problem{{Line: 1, Column: 1, Property: property, Message: message, Rule: rule}}}
}

// readFolder reads the package JSONs below a folder, in the order of [EachFile] and with names relative to the folder. A file
// that cannot be read, also a folder, is in the result with its error; err is that of [EachFile].
func readFolder(fsys fs.FS, folder string) (files []file, err error) {
	err = EachFile(fsys, folder, func(name string, err error) error {
		shown := strings.TrimPrefix(strings.TrimPrefix(name, folder), "/")
		if err != nil {
			files = append(files, newUnreadable(shown, err))
			return nil
		}
		files = append(files, readFile(fsys, name, shown, MaxFileSize))
		return nil
	})
	return files, err
}

// EachFile calls do with the path of each package JSON below a folder: of all .json files below its folder packages, or below itself
// if it has none. It leaves out hidden files and folders, and links. The error that do gets is nil, except for a folder below that
// cannot be read: then name is that folder. EachFile ends with the first error of do, which it returns, and after 50,000 files with an
// error. If the top folder cannot be read, it returns that error and calls do for nothing.
func EachFile(fsys fs.FS, folder string, do func(name string, err error) error) error {
	entries, err := fs.ReadDir(fsys, folder)
	if err != nil {
		return err
	}
	top := folder
	for _, entry := range entries {
		if entry.Name() == "packages" && entry.IsDir() { // not a link to a folder
			top = path.Join(folder, "packages")
		}
	}
	files := 0
	return fs.WalkDir(fsys, top, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && name == top:
			return err
		case err != nil:
			return cmp.Or(do(name, err), fs.SkipDir)
		case name != top && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !entry.Type().IsRegular() || path.Ext(name) != ".json":
			return nil
		}
		if files++; files > maxFiles {
			return fmt.Errorf("it holds more than %d package files", maxFiles)
		}
		return do(name, nil)
	})
}

// readFile reads the file name of a file system; of a file of over most bytes it reads most+1, which the parser refuses. The
// returned file is called shown, and has the error of a file that cannot be read.
func readFile(fsys fs.FS, name, shown string, most int64) file {
	f, err := fsys.Open(name)
	if err != nil {
		return newUnreadable(shown, err)
	}
	defer f.Close()
	return readWhole(shown, f, most)
}

// readWhole reads r; if it has over most bytes, only most+1 of them, which the parser refuses. The returned file has the
// given name, and has the error if reading fails.
func readWhole(name string, r io.Reader, most int64) file {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return newUnreadable(name, err)
	}
	return file{name: name, data: data}
}

// newUnreadable returns the file with this name, which could not be read because of err.
func newUnreadable(name string, err error) file {
	return file{name: name, refuse: "it cannot be read: " + causeOf(err)}
}

// findPopularity reads the popularity file of a folder; nil if the folder has none. The result has the error of a file that
// cannot be read.
func findPopularity(fsys fs.FS) *file {
	info, err := fs.Stat(fsys, PopularityFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return new(newUnreadable(PopularityFile, err))
	}
	f := readFile(fsys, PopularityFile, PopularityFile, maxPopularity)
	f.modified = info.ModTime()
	return &f
}

// causeOf returns the text of an error without the path, which the message starts with anyway.
func causeOf(err error) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// readArchive reads the package JSONs and the popularity file of an archive, with or without a folder around everything, as
// forges add one. If the archive has .json files below a folder packages, only those are package JSONs. The popularity file is
// nil if the archive has none at its top or one folder below. With an error, the results have what was read before it.
func readArchive(name string) ([]file, *file, error) {
	source, err := archive.OpenFile(name)
	if err != nil {
		return nil, nil, err
	}
	// A catalogue is small text; what is allowed to a release is too much here.
	limits := archive.Limits{Unpacked: 256 << 20, Entries: maxFiles}
	var files, below []file
	var wanted *file
	err = archive.Walk(context.Background(), source, limits, func(entry archive.Entry, r io.Reader) error {
		if entry.Skipped == "" && path.Base(entry.Name) == PopularityFile && strings.Count(entry.Name, "/") <= 1 {
			f := readWhole(PopularityFile, r, maxPopularity)
			wanted = &f
			return nil
		}
		if entry.Skipped != "" || path.Ext(entry.Name) != ".json" || strings.Contains("/"+entry.Name, "/.") {
			return nil
		}
		f := readWhole(entry.Name, r, MaxFileSize)
		if _, rest, ok := strings.Cut("/"+entry.Name, "/packages/"); ok {
			f.name = "packages/" + rest
			below = append(below, f)
			return nil
		}
		files = append(files, f)
		return nil
	})
	if below != nil {
		files = below
	}
	return files, wanted, err
}
