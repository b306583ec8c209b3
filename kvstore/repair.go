package kvstore

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// RepairContent reads and decodes a content in all its encodings, and deletes the damaged ones, which it returns, in one synced write. A damaged
// identity is among them, and is stored again from a sound encoding. A damaged row is written again. If either was damaged, the content then counts
// as not recompressed and gets a row in [Queue] whose key begins with [Repaired], so that the recompressor makes the deleted encodings again. dropped
// is nil if no encoding is damaged, also if the row was. With an error it means nothing.
//
// A store that is open for writing calls it by itself for contents that its readers find damaged.
//
// It returns [ErrCorrupt], and changes nothing, if no encoding is sound: then [Store.RestoreContent] helps. It returns [ErrNotFound] if the content
// has no row.
func (s *Store) RepairContent(h Hash) (dropped []coding.Coding, err error) {
	for {
		found, err := s.examineContent(h)
		switch {
		case err != nil:
			return nil, err
		case errors.Is(found.rowProblem, ErrNotFound):
			return nil, fmt.Errorf("content %s: %w", h, ErrNotFound)
		case found.identity == nil:
			return nil, fmt.Errorf("%w: content %s: none of its codings is sound", ErrCorrupt, h)
		case found.rowProblem == nil && len(found.damaged) == 0:
			return nil, nil
		}
		again := slices.Contains(found.damaged, coding.Identity)
		if done, err := s.rewriteContent(h, found, again); done || err != nil {
			return found.damaged, err
		}
	}
}

// RestoreContent stores a content again as its identity bytes, in a synced write. Its row, its encodings or whole files may be damaged or missing,
// also all of them. If identity does not have the hash h, it returns an error and changes nothing. Sound encodings stay. The content then counts as
// not recompressed, with a row in [Queue] whose key begins with [Repaired]. The caller makes sure that no entry of the log erases the content.
//
// Damage inside a table stays. Reads find the new rows in newer tables, but scans across the damage, and compactions of that table, fail until the
// store is rebuilt.
func (s *Store) RestoreContent(h Hash, identity []byte) error {
	if Sum(identity) != h {
		return fmt.Errorf("content %s can't be restored from the %d bytes of another one", h, len(identity))
	}
	for {
		found, err := s.examineContent(h)
		if err != nil {
			return err
		}
		found.identity = identity
		if done, err := s.rewriteContent(h, found, true); done || err != nil {
			return err
		}
	}
}

// condition says which parts of a content are sound.
type condition struct {
	content    Content
	rowProblem error // ErrNotFound if the row is missing, ErrCorrupt if it is malformed or on a damaged part of the disk, nil if it is sound
	sound      []Representation
	damaged    []coding.Coding
	identity   []byte // nil where no coding gives it
}

// examineContent reads and decodes every encoding of a content, and returns which are sound and which damaged, the identity bytes if one is sound,
// and the state of the row. If the row is missing or damaged, it tries identity, Brotli and gzip, and leaves out those without bytes. Damage is no
// error: an error says that something could not be read. It changes nothing, and holds no lock, because that takes a while for a large content.
func (s *Store) examineContent(h Hash) (condition, error) {
	if !s.users.enter() {
		return condition{}, s.closedError()
	}
	defer s.users.leave()
	snap := pebbleOf(s).NewSnapshot()
	defer func() { _ = s.guard.do(snap.Close) }()
	var found condition
	var err error
	if found.content, found.rowProblem, err = s.readRow(snap, h); err != nil {
		return found, err
	}
	stored := found.content.Representations
	if found.rowProblem != nil { // then the blobs may still be there
		stored = []Representation{{Coding: coding.Identity}, {Coding: coding.Brotli}, {Coding: coding.Gzip}}
	}
	for _, r := range stored {
		coded, err := s.get(snap, Blobs, blobKey(h, r.Coding))
		if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrCorrupt) {
			return found, err
		}
		if errors.Is(err, ErrNotFound) && found.rowProblem != nil {
			continue
		}
		actual := Representation{Coding: r.Coding, Length: int64(len(coded)), Sum: Sum(coded)}
		if err == nil && (found.rowProblem != nil || actual == r) {
			if identity, ok := decodeAs(h, r.Coding, coded, maxBatch); ok {
				found.sound = append(found.sound, actual)
				found.identity = identity
				continue
			}
		}
		found.damaged = append(found.damaged, r.Coding)
	}
	return found, nil
}

