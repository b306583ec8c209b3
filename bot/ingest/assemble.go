package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// An assembly makes a release's manifest while storing its contents.
type assembly struct {
	*Publisher
	*pipeline
	pendingRelease
	pins *kvstore.Pins

	selected *packages.Plan

	mu        sync.Mutex
	manifest  *logs.Manifest
	crashes   int           // of the minifier
	minifying time.Duration // the processor time that the minifier's jobs used together
	silent    int           // notes and files left out that are not listed
}

// The bounds of what a manifest says besides its files.
const (
	maxNotes   = 100
	maxLeftOut = 1000
	maxPath    = 150 // bytes of a path in a note about several
)

// maxCrashes bounds minifying besides packages.MaxMinify: what comes after files
// that brought the minifier down is published as it is.
const maxCrashes = 3

// maxMinifying bounds the processor time that the minifier uses for one release. It takes the square of the size of some files,
// such as expressions of thousands of parts, and a release may have 50,000 of them that are each just within worker.ScriptTime.
const maxMinifying = 30 * time.Minute

// assemble makes the manifest of a release, and stores the contents of its files, which pins protects from deletion. It neither
// stores the manifest nor publishes anything. It reads the archive twice: first the names, on which the selection and the
// minified files depend, then the selected files, a few of which are in memory at a time. If the package JSON asks for modules,
// it reads the archive again for these. If no file is selected, the error is a *sources.Refusal. After an error, stored contents
// stay.
func (pb *Publisher) assemble(ctx context.Context, in pendingRelease, pins *kvstore.Pins) (*logs.Manifest, error) {
	a := &assembly{
		Publisher: pb, pipeline: pb.backlog, pendingRelease: in, pins: pins,
		manifest: &logs.Manifest{
			Package: in.pkg.Name, Version: in.version, Released: in.Released, Source: in.Source,
		},
	}
	if in.fresh {
		a.pipeline = pb.fresh
	}
	for _, note := range in.Notes {
		a.addNote("%s", note)
	}
	if err := a.selectFiles(ctx); err != nil {
		return nil, err
	}
	if err := a.processFiles(ctx); err != nil {
		return nil, err
	}
	if err := a.buildModules(ctx); err != nil {
		return nil, err
	}
	m := a.manifest
	slices.SortFunc(m.Files, func(x, y logs.File) int { return strings.Compare(x.Path, y.Path) })
	slices.SortFunc(m.LeftOut, func(x, y logs.LeftOut) int { return strings.Compare(x.Path, y.Path) })
	slices.Sort(m.Notes)
	if a.silent > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%d more notes and files left out are not listed", a.silent))
	}
	completeManifest(m, in.pkg)
	if in.pkg.Filename != "" && m.Default != in.pkg.Filename {
		m.Notes = append(m.Notes, fmt.Sprintf("the package JSON's filename %q is not in this release; the default file is %q", in.pkg.Filename, m.Default))
	}
	return m, nil
}

// completeManifest sets the default file in the manifest of a release of p, and lists in it the paths that differ only in case or
// Unicode form, with a note about them in front.
func completeManifest(m *logs.Manifest, p *packages.Package) {
	paths := make([]string, len(m.Files))
	for i, f := range m.Files {
		paths[i] = f.Path
	}
	m.Default = packages.DefaultFile(p.Filename, paths)
	if m.Alike = packages.Alike(paths); len(m.Alike) > 0 {
		m.Notes = slices.Insert(m.Notes, 0, alikeNote(m.Alike))
	}
}

// alikeNote returns a note for the manifest about groups of paths that differ only in case or Unicode form, with the first two
// paths as an example. alike has at least one group, of at least two paths. It writes these in ASCII, so that they look
// different.
func alikeNote(alike [][]string) string {
	first := alike[0]
	return fmt.Sprintf("%s of files with paths that differ only in case or in Unicode form, such as %s and %s; a mirror on a file system that does not tell them apart keeps one file of each",
		text.Count(len(alike), "group", "groups"), text.Short(strconv.QuoteToASCII(first[0]), maxPath), text.Short(strconv.QuoteToASCII(first[1]), maxPath))
}

// selectFiles reads the names in the archive, and stores in a.selected which files are published at which paths, according to the
// package JSON. It lists in the manifest the selected files that cannot be published, such as links and files that are too large,
// up to maxLeftOut, and counts the others in a.silent. If no file is selected, the error is a *sources.Refusal.
func (a *assembly) selectFiles(ctx context.Context) (err error) {
	if a.selected, err = packages.NewPlan(ctx, a.pkg, a.Archive); err != nil {
		return err
	}
	if reason := a.selected.Nothing(); reason != "" {
		return &sources.Refusal{Reason: reason, NoFiles: true}
	}
	for _, l := range a.selected.LeftOut {
		if len(a.manifest.LeftOut) < maxLeftOut {
			a.manifest.LeftOut = append(a.manifest.LeftOut, logs.LeftOut(l))
		} else {
			a.silent++
		}
	}
	return nil
}

