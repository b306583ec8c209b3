package logs_test

import (
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

func TestRawEntries(t *testing.T) {
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, l, 7)
	raw, err := logs.RawEntries(store, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, data := range raw {
		e, err := logs.ReadEntry(store, int64(2+i))
		if err != nil || string(e.Raw) != string(data) {
			t.Errorf("entry %d is %s, %v; want %s", 2+i, data, err, e.Raw)
		}
	}
	if _, err := logs.RawEntries(store, 5, 3); err == nil || !strings.Contains(err.Error(), "entry 7 is missing") {
		t.Errorf("more than there are: %v", err)
	}

	// One that only a newer Larder knows, and one that is gone.
	b := store.NewBatch()
	b.Set(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 0}, []byte("new"))
	b.Delete(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 2})
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if raw, err := logs.RawEntries(store, 0, 2); err != nil || string(raw[0]) != "new" {
		t.Errorf("%q, %v", raw, err)
	}
	if _, err := logs.RawEntries(store, 0, 7); err == nil || !strings.Contains(err.Error(), "entry 2 is missing") {
		t.Errorf("one is gone: %v", err)
	}
}
