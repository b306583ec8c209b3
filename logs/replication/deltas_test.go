package replication_test

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/verify"
)

// putDelta stores the delta of a version's script against that of another.
func (u *upstream) putDelta(t *testing.T, version, before string) {
	t.Helper()
	if stored, err := u.Store.PutDelta(kvstore.Sum([]byte(testkit.VersionedScript(version))), deltaOf(t, version, before)); err != nil || !stored {
		t.Fatal(stored, err)
	}
}

// deltaOf returns the delta of a version's script against that of another.
func deltaOf(t *testing.T, version, before string) []byte {
	t.Helper()
	delta, err := coding.EncodeDelta([]byte(testkit.VersionedScript(before)), []byte(testkit.VersionedScript(version)))
	if err != nil {
		t.Fatal(err)
	}
	return delta
}

// publishVersions publishes three versions of a library; the second has a delta against the first one and one against itself.
func (u *upstream) publishVersions(t *testing.T) {
	t.Helper()
	for _, version := range []string{"1.0.0", "1.0.1", "1.0.2"} {
		u.Publish("lib", version, "lib.js", map[string]string{"lib.js": testkit.VersionedScript(version)})
	}
	u.putDelta(t, "1.0.1", "1.0.0")
	u.putDelta(t, "1.0.1", "1.0.1")
	u.signNow(t)
}

