package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/buckets"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// old fills a shelf with the log of a machine that was alone: releases, a withdrawal, an erasure.
func old(t *testing.T) *testkit.Shelf {
	s := testkit.NewShelf(t)
	s.Register("demo", `{"name":"demo"}`)
	for i := range 300 {
		s.Publish("demo", fmt.Sprintf("1.0.%d", i), "demo.js", map[string]string{"demo.js": fmt.Sprint("demo ", i), "shared.js": "shared"})
	}
	s.Withdraw("demo", "1.0.7", "malware")
	s.Publish("late", "1.0.0", "", map[string]string{"late.js": "late"})
	return s
}

// changeKey appends the entry that a new key takes over from signer to the shelf's log, and returns the signer of the new key.
func changeKey(t *testing.T, s *testkit.Shelf, signer note.Signer) note.Signer {
	t.Helper()
	private, public, err := note.GenerateKey(nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := note.Sign(&note.Note{Text: public + "\n"}, signer)
	if err != nil {
		t.Fatal(err)
	}
	_, signature, _ := strings.Cut(string(signed), "\n\n")
	err = s.Log.Update(func(tx *logs.Tx) error {
		e, err := tx.Append(logs.Entry{Kind: logs.KeyChanged, Time: testkit.Released, Actor: "operator", Key: public, KeySignature: strings.TrimSuffix(signature, "\n")})
		if err != nil {
			return err
		}
		return signing.AddKeyChanges(tx.Batch, s.Store, e.Index)
	})
	if err != nil {
		t.Fatal(err)
	}
	if signer, err = note.NewSigner(private); err != nil {
		t.Fatal(err)
	}
	return signer
}

func TestFoundingWithALog(t *testing.T) {
	b, s := folder(t), old(t)
	first, _, err := note.GenerateKey(nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(first)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // in one commit
		signer = changeKey(t, s, signer)
	}
	n, err := Open(t.Context(), options(b, s, "one"))
	if err != nil {
		t.Fatal(err)
	}
	one := &member{n, s}
	if !one.Bootstrapping() {
		t.Error("the bucket is not to be founded")
	}
	two := join(t, b, "two")
	one.lead(t)
	if one.Bootstrapping() {
		t.Error("the bucket is still to be founded")
	}
	if err := one.publish("demo", "2.0.0"); err != nil {
		t.Fatal(err)
	}
	two.catchUp(t)
	same(t, one, two)
	want, err := signing.KeyChanges(s.Store)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := signing.KeyChanges(two.Shelf.Store); err != nil || len(want) != 2 || !slices.Equal(got, want) {
		t.Errorf("the other node knows %d key changes, %v; want %d", len(got), err, len(want))
	}
	if two.has("demo", "1.0.7") || !two.has("demo", "1.0.8") || !two.has("late", "1.0.0") || !two.has("demo", "2.0.0") {
		t.Error("the other node has other releases")
	}
	if commits := len(list(t, b)); commits != 4 {
		t.Errorf("%d commits, not two of the old log, a fence, and one of the new release", commits)
	}
}

// A bootstrap that was interrupted goes on, and a store whose log the bucket has all of just follows.
func TestFoundingGoesOn(t *testing.T) {
	f := &buckets.Faulty{Bucket: folder(t)}
	s := old(t)
	n, err := Open(t.Context(), options(f, s, "one"))
	if err != nil {
		t.Fatal(err)
	}
	f.SetFaults(func(write bool, key string) buckets.Fault {
		if write && strings.HasPrefix(key, packPrefix(1)) && len(list(t, f.Bucket)) == 1 {
			return buckets.Never
		}
		return buckets.None
	})
	if err := n.Lead(t.Context(), AnyEpoch); err == nil {
		t.Fatal("it was not interrupted")
	}
	f.SetFaults(nil)
	one := &member{n, s}
	if !one.Bootstrapping() || len(list(t, f.Bucket)) != 1 {
		t.Fatal("it was not interrupted in between")
	}
	if _, err := one.CatchUp(t.Context()); err != nil {
		t.Error(err)
	}
	var not *NotWriterError
	if err := one.publish("demo", "2.0.0"); !errors.As(err, &not) {
		t.Error("published before the log was in the bucket:", err)
	}
	one.lead(t)
	two := join(t, f, "two")
	two.catchUp(t)
	same(t, one, two)

	copied := old(t) // as from a backup
	if n, err = Open(t.Context(), options(f, copied, "three")); err != nil {
		t.Fatal(err)
	}
	three := &member{n, copied}
	if three.Bootstrapping() {
		t.Error("the bucket is to be founded again")
	}
	three.catchUp(t)
	if err := one.publish("demo", "2.0.0"); err != nil {
		t.Fatal(err)
	}
	three.catchUp(t)
	same(t, one, three)
}

// The bucket is lost: the nodes go on with a new one, into which the one that writes puts the log.
func TestAnotherBucket(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	for i := range 5 {
		if err := one.publish("a", fmt.Sprintf("1.%d.0", i)); err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			two.catchUp(t)
		}
	}
	b = folder(t)
	again := func(m *member, name string) *member {
		n, err := Open(t.Context(), options(b, m.Shelf, name))
		if err != nil {
			t.Fatal(err)
		}
		return &member{n, m.Shelf}
	}
	one, two = again(one, "one"), again(two, "two")
	two.catchUp(t) // what it has is not there yet
	one.catchUp(t)
	if !one.Bootstrapping() || !two.Bootstrapping() {
		t.Error("the new bucket is not to be founded")
	}
	one.lead(t)
	if err := one.publish("a", "2.0.0"); err != nil {
		t.Fatal(err)
	}
	two.catchUp(t)
	same(t, one, two)
	if !two.has("a", "1.4.0") || !two.has("a", "2.0.0") {
		t.Error("the other node has not gone on")
	}
	// A node that has what the new bucket never got is refused.
	lost := join(t, folder(t), "lost")
	lost.lead(t)
	if err := lost.publish("a", "6.6.6"); err != nil {
		t.Fatal(err)
	}
	lost = again(lost, "lost")
	if _, err := lost.CatchUp(t.Context()); err == nil || !strings.Contains(err.Error(), "empty data folder") {
		t.Error("a node with another log goes on:", err)
	}
}
