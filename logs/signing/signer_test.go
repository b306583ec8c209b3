package signing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/transparency-dev/formats/log"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// A rig is a data folder and a key folder.
type rig struct {
	*testing.T
	data  string
	fs    vfs.FS // where data is; nil for the real file system
	store *kvstore.Store
	log   *logs.Log
	next  signing.Options // of the next Signer
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, data: filepath.Join(t.TempDir(), "data")}
	r.next = signing.Options{Dir: filepath.Join(t.TempDir(), "a", "keys"), Every: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	r.fs = unsynced.FS // where no test replaces it
	r.openStore()
	t.Cleanup(func() { r.store.Close() })
	return r
}

func (r *rig) openStore() {
	r.Helper()
	var err error
	if r.store, err = kvstore.Open(r.data, kvstore.Options{FS: r.fs}); err != nil {
		r.Fatal(err)
	}
	if r.log, err = logs.Open(r.store); err != nil {
		r.Fatal(err)
	}
}

// restore goes on with the store in another folder.
func (r *rig) restore(data string) {
	r.Helper()
	if err := r.store.Close(); err != nil {
		r.Fatal(err)
	}
	r.data = data
	r.openStore()
}

// backup returns a folder with the store as it is.
func (r *rig) backup() string {
	r.Helper()
	if err := r.store.Close(); err != nil {
		r.Fatal(err)
	}
	dir := filepath.Join(r.TempDir(), "backup")
	if err := os.CopyFS(dir, os.DirFS(r.data)); err != nil {
		r.Fatal(err)
	}
	r.openStore()
	return dir
}

