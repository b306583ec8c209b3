package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// An ImportRequest is a release to import: the list of its files. The contents that the store does not have come after it.
type ImportRequest struct {
	Package string       `json:"package"`
	Version string       `json:"version"`
	Files   []ImportFile `json:"files"`
	// Contents are the hashes of the contents that follow the request, in their order.
	Contents []kvstore.Hash `json:"contents,omitempty"`
	// Override is why the release is published although the policy of the package requires an attestation; "" if it is not.
	Override string `json:"override,omitempty"`
}

// An ImportFile is a file of a release to import.
type ImportFile struct {
	Path   string       `json:"path"`
	Size   int64        `json:"size,omitempty"`
	SHA256 kvstore.Hash `json:"sha256,omitzero"`
	// Skipped is why the file has no content, such as "symbolic link"; "" for a regular file.
	Skipped string `json:"skipped,omitempty"`
}

// A pendingImport is an [ImportRequest] that has been checked: its list is within the limits of an archive, and the package
// selects files of it that can be published.
type pendingImport struct {
	ImportRequest
	pkg     *packages.Package
	needed  []ImportFile    // the files whose contents publication reads, one for each content
	skipped map[string]bool // the reasons why entries of the list are not regular files
}

// MissingContents returns the hashes, each once, of the contents that an import of the release needs and the store does not have;
// the sender sends these with [Publisher.Import]. It protects the stored ones from deletion only while it runs. It returns an
// error if the release cannot be imported, such as a version that is published. For a refusal by the package's policy it
// registers the package, and records the refusal in the log unless the version has a state.
func (pb *Publisher) MissingContents(ctx context.Context, r ImportRequest) ([]kvstore.Hash, error) {
	in, err := pb.planImport(ctx, r)
	if err != nil {
		return nil, err
	}
	pins := pb.store.Pin()
	defer pins.Release()
	missing := []kvstore.Hash{}
	for _, f := range in.needed {
		stored, err := pins.Has(f.SHA256)
		if err != nil {
			return nil, err
		}
		if !stored {
			missing = append(missing, f.SHA256)
		}
	}
	return missing, nil
}

// Import publishes a version of a package from a list of files, by the same rules and in the same log as one from npm. It reads
// the contents that r.Contents names from contents, one after the other in that order, to the end. If another goroutine is
// publishing the version once they have arrived, Import returns an error and does not wait. After an error the version is as it
// was before, except that the log may have the package's JSON and a refusal by its policy, which then is the version's state;
// contents without a release may be left over, for [Publisher.RemoveLeftovers].
func (pb *Publisher) Import(ctx context.Context, r ImportRequest, contents io.Reader) error {
	in, err := pb.planImport(ctx, r)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(pb.options.TempDir, "import-*")
	if err != nil {
		return in.wrapError(fmt.Errorf("couldn't make a file for the contents: %w", err))
	}
	defer os.Remove(file.Name())
	defer file.Close()
	received, err := in.receiveContents(file, contents)
	if err != nil {
		return in.wrapError(err)
	}
	// Only now, so that an upload that stalls does not block others from publishing the version.
	pb.Recover()
	id := ReleaseID(r.Package, r.Version)
	if pb.claims.TryAcquire(id) != nil {
		return in.wrapError(fmt.Errorf("it is being published right now; `larder status %s` reports how that ends", r.Package))
	}
	defer pb.claims.Release(id)
	manifest, err := pb.publishImport(ctx, in, received)
	if err != nil { // the version is as it was: upstream may have it yet
		return in.wrapError(err)
	}
	pb.announce(ctx, "imported", manifest)
	return nil
}

