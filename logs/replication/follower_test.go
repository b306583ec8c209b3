package replication_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/views"
)

func TestCatchUp(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	m := newMirror(t, u.url)
	if s := m.State(); s.Ready || s.Entries != 0 {
		t.Errorf("before: %+v", s)
	}
	if _, err := m.Checkpoint(); err == nil {
		t.Error("it shows a checkpoint before it has anything")
	}
	m.catchUp(t)
	m.same(t, u)
	s := m.State()
	if !s.Ready || s.Entries != u.Log.Checkpoint().Size || s.Of != s.Entries || s.Problem != "" || s.Key != u.signer.Key() || !s.FirstUse {
		t.Errorf("after: %+v", s)
	}
	// What is withdrawn by then is not fetched, and told apart from what is lost.
	if _, err := m.Store.Content(kvstore.Sum([]byte("steal()"))); err == nil {
		t.Error("it has the malware")
	}
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": "vue three point two"})
	u.signNow(t)
	m.catchUp(t)
	m.same(t, u)
	m.again(t, u.url)
	if s := m.State(); !s.Ready || s.FirstUse || s.Key != u.signer.Key() {
		t.Errorf("at the next start: %+v", s)
	}
	m.catchUp(t)
	m.same(t, u)
}

func TestMirrorOfAMirror(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	first := newMirror(t, u.url)
	first.catchUp(t)
	between := &upstream{Shelf: first.Shelf}
	between.serve(t, first)
	second := newMirror(t, between.url)
	second.catchUp(t)
	second.same(t, u)
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": "vue three point two"})
	u.signNow(t)
	first.catchUp(t)
	second.catchUp(t)
	second.same(t, u)
}

// Withdrawal, restoration and erasure arrive, by hash too.
func TestWithdrawal(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	m := newMirror(t, u.url)
	m.catchUp(t)
	h := handler(t, m.Store, m)
	is := func(data string, want int) {
		t.Helper()
		status, body := get(t, h, data)
		if status != want || status == http.StatusOK && body != data {
			t.Errorf("%q: %d %q, want %d", data, status, body, want)
		}
		if status, _ := get(t, handler(t, u.Store, u.signer), data); status != want {
			t.Errorf("%q at the source: %d, want %d", data, status, want)
		}
	}
	is("vue three", 200)
	is("steal()", 410)
	is("never published", 404)
	u.Withdraw("vue", "3.0.0", "broken")
	u.signNow(t)
	m.catchUp(t)
	m.same(t, u)
	is("vue three", 410)
	is("MIT", 200)
	u.Restore("vue", "3.0.0", "not broken")
	u.Restore("evil", "1.0.0", "it was a joke")
	u.signNow(t)
	m.catchUp(t)
	m.same(t, u)
	is("vue three", 200)
	is("steal()", 200)
	u.Withdraw("evil", "1.0.0", "it was none")
	u.erase(t, "evil", "1.0.0", "steal()")
	u.Publish("again", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	u.signNow(t)
	m.catchUp(t)
	m.same(t, u)
	is("steal()", 410)
	if _, err := m.Store.Content(kvstore.Sum([]byte("steal()"))); err == nil {
		t.Error("what was erased is still there")
	}
	// What was erased comes back with another release.
	u.Publish("again", "1.0.1", "a.js", map[string]string{"a.js": "steal()"})
	u.signNow(t)
	m.catchUp(t)
	m.same(t, u)
	is("steal()", 200)
}

func TestOnly(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	only := func(o *replication.Options) {
		o.Only = func(pkg, version string) bool { return pkg == "vue" && version != "3.1.0" }
	}
	m := newMirror(t, u.url, only)
	m.catchUp(t)
	m.sound(t)
	for _, there := range []struct {
		pkg, version, path string
		want               bool
	}{{"vue", "3.0.0", "vue.js", true}, {"vue", "3.1.0", "vue.js", false}, {"back", "1.0.0", "back.js", false}} {
		if _, err := views.LookupFile(m.Store, there.pkg, there.version, there.path); (err == nil) != there.want {
			t.Errorf("%+v: %v", there, err)
		}
	}
	if _, err := m.Store.Content(kvstore.Sum([]byte("back"))); err == nil {
		t.Error("it has what was left out")
	}
	if status, _ := get(t, handler(t, m.Store, m), "vue three point one"); status != 404 {
		t.Errorf("what was left out is %d", status)
	}
	// What is left out is withdrawn while it is withdrawn, and not for good.
	withdrawn := func(version string) bool {
		v, err := views.LookupVersion(m.Store, "back", version)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			t.Fatal(err)
		}
		return v.Withdrawn != nil
	}
	if withdrawn("1.0.0") {
		t.Error("what was restored, and left out, is withdrawn")
	}
	u.Withdraw("back", "1.0.0", "malware")
	u.signNow(t)
	m.catchUp(t)
	m.sound(t)
	if !withdrawn("1.0.0") {
		t.Error("what was left out is not withdrawn")
	}
	u.Restore("back", "1.0.0", "it was none")
	u.signNow(t)
	m.catchUp(t)
	m.sound(t)
	if withdrawn("1.0.0") {
		t.Error("what was restored again is withdrawn")
	}
	if err := m.Store.WriteVerified([]byte("{}")); err != nil {
		t.Fatal(err)
	}
	m.again(t, u.url) // everything, from now on
	m.catchUp(t)
	m.same(t, u)
	if record, err := m.Store.ReadVerified(); err != nil || record != nil {
		t.Errorf("files of old entries were fetched, and the record of the last deep check stays: %s, %v", record, err)
	}
}

