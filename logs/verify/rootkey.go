package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/larder-cdn/larder/logs/signing"
)

// A KnownList is the newest list of keys that was seen of an offline root key.
type KnownList struct {
	Root string `json:"root"` // its verifier key
	List string `json:"list"` // the signed list
}

// KeyList returns the newest list of keys, signed with a root key, that earlier runs have seen, nil if they have seen none.
// root is the root key's verifier key.
func (k *Known) KeyList(root string) []byte {
	for _, l := range k.Lists {
		if l.Root == root {
			return []byte(l.List)
		}
	}
	return nil
}

// StoreKeyList stores a list of keys, unless the stored one has the same version or a newer one; then it does nothing. A
// list that the root key has not signed is an error. It writes the file of known logs at once, whether or not the log can
// be verified: an older list must not count any more. Then k has what is in the file.
func (k *Known) StoreKeyList(root string, signed []byte) error {
	fresh, err := signing.OpenKeyList(signed, root)
	if err != nil {
		return err
	}
	if !k.isNewerList(root, fresh) {
		return nil
	}
	return k.updateFile(func(now *Known) {
		if now.isNewerList(root, fresh) { // another process may have written it
			now.Lists = slices.DeleteFunc(now.Lists, func(l KnownList) bool { return l.Root == root })
			now.Lists = append(now.Lists, KnownList{root, string(signed)})
		}
	})
}

// isNewerList reports whether a list of keys has a larger version than the stored one of the same root key. It
// returns true if none is stored, or the stored one is invalid.
func (k *Known) isNewerList(root string, list *signing.KeyList) bool {
	before, err := signing.OpenKeyList(k.KeyList(root), root)
	return err != nil || before.Version < list.Version
}

// readKeyList sets l.keyList to the list of keys that is signed with the root key: that of the server, which it then stores
// by Options.StoreKeyList, or the one of earlier runs if it is newer or the server has none. If both have none, that is an
// error. A list of the server that the root key has not signed is a [Difference], and so are two different lists with one
// version. A stored list that is invalid, and a list that cannot be fetched or stored, are other errors.
func (l *Log) readKeyList(ctx context.Context) error {
	root := l.options.Trust.Root
	var seen *signing.KeyList
	if l.options.KnownKeyList != nil {
		if known := l.options.KnownKeyList(root); known != nil {
			var err error
			if seen, err = signing.OpenKeyList(known, root); err != nil {
				return fmt.Errorf("couldn't read the list of keys that was seen before: %w", err)
			}
		}
	}
	signed, err := l.remote.get(ctx, "/log/key-list", signing.MaxKeyList)
	switch {
	case errors.Is(err, fs.ErrNotExist) && seen == nil:
		return errors.New("the server has no list of keys that the root key has signed, and none was seen before; ask the log's operator to sign one (larder key sign) and to copy it into the key folder, as key-list")
	case errors.Is(err, fs.ErrNotExist):
		l.keyList = seen
		return nil
	case err != nil:
		return fmt.Errorf("couldn't get the list of keys: %w", err)
	}
	served, err := signing.OpenKeyList(signed, root)
	if err != nil {
		return differs("%v", err)
	}
	switch {
	case seen != nil && seen.Version > served.Version:
		l.keyList = seen // an older list may have a key that was stolen since
	case seen != nil && seen.Version == served.Version && !seen.Equal(served):
		return differs("the root key has signed two lists of keys with the version %d", seen.Version)
	default:
		l.keyList = served
	}
	if l.options.StoreKeyList != nil && l.keyList == served {
		return l.options.StoreKeyList(root, signed)
	}
	return nil
}

// readKeys reads into l which keys may have signed the log: from the list of the root key if one is pinned, or else from the
// server's list of key changes.
func (l *Log) readKeys(ctx context.Context) (err error) {
	if l.options.Trust.Root != "" {
		return l.readKeyList(ctx)
	}
	// They are fetched before the checkpoint: an old key signs for a while after a change, but a new one never signs before it.
	if l.changes, err = l.fetchKeyChanges(ctx); err != nil {
		return fmt.Errorf("couldn't get the changes of the log's key: %w", err)
	}
	return nil
}

