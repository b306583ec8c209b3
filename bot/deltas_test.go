package bot_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/recompression"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

// TestDeltasAreMade tests that the files of a release get deltas against the releases before it, and those of later releases against one that is published
// afterwards, unless dictionaries are disabled.
func TestDeltasAreMade(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprintf("disabled %v", off), func(t *testing.T) {
			r := newRig(t)
			r.dictionaries = !off
			r.newest = 10
			r.register("a", fromNpm("a", "*.js"))
			for i, version := range []string{"1.0.0", "2.0.0", "2.0.1", "2.1.0"} {
				r.registry.Add("a", version, hour(i), map[string]string{"a.js": testkit.VersionedScript(version), "equal.js": testkit.VersionedScript("equal"), "small.js": version})
			}
			r.open()
			r.once()
			if _, err := r.bot.RecompressAll(context.Background()); err != nil {
				t.Fatal(err)
			}
			for version, dictionaries := range map[string][]string{"1.0.0": nil, "2.0.0": {"1.0.0"}, "2.0.1": {"2.0.0", "1.0.0"}, "2.1.0": {"2.0.1", "1.0.0"}} {
				file, err := views.LookupFile(r.store, "a", version, "a.js")
				if err != nil {
					t.Fatal(err)
				}
				deltas, err := r.store.Deltas(file.Hash)
				if err != nil {
					t.Fatal(err)
				}
				if off {
					dictionaries = nil
				}
				if len(deltas) != len(dictionaries) {
					t.Errorf("%s has %d deltas, want %d", version, len(deltas), len(dictionaries))
				}
				for _, before := range dictionaries {
					i := slices.IndexFunc(deltas, func(d kvstore.Delta) bool {
						return d.Dictionary == kvstore.Sum([]byte(testkit.VersionedScript(before)))
					})
					if i < 0 {
						t.Errorf("%s has no delta against %s", version, before)
						continue
					}
					delta, err := r.store.ReadDelta(file.Hash, deltas[i].Sum)
					if err != nil {
						t.Fatal(err)
					}
					if got, err := coding.DecodeDelta([]byte(testkit.VersionedScript(before)), delta, file.Size); err != nil || string(got) != testkit.VersionedScript(version) {
						t.Errorf("%s against %s decodes to something else, or %v", version, before, err)
					}
				}
			}
			equal, err := r.store.Deltas(kvstore.Sum([]byte(testkit.VersionedScript("equal"))))
			if err != nil || (len(equal) == 1) == off {
				t.Errorf("a file that never changed has the deltas %v, %v; want one against itself", equal, err)
			}
			for _, prefix := range []string{"n", "d"} {
				for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{Prefix: []byte(prefix)}) {
					t.Errorf("the queue still has %x, %v", item.Key, err)
				}
			}
			if off {
				return
			}
			damageDelta(t, r.store, kvstore.Sum([]byte(testkit.VersionedScript("2.0.0"))), kvstore.Sum([]byte(testkit.VersionedScript("1.0.0"))))
			var found []check.Finding
			_, err = check.Run(context.Background(), r.store, check.Options{Deep: true, Temp: t.TempDir()}, func(f check.Finding) { found = append(found, f) })
			if err != nil || len(found) != 1 || found[0].Kind != check.Content {
				t.Errorf("a damaged delta gives the findings %v, %v", found, err)
			}
		})
	}
}

