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
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/views"
)

// packages returns the response to /packages: the names of all libraries as a JSON array, in the order of the listing. This
// process caches it until the list of libraries changes, clients for five minutes.
func (p *public) packages(ctx context.Context, _ *request) (*answers.Body, answers.Caching, error) {
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	b, err := p.names.Get(listing, func() (*answers.Body, int, error) {
		b := encodeJSON(text.Each(listing.Libraries, func(l *library.Library) string { return l.Name }))
		return b, 2 * b.Len(), nil
	})
	return b, fiveMinutes, err
}

// packageJSON returns the response to /packages/{package}: the library's package JSON with the version, the author and the
// main file as known here.
func (p *public) packageJSON(_ context.Context, _ *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	var w jsonWriter
	w.beginObject()
	if err := p.writePackage(&w, l); err != nil {
		return nil, answers.Caching{}, err
	}
	w.endObject()
	return newJSON(w.bytes()), fiveMinutes, nil
}

// writePackage writes the fields of a library's package JSON in their order and with their values, but "version" (the latest
// published one) and "author" as known here, at the end, or not at all if unknown. If a version is published, "filename" is
// its main file, or is left out. Of fields with the same name it writes the first. The caller writes the braces around.
func (p *public) writePackage(w *jsonWriter, l *library.Library) error {
	text, err := p.Library.PackageJSON(l.Name)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("api: the package JSON of %s in the store is not an object", l.Name)
	}
	written := map[string]bool{"version": true, "author": true} // ignored in the package JSON
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("api: the package JSON of %s in the store: %w", l.Name, err)
		}
		name, to := t.(string), w // else Token had failed
		served := name == "filename" && l.Version != ""
		if served && l.Filename != "" && !written[name] {
			w.writeField(name, l.Filename)
		}
		if written[name] || served {
			to = new(jsonWriter) // whose output is discarded
		}
		written[name] = true
		to.writeName(name)
		if err := to.copyValue(d); err != nil {
			return fmt.Errorf("api: the package JSON of %s in the store: %w", l.Name, err)
		}
	}
	if l.Version != "" {
		if l.Filename != "" && !written["filename"] {
			w.writeField("filename", l.Filename)
		}
		w.writeField("version", l.Version)
	}
	if l.Author != "" {
		w.writeField("author", l.Author)
	}
	return nil
}

// packageAll returns the response to /packages/{package}/all: the package JSON and the files of every version. It reads
// every version, also after ctx has ended, because others may wait for the same response. It caches the response in
// p.catalogues, within its limits, until the library changes.
func (p *public) packageAll(ctx context.Context, _ *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	b, err := p.catalogues.Get(l, func() (*answers.Body, int, error) {
		// Other clients may wait for this, too, so it goes on if this client disconnects.
		var w jsonWriter
		if err := p.writePackageAll(context.WithoutCancel(ctx), &w, l); err != nil {
			return nil, 0, err
		}
		return newJSON(w.bytes()), w.len() + w.len()/2, nil
	})
	return b, fiveMinutes, err
}

// writePackageAll writes a JSON object: the fields of a library's package JSON (see writePackage), and "assets", the paths
// of the files of each of its published versions, newest first.
func (p *public) writePackageAll(ctx context.Context, w *jsonWriter, l *library.Library) error {
	w.beginObject()
	if err := p.writePackage(w, l); err != nil {
		return err
	}
	w.writeName("assets")
	w.beginArray()
	for release, err := range p.Library.Releases(ctx, l.Name) {
		if err != nil {
			return err
		}
		w.beginObject()
		w.writeField("version", release.Version)
		w.writeField("files", filePaths(release.Files))
		w.endObject()
	}
	w.endArray()
	w.endObject()
	return nil
}

// packageVersions returns the response to /packages/{package}/versions: the names of the published versions, newest first.
func (p *public) packageVersions(_ context.Context, _ *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	names, err := p.versionNames(l)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	return encodeJSON(names), fiveMinutes, nil
}

// respondWithRelease returns a function that returns the response that write makes of the release that the path names. It adds the
// version's cache tags to the header. kind is the kind of the response, see releaseBody.
func (p *public) respondWithRelease(kind string, write func(*library.Release) *answers.Body) libraryResponder {
	return func(ctx context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
		release, err := p.findRelease(ctx, r, l)
		if err != nil {
			return nil, answers.Caching{}, err
		}
		b, err := p.releaseBody(release, kind, func() *answers.Body { return write(release) })
		return b, cachingOfFiles(release.Files), err
	}
}

// newPathsBody returns the response to /packages/{package}/versions/{version}: the paths of the version's files.
func newPathsBody(release *library.Release) *answers.Body {
	return encodeJSON(filePaths(release.Files))
}

// newSRIsBody returns the response to /packages/{package}/sris/{version}: an object from LIBRARY/VERSION/PATH to the integrity
// value of each file.
func newSRIsBody(release *library.Release) *answers.Body {
	var w jsonWriter
	writeSRIs(&w, release.Library+"/"+release.Version+"/", release.Files)
	return newJSON(w.bytes())
}

// findRelease returns the release of a library that the path names, and adds its cache tags to the response.
func (p *public) findRelease(ctx context.Context, r *request, l *library.Library) (*library.Release, error) {
	version := r.params["version"]
	release, err := p.Library.Release(ctx, l.Name, version)
	if err == nil {
		p.setCacheTags(r, l.Name, version)
	}
	return release, err
}

// A state is the state of a version in a response of /packages/{package}/states.
type state struct {
	Version  string          `json:"version"`
	State    views.StateKind `json:"state"`
	Reason   string          `json:"reason,omitempty"`
	Released time.Time       `json:"released,omitzero"`
	Updated  time.Time       `json:"updated,omitzero"`
	Attempts int             `json:"attempts,omitempty"`
	Next     time.Time       `json:"next,omitzero"`
	Command  string          `json:"command,omitempty"`
	// Deprecated is upstream's warning of the version. Vulnerable is nil for a version whose vulnerabilities are not known.
	Deprecated string `json:"deprecated,omitempty"`
	Vulnerable *bool  `json:"vulnerable,omitempty"`
}

// packageStates returns the response to /packages/{package}/states: what became of each version that upstream has or had,
// newest first, and whether it is deprecated or vulnerable. It sets the header Larder-Not-Mirrored to the number of versions
// that were never tried.
func (p *public) packageStates(_ context.Context, r *request, l *library.Library) (*answers.Body, answers.Caching, error) {
	known, err := p.Library.Accounts(l.Name)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	marks, err := p.Library.Marks(l, p.Advisories, text.Each(known, func(a views.Account) string { return a.Version }))
	if err != nil {
		return nil, answers.Caching{}, err
	}
	states, notMirrored := make([]state, len(known)), 0
	for i, s := range known {
		if s.Kind.IsUntried() {
			notMirrored++
		}
		states[i] = state{s.Version, s.Kind, s.Reason, s.Released, s.Updated, s.Attempts, s.Next, s.Command, marks.Deprecated[s.Version], nil}
		if marks.KnowsVulnerable {
			states[i].Vulnerable = new(marks.Vulnerable[s.Version])
		}
	}
	r.c.Header("Larder-Not-Mirrored", strconv.Itoa(notMirrored))
	return encodeJSON(states), notCached, nil
}
