package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// A Tree is a folder of releases as a public service lays them out, {package}/{version}/{path}, and what is known of them
// besides.
type Tree struct {
	Dir string `json:"dir"` // an absolute path
	// Released says when the releases were made: [ByPackument], [ByTimes], or the path of a file of dates.
	Released string `json:"released"`
	// SRI is the path of a file of integrities that must hold, or of a folder of such files, {package}/{version}.json; ""
	// for none.
	SRI string `json:"sri,omitempty"`
	// Override is that of an [ImportRequest], for all releases.
	Override string `json:"override,omitempty"`
}

// A TreeEvent reports the progress of an import and, if Problem is not "", a release that was not imported.
type TreeEvent struct {
	Done    int    `json:"done"`
	Of      int    `json:"of"`
	Package string `json:"package"`
	Version string `json:"version,omitempty"` // "" where the package's folder could not be read
	Problem string `json:"problem,omitempty"` // what is wrong, in the same words for all releases of which it is
	Detail  string `json:"detail,omitempty"`
}

// A TreeSummary counts what an import did.
type TreeSummary struct {
	Packages  int   `json:"packages"` // that the tree and the catalogue have
	Releases  int   `json:"releases"` // that the tree has of them
	Published int   `json:"published"`
	Files     int   `json:"files"` // in those
	Bytes     int64 `json:"bytes"`
	Same      int   `json:"same"` // published before, with the same files
	// Refused has the releases that were not imported, by problem, the most frequent first.
	Refused []TreeRefusals `json:"refused"`
	// Unknown are the folders that have no package's name, Beside the files and links beside the folders.
	Unknown Sample `json:"unknown"`
	Beside  Sample `json:"beside"`
	LeftOut Sample `json:"leftOut"` // files of published releases, such as links
	// Unlisted are releases of which there are no integrities, Missing those of which there are some and no folder.
	Unlisted Sample `json:"unlisted"`
	Missing  Sample `json:"missing"`
}

// TreeRefusals are the releases that were not imported for one problem.
type TreeRefusals struct {
	Problem string `json:"problem"`
	Sample
}

// A Sample is the number of names, and the first few of them.
type Sample struct {
	Count int      `json:"count"`
	First []string `json:"first,omitempty"`
}

const sampleSize = 5

// add adds names to the sample: it counts all of them, and stores those among the first five of the sample. It takes no lock.
func (s *Sample) add(names ...string) {
	s.Count += len(names)
	s.First = append(s.First, names[:min(len(names), sampleSize-len(s.First))]...)
}

// The problems that a release of a tree may have.
const (
	notVersion      = "the folder's name is not a version"
	otherFiles      = "published already, with other files"
	wasWithdrawn    = "withdrawn"
	wrongIntegrity  = "an integrity does not hold"
	noDate          = "no release date"
	notAcceptable   = "not an acceptable release"
	notAttested     = "the package requires an attestation of the build"
	couldNotBeRead  = "could not be read"
	couldNotPublish = "could not be published"
)

// treeError is why a release is not imported.
type treeError struct {
	problem string
	cause   error
}

// Error returns the text of the cause, without the problem by which summaries group releases.
func (e *treeError) Error() string { return e.cause.Error() }

func (e *treeError) Unwrap() error { return e.cause }

// treeProblem returns an error that says why a release is not imported: one of the constant problems, by which summaries group
// releases, and a formatted cause.
func treeProblem(problem, format string, args ...any) error {
	return &treeError{problem, fmt.Errorf(format, args...)}
}

// treeImport is an import under way.
type treeImport struct {
	*Publisher
	Tree
	root     *os.Root
	dates    dates
	listed   integrities
	packages []*treePackage
	report   func(TreeEvent)

	mu   sync.Mutex
	done int
	sum  TreeSummary
}

// A treePackage is a package of the tree.
type treePackage struct {
	*packages.Package
	laid     *packages.Package
	versions []string // newest first
	// dates requests, at the first call, when npm published the versions. importAll sets it.
	dates func() (map[string]time.Time, error)

	mu         sync.Mutex
	registered bool
}

