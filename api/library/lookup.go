package library

import (
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// Lookup reads one library and its published versions, newest first, for who needs
// that one alone and should not wait until an Index has read all of them. It
// returns ErrNoLibrary where there is none.
func Lookup(r kvstore.Reader, name string) (*Library, []views.Version, error) {
	if !validName(name) {
		return nil, nil, ErrNoLibrary
	}
	l, err := newLibrary(r, name)
	if err != nil {
		return nil, nil, err
	}
	if l == nil {
		return nil, nil, ErrNoLibrary
	}
	versions, err := published(r, name)
	return l, versions, err
}

// LookupRelease reads one version of a library that is there, like Index.Release.
func LookupRelease(r kvstore.Reader, name, version string) (*Release, error) {
	if !validName(name) {
		return nil, ErrNoLibrary
	}
	return readRelease(r, name, version)
}
