package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// small are options for tests, which open many stores.
func small(fs vfs.FS) Options {
	return Options{CacheBytes: 1 << 20, MemTableBytes: 1 << 20, FS: fs}
}

func open(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return s
}

func inMemory(t *testing.T) *Store {
	t.Helper()
	return open(t, "store", small(vfs.NewMem()))
}

func set(t *testing.T, s *Store, ns Namespace, rows ...string) {
	t.Helper()
	b := s.NewBatch()
	defer b.Close()
	for i := 0; i < len(rows); i += 2 {
		b.Set(ns, []byte(rows[i]), []byte(rows[i+1]))
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

// rows returns what a scan yields, each as "key=value".
func rows(t *testing.T, r Reader, ns Namespace, within Range) []string {
	t.Helper()
	var got []string
	for item, err := range r.Scan(ns, within) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s=%s", item.Key, item.Value))
	}
	return got
}

// noise returns bytes that no coding makes smaller.
func noise(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func TestGetReturnsCopies(t *testing.T) {
	s := inMemory(t)
	set(t, s, Files, "a", "one")
	got, err := s.Get(Files, []byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	got[0] = 'X'
	if again, err := s.Get(Files, []byte("a")); string(again) != "one" || err != nil {
		t.Errorf("Get = %q, %v after changing what an earlier one returned", again, err)
	}
	for _, ns := range []Namespace{Files, Versions} {
		if _, err := s.Get(ns, []byte("b")); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get(%c, b) = %v, want ErrNotFound", ns, err)
		}
	}
}

func TestScan(t *testing.T) {
	s := inMemory(t)
	set(t, s, Packages, "z", "below")
	set(t, s, SRIs, "a", "above")
	set(t, s, Queue, "", "0", "a\x001", "1", "a\x002", "2", "a\x003", "3", "ab", "4", "b", "5", "\xff\xff", "6")
	bytes := func(s string) []byte {
		if s == "-" {
			return nil
		}
		return []byte(s)
	}
	for _, test := range []struct{ prefix, from, to, want string }{
		{"-", "-", "-", "0123456"},
		{"a\x00", "-", "-", "123"},
		{"a", "-", "-", "1234"},
		{"a\x00", "a\x002", "-", "23"},
		{"a\x00", "-", "a\x002", "1"},
		{"a\x00", "", "z", "123"},
		{"-", "a\x002", "b", "234"},
		{"-", "b", "a", ""},
		{"-", "", "", ""},
		{"a\x00", "b", "-", ""},
		{"\xff", "-", "-", "6"},
		{"c", "-", "-", ""},
	} {
		within := Range{Prefix: bytes(test.prefix), From: bytes(test.from), To: bytes(test.to)}
		values := func() string {
			var b strings.Builder
			for _, row := range rows(t, s, Queue, within) {
				b.WriteByte(row[len(row)-1])
			}
			return b.String()
		}
		if got := values(); got != test.want {
			t.Errorf("%+v: got %q, want %q", within, got, test.want)
		}
		within.Reverse = true
		want := []byte(test.want)
		slices.Reverse(want)
		if got := values(); got != string(want) {
			t.Errorf("%+v in reverse: got %q, want %q", within, got, want)
		}
	}
	for range s.Scan(Queue, Range{}) {
		break // must release the iterator, or closing fails
	}
}

func TestKeysSortBelowTheirParents(t *testing.T) {
	keys := []string{
		string(Key("jquery")), string(Key("jquery", "3.7.1")), string(Key("jquery", "3.7.1", "jquery.js")),
		string(Key("jquery-ui")), string(Key("jquery-ui", "1.0.0")),
	}
	if !slices.IsSorted(keys) {
		t.Errorf("not in order: %q", keys)
	}
	for i, want := range []bool{false, true, true, false, false} {
		if got := bytes.HasPrefix([]byte(keys[i]), Prefix("jquery")); got != want {
			t.Errorf("%q has the prefix of jquery: %v", keys[i], got)
		}
	}
}

func TestBatch(t *testing.T) {
	s := inMemory(t)
	set(t, s, Files, "a", "1", "b", "2")
	b := s.NewBatch()
	b.Set(Files, []byte("c"), []byte("3"))
	b.Delete(Files, []byte("a"))
	b.Delete(Files, []byte("absent"))
	b.Set(Files, []byte("b"), []byte("4"))
	if got := rows(t, s, Files, Range{}); !slices.Equal(got, []string{"a=1", "b=2"}) {
		t.Errorf("before the commit: %q", got)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, s, Files, Range{}); !slices.Equal(got, []string{"b=4", "c=3"}) {
		t.Errorf("after the commit: %q", got)
	}
	if err := b.Commit(); err == nil {
		t.Error("a second commit succeeded")
	}
	b.Set(Files, []byte("d"), nil)
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Errorf("closing twice: %v", err)
	}

	dropped := s.NewBatch()
	dropped.Set(Files, []byte("dropped"), nil)
	if err := dropped.Close(); err != nil {
		t.Fatal(err)
	}
	if err := dropped.Commit(); err == nil {
		t.Error("a closed batch was committed")
	}
	empty := s.NewBatch()
	if err := errors.Join(empty.Commit(), empty.Close()); err != nil {
		t.Errorf("committing nothing: %v", err)
	}
}

func TestSnapshotStaysAsItWas(t *testing.T) {
	s := inMemory(t)
	set(t, s, Files, "a", "1")
	snap := s.Snapshot()
	defer snap.Close()
	set(t, s, Files, "a", "2", "b", "3")
	if got := rows(t, snap, Files, Range{}); !slices.Equal(got, []string{"a=1"}) {
		t.Errorf("the snapshot scans %q", got)
	}
	if _, err := snap.Get(Files, []byte("b")); !errors.Is(err, ErrNotFound) {
		t.Errorf("the snapshot gets what came later: %v", err)
	}
}

func TestOpenLocked(t *testing.T) {
	for name, o := range map[string]Options{"disk": small(nil), "memory": small(vfs.NewMem())} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, o)
			for _, readOnly := range []bool{false, true} {
				o.ReadOnly = readOnly
				_, err := Open(dir, o)
				if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
					t.Errorf("a second Open (read only: %v): %v", readOnly, err)
				}
			}
			o.ReadOnly = false
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			open(t, dir, o)
		})
	}
}

