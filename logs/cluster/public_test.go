package cluster

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// What the bucket shows is what the writer serves, byte by byte, and a checkpoint never goes back.
func TestShow(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	signer, err := signing.Open(signing.Options{Dir: t.TempDir(), Origin: origin, Store: one.Shelf.Store, Log: one.Shelf.Log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	served, err := tiles.New(tiles.Options{Store: one.Shelf.Store, Signer: signer, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	show := func() signing.Signed {
		t.Helper()
		if err := signer.Sign(); err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Checkpoint()
		if err == nil {
			err = one.UpdatePublic(ctx, signed)
		}
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	for _, version := range []string{"1.0.0", "1.0.1"} {
		if err := one.publish("a", version); err != nil {
			t.Fatal(err)
		}
	}
	first := show()
	for i := range 300 { // more than a full tile
		one.Refuse("a", "2.0."+string(rune('a'+i%26))+strings.Repeat("x", i/26), "no")
	}
	last := show()
	source := &replication.Bucket{Bucket: b}
	seen := 0
	for o, err := range b.List(ctx, "public/log/", "") {
		if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimPrefix(o.Key, "public")
		w := httptest.NewRecorder()
		served.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		got, err := source.Get(ctx, path, 1<<20)
		if err != nil || !bytes.Equal(got, w.Body.Bytes()) {
			t.Errorf("%s is not what is served: %v", path, err)
		}
		seen++
	}
	if seen < 8 {
		t.Errorf("the bucket shows %d paths of the log", seen)
	}
	for _, path := range []string{"/log/checkpoint", "/log/key", "/log/keys", "/log/tile/0/000", "/log/tile/0/001.p/46", "/log/tile/1/000.p/1", "/log/tile/entries/000", "/log/tile/entries/001.p/46"} {
		if _, err := source.Get(ctx, path, 1<<20); err != nil {
			t.Error(err)
		}
	}
	key, err := note.NewVerifier(signer.Key())
	if err != nil {
		t.Fatal(err)
	}
	shown, err := source.Get(ctx, "/log/checkpoint", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if signed, err := signing.OpenWith(shown, key, nil); err != nil || signed.Checkpoint != last.Checkpoint {
		t.Errorf("the bucket shows %v, %v", signed.Checkpoint, err)
	}
	if err := source.Await(ctx, first.Note); err != nil {
		t.Error(err)
	}
	if err := one.publicCopy().putCheckpoint(ctx, first); !errors.Is(err, ErrNewerPublished) {
		t.Errorf("an earlier checkpoint: %v", err)
	}
	own, shared := kvstore.Sum([]byte("a1.0.0")), kvstore.Sum([]byte("shared by a"))
	if c, err := source.Content(ctx, replication.Wanted{Hash: own, Limit: 1 << 10}); err != nil || kvstore.Sum(c.Coded[0].Bytes) != own {
		t.Error(err)
	}
	one.Withdraw("a", "1.0.0", "malware")
	show()
	if _, err := source.Content(ctx, replication.Wanted{Hash: own, Limit: 1 << 10}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what only a withdrawn release has: %v", err)
	}
	if _, err := source.Content(ctx, replication.Wanted{Hash: shared, Limit: 1 << 10}); err != nil {
		t.Errorf("what another release has too: %v", err)
	}
	one.Restore("a", "1.0.0", "it was none")
	show()
	if _, err := source.Content(ctx, replication.Wanted{Hash: own, Limit: 1 << 10}); err != nil {
		t.Errorf("what is served again: %v", err)
	}
}

// TestPrune tests that Prune deletes erased contents from the bucket, except those whose rows in the store are damaged.
func TestPrune(t *testing.T) {
	b, s := folder(t), testkit.NewShelf(t)
	erasure := &logs.Erasure{Package: "a", Version: "1.0.0"}
	gone, damaged := kvstore.Sum([]byte("gone")), kvstore.Sum([]byte("damaged"))
	for _, h := range []kvstore.Hash{gone, damaged} {
		erasure.Contents = append(erasure.Contents, h)
		if err := b.Put(t.Context(), contentKey(h), []byte("bytes")); err != nil {
			t.Fatal(err)
		}
	}
	data, err := erasure.Encode()
	if err != nil {
		t.Fatal(err)
	}
	h := kvstore.Sum(data)
	if err := s.Store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
		t.Fatal(err)
	}
	err = s.Log.Update(func(tx *logs.Tx) error {
		tx.Batch.Set(kvstore.Contents, damaged[:], []byte("\x01"))
		_, err := tx.Append(logs.Entry{Kind: logs.Erased, Actor: "operator", Package: "a", Version: "1.0.0", Manifest: h, Erasure: h, Reason: "by order"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := (PublicCopy{Store: s.Store, Bucket: b, Retain: true}).Prune(t.Context(), 0, 1); err != nil {
		t.Error(err)
	}
	if _, _, err := b.Get(t.Context(), contentKey(gone), 10); !errors.Is(err, bucket.ErrNotFound) {
		t.Errorf("the content without a row: %v", err)
	}
	if _, _, err := b.Get(t.Context(), contentKey(damaged), 10); err != nil {
		t.Errorf("the content with a damaged row: %v", err)
	}
}

// A torn bucket answers the first read of each version of an object with the bytes of the one before.
type torn struct {
	bucket.Bucket
	data map[string][]byte
	seen map[string]bucket.Version
}

func (b *torn) Get(ctx context.Context, key string, most int64) ([]byte, bucket.Version, error) {
	return b.GetOther(ctx, key, most, "")
}

func (b *torn) GetOther(ctx context.Context, key string, most int64, known bucket.Version) ([]byte, bucket.Version, error) {
	data, version, err := b.Bucket.Get(ctx, key, most)
	if err == nil && version == known {
		return nil, version, nil
	}
	if err == nil && version != b.seen[key] {
		old := b.data[key]
		b.seen[key], b.data[key] = version, data
		if old != nil {
			data = old
		}
	}
	return data, version, err
}

// A read that a write overtakes may return the old bytes and the new version. The next look finds the new bytes.
func TestLookIsOvertaken(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	writer := perform(t, one, t.TempDir())
	two.Bucket = &torn{b, map[string][]byte{}, map[string]bucket.Version{}}
	s, _, _ := showing(two.Node, "")
	source := &replication.Bucket{Bucket: &torn{b, map[string][]byte{}, map[string]bucket.Version{}}, Interval: time.Nanosecond}
	var last signing.Signed
	for _, version := range []string{"1.0.0", "1.0.1"} {
		if err := one.publish("a", version); err != nil {
			t.Fatal(err)
		}
		before := last
		last = writer.show(t)
		two.catchUp(t)
		for range 2 {
			if err := s.Refresh(ctx); err != nil {
				t.Fatal(err)
			}
		}
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		if err := source.Await(limited, before.Note); err != nil {
			t.Errorf("the source's next checkpoint is not seen: %v", err)
		}
		cancel()
	}
	if s.SignedInStore() != last.Checkpoint {
		t.Errorf("%d entries are shown, and %d are signed", s.SignedInStore().Size, last.Size)
	}
}

// The last counts of a node that has ended are heard, whatever the first read of them returned.
func TestCountsAreOvertaken(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	two.Bucket = &torn{b, map[string][]byte{}, map[string]bucket.Version{}}
	reader := &CountsReader{Node: two.Node, Name: "two"}
	day := time.Date(2026, 11, 5, 0, 0, 0, 0, time.UTC)
	var heard string
	for _, counts := range []string{"1", "2"} {
		if err := one.PutCounts(t.Context(), "one", day, []byte(counts)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			err := reader.ReadNew(t.Context(), day, day, func(_ string, _ time.Time, counts []byte) error {
				heard = string(counts)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if heard != "2" {
		t.Errorf("heard last: %s", heard)
	}
}

// A fickle bucket says of every replacement that another came first.
type fickle struct{ bucket.Bucket }

func (fickle) Replace(context.Context, string, []byte, bucket.Version) (bucket.Version, error) {
	return "", bucket.ErrChanged
}

// A writer whose checkpoint is never taken says so, rather than trying for ever.
func TestCheckpointIsNeverTaken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := fickle{folder(t)}
		if err := b.Put(t.Context(), publicPrefix+checkpointPath, []byte("log\n1\nroot\n")); err != nil {
			t.Fatal(err)
		}
		n := &Node{Options: Options{Bucket: b}}
		if err := n.publicCopy().putCheckpoint(t.Context(), signing.Signed{Checkpoint: logs.Checkpoint{Size: 2}, Note: []byte("log\n2\nroot\n")}); !errors.Is(err, bucket.ErrChanged) {
			t.Error(err)
		}
	})
}
