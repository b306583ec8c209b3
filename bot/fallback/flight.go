package fallback

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
)

// A flight is a release on its way here. Clients that want a file of it wait for that file alone.
type flight struct {
	*Fallback
	id     release
	first  string        // the path that it began with
	listed chan struct{} // closed when files or err are there

	mu    sync.Mutex
	err   error // why there will be no release
	files map[string]*pendingFile
	order []*pendingFile // not begun yet
}

// A pendingFile is a file of a flight.
type pendingFile struct {
	logs.File
	ready chan struct{} // closed when the content, with the hash in File, or err is there
	err   error
}

// waitForFile waits until the file at path is stored, moves it ahead of others that are not fetched yet, and returns its bytes.
// The error is that of ctx, the one for which the file or the release could not be fetched, or [fetch.ErrNotFound] if the release
// does not have the file.
func (fl *flight) waitForFile(ctx context.Context, path string) ([]byte, error) {
	select {
	case <-fl.listed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	fl.mu.Lock()
	s, err := fl.files[path], fl.err
	if i := slices.Index(fl.order, s); s != nil && i > 0 { // what a client waits for comes first
		fl.order = slices.Insert(slices.Delete(fl.order, i, i+1), 0, s)
	}
	fl.mu.Unlock()
	switch {
	case s == nil && err != nil:
		return nil, err
	case s == nil:
		return nil, fetch.ErrNotFound
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.err != nil {
		return nil, s.err
	}
	return fl.o.Store.Identity(s.SHA256)
}

// nextFile removes the first file that no goroutine has begun to fetch from the list, and returns it; nil if no other is left.
func (fl *flight) nextFile() *pendingFile {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if len(fl.order) == 0 {
		return nil
	}
	s := fl.order[0]
	fl.order = fl.order[1:]
	return s
}

// run fetches and publishes the release, and wakes all that wait for it, with an error if that failed. It counts the outcome,
// records a failure so that the release is not tried again at once, and removes the flight from those under way.
func (fl *flight) run(ctx context.Context) {
	err := fl.fetchRelease(ctx)
	failed := err != nil && ctx.Err() == nil && !errors.Is(err, ingest.ErrInHand) && !errors.Is(err, ingest.ErrStays)
	if failed && !errors.Is(err, fetch.ErrNotFound) {
		fl.o.Logger.Warn("a release was not taken from another origin", "package", fl.id.pkg, "version", fl.id.version, "err", err)
	}
	fl.Fallback.mu.Lock()
	fl.releases[outcomeOf(err)]++
	if failed {
		fl.failed.record(fl.id, err, fl.o.Now())
	}
	delete(fl.flights, fl.id)
	fl.Fallback.mu.Unlock()
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.err = err
	for _, s := range fl.order {
		s.err = err
		close(s.ready)
	}
	fl.order = nil
	if fl.files == nil {
		close(fl.listed)
	}
}

// fetchRelease fetches the release from the first origin that has it, and publishes it. If its package requires an attestation,
// it publishes npm's own release instead. After an origin that has the release but does not send it as promised, no further one
// is tried. If no origin has it, the error is that of the first one which failed otherwise than by lacking the release, or else
// that of the last.
func (fl *flight) fetchRelease(ctx context.Context) error {
	m, err := fl.o.Bot.StartMirroring(fl.id.pkg, fl.id.version)
	if err != nil {
		return err
	}
	defer m.Close()
	if m.NeedsAttestation() {
		return m.PublishFromNpm(ctx)
	}
	var worst error
	for _, o := range fl.origins {
		got, err := o.findWithinLimits(ctx, fl.id, fl.first)
		if err == nil {
			if err = fl.fetchAndPublish(ctx, m, got); err == nil {
				return nil
			}
			return fmt.Errorf("%s: %w", o, err)
		}
		if worst == nil || errors.Is(worst, fetch.ErrNotFound) {
			worst = fmt.Errorf("%s: %w", o, err)
		}
	}
	return worst
}

// fetchAndPublish fetches and stores the files of an offer, a few at once, the one that a client wants first, and publishes the
// release through m. Of a strict offer one file that is not as promised ends it; else such files are left out. After an error it
// returns the bytes to the quota.
func (fl *flight) fetchAndPublish(ctx context.Context, m *ingest.Mirroring, got *offer) (err error) {
	if len(got.files) == 0 || len(got.files) > mostFiles {
		return fmt.Errorf("%w: a release of %d files, and 1 to %d may be taken", errMismatch, len(got.files), mostFiles)
	}
	var taken atomic.Int64
	defer func() {
		if err != nil {
			fl.stored.Add(-taken.Load())
		}
	}()
	files := make(map[string]*pendingFile, len(got.files))
	order := make([]*pendingFile, 0, len(got.files))
	for _, f := range got.files {
		s := &pendingFile{File: f, ready: make(chan struct{})}
		if files[f.Path] = s; f.Path == fl.first {
			order = slices.Insert(order, 0, s)
		} else {
			order = append(order, s)
		}
	}
	fl.mu.Lock()
	fl.files, fl.order = files, slices.Clone(order)
	fl.mu.Unlock()
	close(fl.listed)

	g, inner := errgroup.WithContext(ctx)
	for range atOnce {
		g.Go(func() error {
			for s := fl.nextFile(); s != nil; s = fl.nextFile() {
				size, err := fl.storeFile(inner, m, got, s)
				taken.Add(size)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if !got.strict {
		listFiles(got.manifest, order)
		if len(got.manifest.Files) == 0 {
			return fmt.Errorf("%w: none of its %d files is", errMismatch, len(order))
		}
	}
	_, err = m.Publish(ctx, got.manifest, got.mirror)
	return err
}

// storeFile fetches the file s of an offer, takes its bytes from the quota, stores it, and wakes the clients that wait for it,
// also after a failure. It returns the bytes that it took from the quota, also with an error. An error ends the release; a file
// that is only left out has its error in s.err.
func (fl *flight) storeFile(ctx context.Context, m *ingest.Mirroring, got *offer, s *pendingFile) (size int64, err error) {
	defer close(s.ready)
	data, err := got.fetchFile(ctx, s.File)
	if err == nil {
		size = int64(len(data))
		if err = fl.takeQuota(size); err != nil {
			size = 0
		}
	}
	if err == nil {
		s.Size = size
		s.SHA256, err = m.StoreFile(ctx, data)
	}
	if err == nil && !got.strict { // an origin with a log says it in its manifest
		s.File.Module, err = m.IsModule(ctx, s.Path, data)
	}
	if s.err = err; err == nil {
		return size, nil
	}
	if errors.Is(err, errMismatch) {
		fl.o.Logger.Warn("a file of another origin was refused", "origin", got.mirror.Source, "package", fl.id.pkg, "version", fl.id.version, "path", s.Path, "err", err)
	}
	if !got.strict && (errors.Is(err, errMismatch) || errors.Is(err, fetch.ErrNotFound) || errors.Is(err, fetch.ErrTooLarge)) {
		return size, nil // it is left out
	}
	return size, err
}

// fetchFile downloads a file of the offer, and returns its bytes once they have the hash in the origin's log or the integrity
// that its API states. The error wraps errMismatch if they do not, and [fetch.ErrNotFound] if the origin lacks the file.
func (got *offer) fetchFile(ctx context.Context, f logs.File) ([]byte, error) {
	w := replication.Wanted{Hash: f.SHA256, Limit: mostFile, Manifest: got.manifest, File: &f}
	if got.strict {
		w.Limit = max(f.Size, 1)
	}
	data, _, err := replication.Fetch(ctx, got.contents, w)
	switch {
	case errors.Is(err, replication.ErrOther), got.strict && errors.Is(err, fetch.ErrTooLarge):
		return nil, fmt.Errorf("%w: %s has other bytes: %w", errMismatch, f.Path, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", fetch.ErrNotFound, err)
	}
	return data, err
}

// listFiles adds those files of all that were stored to the manifest, and up to 1000 of the others as left out, with the reasons.
// It sorts both lists by path.
func listFiles(m *logs.Manifest, all []*pendingFile) {
	for _, s := range all {
		if s.err == nil {
			m.Files = append(m.Files, s.File)
			continue
		}
		reason := "the origin does not have the bytes that it promises"
		if !errors.Is(s.err, errMismatch) {
			reason = "the origin lists this file and does not send it"
		}
		if len(m.LeftOut) < 1000 {
			m.LeftOut = append(m.LeftOut, logs.LeftOut{Path: s.Path, Reason: reason})
		}
	}
	slices.SortFunc(m.Files, func(a, b logs.File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(m.LeftOut, func(a, b logs.LeftOut) int { return strings.Compare(a.Path, b.Path) })
}
