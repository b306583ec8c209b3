package signing_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// signedBy reports which of the keys have signed what s shows.
func (r *rig) signedBy(s *signing.Signer, keys ...string) []bool {
	r.Helper()
	signed, err := s.Checkpoint()
	if err != nil {
		r.Fatal(err)
	}
	var by []bool
	for _, k := range keys {
		_, err := note.Open(signed.Note, note.VerifierList(verifier(r.T, k)))
		by = append(by, err == nil)
	}
	return by
}

func TestRotate(t *testing.T) {
	r := newRig(t)
	r.next.Origin = "log.example"
	s := r.open()
	first := s.Key()
	r.grow(2, "vue")
	change, err := s.Rotate(noon)
	if err != nil {
		t.Fatal(err)
	}
	second := s.Key()
	if second == first || change.Key != second || change.Index != 2 || s.Origin() != "log.example" {
		t.Errorf("the key was %s and is %s; the change is %+v", first, second, change)
	}
	r.holds(s)
	if by := r.signedBy(s, first, second); !by[0] || !by[1] {
		t.Errorf("signed with the old and the new key: %v", by)
	}
	e, err := logs.ReadEntry(r.store, 2)
	if err != nil {
		t.Fatal(err)
	}
	if e.Kind != logs.KeyChanged || e.Actor != "operator" || !e.Time.Equal(noon) || e.Key != second {
		t.Errorf("the entry is %+v", e.Entry)
	}
	if !change.IsBy(verifier(t, first)) || change.IsBy(verifier(t, second)) || e.KeySignature != change.Signature {
		t.Errorf("the old key has not signed %+v", change)
	}
	if got := r.readFile("log.pub"); got != second+"\n" {
		t.Errorf("log.pub is %q", got)
	}
	r.close(s)

	// A second time, after a start.
	s = r.open()
	if s.Key() != second {
		t.Errorf("after a start the key is %s, want %s", s.Key(), second)
	}
	if _, err := s.Rotate(noon); err != nil {
		t.Fatal(err)
	}
	third := s.Key()
	if by := r.signedBy(s, first, second, third); !by[0] || !by[1] || !by[2] {
		t.Errorf("signed with all of them: %v", by)
	}
	changes, err := s.KeyChanges()
	if err != nil || len(changes) != 2 || changes[1].Key != third {
		t.Fatalf("changes %+v, %v", changes, err)
	}
	for _, tt := range []struct {
		trusted string
		leads   []string
	}{
		{first, []string{first, second, third}},
		{second, []string{second, third}},
		{third, []string{third}},
	} {
		var leads []uint32
		for _, v := range signing.Follow(verifier(t, tt.trusted), changes) {
			leads = append(leads, v.KeyHash())
		}
		if len(leads) != len(tt.leads) {
			t.Errorf("%s leads to %08x", tt.trusted, leads)
			continue
		}
		for i, want := range tt.leads {
			if leads[i] != verifier(t, want).KeyHash() {
				t.Errorf("%s leads to %08x", tt.trusted, leads)
			}
		}
	}
	r.close(s)

	// The operator has had enough of the first two.
	old, err := filepath.Glob(r.file("old-*.key"))
	if err != nil || len(old) != 2 {
		t.Fatalf("old keys: %v, %v", old, err)
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	s = r.open()
	r.grow(1, "vue")
	r.sign(s)
	if by := r.signedBy(s, first, second, third); by[0] || by[1] || !by[2] {
		t.Errorf("signed with the third key alone: %v", by)
	}
	r.close(s)
}

// TestForgedChanges leads nobody anywhere.
func TestForgedChanges(t *testing.T) {
	r := newRig(t)
	r.next.Origin = "log.example"
	s := r.open()
	first := verifier(t, s.Key())
	change, err := s.Rotate(noon)
	if err != nil {
		t.Fatal(err)
	}
	r.close(s)
	other := newRig(t)
	other.next.Origin = "log.example"
	o := other.open()
	stranger := o.Key()
	foreign, err := o.Rotate(noon)
	if err != nil {
		t.Fatal(err)
	}
	other.close(o)
	for name, forged := range map[string]signing.KeyChange{
		"another key":         {Key: stranger, Signature: change.Signature},
		"another log's":       foreign,
		"no signature":        {Key: change.Key},
		"a broken signature":  {Key: change.Key, Signature: change.Signature[:len(change.Signature)-8] + "AAAAAAA="},
		"something on top":    {Key: stranger + "\n" + change.Key, Signature: change.Signature},
		"no key":              {Signature: change.Signature},
		"more than signature": {Key: change.Key, Signature: change.Signature + "\n\nmore"},
	} {
		if chain := signing.Follow(first, []signing.KeyChange{forged}); len(chain) != 1 {
			t.Errorf("%s: it leads to %08x", name, chain[1].KeyHash())
		}
	}
}

func TestRotateWhereItCannot(t *testing.T) {
	// Where nothing may be signed.
	r := newRig(t)
	r.grow(2, "vue")
	old := r.backup()
	s := r.open()
	r.grow(1, "vue")
	r.close(s)
	r.restore(old)
	s = r.open()
	if _, err := s.Rotate(noon); !errors.As(err, new(*signing.RefusedError)) || r.log.Checkpoint().Size != 2 {
		t.Errorf("%v, and the log has %d entries", err, r.log.Checkpoint().Size)
	}
	r.close(s)

	// Where a file cannot be written: before the entry nothing has happened, after
	// it the next start does the rest.
	for _, file := range []string{"next.key", "old-"} {
		r := newRig(t)
		fails := true
		r.next.Dir = "/keys"
		r.next.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if fails && op.Kind == errorfs.OpRename && strings.Contains(op.Path, file) && !strings.HasPrefix(filepath.Base(op.Path), "log") {
				return syscall.ENOSPC
			}
			return nil
		}))
		fails = false
		s := r.open()
		first := s.Key()
		fails = true
		if _, err := s.Rotate(noon); !errors.Is(err, syscall.ENOSPC) || s.Key() != first {
			t.Errorf("%s: %v, and the key is %s", file, err, s.Key())
		}
		size := int64(0)
		if file == "old-" {
			size = 1
			if _, err := s.Rotate(noon); err == nil || !strings.Contains(err.Error(), "the next start does that") {
				t.Errorf("once more: %v", err)
			}
		}
		fails = false
		if got := r.log.Checkpoint().Size; got != size {
			t.Errorf("%s: the log has %d entries, want %d", file, got, size)
		}
		r.grow(1, "vue")
		r.sign(s)
		r.close(s)
		s = r.open()
		changes, err := s.KeyChanges()
		if err != nil || len(changes) != int(size) || size == 1 && s.Key() != changes[0].Key {
			t.Errorf("%s: the key is %s, the changes are %v, %v", file, s.Key(), changes, err)
		}
		if by := r.signedBy(s, first, s.Key()); !by[0] || !by[1] {
			t.Errorf("%s: signed %v", file, by)
		}
		r.close(s)
	}
}

