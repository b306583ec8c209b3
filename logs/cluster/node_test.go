package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/buckets"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

const origin = "cluster.test/log"

func folder(t *testing.T) bucket.Bucket {
	t.Helper()
	b, err := bucket.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A member is a node with its store.
type member struct {
	*Node
	*testkit.Shelf
}

func join(t *testing.T, b bucket.Bucket, name string) *member {
	t.Helper()
	s := testkit.NewShelf(t)
	n, err := Open(t.Context(), options(b, s, name))
	if err != nil {
		t.Fatal(err)
	}
	return &member{n, s}
}

func options(b bucket.Bucket, s *testkit.Shelf, name string) Options {
	return Options{Bucket: b, Store: s.Store, Log: s.Log, Origin: origin, Bootstraps: true, Dictionaries: true, URL: "https://" + name, CommitTimeout: time.Minute, Rest: time.Microsecond, Logger: slog.New(slog.DiscardHandler)}
}

// lead has the member write.
func (m *member) lead(t *testing.T) {
	t.Helper()
	if err := m.Lead(t.Context(), AnyEpoch); err != nil {
		t.Fatal(err)
	}
}

func (m *member) catchUp(t *testing.T) {
	t.Helper()
	if _, err := m.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// publish publishes a release with one file of its own and one that all of the package share.
func (m *member) publish(name, version string) error {
	manifest := &logs.Manifest{Package: name, Version: version, Released: testkit.Released, Source: logs.Source{Type: "import", Name: name}}
	for path, data := range map[string]string{"own.js": name + version, "shared.js": "shared by " + name} {
		if err := put(m.Shelf.Store, data); err != nil {
			return err
		}
		manifest.Files = append(manifest.Files, logs.File{Path: path, Size: int64(len(data)), SHA256: kvstore.Sum([]byte(data)), SRI: logs.SumSRI([]byte(data)), Origin: logs.Upstream})
	}
	encoded, err := manifest.Encode()
	if err != nil {
		return err
	}
	if err := put(m.Shelf.Store, string(encoded)); err != nil {
		return err
	}
	return m.Shelf.Log.Update(func(tx *logs.Tx) error {
		if _, err := views.LookupVersion(m.Shelf.Store, name, version); !errors.Is(err, kvstore.ErrNotFound) {
			return errors.Join(errPublished, err)
		}
		return views.Record(tx, views.Change{Manifest: manifest, Entry: logs.Entry{
			Kind: logs.Published, Time: testkit.Released, Actor: "operator", Package: name, Version: version, Released: testkit.Released, Manifest: kvstore.Sum(encoded),
		}})
	})
}

var errPublished = errors.New("it is published already")

func put(s *kvstore.Store, data string) error {
	return s.PutContent(kvstore.Sum([]byte(data)), int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: []byte(data)}})
}

// has reports whether the member serves a release.
func (m *member) has(name, version string) bool {
	v, err := views.LookupVersion(m.Shelf.Store, name, version)
	return err == nil && v.Withdrawn == nil
}

// same fails the test unless all members have one log, whose store is sound.
func same(t *testing.T, members ...*member) {
	t.Helper()
	for i, m := range members {
		if m.Shelf.Log.Checkpoint() != members[0].Shelf.Log.Checkpoint() {
			t.Errorf("member %d has %v, and the first one %v", i, m.Shelf.Log.Checkpoint(), members[0].Shelf.Log.Checkpoint())
		}
		_, err := check.Run(t.Context(), m.Shelf.Store, check.Options{Deep: true, Temp: t.TempDir()}, func(f check.Finding) { t.Errorf("member %d: %+v", i, f) })
		if err != nil {
			t.Error(err)
		}
	}
}

func TestFollowersHaveWhatTheWriterPublishes(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	one.Register("demo", `{"name":"demo"}`)
	one.Publish("demo", "1.0.0", "demo.js", map[string]string{"demo.js": "demo()", "big.js": strings.Repeat("0123456789abcdef", 1<<16)})
	one.Publish("demo", "1.0.1", "demo.js", map[string]string{"demo.js": "demo()"})
	two.catchUp(t)
	if !two.has("demo", "1.0.0") {
		t.Error("the release is not at the other node")
	}
	one.Withdraw("demo", "1.0.0", "malware")
	two.catchUp(t)
	if two.has("demo", "1.0.0") || !two.has("demo", "1.0.1") {
		t.Error("the withdrawal is not at the other node")
	}
	one.Restore("demo", "1.0.0", "it was none")
	two.catchUp(t)
	three := join(t, b, "three") // an empty node follows all of it
	three.catchUp(t)
	same(t, one, two, three)
}

