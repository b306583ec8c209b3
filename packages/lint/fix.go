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

	"github.com/larder-cdn/larder/packages"
)

// A Fixed says what was changed of a file.
type Fixed struct {
	// File is the file's name before, To its name now.
	File, To string
	// Done are the changes in words; empty where there were none.
	Done []string
	// Left says why something that should be changed was not; "" where nothing is left.
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
	formatted, err := Format(data)
	if err != nil {
		f.Left = err.Error()
		return f, nil
	}
	if laidOut, err := format(data, false); err == nil {
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
		err = move(name, f.To, formatted)
		if errors.Is(err, fs.ErrExist) {
			f.Left = fmt.Sprintf("it belongs at %s, where another file is", f.To)
			f.To, f.Done = f.File, nil
			return f, nil
		}
		f.Done = append(f.Done, "moved to "+f.To)
	case !bytes.Equal(data, formatted):
		err = replace(name, formatted)
	}
	if err != nil {
		return Fixed{File: name, To: name}, fmt.Errorf("%s: it stays as it was: %w", name, err)
	}
	return f, nil
}

// Create writes a file that is not there yet, and the folders above it. Where there is one already, the
// error is [fs.ErrExist] and nothing is changed.
func Create(name string, data []byte) error {
	temporary, err := writeBeside(name, data, 0o644)
	if err != nil {
		return err
	}
	defer os.Remove(temporary)
	// Unlike a rename, a link never takes the place of another file.
	return os.Link(temporary, name)
}

func move(from, to string, data []byte) error {
	if err := Create(to, data); err != nil {
		return err
	}
	return os.Remove(from)
}

func replace(name string, data []byte) error {
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	temporary, err := writeBeside(name, data, info.Mode().Perm())
	if err != nil {
		return err
	}
	if err := os.Rename(temporary, name); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}

// writeBeside writes a temporary file in the folder of name, hidden from whoever reads the catalogue.
func writeBeside(name string, data []byte, mode fs.FileMode) (temporary string, err error) {
	folder := filepath.Dir(name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(folder, "."+strings.TrimSuffix(path.Base(filepath.ToSlash(name)), ".json")+".*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