// publishImport publishes a checked import and returns the manifest. It takes the files' contents from received, by hash, or else
// from the store, and returns an error if neither has one. It records the package in the log if its JSON is new or has changed,
// and emits an event when publication starts. The caller has claimed the version.
func (pb *Publisher) publishImport(ctx context.Context, in *pendingImport, received map[kvstore.Hash]*io.SectionReader) (*logs.Manifest, error) {
	pins := pb.store.Pin() // what is stored now stays until publication has pinned it
	defer pins.Release()
	for _, f := range in.needed {
		if received[f.SHA256] != nil {
			continue
		}
		stored, err := pins.Has(f.SHA256)
		if err != nil {
			return nil, err
		}
		if !stored {
			return nil, fmt.Errorf("the content of %s was not sent, and the store does not have it; run the same command again", quotePath(f.Path))
		}
	}
	if err := pb.Register(ctx, in.pkg); err != nil {
		return nil, err
	}
	pb.options.Events.Emit(ctx, sources.Event{Kind: sources.Releasing, Package: in.Package, Version: in.Version})
	return pb.publish(ctx, pendingRelease{
		Fetched: sources.Fetched{
			Archive: in.newSource(func(f ImportFile) (io.ReadCloser, error) {
				if content := received[f.SHA256]; content != nil {
					return io.NopCloser(io.NewSectionReader(content, 0, f.Size)), nil
				}
				data, err := pb.store.Identity(f.SHA256)
				return io.NopCloser(bytes.NewReader(data)), err
			}),
			Source: logs.Source{Type: "import", Name: in.Package}, Released: pb.options.Now(),
		},
		pkg: in.pkg, version: in.Version, actor: ActorOperator, override: in.Override,
	})
}

// planImport checks a request against the catalogue, the log, the limits of archives, and the policy of the package. It returns
// the import that is pending, with the files whose contents are needed, stored or not. If the policy does not allow the import,
// it registers the package and, unless the version has a state, records the refusal in the log and as that state; otherwise it
// changes nothing.
func (pb *Publisher) planImport(ctx context.Context, r ImportRequest) (*pendingImport, error) {
	p, err := pb.LookupPackage(r.Package)
	if err != nil {
		return nil, err
	}
	if err := pb.CheckUnpublished(r.Package, r.Version); err != nil {
		return nil, err
	}
	in := &pendingImport{ImportRequest: r, pkg: p, skipped: make(map[string]bool)}
	plan, err := packages.NewPlan(ctx, p, in.newSource(openNothing))
	if err == nil {
		err = in.findNeeded(ctx, plan)
	}
	if err == nil {
		err = in.checkSelection(plan)
	}
	if err == nil {
		err = pb.refuseImport(ctx, p, r.Version, r.Override)
	}
	if err != nil {
		return nil, in.wrapError(err)
	}
	return in, nil
}

// wrapError wraps err, the reason why the release was not imported, in an error that names the package and the version.
func (in *pendingImport) wrapError(err error) error {
	return fmt.Errorf("%s %s was not imported: %w", in.Package, in.Version, err)
}

// newSource returns the request's list of files in the form of an archive, without checking it. open returns the content of a
// file when a reader of the archive reads it; a walk over the names does not call it.
func (in *pendingImport) newSource(open func(ImportFile) (io.ReadCloser, error)) archive.Source {
	entries := make([]archive.Entry, len(in.Files))
	for i, f := range in.Files {
		entries[i] = archive.Entry{Name: f.Path, Size: f.Size, Skipped: text.Short(f.Skipped, sources.MaxNote)}
	}
	return archive.List(entries, func(i int) (io.ReadCloser, error) { return open(in.Files[i]) })
}

// openNothing always returns an error. It is the function for newSource if only the names in the list are read, before the
// contents have arrived.
func openNothing(ImportFile) (io.ReadCloser, error) {
	return nil, errors.New("the contents have yet to arrive")
}

// checkSelection returns a *sources.Refusal unless the selection of files, plan, can be published in every form in which a
// release is imported. It refuses a selected entry that is not a regular file, because a link in a folder is something else in
// an archive, and selected paths that differ only in case or Unicode form, which some file systems do not distinguish. It also
// refuses a plan that selects no file. findNeeded has filled in.skipped before.
func (in *pendingImport) checkSelection(plan *packages.Plan) error {
	for _, l := range plan.LeftOut {
		if in.skipped[l.Reason] {
			return sources.Refusef("%s is selected and cannot be published: %s; replace it by a regular file or remove it, and import again", quotePath(l.Path), text.Plain(l.Reason))
		}
	}
	if reason := plan.Nothing(); reason != "" {
		if in.hasTopFolder() {
			reason += "; for an archive made by npm pack, --npm drops the first component of every path; unpack another one, and import the folder in it"
		}
		return sources.Refusef("%s", reason)
	}
	var paths []string
	for _, f := range plan.Files() {
		paths = append(paths, f.Path)
	}
	if alike := packages.Alike(paths); len(alike) > 0 {
		return sources.Refusef("the paths %s and %s differ only in case or in Unicode form; rename or remove one, and import again", quotePath(alike[0][0]), quotePath(alike[0][1]))
	}
	return nil
}

