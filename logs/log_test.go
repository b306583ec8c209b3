package logs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func openStore(t *testing.T) *kvstore.Store {
	t.Helper()
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{FS: unsynced.FS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// fill appends n entries, several to a write.
func fill(t *testing.T, l *logs.Log, n int) {
	t.Helper()
	for done := 0; done < n; {
		err := l.Update(func(tx *logs.Tx) error {
			for range min(3, n-done) {
				e, err := tx.Append(logs.Entry{Kind: logs.Detected, Time: noon, Actor: "bot", Package: "jquery", Version: fmt.Sprintf("1.0.%d", done)})
				if err != nil {
					return err
				}
				if e.Index != int64(done) {
					t.Errorf("entry has index %d, want %d", e.Index, done)
				}
				done++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestTreeIsThatOfTlog(t *testing.T) {
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Checkpoint().Size; got != 0 {
		t.Fatalf("a new log has %d entries", got)
	}
	fill(t, l, 23)

	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		var out []tlog.Hash
		for _, i := range indexes {
			out = append(out, stored[i])
		}
		return out, nil
	})
	for e, err := range logs.Entries(store, 0) {
		if err != nil {
			t.Fatal(err)
		}
		hashes, err := tlog.StoredHashes(e.Index, e.Raw, reader)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, hashes...)
	}
	root, err := tlog.TreeHash(23, reader)
	if err != nil {
		t.Fatal(err)
	}
	want := logs.Checkpoint{Size: 23, Root: root}
	if got := l.Checkpoint(); got != want {
		t.Errorf("checkpoint %v, want %v", got, want)
	}
	if got, err := logs.Verify(store); err != nil || got != want {
		t.Errorf("Verify: %v, %v, want %v", got, err, want)
	}
	again, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Checkpoint(); got != want {
		t.Errorf("opened again: %v, want %v", got, want)
	}
}

func TestFailedUpdateLeavesNothing(t *testing.T) {
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, l, 2)
	before := l.Checkpoint()
	stop := errors.New("stop")
	err = l.Update(func(tx *logs.Tx) error {
		if _, err := tx.Append(logs.Entry{Kind: logs.Detected, Package: "vue"}); err != nil {
			return err
		}
		tx.Batch.Set(kvstore.Meta, []byte("row"), []byte("value"))
		return stop
	})
	if !errors.Is(err, stop) {
		t.Fatalf("error %v, want %v", err, stop)
	}
	if got := l.Checkpoint(); got != before {
		t.Errorf("checkpoint moved to %v", got)
	}
	if _, err := store.Get(kvstore.Meta, []byte("row")); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("the row is there: %v", err)
	}
	if _, err := logs.ReadEntry(store, 2); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("the entry is there: %v", err)
	}
	if _, err := logs.Verify(store); err != nil {
		t.Error(err)
	}
}

func TestVerifyFindsEveryChangedRow(t *testing.T) {
	const entries = 9
	namespaces := []kvstore.Namespace{kvstore.LogEntries, kvstore.LogHashes, kvstore.LogState}
	for _, ns := range namespaces {
		store := openStore(t)
		l, err := logs.Open(store)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, l, entries)
		type row struct{ key, value []byte }
		var rows []row
		for item, err := range store.Scan(ns, kvstore.Range{}) {
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, row{append([]byte(nil), item.Key...), append([]byte(nil), item.Value...)})
		}
		set := func(key, value []byte) {
			b := store.NewBatch()
			defer b.Close()
			if value == nil {
				b.Delete(ns, key)
			} else {
				b.Set(ns, key, value)
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range rows {
			flipped := append([]byte(nil), r.value...)
			flipped[len(flipped)/2] ^= 1
			for name, value := range map[string][]byte{"flipped": flipped, "deleted": nil} {
				set(r.key, value)
				if _, err := logs.Verify(store); err == nil {
					t.Errorf("row %c %x %s: Verify found nothing", ns, r.key, name)
				}
				set(r.key, r.value)
			}
		}
		if _, err := logs.Verify(store); err != nil {
			t.Errorf("put back as it was: %v", err)
		}
	}
}

func TestWait(t *testing.T) {
	l, err := logs.Open(openStore(t))
	if err != nil {
		t.Fatal(err)
	}
	add := func() {
		if err := l.Update(func(tx *logs.Tx) error {
			_, err := tx.Append(logs.Entry{Kind: logs.Detected, Package: "vue", Version: "1.0.0"})
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	add()
	if c, err := l.Wait(t.Context(), 0); err != nil || c.Size != 1 {
		t.Errorf("with an entry there, Wait returns %d entries, %v", c.Size, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Wait(over, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("of an ended context: %v", err)
	}
	sizes := make(chan int64)
	for range 2 {
		go func() {
			c, err := l.Wait(t.Context(), 1)
			if err != nil {
				t.Error(err)
			}
			sizes <- c.Size
		}()
	}
	add()
	for range 2 {
		if size := <-sizes; size != 2 {
			t.Errorf("a waiter is told of %d entries", size)
		}
	}
}

func TestEntryKeepsWhatItSays(t *testing.T) {
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	want := logs.Entry{
		Format: logs.EntryFormat, Kind: logs.Published, Time: noon, Actor: "bot", Package: "vue", Version: "3.5.0",
		Released: noon.Add(-time.Hour), Manifest: kvstore.Sum([]byte("manifest")),
		Diff: kvstore.Sum([]byte("diff")), Detail: kvstore.Sum([]byte("detail")), Erasure: kvstore.Sum([]byte("erasure")),
		Signature: logs.Signature{Outcome: logs.SignatureVerified, Key: "SHA256:x"},
		Upstream:  logs.UpstreamChange{Old: "sha512-a"}, Key: "log+01234567+AQ==", KeySignature: "— log AA==",
	}
	if err := l.Update(func(tx *logs.Tx) error { _, err := tx.Append(want); return err }); err != nil {
		t.Fatal(err)
	}
	got, err := logs.ReadEntry(store, 0)
	if err != nil {
		t.Fatal(err)
	}
	want.Live = got.Live
	if got.Entry != want {
		t.Errorf("got %+v\nwant %+v", got.Entry, want)
	}
	if strings.Contains(string(got.Raw), "packageJSON") {
		t.Errorf("the entry names a content that it has not: %s", got.Raw)
	}
	if named := want.Contents(); len(named) != 4 || named[0] != want.Manifest || named[3] != want.Erasure {
		t.Errorf("the entry names %v", named)
	}
}

func TestEntrySaysNothingOfWhatItHasNot(t *testing.T) {
	l, err := logs.Open(openStore(t))
	if err != nil {
		t.Fatal(err)
	}
	var e logs.Indexed
	err = l.Update(func(tx *logs.Tx) error {
		e, err = tx.Append(logs.Entry{Kind: logs.KeyChanged, Time: noon, Actor: "operator", Key: "log+01234567+AQ=="})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"format":1,"kind":"key-changed","time":"2026-01-02T12:00:00Z","actor":"operator","key":"log+01234567+AQ==","live":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`; string(e.Raw) != want {
		t.Errorf("got  %s\nwant %s", e.Raw, want)
	}
}

func TestErasure(t *testing.T) {
	a, b := kvstore.Sum([]byte("a")), kvstore.Sum([]byte("b"))
	var encoded []string
	for _, contents := range [][]kvstore.Hash{{a, b}, {b, a, b}} {
		e := &logs.Erasure{Package: "vue", Version: "3.0.0", Contents: contents}
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		encoded = append(encoded, string(data))
		got, err := logs.DecodeErasure(data)
		if err != nil || got.Package != "vue" || got.Version != "3.0.0" || len(got.Contents) != 2 {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if encoded[0] != encoded[1] {
		t.Errorf("the same contents are\n%s and\n%s", encoded[0], encoded[1])
	}
	for _, bad := range []string{``, `[]`, `{"format":2}`, `{"format":1,"contents":["x"]}`} {
		if _, err := logs.DecodeErasure([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestLongReasonIsCut(t *testing.T) {
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	err = l.Update(func(tx *logs.Tx) error {
		_, err := tx.Append(logs.Entry{Kind: logs.Refused, Package: "vue", Reason: strings.Repeat("é", 100_000)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := logs.ReadEntry(store, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Raw) > logs.MaxEntry || !strings.HasSuffix(e.Reason, "é…") {
		t.Errorf("the entry has %d bytes, its reason ends in %q", len(e.Raw), e.Reason[len(e.Reason)-8:])
	}
}