// A second pass over an unchanged source, and one over one new release, request as much of a large log as of a small one.
func TestPassRequestsChangesOnly(t *testing.T) {
	t.Parallel()
	passes := func(entries int) (unchanged, changed int64) {
		u := newUpstream(t)
		u.stock(t)
		for range entries {
			u.Register("vue", `{"name":"vue"}`)
		}
		u.signNow(t)
		var requests atomic.Int64
		served := handler(t, u.Store, u.signer)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			served.ServeHTTP(w, r)
		}))
		t.Cleanup(front.Close)
		m := newMirror(t, front.URL)
		m.catchUp(t)
		requests.Store(0)
		m.catchUp(t)
		unchanged = requests.Swap(0)
		u.Publish("vue", "4.0.0", "vue.js", map[string]string{"vue.js": "vue four"})
		u.signNow(t)
		m.catchUp(t)
		return unchanged, requests.Load()
	}
	unchanged, changed := passes(10)
	still, later := passes(2000)
	if unchanged > 3 || still > 3 || later > changed+8 { // a few hashes of the tree are deeper
		t.Errorf("with few entries %d and %d requests, with 2,000 more %d and %d", unchanged, changed, still, later)
	}
	t.Logf("with few entries %d and %d requests, with 2,000 more %d and %d", unchanged, changed, still, later)
}

func TestKeyChange(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	first := u.signer.Key()
	m := newMirror(t, u.url)
	m.catchUp(t)
	if _, err := u.signer.Rotate(testTime); err != nil {
		t.Fatal(err)
	}
	m.catchUp(t)
	m.same(t, u)
	if m.Key() == first || m.Key() != u.signer.Key() {
		t.Errorf("it trusts %s, want %s", m.Key(), u.signer.Key())
	}
	if changes, err := m.KeyChanges(); err != nil || len(changes) != 1 {
		t.Errorf("changes %+v, %v", changes, err)
	}
	m.again(t, u.url, func(o *replication.Options) { o.Trust.Key = first })
	u.Publish("vue", "3.2.0", "vue.js", map[string]string{"vue.js": "vue three point two"})
	u.signNow(t)
	m.catchUp(t)
	m.same(t, u)
}

// A catch-up that ends anywhere goes on from there.
func TestInterrupted(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	u.erase(t, "evil", "1.0.0", "steal()")
	u.signNow(t)
	m := newMirror(t, u.url)
	m.Follower.Close()
	for allowed := 0; ; allowed++ {
		var left atomic.Int64 // fetches are concurrent
		left.Store(int64(allowed))
		m.open(t, u.url, func(o *replication.Options) {
			o.Source = memorySource{o.Source, func(ctx context.Context, w replication.Wanted) (replication.Found, error) {
				if left.Add(-1) < 0 {
					return replication.Found{}, errStop
				}
				return replication.NewServer(serverOptions(u.url)).Content(ctx, w)
			}}
		})
		err := m.CatchUp(t.Context())
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), errStop.Error()) {
			t.Fatal(err)
		}
		m.soundSoFar(t)
		m.Follower.Close()
	}
	m.same(t, u)
}

