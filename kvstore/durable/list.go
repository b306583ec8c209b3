package durable

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
)

// ListOptions selects keys, in the order of their bytes. The zero value selects all
// of them; each field narrows the others.
type ListOptions struct {
	Prefix     string // only keys that begin with it
	Start      string // the first key, included
	StartAfter string // the first key, excluded; not together with Start
	End        string // the end, excluded
	Reverse    bool   // the last key comes first; the bounds stay
	Limit      int    // how many, from where the order begins; 0: all
}

// An Entry is a key and its value.
type Entry struct {
	Key   string
	Value []byte
}

// List returns copies of the entries that o selects, in its order, with the object's writes that are not yet durable; nil if o selects none. It
// always reads the store, and before that ends the atomic write of the changes before it, as [State.Get] does. It caches what it returns, except with
// [NoCache], in a transaction, or if the object has written meanwhile.
func (s *State) List(ctx context.Context, o ListOptions, options ...Option) ([]Entry, error) {
	if o.Start != "" && o.StartAfter != "" {
		return nil, errors.New("a list can start at a key or after one, not both")
	}
	if o.Limit < 0 {
		return nil, errors.New("a list can't have a negative limit")
	}
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	changes := s.changesInOrder(o)
	var entries []Entry
	err := s.read(joinOptions(options), func(r kvstore.Reader) (err error) {
		entries, err = s.merge(r, o, changes)
		return err
	}, func() {
		if s.tx != nil {
			return // some of it may never happen
		}
		for _, e := range entries {
			s.object.cache.put(e.Key, bytes.Clone(e.Value), true)
		}
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// selects reports whether a key is within the prefix and the bounds.
func (o ListOptions) selects(key string) bool {
	return strings.HasPrefix(key, o.Prefix) && key >= o.Start && (o.StartAfter == "" || key > o.StartAfter) && (o.End == "" || key < o.End)
}

// compare compares two keys in the order of the list: negative if a comes first.
func (o ListOptions) compare(a, b string) int {
	if o.Reverse {
		a, b = b, a
	}
	return cmp.Compare(a, b)
}

// changesInOrder returns copies of those changes that o selects and that may not be in the store yet, those of the transaction included, in the order
// of the list. The caller holds the object's mu.
func (s *State) changesInOrder(o ListOptions) []*change {
	newest := make(map[string]*change)
	for key, c := range s.object.dirty {
		if o.selects(key) {
			newest[key] = c
		}
	}
	if s.tx != nil {
		for key, c := range s.tx.changes {
			if o.selects(key) {
				newest[key] = c
			}
		}
	}
	changes := make([]*change, 0, len(newest))
	for _, c := range newest {
		// A change may be made again while the list is read.
		changes = append(changes, &change{key: c.key, value: c.value, deleted: c.deleted})
	}
	slices.SortFunc(changes, func(a, b *change) int { return o.compare(a.key, b.key) })
	return changes
}

// merge returns copies of the entries of a store that o selects, in its order, with changes applied on top, up to the limit. changes is sorted in
// that order, and has only keys that o selects.
func (s *State) merge(r kvstore.Reader, o ListOptions, changes []*change) (entries []Entry, err error) {
	add := func(key string, value []byte) (full bool) {
		entries = append(entries, Entry{key, bytes.Clone(value)})
		return len(entries) == o.Limit
	}
	prefix := valuePrefix(s.object.class.name, s.object.name)
	at := func(key string) []byte { return append(bytes.Clone(prefix), key...) }
	bounds := kvstore.Range{Prefix: at(o.Prefix), Reverse: o.Reverse, From: at(o.Start)}
	if o.StartAfter != "" {
		bounds.From = at(o.StartAfter + "\x00")
	}
	if o.End != "" {
		bounds.To = at(o.End)
	}
	for item, err := range r.Scan(kvstore.Durable, bounds) {
		if err != nil {
			return nil, err
		}
		key := string(item.Key[len(prefix):])
		changed := false
		for len(changes) > 0 && o.compare(changes[0].key, key) <= 0 {
			c := changes[0]
			changes, changed = changes[1:], c.key == key
			if !c.deleted && add(c.key, c.value) {
				return entries, nil
			}
		}
		if !changed && add(key, item.Value) {
			return entries, nil
		}
	}
	for _, c := range changes {
		if !c.deleted && add(c.key, c.value) {
			return entries, nil
		}
	}
	return entries, nil
}

// The rows of package durable, in [kvstore.Durable]. What docs/store.md says of
// them is part of the format.

// The bounds of keys, values and names of objects, in bytes.
const (
	MaxKeyBytes   = 2 << 10
	MaxValueBytes = 128 << 10
	MaxNameBytes  = 512
	// MaxWriteBytes bounds what becomes one atomic write: keys and values.
	MaxWriteBytes = 16 << 20
	// MaxKeys is how many keys one [State.GetAll] may request.
	MaxKeys = 128
)

var className = text.NewRegexp(`^[a-z][a-z0-9-]{0,63}$`)

// checkName returns an error unless the name has 1 to MaxNameBytes bytes, none of them zero; [ErrTooLarge] if it is too long.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("an object needs a name")
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: the name has %d bytes, %d are allowed", ErrTooLarge, len(name), MaxNameBytes)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("the name %q has a zero byte", name)
	}
	return nil
}

// checkKey returns an error unless a value can have this key: it must have at least one byte, and one that is too long is [ErrTooLarge].
func checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("a key has to have at least one byte")
	}
	if len(key) > MaxKeyBytes {
		return fmt.Errorf("%w: the key %.40q… has %d bytes, %d are allowed", ErrTooLarge, key, len(key), MaxKeyBytes)
	}
	return nil
}