func TestOpenRefusesANewerFormat(t *testing.T) {
	fs := vfs.NewMem()
	newer := small(fs)
	newer.Program = "v9.0.0"
	s := open(t, "store", newer)
	set(t, s, Meta, "format", string([]byte{format + 1}))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	older := small(fs)
	older.Program = "v8.0.0"
	for range 2 { // and leaves the folder unlocked
		_, err := Open("store", older)
		if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "(2 instead of 1): larder v9.0.0 wrote it; use that or a newer one") {
			t.Errorf("Open: %v", err)
		}
	}
}

func TestReadOnly(t *testing.T) {
	fs := vfs.NewMem()
	o := small(fs)
	o.ReadOnly = true
	if _, err := Open("store", o); err == nil || !strings.Contains(err.Error(), "there is no store in store") {
		t.Errorf("opening nothing to read only: %v", err)
	}
	writer := open(t, "store", small(fs))
	set(t, writer, Files, "a", "1")
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, "store", o)
	if got := rows(t, s, Files, Range{}); !slices.Equal(got, []string{"a=1"}) {
		t.Errorf("it holds %q", got)
	}
	b := s.NewBatch()
	b.Set(Files, []byte("b"), nil)
	if err := b.Commit(); err == nil || !strings.Contains(err.Error(), "read only") {
		t.Errorf("Commit: %v", err)
	}
}

