package logs

import (
	"errors"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
)

// ErrUnconfirmed says that the node does not know yet whether an Update of a shared log was committed. Later, either its entries are
// adopted, or the log grows without them.
var ErrUnconfirmed = errors.New("the bucket has not confirmed yet that the log contains this; check the log again in a moment")

// A Growth is the entries that an Update adds to the log.
type Growth struct {
	Before, After Checkpoint
	Entries       []Indexed
	// Batch is what will be written if the log grows. Rows may be added.
	Batch *kvstore.Batch
}

// Share marks the log as one that other nodes append to. From now on each Update that adds entries passes them to commit, by
// which the other nodes agree, and writes nothing unless commit returns nil. Updates that wait meanwhile may share the next
// call, if they are about different packages. [Log.Adopt] does not call commit.
func (l *Log) Share(commit func(Growth) error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commit = commit
}

// An update is a call of Update that waits for its turn.
type update struct {
	fn   func(*Tx) error
	err  error
	done bool // guarded by Log.writing
}

// maxTogether bounds how many updates share a commit.
const maxTogether = 64

// updateShared does an Update of a log that other nodes append to, see [Log.Share]. It queues fn, and a caller that gets
// l.writing writes up to maxTogether of the queued updates in one commit, until its own is done. So fn may be called more
// than once. It returns the result of fn's update.
func (l *Log) updateShared(fn func(*Tx) error) error {
	own := &update{fn: fn}
	l.mu.Lock()
	l.updates = append(l.updates, own)
	l.mu.Unlock()
	l.writing.Lock()
	defer l.writing.Unlock()
	for !own.done {
		l.mu.Lock()
		commit, n := l.commit, min(len(l.updates), maxTogether)
		group := slices.Clone(l.updates[:n])
		l.mu.Unlock()
		l.writeTogether(commit, group)
	}
	return own.err
}

// writeTogether writes the first update of a group, and those others that are independent of the ones before them, in one
// call of commit, and sets their results, which are one error if the write fails. An update whose function fails gets that
// error alone. The rest stay queued. The caller holds l.writing.
func (l *Log) writeTogether(commit func(Growth) error, group []*update) {
	for len(group) > 0 {
		var unfit *update // the one that cannot be in this write
		err := l.write(commit, func(tx *Tx) error {
			unfit = nil
			packages := map[string]struct{}{}
			for i, u := range group {
				before := len(tx.entries)
				if u.err = u.fn(tx); u.err == nil {
					u.err = tx.err
				}
				if u.err != nil {
					unfit = u
					return u.err
				}
				if !areSeparate(packages, tx.entries[before:]) && i > 0 {
					unfit = u
					return errTogether
				}
				if !areSeparate(nil, tx.entries[before:]) && len(group) > 1 {
					unfit = group[1]
					return errTogether
				}
				for _, e := range tx.entries[before:] {
					packages[e.Package] = struct{}{}
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, errTogether):
			group = slices.DeleteFunc(group, func(u *update) bool { return u == unfit })
		case unfit != nil:
			l.finishUpdates(unfit.err, unfit)
			group = slices.DeleteFunc(group, func(u *update) bool { return u == unfit })
		default:
			l.finishUpdates(err, group...)
			return
		}
	}
}

var errTogether = errors.New("the update is for another write")

// areSeparate reports whether entries are only about packages, none of them in the given set, and erase nothing, so that
// they cannot change what another update reads. It is false for no entries.
func areSeparate(packages map[string]struct{}, entries []Indexed) bool {
	for _, e := range entries {
		if _, ok := packages[e.Package]; ok || e.Package == "" || e.Kind == Erased {
			return false
		}
	}
	return len(entries) > 0
}

// finishUpdates removes updates from the queue and sets err as the result of each, which their callers return when they get
// l.writing.
func (l *Log) finishUpdates(err error, all ...*update) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range all {
		u.err, u.done = err, true
		l.updates = slices.DeleteFunc(l.updates, func(o *update) bool { return o == u })
	}
}

// Waiting returns how many updates of a shared log run or wait; 0 if the log is not shared.
func (l *Log) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.updates)
}
