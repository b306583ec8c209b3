package bot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// An Erasure says what erasing a release removed, and what it had to leave.
type Erasure struct {
	// Entry is that of the log, or -1 if nothing was removed.
	Entry  int64 `json:"entry"`
	Erased int   `json:"erased"` // contents
	Bytes  int64 `json:"bytes"`  // of their identities
	// Shared counts the contents that others need too, and With names some of those.
	Shared int      `json:"shared"`
	With   []string `json:"with,omitempty"`
	// Busy counts the contents that a release which is being made may need; when
	// that is done, the rest can be erased.
	Busy int `json:"busy"`
}

// Erase permanently removes the contents of a withdrawn release that nothing else needs, and appends an entry about it to the
// log. It keeps contents that another release needs or that a release being made may need, and counts them in the result. It can
// be called again for the latter. It reads the whole log. It returns an error for a release that is not withdrawn, and one that
// was restored meanwhile.
func (s *WithdrawalService) Erase(ctx context.Context, name, version, reason string) (Erasure, error) {
	reason, err := checkWithdrawalReason(reason)
	if err != nil {
		return Erasure{}, err
	}
	v, m, err := s.lookup(name, version)
	if err != nil {
		return Erasure{}, err
	}
	if v.Withdrawn == nil {
		return Erasure{}, fmt.Errorf("%s %s is served; withdraw it before its files are erased", name, version)
	}
	c, err := s.newCandidates(m)
	if err != nil {
		return Erasure{}, err
	}
	seen, err := c.excludeNeeded(ctx, s.store, name, version)
	if err != nil {
		return Erasure{}, err
	}
	for {
		entry, err := s.appendErasure(ctx, c, seen, logs.Entry{
			Kind: logs.Erased, Time: s.now(), Actor: ingest.ActorOperator,
			Package: name, Version: version, Released: v.Released, Reason: reason, Manifest: v.Manifest,
		})
		var pinned *kvstore.PinnedError
		if errors.As(err, &pinned) {
			for _, h := range pinned.Hashes {
				delete(c.sizes, h)
			}
			c.busy += len(pinned.Hashes)
			continue
		}
		if err != nil {
			return Erasure{}, err
		}
		return c.newErasure(entry), nil
	}
}

// appendErasure removes the candidates c from the store and appends entry, with their list, to the log, in one transaction. seen
// is how many entries of the log were checked before; first it removes from c what later entries need. It returns the index of
// the entry, -1 if no candidate was left and nothing was written. The error is a *kvstore.PinnedError if a release that is being
// made may need candidates.
func (s *WithdrawalService) appendErasure(ctx context.Context, c *erasureCandidates, seen int64, entry logs.Entry) (int64, error) {
	index := int64(-1)
	pins := s.store.Pin()
	defer pins.Release()
	err := s.log.Update(func(tx *logs.Tx) error {
		// Nothing is published, restored or withdrawn while this runs.
		if v, err := views.LookupVersion(s.store, entry.Package, entry.Version); err != nil {
			return err
		} else if v.Withdrawn == nil {
			return fmt.Errorf("%s %s was restored meanwhile; nothing is erased", entry.Package, entry.Version)
		}
		for e, err := range logs.Entries(s.store, seen) {
			if err := errors.Join(err, ctx.Err()); err != nil {
				return err
			}
			if err := c.excludeEntry(s.store, e); err != nil {
				return err
			}
		}
		if len(c.sizes) == 0 {
			return nil
		}
		erasure := &logs.Erasure{Package: entry.Package, Version: entry.Version}
		for h := range c.sizes {
			erasure.Contents = append(erasure.Contents, h)
			tx.Batch.Remove(h)
		}
		data, err := erasure.Encode()
		if err != nil {
			return err
		}
		if entry.Erasure, err = s.storeDocument(pins, data); err != nil {
			return err
		}
		e, err := tx.Append(entry)
		if err != nil {
			return err
		}
		index = e.Index
		return views.Apply(tx.Batch, views.Change{Index: e.Index, Entry: e.Entry, Erasure: erasure})
	})
	return index, err
}

// storeDocument stores data, a document that a log entry names, uncompressed as a content unless the store has it, and returns
// its hash. It pins the content, so that nothing deletes it before pins is released.
func (s *WithdrawalService) storeDocument(pins *kvstore.Pins, data []byte) (kvstore.Hash, error) {
	h := kvstore.Sum(data)
	if there, err := pins.Has(h); err != nil || there {
		return h, err
	}
	return h, s.store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}})
}