// damageDelta replaces the bytes of a delta.
func damageDelta(t *testing.T, store *kvstore.Store, h, dictionary kvstore.Hash) {
	t.Helper()
	b := store.NewBatch()
	b.Set(kvstore.Blobs, append(append(bytes.Clone(h[:]), byte(coding.DCZ)), dictionary[:]...), []byte("damaged"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

// TestDeltasAreMadeThoughContentsLeaveTheQueue tests that deltas are made after another package has deleted rows of the queue of contents: a node of a
// cluster does that with contents that another node has recompressed.
func TestDeltasAreMadeThoughContentsLeaveTheQueue(t *testing.T) {
	r := newRig(t)
	r.dictionaries = true
	r.newest = 10
	r.register("a", fromNpm("a", "*.js"))
	for i, version := range []string{"1.0.0", "2.0.0"} {
		r.registry.Add("a", version, hour(i), map[string]string{"a.js": testkit.VersionedScript(version), "small.js": version})
	}
	r.open()
	r.once()
	before := r.bot.Backlog()
	small := kvstore.Sum([]byte("1.0.0"))
	batch := r.store.NewBatch()
	defer batch.Close()
	for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasSuffix(item.Key, small[:]) {
			batch.Delete(kvstore.Queue, bytes.Clone(item.Key))
		}
	}
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	if sum, err := r.bot.RecompressAll(context.Background()); err != nil || sum.Contents != before-1 {
		t.Fatalf("%d of %d contents were recompressed, %v; want all but one", sum.Contents, before, err)
	}
	if got := r.bot.Backlog(); got != 0 {
		t.Errorf("%d contents wait, and the queue is empty", got)
	}
	file, err := views.LookupFile(r.store, "a", "2.0.0", "a.js")
	if err != nil {
		t.Fatal(err)
	}
	if deltas, err := r.store.Deltas(file.Hash); err != nil || len(deltas) != 1 {
		t.Errorf("2.0.0 has %d deltas, %v; want one", len(deltas), err)
	}
}

// TestReleasesAreQueuedForDeltas tests that releases are queued again from an entry of the log on, and that the queue says when
// all their deltas are made.
func TestReleasesAreQueuedForDeltas(t *testing.T) {
	r := newRig(t)
	r.dictionaries = true
	r.newest = 10
	r.register("a", fromNpm("a", "*.js"))
	for i, version := range []string{"1.0.0", "2.0.0", "2.0.1"} {
		r.registry.Add("a", version, hour(i), map[string]string{"a.js": testkit.VersionedScript(version)})
	}
	r.open()
	r.once()
	for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{Prefix: []byte("n")}) { // as if another node had published them
		if err != nil {
			t.Fatal(err)
		}
		b := r.store.NewBatch()
		b.Delete(kvstore.Queue, bytes.Clone(item.Key))
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	queued := func(want bool) {
		t.Helper()
		if got, err := recompression.DeltasQueued(r.store); got != want || err != nil {
			t.Errorf("deltas are queued: %t, %v; want %t", got, err, want)
		}
	}
	queued(false)
	if err := r.bot.QueueReleases(r.log.Checkpoint().Size); err != nil {
		t.Fatal(err)
	}
	queued(false)
	if err := r.bot.QueueReleases(0); err != nil {
		t.Fatal(err)
	}
	queued(true)
	if _, err := r.bot.RecompressAll(context.Background()); err != nil {
		t.Fatal(err)
	}
	queued(false)
	for version, want := range map[string]int{"1.0.0": 0, "2.0.0": 1, "2.0.1": 2} {
		if deltas, err := r.store.Deltas(kvstore.Sum([]byte(testkit.VersionedScript(version)))); err != nil || len(deltas) != want {
			t.Errorf("%s has %d deltas, %v; want %d", version, len(deltas), err, want)
		}
	}
}

// TestQueuedReleasesWakeTheRecompressor tests that a recompressor that waits for new contents makes the deltas of releases that are queued again.
func TestQueuedReleasesWakeTheRecompressor(t *testing.T) {
	r := newRig(t)
	r.dictionaries = true
	r.newest = 10
	r.register("a", fromNpm("a", "*.js"))
	for i, version := range []string{"1.0.0", "2.0.0"} {
		r.registry.Add("a", version, hour(i), map[string]string{"a.js": testkit.VersionedScript(version)})
	}
	r.open()
	r.once()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.bot.Recompressor.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	awaitNone := func(when string) {
		t.Helper()
		for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			queued, err := recompression.DeltasQueued(r.store)
			if err != nil {
				t.Fatal(err)
			}
			if !queued {
				return
			}
			if time.Since(start) > 10*time.Minute { // far longer than anything takes
				t.Fatalf("deltas are still queued %s", when)
			}
		}
	}
	awaitNone("after the releases were published")
	time.Sleep(100 * time.Millisecond) // so that it waits
	if err := r.bot.QueueReleases(0); err != nil {
		t.Fatal(err)
	}
	awaitNone("after they were queued again")
}
