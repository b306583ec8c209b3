package bot_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

func now() time.Time { return testkit.Released.Add(time.Hour) }

// A counter is a desk over a shelf with some releases.
type counter struct {
	*testkit.Shelf
	desk *bot.WithdrawalService
	t    *testing.T
}

func stocked(t *testing.T) *counter {
	s := testkit.NewShelf(t)
	s.Publish("demo", "1.0.0", "demo.js", map[string]string{"demo.js": "one", "shared.js": "shared", "old.js": "old", "package.json": `{"name":"x"}`})
	s.Publish("demo", "1.1.0", "demo.js", map[string]string{"demo.js": "two", "shared.js": "shared"})
	s.Publish("other", "2.0.0", "a.js", map[string]string{"a.js": "old"})
	s.Register("x", `{"name":"x"}`)
	return &counter{s, bot.NewWithdrawalService(s.Store, s.Log, now), t}
}

func (c *counter) rows() (all []string) {
	c.t.Helper()
	for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs} {
		for item, err := range c.Store.Scan(ns, kvstore.Range{}) {
			if err != nil {
				c.t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%c %q %x", ns, item.Key, item.Value))
		}
	}
	return all
}

func (c *counter) stored(data string) bool {
	_, err := c.Store.Identity(kvstore.Sum([]byte(data)))
	return err == nil
}

