package configstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// openFolder returns a backend in a folder.
func openFolder(t *testing.T, dir string) *Backend {
	t.Helper()
	b, err := bucket.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	return NewBackend(b, "versions/", Checksum{})
}

func openStore(t *testing.T, authority, local *Backend) (*Store, *strings.Builder) {
	t.Helper()
	log := &strings.Builder{}
	s, err := Open(t.Context(), Options{Authority: authority, Copy: local, Logger: slog.New(slog.NewTextHandler(log, nil)), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return s, log
}

func propose(t *testing.T, s *Store, base int64, content string) Version {
	t.Helper()
	v, err := s.Propose(t.Context(), base, Change{Origin: "test " + content, File: "hash of " + content, Content: []byte(content)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func inForce(t *testing.T, s *Store, number int64, content string) {
	t.Helper()
	if v, ok := s.Get(); v.Number != number || string(v.Content) != content || ok != (number > 0) {
		t.Errorf("version %d is in force with %q, want version %d with %q", v.Number, v.Content, number, content)
	}
}

func TestProposeSurvivesRestart(t *testing.T) {
	local := openFolder(t, t.TempDir())
	s, _ := openStore(t, local, local)
	inForce(t, s, 0, "")
	var notified []int64
	s.Subscribe(func(v Version) error { notified = append(notified, v.Number); return nil })
	propose(t, s, 0, "a")
	propose(t, s, 1, "b")
	again, _ := openStore(t, local, local)
	inForce(t, again, 2, "b")
	if v, err := again.Read(t.Context(), 1); err != nil || string(v.Content) != "a" || v.Origin != "test a" {
		t.Errorf("version 1: %+v %v", v, err)
	}
	if _, err := again.Read(t.Context(), 9); !errors.Is(err, ErrNoVersion) {
		t.Errorf("version 9: %v", err)
	}
	if !slices.Equal(notified, []int64{1, 2}) {
		t.Errorf("subscribers were notified of %v", notified)
	}
}

// Of several changes of one version at the same time, through one store and through others, exactly one succeeds.
func TestConflict(t *testing.T) {
	dir := t.TempDir()
	shared := openFolder(t, filepath.Join(dir, "shared"))
	var stores []*Store
	for i := range 3 {
		s, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, fmt.Sprint(i))))
		stores = append(stores, s)
	}
	for base := range int64(5) {
		var all sync.WaitGroup
		errs := make([]error, 9)
		for i := range errs {
			all.Go(func() {
				_, errs[i] = stores[i%3].Propose(t.Context(), base, Change{Origin: fmt.Sprint("operator ", i), Content: []byte(fmt.Sprint(base, i))})
			})
		}
		all.Wait()
		done := 0
		for _, err := range errs {
			var conflict *ConflictError
			switch {
			case err == nil:
				done++
			case !errors.As(err, &conflict) || conflict.Base != base || conflict.Current.Number != base+1 || !strings.Contains(err.Error(), "repeat the change"):
				t.Errorf("base %d: %v", base, err)
			}
		}
		if done != 1 {
			t.Fatalf("%d changes of version %d succeeded", done, base)
		}
		for _, s := range stores {
			if err := s.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, _ := s.Get(); got.Number != base+1 {
				t.Errorf("version %d is in force, want %d", got.Number, base+1)
			}
		}
	}
}

func TestUndo(t *testing.T) {
	local := openFolder(t, t.TempDir())
	s, _ := openStore(t, local, local)
	undo := func(base, to, number int64, content string) {
		t.Helper()
		if _, err := s.Undo(t.Context(), base, to, "undo", accept); err != nil {
			t.Fatal(err)
		}
		inForce(t, s, number, content)
	}
	propose(t, s, 0, "a")
	if _, err := s.Undo(t.Context(), 1, 0, "undo", accept); !errors.Is(err, ErrNoOlder) {
		t.Errorf("undo of the first version: %v", err)
	}
	propose(t, s, 1, "b")
	propose(t, s, 2, "c")
	undo(3, 0, 4, "b")
	undo(4, 0, 5, "a") // further back
	if _, err := s.Undo(t.Context(), 5, 0, "undo", accept); !errors.Is(err, ErrNoOlder) {
		t.Errorf("undo beyond the first version: %v", err)
	}
	propose(t, s, 5, "d")
	undo(6, 0, 7, "a")
	undo(7, 3, 8, "c")
	if v, _ := s.Get(); v.Restores != 3 || v.File != "hash of c" {
		t.Errorf("%+v", v)
	}
	if _, err := s.Undo(t.Context(), 8, 99, "undo", accept); !errors.Is(err, ErrNoVersion) {
		t.Errorf("undo to a version that there is not: %v", err)
	}
	if conflict := (*ConflictError)(nil); !errors.As(func() error { _, err := s.Undo(t.Context(), 7, 0, "undo", accept); return err }(), &conflict) {
		t.Error("an undo of a version that is no longer in force succeeds")
	}
	again, _ := openStore(t, local, local)
	inForce(t, again, 8, "c")
}

// The last sound version stays in force, and the damage is reported.
func TestCorruptVersion(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"changed":   func(dir string) error { return replaceIn(filepath.Join(dir, third), "test b", "test x") },
		"truncated": func(dir string) error { return os.Truncate(filepath.Join(dir, third), 40) },
		"empty":     func(dir string) error { return os.Truncate(filepath.Join(dir, third), 0) },
		"another version": func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, second))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, third), data, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			local := openFolder(t, dir)
			s, _ := openStore(t, local, local)
			propose(t, s, 0, "0")
			propose(t, s, 1, "a")
			propose(t, s, 2, "b")
			if err := damage(filepath.Join(dir, "versions")); err != nil {
				t.Fatal(err)
			}
			again, log := openStore(t, local, local)
			inForce(t, again, 2, "a")
			if again.State().Problem == nil || !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "version=3") {
				t.Errorf("the damage is not reported: %v, %s", again.State().Problem, log)
			}
			if v := propose(t, again, 2, "c"); v.Number != 4 {
				t.Errorf("version %d takes the number of a damaged one", v.Number)
			}
			inForce(t, again, 4, "c")
		})
	}
}

