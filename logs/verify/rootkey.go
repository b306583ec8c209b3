package verify

import (
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

// ListOf returns the newest signed list that was seen of a root key, nil for none.
func (k *Known) ListOf(root string) []byte {
	for _, l := range k.Lists {
		if l.Root == root {
			return []byte(l.List)
		}
	}
	return nil
}

// KeepList remembers a list that a root key has signed, unless one with the same version or a newer one is known. It is written at
// once, whatever comes of verifying the log: an older list must not count any more.
func (k *Known) KeepList(root string, signed []byte) error {
	fresh, err := signing.OpenKeyList(signed, root)
	if err != nil {
		return err
	}
	if !k.isNewer(root, fresh) {
		return nil
	}
	return k.update(func(now *Known) {
		if now.isNewer(root, fresh) { // another process may have written it
			now.Lists = slices.DeleteFunc(now.Lists, func(l KnownList) bool { return l.Root == root })
			now.Lists = append(now.Lists, KnownList{root, string(signed)})
		}
	})
}

// isNewer reports whether a list has a larger version than the one that is known of a root key.
func (k *Known) isNewer(root string, list *signing.KeyList) bool {
	before, err := signing.OpenKeyList(k.ListOf(root), root)
	return err != nil || before.Version < list.Version
}

// readKeyList reads the list that the root key has signed: that of the server, or the one that was seen before if it is newer.
func (l *Log) readKeyList(ctx context.Context) error {
	root := l.options.Trust.Root
	var seen *signing.KeyList
	if l.options.KnownList != nil {
		if known := l.options.KnownList(root); known != nil {
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
	if l.options.KeepList != nil && l.keyList == served {
		return l.options.KeepList(root, signed)
	}
	return nil
}

// readKeys reads which keys may have signed the log: from the list of the root key if one is pinned, or else from the changes of
// the key that the server names.
func (l *Log) readKeys(ctx context.Context) (err error) {
	if l.options.Trust.Root != "" {
		return l.readKeyList(ctx)
	}
	// They come before the checkpoint: the key before a change signs for a while after it, but the one after it does not sign
	// before.
	if l.changes, err = l.keyChanges(ctx); err != nil {
		return fmt.Errorf("couldn't learn which keys the log has had: %w", err)
	}
	return nil
}

// openServed verifies the checkpoint that the server has. It returns the changes of the key that led to the one that signed.
func (l *Log) openServed(signed []byte) (checkpoint, string, []signing.KeyChange, error) {
	if l.keyList != nil {
		c, key, err := l.openByList(signed)
		l.options.Trust.Key, l.trusted = key, l.keyList.All()
		return c, key, nil, err
	}
	c, key, used, err := l.options.Trust.open(signed, l.changes)
	if err != nil {
		var ok bool
		if c, key, ok = l.olderKey(signed); !ok {
			return c, key, nil, err
		}
	}
	l.trusted = []string{l.options.Trust.Key, key}
	return c, key, used, nil
}

// openByList verifies a signed checkpoint by the list. It counts more than changes of keys that a former key has signed.
func (l *Log) openByList(signed []byte) (checkpoint, string, error) {
	var problem error
	for _, valid := range l.keyList.Valid() {
		trust := l.options.Trust
		trust.Key = valid
		c, key, _, err := trust.open(signed, nil)
		if err == nil {
			return c, key, nil
		}
		problem = err
	}
	for _, ended := range l.keyList.Keys {
		trust := l.options.Trust
		trust.Key = ended.Key
		c, key, _, err := trust.open(signed, nil)
		switch {
		case err != nil || ended.End == nil:
		case c.N > ended.End.Size:
			return checkpoint{}, "", differs("the checkpoint of %d entries is signed with %s, which the root key ended at %d entries: that key may be stolen", c.N, ended.Key, ended.End.Size)
		default:
			l.unverified = &UnverifiedError{Stale, fmt.Sprintf("the server shows a log of %d entries, signed with a key that ended at %d", c.N, ended.End.Size)}
			return c, key, nil
		}
	}
	return checkpoint{}, "", problem
}

// checkList records that the log is unverified if the list has expired or the log is smaller than the list says, and returns an
// error if the log does not contain the last trees that former keys may have signed.
func (l *Log) checkList(ctx context.Context) error {
	for _, listed := range l.keyList.Keys {
		if listed.End == nil {
			continue
		}
		if listed.End.Size > l.tree.N {
			if l.unverified == nil {
				l.unverified = &UnverifiedError{Stale, fmt.Sprintf("the server shows a log of %d entries, and the root key says that it had %d", l.tree.N, listed.End.Size)}
			}
			continue
		}
		if err := l.Contains(ctx, *listed.End); err != nil {
			return fmt.Errorf("couldn't prove that the log contains the last tree of the key %s, as the root key says: %w", listed.Key, err)
		}
	}
	if now := l.options.Trust.now(); l.unverified == nil && now.After(l.keyList.Expires) {
		l.unverified = &UnverifiedError{Unproven, fmt.Sprintf("the list of keys has expired on %s; the operator has not signed another one, or the server withholds it", l.keyList.Expires.Format(time.DateOnly))}
		l.keep(string(l.note))
	}
	return nil
}

// withinList returns what is remembered of the log without a checkpoint that a former key has signed after its end.
func (l *Log) withinList(known KnownLog) KnownLog {
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

// rememberedByList returns what is remembered of the log by any key of the list.
func (l *Log) rememberedByList() (KnownLog, bool) {
	for _, key := range l.keyList.All() {
		if known, ok := l.options.Known(key); ok {
			return l.withinList(known), true
		}
	}
	return KnownLog{}, false
}

// KeyList is the list of keys by which the log was verified, nil if no root key is pinned.
func (l *Log) KeyList() *signing.KeyList { return l.keyList }
