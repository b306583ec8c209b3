package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/logs/views"
)

// packages answers /packages: the names of all, prepared once for each change of them.
func (p *public) packages(ctx context.Context, _ *request) (*answers.Body, answers.Caching, error) {
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	b, err := p.names.Get(listing, func() (*answers.Body, int, error) {
		names := make([]string, len(listing.Libraries))
		for i, l := range listing.Libraries {
			names[i] = l.Name
		}
		b := newJSONOf(names)
		return b, 2 * b.Len(), nil
	})
	return b, fiveMinutes, err
}

// pkg answers /packages/{package}.
func (p *public) pkg(_ context.Context, _ *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	var w jsonWriter
	w.beginObject()
	if err := p.writePackage(&w, l); err != nil {
		return nil, answers.Caching{}, err
	}
	w.endObject()
	return newJSON(w.bytes()), fiveMinutes, nil
}

// writePackage writes the fields of the package JSON as its author wrote them, and "version" and "author" where there
// are such. Where something is published, "filename" is the file that /libraries names.
func (p *public) writePackage(w *jsonWriter, l *library.Library) error {
	text, err := p.Library.PackageJSON(l.Name)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("api: the package JSON of %s in the store is no object", l.Name)
	}
	written := map[string]bool{"version": true, "author": true} // ours, should it have such
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("api: the package JSON of %s in the store: %w", l.Name, err)
		}
		name, to := t.(string), w // else Token had failed
		served := name == "filename" && l.Version != ""
		if served && l.Filename != "" && !written[name] {
			w.field(name, l.Filename)
		}
		if written[name] || served {
			to = new(jsonWriter) // whose output is thrown away
		}
		written[name] = true
		to.name(name)
		if err := to.copyValue(d); err != nil {
			return fmt.Errorf("api: the package JSON of %s in the store: %w", l.Name, err)
		}
	}
	if l.Version != "" {
		if l.Filename != "" && !written["filename"] {
			w.field("filename", l.Filename)
		}
		w.field("version", l.Version)
	}
	if l.Author != "" {
		w.field("author", l.Author)
	}
	return nil
}

// pkgAll answers /packages/{package}/all. It reads every version, so it is kept for as long as the library does not
// change.
func (p *public) pkgAll(ctx context.Context, _ *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	b, err := p.catalogues.Get(l, func() (*answers.Body, int, error) {
		// Others may be waiting for this too, and stay when this client goes.
		var w jsonWriter
		if err := p.writeAll(context.WithoutCancel(ctx), &w, l); err != nil {
			return nil, 0, err
		}
		return newJSON(w.bytes()), w.len() + w.len()/2, nil
	})
	return b, fiveMinutes, err
}

func (p *public) writeAll(ctx context.Context, w *jsonWriter, l *library.Library) error {
	w.beginObject()
	if err := p.writePackage(w, l); err != nil {
		return err
	}
	w.name("assets")
	w.beginArray()
	for release, err := range p.Library.Releases(ctx, l.Name) {
		if err != nil {
			return err
		}
		w.beginObject()
		w.field("version", release.Version)
		w.field("files", rawPaths(release.Files))
		w.endObject()
	}
	w.endArray()
	w.endObject()
	return nil
}

// pkgVersions answers /packages/{package}/versions.
func (p *public) pkgVersions(_ context.Context, _ *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	names, err := p.versionNames(l)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	return newJSONOf(names), fiveMinutes, nil
}

// pkgFiles answers /packages/{package}/versions/{version}.
func (p *public) pkgFiles(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	release, err := p.namedRelease(ctx, r, l)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	b, err := p.releaseBody(release, "paths", func() *answers.Body { return newJSONOf(rawPaths(release.Files)) })
	return b, ofFiles(release.Files), err
}

// pkgSRIs answers /packages/{package}/sris/{version}.
func (p *public) pkgSRIs(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	release, err := p.namedRelease(ctx, r, l)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	b, err := p.releaseBody(release, "sris", func() *answers.Body {
		var w jsonWriter
		writeSRIs(&w, release.Library+"/"+release.Version+"/", release.Files)
		return newJSON(w.bytes())
	})
	return b, ofFiles(release.Files), err
}

// namedRelease returns the version of a library that the path names.
func (p *public) namedRelease(ctx context.Context, r *request, l *library.Library) (*library.Release, error) {
	version, err := param(r.c, "version")
	if err != nil {
		return nil, err
	}
	release, err := p.Library.Release(ctx, l.Name, version)
	if err == nil {
		p.tag(r, l.Name, version)
	}
	return release, err
}

// state is what became of one version, as clients see it.
type state struct {
	Version  string          `json:"version"`
	State    views.StateKind `json:"state"`
	Reason   string          `json:"reason,omitempty"`
	Released time.Time       `json:"released,omitzero"`
	Updated  time.Time       `json:"updated,omitzero"`
	Attempts int             `json:"attempts,omitempty"`
	Next     time.Time       `json:"next,omitzero"`
	Command  string          `json:"command,omitempty"`
}

// pkgStates answers /packages/{package}/states.
func (p *public) pkgStates(_ context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	known, err := p.Library.Accounts(l.Name)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	states, notMirrored := make([]state, len(known)), 0
	for i, s := range known {
		if s.Kind.IsUntried() {
			notMirrored++
		}
		states[i] = state{s.Version, s.Kind, s.Reason, s.Released, s.Updated, s.Attempts, s.Next, s.Command}
	}
	r.c.Header("Larder-Not-Mirrored", strconv.Itoa(notMirrored))
	return newJSONOf(states), notCached, nil
}
