package cluster

import (
	"errors"
	"strings"
	"testing"
)

// Into a bucket that has lost commits which a node has applied, that publishes nothing, and says so.
func TestBehind(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	for _, version := range []string{"1.0.0", "1.0.1"} {
		if err := one.publish("a", version); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.sendHeartbeat(ctx, wholeBeats); err != nil || !one.Leads() {
		t.Fatalf("the bucket has all: %v", err)
	}
	next, err := one.NextCommit()
	if err != nil {
		t.Fatal(err)
	}
	last, _, err := b.Get(ctx, commitKey(next-1), maxCommit)
	if err == nil {
		err = b.Delete(ctx, commitKey(next-1))
	}
	if err != nil {
		t.Fatal(err)
	}
	var behind *BehindError
	if err := one.sendHeartbeat(ctx, wholeBeats); !errors.As(err, &behind) || one.Leads() {
		t.Errorf("the node that publishes: %v", err)
	}
	if behind != nil && (behind.Commit != next-1 || !strings.Contains(behind.Error(), "new, empty --bucket")) {
		t.Error(behind)
	}
	n, err := Open(ctx, options(b, one.Shelf, "one")) // its process has begun anew
	if err != nil {
		t.Fatal(err)
	}
	again := &member{n, one.Shelf}
	if _, err := again.CatchUp(ctx); !errors.As(err, &behind) {
		t.Errorf("a node that follows: %v", err)
	}
	if err := again.Lead(ctx, AnyEpoch); !errors.As(err, &behind) {
		t.Errorf("a node that takes over: %v", err)
	}
	if _, _, err := b.Get(ctx, commitKey(next), maxCommit); err == nil {
		t.Error("a commit follows one that is not there")
	}
	if err := b.Put(ctx, commitKey(next-1), last); err != nil {
		t.Fatal(err)
	}
	again.catchUp(t)
	again.lead(t)
}
