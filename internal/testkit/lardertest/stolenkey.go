package lardertest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// KeyListPath is where a Larder has the list of its log's keys.
const KeyListPath = "/log/key-list"

// A StolenKey is a log whose key was stolen: Honest is the operator's and has another key since, and Thief serves another log that
// the stolen key has signed. Both begin with the same entries.
type StolenKey struct {
	Honest, Thief *Larder
	// Root is the verifier key of the offline root key, OldKey the stolen one, and NewKey the one that follows it.
	Root, OldKey, NewKey string
	// Last is the last tree that the old key may sign.
	Last logs.Checkpoint

	tb      testing.TB
	signer  note.Signer
	expires time.Time // of the lists, so that two lists of the same keys are equal
}

// NewStolenKey returns a log of the releases 1.0.0 of the packages that are named, with a.js in them. The thief adds their release
// 6.6.6, whose a.js is "evil".
func NewStolenKey(tb testing.TB, packages ...string) *StolenKey {
	tb.Helper()
	s := &StolenKey{tb: tb, expires: time.Now().Add(time.Hour)}
	private, _, err := signing.NewKey("cdn.example.com/root")
	if err == nil {
		s.signer, s.Root, err = signing.ParseKey([]byte(private))
	}
	if err != nil {
		tb.Fatal(err)
	}
	keys, stolen := tb.TempDir(), tb.TempDir()
	s.Honest = Serve(tb, testkit.NewShelf(tb), keys)
	s.OldKey = s.Honest.Signer.Key()
	if err := os.CopyFS(stolen, os.DirFS(keys)); err != nil {
		tb.Fatal(err)
	}
	s.Thief = Serve(tb, testkit.NewShelf(tb), stolen)
	for _, l := range []*Larder{s.Honest, s.Thief} {
		for _, name := range packages {
			l.Register(name, `{"name":"`+name+`"}`)
			l.Publish(name, "1.0.0", "a.js", map[string]string{"a.js": "1"})
		}
		s.sign(l)
	}
	signed, err := s.Honest.Signer.Checkpoint()
	if err != nil {
		tb.Fatal(err)
	}
	s.Last = signed.Checkpoint
	if _, err := s.Honest.Signer.Rotate(time.Now()); err != nil {
		tb.Fatal(err)
	}
	s.NewKey = s.Honest.Signer.Key()
	old, err := filepath.Glob(filepath.Join(keys, "old-*.key"))
	if err != nil || len(old) != 1 {
		tb.Fatal(old, err)
	}
	if err := os.Remove(old[0]); err != nil {
		tb.Fatal(err)
	}
	for _, name := range packages {
		s.Thief.Publish(name, "6.6.6", "a.js", map[string]string{"a.js": "evil"})
	}
	s.sign(s.Thief)
	return s
}

func (s *StolenKey) sign(l *Larder) {
	s.tb.Helper()
	if err := l.Signer.Sign(); err != nil {
		s.tb.Fatal(err)
	}
}

// List returns a list of the log's keys that the root key has signed. All lists expire an hour after the log was made.
func (s *StolenKey) List(version int64, keys ...signing.ListedKey) string {
	s.tb.Helper()
	return s.Sign(signing.KeyList{Version: version, Expires: s.expires, Keys: keys})
}

// Sign signs a list of the log's keys with the root key.
func (s *StolenKey) Sign(l signing.KeyList) string {
	s.tb.Helper()
	l.Origin, l.Expires = Origin, l.Expires.UTC().Truncate(time.Second)
	signed, err := l.Sign(s.signer)
	if err != nil {
		s.tb.Fatal(err)
	}
	return string(signed)
}

// Before is the list of the time before the theft, with version 1.
func (s *StolenKey) Before() string { return s.List(1, signing.ListedKey{Key: s.OldKey}) }

// After is the list that ends the stolen key, with version 2.
func (s *StolenKey) After() string {
	return s.List(2, signing.ListedKey{Key: s.OldKey, End: &s.Last}, signing.ListedKey{Key: s.NewKey})
}