// Files of versions.
const (
	second = "00000000000000000002"
	third  = "00000000000000000003"
)

func replaceIn(file, old, fresh string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.Replace(string(data), old, fresh, 1)), 0o600)
}

// If no version can be read, it is unknown which one is in force. That must not look like a record that there never was.
func TestNoSoundVersion(t *testing.T) {
	dir := t.TempDir()
	local := openFolder(t, dir)
	s, _ := openStore(t, local, local)
	propose(t, s, 0, "a")
	if err := os.Truncate(filepath.Join(dir, "versions", "00000000000000000001"), 5); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{Authority: local, Copy: local, Logger: slog.New(slog.DiscardHandler), Now: time.Now})
	if err == nil || !strings.Contains(err.Error(), "the version in force is unknown") {
		t.Errorf("%v", err)
	}
}

// cutOff is a bucket that does not answer while it is told not to.
type cutOff struct {
	bucket.Bucket
	off bool
}

var errCutOff = errors.New("no answer")

func (c *cutOff) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Object, error] {
	if c.off {
		return func(yield func(bucket.Object, error) bool) { yield(bucket.Object{}, errCutOff) }
	}
	return c.Bucket.List(ctx, prefix, after)
}

// A follower takes over new versions. While the authority does not answer it keeps the version that it has, also across a
// restart, and says since when it was not confirmed.
func TestFollower(t *testing.T) {
	dir := t.TempDir()
	b, err := bucket.OpenFolder(filepath.Join(dir, "shared"))
	if err != nil {
		t.Fatal(err)
	}
	link := &cutOff{Bucket: b}
	leader, _ := openStore(t, NewBackend(b, "versions/", Checksum{}), openFolder(t, filepath.Join(dir, "leader")))
	propose(t, leader, 0, "a")
	copied := openFolder(t, filepath.Join(dir, "follower"))
	follower, _ := openStore(t, NewBackend(link, "versions/", Checksum{}), copied)
	inForce(t, follower, 1, "a")
	propose(t, leader, 1, "b")
	if err := follower.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	inForce(t, follower, 2, "b")
	confirmed := follower.State().Confirmed
	link.off = true
	propose(t, leader, 2, "c")
	if err := follower.Refresh(t.Context()); !errors.Is(err, errCutOff) {
		t.Error(err)
	}
	if state := follower.State(); !errors.Is(state.Problem, errCutOff) || !state.Confirmed.Equal(confirmed) || state.Version.Number != 2 {
		t.Errorf("%+v", state)
	}
	if _, err := follower.Propose(t.Context(), 2, Change{Content: []byte("d")}); !errors.Is(err, errCutOff) {
		t.Errorf("a change without the authority: %v", err)
	}
	again, _ := openStore(t, NewBackend(link, "versions/", Checksum{}), copied)
	inForce(t, again, 2, "b")
	if state := again.State(); !errors.Is(state.Problem, errCutOff) || !state.Confirmed.IsZero() {
		t.Errorf("%+v", state)
	}
	link.off = false
	if err := again.Refresh(t.Context()); err != nil || again.State().Problem != nil {
		t.Error(err, again.State().Problem)
	}
	inForce(t, again, 3, "c")
	if got := len(again.History()); got != 3 || again.History()[0].Number != 3 {
		t.Errorf("the follower has %d versions: %+v", got, again.History())
	}
}