// dictionariesOf returns for each version the versions against which a store has sound deltas of it.
func dictionariesOf(t *testing.T, store *kvstore.Store) string {
	t.Helper()
	versions := []string{"1.0.0", "1.0.1", "1.0.2"}
	var found []string
	for _, version := range versions {
		h := kvstore.Sum([]byte(testkit.VersionedScript(version)))
		deltas, err := store.Deltas(h)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range deltas {
			i := slices.IndexFunc(versions, func(v string) bool { return kvstore.Sum([]byte(testkit.VersionedScript(v))) == d.Dictionary })
			delta, err := store.ReadDelta(h, d.Sum)
			if err == nil {
				_, err = coding.DecodeDelta([]byte(testkit.VersionedScript(versions[i])), delta, int64(len(testkit.VersionedScript(version))))
			}
			if err != nil {
				t.Error(err)
			}
			found = append(found, version+" against "+versions[i])
		}
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}

// wantNoQueuedDeltas reports deltas that a mirror still wants to fetch.
func (m *mirror) wantNoQueuedDeltas(t *testing.T) {
	t.Helper()
	for item, err := range m.Store.Scan(kvstore.Queue, kvstore.Range{Prefix: kvstore.QueuedDeltas}) {
		t.Errorf("the queue has %x, %v", item.Key, err)
	}
}

// TestDeltas tests that a mirror takes over the deltas of each kind of source that has some, unless dictionaries are disabled.
func TestDeltas(t *testing.T) {
	u := newUpstream(t)
	u.publishVersions(t)
	overHTTP := filepath.Join(t.TempDir(), "http.tar")
	if _, err := replication.WriteBundle(t.Context(), overHTTP, replication.BundleOptions{Source: replication.NewServer(serverOptions(u.url)), Trust: verify.Trust{Key: u.signer.Key()}}); err != nil {
		t.Fatal(err)
	}
	const want = "1.0.1 against 1.0.0, 1.0.1 against 1.0.1"
	for name, source := range map[string]replication.Source{
		"server": replication.NewServer(serverOptions(u.url)), "folder": replication.FromStore(u.Store, "folder"),
		"bundle": openBundle(t, bundleOf(t, u, 0)), "bundle of a server": openBundle(t, overHTTP),
	} {
		for _, enabled := range []bool{true, false} {
			m := newMirror(t, "", func(o *replication.Options) { o.Source, o.Dictionaries = source, enabled })
			if err := m.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := dictionariesOf(t, m.Store)
			if enabled && got != want || !enabled && got != "" {
				t.Errorf("%s, enabled: %v: the mirror has %q, the source %q", name, enabled, got, want)
			}
			m.wantNoQueuedDeltas(t)
			m.sound(t)
		}
	}
}

// TestDeltasComeLater tests that a mirror takes over deltas that its source makes after the release, with the smaller encodings, and that it fetches again one
// that was damaged.
func TestDeltasComeLater(t *testing.T) {
	at := testkit.Released.Add(time.Minute)
	u := newUpstream(t)
	u.publishVersions(t)
	m := newMirror(t, u.url, func(o *replication.Options) { o.Now, o.Dictionaries = func() time.Time { return at }, true })
	if err := m.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	u.putDelta(t, "1.0.2", "1.0.1")
	at = at.Add(2 * time.Hour)
	for _, want := range []string{"1.0.1 against 1.0.0, 1.0.1 against 1.0.1", "1.0.1 against 1.0.0, 1.0.1 against 1.0.1, 1.0.2 against 1.0.1"} {
		if got := dictionariesOf(t, m.Store); got != want {
			t.Errorf("the mirror has %q, want %q", got, want)
		}
		if err := m.Improve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Store.RequeueDelta(kvstore.Sum([]byte(testkit.VersionedScript("1.0.2"))), kvstore.Sum([]byte(testkit.VersionedScript("1.0.1")))); err != nil {
		t.Fatal(err)
	}
	if err := m.Improve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := dictionariesOf(t, m.Store); !strings.Contains(got, "1.0.2") {
		t.Errorf("after damage the mirror has %q", got)
	}
}

// A lyingSource has deltas of its own.
type lyingSource struct {
	*replication.Store
	delta []byte
}

// Delta returns the same delta for all contents.
func (s lyingSource) Delta(context.Context, kvstore.Hash, kvstore.Hash, int64) ([]byte, error) {
	return s.delta, nil
}

// TestLyingDeltas tests that a mirror refuses deltas that do not decode to their contents, and takes over the rest of the source.
func TestLyingDeltas(t *testing.T) {
	u := newUpstream(t)
	u.publishVersions(t)
	for name, delta := range map[string][]byte{
		"nothing": nil, "no delta": []byte(testkit.VersionedScript("1.0.0")), "delta of another version": deltaOf(t, "1.0.2", "1.0.0"), "delta against an unknown file": deltaOf(t, "1.0.1", "9.9.9"),
	} {
		m := newMirror(t, "", func(o *replication.Options) {
			o.Source, o.Dictionaries = lyingSource{replication.FromStore(u.Store, "liar"), delta}, true
		})
		if err := m.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := dictionariesOf(t, m.Store); got != "" {
			t.Errorf("%s: the mirror has %q", name, got)
		}
		m.wantNoQueuedDeltas(t)
		m.sound(t)
		m.same(t, u)
	}
}

// A failingSource does not send the deltas against a dictionary, or nothing at all.
type failingSource struct {
	*replication.Store
	fails kvstore.Hash
	down  bool
}

var errFailing = errors.New("it fails")

// Delta fails for the dictionary.
func (s *failingSource) Delta(ctx context.Context, h, dictionary kvstore.Hash, size int64) ([]byte, error) {
	if s.down || dictionary == s.fails {
		return nil, errFailing
	}
	return s.Store.Delta(ctx, h, dictionary, size)
}

// Get fails if the source is down.
func (s *failingSource) Get(ctx context.Context, path string, limit int64) ([]byte, error) {
	if s.down {
		return nil, errFailing
	}
	return s.Store.Get(ctx, path, limit)
}

// TestFailingDeltas tests that deltas which a source does not send keep a mirror and a bundle from no others, that the mirror gives them up after five attempts, and
// that it does not while the source is down.
func TestFailingDeltas(t *testing.T) {
	u := newUpstream(t)
	source := &failingSource{Store: replication.FromStore(u.Store, "failing"), fails: kvstore.Sum([]byte(testkit.VersionedScript("0.0.0")))}
	u.publishVersions(t)
	for i := range 40 { // more than a mirror fetches at the same time
		version := "0.0." + strconv.Itoa(i)
		u.Publish("lib", version, "lib.js", map[string]string{"lib.js": testkit.VersionedScript(version)})
		if i > 0 {
			u.putDelta(t, version, "0.0.0")
		}
	}
	u.signNow(t)
	m := newMirror(t, "", func(o *replication.Options) { o.Source, o.Dictionaries = source, true })
	m.catchUp(t)
	source.down = true
	if err := m.Improve(t.Context()); !errors.Is(err, errFailing) {
		t.Errorf("with a source that is down: %v", err)
	}
	source.down = false
	for range 5 {
		if err := m.Improve(t.Context()); !errors.Is(err, errFailing) {
			t.Errorf("with deltas that the source does not send: %v", err)
		}
		if got := dictionariesOf(t, m.Store); got != "1.0.1 against 1.0.0, 1.0.1 against 1.0.1" {
			t.Errorf("the mirror has %q", got)
		}
	}
	m.wantNoQueuedDeltas(t)
	m.sound(t)

	path := filepath.Join(t.TempDir(), "failing.tar")
	result, err := replication.WriteBundle(t.Context(), path, replication.BundleOptions{Source: source, Trust: verify.Trust{Key: u.signer.Key()}})
	if err != nil || result.DeltasMissing != 39 {
		t.Fatalf("the bundle is %+v; %v", result, err)
	}
	m = newMirror(t, "", func(o *replication.Options) { o.Source, o.Dictionaries = openBundle(t, path), true })
	if err := m.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := dictionariesOf(t, m.Store); got != "1.0.1 against 1.0.0, 1.0.1 against 1.0.1" {
		t.Errorf("the mirror of the bundle has %q", got)
	}
}

// TestUnreadableDelta tests that a store as a source does not say that a damaged delta is not there.
func TestUnreadableDelta(t *testing.T) {
	u := newUpstream(t)
	u.publishVersions(t)
	h, dictionary := kvstore.Sum([]byte(testkit.VersionedScript("1.0.1"))), kvstore.Sum([]byte(testkit.VersionedScript("1.0.0")))
	b := u.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Blobs, slices.Concat(h[:], []byte{byte(coding.DCZ)}, dictionary[:]), []byte("damaged"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := replication.FromStore(u.Store, "damaged").Delta(t.Context(), h, dictionary, 1<<20); !errors.Is(err, kvstore.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the damaged delta: %v", err)
	}
	if _, err := replication.FromStore(u.Store, "other").Delta(t.Context(), dictionary, h, 1<<20); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a delta that is not there: %v", err)
	}
}
