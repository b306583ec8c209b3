package api

import (
	"context"
	"errors"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs/views"
)

// libraryFields are what /libraries/{library} answers.
var libraryFields = vocabulary{
	"name", "latest", "sri", "filename", "description", "version", "keywords", "homepage", "license", "repository",
	"author", "autoupdate", "versions", "assets",
}

// named returns the library that the path names.
func (p *public) named(ctx context.Context, r *request) (*library.Library, error) {
	name, err := param(r.c, "library")
	if err != nil {
		return nil, err
	}
	return p.Library.Library(ctx, name)
}

// library answers /libraries/{library}. What is not asked for is not read.
func (p *public) library(ctx context.Context, r *request) (*body, caching, error) {
	l, err := p.named(ctx, r)
	if err != nil {
		return nil, caching{}, err
	}
	assetBase, err := baseOr(p.AssetBase, r.Request)
	if err != nil {
		return nil, caching{}, err
	}
	set := libraryFields.parseOrAll(r.query["fields"])
	var w jsonWriter
	w.beginObject()
	for _, name := range libraryFields.names(set) {
		switch name {
		case "versions":
			versions, err := p.versionNames(l)
			if err != nil {
				return nil, caching{}, err
			}
			w.field(name, versions)
		case "assets":
			w.name(name)
			w.beginArray()
			if err := p.writeAssets(ctx, &w, l); err != nil {
				return nil, caching{}, err
			}
			w.endArray()
		default:
			if value, ok := libraryField(l, name, assetBase); ok {
				w.field(name, value)
			}
		}
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}

// libraryField returns what is known of a library without reading. What it lacks is left out, but "latest" and "sri",
// which are null.
func libraryField(l *library.Library, name, assetBase string) (value any, ok bool) {
	text := func(s string) (any, bool) { return s, s != "" }
	switch name {
	case "name":
		return l.Name, true
	case "latest":
		return latestURL(l, assetBase), true
	case "sri":
		if l.SRI == "" {
			return nil, true
		}
		return l.SRI, true
	case "filename":
		return text(l.Filename)
	case "description":
		return text(l.Description)
	case "version":
		return text(l.Version)
	case "keywords":
		return l.Keywords, len(l.Keywords) > 0
	case "homepage":
		return text(l.Homepage)
	case "license":
		return text(l.License)
	case "repository":
		return l.Repository, l.Repository != nil
	case "author":
		return text(l.Author)
	case "autoupdate":
		return l.Autoupdate, l.Autoupdate != nil
	}
	panic("api: no such field: " + name)
}

func (p *public) versionNames(l *library.Library) ([]string, error) {
	versions, err := p.Library.Versions(l.Name)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(versions))
	for i, v := range versions {
		names[i] = v.Version
	}
	return names, nil
}

// writeAssets writes the one entry of "assets", the latest version; none where nothing is published.
func (p *public) writeAssets(ctx context.Context, w *jsonWriter, l *library.Library) error {
	if l.Version == "" {
		return nil
	}
	release, err := p.Library.Release(ctx, l.Name, l.Version)
	if gone := (*library.WithdrawnError)(nil); errors.As(err, &gone) {
		return changing
	}
	if err != nil {
		return err
	}
	w.beginObject()
	w.field("version", release.Version)
	w.field("files", shownPaths(release.Files))
	w.field("rawFiles", rawPaths(release.Files))
	w.name("sri")
	writeSRIs(w, "", release.Files)
	w.endObject()
	return nil
}

func writeSRIs(w *jsonWriter, prefix string, files []views.PublishedFile) {
	w.beginObject()
	for _, f := range files {
		w.field(prefix+f.Path, f.SRI.String())
	}
	w.endObject()
}

// versionFields are what /libraries/{library}/{version} answers.
var versionFields = vocabulary{"name", "version", "rawFiles", "files", "sri"}

// ofVersion is what needs no files.
const ofVersion fieldSet = 1<<0 | 1<<1

// version answers /libraries/{library}/{version}.
func (p *public) version(ctx context.Context, r *request) (*body, caching, error) {
	l, err := p.named(ctx, r)
	if err != nil {
		return nil, caching{}, err
	}
	version, err := param(r.c, "version")
	if err != nil {
		return nil, caching{}, err
	}
	set := versionFields.parseOrAll(r.query["fields"])
	var files []views.PublishedFile
	if set&^ofVersion == 0 {
		_, err = p.Library.Version(ctx, l.Name, version)
	} else {
		files, err = p.files(ctx, l, version)
	}
	if err != nil {
		return nil, caching{}, err
	}
	p.tag(r, l.Name, version)
	var w jsonWriter
	w.beginObject()
	for _, name := range versionFields.names(set) {
		w.name(name)
		switch name {
		case "name":
			w.value(l.Name)
		case "version":
			w.value(version)
		case "rawFiles":
			w.value(rawPaths(files))
		case "files":
			w.value(shownPaths(files))
		case "sri":
			writeSRIs(&w, "", files)
		}
	}
	w.endObject()
	return newJSON(w.bytes()), cachedForGood, nil
}

func (p *public) files(ctx context.Context, l *library.Library, version string) ([]views.PublishedFile, error) {
	release, err := p.Library.Release(ctx, l.Name, version)
	if err != nil {
		return nil, err
	}
	return release.Files, nil
}