// erasureCandidates are contents that may be erased, unless something else turns out to need them.
type erasureCandidates struct {
	sizes  map[kvstore.Hash]int64
	shared int
	with   map[string]struct{} // some of the releases that share them
	busy   int
}

// newCandidates returns, as candidates for erasing, the contents of the files in the manifest m that the store has.
func (s *WithdrawalService) newCandidates(m *logs.Manifest) (*erasureCandidates, error) {
	c := &erasureCandidates{sizes: make(map[kvstore.Hash]int64), with: make(map[string]struct{})}
	for _, f := range m.Files {
		switch _, err := s.store.Content(f.SHA256); {
		case err == nil:
			c.sizes[f.SHA256] = f.Size
		case !errors.Is(err, kvstore.ErrNotFound):
			return nil, err
		}
	}
	return c, nil
}

// maxNamedSharers is how many of the releases that share contents are named.
const maxNamedSharers = 5

// excludeContent removes a content from the candidates and counts it as shared, because by, a release or a log entry, needs it.
// The result of Erase names a few of these. It does nothing if the content is not a candidate.
func (c *erasureCandidates) excludeContent(h kvstore.Hash, by string) {
	if _, ok := c.sizes[h]; !ok {
		return
	}
	delete(c.sizes, h)
	c.shared++
	if len(c.with) < maxNamedSharers {
		c.with[by] = struct{}{}
	}
}

// excludeNeeded removes the candidates that anything besides the given release needs, and counts them as shared: another release
// that is served or could be restored, or the log, which it reads completely. It returns the number of entries of the log that it
// read, so that the caller checks later ones.
func (c *erasureCandidates) excludeNeeded(ctx context.Context, store *kvstore.Store, name, version string) (int64, error) {
	snapshot := store.Snapshot()
	defer snapshot.Close()
	for f, err := range views.AllFiles(snapshot) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return 0, err
		}
		c.excludeContent(f.Hash, f.Package+" "+f.Version)
	}
	withdrawn := make(map[sources.ReleaseName]kvstore.Hash) // its manifest
	var seen int64
	for e, err := range logs.Entries(snapshot, 0) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return 0, err
		}
		seen = e.Index + 1
		c.excludeNamed(e)
		switch r := (sources.ReleaseName{Package: e.Package, Version: e.Version}); e.Kind {
		case logs.Withdrawn:
			withdrawn[r] = e.Manifest
		case logs.Published, logs.Mirrored, logs.Replaced, logs.Restored, logs.Erased:
			delete(withdrawn, r)
		}
	}
	delete(withdrawn, sources.ReleaseName{Package: name, Version: version})
	for r, manifest := range withdrawn {
		if err := c.excludeManifest(store, manifest, r.Package+" "+r.Version); err != nil {
			return 0, err
		}
	}
	return seen, nil
}

// excludeEntry removes the candidates that the log entry e names itself, and those that are files of the release that e publishes
// or restores, and counts them as shared. It returns an error if that release's manifest cannot be read.
func (c *erasureCandidates) excludeEntry(store *kvstore.Store, e logs.Indexed) error {
	c.excludeNamed(e)
	if e.Kind.Serves() {
		return c.excludeManifest(store, e.Manifest, e.Package+" "+e.Version)
	}
	return nil
}

// excludeNamed removes the candidates that a log entry itself names, such as a package JSON that is also a file, and counts them
// as shared.
func (c *erasureCandidates) excludeNamed(e logs.Indexed) {
	for _, h := range e.Contents() {
		c.excludeContent(h, fmt.Sprintf("log entry %d", e.Index))
	}
}

// excludeManifest removes the candidates that are files of the manifest with the hash h. by is the name of its release, for the
// result of Erase. It returns an error if the manifest cannot be read.
func (c *erasureCandidates) excludeManifest(store *kvstore.Store, h kvstore.Hash, by string) error {
	m, err := logs.ReadManifest(store, h)
	if err != nil {
		return fmt.Errorf("%s may share files: %w", by, err)
	}
	for _, f := range m.Files {
		c.excludeContent(f.SHA256, by)
	}
	return nil
}

// newErasure returns the result for the caller of Erase. The remaining candidates were erased; entry is the index of the log
// entry, -1 if there were none.
func (c *erasureCandidates) newErasure(entry int64) Erasure {
	e := Erasure{Entry: entry, Erased: len(c.sizes), Shared: c.shared, Busy: c.busy}
	for _, size := range c.sizes {
		e.Bytes += size
	}
	for by := range c.with {
		e.With = append(e.With, by)
	}
	slices.Sort(e.With)
	return e
}