// A process that joins a cluster follows its record, whatever it had before. One that founds a cluster brings its own.
func TestJoinAndFound(t *testing.T) {
	dir := t.TempDir()
	founder, joiner := openFolder(t, filepath.Join(dir, "founder")), openFolder(t, filepath.Join(dir, "joiner"))
	alone, _ := openStore(t, founder, founder)
	propose(t, alone, 0, "a")
	propose(t, alone, 1, "b")
	other, _ := openStore(t, joiner, joiner)
	for i := range int64(5) {
		propose(t, other, i, "other")
	}
	shared := openFolder(t, filepath.Join(dir, "shared"))
	early, _ := openStore(t, shared, joiner) // before there is a record
	inForce(t, early, 5, "other")
	leader, _ := openStore(t, shared, founder)
	if err := leader.Share(t.Context()); err != nil {
		t.Fatal(err)
	}
	inForce(t, leader, 2, "b")
	if err := early.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	inForce(t, early, 2, "b")
	if v := propose(t, leader, 2, "c"); v.Number != 3 {
		t.Errorf("version %d", v.Number)
	}
	if err := early.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	inForce(t, early, 3, "c")
	left, _ := openStore(t, joiner, joiner) // it leaves the cluster
	inForce(t, left, 3, "c")
}

// The history is bounded, and the version in force and the one before stay.
func TestPrune(t *testing.T) {
	dir := t.TempDir()
	shared := openFolder(t, filepath.Join(dir, "shared"))
	leader, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "leader")))
	follower, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "follower")))
	for i := range int64(maxVersions + 20) {
		propose(t, leader, i, "x")
	}
	if err := follower.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{leader, follower} {
		if got := s.History(); len(got) != maxVersions || got[0].Number != maxVersions+20 {
			t.Errorf("%d versions, the newest %d", len(got), got[0].Number)
		}
	}
	all, err := leader.options.Copy.list(t.Context())
	if err != nil || len(all) != maxVersions {
		t.Errorf("the copy has %d versions: %v", len(all), err)
	}
}

// A new follower has the newest version be in force first, and then has the whole history. A damaged version in the bucket
// does not count, and is logged once.
func TestNewFollower(t *testing.T) {
	dir := t.TempDir()
	shared := openFolder(t, filepath.Join(dir, "shared"))
	leader, _ := openStore(t, shared, openFolder(t, filepath.Join(dir, "leader")))
	for i, content := range []string{"a", "b", "c"} {
		propose(t, leader, int64(i), content)
	}
	if err := os.Truncate(filepath.Join(dir, "shared", "versions", third), 9); err != nil {
		t.Fatal(err)
	}
	follower, log := openStore(t, shared, openFolder(t, filepath.Join(dir, "follower")))
	inForce(t, follower, 2, "b")
	for range 3 {
		if err := follower.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if follower.State().Problem == nil || strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("the damage is not reported once: %v, %s", follower.State().Problem, log)
	}
	var notified []int64
	follower.Subscribe(func(v Version) error { notified = append(notified, v.Number); return nil })
	inForce(t, leader, 3, "c")
	propose(t, leader, 3, "d")
	propose(t, leader, 4, "e")
	if err := follower.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	inForce(t, follower, 5, "e")
	if len(follower.History()) != 4 || !slices.Equal(notified, []int64{5}) {
		t.Errorf("%d versions are known, subscribers were notified of %v", len(follower.History()), notified)
	}
}

// Objects that no store has written are ignored or reported, and do not keep changes from being made.
func TestStrangeObjects(t *testing.T) {
	dir := t.TempDir()
	local := openFolder(t, dir)
	s, _ := openStore(t, local, local)
	propose(t, s, 0, "a")
	for _, name := range []string{"notes.txt", "00000000000000000000", "09223372036854775807", "7", "000000000000000000002"} {
		if err := os.WriteFile(filepath.Join(dir, "versions", name), []byte("no version"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, log := openStore(t, local, local)
	inForce(t, s, 1, "a")
	propose(t, s, 1, "b")
	inForce(t, s, 2, "b")
	if strings.Contains(log.String(), "level=ERROR") {
		t.Error(log)
	}
	huge, err := os.Create(filepath.Join(dir, "versions", third))
	if err == nil {
		err = errors.Join(huge.Truncate(MaxStored+1), huge.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s, _ = openStore(t, local, local)
	inForce(t, s, 2, "b")
	propose(t, s, 2, "c")
	inForce(t, s, 4, "c")
}

func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	local := openFolder(t, dir)
	s, _ := openStore(t, local, local)
	propose(t, s, 0, "a")
	b, err := bucket.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("read-only")
	frozen := NewBackend(ReadOnly{b, why}, "versions/", Checksum{})
	s, _ = openStore(t, frozen, frozen)
	inForce(t, s, 1, "a")
	if _, err := s.Propose(t.Context(), 1, Change{Content: []byte("b")}); !errors.Is(err, why) {
		t.Error(err)
	}
	inForce(t, s, 1, "a")
}

func accept(Version) error { return nil }
