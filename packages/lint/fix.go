package lint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/packages"
)

// A Fixed says what was changed of a file.
type Fixed struct {
	// File is the file's name before, To its name now.
	File, To string
	// Done are the changes in words; empty where there were none.
	Done []string
	// Left says why something that should be changed was not; "" if nothing is left.
	Left string
}

// Fix puts a package JSON into the form and to the place that a catalogue has it in. What the file says
// stays as it is. A file that breaks a rule of the package JSON is not touched, and no other file is
// ever overwritten. A change is written whole or not at all.
func Fix(name string) (Fixed, error) {
	f := Fixed{File: name, To: name}
	data, err := Read(name)
	if err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	p, err := packages.Parse(filepath.ToSlash(name), data)
	if err != nil {
		f.Left = "it has errors that only its author can correct"
		return f, nil
	}
	formatted, err := packages.Format(data, true)
	if err != nil {
		f.Left = err.Error()
		return f, nil
	}
	if laidOut, err := packages.Format(data, false); err == nil {
		if !bytes.Equal(laidOut, data) {
			f.Done = append(f.Done, "laid out")
		}
		if !bytes.Equal(laidOut, formatted) {
			f.Done = append(f.Done, "properties put in order")
		}
	}
	if place, folder := Place(name); place != "" && place != packages.Path(p.Name) {
		f.To = filepath.Join(folder, filepath.FromSlash(packages.Path(p.Name)))
	}
	switch {
	case f.To != f.File:
		err = moveFile(name, f.To, formatted)
		if errors.Is(err, fs.ErrExist) {
			f.Left = fmt.Sprintf("it belongs at %s, where another file is", f.To)
			f.To, f.Done = f.File, nil
			return f, nil
		}
		f.Done = append(f.Done, "moved to "+f.To)
	case !bytes.Equal(data, formatted):
		err = replaceFile(name, formatted)
	}
	if err != nil {
		return Fixed{File: name, To: name}, fmt.Errorf("%s: it stays as it was: %w", name, err)
	}
	return f, nil
}

// Create writes a file that is not there yet, and the folders above it. If there is one already, the
// error is [fs.ErrExist] and nothing is changed.
func Create(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return disk.Create(name, data, 0o644)
}

// moveFile writes data to a new file, to, and removes the file from.
func moveFile(from, to string, data []byte) error {
	if err := Create(to, data); err != nil {
		return err
	}
	return os.Remove(from)
}

// replaceFile writes data in place of a file, completely or not at all.
func replaceFile(name string, data []byte) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	return disk.Replace(name, data, info.Mode().Perm())
}

// maxFiles bounds the files of one run.
const maxFiles = 50_000

// Files returns the package JSONs that names refer to: all below a folder (below its folder packages, if it has one), or the
// named file. It leaves out hidden files and links in folders.
func Files(names []string) ([]string, error) {
	var files []string
	for _, name := range names {
		info, err := os.Lstat(name)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, name)
			continue
		}
		top := name
		if info, err := os.Lstat(filepath.Join(name, "packages")); err == nil && info.IsDir() {
			top = filepath.Join(name, "packages")
		}
		before := len(files)
		err = filepath.WalkDir(top, func(at string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case at != top && strings.HasPrefix(entry.Name(), "."):
				if entry.IsDir() {
					return fs.SkipDir
				}
			case entry.Type().IsRegular() && filepath.Ext(at) == ".json":
				if files = append(files, at); len(files) > maxFiles {
					return fmt.Errorf("more than %d files; check fewer at a time", maxFiles)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(files) == before {
			return nil, fmt.Errorf("%s: it holds no .json file; a catalogue keeps them as packages/{first character}/{name}.json", name)
		}
	}
	return files, nil
}

// Read reads a package JSON, up to the size that is refused. It does not follow a link, which a submission could set to a
// file that its author must not see.
func Read(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, causeOf(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is a link or something else that is no regular file; only regular files are read")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, causeOf(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, packages.MaxFileSize+1))
	if err != nil {
		return nil, causeOf(err)
	}
	return data, nil
}

// causeOf returns an error without the operation and the path that package fs adds.
func causeOf(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// Place returns the path of a file within its catalogue, such as packages/j/jquery.json, and the folder of the catalogue;
// both are "" if no folder above the file is called packages.
func Place(name string) (place, folder string) {
	absolute, err := filepath.Abs(name)
	if err != nil {
		return "", ""
	}
	slashed := filepath.ToSlash(absolute)
	at := strings.LastIndex(path.Dir(slashed)+"/", "/packages/")
	if at < 0 {
		return "", ""
	}
	return slashed[at+1:], filepath.FromSlash(slashed[:at+1])
}

// CheckFiles checks files as parts of the catalogue in the folder catalogue, or, if that is "", of the catalogue that each
// is in.
func CheckFiles(files []string, catalogue string, o Options) ([]*Result, error) {
	linters := make(map[string]*Linter) // by the catalogue's folder
	linter := func(folder string) (*Linter, error) {
		if catalogue != "" {
			folder = catalogue
		}
		if l := linters[folder]; l != nil {
			return l, nil
		}
		o := o
		if folder != "" {
			opened, err := packages.Open(folder)
			if err != nil {
				return nil, err
			}
			o.Catalogue = opened
		}
		linters[folder] = New(o)
		return linters[folder], nil
	}
	results := make([]*Result, 0, len(files))
	for _, file := range files {
		shown := filepath.ToSlash(file)
		data, err := Read(file)
		if err != nil {
			results = append(results, Unreadable(shown, err.Error()))
			continue
		}
		place, folder := Place(file)
		l, err := linter(folder)
		if err != nil {
			return nil, err
		}
		results = append(results, l.Check(shown, place, data))
	}
	return results, nil
}
