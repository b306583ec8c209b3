// Package buckets has the tests that every [bucket.Bucket] passes, and one that fails as stores do.
package buckets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// Suite tests a bucket that is empty.
func Suite(t *testing.T, b bucket.Bucket) {
	t.Run("objects", func(t *testing.T) { objects(t, b) })
	t.Run("conditions", func(t *testing.T) { conditions(t, b) })
	t.Run("competition", func(t *testing.T) { competition(t, b) })
	t.Run("listing", func(t *testing.T) { listing(t, b) })
	t.Run("keys", func(t *testing.T) { keys(t, b) })
	t.Run("probe", func(t *testing.T) {
		if err := bucket.Probe(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		for o, err := range b.List(t.Context(), "probe/", "") {
			t.Fatalf("the probe has left %v (%v)", o, err)
		}
	})
}

func objects(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	if _, _, err := b.Get(ctx, "a/none", 10); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("what is not there: %v", err)
	}
	if err := b.Delete(ctx, "a/none"); err != nil {
		t.Errorf("deleting what is not there: %v", err)
	}
	for _, body := range [][]byte{[]byte("hello"), {}, bytes.Repeat([]byte("0123456789"), 500_000)} {
		if err := b.Put(ctx, "a/one", body); err != nil {
			t.Fatal(err)
		}
		got, v, err := b.Get(ctx, "a/one", int64(len(body)))
		if err != nil || !bytes.Equal(got, body) || v == "" {
			t.Errorf("%d bytes came back as %d, %q, %v", len(body), len(got), v, err)
		}
		again, same, err := b.GetOther(ctx, "a/one", int64(len(body)), v)
		if err != nil || again != nil || same != v {
			t.Errorf("the version that is known: %d bytes, %q, %v", len(again), same, err)
		}
		if len(body) == 0 {
			continue
		}
		if _, _, err := b.Get(ctx, "a/one", int64(len(body))-1); !errors.Is(err, bucket.ErrTooLarge) {
			t.Errorf("an object that is a byte too large: %v", err)
		}
	}
	if err := b.Delete(ctx, "a/one"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Get(ctx, "a/one", 10); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("what was deleted: %v", err)
	}
}

func conditions(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	first, err := b.Create(ctx, "c/one", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(ctx, "c/one", []byte("2")); !errors.Is(err, bucket.ErrExists) {
		t.Errorf("creating what is there: %v", err)
	}
	second, err := b.Replace(ctx, "c/one", []byte("3"), first)
	if err != nil || second == first {
		t.Errorf("replacing %q made %q, %v", first, second, err)
	}
	if _, err := b.Replace(ctx, "c/one", []byte("4"), first); !errors.Is(err, bucket.ErrChanged) {
		t.Errorf("replacing a version that is gone: %v", err)
	}
	if got, v, err := b.GetOther(ctx, "c/one", 10, first); err != nil || string(got) != "3" || v != second {
		t.Errorf("read %q, %q, %v", got, v, err)
	}
	if _, err := b.Replace(ctx, "c/none", []byte("5"), first); !errors.Is(err, bucket.ErrChanged) {
		t.Errorf("replacing what is not there: %v", err)
	}
}

func competition(t *testing.T, b bucket.Bucket) {
	for n := range 20 {
		var running sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for i := range 8 {
			running.Go(func() {
				_, err := b.Create(t.Context(), fmt.Sprint("race/", n), []byte{byte(i)})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if !errors.Is(err, bucket.ErrExists) {
					t.Error(err)
				}
			})
		}
		running.Wait()
		if won != 1 {
			t.Errorf("%d of 8 writers have created one object", won)
		}
	}
}

func listing(t *testing.T, b bucket.Bucket) {
	ctx := t.Context()
	var want []string
	for i := range 30 {
		key := fmt.Sprintf("list/%02d", i)
		want = append(want, key)
		if err := b.Put(ctx, key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Put(ctx, "list-other", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := list(t, ctx, b, "list/", ""); !slices.Equal(got, want) {
		t.Errorf("listed %q", got)
	}
	if got := list(t, ctx, b, "list/", "list/27"); !slices.Equal(got, want[28:]) {
		t.Errorf("listed %q after list/27", got)
	}
	if got := list(t, ctx, b, "list/1", ""); !slices.Equal(got, want[10:20]) {
		t.Errorf("listed %q of list/1", got)
	}
	if got := list(t, ctx, b, "none/", ""); got != nil {
		t.Errorf("listed %q of nothing", got)
	}
}

func list(t *testing.T, ctx context.Context, b bucket.Bucket, prefix, after string) (keys []string) {
	for o, err := range b.List(ctx, prefix, after) {
		if err != nil {
			t.Fatal(err)
		}
		if o.Size != 1 {
			t.Errorf("%s has %d bytes by the listing", o.Key, o.Size)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

func keys(t *testing.T, b bucket.Bucket) {
	for _, key := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", "a/.lock", ".lock", "a b", "a\x00", "ä", string(bytes.Repeat([]byte("a"), 1000))} {
		if err := b.Put(t.Context(), key, nil); err == nil {
			t.Errorf("%q passed as a key", key)
		}
		if _, _, err := b.Get(t.Context(), key, 1); err == nil || errors.Is(err, bucket.ErrNotFound) {
			t.Errorf("%q was looked for: %v", key, err)
		}
	}
}
