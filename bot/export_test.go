package bot

import (
	"context"
	"time"
)

// ProbeNpm lets the next request find out whether the npm registry is back, instead of in a minute. It wakes the goroutines that wait for the clock, which
// read an injected one only once a minute.
func (b *Bot) ProbeNpm() {
	b.Reschedule(context.Background(), "none of the catalogue", time.Unix(1, 0))
	for _, upstream := range []string{"npm", "archives of npm"} {
		b.breakers.ProbeNow(upstream)
	}
}

// NpmIsDown reports whether the npm registry, or the place of its archives, does not respond.
func (b *Bot) NpmIsDown() bool {
	return b.breakers.IsDown("npm") || b.breakers.IsDown("archives of npm")
}
