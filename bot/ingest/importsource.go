package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/packages/archive"
)

// An Importer imports releases: a [Publisher], or a client of the process that has one.
type Importer interface {
	// MissingContents returns the hashes of the contents that the release needs and the importer's store does not have.
	MissingContents(context.Context, ImportRequest) ([]kvstore.Hash, error)
	// Import publishes the release. It reads from contents, to the end, the contents that r.Contents names, in this order.
	Import(ctx context.Context, r ImportRequest, contents io.Reader) error
}

// SendRelease imports the files of a source, such as a folder or an archive, as a version of a package, through the importer to.
// override is an operator's reason to publish the release without the attestation that the package requires; "" for none.
// SendRelease reads the source for the list of its files and, if the importer lacks contents, again for these. If sending fails,
// the error says why instead of what the importer noticed.
func SendRelease(ctx context.Context, to Importer, name, version, override string, source archive.Source) error {
	r := ImportRequest{Package: name, Version: version, Override: override}
	var err error
	if r.Files, err = listFiles(ctx, source); err != nil {
		return fmt.Errorf("%s %s was not imported: %w", name, version, err)
	}
	missing, err := to.MissingContents(ctx, r)
	if err != nil {
		return err
	}
	r.Contents = sortByFiles(r.Files, missing)
	read, write := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := sendContents(ctx, write, source, r)
		write.CloseWithError(err)
		sent <- err
	}()
	err = to.Import(ctx, r, read)
	read.Close()
	// The importer knows only that the contents ended.
	if sendErr := <-sent; sendErr != nil && !errors.Is(sendErr, io.ErrClosedPipe) {
		return fmt.Errorf("%s %s was not imported: %w", name, version, sendErr)
	}
	return err
}

// listFiles reads a source, and returns its regular files with their SHA-256 hashes, and its other entries, such as links, with
// the reason why they are none. Of several such entries with one path it returns the first, and none if a regular file has this
// path. With an error, the list is incomplete.
func listFiles(ctx context.Context, source archive.Source) ([]ImportFile, error) {
	files := []ImportFile{}
	skipped, regular := make(map[string]bool), make(map[string]bool)
	err := archive.Walk(ctx, source, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		f := ImportFile{Path: e.Name, Size: e.Size, Skipped: e.Skipped}
		if e.Skipped != "" {
			f.Path = text.Short(e.Name, archive.DefaultLimits.NameLength) // one that is not UTF-8 is longer in the list
			if skipped[f.Path] {                                          // two of them may look the same
				return nil
			}
			skipped[f.Path] = true
			files = append(files, f)
			return nil
		}
		var err error
		if f.SHA256, err = kvstore.SumReader(r); err != nil {
			return fmt.Errorf("couldn't read %s: %w", e.Name, err)
		}
		files = append(files, f)
		regular[f.Path] = true
		return nil
	})
	return slices.DeleteFunc(files, func(f ImportFile) bool { return f.Skipped != "" && regular[f.Path] }), err
}

// sortByFiles returns each of the hashes once, in the order in which files first has contents with these hashes. It leaves out a
// hash that no regular file has. The result is nil if none is left.
func sortByFiles(files []ImportFile, hashes []kvstore.Hash) []kvstore.Hash {
	wanted := make(map[kvstore.Hash]bool)
	for _, hash := range hashes {
		wanted[hash] = true
	}
	var sorted []kvstore.Hash
	for _, f := range files {
		if f.Skipped == "" && wanted[f.SHA256] {
			delete(wanted, f.SHA256)
			sorted = append(sorted, f.SHA256)
		}
	}
	return sorted
}

// sendContents writes to the writer the contents that r.Contents names, one after the other. They are in the order in which the
// source, whose files r lists, has them (see sortByFiles). It returns an error if the source does not have them any more. It does
// not verify the bytes, which the importer does, and does not close the writer.
func sendContents(ctx context.Context, to io.Writer, source archive.Source, r ImportRequest) error {
	hashes := make(map[string]kvstore.Hash, len(r.Files))
	for _, f := range r.Files {
		if f.Skipped == "" {
			hashes[f.Path] = f.SHA256
		}
	}
	left := r.Contents
	if len(left) == 0 {
		return nil
	}
	err := archive.Walk(ctx, source, archive.DefaultLimits, func(e archive.Entry, from io.Reader) error {
		if hash, ok := hashes[e.Name]; e.Skipped != "" || !ok || hash != left[0] {
			return nil
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
		if left = left[1:]; len(left) == 0 {
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && len(left) > 0 {
		err = errors.New("the files have changed while they were imported; run the same command again")
	}
	return err
}