func TestClosedStoreRefusesAll(t *testing.T) {
	s := inMemory(t)
	set(t, s, Files, "a", "1")
	b := s.NewBatch()
	b.Set(Files, []byte("b"), nil)
	var inside error
	for _, err := range s.Scan(Files, Range{}) { // Close waits for it, and it doesn't wait for Close
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error)
		go func() { closed <- s.Close() }()
		for inside == nil {
			_, inside = s.Get(Files, []byte("a"))
		}
		select {
		case <-closed:
			t.Error("it was closed during a scan")
		default:
		}
		t.Cleanup(func() {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	snap := s.Snapshot()
	defer snap.Close()
	errs := []error{
		inside,
		b.Commit(),
		second(snap.Get(Files, []byte("a"))),
		second(s.Content(Hash{})),
		second(s.Pin().Has(Hash{})),
		s.PutContent(Hash{}, 1, false, []Coded{{}}),
	}
	for _, err := range s.Scan(Files, Range{}) {
		errs = append(errs, err)
	}
	for i, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "the store in store is closed") {
			t.Errorf("%d: %v", i, err)
		}
	}
	if got := scrape(t, s); len(got) > 0 {
		t.Errorf("metrics: %v", got)
	}
}

// Writers are told, and don't hang, when the store closes under them.
func TestCloseWhileWriting(t *testing.T) {
	o := small(vfs.NewMem())
	o.reclaimBytes = 1 << 10 // reclaim all the time
	s := open(t, "store", o)
	var writers sync.WaitGroup
	begun := make(chan struct{}, 4)
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				h, b := Hash{byte(w)}, noise(uint64(i), 50_000-i)
				if err := s.PutContent(h, 50_000, false, []Coded{{coding.Brotli, b}}); err != nil {
					if !strings.Contains(err.Error(), "is closed") {
						t.Error(err)
					}
					return
				}
				if i == 10 { // then Close comes
					begun <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		<-begun
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	writers.Wait()
}

func TestNothingIsLoggedInGoodDays(t *testing.T) {
	var log bytes.Buffer
	o := small(vfs.NewMem())
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, err := Open("store", o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		put(t, s, noise(uint64(i), 100_000))
	}
	if err := errors.Join(pebbleOf(s).Flush(), pebbleOf(s).Compact(t.Context(), []byte{0}, []byte{255}, true), s.Close()); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("logged:\n%s", &log)
	}
}

// A store keeps the format of its files until it is told to use the newest one, so that the program that wrote it can go on
// with it. What is read and written is the same in either.
func TestFormatIsKept(t *testing.T) {
	fs := vfs.NewMem()
	const older = pebble.FormatWALSyncChunks
	po := &pebble.Options{FS: fs, FormatMajorVersion: older, Logger: pebbleLogger{slog.New(slog.DiscardHandler)}}
	db, err := pebble.Open("store", po)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set(Meta.physical(formatKey), []byte{format}, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	has := func(when string, want pebble.FormatMajorVersion) {
		t.Helper()
		desc, err := pebble.Peek("store", fs)
		if err != nil || desc.FormatMajorVersion != want {
			t.Errorf("%s the format is %v, want %v (%v)", when, desc.FormatMajorVersion, want, err)
		}
	}
	large := string(noise(1, 3*separateFrom))
	for i, renew := range []bool{false, true, false} {
		s := open(t, "store", small(fs))
		if i > 0 {
			if got, err := s.Get(Files, []byte("large")); err != nil || string(got) != large {
				t.Errorf("opened %d times: %d bytes, %v", i+1, len(got), err)
			}
		}
		set(t, s, Files, "large", large)
		if err := pebbleOf(s).Flush(); err != nil {
			t.Error(err)
		}
		if renew {
			has("before it is told,", older)
			if err := s.UseNewestFormat(); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		has(fmt.Sprintf("closed %d times,", i+1), map[bool]pebble.FormatMajorVersion{false: older, true: pebble.FormatNewest}[i > 0])
	}
	if err := open(t, "another", small(fs)).UseNewestFormat(); err != nil {
		t.Error(err)
	}
	s := open(t, "store", func() Options { o := small(fs); o.ReadOnly = true; return o }())
	if got, err := s.Get(Files, []byte("large")); err != nil || string(got) != large {
		t.Errorf("to be read only: %d bytes, %v", len(got), err)
	}
}
