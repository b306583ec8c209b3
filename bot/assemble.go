package bot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/selection"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages/archive"
)

// An assembly makes a release's manifest while storing its contents.
type assembly struct {
	*Bot
	intake
	pins *kvstore.Pins

	selected *selection.Selection

	mu       sync.Mutex
	manifest *logs.Manifest
	crashes  int // of the minifier
	silent   int // notes and files left out that are not listed
}

// The bounds of what a manifest says besides its files.
const (
	maxNotes   = 100
	maxLeftOut = 1000
	maxNote    = 500 // bytes
)

// maxCrashes bounds minifying besides selection.MaxMinify: what comes after files
// that brought the minifier down is published as it is.
const maxCrashes = 3

// assemble walks the archive twice: first to see what is there, because the
// selection and the minified files depend on all names, then to read what is
// selected. Only selected files are in memory, and only while they are worked on.
func (b *Bot) assemble(ctx context.Context, in intake, pins *kvstore.Pins) (*logs.Manifest, error) {
	a := &assembly{
		Bot: b, intake: in, pins: pins,
		manifest: &logs.Manifest{
			Package: in.pkg.Name, Version: in.version, Released: in.released, Source: in.source,
		},
	}
	for _, note := range in.notes {
		a.note("%s", note)
	}
	if err := a.list(ctx); err != nil {
		return nil, err
	}
	if err := a.read(ctx); err != nil {
		return nil, err
	}
	m := a.manifest
	slices.SortFunc(m.Files, func(x, y logs.File) int { return strings.Compare(x.Path, y.Path) })
	slices.SortFunc(m.LeftOut, func(x, y logs.LeftOut) int { return strings.Compare(x.Path, y.Path) })
	slices.Sort(m.Notes)
	if a.silent > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%d more notes and files left out are not listed", a.silent))
	}
	paths := make([]string, len(m.Files))
	for i, f := range m.Files {
		paths[i] = f.Path
	}
	m.Default = selection.DefaultFile(in.pkg.Filename, paths)
	if in.pkg.Filename != "" && m.Default != in.pkg.Filename {
		m.Notes = append(m.Notes, fmt.Sprintf("the package JSON's filename %q is not in this release; the default file is %q", in.pkg.Filename, m.Default))
	}
	return m, nil
}

// list reads the archive's names and selects from them.
func (a *assembly) list(ctx context.Context) (err error) {
	if a.selected, err = selection.Of(ctx, a.pkg, a.archive); err != nil {
		return err
	}
	if reason := a.selected.Nothing(); reason != "" {
		return refuse("%s", reason)
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

// read processes the selected files, several at once, as the archive yields them.
func (a *assembly) read(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	err := archive.Walk(ctx, a.archive, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		paths := a.selected.Targets[e.Name]
		if len(paths) == 0 || e.Skipped != "" {
			return nil
		}
		weight := a.weight(e)
		if err := a.memory.Acquire(ctx, weight); err != nil {
			return err
		}
		data := make([]byte, e.Size)
		if _, err := io.ReadFull(r, data); err != nil {
			a.memory.Release(weight)
			return fmt.Errorf("couldn't read %s: %w", e.Name, err)
		}
		g.Go(func() error {
			defer a.memory.Release(weight)
			return a.file(ctx, e.Name, paths, data)
		})
		return nil
	})
	// The files' own error says more than the walk's, which it has cancelled.
	if fileErr := g.Wait(); fileErr != nil {
		return fileErr
	}
	return err
}

// minifierMemory is how many times its size a file takes in the minifier,
// measured.
const minifierMemory = 170

// weight is what a file takes of the memory bound.
func (a *assembly) weight(e archive.Entry) int64 {
	weight := coding.Memory(coding.Brotli, coding.Quick, e.Size)
	for _, path := range a.selected.Targets[e.Name] {
		if target, _ := a.minified(e.Name, path); target != "" && e.Size <= selection.MaxMinify {
			weight += minifierMemory * e.Size
			break
		}
	}
	return min(a.options.MemoryBytes, weight)
}

// file stores one file, and its minified form where it should have one.
func (a *assembly) file(ctx context.Context, source string, paths []string, data []byte) error {
	module, err := a.isModule(ctx, source, data)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := a.add(ctx, logs.File{Path: path, Origin: logs.Upstream, Module: module}, data); err != nil {
			return err
		}
	}
	for _, path := range paths {
		target, task := a.minified(source, path)
		if target == "" {
			continue
		}
		small, err := a.minify(ctx, task, data)
		if ctx.Err() != nil || stops(err) {
			return errors.Join(ctx.Err(), err)
		}
		if err != nil {
			a.note("%s was not minified: %v", path, err)
			continue
		}
		if err := a.add(ctx, logs.File{Path: target, Origin: logs.Minified, From: path, Module: module}, small); err != nil {
			return err
		}
	}
	return nil
}

