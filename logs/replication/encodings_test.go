package replication_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/replication"
)

// What the source squeezes after a mirror has taken it over is smaller on the mirror too, some time later; a source that
// sends other bytes then changes nothing.
func TestSmallerCodingsComeLater(t *testing.T) {
	text := strings.Repeat("let it be squeezed; ", 2000)
	h, size := kvstore.Sum([]byte(text)), int64(len(text))
	at := testkit.Released.Add(time.Minute)
	u := newUpstream(t)
	u.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": text})
	u.signNow(t)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Now = func() time.Time { return at } })
	m.catchUp(t)
	length := func(store *kvstore.Store) int64 {
		t.Helper()
		c, err := store.Content(h)
		if err != nil {
			t.Fatal(err)
		}
		r, ok := c.Find(coding.Brotli)
		if !ok {
			return size
		}
		return r.Length
	}
	improve := func(wait time.Duration, fails bool) {
		t.Helper()
		at = at.Add(wait)
		if err := m.Improve(t.Context()); (err != nil) != fails {
			t.Errorf("%v", err)
		}
	}
	squeeze := func(effort coding.Effort) {
		t.Helper()
		small, err := coding.Encode(coding.Brotli, effort, []byte(text))
		if err == nil {
			err = u.Store.ImproveContent(h, size, effort == coding.Best, []kvstore.Coded{{Coding: coding.Brotli, Bytes: small}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before := length(m.Store)
	squeeze(coding.Best)
	improve(time.Minute, false)
	if length(m.Store) != before {
		t.Error("it was asked for at once")
	}
	u.lies(func(path string, body []byte) []byte {
		if strings.HasPrefix(path, "/content/") {
			return []byte(strings.Replace(string(body), "squeezed", "poisoned", 1))
		}
		return body
	})
	improve(time.Hour, true)
	u.lies(nil)
	improve(10*time.Minute, false)
	if length(m.Store) != length(u.Store) || length(m.Store) >= before {
		t.Errorf("it has %d bytes, its source %d; before it had %d", length(m.Store), length(u.Store), before)
	}
	m.sound(t)
	requests := func() int {
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.requests
	}
	asked := requests()
	improve(time.Hour, false)
	if requests() != asked {
		t.Error("it is asked for again soon")
	}
	improve(24*time.Hour, false)
	if asked++; requests() != asked {
		t.Errorf("%d requests, want one a day later", requests()-asked+1)
	}
	improve(1000*time.Hour, false)
	if requests() != asked {
		t.Error("it is asked for for ever")
	}
}

// A content that the source cannot send keeps no other waiting, and is given up in the end.
func TestOneContentThatFails(t *testing.T) {
	at := testkit.Released.Add(time.Minute)
	u := newUpstream(t)
	u.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "one", "b.js": "two", "c.js": "three"})
	u.signNow(t)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Now = func() time.Time { return at } })
	m.catchUp(t)
	var mu sync.Mutex
	asked := map[string]int{}
	u.lies(func(path string, body []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if content, ok := strings.CutPrefix(path, "/content/"); ok {
			asked[content]++
			if content == kvstore.Sum([]byte("one")).String() {
				return []byte("other bytes")
			}
		}
		return body
	})
	look := func(wait time.Duration, fails bool, want map[string]int) {
		t.Helper()
		at = at.Add(wait)
		clear(asked)
		err := m.Improve(t.Context())
		mu.Lock()
		defer mu.Unlock()
		for text, n := range want {
			if got := asked[kvstore.Sum([]byte(text)).String()]; got != n {
				t.Errorf("after %v, %s was asked for %d times, want %d", wait, text, got, n)
			}
		}
		if (err != nil) != fails {
			t.Errorf("after %v: %v", wait, err)
		}
	}
	look(2*time.Hour, true, map[string]int{"one": 1, "two": 1, "three": 1})
	look(10*time.Minute, true, map[string]int{"one": 1, "two": 0, "three": 0})
	look(8*24*time.Hour, true, map[string]int{"one": 1, "two": 1, "three": 1})
	look(time.Hour, false, map[string]int{"one": 0, "two": 0, "three": 0})
}