func TestAnotherNodeTakesOver(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	var not *NotWriterError
	if err := one.publish("a", "1.0.0"); !errors.As(err, &not) {
		t.Errorf("publishing without a writer: %v", err)
	}
	one.lead(t)
	if err := one.publish("a", "1.0.0"); err != nil {
		t.Fatal(err)
	}
	two.lead(t)
	if !two.has("a", "1.0.0") {
		t.Error("the new writer lacks what was published before")
	}
	if err := two.publish("a", "1.0.1"); err != nil {
		t.Fatal(err)
	}
	if !one.Leads() {
		t.Error("the old writer knows already that it is none") // it was paused, as it were
	}
	if err := one.publish("a", "1.0.2"); !errors.As(err, &not) {
		t.Errorf("the old writer publishes: %v", err)
	}
	if one.Leads() {
		t.Error("the old writer still believes that it leads")
	}
	one.catchUp(t)
	if one.has("a", "1.0.2") || !one.has("a", "1.0.1") {
		t.Error("the old writer has other releases")
	}
	same(t, one, two)
}

// A commit is in doubt when its put is; its number is settled before anything else is published.
func TestInDoubt(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault buckets.Fault
	}{{"the answer is lost", buckets.LostAnswer}, {"it lands late", buckets.Late}, {"it is lost", buckets.Never}} {
		t.Run(test.name, func(t *testing.T) {
			f := &buckets.Faulty{Bucket: folder(t)}
			one := join(t, f, "one")
			one.lead(t)
			failed := 0
			f.SetFaults(func(write bool, key string) buckets.Fault {
				if write && strings.HasPrefix(key, "commit/") && failed == 0 {
					failed++
					return test.fault
				}
				return buckets.None
			})
			if err := one.publish("a", "1.0.0"); err != nil {
				t.Fatal(err)
			}
			f.Land()
			if err := one.publish("a", "1.0.1"); err != nil || failed != 1 {
				t.Fatal(err, failed)
			}
			two := join(t, f, "two")
			two.catchUp(t)
			same(t, one, two)
		})
	}
}

// While the store is away, the publication that is in doubt is told to be, and others are refused;
// afterwards it goes on by itself.
func TestStoreAway(t *testing.T) {
	var mu sync.Mutex
	away := false
	f := &buckets.Faulty{Bucket: folder(t)}
	f.SetFaults(func(write bool, key string) buckets.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !away || strings.HasPrefix(key, "pack/"):
			return buckets.None
		case write:
			return buckets.Late
		}
		return buckets.Never
	})
	set := func(to bool) { mu.Lock(); away = to; mu.Unlock() }
	one := join(t, f, "one")
	one.Node.CommitTimeout = time.Second
	one.lead(t)
	set(true)
	one.Node.CommitTimeout = 20 * time.Millisecond
	if err := one.publish("a", "1.0.0"); !errors.Is(err, logs.ErrUnconfirmed) {
		t.Fatalf("publishing while the store is away: %v", err)
	}
	if err := one.publish("a", "1.0.1"); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("publishing while another is in doubt: %v", err)
	}
	if one.has("a", "1.0.0") {
		t.Error("what is in doubt is served")
	}
	set(false)
	one.Node.CommitTimeout = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := one.Shelf.Log.Wait(ctx, 0); err != nil {
		t.Fatal("what was in doubt does not come", err)
	}
	if !one.has("a", "1.0.0") || one.has("a", "1.0.1") {
		t.Error("it is not what was in doubt that is served")
	}
	for errors.Is(one.publish("a", "1.0.2"), ErrUnavailable) && ctx.Err() == nil { // until the node has noticed
	}
	two := join(t, f.Bucket, "two")
	two.catchUp(t)
	same(t, one, two)
}

// Updates that wait for a commit share the next one.
func TestGroupCommit(t *testing.T) {
	f := &buckets.Faulty{Bucket: folder(t)}
	commits, first, gate := 0, make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	f.SetFaults(func(write bool, key string) buckets.Fault {
		if write && strings.HasPrefix(key, "commit/") {
			mu.Lock()
			commits++
			n := commits
			mu.Unlock()
			if n == 2 { // the first is the fence
				close(first)
				<-gate
			}
		}
		return buckets.None
	})
	one := join(t, f, "one")
	one.lead(t)
	var running sync.WaitGroup
	publish := func(name, version string) {
		running.Go(func() {
			if err := one.publish(name, version); err != nil {
				t.Error(err)
			}
		})
	}
	publish("a", "1.0.0")
	<-first
	for i := range 20 {
		publish(fmt.Sprint("p", i), "1.0.0")
	}
	publish("a", "1.0.1")
	publish("a", "1.0.2") // of one package: not together with the one before
	var twice error
	running.Go(func() { twice = one.publish("a", "1.0.0") })
	for one.Shelf.Log.Waiting() < 24 {
		time.Sleep(time.Millisecond)
	}
	close(gate)
	running.Wait()
	if !errors.Is(twice, errPublished) {
		t.Errorf("a release was published twice: %v", twice)
	}
	if commits != 4 { // the fence, the first, one of 21 packages, one of the last
		t.Errorf("%d commits", commits)
	}
	two := join(t, f.Bucket, "two")
	two.catchUp(t)
	same(t, one, two)
}