// readRow reads the row of a content from a database or snapshot. If the row is missing or damaged, problem is ErrNotFound or ErrCorrupt; another
// error says that reading failed.
func (s *Store) readRow(from handle, h Hash) (c Content, problem, err error) {
	c, err = s.readContent(from, h)
	for _, problem := range []error{ErrNotFound, ErrCorrupt} {
		if errors.Is(err, problem) {
			return Content{}, problem, nil
		}
	}
	return c, nil, err
}

// decodeAs decodes coded, an encoding of the content h. ok reports whether the result has the hash h and at most limit bytes; if not, identity means
// nothing. For Identity, identity is coded itself. It does not need the content's length, which is lost with a damaged row.
func decodeAs(h Hash, c coding.Coding, coded []byte, limit int64) (identity []byte, ok bool) {
	identity, err := coding.DecodeUpTo(c, coded, min(limit, maxBatch))
	return identity, err == nil && Sum(identity) == h && int64(len(identity)) <= limit
}

// rewriteContent writes the row of a content as examineContent found it, deletes its damaged encodings, and stores its identity bytes if asIdentity
// is true, in one synced batch that also queues it for recompression. Then it counts the repair and, unless the content was queued before, calls the
// function of OnRepaired. It returns false and writes nothing if the row has changed since examineContent.
func (s *Store) rewriteContent(h Hash, found condition, asIdentity bool) (done bool, err error) {
	s.contents.Lock()
	defer s.contents.Unlock()
	before, problem, err := s.readRow(s.db, h)
	if err != nil || !errors.Is(problem, found.rowProblem) || !reflect.DeepEqual(before, found.content) {
		return false, err
	}
	_, err = s.get(s.db, Queue, repairedKey(h))
	queued := err == nil
	b := s.newSizedBatch(len(found.identity))
	for _, c := range found.damaged {
		b.Delete(Blobs, blobKey(h, c))
	}
	next := Content{Size: int64(len(found.identity)), Representations: slices.Clone(found.sound)}
	if asIdentity {
		next.Representations = slices.DeleteFunc(next.Representations, func(r Representation) bool { return r.Coding == coding.Identity })
		next.Representations = append(next.Representations, Representation{Coding: coding.Identity, Length: next.Size, Sum: h})
		b.Set(Blobs, blobKey(h, coding.Identity), found.identity)
	}
	slices.SortStableFunc(next.Representations, func(a, b Representation) int { return cmp.Compare(a.Length, b.Length) })
	b.Set(Contents, h[:], encodeContent(next))
	b.Set(Queue, repairedKey(h), nil)
	var stale int64
	for _, r := range before.Representations {
		if !slices.Contains(next.Representations, r) || asIdentity && r.Coding == coding.Identity {
			stale += r.Length
		}
	}
	if err := s.writeReplacing(b, stale, pebble.Sync); err != nil {
		return false, err
	}
	s.repairer.recordRestored(h, queued)
	return true, nil
}

// A repairer repairs in the background what readers find damaged, and logs once for
// each content, however many readers meet it. A store that is open read-only has none.
type repairer struct {
	mu       sync.Mutex
	known    map[Hash]time.Time // contents being repaired, or until when no other repair starts after a failed one
	lost     map[Hash]struct{}  // contents that no coding gives
	waiting  int                // contents that are being repaired, or wait for that
	closed   bool
	repaired int
	notify   func() // see OnRepaired
	done     sync.WaitGroup

	repairing sync.Mutex // held by the goroutine that repairs
}

// maxWaiting bounds the goroutines that wait to repair a content. A content beyond it is repaired when a later reader finds
// it damaged.
const maxWaiting = 1000

// repairRetry is how long no reader starts another repair of a content after one has failed, for example because the disk is
// full.
const repairRetry = time.Minute

// maxLost is how many contents that cannot be repaired are remembered. Each reader of one beyond it starts a
// repair, which is logged again.
const maxLost = 1 << 20