func TestDamagedOldKeys(t *testing.T) {
	r := newRig(t)
	r.close(r.open())
	for name, key := range map[string]string{"half of one": "PRIVATE+KEY+", "another log's": "PRIVATE+KEY+log.example+cae7438d+AbOsgXLTKJZf8FtYBAdTvwSPxEK0WJ1/ErUcyCcPzZgS"} {
		r.writeFile("old-01234567.key", key)
		r.next.Store, r.next.Log = r.store, r.log
		if _, err := signing.Open(r.next); err == nil || !strings.Contains(err.Error(), "remove it, or put a good copy of it there") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRotateWithoutConfirmation tests that the new key stays while it is not known whether the log announces it, and that the signer takes it over
// once the log does: clients cannot follow a log that announces a lost key.
func TestRotateWithoutConfirmation(t *testing.T) {
	r := newRig(t)
	s := r.open()
	first := s.Key()
	r.grow(2, "vue")
	var late [][]byte
	r.log.Share(func(g logs.Growth) error {
		for _, e := range g.Entries {
			late = append(late, e.Raw)
		}
		return logs.ErrUnconfirmed
	})
	if _, err := s.Rotate(noon); !errors.Is(err, logs.ErrUnconfirmed) {
		t.Fatal(err)
	}
	next := r.readFile("next.key")
	if _, err := s.Rotate(noon); err == nil || !strings.Contains(err.Error(), "not confirmed yet") || r.readFile("next.key") != next {
		t.Errorf("the next rotation: %v", err)
	}
	if err := s.Sign(); err != nil || s.Key() != first {
		t.Errorf("before the commit is there, %s signs, %v", s.Key(), err)
	}
	err := r.log.Adopt(func(tx *logs.Tx) error {
		e, err := tx.AppendRaw(late[0])
		if err != nil {
			return err
		}
		return signing.AddKeyChanges(tx.Batch, r.store, e.Index)
	})
	if err != nil {
		t.Fatal(err)
	}
	r.sign(s)
	r.holds(s)
	if by := r.signedBy(s, first, s.Key()); s.Key() == first || !by[0] || !by[1] {
		t.Errorf("the key is %s, which was %s; both have signed: %v", s.Key(), first, by)
	}
	r.close(s)
}