// ImportTree publishes the releases that lie in a folder as they are: no fileMap applies, and no minified copies are made.
// Several are published at once. A release that is published with the same files is only counted, so an import that was
// interrupted continues when it is called again. ImportTree calls report, under a lock, after each release, also one that cannot
// be imported, which does not stop the others, and for each package whose folder cannot be read. The error is for what stops the
// import, such as the end of ctx; the summary then has what was done before.
func (pb *Publisher) ImportTree(ctx context.Context, tree Tree, report func(TreeEvent)) (TreeSummary, error) {
	root, err := os.OpenRoot(tree.Dir)
	if err != nil {
		return TreeSummary{}, fmt.Errorf("couldn't open the tree: %w", err)
	}
	defer root.Close()
	t := &treeImport{Publisher: pb, Tree: tree, root: root, report: report, sum: TreeSummary{Refused: []TreeRefusals{}}}
	if t.dates, err = readDates(tree.Released, pb.options.Now()); err != nil {
		return TreeSummary{}, err
	}
	if t.listed, err = openIntegrities(tree.SRI); err != nil {
		return TreeSummary{}, err
	}
	defer t.listed.close()
	pb.Recover()
	if err := t.scan(); err != nil {
		return TreeSummary{}, err
	}
	err = t.importAll(ctx)
	slices.SortStableFunc(t.sum.Refused, func(x, y TreeRefusals) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), strings.Compare(x.Problem, y.Problem))
	})
	return t.sum, err
}

// scan finds the folders of the tree that have the name of a package in the catalogue, and the versions in them, and stores them
// in t.packages, without reading files. It counts packages, releases, other folders, and missing releases in the summary. A
// package's folder that cannot be read is reported as a refusal. If there are no releases at all and no such folder, scan returns
// an error. It runs before other goroutines start.
func (t *treeImport) scan() error {
	folders, err := t.listFolders(".")
	if err != nil {
		return fmt.Errorf("couldn't read the tree: %w", err)
	}
	for _, name := range folders {
		p, ok := t.Catalogue().Get(name)
		if !ok {
			t.sum.Unknown.add(name)
			continue
		}
		versions, err := t.listFolders(name)
		if err != nil {
			t.reportRelease(name, "", treeProblem(couldNotBeRead, "%w", err))
			continue
		}
		slices.SortFunc(versions, func(x, y string) int { return packages.CompareVersions(y, x) })
		t.packages = append(t.packages, &treePackage{Package: p, laid: p.LaidOut(), versions: versions})
		t.sum.Releases += len(versions)
		t.listed.markFound(name, versions)
	}
	t.sum.Packages = len(t.packages)
	t.sum.Missing = t.listed.missingReleases()
	if t.sum.Releases == 0 && len(t.sum.Refused) == 0 {
		found := "no folders"
		if t.sum.Packages > 0 {
			found = fmt.Sprintf("folders of %s, but no versions in them", english.Plural(t.sum.Packages, "package", ""))
		} else if len(folders) > 0 {
			found = fmt.Sprintf("%s, such as %s, and the catalogue has no package of that name",
				english.Plural(len(folders), "folder", ""), strings.Join(t.sum.Unknown.First, ", "))
		}
		return fmt.Errorf("%s is not laid out as {package}/{version}/{file}: it has %s; of a public service's files, name the folder that has the packages, such as ajax/libs", t.Dir, found)
	}
	return nil
}

// listFolders returns the names of the folders in the folder dir of the tree, sorted. It adds all other entries of dir, links
// included, to the summary's Beside, without a lock.
func (t *treeImport) listFolders(dir string) ([]string, error) {
	f, err := t.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		} else {
			t.sum.Beside.add(path.Join(dir, e.Name()))
		}
	}
	slices.Sort(names)
	return names, nil
}

