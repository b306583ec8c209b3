package check

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
)

// acceptLoss repairs the store without the signed entries that are lost at the end of the log, and starts a new log, with a new key and origin, that
// succeeds it. The checkpoint that an earlier check has seen moves to the files of the former log.
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
	store, err := kvstore.Open(e.path(storeName), e.storeOptions(storeName, false))
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
type ownLog struct {
	size int64                              // how many entries the log had
	has  func(index int64, raw []byte) bool // reports whether raw is the entry at that index
}

// chooseBaseLog returns the log that decides which entries the new store takes after the signed ones: that of the damaged store, with most 0. If the
// operator accepts the loss of signed entries, it is the log with the most entries without a gap, most, among the damaged store and the folders
// among the sources. best is nil if there is no such log.
func (e *engine) chooseBaseLog() (best *ownLog, most int64) {
	if e.damaged != nil {
		best = &ownLog{e.damaged.tree.size, e.damaged.tree.hasEntryAt}
	}
	if !e.accepting {
		return best, 0
	}
	if e.damaged != nil {
		if most = e.damaged.completePrefix(); most == 0 {
			best = nil
		}
	}
	for _, s := range e.RepairOptions.Sources {
		folder, ok := s.(*replication.Store)
		if !ok {
			continue
		}
		store := folder.Underlying()
		if n := readablePrefix(store, 0, e.former.Size); n > most {
			had, err := logs.ReadCheckpoint(store)
			if err != nil { // then those count that are there
				had.Size = readablePrefix(store, 0, math.MaxInt64)
			}
			most = n
			best = &ownLog{had.Size, func(index int64, raw []byte) bool { return logs.MatchesTree(store, index, raw) }}
		}
	}
	return best, most
}

// signedAtSources returns the largest checkpoint among those of the sources that the log's key has signed and that is no larger than the lost one;
// the zero one if none exists.
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

// readablePrefix returns up to which index the entries of a store, from the index n on without a gap, can be read and belong to the store's tree; it
// stops at most.
func readablePrefix(store kvstore.Getter, n, most int64) int64 {
	for n < most && isStored(store, n) {
		n++
	}
	return n
}