func (c *counter) sound() {
	c.t.Helper()
	_, err := check.Run(c.t.Context(), c.Store, check.Options{Deep: true, Temp: c.t.TempDir()}, func(f check.Finding) { c.t.Errorf("%+v", f) })
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *counter) withdraw(name, version string) {
	c.t.Helper()
	if _, err := c.desk.Withdraw(c.t.Context(), name, version, "by order"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *counter) erase(name, version string) bot.Erasure {
	c.t.Helper()
	e, err := c.desk.Erase(c.t.Context(), name, version, "by order")
	if err != nil {
		c.t.Fatal(err)
	}
	return e
}

func TestWithdrawAndRestore(t *testing.T) {
	c := stocked(t)
	before := c.rows()
	size := c.Log.Checkpoint().Size
	out, err := c.desk.Withdraw(t.Context(), "demo", "1.0.0", "  a stolen token published it ")
	want := bot.WithdrawalOutcome{
		Package: "demo", Version: "1.0.0", Reason: "a stolen token published it", Entry: size,
		Files: []string{"demo.js", "old.js", "package.json", "shared.js"}, Bytes: 24,
	}
	if err != nil || !reflect.DeepEqual(out, want) {
		t.Errorf("%+v, %v; want %+v", out, err, want)
	}
	if got := c.rows(); len(got) != len(before)-8 {
		t.Errorf("%d rows of %d", len(got), len(before))
	}
	v, err := views.LookupVersion(c.Store, "demo", "1.0.0")
	if err != nil || v.Withdrawn == nil || v.Withdrawn.Entry != size || v.Withdrawn.Reason != want.Reason || !v.Withdrawn.Time.Equal(now()) {
		t.Errorf("version %+v, %v", v, err)
	}
	c.sound()

	out, err = c.desk.Restore(t.Context(), "demo", "1.0.0", "it was the owner", nil)
	want.Entry, want.Reason = size+1, "it was the owner"
	if err != nil || !reflect.DeepEqual(out, want) {
		t.Errorf("%+v, %v; want %+v", out, err, want)
	}
	if got := c.rows(); !reflect.DeepEqual(got, before) {
		t.Errorf("restored:\n%q\nwant\n%q", got, before)
	}
	state, err := views.LookupState(c.Store, "demo", "1.0.0")
	if err != nil || state.Kind != views.Published || !state.Released.Equal(testkit.Released) {
		t.Errorf("state %+v, %v", state, err)
	}
	c.sound()
}

func TestNonsenseIsRefused(t *testing.T) {
	c := stocked(t)
	c.Refuse("demo", "3.0.0", "a bomb")
	c.withdraw("demo", "1.1.0")
	size := c.Log.Checkpoint().Size
	long := strings.Repeat("é", bot.MaxWithdrawalReason/2+1)
	for _, tt := range []struct{ do, name, version, reason, want string }{
		{"withdraw", "demo", "1.0.0", " \n ", "a reason is needed"},
		{"withdraw", "demo", "1.0.0", long, "1002 bytes; at most 1000"},
		{"withdraw", "demo", "1.0.0", "one\ntwo", "one line"},
		{"withdraw", "demo", "1.0.0", "\x1b[2J", "one line"},
		{"withdraw", "demo", "1.0.0", "\xff", "one line"},
		{"withdraw", "demo", "1.0.1", "x", "demo has no version 1.0.1; `larder status demo`"},
		{"withdraw", "dem", "1.0.0", "x", "no release of dem was ever published"},
		{"withdraw", "", "", "x", "no release of  was ever published"},
		{"withdraw", "demo\x001.0.0", "demo.js", "x", "was ever published"},
		{"withdraw", "demo", "3.0.0", "x", "demo 3.0.0 was never published: it is refused"},
		{"withdraw", "demo", "1.1.0", "x", "demo 1.1.0 is withdrawn already (log entry 5: by order)"},
		{"restore", "demo", "1.0.0", "x", "demo 1.0.0 is not withdrawn"},
		{"restore", "demo", "1.1.0", "", "a reason is needed"},
		{"restore", "demo", "4", "x", "has no version 4"},
		{"erase", "demo", "1.0.0", "x", "demo 1.0.0 is served; withdraw it before"},
		{"erase", "demo", "1.1.0", "", "a reason is needed"},
	} {
		var err error
		switch tt.do {
		case "withdraw":
			_, err = c.desk.Withdraw(t.Context(), tt.name, tt.version, tt.reason)
		case "restore":
			_, err = c.desk.Restore(t.Context(), tt.name, tt.version, tt.reason, nil)
		case "erase":
			_, err = c.desk.Erase(t.Context(), tt.name, tt.version, tt.reason)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %q %q because %q: %v, want %q", tt.do, tt.name, tt.version, tt.reason, err, tt.want)
		}
	}
	if got := c.Log.Checkpoint().Size; got != size {
		t.Errorf("the log grew by %d entries", got-size)
	}
}

func TestErase(t *testing.T) {
	c := stocked(t)
	c.withdraw("demo", "1.0.0")
	got := c.erase("demo", "1.0.0")
	want := bot.Erasure{Entry: 5, Erased: 1, Bytes: 3, Shared: 3, With: []string{"demo 1.1.0", "log entry 3", "other 2.0.0"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("erased %+v, want %+v", got, want)
	}
	for data, want := range map[string]bool{"one": false, "shared": true, "old": true, `{"name":"x"}`: true, "two": true} {
		if c.stored(data) != want {
			t.Errorf("%q is stored: %v", data, !want)
		}
	}
	c.sound()
	if _, err := c.desk.Restore(t.Context(), "demo", "1.0.0", "again", nil); err == nil || !strings.Contains(err.Error(), "its files were erased for good (log entry 5: by order)") {
		t.Errorf("restored: %v", err)
	}
	if again := c.erase("demo", "1.0.0"); again.Entry != -1 || again.Erased != 0 {
		t.Errorf("erased again: %+v", again)
	}

	// What a withdrawn release shares stays as long as that can be restored.
	c.withdraw("other", "2.0.0")
	c.withdraw("demo", "1.1.0")
	if e := c.erase("demo", "1.0.0"); e.Erased != 0 || e.Shared != 3 {
		t.Errorf("with others withdrawn: %+v", e)
	}
	if _, err := c.desk.Restore(t.Context(), "demo", "1.1.0", "again", nil); err != nil {
		t.Error(err)
	}
	if e := c.erase("other", "2.0.0"); e.Erased != 1 || c.stored("old") {
		t.Errorf("the last that had it: %+v", e)
	}
	c.sound()

	// The same bytes may come back, and are then as any others.
	c.Publish("third", "1.0.0", "a.js", map[string]string{"a.js": "old"})
	c.sound()
	c.withdraw("third", "1.0.0")
	if _, err := c.desk.Restore(t.Context(), "third", "1.0.0", "again", nil); err != nil {
		t.Error(err)
	}
	c.sound()
}

func TestCheckFindsWhatNoErasureExplains(t *testing.T) {
	c := stocked(t)
	c.withdraw("demo", "1.0.0")
	c.erase("demo", "1.0.0")
	h := kvstore.Sum([]byte("shared"))
	b := c.Store.NewBatch()
	defer b.Close()
	b.Remove(h)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	var found []check.Finding
	if _, err := check.Run(t.Context(), c.Store, check.Options{Temp: t.TempDir()}, func(f check.Finding) { found = append(found, f) }); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || !strings.Contains(found[0].Where, h.String()) {
		t.Errorf("found %+v", found)
	}
}

func TestEraseLeavesWhatAReleaseUnderWayMayNeed(t *testing.T) {
	c := stocked(t)
	c.withdraw("demo", "1.0.0")
	pins := c.Store.Pin()
	if ok, err := pins.Has(kvstore.Sum([]byte("one"))); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if e := c.erase("demo", "1.0.0"); e.Busy != 1 || e.Erased != 0 || e.Entry != -1 || !c.stored("one") {
		t.Errorf("while it is pinned: %+v", e)
	}
	pins.Release()
	if e := c.erase("demo", "1.0.0"); e.Busy != 0 || e.Erased != 1 || c.stored("one") {
		t.Errorf("afterwards: %+v", e)
	}
	c.sound()
}

// TestEraseBesidePublishers erases releases while others that have the same
// contents are published and withdrawn: whatever is served stays whole.
func TestEraseBesidePublishers(t *testing.T) {
	c := stocked(t)
	var work sync.WaitGroup
	for writer := range 3 {
		work.Go(func() {
			for i := range 20 {
				name, version := fmt.Sprintf("w%d", writer), fmt.Sprintf("1.%d.0", i)
				if err := publish(c.Store, c.Log, name, version, "content of many", fmt.Sprintf("of few %d", i%3)); err != nil {
					t.Error(err)
					return
				}
				if _, err := c.desk.Withdraw(context.Background(), name, version, "x"); err != nil {
					t.Error(err)
				}
				if i%4 == writer {
					if _, err := c.desk.Restore(context.Background(), name, version, "x", nil); err != nil {
						t.Error(err)
					}
				} else if _, err := c.desk.Erase(context.Background(), name, version, "x"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Go(func() {
		for range 10 {
			var needed map[kvstore.Hash]bool
			_, _, err := c.Store.CollectOrphans(context.Background(), func(h kvstore.Hash) bool {
				if needed == nil {
					needed = make(map[kvstore.Hash]bool)
					if err := views.Contents(context.Background(), c.Store, c.Store, func(h kvstore.Hash) { needed[h] = true }); err != nil {
						t.Error(err)
					}
				}
				return needed[h]
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	work.Wait()
	c.sound()
}

// publish does what the bot does.
func publish(store *kvstore.Store, log *logs.Log, name, version string, contents ...string) error {
	pins := store.Pin()
	defer pins.Release()
	keep := func(data []byte) (kvstore.Hash, error) {
		h := kvstore.Sum(data)
		ok, err := pins.Has(h)
		if ok || err != nil {
			return h, err
		}
		return h, store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}})
	}
	m := &logs.Manifest{Package: name, Version: version}
	for i, data := range contents {
		h, err := keep([]byte(data))
		if err != nil {
			return err
		}
		m.Files = append(m.Files, logs.File{Path: fmt.Sprint(i), Size: int64(len(data)), SHA256: h, SRI: logs.SumSRI([]byte(data)), Origin: logs.Upstream})
	}
	encoded, err := m.Encode()
	if err != nil {
		return err
	}
	h, err := keep(encoded)
	if err != nil {
		return err
	}
	return log.Update(func(tx *logs.Tx) error {
		return views.Record(tx, views.Change{Entry: logs.Entry{Kind: logs.Published, Time: now(), Actor: "bot", Package: name, Version: version, Manifest: h}, Manifest: m})
	})
}

// TestRestoredAsTheLogHasIt has the row of a withdrawn release name another one's files.
func TestRestoredAsTheLogHasIt(t *testing.T) {
	c := stocked(t)
	c.withdraw("demo", "1.0.0")
	c.withdraw("demo", "1.1.0")
	row, err := c.Store.Get(kvstore.Versions, kvstore.Key("demo", "1.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	b := c.Store.NewBatch()
	b.Set(kvstore.Versions, kvstore.Key("demo", "1.0.0"), row)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.desk.Restore(t.Context(), "demo", "1.0.0", "a mistake", nil); err == nil || !strings.Contains(err.Error(), "its row names other files than log entry") {
		t.Errorf("restored: %v", err)
	}
	if _, err := c.desk.Restore(t.Context(), "demo", "1.1.0", "a mistake", nil); err != nil {
		t.Error(err)
	}
}
