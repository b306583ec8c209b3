package library

import (
	"context"
	"errors"
	"path"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// ErrNoFile is the error for a file of an npm package that is not published here, or of which that is not certain.
var ErrNoFile = errors.New("no such file")

// FindNPMFile returns the path at which a release has, unchanged, the file that its npm package has at the path upstream. It
// returns [ErrNoFile] if that is not published; not certain, because several folders of the npm package may have it or the
// package JSON of that time is not known; or the release is not from the library's npm package. If the release is not
// served, the error is that of [Index.Release].
func (x *Index) FindNPMFile(ctx context.Context, l *Library, version, upstream string) (published string, err error) {
	r, err := x.Release(ctx, l.Name, version)
	if err != nil {
		return "", err
	}
	m, err := x.Manifest(r)
	if err != nil {
		return "", err
	}
	if m.Source.Type != "npm" || m.Source.Name != l.NPM() {
		return "", ErrNoFile
	}
	p, err := x.packageAt(l.Name, version)
	if err != nil {
		return "", err
	}
	for _, selected := range p.Select([]string{upstream}) {
		isUpstream := slices.ContainsFunc(m.Files, func(f logs.File) bool { return f.Path == selected.Path && f.Origin == logs.Upstream })
		if isUpstream && !isAmbiguous(p, selected) {
			return selected.Path, nil
		}
	}
	return "", ErrNoFile
}

// isAmbiguous reports whether the package JSON p, which must have a file map, would also publish a file of another folder of
// the npm package at the path of the selected file, so that it is not certain which of the two is published there.
func isAmbiguous(p *packages.Package, of packages.Selected) bool {
	for _, set := range p.Autoupdate.FileMap {
		other := path.Join(set.BasePath, of.Path)
		if other != of.Source && slices.Contains(p.Select([]string{other}), packages.Selected{Path: of.Path, Source: other}) {
			return true
		}
	}
	return false
}

// packageAt returns the package JSON that was in force when a version of a library was last published: the last one in the
// log before the publication. It returns [ErrNoVersion] if the version was never published, and [ErrNoFile] if the package
// JSON is not known, is not valid now, or names no upstream.
func (x *Index) packageAt(name, version string) (*packages.Package, error) {
	publication, err := logs.LastPublication(x.store, name, version)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, ErrNoVersion
	}
	if err != nil {
		return nil, err
	}
	page, err := x.Entries(logs.Query{Package: name, Kinds: []logs.Kind{logs.PackageAdded, logs.PackageChanged}, Before: publication.Index, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(page.Entries) == 0 {
		return nil, ErrNoFile
	}
	data, err := x.store.Identity(page.Entries[0].PackageJSON)
	if err != nil {
		return nil, err
	}
	p, err := packages.Parse(name+".json", data)
	if err != nil || p.Autoupdate == nil {
		return nil, ErrNoFile //nolint:nilerr // an older Larder accepted it
	}
	return p, nil
}
