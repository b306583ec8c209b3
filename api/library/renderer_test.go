package library

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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

// Clients.
var (
	alice = netip.MustParsePrefix("192.0.2.1/32")
	bob   = netip.MustParsePrefix("192.0.2.2/32")
)

// note is a document that is rendered as itself.
func note(text string) RenderRequest {
	return RenderRequest{Kind: document.Readme, Key: document.NewKey(document.Readme, text), Owner: "jar@1.0.0", Request: func(context.Context) (document.Request, error) {
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
		x := NewRenderer(RendererOptions{Store: store, Render: counting(&count)})
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
	x := NewRenderer(RendererOptions{Store: store, Render: counting(&count)})
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
	x := NewRenderer(RendererOptions{Store: openStore(t, t.TempDir(), false), Render: counting(&count)})
	now := time.Unix(1e9, 0)
	x.now = func() time.Time { return now }
	for attempt := range int64(3) {
		_, err := x.Get(alice, note("later"))
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
		_, err = x.Get(alice, note("later"))
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
	x := NewRenderer(RendererOptions{Store: openStore(t, dir, true), Render: counting(&count)})
	for range 2 {
		if r, err := x.Render(t.Context(), note("hello")); err != nil || r.Markup == "" {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if count.Load() != 1 {
		t.Errorf("rendered %d times", count.Load())
	}
}

// newQueue returns a renderer that counts what it renders.
func newQueue(t *testing.T, count *atomic.Int64) *Renderer {
	t.Helper()
	return NewRenderer(RendererOptions{Store: openStore(t, t.TempDir(), false), Render: counting(count)})
}

// request requests a document and returns what there is to wait for.
func request(t *testing.T, x *Renderer, client netip.Prefix, text string) *PendingError {
	t.Helper()
	_, err := x.Get(client, note(text))
	pending, ok := errors.AsType[*PendingError](err)
	if !ok {
		t.Fatalf("%s: %v", text, err)
	}
	return pending
}

// TestQueueIsBounded checks that what is requested waits in a bounded queue, once each, and that no client takes the places of others.
func TestQueueIsBounded(t *testing.T) {
	var count atomic.Int64
	x := newQueue(t, &count)
	var waits []*PendingError
	for c := range 9 {
		client := netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(c)}), 32)
		for i := range maxOfClient + 10 {
			for range 2 {
				pending := request(t, x, client, fmt.Sprint(c, i))
				if (pending.Done == nil) != (i >= maxOfClient || c == 8) {
					t.Fatalf("client %d, document %d: %v", c, i, pending.Done)
				}
				waits = append(waits, pending)
			}
		}
	}
	if x.queue.places != maxQueue || len(x.queue.jobs) != maxQueue {
		t.Errorf("%d documents wait", x.queue.places)
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
	if count.Load() != maxQueue || len(x.queue.jobs) != 0 || x.queue.places != 0 {
		t.Errorf("%d were rendered, and %d are left", count.Load(), len(x.queue.jobs))
	}
	if r, err := x.Get(alice, note("0 0")); err != nil || r.Markup == "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestQueueTakesTurns checks that a client's document does not wait for all of another client's, and that what all who wait for it have left
// is not rendered.
func TestQueueTakesTurns(t *testing.T) {
	var count atomic.Int64
	x := newQueue(t, &count)
	request(t, x, alice, "first")
	shared := request(t, x, alice, "shared")
	gone := request(t, x, alice, "gone")
	request(t, x, alice, "last")
	request(t, x, bob, "shared")
	request(t, x, bob, "bob's")
	shared.Leave() // bob still waits
	gone.Leave()
	<-gone.Done
	gone.Leave() // again
	var order []document.Key
	for j := x.queue.takeNext(); j != nil; j = x.queue.takeNext() {
		order = append(order, j.Key)
		x.queue.endJob(j)
	}
	var want []document.Key
	for _, text := range []string{"first", "shared", "last", "bob's"} {
		want = append(want, note(text).Key)
	}
	if !slices.Equal(order, want) || x.queue.places != 0 || len(x.queue.jobs) != 0 {
		t.Errorf("%d documents in another order than first, shared, last, bob's; %d places are taken", len(order), x.queue.places)
	}
}

// TestCacheIsBounded holds that the cache has no more bytes than it may, and that what is in use stays.
func TestCacheIsBounded(t *testing.T) {
	store := openStore(t, t.TempDir(), false)
	const most = 40 << 10
	c := renderCache{kv: store, most: most}
	used := note("in use")
	put := func(d RenderRequest, text string) {
		t.Helper()
		if err := c.store(d.Key, entry{refused: text}); err != nil {
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
		if _, ok := c.load(document.Readme, used.Key); !ok {
			t.Fatalf("what is in use is gone after %d", i)
		}
		if i%100 == 50 { // a restart goes on where the last one was
			c = renderCache{kv: store, most: most}
		}
		if n, bytes := rows(); bytes > most+2000 {
			t.Fatalf("%d rows have %d bytes", n, bytes)
		}
	}
	if _, ok := c.load(document.Readme, note("0").Key); ok {
		t.Error("the oldest is still there")
	}
	if _, ok := c.load(document.Readme, note("299").Key); !ok {
		t.Error("the newest is gone")
	}
}

// TestDamagedCache holds that what was changed in the store is rendered again, and never shown.
func TestDamagedCache(t *testing.T) {
	store := openStore(t, t.TempDir(), false)
	var count atomic.Int64
	x := NewRenderer(RendererOptions{Store: store, Render: counting(&count)})
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
		x = NewRenderer(RendererOptions{Store: store, Render: counting(&count)})
		if r, err := x.Render(t.Context(), d); err != nil || r.Markup != "<p>hello of jar@1.0.0</p>" || count.Load() != before+1 {
			t.Errorf("%x: %+v, %v, rendered %d times", value, r, err, count.Load()-before)
		}
	}
}

// TestQueuedModules checks that a module that waits is not in memory: it is read by its hash when it is rendered.
func TestQueuedModules(t *testing.T) {
	source := []byte("import './lid.js'")
	rendered := make(chan string, 1)
	x := NewRenderer(RendererOptions{Store: openStore(t, t.TempDir(), false), Render: func(_ context.Context, _ string, r document.Request) (document.Result, error) {
		rendered <- r.Text
		return document.Result{Kind: r.Kind}, nil
	}})
	var reads atomic.Int64
	var waits *PendingError
	find := x.Documents(alice, func(h kvstore.Hash) ([]byte, error) {
		reads.Add(1)
		if h != kvstore.Sum(source) {
			return nil, kvstore.ErrNotFound
		}
		return source, nil
	}, func(pending *PendingError) { waits = pending }).Imports
	if _, pending, err := find(t.Context(), "jar@1.0.0", kvstore.Sum(source), source); err != nil || !pending || reads.Load() != 0 {
		t.Fatalf("pending: %v, %v, and it was read %d times", pending, err, reads.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { x.Run(ctx) })
	<-waits.Done
	cancel()
	running.Wait()
	if got := <-rendered; got != string(source) || reads.Load() != 1 {
		t.Errorf("%q was rendered, and it was read %d times", got, reads.Load())
	}
}