func TestForeignBuckets(t *testing.T) {
	t.Run("another log", func(t *testing.T) {
		b := folder(t)
		join(t, b, "one")
		o := options(b, testkit.NewShelf(t), "two")
		o.Origin = "other.test/log"
		if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--bucket") || !strings.Contains(err.Error(), origin) {
			t.Error(err)
		}
	})
	t.Run("a newer format", func(t *testing.T) {
		b := folder(t)
		one := join(t, b, "one")
		if err := b.Put(t.Context(), commitKey(0), []byte(`{"format":2}`)); err != nil {
			t.Fatal(err)
		}
		var format *FormatError
		if _, err := one.CatchUp(t.Context()); !errors.As(err, &format) {
			t.Error(err)
		}
	})
	t.Run("a log of its own", func(t *testing.T) {
		b := folder(t)
		one := join(t, b, "one")
		one.lead(t)
		one.Register("demo", `{"name":"demo"}`)
		s := testkit.NewShelf(t)
		s.Publish("demo", "1.0.0", "", map[string]string{"demo.js": "demo()"})
		if _, err := Open(t.Context(), options(b, s, "two")); err == nil || !strings.Contains(err.Error(), "empty data folder") {
			t.Error("a store with a log that is not the bucket's was taken:", err)
		}
	})
}

