package witness

import (
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/lardertest"
)

// TestFollowedLogIsRenewed: the cosignature of a log that does not grow is renewed every hour, so that its clients see its age.
func TestFollowedLogIsRenewed(t *testing.T) {
	l := lardertest.New(t)
	l.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	if err := l.Signer.Sign(); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w, err := Open(Options{Folder: t.TempDir(), Name: "witness.example", Logs: []string{l.URL}, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, tt := range []struct{ after, want time.Duration }{{0, 0}, {59 * time.Minute, 0}, {time.Hour, time.Hour}, {90 * time.Minute, time.Hour}} {
		start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		now = start.Add(tt.after)
		if err := w.poll(t.Context(), w.sources[0]); err != nil {
			t.Fatal(err)
		}
		if got := w.logByOrigin(lardertest.Origin).cosignedAt(); !got.Equal(start.Add(tt.want)) {
			t.Errorf("after %v it was cosigned at %v", tt.after, got)
		}
	}
}