// openCheckpoint verifies the checkpoint that the server has: with the root key's list of keys, or else with the trusted
// key and its changes, or, for an old checkpoint, with a former key. It sets l.trusted to the keys by which checkpoints of
// the log count. With a list, the key that signed becomes the trusted one, and l may be marked as stale. With an error, l
// must not be used.
func (l *Log) openCheckpoint(signed []byte) (checkpoint, error) {
	if l.keyList != nil {
		c, err := l.openWithKeyList(signed)
		l.options.Trust.Key, l.trusted = c.key, l.keyList.All()
		return c, err
	}
	c, err := l.options.Trust.openCheckpoint(l.options.Trust.Key, signed, l.changes)
	if err != nil {
		var ok bool
		if c, ok = l.openWithFormerKey(signed); !ok {
			return c, err
		}
	}
	l.trusted = []string{l.options.Trust.Key, c.key}
	return c, nil
}

// openWithKeyList verifies a signed checkpoint with the keys in the root key's list. A checkpoint by a key that has ended
// counts up to that end, and then l.unverified becomes [Stale]; beyond it, that is a [Difference]. So is a checkpoint by no
// key in the list. The list takes precedence over changes of keys that a former key has signed.
func (l *Log) openWithKeyList(signed []byte) (checkpoint, error) {
	var problem error
	for _, valid := range l.keyList.Valid() {
		c, err := l.options.Trust.openCheckpoint(valid, signed, nil)
		if err == nil {
			return c, nil
		}
		problem = err
	}
	for _, ended := range l.keyList.Keys {
		c, err := l.options.Trust.openCheckpoint(ended.Key, signed, nil)
		switch {
		case err != nil || ended.End == nil:
		case c.N > ended.End.Size:
			return checkpoint{}, differs("the checkpoint of %d entries is signed with %s, which the root key ended at %d entries: that key may be stolen", c.N, ended.Key, ended.End.Size)
		default:
			l.unverified = &UnverifiedError{Stale, fmt.Sprintf("the server shows a log of %d entries, signed with a key that ended at %d", c.N, ended.End.Size)}
			return c, nil
		}
	}
	return checkpoint{}, problem
}

// checkKeyList verifies that the log contains the last tree of each former key in the list. If it does not, the error is a
// [Difference]; any other error proves nothing. If the log is smaller than such a tree, l.unverified becomes [Stale], and
// if the list has expired, [Unproven]; neither is an error.
func (l *Log) checkKeyList(ctx context.Context) error {
	for _, listed := range l.keyList.Keys {
		if listed.End == nil {
			continue
		}
		if listed.End.Size > l.Tree.N {
			stale := &UnverifiedError{Stale, fmt.Sprintf("the server shows a log of %d entries, and the root key says that it had %d", l.Tree.N, listed.End.Size)}
			l.unverified = cmp.Or(l.unverified, stale)
			continue
		}
		if err := l.CheckContains(ctx, *listed.End); err != nil {
			return fmt.Errorf("couldn't prove that the log contains the last tree of the key %s, as the root key says: %w", listed.Key, err)
		}
	}
	if now := l.options.Trust.now(); l.unverified == nil && now.After(l.keyList.Expires) {
		l.unverified = &UnverifiedError{Unproven, fmt.Sprintf("the list of keys has expired on %s; the operator has not signed another one, or the server withholds it", l.keyList.Expires.Format(time.DateOnly))}
		l.deferComparison(string(l.note))
	}
	return nil
}

// withoutEndedCheckpoint returns what is stored about the log, with Checkpoint "" if a former key has signed that after the
// end that the list of keys states, and unchanged otherwise, also without a list.
func (l *Log) withoutEndedCheckpoint(known KnownLog) KnownLog {
	if l.keyList == nil {
		return known
	}
	for _, listed := range l.keyList.Keys {
		if listed.End == nil {
			continue
		}
		if seen, err := signing.OpenWithAny([]byte(known.Checkpoint), []string{listed.Key}, nil); err == nil && seen.Size > listed.End.Size {
			known.Checkpoint = ""
		}
	}
	return known
}

// KeyList returns the list of keys with which the log was verified, nil if no root key is pinned.
func (l *Log) KeyList() *signing.KeyList { return l.keyList }
