package lint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/larder-cdn/larder/packages"
)

// maxFiles bounds the files of one run.
const maxFiles = 50_000

// Files returns the names of the package JSONs that names stand for: a folder stands for those below it
// (below its folder packages, where it has one), anything else for itself. Hidden files and links in
// folders are left out.
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

// Read reads a package JSON, up to the size that is refused. A link is not followed: a file that
// somebody submits could point to one that is none of their business.
func Read(name string) ([]byte, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is a link or something else that is no regular file; only regular files are read")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, packages.MaxFileSize+1))
	if err != nil {
		return nil, cause(err)
	}
	return data, nil
}

func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// Place returns where the file called name lies in its catalogue, "packages/j/jquery.json" for
// instance, and the catalogue's folder. Both are "" for one that is below no folder called packages.
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