// minify has a child minify, unless that is too much to ask.
func (a *assembly) minify(ctx context.Context, task worker.Task, data []byte) ([]byte, error) {
	a.mu.Lock()
	crashes := a.crashes
	a.mu.Unlock()
	if crashes >= maxCrashes {
		return nil, fmt.Errorf("%d files of this release brought the minifier down", crashes)
	}
	if len(data) > selection.MaxMinify {
		return nil, fmt.Errorf("%d bytes, over the limit of %d", len(data), selection.MaxMinify)
	}
	small, err := a.minifiers.Do(ctx, task, data)
	var crash *worker.CrashError
	if errors.As(err, &crash) && crash.Killed && ctx.Err() == nil {
		small, err = a.minifiers.Do(ctx, task, data) // once more: somebody killed the process
	}
	if errors.As(err, &crash) {
		a.mu.Lock()
		a.crashes++
		a.mu.Unlock()
	}
	return small, err
}

// add stores one published file's content and adds the file to the manifest.
func (a *assembly) add(ctx context.Context, f logs.File, data []byte) error {
	if err := a.cpu.Acquire(ctx, 1); err != nil {
		return err
	}
	hash, err := a.keep(a.pins, data)
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

func (a *assembly) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:maxNote], "") + "…"
	}
	a.logger.Debug("note", "package", a.pkg.Name, "version", a.version, "note", text)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.manifest.Notes) < maxNotes {
		a.manifest.Notes = append(a.manifest.Notes, text)
	} else {
		a.silent++
	}
}

// minified returns where the minified form of the file at path is published and
// how it is made, or "" where it has none.
func (a *assembly) minified(source, path string) (target string, task worker.Task) {
	target, extension := a.selected.Minified(source, path)
	if extension == ".css" {
		return target, worker.MinifyCSS
	}
	return target, worker.MinifyJS
}

// compressed are the codings in which a content is stored where it shrinks.
var compressed = []coding.Coding{coding.Brotli, coding.Gzip}

// keep stores a content in its quick codings, unless it is there already, and
// pins it.
func (b *Bot) keep(pins *kvstore.Pins, data []byte) (kvstore.Hash, error) {
	hash := kvstore.Sum(data)
	if there, err := pins.Has(hash); err != nil || there {
		return hash, err
	}
	// Whoever comes second waits for the first rather than doing it again. The
	// content that the first stores is pinned for both by then; no context ends
	// this, because it is not the second's to end.
	_, err, _ := b.encoding.Do(hash.String(), func() (any, error) {
		if there, err := pins.Has(hash); err != nil || there {
			return nil, err
		}
		var coded []kvstore.Coded
		for _, c := range compressed {
			quick, err := coding.Encode(c, coding.Quick, data)
			if err != nil {
				// It is served in the others, and inflated from them or as it is.
				b.logger.Warn("not compressed", "content", hash, "coding", c, "err", err)
				continue
			}
			if coding.Worthwhile(len(data), len(quick)) {
				coded = append(coded, kvstore.Coded{Coding: c, Bytes: quick})
			}
		}
		if len(coded) == 0 {
			coded = []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}
		}
		return nil, b.store.PutContent(hash, int64(len(data)), settled(data, coded), coded)
	})
	return hash, err
}

// settled reports whether the best codings need not be tried either: a content of
// some size that the quick ones do not shrink is compressed or random already.
func settled(data []byte, quick []kvstore.Coded) bool {
	return len(data) == 0 || quick[0].Coding == coding.Identity && len(data) > 16<<10
}
