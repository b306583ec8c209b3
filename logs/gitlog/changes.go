package gitlog

import (
	"context"
	"encoding/base64"
	"fmt"
	"iter"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// EntryHash returns the hash of an entry in the log's tree, in base64 as checkpoints have hashes.
func EntryHash(e logs.Indexed) string {
	h := tlog.RecordHash(e.Raw)
	return base64.StdEncoding.EncodeToString(h[:])
}

// Changes yields the changes, one for each entry and oldest first, after a position up to the first size entries of the log
// in store. If the log in store does not have the position's entry with its hash, it yields that error; an error is the
// last thing that it yields. It yields nothing for a position that has all of these entries.
func Changes(store *kvstore.Store, position Position, size int64) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		if err := checkPosition(store, position); err != nil {
			yield(Change{}, err)
			return
		}
		for e, err := range logs.Entries(store, position.Index+1) {
			if err == nil && e.Index >= size {
				return
			}
			var c Change
			if err == nil {
				c, err = newChange(store, e)
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// checkPosition returns an error unless the log in store has the position's entry with the position's hash. The position of
// an empty repository is never an error.
func checkPosition(store *kvstore.Store, position Position) error {
	if position.Index < 0 {
		return nil
	}
	checkpoint, err := logs.ReadCheckpoint(store)
	if err != nil {
		return err
	}
	if size := checkpoint.Size; position.Index >= size {
		return fmt.Errorf("the repository has entry %d, and this log no more than %s: it was exported from another log, or this one is an old backup", position.Index, text.Count(int(size), "entry", "entries"))
	}
	e, err := logs.ReadEntry(store, position.Index)
	if err != nil {
		return err
	}
	if EntryHash(e) != position.Hash {
		return fmt.Errorf("entry %d in the repository is not the one of this log: it was exported from another log; give a new one", position.Index)
	}
	return nil
}

// newChange returns the change that commits an entry: its path, its subject, and its text with the contents that it names,
// read from the store.
func newChange(store *kvstore.Store, e logs.Indexed) (Change, error) {
	d, err := ReadDocuments(store, e)
	if err != nil {
		return Change{}, err
	}
	var b strings.Builder
	if err := WriteText(&b, e, d); err != nil {
		return Change{}, err
	}
	return Change{Index: e.Index, Hash: EntryHash(e), Time: e.Time, Path: filePath(e.Entry), Subject: subjectOf(e.Entry), Text: b.String()}, nil
}

// A SignedLog is a log of which only the entries that a signed checkpoint covers are pushed: a push cannot be taken back,
// so no reader may see other entries in their place later.
type SignedLog struct {
	Store  *kvstore.Store
	Log    *logs.Log
	Signer *signing.Signer
}

// Changes yields the changes after a position, up to the last entry of the checkpoint that the signer publishes. It yields
// an error if signing is refused, and as [Changes] does.
func (s SignedLog) Changes(after Position) iter.Seq2[Change, error] {
	signed, err := s.Signer.Checkpoint()
	if err != nil {
		return func(yield func(Change, error) bool) {
			yield(Change{}, fmt.Errorf("the log is not signed, and only what is signed is pushed: %w", err))
		}
	}
	return Changes(s.Store, after, signed.Size)
}

// signedInterval is how long an entry waits to be signed, about.
const signedInterval = 250 * time.Millisecond

// Wait waits until the published checkpoint has an entry after a position, which it polls about every 250 ms. It also
// returns nil if signing is refused, which Changes then reports. The error says that ctx has ended.
func (s SignedLog) Wait(ctx context.Context, after Position) error {
	if _, err := s.Log.Wait(ctx, after.Index+1); err != nil {
		return err
	}
	for {
		if signed, err := s.Signer.Checkpoint(); err != nil || signed.Size > after.Index+1 {
			return nil
		}
		if err := retry.Sleep(ctx, signedInterval); err != nil {
			return err
		}
	}
}
