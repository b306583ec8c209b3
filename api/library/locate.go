package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

type (
	// LocateRequest requests the addresses here of files at public CDNs.
	LocateRequest struct {
		Files []CDNFile `json:"files"`
	}
	// A CDNFile is a file at a public CDN.
	CDNFile struct {
		packages.CDNAddress
		// Integrity is the integrity that a tag states for the file; "" for none.
		Integrity string `json:"integrity,omitempty"`
	}
	// A Located is where a file of a public CDN is published here: URL and Integrity, or Missing, or a Problem.
	Located struct {
		URL       string `json:"url,omitempty"`
		Integrity string `json:"integrity,omitempty"`
		// Missing says that the release is not published here, but may be fetched.
		Missing bool   `json:"missing,omitempty"`
		Problem string `json:"problem,omitempty"`
	}
)

const (
	maxLocated  = 5000 // files of a request
	maxCompared = 16   // files of a release that are compared with the integrity of one
)

// Locate returns, for each file at a public CDN in the request, in its order, where the same file is published here. A
// release that is not published here is Missing. A Problem is an address without an exact version, a withdrawn release, a
// file that the release lacks, or one whose bytes do not have the integrity in the request. Locate first waits until the
// index has read the whole log, and returns an error if all takes over 30 s. It returns no results but an error if
// [Directory.AssetBase] is not set, the request has over maxLocated files, or the store cannot be read.
func (d Directory) Locate(ctx context.Context, q LocateRequest) ([]Located, error) {
	if d.AssetBase == "" {
		return nil, errNoAssetBase
	}
	if len(q.Files) > maxLocated {
		return nil, fmt.Errorf("couldn't locate %d files: at most %d at once", len(q.Files), maxLocated)
	}
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	index, err := d.Index()
	if err != nil {
		return nil, err
	}
	checkpoint, err := logs.ReadCheckpoint(d.Store)
	if err == nil {
		err = index.Wait(ctx, checkpoint.Size) // for what was added just now
	}
	if err != nil {
		return nil, err
	}
	located := make([]Located, len(q.Files))
	for i, f := range q.Files {
		if located[i], err = d.locateFile(ctx, index, f); err != nil {
			return nil, fmt.Errorf("couldn't locate %s: %w", f.CDNAddress, err)
		}
	}
	return located, nil
}

// locateFile returns where the file f of a public CDN is published here, or that its release is Missing, or the Problem with
// it, as [Directory.Locate] does. If the request has an integrity with a hash that browsers know, it verifies the bytes
// here. It returns an error only if reading fails or ctx ends.
func (d Directory) locateFile(ctx context.Context, index *Index, f CDNFile) (Located, error) {
	listing, err := index.Listing(ctx)
	if err != nil {
		return Located{}, err
	}
	l, err := index.Library(ctx, f.Library)
	if errors.Is(err, ErrNoLibrary) {
		l, err = listing.OfNPM(cmp.Or(f.NPM, f.Library)), nil
	}
	if err != nil {
		return Located{}, err
	}
	if !f.IsExact() {
		problem := fmt.Sprintf("it names no exact version of %s", cmp.Or(f.NPM, f.Library))
		if l != nil && l.Version != "" {
			problem += ", of which the newest here is " + l.Version
		}
		return Located{Problem: problem + "; write NAME@VERSION into the address"}, nil
	}
	if l == nil {
		return Located{Missing: true}, nil
	}
	r, err := index.Release(ctx, l.Name, f.Version)
	switch {
	case errors.Is(err, ErrNoVersion):
		return Located{Missing: true}, nil
	case errors.As(err, new(*WithdrawnError)):
		return Located{Problem: err.Error()}, nil
	case err != nil:
		return Located{}, err
	}
	hashes := logs.StrongestHashes(f.Integrity)
	file, found, err := d.findCDNFile(ctx, index, l, r, f, hashes)
	if err != nil {
		return Located{}, err
	}
	if !found {
		wanted := cmp.Or(f.File, f.NPMFile)
		return Located{Problem: fmt.Sprintf("%s has no file %q here%s`larder info %[1]s` lists its files", r.Owner(), wanted, didYouMean(NearFiles(r, wanted)))}, nil
	}
	if hashes != nil {
		data, err := d.Store.Identity(file.Hash)
		if err != nil {
			return Located{}, err
		}
		if own, matches := logs.MatchHashes(hashes, data); !matches {
			return Located{Problem: fmt.Sprintf("its integrity is %s, and that of the published %s of %s is %s", text.Short(strings.Join(hashes, " "), 200), file.Path, r.Owner(), own)}, nil
		}
	}
	s := NewSnippet(d.AssetBase, r.Library, r.Version, file)
	return Located{URL: s.URL, Integrity: s.Integrity}, nil
}

// findCDNFile returns the file of release r that a CDN has at the address f: the one at the same path of the library or of
// the npm package, whose bytes it does not verify. If none exists and hashes, those of the file's integrity, are not nil, it
// returns a file with the same name, apart from folder, case and .min, whose bytes have one of the hashes; it compares up to
// maxCompared. found is false if it finds none; file is then meaningless.
func (d Directory) findCDNFile(ctx context.Context, index *Index, l *Library, r *Release, f CDNFile, hashes []string) (file views.PublishedFile, found bool, err error) {
	if f.File != "" && l.Name == f.Library {
		file, found = r.Find(f.File)
	}
	if !found && f.NPMFile != "" {
		path, err := index.FindNPMFile(ctx, l, r.Version, f.NPMFile)
		if err != nil && !errors.Is(err, ErrNoFile) {
			return file, false, err
		}
		file, found = r.Find(path)
	}
	if found || hashes == nil {
		return file, found, nil
	}
	wanted := bareName(cmp.Or(f.File, f.NPMFile, l.Filename))
	compared := 0
	for _, file := range r.Files {
		if bareName(file.Path) != wanted {
			continue
		}
		if compared++; compared > maxCompared {
			break
		}
		if err := ctx.Err(); err != nil {
			return file, false, err
		}
		data, err := d.Store.Identity(file.Hash)
		if err != nil {
			return file, false, err
		}
		if _, matches := logs.MatchHashes(hashes, data); matches {
			return file, true, nil
		}
	}
	return file, false, nil
}
