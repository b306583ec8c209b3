package submission

import (
	"context"
	"errors"
	"os"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/packages/archive"
)

// Git returns the source of packages from git repositories.
func Git(client *git.Client) Source { return gitSource{client} }

type gitSource struct{ client *git.Client }

// tagged is a version of a git repository.
type tagged struct {
	target string
	tag    git.Tag
}

func (s gitSource) Releases(ctx context.Context, target string) ([]Version, error) {
	listing, err := s.client.Tags(ctx, target, "")
	if err != nil {
		return nil, err
	}
	versions := make([]Version, 0, len(listing.Tags))
	for _, tag := range listing.Tags {
		versions = append(versions, Version{Name: tag.Version, Source: tagged{target, tag}})
	}
	return versions, nil
}

func (s gitSource) Archive(ctx context.Context, v Version, dst *os.File) (archive.Source, error) {
	of := v.Source.(tagged)
	release, err := s.client.Release(ctx, of.target, of.tag, dst)
	var refused *git.RefusedError
	if errors.As(err, &refused) {
		return archive.Source{}, &RefusedError{err}
	}
	if err != nil {
		return archive.Source{}, err
	}
	return release.Archive, nil
}