// Repaired begins the keys in the Queue namespace of the contents that lost codings when they
// were repaired or restored. The hash follows. The squeezer deletes each when it has made the
// codings again.
var Repaired = []byte("m")

// repairedKey returns the key in the Queue namespace of the row that queues a repaired content for recompression.
func repairedKey(h Hash) []byte { return append(bytes.Clone(Repaired), h[:]...) }

// OnRepaired sets the one function that is called after a content was added to the queue: a row in [Queue] whose key begins with [Repaired]. notify
// is called with locks of the store held, so it must neither block nor use the store.
func (s *Store) OnRepaired(notify func()) {
	s.repairer.mu.Lock()
	defer s.repairer.mu.Unlock()
	s.repairer.notify = notify
}

// repairLater starts a goroutine that repairs a content that a reader found damaged, one content at a time. It does nothing if the content is being
// repaired, cannot be repaired, or had a failed repair less than a minute ago. It also does nothing if 1,000 contents wait, or the store is read-only
// or closing.
func (s *Store) repairLater(h Hash) {
	m := &s.repairer
	m.mu.Lock()
	defer m.mu.Unlock()
	again, known := m.known[h]
	if _, lost := m.lost[h]; lost || known && time.Now().Before(again) || m.waiting == maxWaiting || m.closed || s.opts.ReadOnly {
		return
	}
	if m.known == nil {
		m.known, m.lost = make(map[Hash]time.Time), make(map[Hash]struct{})
	}
	m.known[h] = time.Now().Add(1 << 62) // while it is being repaired
	m.waiting++
	m.done.Go(func() {
		m.repairing.Lock()
		defer m.repairing.Unlock()
		s.repairQueued(h)
	})
}

// repairQueued repairs one content from its own sound encodings ([Store.RepairContent]), which drops the damaged ones and queues the content for
// recompression, and logs the result, unless the store is closing. Later readers start no other repair of a content of which no encoding is sound,
// and none for a minute after an error of reading or writing. A content that is not stored any more is no error.
func (s *Store) repairQueued(h Hash) {
	m := &s.repairer
	m.mu.Lock()
	m.waiting--
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return
	}
	dropped, err := s.RepairContent(h)
	m.mu.Lock()
	closed = m.closed || s.users.closed.Load()
	_, repairing := m.known[h] // not where it was restored or removed meanwhile
	delete(m.known, h)
	switch {
	case errors.Is(err, ErrCorrupt):
		if repairing && len(m.lost) < maxLost {
			m.lost[h] = struct{}{}
		}
	case err != nil && !errors.Is(err, ErrNotFound):
		m.known[h] = time.Now().Add(repairRetry)
	}
	m.mu.Unlock()
	log := s.opts.Logger
	switch {
	case closed || errors.Is(err, ErrNotFound): // it was erased meanwhile
	case errors.Is(err, ErrCorrupt) && !repairing:
	case errors.Is(err, ErrCorrupt):
		log.Error("a content is damaged in every coding: it cannot be served until it is repaired", "content", h, "err", err)
	case err != nil:
		log.Warn("couldn't repair a damaged content", "content", h, "err", err, "again", repairRetry)
	case len(dropped) > 0: // else another goroutine has repaired it meanwhile
		log.Warn("repaired a damaged content", "content", h, "dropped", fmt.Sprint(dropped))
	}
}

// recordRestored counts a repaired content, and deletes what is recorded about its damage. It calls the function of OnRepaired unless queued says
// that the content was queued for recompression before.
func (m *repairer) recordRestored(h Hash, queued bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, h)
	delete(m.lost, h)
	m.repaired++
	if m.notify != nil && !queued {
		m.notify()
	}
}

// recordRemoved deletes what the repairer has recorded about contents that were removed from the store.
func (m *repairer) recordRemoved(hashes ...Hash) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range hashes {
		delete(m.known, h)
		delete(m.lost, h)
	}
}

// counts returns how many contents were repaired or restored since the store was opened, and how many were found that cannot be repaired.
func (m *repairer) counts() (repaired, lost int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.repaired, len(m.lost)
}

// stop waits until the repair in the background that is running has ended. Those that wait for it do nothing, and repairLater starts no other.
func (m *repairer) stop() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.done.Wait()
}