// TestOnlyStoredContentsAreCounted tests that contents which the store refuses, because the disk is full, are not counted as fetched.
func TestOnlyStoredContentsAreCounted(t *testing.T) {
	u := newUpstream(t)
	u.Publish("lib", "1.0.0", "lib.js", map[string]string{"lib.js": "some text"})
	u.signNow(t)
	disk := vfs.NewMem()
	setFree := func(bytes uint64) { disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: bytes, TotalBytes: 1 << 40}) }
	setFree(1 << 40)
	store, err := kvstore.Open("store", kvstore.Options{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	m := &mirror{Shelf: testkit.NewShelfOver(t, store), keys: filepath.Join(t.TempDir(), "keys")}
	fill := true // the disk when a file is fetched
	m.open(t, u.url, func(o *replication.Options) {
		honest := replication.NewServer(serverOptions(u.url))
		o.Source = memorySource{o.Source, func(ctx context.Context, w replication.Wanted) (replication.Found, error) {
			if w.File != nil && fill {
				setFree(0)
			}
			return honest.Content(ctx, w)
		}}
	})
	for range 2 {
		setFree(1 << 40)
		if err := m.CatchUp(t.Context()); !errors.Is(err, kvstore.ErrDiskFull) {
			t.Errorf("on a full disk: %v", err)
		}
	}
	fill = false
	setFree(1 << 40)
	m.catchUp(t)
	var stored int64
	for _, err := range store.Scan(kvstore.Contents, kvstore.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		stored++
	}
	if got := m.State().Files; got != stored {
		t.Errorf("%d contents are counted as fetched, and %d are stored", got, stored)
	}
}

// TestContentOfTwoEntries tests that an entry is applied although the fetch of one of its contents ended with a later entry that
// needs the same content and failed.
func TestContentOfTwoEntries(t *testing.T) {
	u := newUpstream(t)
	u.Publish("first", "1.0.0", "first.js", map[string]string{"first.js": "only here", "LICENSE": "the same"})
	size := u.Log.Checkpoint().Size
	u.Publish("second", "1.0.0", "second.js", map[string]string{"second.js": "lost", "LICENSE": "the same"})
	u.signNow(t)
	var once sync.Once
	fetching, waiting := make(chan struct{}), make(chan struct{})
	m := newMirror(t, u.url, func(o *replication.Options) {
		honest := replication.NewServer(serverOptions(u.url))
		o.Source = memorySource{o.Source, func(ctx context.Context, w replication.Wanted) (replication.Found, error) {
			switch {
			case w.Entry.Package == "first" && w.File == nil:
				<-fetching
			case w.Hash == kvstore.Sum([]byte("the same")):
				var interrupted bool
				once.Do(func() {
					close(fetching)
					<-ctx.Done()
					interrupted = true
				})
				if interrupted { // as net/http says it
					return replication.Found{}, context.Cause(ctx)
				}
			case w.Hash == kvstore.Sum([]byte("only here")):
				close(waiting) // the first entry has begun to wait for the other content before
			case w.Hash == kvstore.Sum([]byte("lost")):
				<-waiting
				return replication.Found{}, fmt.Errorf("%w: %w", errStop, fs.ErrNotExist)
			}
			return honest.Content(ctx, w)
		}}
	})
	if err := m.CatchUp(t.Context()); !errors.Is(err, errStop) {
		t.Error(err)
	}
	if got := m.Log.Checkpoint().Size; got != size {
		t.Errorf("the log has %d entries, want %d", got, size)
	}
}

func TestWrongFolders(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	other := newUpstream(t)
	other.Register("other", `{"name":"other"}`)
	other.signNow(t)
	m := newMirror(t, u.url)
	m.catchUp(t)
	m.again(t, other.url)
	if err := m.CatchUp(t.Context()); err == nil || !strings.Contains(err.Error(), "another") && !strings.Contains(err.Error(), "not signed") {
		t.Errorf("another log: %v", err)
	}
	if _, err := replication.Open(replication.Options{Source: replication.NewServer(serverOptions(u.url)), Store: m.Store, Log: m.Log, Keys: u.signer.Folder(), Logger: quiet}); err == nil {
		t.Error("a key folder that signs was taken")
	}
}
