package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/buckets"
)

// old fills a shelf with the log of a machine that was alone: releases, a withdrawal, an erasure.
func old(t *testing.T) *testkit.Shelf {
	s := testkit.NewShelf(t)
	s.Enrol("demo", `{"name":"demo"}`)
	for i := range 300 {
		s.Publish("demo", fmt.Sprintf("1.0.%d", i), "demo.js", map[string]string{"demo.js": fmt.Sprint("demo ", i), "shared.js": "shared"})
	}
	s.Withdraw("demo", "1.0.7", "malware")
	s.Publish("late", "1.0.0", "", map[string]string{"late.js": "late"})
	return s
}

func TestFoundingWithALog(t *testing.T) {
	b, s := folder(t), old(t)
	n, err := Open(t.Context(), options(b, s, "one"))
	if err != nil {
		t.Fatal(err)
	}
	one := &member{n, s}
	if !one.Founding() {
		t.Error("the bucket is not to be founded")
	}
	two := join(t, b, "two")
	one.lead(t)
	if one.Founding() {
		t.Error("the bucket is still to be founded")
	}
	if err := one.publish("demo", "2.0.0"); err != nil {
		t.Fatal(err)
	}
	two.catchUp(t)
	same(t, one, two)
	if two.has("demo", "1.0.7") || !two.has("demo", "1.0.8") || !two.has("late", "1.0.0") || !two.has("demo", "2.0.0") {
		t.Error("the other node has other releases")
	}
	if commits := len(list(t, b)); commits != 4 {
		t.Errorf("%d commits, not two of the old log, a fence, and one of the new release", commits)
	}
}

// A founding that was interrupted goes on, and a store whose log the bucket has all of just follows.
func TestFoundingGoesOn(t *testing.T) {
	f := &buckets.Faulty{Bucket: folder(t), Decide: func(bool, string) buckets.Fault { return buckets.None }}
	s := old(t)
	n, err := Open(t.Context(), options(f, s, "one"))
	if err != nil {
		t.Fatal(err)
	}
	f.Decide = func(write bool, key string) buckets.Fault {
		if write && strings.HasPrefix(key, packPrefix(1)) && len(list(t, f.Bucket)) == 1 {
			return buckets.Never
		}
		return buckets.None
	}
	if err := n.Lead(t.Context()); err == nil {
		t.Fatal("it was not interrupted")
	}
	f.Decide = func(bool, string) buckets.Fault { return buckets.None }
	one := &member{n, s}
	if !one.Founding() || len(list(t, f.Bucket)) != 1 {
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
	if three.Founding() {
		t.Error("the bucket is to be founded again")
	}
	three.catchUp(t)
	if err := one.publish("demo", "2.0.0"); err != nil {
		t.Fatal(err)
	}
	three.catchUp(t)
	same(t, one, three)
}
