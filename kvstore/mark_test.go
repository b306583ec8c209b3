package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
)

// keyFolder returns a file system with a folder for a mark.
func keyFolder(t *testing.T, mem *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	if err := mem.MkdirAll("keys", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := disk.SyncFolder(mem, "/"); err != nil {
		t.Fatal(err)
	}
	return mem
}

func TestMarkIsWrittenWhileTheStoreIsOpen(t *testing.T) {
	mem := keyFolder(t, vfs.NewMem())
	o := marked(mem)
	o.markEvery = time.Millisecond
	s := open(t, "store", o)
	if err := publish(s, 0); err != nil {
		t.Fatal(err)
	}
	want := s.guard.disk.sequence.Load()
	for {
		m, err := readMark(mem, o.Mark)
		if err != nil {
			t.Fatal(err)
		}
		if m.Sequence == want && want > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}

// A store that is older than its mark says so, each time it is opened, until it goes on.
func TestOlderThanTheMark(t *testing.T) {
	mem := keyFolder(t, vfs.NewMem())
	o := marked(mem)
	publishMore := func(from, to int) (folder, mark) {
		s, err := Open("store", o)
		if err != nil {
			t.Fatal(err)
		}
		for n := from; n < to; n++ {
			if err := publish(s, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		m, err := readMark(mem, o.Mark)
		if err != nil {
			t.Fatal(err)
		}
		return readFolder(t, mem), m
	}
	older, was := publishMore(0, 3)
	_, is := publishMore(3, 6)

	o.FS = older.disk(t, is.encode())
	for range 2 {
		s := open(t, "store", o)
		wantReleases(t, s, 2, 2)
		if behind := s.Behind(); behind == nil || behind.Found != was.Sequence || behind.Marked != is.Sequence {
			t.Errorf("got %v, want %d of %d", behind, was.Sequence, is.Sequence)
		} else if want := fmt.Sprintf("the last change is number %d, and number %d was on the disk", was.Sequence, is.Sequence); !strings.HasPrefix(behind.String(), want) {
			t.Errorf("got %v", behind)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, "store", o)
	s.KeepMark()
	if err := errors.Join(publish(s, 3), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, "store", o)
	if behind := s.Behind(); behind != nil {
		t.Errorf("after it went on: %v", behind)
	}

	o.FS = folder{}.disk(t, is.encode())
	if behind := open(t, "store", o).Behind(); behind == nil || behind.Found != 0 {
		t.Errorf("where there is no store: %v", behind)
	}

	// A mark that is itself damaged says nothing, and the log says so.
	content := is.encode()
	content[5] ^= 1
	o.FS = older.disk(t, content)
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s = open(t, "store", o)
	wantReleases(t, s, 2, 2)
	if !strings.Contains(log.String(), "the mark of the store is of no use") {
		t.Errorf("logged: %s", log.String())
	}
}

// Whatever a loss of power leaves of what was not synced, nothing that was committed is
// missing, and the inspection finds no damage.
func TestNoFalseAlarmAfterACrash(t *testing.T) {
	rounds := 15
	if sweeps {
		rounds = positions
	} else if testing.Short() {
		rounds = 5
	}
	for round := range uint64(rounds) {
		rng := rand.New(rand.NewPCG(round, 14))
		mem := keyFolder(t, vfs.NewCrashableMem())
		last := -1 // the last release that was committed
		for life := range 3 {
			o := marked(mem)
			o.MemTableBytes = int64(64+rng.IntN(512)) << 10
			o.markEvery = time.Duration(1+rng.IntN(3)) * time.Millisecond
			s, err := Open("store", o)
			if err != nil {
				t.Fatalf("round %d, life %d: %v", round, life, err)
			}
			if behind := s.Behind(); behind != nil {
				t.Errorf("round %d, life %d: %v", round, life, behind)
			}
			wantReleases(t, s, last, last+1)
			crash := last + 1 + rng.IntN(12)
			committed := make(chan int, 100)
			go func(from int) {
				defer close(committed)
				for n := from; n < crash+4; n++ {
					if err := publish(s, n); err != nil {
						t.Error(err)
						return
					}
					committed <- n
				}
			}(last + 1)
			for n := range committed {
				if last = n; n >= crash {
					break
				}
			}
			time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
			crashed := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 80, 100}[rng.IntN(5)], RNG: rng})
			for range committed {
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			mem = crashed
			if t.Failed() {
				t.Fatalf("round %d, life %d", round, life)
			}
			// What was under way may have been committed when the power failed, and further.
			o.FS = mem
			last = lastRelease(t, o, last)
		}
	}
}

// lastRelease returns the last release that a store holds, at least committed.
func lastRelease(t *testing.T, o Options, committed int) int {
	t.Helper()
	o.ReadOnly = true
	s, err := Open("store", o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		if _, err := s.Get(Versions, []byte(release(committed+1))); err != nil {
			return committed
		}
		committed++
	}
}
