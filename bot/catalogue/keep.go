package catalogue

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/packages"
)

// What is kept of a git repository: the files of the last commit that was a catalogue, and which that is.
const (
	filesName = "catalogue.tar"
	headName  = "catalogue.json"
)

// note says what is in filesName.
type note struct {
	Source string `json:"source"`
	Commit string `json:"commit"`
	Branch string `json:"branch,omitempty"`
}

// keep gets the files of a commit, and keeps them where they are a catalogue.
func keep(o Options, get func(*os.File) (git.Head, error)) (_ *packages.Catalogue, _ version, err error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, version{}, fmt.Errorf("couldn't make a folder for the catalogue: %w", err)
	}
	file, err := os.CreateTemp(o.Dir, "fetched-*.tar")
	if err != nil {
		return nil, version{}, fmt.Errorf("couldn't make a file for the catalogue: %w", err)
	}
	defer func() {
		if gone := os.Remove(file.Name()); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	defer file.Close()
	head, err := get(file)
	if err != nil {
		return nil, version{}, err
	}
	c, err := packages.Open(file.Name())
	if err != nil {
		return nil, version{}, fmt.Errorf("commit %s is no catalogue: %w", head.Commit, withoutPath(err))
	}
	if len(c.Packages()) == 0 {
		return nil, version{}, fmt.Errorf("commit %s is no catalogue: all %d package files are refused, the first because of %w", head.Commit, len(c.Problems()), c.Problems()[0])
	}
	data, err := json.Marshal(note{o.Source, head.Commit, head.Branch})
	if err != nil {
		return nil, version{}, err
	}
	at := filepath.Join(o.Dir, headName)
	// Whatever is interrupted, the note is never about other files.
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, version{}, err
	}
	if err := errors.Join(file.Sync(), os.Rename(file.Name(), filepath.Join(o.Dir, filesName)), os.WriteFile(at, data, 0o600)); err != nil {
		return nil, version{}, fmt.Errorf("couldn't keep the catalogue: %w", err)
	}
	return c, version{head, head.Commit}, nil
}

// withoutPath leaves out the name of the file, which is none that anybody gave.
func withoutPath(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return errors.New("it holds no package; a catalogue keeps them as packages/{first letter}/{name}.json")
}

// kept reads what keep has kept of the same source.
func kept(o Options) (*packages.Catalogue, version, error) {
	data, err := os.ReadFile(filepath.Join(o.Dir, headName))
	if err != nil {
		return nil, version{}, err
	}
	var n note
	if err := json.Unmarshal(data, &n); err != nil || n.Commit == "" {
		return nil, version{}, fmt.Errorf("%s is damaged", headName)
	}
	if n.Source != o.Source {
		return nil, version{}, fs.ErrNotExist
	}
	c, err := packages.Open(filepath.Join(o.Dir, filesName))
	return c, version{git.Head{Commit: n.Commit, Branch: n.Branch}, n.Commit}, err
}