// importAll imports the releases of all packages in t.packages, several at once, and returns when none is under way. A release
// that cannot be imported is reported and counted. The error is for what stops the import: the end of ctx, or a problem such as a
// full disk; then no further releases start.
func (t *treeImport) importAll(ctx context.Context) error {
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(t.options.Downloads)
	for _, p := range t.packages {
		p.dates = sync.OnceValues(func() (map[string]time.Time, error) { return t.requestDates(groupCtx, p.Package, p.versions) })
		for _, version := range p.versions {
			if groupCtx.Err() != nil {
				break
			}
			g.Go(func() error {
				err := t.importOne(groupCtx, p, version)
				if err != nil && (sources.Stops(err) || groupCtx.Err() != nil) {
					return fmt.Errorf("%s %s: %w", p.Name, version, err)
				}
				t.reportRelease(p.Name, version, err)
				return nil
			})
		}
	}
	return cmp.Or(g.Wait(), ctx.Err())
}

// reportRelease counts a release as done and calls t.report, both under t.mu, which the caller does not hold. err is why the
// release was not imported, nil for success; an error is also counted by its kind in t.sum.Refused, the import's result. version
// is "" if the folder of the package could not be read; then only the error counts, because no release is done.
func (t *treeImport) reportRelease(name, version string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	event := TreeEvent{Package: name, Version: version}
	if version != "" {
		t.done++
	}
	event.Done, event.Of = t.done, t.sum.Releases
	if err != nil {
		event.Problem, event.Detail = couldNotPublish, err.Error()
		problem, known := errors.AsType[*treeError](err)
		switch _, refused := sources.RefusalReason(err); {
		case known:
			event.Problem = problem.problem
		case refused:
			event.Problem = notAcceptable
		case errors.As(err, new(*fs.PathError)):
			event.Problem = couldNotBeRead
		}
		t.countRefusal(event.Problem, strings.TrimSpace(name+" "+version))
	}
	t.report(event)
}

// countRefusal counts a release ("package version") in the summary as not imported because of one of the constant problems. The
// caller holds t.mu.
func (t *treeImport) countRefusal(problem, release string) {
	i := slices.IndexFunc(t.sum.Refused, func(r TreeRefusals) bool { return r.Problem == problem })
	if i < 0 {
		i = len(t.sum.Refused)
		t.sum.Refused = append(t.sum.Refused, TreeRefusals{Problem: problem})
	}
	t.sum.Refused[i].add(release)
}