// processFiles stores the selected files of the archive, with minified copies of those that need one, several at once, as far as
// the budget has memory for them. It finds out which are ES modules, and adds to the manifest the README's text and the
// dependencies in package.json. It starts with the files in the order of the archive, and returns when none is under way.
// selectFiles has run before.
func (a *assembly) processFiles(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	err := archive.Walk(ctx, a.Archive, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		paths := a.selected.Targets[e.Name]
		if e.Skipped != "" || len(paths) == 0 && !describesRelease(e) {
			return nil
		}
		if len(paths) == 0 {
			data, err := io.ReadAll(io.LimitReader(r, maxDescription))
			if err != nil {
				return fmt.Errorf("couldn't read %s: %w", e.Name, err)
			}
			a.describe(e.Name, data)
			return nil
		}
		leave, err := a.options.Budget.AcquireFile(ctx, ReleaseID(a.pkg.Name, a.version), a.pendingRelease.fresh, coding.Memory(coding.Brotli, coding.Quick, e.Size), a.childMemory(e))
		if err != nil {
			return err
		}
		data := make([]byte, e.Size)
		if _, err := io.ReadFull(r, data); err != nil {
			leave()
			return fmt.Errorf("couldn't read %s: %w", e.Name, err)
		}
		if describesRelease(e) {
			a.describe(e.Name, data)
		}
		g.Go(func() error {
			defer leave()
			return a.processFile(ctx, e.Name, paths, data)
		})
		return nil
	})
	// The files' own error says more than the walk's, which it has cancelled.
	if fileErr := g.Wait(); fileErr != nil {
		return fileErr
	}
	return err
}

// childMemory returns how many bytes of memory the budget reserves for the child process that finds out a file's module format or
// minifies the file. It returns 0 for a file that needs neither by its name and size. The child's own limit comes from
// worker.Memory.
func (a *assembly) childMemory(e archive.Entry) int64 {
	child := e.Size <= maxModule && strings.EqualFold(path.Ext(e.Name), ".js")
	for _, path := range a.selected.Targets[e.Name] {
		target, _ := a.minifiedPath(e.Name, path)
		child = child || target != "" && e.Size <= packages.MaxMinify
	}
	if !child {
		return 0
	}
	return worker.Memory(worker.MinifyJS, e.Size)
}

// processFile stores one file of the archive at the paths at which it is published, and adds it to the manifest. source is the
// file's path in the archive, and data its content. For each path it also stores a minified copy if the release needs one. A file
// that cannot be minified gets a note in the manifest. An error (of the store, of ctx, or a transient one of a child process)
// means that the release is tried again. Several goroutines call it for different files.
func (a *assembly) processFile(ctx context.Context, source string, paths []string, data []byte) error {
	module, err := a.isModule(ctx, ReleaseID(a.pkg.Name, a.version), source, data)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := a.addFile(ctx, logs.File{Path: path, Origin: logs.Upstream, Module: module}, data); err != nil {
			return err
		}
	}
	for _, path := range paths {
		target, task := a.minifiedPath(source, path)
		if target == "" {
			continue
		}
		small, err := a.minify(ctx, task, data)
		if ctx.Err() != nil || worker.IsTransient(err) {
			return errors.Join(ctx.Err(), err)
		}
		if err != nil {
			a.addNote("%s was not minified: %v", path, err)
			continue
		}
		if err := a.addFile(ctx, logs.File{Path: target, Origin: logs.Minified, From: path, Module: module}, small); err != nil {
			return err
		}
	}
	return nil
}

// minify has a child process run the task, MinifyJS or MinifyCSS, on a file's content, and returns its minified form. It adds
// the processor time and a crash to the release's totals in a, and locks a.mu for that. It returns an error without a try if the
// file is too large, or if the release has reached its limit of crashes or of processor time. If [worker.IsTransient] reports
// true for an error, the release is tried again later.
func (a *assembly) minify(ctx context.Context, task worker.Task, data []byte) ([]byte, error) {
	a.mu.Lock()
	crashes, minifying := a.crashes, a.minifying
	a.mu.Unlock()
	if crashes >= maxCrashes {
		return nil, fmt.Errorf("%d files of this release brought the minifier down", crashes)
	}
	if minifying >= maxMinifying {
		return nil, fmt.Errorf("the files of this release before it took the minifier %v of processor time, the limit for one release", maxMinifying)
	}
	if len(data) > packages.MaxMinify {
		return nil, fmt.Errorf("%d bytes, over the limit of %d", len(data), packages.MaxMinify)
	}
	small, used, err := a.minifiers.DoTimed(ctx, ReleaseID(a.pkg.Name, a.version), task, data)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.minifying += used
	if errors.As(err, new(*worker.CrashError)) {
		a.crashes++
	}
	return small, err
}

// addFile stores data, the content of a published file, and adds f to the manifest's files, with size and hashes; the caller has
// set its other fields. The content is stored when addFile returns. It waits while the pipeline stores as many files as it may;
// only this wait ends with ctx. Several goroutines may call it.
func (a *assembly) addFile(ctx context.Context, f logs.File, data []byte) error {
	if err := a.cpu.Acquire(ctx, 1); err != nil {
		return err
	}
	hash, err := a.storeContent(a.pins, data)
	a.cpu.Release(1)
	if err != nil {
		return err
	}
	f.Size, f.SHA256, f.SRI = int64(len(data)), hash, logs.SumSRI(data)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.manifest.Files = append(a.manifest.Files, f)
	return nil
}

