package lint

import (
	"bytes"
	"errors"
	"fmt"
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

// Fix puts the package JSON in the file called name into the form that a catalogue has. If a folder above the file is called
// packages, Fix also moves the file to its path in that catalogue. What the file says stays as it is. Fix does not change a file
// that breaks a rule of the package JSON, and never overwrites another file; Left of the result says why. A change is written
// completely or not at all. The error says that the file cannot be read or written, and it is unchanged then.
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
	if place, folder := cataloguePath(name); place != "" && place != packages.Path(p.Name) {
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
		var info fs.FileInfo
		if info, err = os.Lstat(name); err == nil {
			err = disk.Replace(name, formatted, info.Mode().Perm())
		}
	}
	if err != nil {
		return Fixed{File: name, To: name}, fmt.Errorf("%s: it stays as it was: %w", name, err)
	}
	return f, nil
}

// Create writes data to a new file, and creates the folders above it. If the file exists, the error is [fs.ErrExist] and the
// file is not changed.
func Create(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return disk.Create(name, data, 0o644)
}

// moveFile writes data, the file's new content, to a new file called to, and then removes the file from. If the file to
// exists, it does nothing and the error is fs.ErrExist. If from cannot be removed, it removes to again.
func moveFile(from, to string, data []byte) error {
	if err := Create(to, data); err != nil {
		return err
	}
	if err := os.Remove(from); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// Files returns the paths of the package JSONs that names, files or folders, refer to: a named file itself, and of a folder
// all .json files below it, or below its folder packages if it has one. It leaves out hidden files and links in folders. A name
// that does not exist is an error, and so is a folder that cannot be read, has no such files or over 50,000.
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
		before := len(files)
		err = packages.EachFile(os.DirFS(name), ".", func(at string, err error) error {
			files = append(files, filepath.Join(name, filepath.FromSlash(at)))
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(files) == before {
			return nil, fmt.Errorf("%s: it holds no .json file; a catalogue keeps them as packages/{first character}/{name}.json", name)
		}
	}
	return files, nil
}

// Read returns the content of a package JSON. Of a file over [packages.MaxFileSize], it returns one byte more than that, so
// that the checks refuse the file. It does not follow a link, which a submission could set to a file that its author must not
// see.
func Read(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, unwrapPathError(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is a link or something else that is no regular file; only regular files are read")
	}
	data, err := disk.ReadAtMost(name, packages.MaxFileSize)
	return data, unwrapPathError(err)
}

// unwrapPathError returns an error without the operation and the path that package fs adds. It returns other errors as they
// are.
func unwrapPathError(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// cataloguePath returns the path of a file within its catalogue, such as packages/j/jquery.json, and the folder of the
// catalogue. Both are "" if no folder above the file is called packages.
func cataloguePath(name string) (place, folder string) {
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

// CheckFiles reads and checks package JSON files, as parts of the catalogue at catalogue (see [packages.Open]) or, if that is "",
// of the catalogue in whose folder each file is. It uses o.Catalogue only for files that are in no folder called packages while
// catalogue is "". It returns a result for each file, in their order; a file that cannot be read has a problem that says so. The
// error is for a catalogue that cannot be read; then there are no results.
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
		place, folder := cataloguePath(file)
		l, err := linter(folder)
		if err != nil {
			return nil, err
		}
		results = append(results, l.Check(shown, place, data))
	}
	return results, nil
}