// Contents that fail, as many as end an attempt, do not keep the others from the next one.
func TestManyContentsThatFail(t *testing.T) {
	at := testkit.Released.Add(time.Minute)
	u := newUpstream(t)
	files := map[string]string{}
	var paths []string // of the source, in the order in which they are requested
	for i := range 12 {
		data := fmt.Sprintf("file %d", i)
		files[fmt.Sprintf("%d.js", i)] = data
		paths = append(paths, "/content/"+kvstore.Sum([]byte(data)).String())
	}
	slices.Sort(paths)
	u.Publish("a", "1.0.0", "0.js", files)
	u.signNow(t)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Now = func() time.Time { return at } })
	m.catchUp(t)
	var mu sync.Mutex
	requested := map[string]int{}
	u.lies(func(path string, body []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		requested[path]++
		if slices.Contains(paths[:10], path) {
			return []byte("other bytes")
		}
		return body
	})
	for _, attempt := range []struct {
		after     time.Duration
		intact    int // how often each intact content was requested then, and each other one
		different int
	}{{2 * time.Hour, 0, 1}, {10 * time.Minute, 1, 2}, {10 * time.Minute, 1, 3}, {8 * 24 * time.Hour, 1, 4}, {time.Hour, 2, 4}} {
		at = at.Add(attempt.after)
		if err := m.Improve(t.Context()); (err != nil) != (attempt.after != time.Hour) {
			t.Errorf("after %v: %v", attempt.after, err)
		}
		mu.Lock()
		for i, path := range paths {
			want := attempt.intact
			if i < 10 {
				want = attempt.different
			}
			if requested[path] != want {
				t.Errorf("after %v, content %d was requested %d times, want %d", attempt.after, i, requested[path], want)
			}
		}
		mu.Unlock()
	}
}

// While contents are fetched again, which takes as long as the source likes, nothing keeps the store as it was before: a row
// that is gone meanwhile is gone.
func TestImproveKeepsNoOldState(t *testing.T) {
	at := testkit.Released.Add(time.Minute)
	u := newUpstream(t)
	u.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "one", "b.js": "two", "c.js": "three"})
	u.signNow(t)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Now = func() time.Time { return at } })
	m.catchUp(t)
	later := kvstore.Range{Prefix: kvstore.Prefix("follow", "later")}
	var asked atomic.Int32
	u.lies(func(path string, body []byte) []byte {
		if strings.HasPrefix(path, "/content/") {
			asked.Add(1)
			b := m.Store.NewBatch()
			defer b.Close()
			for item, err := range m.Store.Scan(kvstore.Meta, later) {
				if err != nil {
					t.Error(err)
				}
				b.Delete(kvstore.Meta, bytes.Clone(item.Key))
			}
			if err := b.Commit(); err != nil {
				t.Error(err)
			}
		}
		return body
	})
	at = at.Add(2 * time.Hour)
	if err := m.Improve(t.Context()); err != nil || asked.Load() != 1 {
		t.Errorf("%d contents were asked for, %v", asked.Load(), err)
	}
}

// A mirror that has all has caught up, whether its source sends smaller codings or not.
func TestOnceWithoutSmallerCodings(t *testing.T) {
	at := testkit.Released.Add(time.Minute)
	u := newUpstream(t)
	u.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "one"})
	u.signNow(t)
	var said bytes.Buffer
	m := newMirror(t, u.url, func(o *replication.Options) {
		o.Now, o.Logger = func() time.Time { return at }, slog.New(slog.NewTextHandler(&said, nil))
	})
	once := func() {
		t.Helper()
		if err := m.Once(t.Context()); err != nil {
			t.Error(err)
		}
	}
	once()
	u.lies(func(path string, body []byte) []byte {
		if strings.HasPrefix(path, "/content/") {
			return []byte("other bytes")
		}
		return body
	})
	at = at.Add(2 * time.Hour)
	once()
	if !strings.Contains(said.String(), "smaller codings") {
		t.Errorf("it is not told: %s", &said)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := m.Once(ended); err == nil {
		t.Error("it has caught up when it was told to end")
	}
}

// An old release comes as its source has squeezed it.
func TestOldReleasesAreFetchedOnce(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	at := testkit.Released.AddDate(0, 1, 0)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Now = func() time.Time { return at } })
	m.catchUp(t)
	u.mu.Lock()
	asked := u.requests
	u.mu.Unlock()
	at = at.AddDate(1, 0, 0)
	if err := m.Improve(t.Context()); err != nil || u.requests != asked {
		t.Errorf("%d requests more, %v", u.requests-asked, err)
	}
}
