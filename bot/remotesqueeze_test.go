package bot_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// What is leased to another node is leased once. What comes back is done, and what does not come back is done here.
func TestSqueezingIsLent(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.txt"))
	files := map[string]string{"huge.txt": strings.Repeat("huge ", 1<<20)}
	for i := range 3 {
		files[fmt.Sprintf("%d.txt", i)] = strings.Repeat(fmt.Sprintf("Line %d is compressible.\n", i), 200)
	}
	r.registry.Add("a", "1.0.0", hour(1), files)
	r.open()
	r.once()
	left := func(want int) {
		t.Helper()
		if s, err := recompression.ReadQueue(r.store); err != nil || s.Contents != want || r.bot.Backlog() != want {
			t.Errorf("%d contents are left, and %d by the bot, want %d; %v", s.Contents, r.bot.Backlog(), want, err)
		}
	}
	left(4)
	var leased []kvstore.Hash
	for range 3 {
		h, ok, err := r.bot.OfferContent()
		if err != nil || !ok {
			t.Fatal(h, ok, err)
		}
		leased = append(leased, h)
	}
	if leased[0] == leased[1] || leased[1] == leased[2] || leased[0] == leased[2] {
		t.Errorf("leased twice: %v", leased)
	}
	if h, ok, err := r.bot.OfferContent(); ok || err != nil {
		t.Errorf("leased besides: %v, %v", h, err)
	}
	for range 2 { // the answer of the node that writes may be lost
		data, err := r.store.Identity(leased[0])
		if err != nil {
			t.Fatal(err)
		}
		small, err := coding.Encode(coding.Brotli, coding.Best, data)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.bot.StoreOffered(context.Background(), leased[0], int64(len(data)), []kvstore.Coded{{Coding: coding.Brotli, Bytes: small}}); err != nil {
			t.Fatal(err)
		}
		if c, err := r.store.Content(leased[0]); err != nil || !c.Squeezed || len(c.Representations) == 0 || c.Representations[0].Length > int64(len(small)) {
			t.Errorf("%+v, %v", c, err)
		}
		left(3)
	}
	var kept kvstore.Hash // it was leased to no node
	for text := range maps.Values(files) {
		if h := kvstore.Sum([]byte(text)); !slices.Contains(leased, h) {
			kept = h
		}
	}
	poor, err := coding.Encode(coding.Brotli, coding.Quick, []byte(files["huge.txt"]))
	if err == nil {
		err = r.bot.StoreOffered(context.Background(), kept, int64(len(files["huge.txt"])), []kvstore.Coded{{Coding: coding.Brotli, Bytes: poor}})
	}
	if c, failed := r.store.Content(kept); err != nil || failed != nil || c.Squeezed {
		t.Errorf("a content that was not leased: %+v, %v, %v", c, failed, err)
	}
	left(3)
	if err := r.bot.StoreOffered(context.Background(), kvstore.Sum([]byte("never here")), 10, nil); err != nil {
		t.Errorf("a content that was erased: %v", err)
	}
	if sum, err := r.bot.RecompressAll(context.Background()); err != nil || sum.Contents != 3 || sum.Left != 0 {
		t.Errorf("squeezed %+v, %v", sum, err)
	}
	left(0)
}

// A node that takes contents and never squeezes one keeps few of them from others.
func TestLentIsBounded(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.txt"))
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("%d.txt", i)] = strings.Repeat(fmt.Sprintf("Line %d is compressible.\n", i), 20)
	}
	r.registry.Add("a", "1.0.0", hour(1), files)
	r.open()
	r.once()
	last, again := map[kvstore.Hash]int{}, 0
	for i := range 150 {
		h, ok, err := r.bot.OfferContent()
		if err != nil || !ok {
			t.Fatal(h, ok, err)
		}
		if before, leased := last[h]; leased {
			again++
			if i-before < 64 {
				t.Errorf("%v is leased as number %d and %d", h, before, i)
			}
		}
		last[h] = i
	}
	if again == 0 {
		t.Error("what never comes back stays leased")
	}
}