// Nothing of what a bucket may have been made to say gets into a store.
func TestTampering(t *testing.T) {
	tamper := map[string]func(t *testing.T, b bucket.Bucket, c *Commit){
		"an entry is gone":      func(_ *testing.T, _ bucket.Bucket, c *Commit) { c.Entries = c.Entries[1:] },
		"entries change places": func(_ *testing.T, _ bucket.Bucket, c *Commit) { slices.Reverse(c.Entries) },
		"an entry is another":   func(_ *testing.T, _ bucket.Bucket, c *Commit) { c.Entries[0][40] ^= 1 },
		"the root is another":   func(_ *testing.T, _ bucket.Bucket, c *Commit) { c.After.Root[0] ^= 1 },
		"it is for another log": func(_ *testing.T, _ bucket.Bucket, c *Commit) { c.Before.Root[0] ^= 1 },
		"the epoch falls":       func(_ *testing.T, _ bucket.Bucket, c *Commit) { c.Epoch = 0 },
		"a pack is gone":        func(_ *testing.T, _ bucket.Bucket, c *Commit) { c.Packs = nil },
		"a pack is elsewhere":   func(_ *testing.T, _ bucket.Bucket, c *Commit) { c.Packs[0].Key = "side/1" },
		"a pack is other bytes": func(t *testing.T, b bucket.Bucket, c *Commit) {
			if err := b.Put(t.Context(), c.Packs[0].Key, []byte("other")); err != nil {
				t.Fatal(err)
			}
		},
		"a pack has other contents": func(t *testing.T, b bucket.Bucket, c *Commit) {
			data, _, err := b.Get(t.Context(), c.Packs[0].Key, maxPack)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)-1] ^= 1
			c.Packs[0].Hash = kvstore.Sum(data)
			if err := b.Put(t.Context(), c.Packs[0].Key, data); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, name := range slices.Sorted(maps.Keys(tamper)) {
		t.Run(name, func(t *testing.T) {
			b := folder(t)
			one := join(t, b, "one")
			one.lead(t)
			if err := one.Shelf.Log.Update(func(tx *logs.Tx) error {
				for _, v := range []string{"1.0.0", "1.0.1"} {
					if err := views.Record(tx, views.Change{Entry: logs.Entry{Kind: logs.Detected, Time: testkit.Released, Actor: "bot", Package: "a", Version: v}}); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := one.publish("a", "1.0.0"); err != nil {
				t.Fatal(err)
			}
			number := int64(1) // the two entries
			if strings.Contains(name, "pack") {
				number = 2
			}
			c, err := one.readCommit(t.Context(), number)
			if err != nil {
				t.Fatal(err)
			}
			tamper[name](t, b, &c)
			data, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Put(t.Context(), commitKey(number), data); err != nil {
				t.Fatal(err)
			}
			two := join(t, b, "two")
			if _, err := two.CatchUp(t.Context()); err == nil {
				t.Error("it was applied")
			} else {
				t.Log(err)
			}
			if at, err := two.NextCommit(); err != nil || at != number {
				t.Errorf("the node is at %d, %v", at, err)
			}
			same(t, two)
		})
	}
}

// Members publish and take over from one another while requests fail, answers are lost and writes
// land late. In the end all have one log, with each publication that was acknowledged.
func TestStorm(t *testing.T) {
	publications, seeds := 12, 3
	if n, err := strconv.Atoi(os.Getenv("LARDER_TEST_STORM")); err == nil {
		publications, seeds = 200, n
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { storm(t, uint64(seed), publications) })
	}
}

func storm(t *testing.T, seed uint64, publications int) {
	quiet := folder(t)
	f := &buckets.Faulty{Bucket: quiet}
	var members []*member
	for i := range 3 {
		m := join(t, f, fmt.Sprint("node-", i))
		m.Node.CommitTimeout = 5 * time.Millisecond
		members = append(members, m)
	}
	f.SetFaults(buckets.Randomly(seed, 6))
	var mu sync.Mutex
	acked, refused := map[string]bool{}, map[string]bool{}
	tried := 0 // publications by members that lead, since a member took over
	takesOver := func() bool {
		mu.Lock()
		defer mu.Unlock()
		leading := slices.ContainsFunc(members, func(m *member) bool { return m.Leads() })
		if leading && tried < 5 {
			return false
		}
		tried = 0
		return true
	}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(acked) >= publications
	}
	var running sync.WaitGroup
	for i, m := range members {
		running.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for round := 0; !enough() && t.Context().Err() == nil; round++ {
				version := fmt.Sprintf("1.%d.%d", i, round)
				switch k := r.IntN(20); {
				case k == 0 && takesOver():
					m.Lead(t.Context(), AnyEpoch) //nolint:errcheck // it fails as the bucket does
				case k == 1:
					f.Land()
				case k < 5:
					m.CatchUp(t.Context()) //nolint:errcheck // as above
				case !m.Leads() && k > 5:
					runtime.Gosched()
				default:
					err := m.publish("storm", version)
					mu.Lock()
					tried++
					switch {
					case err == nil:
						acked[version] = true
					case !errors.Is(err, logs.ErrUnconfirmed):
						refused[version] = true
					}
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	f.Land()
	f.SetFaults(nil)
	for _, m := range members { // what is in doubt settles behind the new writer's fence at the latest
		m.lead(t)
	}
	for _, m := range members {
		m.catchUp(t)
		for version := range acked {
			if !m.has("storm", version) {
				t.Errorf("%s lacks %s, which was acknowledged", m.URL, version)
			}
		}
		for version := range refused {
			if m.has("storm", version) {
				t.Errorf("%s has %s, which was refused", m.URL, version)
			}
		}
	}
	same(t, members...)
	t.Logf("%d acknowledged, %d refused, %d commits", len(acked), len(refused), len(list(t, quiet)))
}

func list(t *testing.T, b bucket.Bucket) (keys []string) {
	for o, err := range b.List(t.Context(), "commit/", "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// What a store's owner pays for: a publication is two writes, however many files it has, and a look
// for the next commit is one read.
func TestRequests(t *testing.T) {
	var mu sync.Mutex
	var requests []string
	f := &buckets.Faulty{Bucket: folder(t)}
	f.SetFaults(func(write bool, key string) buckets.Fault {
		mu.Lock()
		defer mu.Unlock()
		kind, _, _ := strings.Cut(key, "/")
		requests = append(requests, map[bool]string{true: "put ", false: "get "}[write]+kind)
		return buckets.None
	})
	one, two := join(t, f, "one"), join(t, f, "two")
	one.lead(t)
	two.catchUp(t)
	count := func(what string, fn func(), want ...string) {
		t.Helper()
		requests = nil
		fn()
		if !slices.Equal(requests, want) {
			t.Errorf("%s took %q, not %q", what, requests, want)
		}
	}
	files := map[string]string{}
	for i := range 300 {
		files[fmt.Sprint(i, ".js")] = fmt.Sprint("file ", i)
	}
	count("a publication of 300 files", func() { one.Publish("a", "1.0.0", "", files) }, "put pack", "put commit")
	count("one with no new file", func() { one.Publish("a", "1.0.1", "", files) }, "put pack", "put commit") // its manifest
	count("a withdrawal", func() { one.Withdraw("a", "1.0.0", "malware") }, "put commit")
	count("following them", func() { two.catchUp(t) }, "get commit", "get pack", "get commit", "get pack", "get commit", "get commit")
	count("looking for more", func() { two.catchUp(t) }, "get commit")
}
