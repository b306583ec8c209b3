package replication_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/larder-cdn/larder/logs/replication"
)

// A follower that is stopped while it commits an erasure returns.
func TestStopDuringErasure(t *testing.T) {
	u := newUpstream(t)
	u.stock(t)
	m := newMirror(t, u.url)
	m.catchUp(t)
	u.erase(t, "evil", "1.0.0", "steal()")
	u.signNow(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	size := u.Log.Checkpoint().Size
	m.again(t, u.url, func(o *replication.Options) {
		o.Changed = func(s replication.State) {
			if s.Entries == size {
				cancel()
			}
		}
	})
	returned := make(chan error, 1)
	go func() { returned <- m.CatchUp(ctx) }()
	select {
	case err := <-returned:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it returned %v, want that it was stopped", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it did not return within a minute")
	}
	m.again(t, u.url)
	m.catchUp(t)
	m.same(t, u)
}
