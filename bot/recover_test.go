package bot_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs/views"
)

// A process that ended in the middle of a release leaves its state behind. The next bot
// takes the release up again, unless that has happened too often.
func TestInterruptedReleaseIsTakenUpAgain(t *testing.T) {
	for _, tt := range []struct {
		attempts int
		want     views.StateKind
		after    int
	}{
		{0, views.Published, 0},
		{8, views.Published, 0},
		{9, views.Failed, 10},
	} {
		t.Run(fmt.Sprintf("after %d attempts", tt.attempts), func(t *testing.T) {
			r := newRig(t)
			r.register("a", fromNpm("a", "*.js"))
			r.registry.Add("a", "1.0.0", hour(1), map[string]string{"a.js": "a"})
			r.open()
			batch := r.store.NewBatch()
			err := views.SetState(batch, views.State{
				Package: "a", Version: "1.0.0", Kind: views.Processing, Updated: r.now, Attempts: tt.attempts,
			})
			if err == nil {
				err = batch.Commit()
			}
			batch.Close()
			if err != nil {
				t.Fatal(err)
			}
			r.open()
			if s := r.state("a", "1.0.0"); s.Kind != views.Processing {
				t.Errorf("the start looked at releases, for which no client should wait: %+v", s)
			}
			r.once()
			s := r.state("a", "1.0.0")
			if s.Kind != tt.want || tt.want == views.Failed && (s.Attempts != tt.after || !strings.Contains(s.Reason, "ended 10 times") || !s.Next.After(r.now)) {
				t.Errorf("interrupted after %d attempts: %+v, want %s", tt.attempts, s, tt.want)
			}
		})
	}
}
