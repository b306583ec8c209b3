package replication_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// pinRoot has a mirror trust the keys that a root key lists.
func pinRoot(s *lardertest.StolenKey) func(*replication.Options) {
	return func(o *replication.Options) { o.Trust.Root = s.Root }
}

// wantRefused fails the test unless the mirror refuses the thief's log, also in the runs after this one.
func (m *mirror) wantRefused(t *testing.T, s *lardertest.StolenKey) {
	t.Helper()
	m.again(t, s.Thief.URL, pinRoot(s))
	for range 2 {
		err := m.CatchUp(t.Context())
		if !errors.As(err, new(*replication.RefusedError)) || !strings.Contains(err.Error(), "that key may be stolen") {
			t.Errorf("the thief's log: %v", err)
		}
		m.again(t, s.Thief.URL, pinRoot(s))
	}
	if _, err := views.LookupVersion(m.Store, "vue", "6.6.6"); err == nil {
		t.Error("the mirror has what the thief has published")
	}
}

// TestMirrorAfterTheft: a mirror that pins the root key takes nothing that a stolen key has signed, from when it has seen the list
// that ends that key: from the source, before a restart, or from a file that the operator has put into the key folder.
func TestMirrorAfterTheft(t *testing.T) {
	s := lardertest.NewStolenKey(t, "vue")
	s.Thief.Lie(lardertest.KeyListPath, s.Before())
	// Without the root key, a mirror that has pinned the old key takes over what the thief has.
	deceived := newMirror(t, s.Thief.URL, func(o *replication.Options) { o.Trust.Key = s.OldKey })
	deceived.catchUp(t)
	if _, err := views.LookupVersion(deceived.Store, "vue", "6.6.6"); err != nil {
		t.Fatal(err)
	}
	t.Run("list of the source", func(t *testing.T) {
		s.Honest.Lie(lardertest.KeyListPath, s.After())
		m := newMirror(t, s.Honest.URL, pinRoot(s))
		m.catchUp(t)
		if state := m.State(); state.Key != s.NewKey || state.FirstUse {
			t.Errorf("%+v", state)
		}
		shared, err := signing.ReadKeyList(m.keys)
		if err != nil || string(shared) != s.After() {
			t.Errorf("the key folder has the list %q, %v", shared, err)
		}
		m.wantRefused(t, s)
		s.Honest.Lie(lardertest.KeyListPath, s.Before())
		m.again(t, s.Honest.URL, pinRoot(s))
		m.catchUp(t)
		m.sound(t)
	})
	t.Run("list in the key folder", func(t *testing.T) {
		s.Honest.Lie(lardertest.KeyListPath, s.Before())
		m := newMirror(t, s.Thief.URL, pinRoot(s))
		if err := os.WriteFile(filepath.Join(m.keys, signing.KeyListFile), []byte(s.After()), 0o644); err != nil {
			t.Fatal(err)
		}
		m.wantRefused(t, s)
		m.again(t, s.Honest.URL, pinRoot(s))
		m.catchUp(t)
		if err := os.WriteFile(filepath.Join(m.keys, signing.KeyListFile), []byte("nothing"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := m.CatchUp(t.Context()); err == nil || !strings.Contains(err.Error(), "in the key folder") {
			t.Errorf("a damaged list: %v", err)
		}
	})
}