// grow appends n entries that say what.
func (r *rig) grow(n int, what string) {
	r.Helper()
	err := r.log.Update(func(tx *logs.Tx) error {
		for i := range n {
			if _, err := tx.Append(logs.Entry{Kind: logs.Detected, Actor: "bot", Package: what, Version: fmt.Sprint(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) open() *signing.Signer {
	r.Helper()
	r.next.Store, r.next.Log = r.store, r.log
	s, err := signing.Open(r.next)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func (r *rig) sign(s *signing.Signer) {
	r.Helper()
	if err := s.Sign(); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) close(s *signing.Signer) {
	r.Helper()
	if err := s.Close(); err != nil {
		r.Fatal(err)
	}
}

// holds checks that s shows the log as it is now, signed with the key that s names.
func (r *rig) holds(s *signing.Signer) {
	r.Helper()
	signed, err := s.Checkpoint()
	if err != nil {
		r.Fatal(err)
	}
	if want := r.log.Checkpoint(); signed.Checkpoint != want {
		r.Errorf("%v is signed, want %v", signed.Checkpoint, want)
	}
	verifier, err := note.NewVerifier(s.Key())
	if err != nil {
		r.Fatal(err)
	}
	read, rest, _, err := log.ParseCheckpoint(signed.Note, s.Origin(), verifier)
	if err != nil {
		r.Fatal(err)
	}
	if int64(read.Size) != signed.Size || string(read.Hash) != string(signed.Root[:]) || len(rest) > 0 {
		r.Errorf("the note says %v, %q; want %v", read, rest, signed.Checkpoint)
	}
}

func (r *rig) file(name string) string { return filepath.Join(r.next.Dir, name) }

func (r *rig) readFile(name string) string {
	r.Helper()
	data, err := os.ReadFile(r.file(name))
	if err != nil {
		r.Fatal(err)
	}
	return string(data)
}

func (r *rig) writeFile(name, data string) {
	r.Helper()
	if err := os.WriteFile(r.file(name), []byte(data), 0o600); err != nil {
		r.Fatal(err)
	}
}

// refuses checks that s signs nothing, for this reason, and still shows the checkpoint of
// that many entries.
func (r *rig) refuses(s *signing.Signer, shows int64, reason string) {
	r.Helper()
	var refused *signing.RefusedError
	signed, err := s.Checkpoint()
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), reason) {
		r.Errorf("%v; want that it is refused because %s", err, reason)
	}
	if n, err := note.Open(signed.Note, note.VerifierList(verifier(r.T, s.Key()))); err != nil || !strings.HasPrefix(n.Text, fmt.Sprintf("%s\n%d\n", s.Origin(), shows)) || signed.Size != shows {
		r.Errorf("%q is shown, %v; want a checkpoint of %d entries", signed.Note, err, shows)
	}
	if err := s.Sign(); !errors.As(err, &refused) {
		r.Errorf("signing: %v, want that it is refused", err)
	}
}

// eventually waits for what another goroutine does at once.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it never happened", what)
		}
	}
}

func TestSigns(t *testing.T) {
	r := newRig(t)
	s := r.open()
	r.holds(s) // an empty log has a checkpoint too
	origin, key := s.Origin(), s.Key()
	if !strings.HasPrefix(origin, "larder.local/") || len(origin) != len("larder.local/")+8 {
		t.Errorf("the origin is %s", origin)
	}
	if got := r.readFile("log.pub"); got != key+"\n" {
		t.Errorf("log.pub is %q, want %s", got, key)
	}
	if runtime.GOOS != "windows" {
		if info, err := os.Stat(r.file("log.key")); err != nil || info.Mode() != 0o600 {
			t.Errorf("log.key has the mode %v, %v", info.Mode(), err)
		}
	}
	for n := 1; n < 5; n++ {
		r.grow(n, "vue")
		r.sign(s)
		r.holds(s)
		signed, _ := s.Checkpoint()
		if got := r.readFile("checkpoint"); got != string(signed.Note) {
			t.Errorf("what is shown is not what is on the disk: %s", got)
		}
	}
	r.grow(1, "react")
	r.close(s)

	r.restore(r.data)
	s = r.open()
	r.holds(s) // Close signed what was there
	if s.Origin() != origin || s.Key() != key {
		t.Errorf("the log was %s %s, and is %s %s", origin, key, s.Origin(), s.Key())
	}
	r.close(s)
}

func TestRunFollowsTheLog(t *testing.T) {
	r := newRig(t)
	registry := prometheus.NewPedanticRegistry()
	r.next.Registerer = registry
	r.next.Origin = "cdn.example.com/log"
	s := r.open()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	for range 5 {
		r.grow(3, "vue")
		want := r.log.Checkpoint()
		eventually(t, "growth is signed", func() bool {
			signed, err := s.Checkpoint()
			return err == nil && signed.Checkpoint == want
		})
		r.holds(s)
	}
	cancel()
	<-done
	values := map[string]float64{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if values["larder_log_entries"] != 15 || values["larder_log_signed_entries"] != 15 || values["larder_log_refused"] != 0 {
		t.Errorf("metrics: %v", values)
	}
	r.close(s)
	if families, err := registry.Gather(); err != nil || len(families) > 0 {
		t.Errorf("after closing there are still %d metrics, %v", len(families), err)
	}
}

func TestRefusesToForkTheLog(t *testing.T) {
	r := newRig(t)
	r.grow(5, "vue")
	r.close(r.open())
	old := r.backup()
	s := r.open()
	r.grow(3, "vue")
	r.close(s)
	signed := r.readFile("checkpoint")
	present := r.data

	r.restore(old)
	s = r.open()
	r.refuses(s, 8, "the store has 5 log entries, but a checkpoint of 8 was signed before")
	r.grow(3, "react")
	r.refuses(s, 8, "the store has 5 log entries") // of which none of the others is
	if held := s.SignedInStore(); held.Size != 5 {
		t.Errorf("%d entries of the store were signed, want 5", held.Size)
	}
	s.Run(t.Context()) // comes back at once
	r.close(s)

	s = r.open()
	r.refuses(s, 8, "another one than that of which a checkpoint of 8 entries was signed before")
	r.grow(7, "react")
	r.close(s)
	s = r.open()
	r.refuses(s, 8, "another one than that of which a checkpoint of 8 entries was signed before")
	r.close(s)
	if r.readFile("checkpoint") != signed {
		t.Error("the last signed checkpoint has changed")
	}

	r.restore(present)
	s = r.open()
	r.holds(s)
	r.close(s)
}

// TestRefusesInTheMiddle has the store damaged under a Signer that is at work.
func TestRefusesInTheMiddle(t *testing.T) {
	r := newRig(t)
	s := r.open()
	r.grow(4, "vue")
	r.sign(s)
	b := r.store.NewBatch()
	b.Set(kvstore.LogHashes, []byte{0, 0, 0, 0, 0, 0, 0, 6}, make([]byte, 32)) // of the tree of four
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.grow(4, "vue")
	if err := s.Sign(); !errors.As(err, new(*signing.RefusedError)) {
		t.Errorf("signing: %v, want that it is refused", err)
	}
	r.refuses(s, 4, "another one")
	r.close(s)
}

func TestLostAndDamagedFiles(t *testing.T) {
	for _, tt := range []struct {
		name    string
		damage  func(r *rig)
		refused string // what the Signer says
		err     string // what Open says
	}{
		{"no checkpoint", func(r *rig) { os.Remove(r.file("checkpoint")) }, "", ""},
		{"empty checkpoint", func(r *rig) { r.writeFile("checkpoint", "") }, "", ""},
		{"half a checkpoint", func(r *rig) { r.writeFile("checkpoint", r.readFile("checkpoint")[:40]) }, "", ""},
		{"a checkpoint that says something else", func(r *rig) {
			r.writeFile("checkpoint", strings.Replace(r.readFile("checkpoint"), "\n3\n", "\n2\n", 1))
		}, "", ""},
		{"a checkpoint of someone else", func(r *rig) {
			other := newRig(r.T)
			other.next.Origin = "log.example"
			other.close(other.open())
			r.writeFile("checkpoint", other.readFile("checkpoint"))
		}, "cannot be read", ""},
		{"a huge checkpoint", func(r *rig) { r.writeFile("checkpoint", strings.Repeat("x", 2<<20)) }, "", "over 1048576 bytes"},
		{"no key", func(r *rig) { os.Remove(r.file("log.key")) }, "", "there is a signed checkpoint in"},
		{"half a key", func(r *rig) { r.writeFile("log.key", r.readFile("log.key")[:50]) }, "", "put a good copy of it there"},
		{"an empty key", func(r *rig) { r.writeFile("log.key", "") }, "", "put a good copy of it there"},
		{"no verifier key", func(r *rig) { os.Remove(r.file("log.pub")) }, "", ""},
		{"another verifier key", func(r *rig) { r.writeFile("log.pub", "log.example+123") }, "", ""},
		{"a write that was cut", func(r *rig) { r.writeFile("checkpoint.new", "log.exam") }, "", ""},
		{"another origin is asked for", func(r *rig) { r.next.Origin = "log.example/2" }, "", `is that of the log "log.example", not of "log.example/2"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.next.Origin = "log.example"
			r.grow(3, "vue")
			r.close(r.open())
			tt.damage(r)
			r.next.Store, r.next.Log = r.store, r.log
			s, err := signing.Open(r.next)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("Open: %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.refused != "" {
				r.refuses(s, 3, tt.refused)
			} else {
				r.grow(1, "vue")
				r.sign(s)
				r.holds(s)
				if got := r.readFile("log.pub"); got != s.Key()+"\n" {
					t.Errorf("log.pub is %q", got)
				}
			}
			r.close(s)
		})
	}
}

func TestOneSignerForAKeyFolder(t *testing.T) {
	r := newRig(t)
	s := r.open()
	if _, err := signing.Open(r.next); !errors.Is(err, signing.ErrInUse) {
		t.Errorf("a second Signer: %v, want %v", err, signing.ErrInUse)
	}
	r.close(s)
	r.close(r.open())
}

// TestAnotherKey forgets where the keys are, which is told; changing them is no
// reason to.
func TestAnotherKey(t *testing.T) {
	r := newRig(t)
	r.grow(2, "vue")
	var said bytes.Buffer
	r.next.Logger = slog.New(slog.NewTextHandler(&said, nil))
	s := r.open()
	first := s.Key()
	if _, err := s.Rotate(noon); err != nil {
		t.Fatal(err)
	}
	second := s.Key()
	r.close(s)
	r.close(r.open())
	if strings.Contains(said.String(), "another key signed") {
		t.Errorf("the operator reads %s", &said)
	}
	keys := r.next.Dir
	r.next.Dir = filepath.Join(t.TempDir(), "keys")
	s = r.open()
	if !strings.Contains(said.String(), "another key signed this log before") || !strings.Contains(said.String(), "before="+second) || s.Key() == first {
		t.Errorf("the operator reads %s", &said)
	}
	r.close(s)
	said.Reset()
	r.next.Dir = keys
	s = r.open()
	if !strings.Contains(said.String(), "another key signed this log before") || s.Key() != second {
		t.Errorf("back again, the operator reads %s", &said)
	}
	r.close(s)
	said.Reset()
	r.close(r.open())
	if strings.Contains(said.String(), "another key") {
		t.Errorf("the second time the operator reads %s", &said)
	}
}

func TestOrigins(t *testing.T) {
	for origin, ok := range map[string]bool{
		"log.example/a": true, "løg": true, strings.Repeat("a", 255): true,
		"": false, "a b": false, "a+b": false, "a\nb": false, "a\u00a0b": false, "a\x00": false, "\xff": false, strings.Repeat("a", 256): false,
	} {
		if err := signing.CheckOrigin(origin); (err == nil) != ok {
			t.Errorf("%q: %v", origin, err)
		}
	}
	r := newRig(t)
	r.next.Origin = "a b"
	r.next.Store, r.next.Log = r.store, r.log
	if _, err := signing.Open(r.next); err == nil || !strings.Contains(err.Error(), "must be a name") {
		t.Errorf("Open: %v", err)
	}
}
