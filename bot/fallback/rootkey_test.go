package fallback

import (
	"path/filepath"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/lardertest"
	"github.com/larder-cdn/larder/logs"
)

// TestOriginAfterTheft: nothing that a stolen key has signed is taken from an origin, from when the list that ends that key was seen,
// also after a restart.
func TestOriginAfterTheft(t *testing.T) {
	s := lardertest.NewStolenKey(t, "a")
	s.Honest.Lie(lardertest.KeyListPath, s.After())
	s.Thief.Lie(lardertest.KeyListPath, s.Before())
	r := newRig(t)
	known := filepath.Join(t.TempDir(), "known")
	open := func(origin *lardertest.Larder) {
		r.fallback.Close()
		r.open(Options{Bot: r.bot, Store: r.Store, Origins: []string{"larder:" + origin.URL}, Root: s.Root, Known: known, Quota: 1 << 20})
	}
	open(s.Honest)
	if got, failure := r.ask("1.0.0", "a.js"); got != "1" || failure != nil {
		t.Fatalf("got %q, %+v", got, failure)
	}
	r.waitIdle()
	for range 2 {
		open(s.Thief)
		if got, failure := r.ask("6.6.6", "a.js"); failure == nil {
			t.Errorf("the thief's file was taken: %q", got)
		}
		r.waitIdle()
	}
	r.wantKinds(logs.PackageAdded, logs.Mirrored)
}
