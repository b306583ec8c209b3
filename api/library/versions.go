package library

import (
	"context"
	"iter"

	"github.com/larder-cdn/larder/logs/views"
)

// Version returns what is known of one version without its files, which may be many:
// ErrNoLibrary, ErrNoVersion or a *WithdrawnError where it is not served.
func (x *Index) Version(ctx context.Context, name, version string) (views.Version, error) {
	if _, err := x.Library(ctx, name); err != nil {
		return views.Version{}, err
	}
	return readVersion(x.store, name, version)
}

// Releases returns every published version of a library with its files, newest
// first, all as they are at one moment. An error ends it. An unknown library has
// none.
func (x *Index) Releases(ctx context.Context, name string) iter.Seq2[*Release, error] {
	return func(yield func(*Release, error) bool) {
		if !validName(name) {
			return
		}
		snapshot := x.store.Snapshot()
		defer snapshot.Close()
		versions, err := published(snapshot, name)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, v := range versions {
			if err := ctx.Err(); err != nil {
				yield(nil, err)
				return
			}
			r, err := readRelease(snapshot, name, v.Version)
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}
