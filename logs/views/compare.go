package views

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// names are the namespaces of the views as an operator would write them, in the
// order in which they are gone through.
var names = []struct {
	ns   kvstore.Namespace
	name string
}{
	{kvstore.Files, "files"},
	{kvstore.SRIs, "sris"},
	{kvstore.Versions, "versions"},
	{kvstore.Packages, "packages"},
	{kvstore.States, "states"},
	{kvstore.LogIndex, "index"},
}

// second is a second set of views, which is built from the log alone in a store of
// its own. What is in use is held against it.
type second struct {
	store   *kvstore.Store
	batch   *kvstore.Batch // committed now and then, because each commit waits for the disk
	pending int            // rows in batch, about
}

// rowsPerCommit bounds the memory that the second set of views waits in.
const rowsPerCommit = 50_000

func newSecond(dir string) (*second, error) {
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		return nil, fmt.Errorf("views: couldn't open a second store to compare with: %w", err)
	}
	return &second{store: store, batch: store.NewBatch()}, nil
}

func (s *second) close() {
	s.batch.Close()
	s.store.Close()
}

// apply adds what a change causes. It can be read after the next commit.
func (s *second) apply(c Change) error {
	s.pending += 4
	if c.Manifest != nil {
		s.pending += 2 * len(c.Manifest.Files)
	}
	logs.Index(s.batch, c.Index, c.Entry)
	return Apply(s.batch, c)
}

// relieve commits where much is waiting.
func (s *second) relieve() error {
	if s.pending < rowsPerCommit {
		return nil
	}
	return s.commit()
}

func (s *second) commit() error {
	err := s.batch.Commit()
	s.batch.Close()
	s.pending = 0
	s.batch = s.store.NewBatch()
	return err
}

// A verdict says what is wrong with a row.
type verdict int

const (
	missing     verdict = iota // the log says that it is there
	unexplained                // it is there, and no entry of the log says why
	differing                  // the log says something else
)

// A difference is a row that is not what the log says. Its slices are valid until
// the next one is told.
type difference struct {
	verdict
	ns         kvstore.Namespace
	key        []byte
	have, want []byte // the values; nil where there is no row
}

// unreadable is an error of the views that are compared, rather than of comparing.
type unreadable struct{ error }

func (u unreadable) Unwrap() error { return u.error }

// compare tells of each row of one namespace in which have is not what want, a
// second set of views, says. It returns how many rows want has.
func compare(ctx context.Context, have kvstore.Reader, want *second, ns kvstore.Namespace, tell func(difference) error) (rows int64, err error) {
	a := newCursor(have, ns)
	defer a.stop()
	b := newCursor(want.store, ns)
	defer b.stop()
	for a.ok || b.ok {
		switch {
		case b.err != nil:
			return rows, b.err
		case ctx.Err() != nil:
			return rows, ctx.Err()
		case a.err != nil:
			return rows, unreadable{a.err}
		}
		order := bytes.Compare(a.row.Key, b.row.Key)
		switch {
		case !a.ok:
			order = 1
		case !b.ok:
			order = -1
		}
		var err error
		switch {
		case order > 0:
			err = tell(difference{missing, ns, b.row.Key, nil, b.row.Value})
		case order < 0 && !(ns == kvstore.States && passing(a.row)):
			err = tell(difference{unexplained, ns, a.row.Key, a.row.Value, nil})
		case order == 0 && !bytes.Equal(a.row.Value, b.row.Value) && !(ns == kvstore.States && passing(a.row) && passing(b.row)):
			err = tell(difference{differing, ns, a.row.Key, a.row.Value, b.row.Value})
		}
		if err != nil {
			return rows, err
		}
		if order <= 0 {
			a.step()
		}
		if order >= 0 {
			rows++
			b.step()
		}
	}
	return rows, nil
}

// passing reports whether a row is a state that the bot may write by itself. Of a
// version that is not published, refused or withdrawn the log says at most that it
// was detected; what was tried since, and when it is tried again, is the bot's.
func passing(row kvstore.Item) bool {
	var s State
	if err := decodeJSON(row.Key, row.Value, &s); err != nil {
		return false
	}
	switch s.Kind {
	case Detected, Processing, Failed:
		return bytes.Equal(row.Key, kvstore.Key(s.Package, s.Version))
	}
	return false
}

// finding tells a person.
func (d difference) finding() Finding {
	f := Finding{What: "view", Where: rowName(d.ns, d.key)}
	switch d.verdict {
	case missing:
		f.Problem = "the row is missing"
	case unexplained:
		f.Problem = "no entry of the log explains this row"
	case differing:
		f.Problem = "the row differs from what the log says"
	}
	if d.ns == kvstore.States {
		f.What = "state"
		if d.verdict == differing {
			f.Problem = d.kinds(f.Problem)
		}
	}
	return f
}

// kinds says how two states differ, where it is more than a detail.
func (d difference) kinds(otherwise string) string {
	var have, want State
	if decodeJSON(d.key, d.have, &have) != nil || decodeJSON(d.key, d.want, &want) != nil || have.Kind == want.Kind {
		return otherwise
	}
	return fmt.Sprintf("the state is %q, the log says %q", have.Kind, want.Kind)
}

// rowName is a row's key as an operator would write it.
func rowName(ns kvstore.Namespace, key []byte) string {
	if index := len(key) - 8; ns == kvstore.LogIndex && index >= 0 {
		key = fmt.Appendf(bytes.Clone(key[:index]), "%d", binary.BigEndian.Uint64(key[index:]))
	}
	return viewName(ns) + "/" + string(bytes.ReplaceAll(key, []byte{0}, []byte{'/'}))
}

func viewName(ns kvstore.Namespace) string {
	for _, n := range names {
		if n.ns == ns {
			return n.name
		}
	}
	return string(ns)
}

// cursor is a scan that is gone through step by step.
type cursor struct {
	row  kvstore.Item
	err  error
	ok   bool // whether there is a row, or an error
	next func() (kvstore.Item, error, bool)
	stop func()
}

func newCursor(r kvstore.Reader, ns kvstore.Namespace) *cursor {
	c := new(cursor)
	c.next, c.stop = iter.Pull2(r.Scan(ns, kvstore.Range{}))
	c.step()
	return c
}

func (c *cursor) step() { c.row, c.err, c.ok = c.next() }