// importOne publishes one release of the tree or, if it is published already, checks that its files are the same, and counts it
// in the summary. It emits an event for a release that it publishes. It waits while another goroutine is publishing the version,
// and locks t.mu, which the caller does not hold. The error is why the release is neither published now nor the same as before,
// also if it is withdrawn; importOne does not count it.
func (t *treeImport) importOne(ctx context.Context, p *treePackage, version string) error {
	// A digit as well: "dist" would be a version, and what is published under it by mistake stays.
	if !packages.ValidVersion(version) || !strings.ContainsAny(version, "0123456789") {
		return treeProblem(notVersion, "letters, digits and . _ + - are allowed, a letter or digit first, and a digit must be among them")
	}
	id := ReleaseID(p.Name, version)
	if err := t.claims.Acquire(ctx, id); err != nil {
		return err
	}
	defer t.claims.Release(id)
	listed, err := t.listed.get(p.Name, version)
	if err != nil {
		return &treeError{wrongIntegrity, err}
	}
	source := archive.FolderIn(t.root, path.Join(p.Name, version))
	published, err := views.LookupVersion(t.store, p.Name, version)
	switch {
	case err == nil:
		if err := t.checkSame(ctx, p, published, source, listed); err != nil {
			return err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.sum.Same++
	case !errors.Is(err, kvstore.ErrNotFound):
		return err
	default:
		manifest, err := t.publishOne(ctx, p, version, source, listed)
		if err != nil {
			return err
		}
		event := t.announce(ctx, "imported", manifest)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.sum.Published++
		t.sum.Files += event.Files
		t.sum.Bytes += event.Bytes
		for _, l := range manifest.LeftOut {
			t.sum.LeftOut.add(fmt.Sprintf("%s/%s/%s (%s)", p.Name, version, l.Path, l.Reason))
		}
	}
	if t.SRI != "" && len(listed) == 0 {
		t.sum.Unlisted.add(p.Name + " " + version)
	}
	return nil
}

// publishOne publishes one release of the tree, whose version the caller has locked, and returns the manifest. source has its
// files, and listed the integrities that they must have, by path; files that are not listed are not checked. If the release date
// is not known, it returns an error and writes nothing. Otherwise it registers the package first, once in an import. If an integrity does not match,
// it returns an error, and the log gets no entry about the release. A version that has been published is an error. If the package
// requires an attestation and the operator has not overridden that (t.Override), publishOne also returns an error, and records
// the refusal in the log unless the version has a state.
func (t *treeImport) publishOne(ctx context.Context, p *treePackage, version string, source archive.Source, listed map[string]string) (*logs.Manifest, error) {
	released, err := t.releaseDate(ctx, p, version, source)
	if err != nil {
		return nil, err
	}
	if err := t.registerOnce(ctx, p); err != nil {
		return nil, err
	}
	if err := t.refuseImport(ctx, p.Package, version, t.Override); err != nil {
		return nil, &treeError{notAttested, err}
	}
	return t.publish(ctx, pendingRelease{
		Fetched: sources.Fetched{Archive: source, Source: logs.Source{Type: "import", Name: filepath.Base(t.Dir)}, Released: released},
		pkg:     p.laid, version: version, override: t.Override, actor: ActorOperator,
		check: func(m *logs.Manifest) error { return checkIntegrities(listed, m) },
	})
}

// registerOnce registers a package unless the import has done so already: its JSON may have changed since, and that change stays. It
// locks p.mu.
func (t *treeImport) registerOnce(ctx context.Context, p *treePackage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.registered {
		return nil
	}
	err := t.Register(ctx, p.Package)
	p.registered = err == nil
	return err
}

// checkSame returns nil if published, a release that was published before, has the files that the tree has of it in source, no
// more and no others, and the integrities in listed match. Otherwise, and if the release is withdrawn, the error says what is
// wrong. It reads the files of equal size to compare them, and changes nothing.
func (t *treeImport) checkSame(ctx context.Context, p *treePackage, published views.Version, source archive.Source, listed map[string]string) error {
	if w := published.Withdrawn; w != nil {
		return treeProblem(wasWithdrawn, "%s; `larder withdraw --undo %s %s` serves it again as it was", w.Reason, p.Name, published.Version)
	}
	manifest, err := logs.ReadManifest(t.store, published.Manifest)
	if err != nil {
		return err
	}
	plan, err := packages.NewPlan(ctx, p.laid, source)
	if err != nil {
		return err
	}
	want := make(map[string]logs.File, len(manifest.Files))
	var other Sample
	for _, f := range manifest.Files {
		want[f.Path] = f
		if plan.Targets[f.Path] == nil {
			other.add(f.Path + " is not in the tree")
		}
	}
	err = archive.Walk(ctx, source, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		f, ok := want[e.Name]
		switch {
		case plan.Targets[e.Name] == nil:
			return nil
		case !ok:
			other.add(e.Name + " is not published")
			return nil
		case e.Size != f.Size:
			other.add(e.Name + " differs")
			return nil
		}
		hash, err := kvstore.SumReader(r)
		if err == nil && hash != f.SHA256 {
			other.add(e.Name + " differs")
		}
		return err
	})
	if err != nil {
		return err
	}
	if other.Count > 0 {
		return treeProblem(otherFiles, "%s, and a published version is never rewritten", other)
	}
	return checkIntegrities(listed, manifest)
}

// String returns the stored names, and how many more were counted, for the middle of a sentence.
func (s Sample) String() string {
	text := strings.Join(s.First, ", ")
	if more := s.Count - len(s.First); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