// hasTopFolder reports whether the request has files and all of them, links included, are in the same top folder, as in an
// archive made by npm pack.
func (in *pendingImport) hasTopFolder() bool {
	top := ""
	for i, f := range in.Files {
		folder, _, below := strings.Cut(f.Path, "/")
		if !below || i > 0 && folder != top {
			return false
		}
		top = folder
	}
	return top != ""
}

// findNeeded adds to in.needed the files whose contents publication reads, stored or not, one for each content: selected files,
// and those that describe the release (README, package.json). It adds to the map in.skipped, which the caller has made, the
// reasons why entries are no regular files. It returns an error if the list exceeds the limits of archives, or gives one content
// two sizes.
func (in *pendingImport) findNeeded(ctx context.Context, plan *packages.Plan) error {
	sizes := make(map[kvstore.Hash]int64)
	i := 0
	return archive.Walk(ctx, in.newSource(openNothing), archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
		f := in.Files[i] // a walk reports every file of a list
		i++
		if e.Skipped != "" {
			in.skipped[e.Skipped] = true
			return nil
		}
		if len(plan.Targets[e.Name]) == 0 && !describesRelease(e) {
			return nil
		}
		size, seen := sizes[f.SHA256]
		if seen && size != f.Size {
			return sources.Refusef("the list gives the content %s two sizes, %d and %d", f.SHA256, size, f.Size)
		}
		if !seen {
			sizes[f.SHA256] = f.Size
			in.needed = append(in.needed, f)
		}
		return nil
	})
}

// receiveContents copies the contents that the request announces from contents into a file, which is empty, one after the other,
// and returns readers of them by hash. It checks the SHA-256 of each. It refuses a content that is not in in.needed (the contents
// that publication reads, also those that the store has) or that came before, so the limits of the list bound what it writes. It
// also refuses further bytes at the end. The readers read from file, so the caller keeps it open.
func (in *pendingImport) receiveContents(file *os.File, contents io.Reader) (map[kvstore.Hash]*io.SectionReader, error) {
	needed := make(map[kvstore.Hash]ImportFile)
	for _, f := range in.needed {
		needed[f.SHA256] = f
	}
	received := make(map[kvstore.Hash]*io.SectionReader)
	var size int64
	for i, hash := range in.Contents {
		f, ok := needed[hash]
		if !ok || received[hash] != nil {
			return nil, sources.Refusef("the request sends the content %s, which the release does not need, or needs only once", hash)
		}
		if err := receiveContent(file, f, contents); err != nil {
			return nil, fmt.Errorf("content %d of %d: %w", i+1, len(in.Contents), err)
		}
		received[hash] = io.NewSectionReader(file, size, f.Size)
		size += f.Size
	}
	var more [1]byte
	switch n, err := io.ReadFull(contents, more[:]); {
	case n > 0:
		return nil, sources.Refusef("the request sends more bytes than the contents that it lists")
	case err != io.EOF:
		return nil, fmt.Errorf("couldn't receive the end of the request: %w; run the same command again", err)
	}
	return received, nil
}

// receiveContent copies the next f.Size bytes of contents, which are the content of the file f, to a writer, and verifies their
// hash. The writer has the bytes also if the hash is wrong.
func receiveContent(to io.Writer, f ImportFile, contents io.Reader) error {
	sum := sha256.New()
	n, err := io.CopyN(io.MultiWriter(to, sum), contents, f.Size)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("couldn't receive the bytes of %s, after %d of %d: %w; run the same command again", quotePath(f.Path), n, f.Size, err)
	}
	if got := kvstore.Hash(sum.Sum(nil)); got != f.SHA256 {
		return fmt.Errorf("the bytes sent for %s have the SHA-256 %s, and the list says %s: the file has changed meanwhile, or was damaged on the way; run the same command again", quotePath(f.Path), got, f.SHA256)
	}
	return nil
}

// quotePath returns a path in quotes, with unprintable characters escaped, for a message. It shortens a path of over 150 bytes.
func quotePath(path string) string { return fmt.Sprintf("%q", text.Short(path, maxPath)) }
