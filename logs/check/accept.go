package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
)

// acceptLoss repairs the store without the lost end of the log, and starts a new log that succeeds it.
func (e *engine) acceptLoss(ctx context.Context) error {
	accepting := newEngine(e.RepairOptions)
	// Nothing is compared with what was signed: less than that is there.
	accepting.accepting, accepting.former = true, e.signed
	accepting.result.Finished = e.result.Finished
	err := accepting.repair(ctx)
	e.result = accepting.result
	if err != nil {
		return err
	}
	o := e.storeOptions()
	o.Mark = e.Mark
	store, err := kvstore.Open(e.path(storeName), o)
	if err != nil {
		return err
	}
	log, err := logs.Open(store)
	if err == nil {
		var next signing.Succession
		next, err = signing.StartSuccessor(signing.Options{Dir: e.Keys, Store: store, Log: log, Logger: e.Logger}, e.Now())
		e.result.Succession = &next
		if err == nil { // which is about the log before, too
			err = os.Rename(filepath.Join(e.Keys, SeenFile), filepath.Join(next.Kept, SeenFile))
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
	}
	return errors.Join(err, store.Close())
}

// An ownLog says, by its own tree, which entries its log has.
type ownLog interface {
	// size is how many entries it had.
	size() int64
	// hasEntryAt reports whether raw is the entry at that index.
	hasEntryAt(index int64, raw []byte) bool
}

// chooseBaseLog returns the log from which the new store takes the entries after the signed ones: that of the damaged store. If the operator
// accepts the loss of signed entries, a folder among the sources is used instead if it has more entries without a gap; most is how
// many. It returns nil if there is no such log.
func (e *engine) chooseBaseLog() (best ownLog, most int64) {
	if e.damaged != nil {
		best = e.damaged
		if e.accepting {
			if most = e.damaged.completePrefix(); most == 0 {
				best = nil
			}
		}
	}
	if !e.accepting {
		return best, 0
	}
	for _, s := range e.RepairOptions.Sources {
		if folder, ok := s.(*replication.Store); ok {
			if n := readablePrefix(folder.Underlying(), e.former.Size); n > most {
				best, most = folderLog{folder.Underlying()}, n
			}
		}
	}
	return best, most
}

// signedAtSources returns the largest checkpoint, no larger than the lost one, that a source has and that the log's key has signed; the
// zero one if there is none.
func (e *engine) signedAtSources(ctx context.Context) (most logs.Checkpoint) {
	_, key, _ := signing.ReadFolder(e.Keys)
	for note := range e.sourceNotes(ctx) {
		signed, _, err := signing.ReadNote(note, []string{key})
		if err == nil && signed.Size > most.Size && signed.Size <= e.former.Size {
			most = signed.Checkpoint
		}
	}
	return most
}

// readablePrefix returns how many entries of a store can be read and belong to its tree, from the first one on without a gap, at most most.
func readablePrefix(store *kvstore.Store, most int64) int64 {
	var n int64
	for n < most && logs.MatchesTree(store, n, readEntry(store, n)) {
		n++
	}
	return n
}

// readEntry returns the bytes of an entry, nil if they cannot be read.
func readEntry(store *kvstore.Store, index int64) []byte {
	raw, _ := logs.RawEntry(store, index)
	return raw
}

// A folderLog is the log of a store that is a source.
type folderLog struct{ store *kvstore.Store }

// hasEntryAt implements [ownLog].
func (s folderLog) hasEntryAt(index int64, raw []byte) bool {
	return logs.MatchesTree(s.store, index, raw)
}

// size implements [ownLog].
func (s folderLog) size() int64 {
	had, err := logs.ReadCheckpoint(s.store)
	if err != nil { // then those count that are there
		return readablePrefix(s.store, math.MaxInt64)
	}
	return had.Size
}

// isAccepted reports whether a finding is about the loss that the operator accepts.
func (e *engine) isAccepted(f Finding) bool { return e.accepting && f.Kind == Checkpoint }

// errNothingLeft returns the error of a repair that has no entry of the log at all.
func (e *engine) errNothingLeft() error {
	return fmt.Errorf("nothing of the log of %d signed entries is left, neither in %s nor at a source: begin with `larder up`, another data folder and another key folder", e.former.Size, e.Data)
}
