package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/fsck"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
)

// accept repairs what is there without the lost end, and has the log go on as a new one.
func (e *engine) accept(ctx context.Context) error {
	accepting, err := newEngine(e.Options)
	if err != nil {
		return err
	}
	// Nothing is compared with what was signed: less than that is there.
	accepting.accepting, accepting.former, accepting.signed = true, accepting.signed, logs.Checkpoint{}
	accepting.result.Finished = e.result.Finished
	err = accepting.run(ctx)
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
		next, err = signing.Succeed(signing.Options{Dir: e.Keys, Store: store, Log: log, Logger: e.Logger}, e.Now())
		e.result.Succession = &next
		if err == nil { // which is about the log before, too
			err = os.Rename(filepath.Join(e.Keys, fsck.SeenFile), filepath.Join(next.Kept, fsck.SeenFile))
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
		}
	}
	return errors.Join(err, store.Close())
}

// base returns the store that has most of the log: the damaged one, or a folder among the
// sources. Its own tree tells which entries it has.
func (e *engine) base(damaged *kvstore.Store) *kvstore.Store {
	best, most := damaged, int64(0)
	if damaged != nil {
		most = readableEnd(damaged, e.former.Size)
	}
	for _, s := range e.Options.Sources {
		if folder, ok := s.(*replication.Store); ok {
			if n := readableEnd(folder.Store(), e.former.Size); n > most {
				best, most = folder.Store(), n
			}
		}
	}
	return best
}

// excused reports whether a finding is about what was accepted.
func (e *engine) excused(f fsck.Finding) bool { return e.accepting && f.Kind == fsck.Checkpoint }

// errNothingLeft is that there is nothing to accept the loss of the rest for.
func (e *engine) errNothingLeft() error {
	return fmt.Errorf("nothing of the log of %d signed entries is left, neither in %s nor in the folder of a source: begin with `larder up`, another data folder and another key folder", e.former.Size, e.Data)
}