// addNote adds a formatted note for readers, shortened to sources.MaxNote bytes, to the manifest. If the manifest has 100 notes,
// addNote only counts the note in a.silent. It locks a.mu, so several goroutines may call it.
func (a *assembly) addNote(format string, args ...any) {
	note := text.Short(fmt.Sprintf(format, args...), sources.MaxNote)
	a.logger.Debug("note", "package", a.pkg.Name, "version", a.version, "note", note)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.manifest.Notes) < maxNotes {
		a.manifest.Notes = append(a.manifest.Notes, note)
	} else {
		a.silent++
	}
}

// minifiedPath returns the path at which a minified copy of a file is published, and the worker's task that makes it. source is
// the file's path in the archive, and path the one at which it is published. target is "", and task has no meaning, if the
// release gets no such copy, such as for a file of another type or one whose minified form upstream has. selectFiles has run
// before.
func (a *assembly) minifiedPath(source, path string) (target string, task worker.Task) {
	target, extension := a.selected.Minified(source, path)
	if extension == ".css" {
		return target, worker.MinifyCSS
	}
	return target, worker.MinifyJS
}

// storeContent stores data, unless the store has it, and returns its hash, with an error too. It compresses data with fast
// settings, and stores the compressed forms that are worthwhile, or data itself if none is. It adds the content to pins, so that
// nothing deletes it before the caller releases pins. Equal contents of several goroutines are compressed once. It waits while as
// many contents as Options.Encoders are compressed.
func (pb *Publisher) storeContent(pins *kvstore.Pins, data []byte) (kvstore.Hash, error) {
	hash := kvstore.Sum(data)
	if there, err := pins.Has(hash); err != nil || there {
		return hash, err
	}
	// The second goroutine waits for the first rather than doing it again. The
	// content that the first stores is pinned for both by then; no context ends
	// this, because it is not the second's to end.
	_, err, _ := pb.encoding.Do(hash.String(), func() (any, error) {
		if there, err := pins.Has(hash); err != nil || there {
			return nil, err
		}
		pb.encoders <- struct{}{}
		defer func() { <-pb.encoders }()
		var coded []kvstore.Coded
		priority.Compute(func() { coded = pb.encodeQuickly(hash, data) })
		return nil, pb.store.PutContent(hash, int64(len(data)), isIncompressible(data, coded), coded)
	})
	return hash, err
}

// encodeQuickly compresses data with fast settings, and returns the compressed forms that are worth storing, or data as it is if
// none is; so the result is never empty. It logs an encoder's error and leaves that form out. hash is the hash of data, for
// messages.
func (pb *Publisher) encodeQuickly(hash kvstore.Hash, data []byte) (coded []kvstore.Coded) {
	for _, c := range recompression.Compressed {
		quick, err := coding.Encode(c, coding.Quick, data)
		if err != nil {
			// It is served in the others, and inflated from them or as it is.
			pb.logger.Warn("not compressed", "content", hash, "coding", c, "err", err)
			continue
		}
		if coding.Worthwhile(len(data), len(quick)) {
			coded = append(coded, kvstore.Coded{Coding: c, Bytes: quick})
		}
	}
	if len(coded) == 0 {
		coded = []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}
	}
	return coded
}

// isIncompressible reports whether recompressing a content later is useless: data is empty, or over 16 KiB and stored as it is.
// quick are the forms of data, one at least, that are going to be stored.
func isIncompressible(data []byte, quick []kvstore.Coded) bool {
	return len(data) == 0 || quick[0].Coding == coding.Identity && len(data) > 16<<10
}

// maxModule is the largest script whose format is found out, in bytes.
const maxModule = 2 << 20

// needsFormat reports whether a child process has to parse a file to find out if it is an ES module: source, its path, ends with
// .js in any case, data has 2 MiB at most, and data has a word that only modules need. If not, the file counts as no module.
func needsFormat(source string, data []byte) bool {
	return strings.HasSuffix(strings.ToLower(source), ".js") && len(data) <= maxModule && maybeModule(data)
}

// maybeModule reports whether a script may be an ES module: it has import.meta, or the word import or export where a statement
// may begin. It looks for words only, so it may be wrong about a classic script. It saves parsing most scripts.
func maybeModule(data []byte) bool {
	if bytes.Contains(data, []byte("import.meta")) {
		return true
	}
	for _, word := range []string{"export", "import"} {
		for rest := data; ; {
			i := bytes.Index(rest, []byte(word))
			if i < 0 {
				break
			}
			before := bytes.TrimRight(rest[:i], " \t")
			after := rest[i+len(word):]
			if (len(before) == 0 || strings.IndexByte("\n\r;})/", before[len(before)-1]) >= 0) &&
				len(after) > 0 && strings.IndexByte(" \t\r\n{*\"'/", after[0]) >= 0 {
				return true
			}
			rest = after
		}
	}
	return false
}