// checkValue returns [ErrTooLarge] if the value of a key has more bytes than are allowed.
func checkValue(key string, value []byte) error {
	if len(value) > MaxValueBytes {
		return fmt.Errorf("%w: the value of %q has %d bytes, %d are allowed", ErrTooLarge, key, len(value), MaxValueBytes)
	}
	return nil
}

// valuePrefix returns the prefix of the keys of the rows with an object's values.
func valuePrefix(class, name string) []byte { return kvstore.Prefix("o", class, name) }

// alarmKey returns the key of the row with an object's alarm.
func alarmKey(class, name string) []byte { return kvstore.Key("t", class, name) }

// duePrefix returns the prefix of the keys of the rows that list a class's alarms in the order of their times.
func duePrefix(class string) []byte { return kvstore.Prefix("a", class) }

// dueKey returns the key of the row that says that an object's alarm fires at a time in nanoseconds.
func dueKey(class, name string, at int64) []byte {
	return append(binary.BigEndian.AppendUint64(duePrefix(class), uint64(at)), name...)
}

// parseDue returns the object's name and the time in nanoseconds from what follows duePrefix in a key made by dueKey. A malformed key is
// [kvstore.ErrCorrupt].
func parseDue(rest []byte) (name string, at int64, err error) {
	if len(rest) <= 8 {
		return "", 0, fmt.Errorf("%w: a row of alarms has the key %x", kvstore.ErrCorrupt, rest)
	}
	return string(rest[8:]), int64(binary.BigEndian.Uint64(rest)), nil
}

// An alarm is what an object's row says: times in nanoseconds since 1970, of
// which none is negative.
type alarm struct {
	scheduled int64 // what it was set to
	next      int64 // when it fires; later than scheduled once it has failed
	retry     uint32
}

const alarmFormat = 1

// encode returns the value of the row with the alarm.
func (a alarm) encode() []byte {
	b := []byte{alarmFormat}
	b = binary.BigEndian.AppendUint64(b, uint64(a.scheduled))
	b = binary.BigEndian.AppendUint64(b, uint64(a.next))
	return binary.BigEndian.AppendUint32(b, a.retry)
}

// decodeAlarm parses the value of a row with an alarm. A malformed one is [kvstore.ErrCorrupt].
func decodeAlarm(b []byte) (alarm, error) {
	if len(b) != 21 || b[0] != alarmFormat {
		return alarm{}, fmt.Errorf("%w: an alarm is %x", kvstore.ErrCorrupt, b)
	}
	return alarm{
		scheduled: int64(binary.BigEndian.Uint64(b[1:])),
		next:      int64(binary.BigEndian.Uint64(b[9:])),
		retry:     binary.BigEndian.Uint32(b[17:]),
	}, nil
}

// lastTime is the last time to which an alarm can be set. A row has room for a few months more.
var lastTime = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)

// toNanoseconds returns a time in nanoseconds since 1970, 0 for an earlier one. A time after [lastTime] is an error.
func toNanoseconds(t time.Time) (int64, error) {
	if t.After(lastTime) {
		return 0, fmt.Errorf("an alarm cannot be set for %s: the last possible time is %s", t.Format(time.RFC3339), lastTime.Format(time.RFC3339))
	}
	if t.Before(time.Unix(0, 0)) {
		return 0, nil
	}
	return t.UnixNano(), nil
}

// RowPrefixes returns the prefixes of the keys of all rows of a class in [kvstore.Durable], for a copy to another store while no runtime has the
// class open.
func RowPrefixes(class string) [][]byte {
	return [][]byte{kvstore.Prefix("o", class), kvstore.Prefix("t", class), duePrefix(class)}
}
