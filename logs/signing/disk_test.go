package signing_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/logs/signing"
)

// TestNothingIsShownThatIsNotOnTheDisk crashes the file system before each
// operation on the key folder, losing whatever was not synced, and holds what a
// next process finds against what this one had shown by then.
func TestNothingIsShownThatIsNotOnTheDisk(t *testing.T) {
	type moment struct {
		op   string
		fs   *vfs.MemFS
		key  string // "" while none was shown
		size int64
	}
	mem := vfs.NewCrashableMem()
	if err := mem.MkdirAll("/d/data", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/", "/d"} { // the data folder is not what this is about
		d, err := mem.OpenDir(dir)
		if err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{T: t, data: "/d/data", fs: mem}
	r.next = signing.Options{Dir: "/d/keys", Logger: slog.New(slog.DiscardHandler)}
	r.openStore()
	defer func() { r.store.Close() }()

	var s *signing.Signer
	var moments []moment
	var announced string // by Rotate, once that is done
	crash := func(op string) {
		m := moment{op: op, fs: mem.CrashClone(vfs.CrashCloneCfg{})}
		if s != nil {
			signed, err := s.Checkpoint()
			if err != nil {
				t.Fatal(err)
			}
			m.size = signed.Size
			m.key = strings.TrimSpace(readFile(t, mem, "/d/keys/log.pub"))
		}
		moments = append(moments, m)
	}
	r.next.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			crash(fmt.Sprintf("%d %s", op.Kind, op.Path))
		}
		return nil
	}))
	s = r.open()
	for n := range 3 {
		r.grow(n+1, "vue")
		r.sign(s)
		crash("between")
	}
	first := s.Key()
	for range 2 {
		change, err := s.Rotate(noon)
		if err != nil {
			t.Fatal(err)
		}
		announced = change.Key
		crash("between")
		r.grow(1, "vue")
		r.sign(s)
	}
	if s.Key() != announced {
		t.Errorf("the key is %s, want %s", s.Key(), announced)
	}
	r.close(s)
	if len(moments) < 40 {
		t.Errorf("there were only %d moments to crash at", len(moments))
	}
	for i, m := range moments {
		t.Run(fmt.Sprintf("%d %s", i, m.op), func(t *testing.T) {
			again := &rig{T: t, data: r.data, fs: m.fs}
			again.next = signing.Options{Dir: "/d/keys", FS: m.fs, Logger: slog.New(slog.DiscardHandler)}
			again.openStore()
			defer func() { again.store.Close() }()
			s := again.open()
			signed, err := s.Checkpoint()
			if err != nil || signed.Size < m.size {
				t.Errorf("%d entries were shown, now it is %d, %v", m.size, signed.Size, err)
			}
			if m.key != "" {
				// Who pinned the first key follows to the one that signs now, and who
				// pinned the one that was shown last has its signature.
				changes, err := s.KeyChanges()
				if err != nil {
					t.Fatal(err)
				}
				chain := signing.Follow(verifier(t, first), changes)
				if last := chain[len(chain)-1]; last.KeyHash() != verifier(t, s.Key()).KeyHash() {
					t.Errorf("the first key does not lead to %s by %v", s.Key(), changes)
				}
				for _, v := range chain {
					if _, err := note.Open(signed.Note, note.VerifierList(v)); err != nil {
						t.Errorf("not signed with the key %08x: %v", v.KeyHash(), err)
					}
				}
			}
			again.grow(1, "vue")
			again.sign(s)
			again.holds(s)
			again.close(s)
		})
	}
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func verifier(t *testing.T, key string) note.Verifier {
	t.Helper()
	v, err := note.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func readFile(t *testing.T, fs vfs.FS, path string) string {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, 4096)
	n, _ := f.Read(data)
	return string(data[:n])
}

// TestAFullDisk has no place for a checkpoint: then what was shown stays, until
// there is.
func TestAFullDisk(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpRename} {
		r := newRig(t)
		full := false
		r.next.Dir = "/keys"
		r.next.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if full && op.Kind == kind {
				return syscall.ENOSPC
			}
			return nil
		}))
		s := r.open()
		before, _ := s.Checkpoint()
		r.grow(2, "vue")
		full = true
		if err := s.Sign(); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("signing: %v, want %v", err, syscall.ENOSPC)
		}
		if now, err := s.Checkpoint(); err != nil || now.Checkpoint != before.Checkpoint {
			t.Errorf("%v is shown, %v; want what was before, %v", now.Checkpoint, err, before.Checkpoint)
		}
		full = false
		r.sign(s)
		r.holds(s)
		r.close(s)
	}
}
