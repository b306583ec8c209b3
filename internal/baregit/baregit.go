// Package baregit opens and makes bare git repositories in folders.
//
// go-git's own package does that, too, but links a client for SSH into programs that never use one. A
// repository that needs an extension of git's, such as SHA-256, is refused. The package must not know
// what a repository holds.
package baregit

import (
	"errors"
	"fmt"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// ErrNone: the folder has no bare repository.
var ErrNone = errors.New("not a bare git repository")

// Open opens the bare repository in dir. The error is [ErrNone] if dir has no readable HEAD: it has no repository, or one with files that
// are checked out. A format version that is not known, or any extension of git's, such as SHA-256, is another error.
func Open(dir string) (*filesystem.Storage, error) {
	s := storage(dir)
	_, err := s.Reference(plumbing.HEAD)
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	c, err := s.Config()
	if err != nil {
		return nil, err
	}
	// An extension may change what objects and references look like, as with SHA-256.
	if v := c.Core.RepositoryFormatVersion; v != "" && v != "0" && v != "1" {
		return nil, fmt.Errorf("its format version %.20q is unknown", v)
	}
	for _, option := range c.Raw.Section("extensions").Options {
		return nil, fmt.Errorf("git's extension %.50q is unknown", option.Key)
	}
	return s, nil
}

// Init makes a bare repository in dir, and the folder if it is missing. Its HEAD names the branch, which has no commit yet. If dir has a
// repository, Init replaces its HEAD and configuration. After an error a part of the repository may exist.
func Init(dir, branch string) (*filesystem.Storage, error) {
	s := storage(dir)
	if err := s.Init(); err != nil {
		return nil, err
	}
	if err := s.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, plumbing.NewBranchReferenceName(branch))); err != nil {
		return nil, err
	}
	c := config.NewConfig()
	c.Core.IsBare = true
	return s, s.SetConfig(c)
}

// storage returns the storage of a bare repository in a folder.
func storage(dir string) *filesystem.Storage {
	return filesystem.NewStorage(osfs.New(dir), cache.NewObjectLRUDefault())
}
