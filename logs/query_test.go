package logs_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// append adds entries, each in a write of its own.
func appendAll(t *testing.T, l *logs.Log, entries ...logs.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := l.Update(func(tx *logs.Tx) error { _, err := tx.Append(e); return err }); err != nil {
			t.Fatal(err)
		}
	}
}

// mixed returns a log with entries of all kinds about a few releases, whose names are
// as much alike as names can be.
func mixed(t *testing.T, n int) (*kvstore.Store, []logs.Indexed) {
	t.Helper()
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	err = l.Update(func(tx *logs.Tx) error {
		for i := range n {
			e := logs.Entry{
				Kind: logs.Kinds[random.IntN(len(logs.Kinds))], Time: noon.Add(time.Duration(i) * time.Minute),
				Package: pick("", "a", "a-b", "ab", "a.b"), Version: pick("", "1", "1.0", "10"),
			}
			if e.Package == "" {
				e.Version = ""
			}
			if _, err := tx.Append(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []logs.Indexed
	for e, err := range logs.Entries(store, 0) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return store, all
}

func indexesOf(entries []logs.Indexed) []int64 {
	indexes := []int64{}
	for _, e := range entries {
		indexes = append(indexes, e.Index)
	}
	return indexes
}

// What Read returns, page after page, is what a look at every entry selects.
func TestReadIsAFilter(t *testing.T) {
	store, all := mixed(t, 400)
	for _, pkg := range []string{"", "a", "a-b", "ab", "nothing"} {
		for _, version := range []string{"", "1", "1.0", "2"} {
			for _, kinds := range [][]logs.Kind{nil, {logs.Published}, {logs.Published, logs.Refused, logs.Published}, logs.Kinds, {"eaten"}} {
				for _, since := range []time.Time{{}, noon.Add(200 * time.Minute), noon.Add(time.Hour * 1000)} {
					q := logs.Query{Package: pkg, Version: version, Kinds: kinds, Since: since, Limit: 7}
					if pkg == "" {
						q.Version = ""
					}
					var want []logs.Indexed
					for _, e := range slices.Backward(all) {
						if q.Matches(e.Entry) {
							want = append(want, e)
						}
					}
					var got []logs.Indexed
					for more := true; more; {
						page, err := logs.Read(store, q)
						if err != nil {
							t.Fatal(err)
						}
						if len(page.Entries) > q.Limit || page.Next != 0 && len(page.Entries) < q.Limit {
							t.Fatalf("%+v: a page of %d entries, next %d", q, len(page.Entries), page.Next)
						}
						got = append(got, page.Entries...)
						more, q.Before = page.Next != 0, page.Next
					}
					if !slices.Equal(indexesOf(got), indexesOf(want)) {
						t.Errorf("%+v: %v, want %v", q, indexesOf(got), indexesOf(want))
					}
				}
			}
		}
	}
}

// A counter counts the rows that are read.
type counter struct {
	kvstore.Reader
	rows int
}

func (c *counter) Scan(ns kvstore.Namespace, r kvstore.Range) iter.Seq2[kvstore.Item, error] {
	return func(yield func(kvstore.Item, error) bool) {
		for item, err := range c.Reader.Scan(ns, r) {
			c.rows++
			if !yield(item, err) {
				return
			}
		}
	}
}

func TestReadReadsNoMore(t *testing.T) {
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l,
		logs.Entry{Kind: logs.Refused, Time: noon, Package: "left-pad", Version: "1.0.0"},
		logs.Entry{Kind: logs.Published, Time: noon, Package: "left-pad", Version: "1.1.0"})
	fill2 := func(tx *logs.Tx) error {
		for i := range 3000 {
			if _, err := tx.Append(logs.Entry{Kind: logs.Detected, Time: noon, Package: fmt.Sprintf("p%d", i%10), Version: fmt.Sprint(i)}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := l.Update(fill2); err != nil {
		t.Fatal(err)
	}
	for _, q := range []logs.Query{
		{Package: "left-pad"}, {Package: "left-pad", Version: "1.0.0"}, {Package: "left-pad", Kinds: []logs.Kind{logs.Refused}},
		{Kinds: []logs.Kind{logs.Refused, logs.Published}}, {Package: "p3", Version: "13"},
		{Since: noon.AddDate(0, 0, 3)}, {Package: "p3", Since: noon.AddDate(0, 0, 3)},
	} {
		q.Limit = 10
		c := &counter{Reader: store}
		page, err := logs.Read(c, q)
		if err != nil || len(page.Entries) > 2 || len(page.Entries) == 0 && q.Since.IsZero() {
			t.Errorf("%+v: %v, %v", q, indexesOf(page.Entries), err)
		}
		if c.rows > 5 {
			t.Errorf("%+v reads %d rows of the index", q, c.rows)
		}
	}
}

func TestReadTellsOfDamage(t *testing.T) {
	store, _ := mixed(t, 20)
	b := store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogIndex, kvstore.Key("p", "odd", "published", "x"), []byte{1})
	b.Delete(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 7})
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := logs.Read(store, logs.Query{Package: "odd", Limit: 1}); err == nil || !strings.Contains(err.Error(), "larder repair") {
		t.Errorf("a malformed row: %v", err)
	}
	if _, err := logs.Read(store, logs.Query{Kinds: logs.Kinds, Limit: 20}); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("an entry that is missing: %v", err)
	}
}

func TestKnown(t *testing.T) {
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l,
		logs.Entry{Kind: logs.PackageAdded, Time: noon, Package: "vue"},
		logs.Entry{Kind: logs.Detected, Time: noon, Package: "vue", Version: "3.0.0"})
	for _, tt := range []struct {
		pkg, version string
		want         bool
	}{
		{"vue", "", true}, {"vue", "3.0.0", true}, {"vue", "3.0", false}, {"vu", "", false}, {"vuee", "", false}, {"", "", false},
		{"vue\x003.0.0", "", false}, {"vue", "3.0.0\x00detected", false}, {"vue\x00detected", "", false},
	} {
		if got, err := logs.HasEntry(store, tt.pkg, tt.version); got != tt.want || err != nil {
			t.Errorf("%q %q: %v, %v", tt.pkg, tt.version, got, err)
		}
	}
}

func TestFirst(t *testing.T) {
	store, all := mixed(t, 50)
	want := all[slices.IndexFunc(all, func(e logs.Indexed) bool { return e.Package == "a-b" })]
	if got, err := logs.FirstEntry(store, "a-b"); err != nil || got.Index != want.Index {
		t.Errorf("%d, %v, want %d", got.Index, err, want.Index)
	}
	if _, err := logs.FirstEntry(store, "nothing"); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("of nothing: %v", err)
	}
}

// What Next returns, again and again, is what a look at every entry selects, in order.
func TestNextIsAFilter(t *testing.T) {
	store, all := mixed(t, 700)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []logs.Query{{}, {Package: "a"}, {Package: "a", Version: "1.0"}, {Kinds: []logs.Kind{logs.Refused, logs.Published}}, {Kinds: logs.Kinds}, {Package: "nothing"}} {
		var got, want []logs.Indexed
		for _, e := range all[5:] {
			if q.Matches(e.Entry) {
				want = append(want, e)
			}
		}
		for next := int64(5); next < 700; {
			entries, after, err := l.Next(t.Context(), next, q)
			if err != nil || after <= next || len(entries) > 300 {
				t.Fatalf("%+v from %d: %d entries, then %d, %v", q, next, len(entries), after, err)
			}
			got, next = append(got, entries...), after
		}
		if !slices.Equal(indexesOf(got), indexesOf(want)) {
			t.Errorf("%+v: %v, want %v", q, indexesOf(got), indexesOf(want))
		}
	}
}

func TestNextWaits(t *testing.T) {
	l, err := logs.Open(openStore(t))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		next, after, err := l.Next(t.Context(), 0, logs.Query{})
		if err == nil && (len(next) != 1 || next[0].Index != 0 || after != 1) {
			err = fmt.Errorf("%v, %d", indexesOf(next), after)
		}
		done <- err
	}()
	fill(t, l, 1)
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := l.Next(ctx, 1, logs.Query{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2026-01-02": "2026-01-02T00:00:00Z", "2026-01-02T15:04:05Z": "2026-01-02T15:04:05Z", "2026-01-02T15:04:05.5+02:00": "2026-01-02T13:04:05.5Z",
		"90m": "2026-03-10T10:30:00Z", "7d": "2026-03-03T12:00:00Z", "0s": "2026-03-10T12:00:00Z",
		"": "", "-1h": "", "yesterday": "", "-7d": "", "7": "", "99999999d": "", "1.5d": "", "2026-13-01": "",
	} {
		got, err := logs.ParseSince(text, now)
		if want == "" {
			if !errors.Is(err, logs.ErrSince) {
				t.Errorf("%q: %v, %v", text, got, err)
			}
			continue
		}
		if err != nil || got.UTC().Format(time.RFC3339Nano) != want {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
}

func TestParseKinds(t *testing.T) {
	got, err := logs.ParseKinds("Published, refused,,published")
	if err != nil || !slices.Equal(got, []logs.Kind{logs.Published, logs.Refused}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := logs.ParseKinds(""); got != nil || err != nil {
		t.Errorf("nothing: %v, %v", got, err)
	}
	if _, err := logs.ParseKinds("eaten"); err == nil || !strings.Contains(err.Error(), "withdrawn") {
		t.Errorf("an unknown kind: %v", err)
	}
}
