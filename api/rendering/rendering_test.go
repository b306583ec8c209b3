package rendering

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
)

func openStore(t *testing.T, dir string, readOnly bool) *kvstore.Store {
	t.Helper()
	store, err := kvstore.Open(dir, kvstore.Options{ReadOnly: readOnly})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// note is a document that is rendered as itself.
func note(text string) Document {
	return Document{Kind: document.Readme, Key: document.NewKey(document.Readme, text), Owner: "jar@1.0.0", Request: func() (document.Request, error) {
		return document.Request{Kind: document.Readme, Name: "README.md", Text: text}, nil
	}}
}

// counting renders, and counts.
func counting(count *atomic.Int64) func(context.Context, string, document.Request) (document.Result, error) {
	return func(_ context.Context, owner string, r document.Request) (document.Result, error) {
		count.Add(1)
		if r.Text == "bomb" {
			return document.Result{}, &document.RefusedError{Reason: "it needed more than 128 MiB of memory"}
		}
		if r.Text == "later" {
			return document.Result{}, errors.New("couldn't start a worker")
		}
		return document.Result{Kind: r.Kind, Markup: "<p>" + r.Text + " of " + owner + "</p>"}, nil
	}
}

// TestRenderedOnce holds that a document is rendered once, also over restarts, and so is one that cannot be rendered.
func TestRenderedOnce(t *testing.T) {
	dir := t.TempDir()
	var count atomic.Int64
	for restart := range 3 {
		store := openStore(t, dir, restart == 2)
		x := New(Options{Store: store, Render: counting(&count)})
		for range 2 {
			r, err := x.Render(t.Context(), note("hello"))
			if err != nil || r.Markup != "<p>hello of jar@1.0.0</p>" {
				t.Errorf("%+v, %v", r, err)
			}
			var refused *document.RefusedError
			if _, err := x.Render(t.Context(), note("bomb")); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "128 MiB") {
				t.Errorf("a bomb: %v", err)
			}
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if count.Load() != 2 {
		t.Errorf("two documents were rendered %d times", count.Load())
	}
	// What failed for another reason is tried again.
	store := openStore(t, dir, false)
	x := New(Options{Store: store, Render: counting(&count)})
	for range 2 {
		if _, err := x.Render(t.Context(), note("later")); err == nil || errors.As(err, new(*document.RefusedError)) {
			t.Errorf("%v", err)
		}
	}
	if count.Load() != 4 {
		t.Errorf("rendered %d times", count.Load())
	}
}

// TestFailuresPass checks that a document whose rendering failed is queued again after a while, and not stored as refused.
func TestFailuresPass(t *testing.T) {
	var count atomic.Int64
	x := New(Options{Store: openStore(t, t.TempDir(), false), Render: counting(&count)})
	now := time.Unix(1e9, 0)
	x.now = func() time.Time { return now }
	for attempt := range int64(3) {
		_, err := x.Get(note("later"))
		pending, ok := errors.AsType[*PendingError](err)
		if !ok || pending.Done == nil {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { x.Run(ctx) })
		<-pending.Done
		cancel()
		running.Wait()
		_, err = x.Get(note("later"))
		if pending, ok = errors.AsType[*PendingError](err); !ok || pending.Done != nil || count.Load() != attempt+1 {
			t.Errorf("directly after attempt %d: %v, rendered %d times", attempt, err, count.Load())
		}
		now = now.Add(retryAfter)
	}
}

// TestReadOnlyStore holds that a store to which nothing can be written has pages all the same.
func TestReadOnlyStore(t *testing.T) {
	dir := t.TempDir()
	if err := openStore(t, dir, false).Close(); err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	x := New(Options{Store: openStore(t, dir, true), Render: counting(&count)})
	for range 2 {
		if r, err := x.Render(t.Context(), note("hello")); err != nil || r.Markup == "" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if count.Load() != 1 {
		t.Errorf("rendered %d times", count.Load())
	}
}

// TestQueueIsBounded holds that what is requested waits in a bounded queue, once each.
func TestQueueIsBounded(t *testing.T) {
	var count atomic.Int64
	x := New(Options{Store: openStore(t, t.TempDir(), false), Render: counting(&count)})
	var waits []*PendingError
	for i := range maxQueue + 10 {
		for range 2 {
			_, err := x.Get(note(fmt.Sprint(i)))
			var pending *PendingError
			if !errors.As(err, &pending) || (pending.Done == nil) != (i >= maxQueue) {
				t.Fatalf("document %d: %v", i, err)
			}
			waits = append(waits, pending)
		}
	}
	if len(x.queue) != maxQueue || len(x.jobs) != maxQueue {
		t.Errorf("%d documents wait", len(x.queue))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { x.Run(ctx) })
	for _, w := range waits {
		if w.Done != nil {
			<-w.Done
		}
	}
	cancel()
	running.Wait()
	if count.Load() != maxQueue || len(x.jobs) != 0 {
		t.Errorf("%d were rendered, and %d are left", count.Load(), len(x.jobs))
	}
	if r, err := x.Get(note("0")); err != nil || r.Markup == "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestCacheIsBounded holds that the cache has no more bytes than it may, and that what is in use stays.
func TestCacheIsBounded(t *testing.T) {
	store := openStore(t, t.TempDir(), false)
	const most = 40 << 10
	c := cache{store: store, most: most}
	used := note("in use")
	put := func(d Document, text string) {
		t.Helper()
		if err := c.put(d.Key, entry{refused: text}); err != nil {
			t.Fatal(err)
		}
	}
	put(used, "in use")
	rows := func() (n int, bytes int64) {
		for item, err := range store.Scan(kvstore.Renderings, kvstore.Range{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			bytes += int64(len(item.Value))
		}
		return n, bytes
	}
	for i := range 300 {
		put(note(fmt.Sprint(i)), strings.Repeat("x", 1000))
		if _, ok := c.get(document.Readme, used.Key); !ok {
			t.Fatalf("what is in use is gone after %d", i)
		}
		if i%100 == 50 { // a restart goes on where the last one was
			c = cache{store: store, most: most}
		}
		if n, bytes := rows(); bytes > most+2000 {
			t.Fatalf("%d rows have %d bytes", n, bytes)
		}
	}
	if _, ok := c.get(document.Readme, note("0").Key); ok {
		t.Error("the oldest is still there")
	}
	if _, ok := c.get(document.Readme, note("299").Key); !ok {
		t.Error("the newest is gone")
	}
}

// TestDamagedCache holds that what was changed in the store is rendered again, and never shown.
func TestDamagedCache(t *testing.T) {
	store := openStore(t, t.TempDir(), false)
	var count atomic.Int64
	x := New(Options{Store: store, Render: counting(&count)})
	d := note("hello")
	if _, err := x.Render(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	hostile, err := document.Result{Kind: document.Readme, Markup: "<script>alert(1)</script>"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range [][]byte{nil, {1}, {9, 9}, []byte("\x01not Brotli"), append([]byte{1, 0x0b, byte(len(hostile)) - 1, 0x80}, append(hostile, 3)...)} {
		batch := store.NewBatch()
		batch.Set(kvstore.Renderings, rowKey(1, d.Key), value)
		if err := batch.Commit(); err != nil {
			t.Fatal(err)
		}
		before := count.Load()
		x = New(Options{Store: store, Render: counting(&count)})
		if r, err := x.Render(t.Context(), d); err != nil || r.Markup != "<p>hello of jar@1.0.0</p>" || count.Load() != before+1 {
			t.Errorf("%x: %+v, %v, rendered %d times", value, r, err, count.Load()-before)
		}
	}
}
